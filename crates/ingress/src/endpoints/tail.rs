//! `GET /v1/topics/{topic}/tail`: new messages as server-sent events.
//!
//! The `id` of each event is `partition:offset` of its message, followed by the read position of each other partition, so that
//! `Last-Event-ID` resumes all of them exactly. The greeting has an `id` too, with nothing before the first comma, so that a client that is
//! disconnected before the first message misses nothing. With more than [`CURSOR_PARTITIONS_MAX`] partitions, ids would outgrow the
//! messages, and events have no `id`. To miss nothing, tail each partition of such a topic on its own. A slow client slows only its own
//! tail. New partitions of a growing topic are read from their beginning.

use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval};
use whimbrel_api::problem::Problem;
use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};

use crate::answer::held_until_taken;
use crate::api_state::ApiState;
use crate::attributes::{text_header, topic_in_path};
use crate::endpoints::read::{ReadStart, check_partition, offset_of, read_problem, take_start};
use crate::keys::Scope;
use crate::message_json::{MESSAGE_BYTES_TYPICAL, write_message};
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, shown};
use whimbrel_catalogue::topics::Topic;

/// The maximum number of partitions for which events have an id.
const CURSOR_PARTITIONS_MAX: usize = 64;
/// The interval of comments without messages, so that proxies keep the connection open.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);
/// The interval of the check whether the topic has grown or was deleted.
const TOPIC_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum records and bytes of one read of a partition.
const STEP_RECORDS: usize = 256;
const STEP_BYTES: usize = 256 << 10;

/// Follow a topic
///
/// Server-sent events: `event: message` with a message as `data`; `event: problem` with a problem as `data` if a read fails. After a
/// problem the stream ends, except for `damaged`: the stream continues after the damage. Comments keep the connection alive.
#[utoipa::path(
    get, path = "/v1/topics/{topic}/tail", tag = "messages", operation_id = "tail",
    params(
        ("topic" = String, Path, description = "The topic. System topics are allowed"),
        ("partition" = Option<u32>, Query, description = "Only this partition. Default: all partitions"),
        ("offset" = Option<String>, Query, description = "`latest` (the default), `earliest`, or an offset together with `partition`"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume after this event"),
    ),
    responses(
        (status = 200, description = "The stream", body = String, content_type = "text/event-stream"),
        (status = "4XX", description = "`unknown_topic`, `unknown_partition`, `bad_parameter`, `bad_time`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn tail(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, _) = request.into_parts();
    let name = topic_in_path(parts.uri.path())?;
    let caller = api.keys.caller(&parts.headers)?;
    caller.require_topic(Scope::Consume, &name)?;
    let mut query = Query::parse(parts.uri.query())?;
    let only: Option<u32> = query.take_parsed("partition", "a number")?;
    let start = take_start(&mut query)?.unwrap_or(ReadStart::Latest);
    query.end()?;
    if only.is_none() && matches!(start, ReadStart::Offset(_)) {
        let detail = "an offset needs `partition`: set both, or use `since`, `earliest` or `latest`";
        return Err(ApiProblem::new(Code::BadParameter, detail));
    }
    let cursor = text_header(&parts.headers, "last-event-id")?.filter(|id| !id.is_empty());
    let cursor = cursor.map(parse_cursor).transpose()?.unwrap_or_default();
    let topic = api.registry.find(&name).await?;
    follow(api, topic, TailRequest { only, start, cursor, format: TailFormat::Message }).await
}

/// The partitions to follow, where to begin, and the form of the events.
pub(crate) struct TailRequest {
    pub(crate) only: Option<u32>,
    pub(crate) start: ReadStart,
    /// The position at which an earlier stream ended.
    pub(crate) cursor: Vec<(u32, u64)>,
    pub(crate) format: TailFormat,
}

/// The form of an event's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TailFormat {
    /// The message as JSON, with all its attributes.
    Message,
    /// The payload, which is an event as JSON.
    Event,
    /// The payload, which is a presence change as JSON.
    Presence,
}

pub(crate) async fn follow(api: Arc<ApiState>, topic: Arc<Topic>, request: TailRequest) -> ApiResult {
    let permit = Arc::clone(&api.tails).try_acquire_owned().map_err(|_| {
        ApiProblem::new(Code::Overloaded, format!("the maximum of {} tails is open", api.settings.tails_max))
    })?;
    let tail = TopicTail::open(api, topic, request, permit).await?;
    let stream = futures_util::stream::unfold(tail, |mut tail| async move {
        let piece = tail.next_piece().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), tail))
    });
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Parses `partition:offset` pairs. The first is the position of the event itself (absent in a greeting), the others are read positions.
pub(crate) fn parse_cursor(id: &str) -> Result<Vec<(u32, u64)>, ApiProblem> {
    let pair = |text: &str| {
        let (partition, offset) = text.split_once(':')?;
        Some((partition.parse().ok()?, offset.parse::<u64>().ok()?))
    };
    let (own, others) = match id.strip_prefix(',') {
        Some(others) => (false, others),
        None => (true, id),
    };
    let pairs: Option<Vec<_>> = others.split(',').map(pair).collect();
    let mut pairs = pairs.filter(|pairs| pairs.len() <= CURSOR_PARTITIONS_MAX).ok_or_else(|| {
        ApiProblem::new(Code::BadParameter, format!("`Last-Event-ID` is not the id of a tail's event: `{}`", shown(id)))
    })?;
    if own {
        pairs[0].1 = pairs[0].1.saturating_add(1);
    }
    Ok(pairs)
}

type PendingRead = Pin<Box<dyn Future<Output = (u32, Result<ReadBatch, LogError>)> + Send>>;

struct TopicTail {
    api: Arc<ApiState>,
    topic: Arc<Topic>,
    only: Option<u32>,
    format: TailFormat,
    /// The read position of each partition, by index; `None` if it is not followed.
    positions: Vec<Option<u64>>,
    pending: FuturesUnordered<PendingRead>,
    last_sent: Instant,
    check_topic: Interval,
    ended: bool,
    greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl TopicTail {
    async fn open(
        api: Arc<ApiState>,
        topic: Arc<Topic>,
        request: TailRequest,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, ApiProblem> {
        let TailRequest { only, start, cursor, format } = request;
        if let Some(index) = only {
            check_partition(&topic, index)?;
        }
        let mut tail = Self {
            positions: Vec::new(),
            pending: FuturesUnordered::new(),
            last_sent: Instant::now(),
            check_topic: tokio::time::interval(TOPIC_CHECK_INTERVAL),
            ended: false,
            greeted: false,
            _permit: permit,
            api,
            topic,
            only,
            format,
        };
        for partition in tail.topic.all_partitions().collect::<Vec<_>>() {
            let followed = only.is_none_or(|only| only == partition.index);
            let resumed = cursor.iter().find(|(index, _)| *index == partition.index).map(|(_, offset)| *offset);
            let position = match resumed {
                Some(offset) if followed => Some(offset),
                // A partition that the cursor does not contain was created after it.
                None if followed && !cursor.is_empty() => {
                    Some(offset_of(&tail.api, partition, ReadStart::Earliest).await?)
                }
                None if followed => Some(offset_of(&tail.api, partition, start).await?),
                _ => None,
            };
            tail.positions.push(position);
        }
        for index in 0..tail.positions.len() {
            tail.read_on(index as u32);
        }
        Ok(tail)
    }

    /// Starts the next read of a followed partition.
    fn read_on(&mut self, index: u32) {
        let Some(Some(from)) = self.positions.get(index as usize).copied() else { return };
        let log = Arc::clone(&self.api.ports.log);
        let partition = self.topic.partition(index);
        let limits = ReadLimits { max_records: STEP_RECORDS, max_bytes: STEP_BYTES, wait: KEEP_ALIVE_AFTER };
        self.pending.push(Box::pin(async move { (index, log.read(partition, from, limits).await) }));
    }

    /// The next bytes of the stream; `None` at its end.
    async fn next_piece(&mut self) -> Option<Bytes> {
        // The greeting is sent at once, so that the client gets the head of the answer.
        if !std::mem::replace(&mut self.greeted, true) {
            return Some(self.greeting());
        }
        while !self.ended {
            let shutdown = self.api.settings.shutdown.clone();
            let step = tokio::select! {
                // A pending read exists for each followed partition. Without one, the interval wakes the loop.
                Some(step) = self.pending.next() => Some(step),
                _ = self.check_topic.tick() => None,
                () = shutdown.cancelled() => return None,
            };
            let piece = match step {
                Some((index, outcome)) => self.take_read(index, outcome).await,
                None => self.check_topic(),
            };
            if piece.is_some() {
                self.last_sent = Instant::now();
                return piece;
            }
        }
        None
    }

    async fn take_read(&mut self, index: u32, outcome: Result<ReadBatch, LogError>) -> Option<Bytes> {
        match outcome {
            Ok(batch) => {
                let piece = self.write_batch(index, &batch);
                self.positions[index as usize] = Some(batch.next);
                self.read_on(index);
                piece
            }
            Err(error) => {
                let resume_at = match &error {
                    LogError::Damaged { resume_at, .. } => Some(*resume_at),
                    _ => None,
                };
                let partition = self.topic.partition(index);
                let problem = read_problem(&self.api, partition, error).await.with("partition", index);
                match resume_at {
                    Some(resume_at) => {
                        self.positions[index as usize] = Some(resume_at);
                        self.read_on(index);
                    }
                    None => self.ended = true,
                }
                Some(problem_event(&problem))
            }
        }
    }

    fn write_batch(&mut self, index: u32, batch: &ReadBatch) -> Option<Bytes> {
        if batch.records.is_empty() {
            return self.keep_alive();
        }
        self.topic.counters.metrics.read_messages.increment(batch.records.len() as u64);
        let others = self.cursor_of_all_but(Some(index));
        let mut out = Vec::with_capacity(
            batch.records.iter().map(|stored| stored.record.size() + MESSAGE_BYTES_TYPICAL).sum::<usize>(),
        );
        for stored in &batch.records {
            if let Some(others) = &others {
                out.extend_from_slice(format!("id: {index}:{}{others}\n", stored.offset).as_bytes());
            }
            match self.format {
                TailFormat::Message => {
                    out.extend_from_slice(b"event: message\ndata: ");
                    write_message(&mut out, &self.topic, index, stored);
                }
                TailFormat::Event => write_event(&mut out, "event", &stored.record.value),
                TailFormat::Presence => write_event(&mut out, "presence", &stored.record.value),
            }
            out.extend_from_slice(b"\n\n");
        }
        // If too many bytes are in flight to clients, the stream ends here. The client resumes with its last id and loses nothing.
        let mut load = self.api.answers.begin();
        if let Err(problem) = load.grow(out.capacity()) {
            self.ended = true;
            return Some(problem_event(&problem.with("partition", index)));
        }
        Some(held_until_taken(out, Arc::new(load)))
    }

    /// An event that clients do not show, but whose id they keep.
    fn greeting(&self) -> Bytes {
        match self.cursor_of_all_but(None).filter(|cursor| !cursor.is_empty()) {
            Some(cursor) => Bytes::from(format!("id: {cursor}\n: tail\n\n")),
            None => Bytes::from_static(b": tail\n\n"),
        }
    }

    /// The read positions of all partitions but one, as the end of an event's id; `None` if there are too many.
    fn cursor_of_all_but(&self, index: Option<u32>) -> Option<String> {
        let followed = self.positions.iter().flatten().count();
        (followed <= CURSOR_PARTITIONS_MAX).then(|| {
            let mut text = String::new();
            for (other, position) in self.positions.iter().enumerate() {
                if let Some(position) = position.filter(|_| index != Some(other as u32)) {
                    write!(text, ",{other}:{position}").expect("writing to a string cannot fail");
                }
            }
            text
        })
    }

    fn keep_alive(&self) -> Option<Bytes> {
        (self.last_sent.elapsed() >= KEEP_ALIVE_AFTER).then(|| Bytes::from_static(b": still here\n\n"))
    }

    /// Follows changes of the topic: new partitions, or its deletion.
    fn check_topic(&mut self) -> Option<Bytes> {
        match self.api.registry.by_number(self.topic.number()) {
            None => {
                self.ended = true;
                let problem = ApiProblem::new(Code::UnknownTopic, format!("topic `{}` was deleted", self.topic.name));
                return Some(problem_event(&problem));
            }
            Some(topic) => {
                let known = self.positions.len() as u32;
                self.topic = topic;
                for index in known..self.topic.partitions() {
                    self.positions.push(self.only.is_none().then_some(0));
                    self.read_on(index);
                }
            }
        }
        self.keep_alive()
    }
}

/// Writes a payload that is one line of JSON. Any other payload could break the stream, and is written as a JSON string.
fn write_event(out: &mut Vec<u8>, name: &str, payload: &[u8]) {
    out.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
    let is_one_line = !payload.iter().any(|byte| matches!(byte, b'\n' | b'\r')) && std::str::from_utf8(payload).is_ok();
    if is_one_line {
        out.extend_from_slice(payload);
    } else {
        serde_json::to_writer(out, &String::from_utf8_lossy(payload)).expect("writing to a buffer cannot fail");
    }
}

fn problem_event(problem: &ApiProblem) -> Bytes {
    Bytes::from(format!("event: problem\ndata: {}\n\n", problem.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cursor_resumes_after_its_message_and_at_the_positions_of_the_others() {
        assert_eq!(parse_cursor("2:17,0:5").unwrap(), [(2, 18), (0, 5)]);
        assert_eq!(parse_cursor(",2:17,0:5").unwrap(), [(2, 17), (0, 5)]);
        for malformed in ["x", ",", ",,1:2", "1", "1:", ":1", "1:2,", "1:-2", "-1:2"] {
            assert!(parse_cursor(malformed).is_err(), "{malformed}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = parse_cursor(&text);
        }
    }
}
