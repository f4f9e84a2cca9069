//! Accepting: drafts become records in the log. Every door ends here: HTTP, batches, gRPC, the doors of older systems.
//!
//! A draft is placed (by its key, or in turn), gets its id, and is appended; the answer is given when the log has it. What was
//! begun is finished even where the caller went away (see [`super::undisturbed`]). Nothing is accepted that the log did not take.

use std::sync::Arc;

use whimbrel_model::ports::{AppendOutcome, Entry, LogError};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::{HeadersBuilder, MessageId, PartitionId, Record, Timestamp};

use super::claims;
use super::door::Door;
use super::draft::Draft;
use super::load::Load;
use super::problem::{Code, Problem};
use super::undisturbed::Undisturbed;
use crate::topics::Topic;

/// What the headers of a record without any of the publisher's own take, about.
const HEADER_BYTES_TYPICAL: usize = 96;

/// A message that the log has.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) id: AcceptedId,
    pub(crate) partition: u32,
    pub(crate) offset: u64,
}

#[derive(Debug, Clone)]
pub(crate) enum AcceptedId {
    Minted(MessageId),
    Text(Box<str>),
}

impl Refusal {
    /// The problem, with the index of the entry where it is one.
    pub(crate) fn into_problem(self) -> Problem {
        match self.index {
            Some(index) => self.problem.with("index", index),
            None => self.problem,
        }
    }
}

impl AcceptedId {
    pub(crate) fn with_text<T>(&self, use_text: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Minted(id) => use_text(&id.to_text()),
            Self::Text(text) => use_text(text.as_bytes()),
        }
    }
}

/// What stands in the way of a whole batch.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The entry that does, where it is one.
    pub(crate) index: Option<usize>,
    pub(crate) problem: Problem,
}

/// Accepts one message.
pub(crate) async fn accept_one(
    door: &Arc<Door>,
    topic: &str,
    owner: &str,
    draft: Draft,
    load: Load,
) -> Result<Accepted, Problem> {
    if draft.brought.is_some() {
        let mut outcome =
            accept_many(door, topic, owner, vec![draft], load).await.map_err(|refusal| refusal.problem)?;
        return outcome.pop().unwrap_or_else(|| Err(no_answer())).map_err(|error| append_problem(error, topic));
    }
    let pass = door.registry.enter(topic).await?;
    let now = door.ports.clock.now();
    let partition = pass.place(draft.key.as_deref());
    let id = door.mint.mint(now, partition);
    let payload_bytes = draft.payload.len();
    let mut headers = HeadersBuilder::with_capacity(HEADER_BYTES_TYPICAL + draft.headers.encoded().len());
    let entry = compose(draft, &id.to_text(), &[], &mut headers, partition, now);
    let log = Arc::clone(&door.ports.log);
    let (outcome, pass) = Undisturbed::new(async move {
        let outcome = log.append(vec![entry]).await;
        drop(load);
        (outcome, pass)
    })
    .await;
    match outcome.into_iter().next().unwrap_or_else(|| Err(no_answer())) {
        Ok(offset) => {
            count_accepted(&pass, now, 1, payload_bytes);
            Ok(Accepted { id: AcceptedId::Minted(id), partition: partition.index, offset })
        }
        Err(error) => Err(append_problem(error, topic)),
    }
}

/// Accepts many for one topic, each with its own outcome; or none, where one stands in the way.
pub(crate) async fn accept_many(
    door: &Arc<Door>,
    topic: &str,
    owner: &str,
    drafts: Vec<Draft>,
    load: Load,
) -> Result<Vec<Result<Accepted, LogError>>, Refusal> {
    let pass = door.registry.enter(topic).await.map_err(|error| Refusal { index: None, problem: error.into() })?;
    if drafts.iter().any(|draft| draft.brought.is_some()) {
        let (door, owner) = (Arc::clone(door), owner.to_owned());
        return Undisturbed::new(async move {
            let outcome = claims::accept_claimed(&door, &pass, &owner, drafts).await;
            drop((load, pass));
            outcome
        })
        .await;
    }
    let now = door.ports.clock.now();
    let mut ids = Vec::with_capacity(drafts.len());
    let mut entries = Vec::with_capacity(drafts.len());
    let mut headers = HeadersBuilder::with_capacity(drafts.len() * HEADER_BYTES_TYPICAL);
    for draft in drafts {
        let partition = pass.place(draft.key.as_deref());
        let id = door.mint.mint(now, partition);
        ids.push((id, partition.index, draft.payload.len()));
        entries.push(compose(draft, &id.to_text(), &[], &mut headers, partition, now));
    }
    let log = Arc::clone(&door.ports.log);
    let (outcome, pass) = Undisturbed::new(async move {
        let outcome = log.append(entries).await;
        drop(load);
        (outcome, pass)
    })
    .await;
    let (mut taken, mut taken_bytes) = (0, 0);
    let answered = answers_of(outcome, ids.len()).zip(ids).map(|(outcome, (id, partition, payload_bytes))| {
        let offset = outcome?;
        taken += 1;
        taken_bytes += payload_bytes;
        Ok(Accepted { id: AcceptedId::Minted(id), partition, offset })
    });
    let answered = answered.collect();
    count_accepted(&pass, now, taken, taken_bytes);
    Ok(answered)
}

/// The record of a draft, and its way.
pub(super) fn compose(
    draft: Draft,
    id: &[u8],
    more: &[(&str, &[u8])],
    headers: &mut HeadersBuilder,
    partition: PartitionId,
    now: Timestamp,
) -> Entry {
    headers.push(HEADER_ID, id);
    if let Some(content_type) = draft.content_type.as_bytes() {
        headers.push(HEADER_CONTENT_TYPE, content_type);
    }
    for (name, value) in draft.headers.iter().chain(more.iter().copied()) {
        headers.push(name, value);
    }
    let record = Record { key: draft.key, value: draft.payload, headers: headers.take(), timestamp: now };
    Entry { partition, record }
}

/// One outcome for each entry, also where an engine should have given fewer.
pub(super) fn answers_of(outcome: AppendOutcome, count: usize) -> impl Iterator<Item = Result<u64, LogError>> {
    outcome.into_iter().chain(std::iter::repeat_with(|| Err(no_answer()))).take(count)
}

fn no_answer() -> LogError {
    LogError::Unknown("the log gave no answer for this message".to_owned())
}

pub(super) fn count_accepted(topic: &Topic, now: Timestamp, messages: usize, payload_bytes: usize) {
    if messages == 0 {
        return;
    }
    topic.running.published.add(now, u32::try_from(messages).unwrap_or(u32::MAX));
    topic.running.figures.published_messages.increment(messages as u64);
    topic.running.figures.published_bytes.increment(payload_bytes as u64);
}

/// What a publisher is told of a failed append. A partition that is gone means that its topic was deleted meanwhile.
pub(crate) fn append_problem(error: LogError, topic: &str) -> Problem {
    match error {
        LogError::UnknownPartition(_) => {
            Problem::new(Code::UnknownTopic, format!("topic `{topic}` was deleted at this moment"))
        }
        other => other.into(),
    }
}
