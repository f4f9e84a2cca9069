//! `GET /v1/topics/{topic}/messages`: reads on in one partition, by offset or by time, waiting at its end where asked to.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use whimbrel_model::limits::{READ_MESSAGES_DEFAULT, READ_MESSAGES_MAX, READ_WAIT_MAX_MS};
use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, Timestamp, parse_duration};

use super::answer::bounded_json_response;
use super::attributes::topic_in_path;
use super::documents::ReadAnswer;
use super::door::Door;
use super::keys::Scope;
use super::message_json::{MESSAGE_BYTES_TYPICAL, write_message};
use super::problem::{Code, Problem};
use super::query::{Query, shown};
use whimbrel_catalogue::topics::Topic;

/// What an answer has beside its messages, about.
const FRAME_BYTES_TYPICAL: usize = 64;
/// How often the first kept offset is asked for anew when retention removes it at the same moment.
const EARLIEST_TRIES: usize = 4;

/// Where a read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Earliest,
    Latest,
    Offset(u64),
    Since(Timestamp),
}

/// What a reader asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) partition: u32,
    pub(crate) start: Start,
    pub(crate) limit: usize,
    pub(crate) wait: Duration,
}

/// Read messages of one partition
///
/// Go on from `next_offset`. Offsets grow, not always by one.
#[utoipa::path(
    get, path = "/v1/topics/{topic}/messages", tag = "messages", operation_id = "read",
    params(
        ("topic" = String, Path, description = "The topic; the system's, such as `_events`, are read like any other"),
        ("partition" = Option<u32>, Query, description = "0 where it is not given"),
        ("offset" = Option<String>, Query, description = "An offset, `earliest` (the default) or `latest`"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset: the first message at or after it"),
        ("limit" = Option<usize>, Query, description = "At most so many messages: 1 to 10000, 100 where it is not given"),
        ("wait" = Option<String>, Query, description = "How long to wait where nothing is there yet, such as `5s`: up to `60s`"),
    ),
    responses(
        (status = 200, description = "The messages, and where to read on", body = ReadAnswer, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `unknown_partition`, `offset_out_of_range`, `damaged`, `bad_parameter`, `bad_duration`, `bad_time`, `overloaded`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn read(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let name = topic_in_path(parts.uri.path())?;
    let caller = door.keys.caller(&parts.headers)?;
    caller.require_topic(Scope::Consume, &name)?;
    let ask = ask_of(Query::parse(parts.uri.query())?)?;
    let topic = door.registry.find(&name).await?;
    let batch = read_on(&door, &topic, ask).await?;
    let size: usize = batch.records.iter().map(|stored| stored.record.size() + MESSAGE_BYTES_TYPICAL).sum();
    let mut load = door.answers.begin();
    load.grow(size + FRAME_BYTES_TYPICAL)?;
    let mut json = Vec::with_capacity(size + FRAME_BYTES_TYPICAL);
    json.extend_from_slice(b"{\"messages\":[");
    let mut next = batch.next;
    for (index, stored) in batch.records.iter().enumerate() {
        let before = json.len();
        if index > 0 {
            json.push(b',');
        }
        write_message(&mut json, &topic, ask.partition, stored);
        // Written as JSON a message may be six times as large: the bound is judged again by what it became.
        if index > 0 && json.len() > door.settings.read_bytes_max {
            json.truncate(before);
            next = stored.offset;
            break;
        }
    }
    json.extend_from_slice(b"],\"next_offset\":");
    json.extend_from_slice(itoa::Buffer::new().format(next).as_bytes());
    json.push(b'}');
    bounded_json_response(load, json)
}

fn ask_of(mut query: Query<'_>) -> Result<Ask, Problem> {
    let partition = query.take_parsed("partition", "a number")?.unwrap_or(0);
    let start = take_start(&mut query)?.unwrap_or(Start::Earliest);
    let limit = check_limit(query.take_parsed("limit", "a number")?)?;
    let wait = check_wait(query.take("wait")?.as_deref())?;
    query.end()?;
    Ok(Ask { partition, start, limit, wait })
}

/// The parameters `offset` and `since`.
pub(super) fn take_start(query: &mut Query<'_>) -> Result<Option<Start>, Problem> {
    match (query.take("offset")?, query.take("since")?) {
        (Some(_), Some(_)) => Err(Problem::new(Code::BadParameter, "give `offset` or `since`, not both")),
        (Some(offset), None) => start_of_word(&offset).map(Some),
        (None, Some(since)) => start_of_time(&since).map(Some),
        (None, None) => Ok(None),
    }
}

pub(crate) fn start_of_word(offset: &str) -> Result<Start, Problem> {
    match offset {
        "earliest" => Ok(Start::Earliest),
        "latest" => Ok(Start::Latest),
        digits => digits.parse().map(Start::Offset).map_err(|_| {
            let detail = format!("`offset` is a number, `earliest` or `latest`, not `{}`", shown(digits));
            Problem::new(Code::BadParameter, detail)
        }),
    }
}

pub(crate) fn start_of_time(since: &str) -> Result<Start, Problem> {
    Timestamp::parse(since).map(Start::Since).map_err(|error| Problem::new(Code::BadTime, error.to_string()))
}

pub(crate) fn check_limit(limit: Option<usize>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(READ_MESSAGES_DEFAULT);
    if (1..=READ_MESSAGES_MAX).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::new(Code::BadParameter, format!("`limit` is 1 to {READ_MESSAGES_MAX}, not {limit}")))
}

pub(crate) fn check_wait(wait: Option<&str>) -> Result<Duration, Problem> {
    let Some(wait) = wait else { return Ok(Duration::ZERO) };
    let wait = parse_duration(wait).map_err(|error| Problem::new(Code::BadDuration, error.to_string()))?;
    if wait <= Duration::from_millis(READ_WAIT_MAX_MS) {
        return Ok(wait);
    }
    Err(Problem::new(Code::BadDuration, format!("a read waits at most {READ_WAIT_MAX_MS} ms")))
}

/// The partition of that index, where the topic has it.
pub(crate) fn check_partition(topic: &Topic, index: u32) -> Result<PartitionId, Problem> {
    if index < topic.partitions() {
        return Ok(topic.partition(index));
    }
    let detail = format!("`{}` has partitions 0 to {}, not {index}", topic.name, topic.partitions() - 1);
    Err(Problem::new(Code::UnknownPartition, detail))
}

/// Where a start is, as an offset.
pub(crate) async fn offset_of(door: &Door, partition: PartitionId, start: Start) -> Result<u64, Problem> {
    Ok(match start {
        Start::Offset(offset) => offset,
        Start::Earliest => door.ports.log.bounds(partition).await?.first,
        Start::Latest => door.ports.log.bounds(partition).await?.next,
        Start::Since(time) => door.ports.log.offset_at(partition, time).await?,
    })
}

/// Reads what was asked for. Every door that reads ends here.
pub(crate) async fn read_on(door: &Door, topic: &Topic, ask: Ask) -> Result<ReadBatch, Problem> {
    let partition = check_partition(topic, ask.partition)?;
    let limits = ReadLimits { max_records: ask.limit, max_bytes: door.settings.read_bytes_max, wait: ask.wait };
    let mut tries = 0;
    loop {
        let from = offset_of(door, partition, ask.start).await?;
        let outcome = tokio::select! {
            outcome = door.ports.log.read(partition, from, limits) => outcome,
            // Whoever waits while the server ends is told that there was nothing, and where to go on.
            () = door.settings.shutdown.cancelled() => return Ok(ReadBatch { records: Vec::new(), next: from }),
        };
        tries += 1;
        match outcome {
            Ok(batch) => {
                topic.running.figures.read_messages.increment(batch.records.len() as u64);
                return Ok(batch);
            }
            Err(LogError::Trimmed { .. }) if !matches!(ask.start, Start::Offset(_)) && tries < EARLIEST_TRIES => {}
            Err(error) => return Err(read_problem(door, partition, error).await),
        }
    }
}

/// What a reader is told of a failed read: out of range comes with the whole range.
pub(crate) async fn read_problem(door: &Door, partition: PartitionId, error: LogError) -> Problem {
    let out_of_range = matches!(error, LogError::Trimmed { .. } | LogError::BeyondEnd { .. });
    let problem = Problem::from(error);
    match door.ports.log.bounds(partition).await {
        Ok(bounds) if out_of_range => problem.with("first_offset", bounds.first).with("next_offset", bounds.next),
        _ => problem,
    }
}
