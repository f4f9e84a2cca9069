//! `GET /v1/topics/{topic}/messages`: reads one partition by offset or time, and can wait for new messages at its end.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use whimbrel_api::messages::ReadPage;
use whimbrel_api::problem::Problem;
use whimbrel_model::limits::{READ_MESSAGES_DEFAULT, READ_MESSAGES_MAX, READ_WAIT_MAX_MS};
use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, Timestamp, parse_duration};

use crate::answer::bounded_json_response;
use crate::api_state::ApiState;
use crate::attributes::topic_in_path;
use crate::keys::Scope;
use crate::message_json::{MESSAGE_BYTES_TYPICAL, write_message};
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, check_limit, shown};
use whimbrel_catalogue::topics::Topic;

/// The approximate bytes of an answer without its messages.
const FRAME_BYTES_TYPICAL: usize = 64;
/// The maximum number of reads from the first retained offset, if retention removes that offset concurrently.
const EARLIEST_TRIES: usize = 4;

/// Where a read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadStart {
    Earliest,
    Latest,
    Offset(u64),
    Since(Timestamp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadQuery {
    pub(crate) partition: u32,
    pub(crate) start: ReadStart,
    pub(crate) limit: usize,
    pub(crate) wait: Duration,
}

/// Read messages of one partition
///
/// Continue with `next_offset`. Offsets increase, but not always by one.
#[utoipa::path(
    get, path = "/v1/topics/{topic}/messages", tag = "messages", operation_id = "read",
    params(
        ("topic" = String, Path, description = "The topic. System topics such as `_events` can be read too"),
        ("partition" = Option<u32>, Query, description = "The partition. Default: 0"),
        ("offset" = Option<String>, Query, description = "An offset, `earliest` (the default) or `latest`"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset: begins at the first message at or after it"),
        ("limit" = Option<usize>, Query, description = "The maximum number of messages: 1 to 10000, default 100"),
        ("wait" = Option<String>, Query, description = "How long to wait if there is no message yet, such as `5s`. At most `60s`"),
    ),
    responses(
        (status = 200, description = "The messages, and the offset at which to continue", body = ReadPage, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `unknown_partition`, `offset_out_of_range`, `damaged`, `bad_parameter`, `bad_duration`, `bad_time`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn read(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, _) = request.into_parts();
    let name = topic_in_path(parts.uri.path())?;
    let caller = api.keys.caller(&parts.headers)?;
    caller.require_topic(Scope::Consume, &name)?;
    let ask = query_of(Query::parse(parts.uri.query())?)?;
    let topic = api.registry.find(&name).await?;
    let batch = read_on(&api, &topic, ask).await?;
    let size: usize = batch.records.iter().map(|stored| stored.record.size() + MESSAGE_BYTES_TYPICAL).sum();
    let mut load = api.answers.begin();
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
        // JSON encoding can make a message six times as large, so the limit is checked again on the encoded size.
        if index > 0 && json.len() > api.settings.read_bytes_max {
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

fn query_of(mut query: Query<'_>) -> Result<ReadQuery, ApiProblem> {
    let partition = query.take_parsed("partition", "a number")?.unwrap_or(0);
    let start = take_start(&mut query)?.unwrap_or(ReadStart::Earliest);
    let limit = check_read_limit(query.take_parsed("limit", "a number")?)?;
    let wait = check_wait(query.take("wait")?.as_deref())?;
    query.end()?;
    Ok(ReadQuery { partition, start, limit, wait })
}

/// The parameters `offset` and `since`.
pub(crate) fn take_start(query: &mut Query<'_>) -> Result<Option<ReadStart>, ApiProblem> {
    match (query.take("offset")?, query.take("since")?) {
        (Some(_), Some(_)) => {
            Err(ApiProblem::new(Code::BadParameter, "`offset` and `since` are both set: set only one"))
        }
        (Some(offset), None) => start_of_word(&offset).map(Some),
        (None, Some(since)) => start_of_time(&since).map(Some),
        (None, None) => Ok(None),
    }
}

pub(crate) fn start_of_word(offset: &str) -> Result<ReadStart, ApiProblem> {
    match offset {
        "earliest" => Ok(ReadStart::Earliest),
        "latest" => Ok(ReadStart::Latest),
        digits => digits.parse().map(ReadStart::Offset).map_err(|_| {
            let detail = format!("`offset` must be a number, `earliest` or `latest`, got `{}`", shown(digits));
            ApiProblem::new(Code::BadParameter, detail)
        }),
    }
}

pub(crate) fn start_of_time(since: &str) -> Result<ReadStart, ApiProblem> {
    Timestamp::parse(since).map(ReadStart::Since).map_err(|error| ApiProblem::new(Code::BadTime, error.to_string()))
}

pub(crate) fn check_read_limit(limit: Option<usize>) -> Result<usize, ApiProblem> {
    check_limit(limit, READ_MESSAGES_DEFAULT, READ_MESSAGES_MAX)
}

pub(crate) fn check_wait(wait: Option<&str>) -> Result<Duration, ApiProblem> {
    let Some(wait) = wait else { return Ok(Duration::ZERO) };
    let wait = parse_duration(wait).map_err(|error| ApiProblem::new(Code::BadDuration, error.to_string()))?;
    if wait <= Duration::from_millis(READ_WAIT_MAX_MS) {
        return Ok(wait);
    }
    Err(ApiProblem::new(Code::BadDuration, format!("`wait` must be at most {READ_WAIT_MAX_MS} ms")))
}

/// The partition of that index, if the topic has it.
pub(crate) fn check_partition(topic: &Topic, index: u32) -> Result<PartitionId, ApiProblem> {
    if index < topic.partitions() {
        return Ok(topic.partition(index));
    }
    let detail = format!("no partition {index}: `{}` has partitions 0 to {}", topic.name, topic.partitions() - 1);
    Err(ApiProblem::new(Code::UnknownPartition, detail))
}

/// The offset of a start position.
pub(crate) async fn offset_of(api: &ApiState, partition: PartitionId, start: ReadStart) -> Result<u64, ApiProblem> {
    Ok(match start {
        ReadStart::Offset(offset) => offset,
        ReadStart::Earliest => api.ports.log.bounds(partition).await?.first,
        ReadStart::Latest => api.ports.log.bounds(partition).await?.next,
        ReadStart::Since(time) => api.ports.log.offset_at(partition, time).await?,
    })
}

/// Reads messages. All reading endpoints end here.
pub(crate) async fn read_on(api: &ApiState, topic: &Topic, ask: ReadQuery) -> Result<ReadBatch, ApiProblem> {
    let partition = check_partition(topic, ask.partition)?;
    let limits = ReadLimits { max_records: ask.limit, max_bytes: api.settings.read_bytes_max, wait: ask.wait };
    let mut tries = 0;
    loop {
        let from = offset_of(api, partition, ask.start).await?;
        let outcome = tokio::select! {
            outcome = api.ports.log.read(partition, from, limits) => outcome,
            // At shutdown, a waiting reader gets an empty answer with its next offset.
            () = api.settings.shutdown.cancelled() => return Ok(ReadBatch { records: Vec::new(), next: from }),
        };
        tries += 1;
        match outcome {
            Ok(batch) => {
                topic.counters.metrics.read_messages.increment(batch.records.len() as u64);
                return Ok(batch);
            }
            Err(LogError::Trimmed { .. }) if !matches!(ask.start, ReadStart::Offset(_)) && tries < EARLIEST_TRIES => {}
            Err(error) => return Err(read_problem(api, partition, error).await),
        }
    }
}

/// The problem of a failed read. An offset out of range comes with the retained range.
pub(crate) async fn read_problem(api: &ApiState, partition: PartitionId, error: LogError) -> ApiProblem {
    let out_of_range = matches!(error, LogError::Trimmed { .. } | LogError::BeyondEnd { .. });
    let problem = ApiProblem::from(error);
    match api.ports.log.bounds(partition).await {
        Ok(bounds) if out_of_range => problem.with("first_offset", bounds.first).with("next_offset", bounds.next),
        _ => problem,
    }
}
