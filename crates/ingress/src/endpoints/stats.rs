//! `GET /v1/stats/topics/{topic}`: statistics of a topic for each minute, summed over all nodes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use whimbrel_api::problem::Problem;
use whimbrel_api::stats::{DurationFigures, MinuteFigures, TopicFigures};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{DurationHistogram, MinuteRow};

use crate::answer::{bounded_json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::path_part;
use crate::endpoints::subscriptions::require_view;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, take_time};

const MINUTE_MS: i64 = 60_000;
/// The default length of the time range.
const SHOWN_BY_DEFAULT: Duration = Duration::from_secs(3_600);
/// The maximum length of the time range: one week.
const SHOWN_MAX_MS: i64 = 7 * 86_400_000;

/// Get the statistics of a topic by minute
#[utoipa::path(
    get, path = "/v1/stats/topics/{topic}", tag = "operating", operation_id = "topic_stats",
    params(
        ("topic" = String, Path, description = "The topic"),
        ("from" = Option<String>, Query, description = "A time in RFC 3339, inclusive. Default: one hour before `to`"),
        ("to" = Option<String>, Query, description = "A time in RFC 3339, exclusive. Default: now"),
    ),
    responses(
        (status = 200, description = "The minutes", body = TopicFigures, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `bad_parameter`, `bad_time`, `forbidden`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn topic_stats(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let name = path_part(request.uri().path(), "/v1/stats/topics/")?;
    let caller = api.keys.caller(request.headers())?;
    require_view(&caller)?;
    caller.require_topic_access(&name)?;
    let mut query = Query::parse(request.uri().query())?;
    let (from, to) = (take_time(&mut query, "from")?, take_time(&mut query, "to")?);
    query.end()?;
    // The current minute is included.
    let to = to.unwrap_or_else(|| Timestamp::from_millis(api.ports.clock.now().as_millis() + 1));
    let from = from.unwrap_or_else(|| to.saturating_sub(SHOWN_BY_DEFAULT));
    let (from, to) = (minute_at_or_before(from), minute_at_or_after(to));
    if from >= to || to.as_millis().saturating_sub(from.as_millis()) > SHOWN_MAX_MS {
        return Err(ApiProblem::new(Code::BadTime, "`from` must be earlier than `to`, and the range at most 7d"));
    }
    let topic = api.registry.find(&name).await?;
    let (rows, silent_nodes) = api.ports.dispatch.minutes(topic.number(), from, to).await;
    let minutes = rows.iter().map(|(minute, row)| document_of(*minute, row)).collect();
    let document = TopicFigures {
        topic: topic.name.to_string(),
        from: from.to_string(),
        to: to.to_string(),
        minutes,
        silent_nodes,
    };
    bounded_json_response(api.answers.begin(), to_json(&document))
}

fn minute_at_or_before(time: Timestamp) -> Timestamp {
    Timestamp::from_millis(time.as_millis().div_euclid(MINUTE_MS) * MINUTE_MS)
}

fn minute_at_or_after(time: Timestamp) -> Timestamp {
    minute_at_or_before(Timestamp::from_millis(time.as_millis().saturating_add(MINUTE_MS - 1)))
}

fn document_of(minute: Timestamp, row: &MinuteRow) -> MinuteFigures {
    MinuteFigures {
        minute: minute.to_string(),
        published: row.published,
        fired: row.fired,
        delivered: row.delivered,
        failed: row.failed,
        publish_to_delivery: spread_of(&row.publish_to_delivery),
        callback: spread_of(&row.callback),
        lateness: spread_of(&row.lateness),
    }
}

fn spread_of(spread: &DurationHistogram) -> Option<DurationFigures> {
    let ms = |us: u64| us as f64 / 1000.0;
    Some(DurationFigures { average_ms: ms(spread.average()?), p99_ms: ms(spread.quantile(0.99)?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_widened_to_whole_minutes() {
        let ms = Timestamp::from_millis;
        assert_eq!(minute_at_or_before(ms(119_999)), ms(60_000));
        assert_eq!(minute_at_or_after(ms(60_001)), ms(120_000));
        assert_eq!(minute_at_or_after(ms(60_000)), ms(60_000));
    }
}
