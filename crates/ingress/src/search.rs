//! `GET /v1/messages`: a search over one topic with a bounded scan. The answer says how far it looked.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use whimbrel_model::{PartitionId, Timestamp};

use super::answer::bounded_json_response;
use super::documents::SearchAnswer;
use super::door::Door;
use super::keys::Scope;
use super::message_json::{Held, write_message};
use super::problem::{Code, Problem};
use super::query::{Query, shown, take_time};
use super::read::check_limit;
use super::scan::{CLOCK_SKEW, Go, look_through};
use whimbrel_catalogue::topics::Topic;

/// Search for messages
///
/// Partition by partition, in the order of their offsets. A search looks at a bounded number of records: where it is not `complete`, go on
/// with its `cursor`.
#[utoipa::path(
    get, path = "/v1/messages", tag = "messages", operation_id = "search",
    params(
        ("topic" = String, Query, description = "The topic"),
        ("key" = Option<String>, Query, description = "Only messages of this partition key"),
        ("from" = Option<String>, Query, description = "In the topic since this time or later"),
        ("to" = Option<String>, Query, description = "In the topic before this time"),
        ("state" = Option<String>, Query, description = "`published`: at once; `fired`: after it was held. States of subscriptions answer 501 `not_yet` in this version"),
        ("limit" = Option<usize>, Query, description = "At most so many messages: 1 to 10000, 100 where it is not given"),
        ("cursor" = Option<String>, Query, description = "Where an earlier search with the same parameters ended"),
    ),
    responses(
        (status = 200, description = "What was found, and how far it looked", body = SearchAnswer, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `bad_parameter`, `bad_time`, `overloaded`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`not_yet`, `unavailable`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn search(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let caller = door.keys.caller(request.headers())?;
    caller.require(Scope::Consume)?;
    let mut query = Query::parse(request.uri().query())?;
    let wanted = Wanted::take(&mut query)?;
    query.end()?;
    caller.require_topic(Scope::Consume, &wanted.topic)?;
    let topic = door.registry.find(&wanted.topic).await?;
    let outcome = run(&door, &topic, &wanted).await?;
    let mut json = outcome.json;
    json.extend_from_slice(b"],\"scanned\":");
    json.extend_from_slice(itoa::Buffer::new().format(outcome.scanned).as_bytes());
    match outcome.rest {
        None => json.extend_from_slice(b",\"complete\":true}"),
        Some((partition, offset)) => {
            json.extend_from_slice(format!(",\"complete\":false,\"cursor\":\"{partition}:{offset}\"}}").as_bytes());
        }
    }
    bounded_json_response(door.answers.begin(), json)
}

/// What is looked for.
struct Wanted {
    topic: String,
    key: Option<String>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    /// Only what was held before it came into its topic, or only what was not.
    was_held: Option<bool>,
    limit: usize,
    /// The partition and the offset to begin at.
    cursor: Option<(u32, u64)>,
}

impl Wanted {
    fn take(query: &mut Query<'_>) -> Result<Self, Problem> {
        let topic = query.take("topic")?.filter(|topic| !topic.is_empty());
        let topic = topic.ok_or_else(|| Problem::new(Code::BadParameter, "a search needs a `topic`"))?.into_owned();
        let key = query.take("key")?.map(|key| key.into_owned());
        let (from, to) = (take_time(query, "from")?, take_time(query, "to")?);
        let was_held = match query.take("state")?.as_deref() {
            None => None,
            Some("published") => Some(false),
            Some("fired") => Some(true),
            Some("held") => {
                let detail = "what is held is not in its topic yet: `GET /v1/holds` lists it";
                return Err(Problem::new(Code::BadParameter, detail));
            }
            Some("delivered" | "waiting" | "retrying" | "dead") => {
                let detail = "what subscriptions did with messages comes with a later version";
                return Err(Problem::new(Code::NotYet, detail));
            }
            Some(other) => {
                return Err(Problem::new(Code::BadParameter, format!("there is no state `{}`", shown(other))));
            }
        };
        let limit = check_limit(query.take_parsed("limit", "a number")?)?;
        let cursor = query.take("cursor")?.filter(|cursor| !cursor.is_empty());
        let cursor = cursor.map(|cursor| parse_cursor(&cursor)).transpose()?;
        Ok(Self { topic, key, from, to, was_held, limit, cursor })
    }
}

fn parse_cursor(cursor: &str) -> Result<(u32, u64), Problem> {
    let pair = cursor.split_once(':').and_then(|(p, offset)| Some((p.parse().ok()?, offset.parse().ok()?)));
    pair.ok_or_else(|| Problem::new(Code::BadParameter, format!("`{}` is not a cursor of a search", shown(cursor))))
}

struct Outcome {
    /// The answer as far as the messages go.
    json: Vec<u8>,
    scanned: usize,
    rest: Option<(u32, u64)>,
}

async fn run(door: &Door, topic: &Topic, wanted: &Wanted) -> Result<Outcome, Problem> {
    let mut json = b"{\"messages\":[".to_vec();
    let (mut found, mut scanned) = (0, 0);
    let partitions = match &wanted.key {
        Some(key) => topic.places_ever(key.as_bytes()),
        None => (0..topic.partitions()).collect(),
    };
    let (first, at) = wanted.cursor.unwrap_or((0, 0));
    let mut places = partitions.into_iter().filter(|index| *index >= first);
    let mut rest = None;
    for index in places.by_ref() {
        let (start, end) = stretch(door, topic.partition(index), wanted).await?;
        let start = if index == first { start.max(at) } else { start };
        let most = door.settings.search_scan_max_records.saturating_sub(scanned);
        if most == 0 {
            rest = Some((index, start));
            break;
        }
        let looked = look_through(door, topic.partition(index), start, end, most, |stored| {
            let time = stored.record.timestamp;
            let matches = wanted.key.as_ref().is_none_or(|key| stored.record.key.as_deref() == Some(key.as_bytes()))
                && wanted.from.is_none_or(|from| time >= from)
                && wanted.to.is_none_or(|to| time < to)
                && wanted.was_held.is_none_or(|was_held| Held::of(&stored.record).is_some() == was_held);
            if !matches {
                return Go::On;
            }
            if found > 0 {
                json.push(b',');
            }
            write_message(&mut json, topic, index, stored);
            found += 1;
            if found == wanted.limit || json.len() >= door.settings.read_bytes_max { Go::Stop } else { Go::On }
        })
        .await?;
        scanned += looked.scanned;
        if let Some(offset) = looked.rest {
            rest = Some((index, offset));
            break;
        }
    }
    Ok(Outcome { json, scanned, rest })
}

/// The offsets between which the wanted times can be. Neighbours may differ by the skew, so it is a little wider.
async fn stretch(door: &Door, partition: PartitionId, wanted: &Wanted) -> Result<(u64, u64), Problem> {
    let log = &door.ports.log;
    let bounds = log.bounds(partition).await?;
    let start = match wanted.from {
        None => bounds.first,
        Some(from) => log.offset_at(partition, from.saturating_sub(CLOCK_SKEW)).await?,
    };
    let end = match wanted.to {
        None => bounds.next,
        Some(to) => {
            let late = to.as_millis().saturating_add(CLOCK_SKEW.as_millis() as i64);
            log.offset_at(partition, Timestamp::from_millis(late)).await?
        }
    };
    Ok((start.max(bounds.first), end))
}
