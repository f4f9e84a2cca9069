//! `GET /v1/topics/{topic}/tail`: messages as they come, as server-sent events.
//!
//! Each event's `id` is `partition:offset` of its message, followed by where each other partition is read on from, so that
//! `Last-Event-ID` resumes all of them exactly. The greeting has an `id` too, with no place of its own before the first comma, so that
//! whoever is cut off before the first message misses nothing either. Beyond [`CURSOR_PARTITIONS_MAX`] partitions that would outgrow the messages, and
//! events have no `id`: such a topic is tailed one partition at a time where nothing may be missed. A slow client slows its own
//! tail and nobody else's. Partitions that a growing topic gets are joined from their beginning.

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
use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};

use super::answer::held_until_taken;
use super::attributes::{text_header, topic_in_path};
use super::door::Door;
use super::keys::Scope;
use super::message_json::{MESSAGE_BYTES_TYPICAL, write_message};
use super::problem::{Code, Problem};
use super::query::{Query, shown};
use super::read::{Start, check_partition, offset_of, read_problem, take_start};
use whimbrel_catalogue::topics::Topic;

/// Partitions whose places an event's id carries at most.
const CURSOR_PARTITIONS_MAX: usize = 64;
/// How often a comment is sent where there is no message, so that nobody in between takes the connection for dead.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);
/// How often a tail looks whether its topic has grown or gone.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Messages and bytes that one step takes from one partition.
const STEP_RECORDS: usize = 256;
const STEP_BYTES: usize = 256 << 10;

/// Follow a topic
///
/// Server-sent events: `event: message` with a message as `data`; `event: problem` with a problem as `data` where reading fails, after
/// which the stream ends unless the problem is `damaged`, which is passed over. Comments keep the connection alive.
#[utoipa::path(
    get, path = "/v1/topics/{topic}/tail", tag = "messages", operation_id = "tail",
    params(
        ("topic" = String, Path, description = "The topic; the system's too"),
        ("partition" = Option<u32>, Query, description = "One partition; all of them where it is not given"),
        ("offset" = Option<String>, Query, description = "`latest` (the default), `earliest`, or an offset together with `partition`"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume behind this event"),
    ),
    responses(
        (status = 200, description = "The stream", body = String, content_type = "text/event-stream"),
        (status = "4XX", description = "`unknown_topic`, `unknown_partition`, `bad_parameter`, `bad_time`, `overloaded`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn tail(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let name = topic_in_path(parts.uri.path())?;
    let caller = door.keys.caller(&parts.headers)?;
    caller.require_topic(Scope::Consume, &name)?;
    let mut query = Query::parse(parts.uri.query())?;
    let only: Option<u32> = query.take_parsed("partition", "a number")?;
    let start = take_start(&mut query)?.unwrap_or(Start::Latest);
    query.end()?;
    if only.is_none() && matches!(start, Start::Offset(_)) {
        let detail = "an offset is of one partition: give `partition` too, or `since`, `earliest` or `latest`";
        return Err(Problem::new(Code::BadParameter, detail));
    }
    let cursor = text_header(&parts.headers, "last-event-id")?.filter(|id| !id.is_empty());
    let cursor = cursor.map(parse_cursor).transpose()?.unwrap_or_default();
    let topic = door.registry.find(&name).await?;
    follow(door, topic, Wanted { only, start, cursor, form: Form::Message }).await
}

/// What of a topic is followed, and how it is written.
pub(super) struct Wanted {
    pub(super) only: Option<u32>,
    pub(super) start: Start,
    /// Where an earlier stream ended.
    pub(super) cursor: Vec<(u32, u64)>,
    pub(super) form: Form,
}

/// What the data of an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The message with all that is known of it.
    Message,
    /// Its payload, which is an event as JSON.
    Event,
    /// Its payload, which says as JSON who came or went.
    Presence,
}

/// The stream of a topic.
pub(super) async fn follow(door: Arc<Door>, topic: Arc<Topic>, wanted: Wanted) -> Result<Response, Problem> {
    let permit = Arc::clone(&door.tails)
        .try_acquire_owned()
        .map_err(|_| Problem::new(Code::Overloaded, format!("{} tails are open already", door.settings.tails_max)))?;
    let tail = Tail::open(door, topic, wanted, permit).await?;
    let stream = futures_util::stream::unfold(tail, |mut tail| async move {
        let piece = tail.next_piece().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), tail))
    });
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// `partition:offset` pairs; the first is the event's own place (there is none in a greeting's), the others are where to read on.
pub(super) fn parse_cursor(id: &str) -> Result<Vec<(u32, u64)>, Problem> {
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
        Problem::new(Code::BadParameter, format!("`Last-Event-ID` is not one of a tail: `{}`", shown(id)))
    })?;
    if own {
        pairs[0].1 = pairs[0].1.saturating_add(1);
    }
    Ok(pairs)
}

/// What a read of one partition came to.
type Step = Pin<Box<dyn Future<Output = (u32, Result<ReadBatch, LogError>)> + Send>>;

struct Tail {
    door: Arc<Door>,
    topic: Arc<Topic>,
    only: Option<u32>,
    form: Form,
    /// Where each partition is read on from, by index; `None` for one that is not followed.
    positions: Vec<Option<u64>>,
    steps: FuturesUnordered<Step>,
    last_sent: Instant,
    look_again: Interval,
    ended: bool,
    greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl Tail {
    async fn open(
        door: Arc<Door>,
        topic: Arc<Topic>,
        wanted: Wanted,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, Problem> {
        let Wanted { only, start, cursor, form } = wanted;
        if let Some(index) = only {
            check_partition(&topic, index)?;
        }
        let mut tail = Self {
            positions: Vec::new(),
            steps: FuturesUnordered::new(),
            last_sent: Instant::now(),
            look_again: tokio::time::interval(LOOK_AGAIN_AFTER),
            ended: false,
            greeted: false,
            _permit: permit,
            door,
            topic,
            only,
            form,
        };
        for partition in tail.topic.all_partitions().collect::<Vec<_>>() {
            let followed = only.is_none_or(|only| only == partition.index);
            let resumed = cursor.iter().find(|(index, _)| *index == partition.index).map(|(_, offset)| *offset);
            let position = match resumed {
                Some(offset) if followed => Some(offset),
                // A partition that the cursor does not know was made after it.
                None if followed && !cursor.is_empty() => {
                    Some(offset_of(&tail.door, partition, Start::Earliest).await?)
                }
                None if followed => Some(offset_of(&tail.door, partition, start).await?),
                _ => None,
            };
            tail.positions.push(position);
        }
        for index in 0..tail.positions.len() {
            tail.read_on(index as u32);
        }
        Ok(tail)
    }

    /// Begins the next read of a partition that is followed.
    fn read_on(&mut self, index: u32) {
        let Some(Some(from)) = self.positions.get(index as usize).copied() else { return };
        let log = Arc::clone(&self.door.ports.log);
        let partition = self.topic.partition(index);
        let limits = ReadLimits { max_records: STEP_RECORDS, max_bytes: STEP_BYTES, wait: KEEP_ALIVE_AFTER };
        self.steps.push(Box::pin(async move { (index, log.read(partition, from, limits).await) }));
    }

    /// The next bytes of the stream; `None` when it has ended.
    async fn next_piece(&mut self) -> Option<Bytes> {
        // The head of the answer goes out at once, so that a client knows that it is connected.
        if !std::mem::replace(&mut self.greeted, true) {
            return Some(self.greeting());
        }
        while !self.ended {
            let shutdown = self.door.settings.shutdown.clone();
            let step = tokio::select! {
                // A topic whose every partition is awaited has always a step; one without any waits for the next look.
                Some(step) = self.steps.next() => Some(step),
                _ = self.look_again.tick() => None,
                () = shutdown.cancelled() => return None,
            };
            let piece = match step {
                Some((index, outcome)) => self.take_step(index, outcome).await,
                None => self.look_again(),
            };
            if piece.is_some() {
                self.last_sent = Instant::now();
                return piece;
            }
        }
        None
    }

    async fn take_step(&mut self, index: u32, outcome: Result<ReadBatch, LogError>) -> Option<Bytes> {
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
                let problem = read_problem(&self.door, partition, error).await.with("partition", index);
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
        self.topic.running.figures.read_messages.increment(batch.records.len() as u64);
        let others = self.cursor_of_all_but(Some(index));
        let mut out = Vec::with_capacity(
            batch.records.iter().map(|stored| stored.record.size() + MESSAGE_BYTES_TYPICAL).sum::<usize>(),
        );
        for stored in &batch.records {
            if let Some(others) = &others {
                out.extend_from_slice(format!("id: {index}:{}{others}\n", stored.offset).as_bytes());
            }
            match self.form {
                Form::Message => {
                    out.extend_from_slice(b"event: message\ndata: ");
                    write_message(&mut out, &self.topic, index, stored);
                }
                Form::Event => write_event(&mut out, "event", &stored.record.value),
                Form::Presence => write_event(&mut out, "presence", &stored.record.value),
            }
            out.extend_from_slice(b"\n\n");
        }
        // Where clients have left too much untaken, this one comes again with its last id, and loses nothing by it.
        let mut load = self.door.answers.begin();
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

    /// Where the partitions are read on from, without one, as the end of an event's id; `None` where there are too many.
    fn cursor_of_all_but(&self, index: Option<u32>) -> Option<String> {
        let followed = self.positions.iter().flatten().count();
        (followed <= CURSOR_PARTITIONS_MAX).then(|| {
            let mut text = String::new();
            for (other, position) in self.positions.iter().enumerate() {
                if let Some(position) = position.filter(|_| index != Some(other as u32)) {
                    write!(text, ",{other}:{position}").expect("a string takes all");
                }
            }
            text
        })
    }

    fn keep_alive(&self) -> Option<Bytes> {
        (self.last_sent.elapsed() >= KEEP_ALIVE_AFTER).then(|| Bytes::from_static(b": still here\n\n"))
    }

    /// Follows the topic's own changes: partitions it got, or that it is gone.
    fn look_again(&mut self) -> Option<Bytes> {
        match self.door.registry.by_number(self.topic.number()) {
            None => {
                self.ended = true;
                let problem = Problem::new(Code::UnknownTopic, format!("topic `{}` was deleted", self.topic.name));
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

/// A payload that is one line of JSON. Others' records may be anything, and must not break the stream: they become a text of JSON.
fn write_event(out: &mut Vec<u8>, name: &str, payload: &[u8]) {
    out.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
    let is_one_line = !payload.iter().any(|byte| matches!(byte, b'\n' | b'\r')) && std::str::from_utf8(payload).is_ok();
    if is_one_line {
        out.extend_from_slice(payload);
    } else {
        serde_json::to_writer(out, &String::from_utf8_lossy(payload)).expect("a buffer takes all");
    }
}

fn problem_event(problem: &Problem) -> Bytes {
    Bytes::from(format!("event: problem\ndata: {}\n\n", problem.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cursor_resumes_behind_its_own_message_and_at_the_others_places() {
        assert_eq!(parse_cursor("2:17,0:5").unwrap(), [(2, 18), (0, 5)]);
        assert_eq!(parse_cursor(",2:17,0:5").unwrap(), [(2, 17), (0, 5)]);
        for nonsense in ["x", ",", ",,1:2", "1", "1:", ":1", "1:2,", "1:-2", "-1:2"] {
            assert!(parse_cursor(nonsense).is_err(), "{nonsense}");
        }
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text in ".*") {
            let _ = parse_cursor(&text);
        }
    }
}
