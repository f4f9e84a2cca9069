//! `GET /v1/holds` and `GET /v1/holds/count`: pending holds of all shards. Each owner answers for its shard; the answers are merged in due
//! order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use whimbrel_api::holds::{HoldBucket, HoldCounts, HoldInfo, HoldPage};
use whimbrel_api::problem::Problem;
use whimbrel_model::ports::{CountQuery, DueCursor, HoldQuery, HoldReply, HoldRequest};
use whimbrel_model::{Timestamp, TopicNumber, parse_duration};

use crate::answer::{bounded_json_response, to_json};
use crate::api_state::ApiState;
use crate::endpoints::hold_calls::{self, ask_all, hold_id, wrong_reply};
use crate::endpoints::holds::{ended_document, pending_document};
use crate::keys::Caller;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, check_limit, shown, take_time};

/// Default and maximum number of holds on a page.
const LIST_DEFAULT: usize = 100;
const LIST_MAX: usize = 1000;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// Bucket lengths of a histogram. The default is the first one that results in at most `BUCKETS_WANTED` buckets.
const BUCKETS: [Duration; 8] = [
    MINUTE,
    MINUTE.saturating_mul(5),
    MINUTE.saturating_mul(15),
    MINUTE.saturating_mul(60),
    MINUTE.saturating_mul(360),
    DAY,
    DAY.saturating_mul(7),
    DAY.saturating_mul(30),
];
/// The approximate maximum number of buckets without a requested length.
const BUCKETS_WANTED: u128 = 100;
/// The maximum number of buckets in an answer.
const BUCKETS_MAX: u128 = 10_000;

/// List holds in due order
///
/// Lists pending holds, or dead ones with `state=dead`. If the answer has a `cursor`, there may be more.
#[utoipa::path(
    get, path = "/v1/holds", tag = "holds", operation_id = "list_holds",
    params(
        ("topic" = Option<String>, Query, description = "Only holds of this topic. Required if the key does not cover all topics or lacks the scope `push`"),
        ("from" = Option<String>, Query, description = "Only holds due at or after this time"),
        ("to" = Option<String>, Query, description = "Only holds due before this time"),
        ("state" = Option<String>, Query, description = "`held` (the default) or `dead`"),
        ("limit" = Option<usize>, Query, description = "The maximum number of holds: 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page with the same parameters"),
    ),
    responses(
        (status = 200, description = "The holds", body = HoldPage, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `forbidden`, `bad_parameter`, `bad_time`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_holds(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let caller = api.keys.caller(request.headers())?;
    caller.require_view()?;
    let mut query = Query::parse(request.uri().query())?;
    let topic = take_topic(&api, &caller, &mut query).await?;
    let (from, to) = (take_time(&mut query, "from")?, take_time(&mut query, "to")?);
    let is_dead = match query.take("state")?.as_deref() {
        None | Some("held") => false,
        Some("dead") => true,
        Some(other) => {
            let detail = format!("`state` must be `held` or `dead`, got `{}`", shown(other));
            return Err(ApiProblem::new(Code::BadParameter, detail));
        }
    };
    let limit = check_limit(query.take_parsed("limit", "a number")?, LIST_DEFAULT, LIST_MAX)?;
    let after =
        query.take("cursor")?.filter(|cursor| !cursor.is_empty()).map(|cursor| read_cursor(&cursor)).transpose()?;
    query.end()?;
    let wanted = HoldQuery { topic, from, to, after, limit };
    let ask = if is_dead { HoldRequest::Dead(wanted) } else { HoldRequest::List(wanted) };
    let document = page_of(&api, &ask, limit).await?;
    bounded_json_response(api.answers.begin(), to_json(&document))
}

/// A page of holds of all shards, in due order.
async fn page_of(api: &ApiState, ask: &HoldRequest, limit: usize) -> Result<HoldPage, ApiProblem> {
    let mut placed: Vec<(DueCursor, HoldInfo)> = Vec::new();
    let mut is_cut = false;
    for told in ask_all(api, ask).await? {
        let before = placed.len();
        match (ask, told) {
            (HoldRequest::List(_), HoldReply::Listed(views)) => placed.extend(
                views.iter().map(|view| (DueCursor { due: view.due, id: view.id.clone() }, pending_document(view))),
            ),
            (HoldRequest::Dead(_), HoldReply::ListedDead(dead)) => placed.extend(
                dead.iter().map(|(id, end)| (DueCursor { due: end.due, id: id.clone() }, ended_document(api, id, end))),
            ),
            (_, other) => return Err(wrong_reply(&other)),
        }
        // A shard with a full list may have more.
        is_cut |= placed.len() - before >= limit;
    }
    placed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    is_cut |= placed.len() > limit;
    placed.truncate(limit);
    let cursor = placed.last().filter(|_| is_cut).map(|(place, _)| write_cursor(place));
    Ok(HoldPage { holds: placed.into_iter().map(|(_, hold)| hold).collect(), cursor })
}

/// Encodes a position in due order as an opaque cursor.
fn write_cursor(place: &DueCursor) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}:{}", place.due.as_millis(), place.id))
}

fn read_cursor(cursor: &str) -> Result<DueCursor, ApiProblem> {
    let wrong =
        || ApiProblem::new(Code::BadParameter, format!("`{}` is not the cursor of a list of holds", shown(cursor)));
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| wrong())?;
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    let (due, id) = text.split_once(':').ok_or_else(wrong)?;
    let due = Timestamp::from_millis(due.parse().map_err(|_| wrong())?);
    Ok(DueCursor { due, id: hold_id(id).map_err(|_| wrong())? })
}

/// The requested topic, if any.
async fn take_topic(api: &ApiState, caller: &Caller, query: &mut Query<'_>) -> Result<Option<TopicNumber>, ApiProblem> {
    let Some(name) = query.take("topic")? else {
        // By its cursor or its length, a page of all topics would reveal holds of topics that the key does not cover.
        if caller.is_restricted() {
            return Err(ApiProblem::new(Code::Forbidden, "`topic` is missing: this key does not cover all topics"));
        }
        if !caller.is_for_all_holds() {
            let detail = "`topic` is missing: without the scope `push`, this key cannot list held pushes";
            return Err(ApiProblem::new(Code::Forbidden, detail));
        }
        return Ok(None);
    };
    caller.require_holds_of(&name)?;
    Ok(Some(api.registry.find(&name).await?.number()))
}

/// Count pending holds by due time
///
/// Counts are per minute: `from` and `to` are widened to whole minutes.
#[utoipa::path(
    get, path = "/v1/holds/count", tag = "holds", operation_id = "count_holds",
    params(
        ("topic" = Option<String>, Query, description = "Only holds of this topic. Required if the key does not cover all topics or lacks the scope `push`"),
        ("from" = Option<String>, Query, description = "Only holds due at or after this time"),
        ("to" = Option<String>, Query, description = "Only holds due before this time"),
        ("bucket" = Option<String>, Query, description = "The length of the buckets: a multiple of 1m. Default: a length that results in at most about 100 buckets"),
    ),
    responses(
        (status = 200, description = "The number of holds, in total and by due time", body = HoldCounts, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `forbidden`, `bad_parameter`, `bad_time`, `bad_duration`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn count_holds(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let caller = api.keys.caller(request.headers())?;
    caller.require_view()?;
    let mut query = Query::parse(request.uri().query())?;
    let topic = take_topic(&api, &caller, &mut query).await?;
    let (from, to) = (take_time(&mut query, "from")?, take_time(&mut query, "to")?);
    let bucket = query.take("bucket")?.map(|text| read_bucket(&text)).transpose()?;
    query.end()?;
    let (bucket, counts) = histogram(&api, CountQuery { topic, from, to, bucket: DAY }, bucket).await?;
    let length_ms = i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX);
    let buckets = counts.iter().map(|(from, count)| HoldBucket {
        from: from.to_string(),
        to: Timestamp::from_millis(from.as_millis().saturating_add(length_ms)).to_string(),
        count: *count,
    });
    let document = HoldCounts { count: counts.values().sum(), buckets: buckets.collect() };
    bounded_json_response(api.answers.begin(), to_json(&document))
}

fn read_bucket(text: &str) -> Result<Duration, ApiProblem> {
    let bucket = parse_duration(text).map_err(|error| ApiProblem::new(Code::BadDuration, error.to_string()))?;
    let is_whole = bucket >= MINUTE && bucket.as_millis() % MINUTE.as_millis() == 0;
    match is_whole {
        true => Ok(bucket),
        false => {
            Err(ApiProblem::new(Code::BadDuration, format!("`bucket` must be a multiple of 1m, got `{}`", shown(text))))
        }
    }
}

/// Counts in buckets of the requested or a suitable length. The first request counts by day, to find the time span.
async fn histogram(
    api: &ApiState,
    by_day: CountQuery,
    wanted: Option<Duration>,
) -> Result<(Duration, BTreeMap<Timestamp, u64>), ApiProblem> {
    let days = hold_calls::count(api, by_day.clone()).await?;
    let span = span_of(&days, by_day.from, by_day.to);
    let bucket = wanted.unwrap_or_else(|| default_bucket(span));
    if span.as_millis() / bucket.as_millis() > BUCKETS_MAX {
        let detail = "more than 10000 buckets: use a longer `bucket` or a shorter time range";
        return Err(ApiProblem::new(Code::BadParameter, detail));
    }
    let counts = if bucket == DAY { days } else { hold_calls::count(api, CountQuery { bucket, ..by_day }).await? };
    Ok((bucket, counts))
}

/// The time from the first to the last day with holds, within the requested range.
fn span_of(days: &BTreeMap<Timestamp, u64>, from: Option<Timestamp>, to: Option<Timestamp>) -> Duration {
    let (Some((first, _)), Some((last, _))) = (days.first_key_value(), days.last_key_value()) else {
        return Duration::ZERO;
    };
    let first = from.map_or(*first, |from| from.max(*first)).as_millis();
    let end = last.as_millis().saturating_add(DAY.as_millis() as i64);
    let end = to.map_or(end, |to| to.as_millis().min(end));
    Duration::from_millis(u64::try_from(end.saturating_sub(first)).unwrap_or(0))
}

fn default_bucket(span: Duration) -> Duration {
    let suits = |bucket: &&Duration| span.as_millis() / bucket.as_millis() <= BUCKETS_WANTED;
    *BUCKETS.iter().find(suits).unwrap_or(&BUCKETS[BUCKETS.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use whimbrel_model::HoldId;

    #[test]
    fn the_default_bucket_depends_on_the_time_span() {
        assert_eq!(default_bucket(Duration::ZERO), MINUTE);
        assert_eq!(default_bucket(MINUTE * 100), MINUTE);
        assert_eq!(default_bucket(DAY), MINUTE * 15);
        assert_eq!(default_bucket(DAY * 730), DAY * 30);
        assert_eq!(default_bucket(DAY * 36_500), DAY * 30);
    }

    #[test]
    fn the_requested_range_limits_the_span() {
        let at = |minutes: i64| Timestamp::from_millis(minutes * 60_000);
        let days = BTreeMap::from([(at(0), 1), (at(1440), 1)]);
        assert_eq!(span_of(&days, None, None), DAY * 2);
        assert_eq!(span_of(&days, Some(at(10)), Some(at(15))), MINUTE * 5);
        assert_eq!(span_of(&days, Some(at(100_000)), None), Duration::ZERO);
        assert_eq!(span_of(&BTreeMap::new(), None, None), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_cursor_survives_encoding(due: i64, id in "[A-Za-z0-9_:-]{1,128}") {
            let place = DueCursor { due: Timestamp::from_millis(due), id: HoldId::new(&id) };
            prop_assert_eq!(read_cursor(&write_cursor(&place)).unwrap(), place);
        }

        #[test]
        fn an_arbitrary_cursor_never_panics(text in ".{0,40}") {
            let _ = read_cursor(&text);
        }
    }
}
