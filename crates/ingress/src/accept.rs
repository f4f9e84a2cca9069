//! Accepting: drafts become records in the log. Every door ends here: HTTP, batches, gRPC, the doors of older systems.
//!
//! A draft is placed (by its key, or in turn), gets its id, and is appended; one that shall be in its topic later is appended to the
//! shard of its hold instead. The answer is given when the log has it. What was begun is finished even where the caller went away
//! (see [`super::undisturbed`]). Nothing is accepted that the log did not take.

use std::sync::Arc;

use whimbrel_model::ports::{AppendOutcome, Entry, LogError};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::{HeadersBuilder, HeldMessage, MessageId, PartitionId, Record, Timestamp};

use super::claims;
use super::door::Door;
use super::draft::{Draft, PushPart};
use super::holding::Holding;
use super::load::Load;
use super::problem::{Code, Problem};
use super::undisturbed::Undisturbed;
use whimbrel_catalogue::topics::{Placement, Topic};

/// What the headers of a record without any of the publisher's own take, about.
const HEADER_BYTES_TYPICAL: usize = 96;

/// A message that the log has.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) id: AcceptedId,
    pub(crate) standing: Standing,
}

/// Where an accepted message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    InTopic { partition: u32, offset: u64 },
    Held { due: Timestamp },
}

#[derive(Debug, Clone)]
pub(crate) enum AcceptedId {
    Minted(MessageId),
    Text(Box<str>),
}

impl AcceptedId {
    pub(crate) fn with_text<T>(&self, use_text: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Minted(id) => use_text(&id.to_text()),
            Self::Text(text) => use_text(text.as_bytes()),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        self.with_text(|id| String::from_utf8_lossy(id).into_owned())
    }
}

/// What stands in the way of a whole batch.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The entry that does, where it is one.
    pub(crate) index: Option<usize>,
    pub(crate) problem: Problem,
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
        return outcome.pop().unwrap_or_else(|| Err(no_answer().into()));
    }
    let pass = door.registry.enter(topic, placement_of(std::slice::from_ref(&draft))).await?;
    let now = door.ports.clock.now();
    let mut headers = HeadersBuilder::with_capacity(HEADER_BYTES_TYPICAL + draft.headers.encoded().len());
    let (expected, entry) = expect(door, &pass, draft, &mut headers, now)?;
    let log = Arc::clone(&door.ports.log);
    let (outcome, pass) = Undisturbed::new(async move {
        let outcome = pass.acknowledged(log.append(vec![entry]).await);
        drop(load);
        (outcome, pass)
    })
    .await;
    let outcome = outcome.into_iter().next().unwrap_or_else(|| Err(no_answer()));
    let mut taken = Taken::of(door, &pass);
    let accepted = expected.accepted(outcome, topic, &mut taken);
    taken.count(door, now);
    accepted
}

/// Accepts many for one topic, each with its own outcome; or none, where one stands in the way.
pub(crate) async fn accept_many(
    door: &Arc<Door>,
    topic: &str,
    owner: &str,
    drafts: Vec<Draft>,
    load: Load,
) -> Result<Vec<Result<Accepted, Problem>>, Refusal> {
    let entered = door.registry.enter(topic, placement_of(&drafts)).await;
    let pass = entered.map_err(|error| Refusal { index: None, problem: error.into() })?;
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
    let mut all_expected = Vec::with_capacity(drafts.len());
    let mut entries = Vec::with_capacity(drafts.len());
    let mut headers = HeadersBuilder::with_capacity(drafts.len() * HEADER_BYTES_TYPICAL);
    for (index, draft) in drafts.into_iter().enumerate() {
        let (expected, entry) =
            expect(door, &pass, draft, &mut headers, now).map_err(|problem| Refusal { index: Some(index), problem })?;
        all_expected.push(expected);
        entries.push(entry);
    }
    let log = Arc::clone(&door.ports.log);
    let (outcome, pass) = Undisturbed::new(async move {
        let outcome = pass.acknowledged(log.append(entries).await);
        drop(load);
        (outcome, pass)
    })
    .await;
    let mut taken = Taken::of(door, &pass);
    let outcomes = answers_of(outcome, all_expected.len()).zip(all_expected);
    let answered = outcomes.map(|(outcome, expected)| expected.accepted(outcome, topic, &mut taken)).collect();
    taken.count(door, now);
    Ok(answered)
}

/// What is held is placed when it fires; what has no key can be in any partition.
fn placement_of(drafts: &[Draft]) -> Placement {
    let is_by_key = drafts.iter().any(|draft| draft.key.is_some() && draft.later.is_none());
    if is_by_key { Placement::ByKey } else { Placement::Free }
}

/// A message whose append is under way.
pub(super) struct Expected {
    pub(super) id: AcceptedId,
    pub(super) whither: Whither,
    pub(super) payload_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Whither {
    Topic { partition: u32 },
    Hold { due: Timestamp, shard: u32 },
}

impl Expected {
    /// What the message is after its append, and what a publisher is told where it failed.
    pub(super) fn accepted(
        self,
        outcome: Result<u64, LogError>,
        topic: &str,
        taken: &mut Taken<'_>,
    ) -> Result<Accepted, Problem> {
        let offset = outcome.map_err(|error| append_problem(error, topic))?;
        let standing = match self.whither {
            Whither::Topic { partition } => {
                taken.published += 1;
                taken.published_bytes += self.payload_bytes;
                taken.topic.running.folding.appended(partition, offset);
                Standing::InTopic { partition, offset }
            }
            Whither::Hold { due, shard } => {
                taken.held += 1;
                taken.holds.running.folding.appended(shard, offset);
                Standing::Held { due }
            }
        };
        Ok(Accepted { id: self.id, standing })
    }
}

/// The record of a draft under an id minted for it, and what is expected of its append.
pub(super) fn expect(
    door: &Door,
    topic: &Topic,
    draft: Draft,
    headers: &mut HeadersBuilder,
    now: Timestamp,
) -> Result<(Expected, Entry), Problem> {
    let payload_bytes = draft.payload.len();
    let made_id = draft.push.as_ref().and_then(PushPart::record_id).map(|id| AcceptedId::Text(id.into()));
    if let Some(later) = draft.later {
        let due = later.due(now);
        let id = made_id.unwrap_or_else(|| AcceptedId::Minted(door.mint.mint_held(now, topic.number())));
        let holding = id.with_text(|id| {
            let message = compose(draft, id, &[], headers);
            let id = std::str::from_utf8(id).expect("an id is text");
            Holding::new(door, topic, id, true, due, now, message)
        })?;
        let whither = Whither::Hold { due, shard: holding.shard.index };
        return Ok((Expected { id, whither, payload_bytes }, holding.into_entry(now)));
    }
    let partition = topic.place(draft.key.as_deref());
    let id = made_id.unwrap_or_else(|| AcceptedId::Minted(door.mint.mint(now, partition)));
    let message = id.with_text(|id| compose(draft, id, &[], headers));
    let whither = Whither::Topic { partition: partition.index };
    Ok((Expected { id, whither, payload_bytes }, entry_of(message, partition, now)))
}

/// The message of a draft, as it stands in its topic.
pub(super) fn compose(draft: Draft, id: &[u8], more: &[(&str, &[u8])], headers: &mut HeadersBuilder) -> HeldMessage {
    if let Some(push) = &draft.push {
        push.write_to(headers, id);
    }
    headers.push(HEADER_ID, id);
    if let Some(content_type) = draft.content_type.as_bytes() {
        headers.push(HEADER_CONTENT_TYPE, content_type);
    }
    for (name, value) in draft.headers.iter().chain(more.iter().copied()) {
        headers.push(name, value);
    }
    HeldMessage { key: draft.key, value: draft.payload, headers: headers.take() }
}

/// A message that goes to its topic now.
pub(super) fn entry_of(message: HeldMessage, partition: PartitionId, now: Timestamp) -> Entry {
    let HeldMessage { key, value, headers } = message;
    Entry { partition, record: Record { key, value, headers, timestamp: now } }
}

/// One outcome for each entry, also where an engine should have given fewer.
pub(super) fn answers_of(outcome: AppendOutcome, count: usize) -> impl Iterator<Item = Result<u64, LogError>> {
    outcome.into_iter().chain(std::iter::repeat_with(|| Err(no_answer()))).take(count)
}

fn no_answer() -> LogError {
    LogError::Unknown("the log gave no answer for this message".to_owned())
}

/// What a call has taken, for the figures.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    /// The topic that the messages are for.
    topic: &'a Topic,
    /// The topic of all holds.
    holds: &'a Topic,
    pub(super) published: usize,
    pub(super) published_bytes: usize,
    pub(super) held: usize,
}

impl<'a> Taken<'a> {
    pub(super) fn of(door: &'a Door, topic: &'a Topic) -> Self {
        Self { topic, holds: &door.holds, published: 0, published_bytes: 0, held: 0 }
    }

    pub(super) fn count(&self, door: &Door, now: Timestamp) {
        let topic = self.topic;
        let figures = &topic.running.figures;
        if self.published + self.held > 0 {
            door.stats.published(topic.number(), (self.published + self.held) as u64);
        }
        if self.published > 0 {
            topic.running.published.add(now, u32::try_from(self.published).unwrap_or(u32::MAX));
            figures.published_messages.increment(self.published as u64);
            figures.published_bytes.increment(self.published_bytes as u64);
        }
        if self.held > 0 {
            figures.held_messages.increment(self.held as u64);
        }
    }
}

/// What a publisher is told of a failed append. A partition that is gone means that its topic was deleted meanwhile.
pub(super) fn append_problem(error: LogError, topic: &str) -> Problem {
    match error {
        LogError::UnknownPartition(_) => {
            Problem::new(Code::UnknownTopic, format!("topic `{topic}` was deleted at this moment"))
        }
        other => other.into(),
    }
}
