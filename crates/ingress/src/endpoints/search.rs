//! `GET /v1/messages`: a search over one topic with a bounded scan. The answer reports how far it scanned.

use std::sync::Arc;

use axum::extract::{Request, State};
use whimbrel_api::messages::SearchAnswer;
use whimbrel_api::problem::Problem;
use whimbrel_model::{PartitionId, Timestamp};

use crate::answer::bounded_json_response;
use crate::api_state::ApiState;
use crate::endpoints::read::check_read_limit;
use crate::keys::Scope;
use crate::message_json::{HoldTimes, write_message};
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, shown, take_time};
use crate::scan::{CLOCK_SKEW, ScanControl, scan_records};
use whimbrel_catalogue::topics::Topic;

/// Search for messages
///
/// Scans partition by partition, in offset order. One search reads a bounded number of records: if it is not `complete`, continue with its
/// `cursor`.
#[utoipa::path(
    get, path = "/v1/messages", tag = "messages", operation_id = "search",
    params(
        ("topic" = String, Query, description = "The topic"),
        ("key" = Option<String>, Query, description = "Only messages of this partition key"),
        ("from" = Option<String>, Query, description = "Only messages appended to the topic at or after this time"),
        ("to" = Option<String>, Query, description = "Only messages appended to the topic before this time"),
        ("state" = Option<String>, Query, description = "`published`: published without a hold; `fired`: held before. States of subscriptions are not implemented yet: 501 `not_implemented`"),
        ("limit" = Option<usize>, Query, description = "The maximum number of messages: 1 to 10000, default 100"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of an earlier search with the same parameters"),
    ),
    responses(
        (status = 200, description = "The matching messages, and how far the search scanned", body = SearchAnswer, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `bad_parameter`, `bad_time`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`not_implemented`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn search(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let caller = api.keys.caller(request.headers())?;
    caller.require(Scope::Consume)?;
    let mut query = Query::parse(request.uri().query())?;
    let criteria = SearchCriteria::take(&mut query)?;
    query.end()?;
    caller.require_topic(Scope::Consume, &criteria.topic)?;
    let topic = api.registry.find(&criteria.topic).await?;
    let outcome = run(&api, &topic, &criteria).await?;
    let mut json = outcome.json;
    json.extend_from_slice(b"],\"scanned\":");
    json.extend_from_slice(itoa::Buffer::new().format(outcome.scanned).as_bytes());
    match outcome.rest {
        None => json.extend_from_slice(b",\"complete\":true}"),
        Some((partition, offset)) => {
            json.extend_from_slice(format!(",\"complete\":false,\"cursor\":\"{partition}:{offset}\"}}").as_bytes());
        }
    }
    bounded_json_response(api.answers.begin(), json)
}

/// The parameters of a search.
struct SearchCriteria {
    topic: String,
    key: Option<String>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    /// Only messages that were held before their append, or only others.
    was_held: Option<bool>,
    limit: usize,
    /// The partition and offset at which to begin.
    cursor: Option<(u32, u64)>,
}

impl SearchCriteria {
    fn take(query: &mut Query<'_>) -> Result<Self, ApiProblem> {
        let topic = query.take("topic")?.filter(|topic| !topic.is_empty());
        let topic = topic.ok_or_else(|| ApiProblem::new(Code::BadParameter, "`topic` is missing"))?.into_owned();
        let key = query.take("key")?.map(|key| key.into_owned());
        let (from, to) = (take_time(query, "from")?, take_time(query, "to")?);
        let was_held = match query.take("state")?.as_deref() {
            None => None,
            Some("published") => Some(false),
            Some("fired") => Some(true),
            Some("held") => {
                let detail = "`state` cannot be `held`: use `GET /v1/holds` for held messages";
                return Err(ApiProblem::new(Code::BadParameter, detail));
            }
            Some("delivered" | "waiting" | "retrying" | "dead") => {
                let detail = "searching by the state in subscriptions is not implemented yet";
                return Err(ApiProblem::new(Code::NotImplemented, detail));
            }
            Some(other) => {
                let detail = format!("unknown state `{}`: use `published` or `fired`", shown(other));
                return Err(ApiProblem::new(Code::BadParameter, detail));
            }
        };
        let limit = check_read_limit(query.take_parsed("limit", "a number")?)?;
        let cursor = query.take("cursor")?.filter(|cursor| !cursor.is_empty());
        let cursor = cursor.map(|cursor| parse_cursor(&cursor)).transpose()?;
        Ok(Self { topic, key, from, to, was_held, limit, cursor })
    }
}

fn parse_cursor(cursor: &str) -> Result<(u32, u64), ApiProblem> {
    let pair = cursor.split_once(':').and_then(|(p, offset)| Some((p.parse().ok()?, offset.parse().ok()?)));
    pair.ok_or_else(|| {
        ApiProblem::new(Code::BadParameter, format!("`{}` is not the cursor of a search", shown(cursor)))
    })
}

struct SearchOutcome {
    /// The answer up to the end of its messages.
    json: Vec<u8>,
    scanned: usize,
    rest: Option<(u32, u64)>,
}

async fn run(api: &ApiState, topic: &Topic, criteria: &SearchCriteria) -> Result<SearchOutcome, ApiProblem> {
    let mut json = b"{\"messages\":[".to_vec();
    let (mut found, mut scanned) = (0, 0);
    let partitions = match &criteria.key {
        Some(key) => topic.places_ever(key.as_bytes()),
        None => (0..topic.partitions()).collect(),
    };
    let (first, at) = criteria.cursor.unwrap_or((0, 0));
    let mut places = partitions.into_iter().filter(|index| *index >= first);
    let mut rest = None;
    for index in places.by_ref() {
        let (start, end) = offset_range(api, topic.partition(index), criteria).await?;
        let start = if index == first { start.max(at) } else { start };
        let most = api.settings.search_scan_max_records.saturating_sub(scanned);
        if most == 0 {
            rest = Some((index, start));
            break;
        }
        let scan = scan_records(api, topic.partition(index), start, end, most, |stored| {
            let time = stored.record.timestamp;
            let matches = criteria.key.as_ref().is_none_or(|key| stored.record.key.as_deref() == Some(key.as_bytes()))
                && criteria.from.is_none_or(|from| time >= from)
                && criteria.to.is_none_or(|to| time < to)
                && criteria.was_held.is_none_or(|was_held| HoldTimes::of(&stored.record).is_some() == was_held);
            if !matches {
                return ScanControl::Continue;
            }
            if found > 0 {
                json.push(b',');
            }
            write_message(&mut json, topic, index, stored);
            found += 1;
            if found == criteria.limit || json.len() >= api.settings.read_bytes_max {
                ScanControl::Stop
            } else {
                ScanControl::Continue
            }
        })
        .await?;
        scanned += scan.scanned;
        if let Some(offset) = scan.rest {
            rest = Some((index, offset));
            break;
        }
    }
    Ok(SearchOutcome { json, scanned, rest })
}

/// The offset range that can contain the requested times. It is a little wider, because neighbours may differ by the clock skew.
async fn offset_range(
    api: &ApiState,
    partition: PartitionId,
    criteria: &SearchCriteria,
) -> Result<(u64, u64), ApiProblem> {
    let log = &api.ports.log;
    let bounds = log.bounds(partition).await?;
    let start = match criteria.from {
        None => bounds.first,
        Some(from) => log.offset_at(partition, from.saturating_sub(CLOCK_SKEW)).await?,
    };
    let end = match criteria.to {
        None => bounds.next,
        Some(to) => {
            let late = to.as_millis().saturating_add(CLOCK_SKEW.as_millis() as i64);
            log.offset_at(partition, Timestamp::from_millis(late)).await?
        }
    };
    Ok((start.max(bounds.first), end))
}
