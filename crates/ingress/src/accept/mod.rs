//! Accepting: drafts become records in the log. All endpoints end here: HTTP, batches, gRPC, and the compatible ones of older systems.
//!
//! A draft gets a partition (by its key, or round robin) and an id, and is appended. A draft with a delivery time is appended to the shard
//! of its hold instead. The answer follows when the log has stored it. Work that has begun is finished even if the client disconnects (see
//! [`crate::accept::cancel_safe`]). Nothing counts as accepted that the log did not store.

pub(crate) mod batch_splitter;
pub(crate) mod cancel_safe;
pub(crate) mod claims;
pub(crate) mod draft;
pub(crate) mod entry;
pub(crate) mod new_hold;

use std::sync::Arc;

use serde_json::{Value, json};
use whimbrel_model::ports::{AppendOutcome, Entry, Log, LogError};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::{HeadersBuilder, MessageBody, MessageId, PartitionId, Record, Timestamp};

use crate::accept::cancel_safe::CancelSafe;
use crate::accept::draft::{Draft, PushPart};
use crate::accept::new_hold::NewHold;
use crate::api_state::ApiState;
use crate::load::LoadGuard;
use crate::problem::{ApiProblem, Code};
use whimbrel_catalogue::topics::{Placement, Topic};

/// The approximate bytes of a record's headers without the publisher's own.
const HEADER_BYTES_TYPICAL: usize = 96;

/// A message that the log has stored.
#[derive(Debug, Clone)]
pub(crate) struct AcceptedMessage {
    pub(crate) id: AcceptedId,
    pub(crate) state: AcceptedState,
}

/// Where an accepted message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptedState {
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

/// Why a whole batch is rejected.
#[derive(Debug)]
pub(crate) struct AcceptError {
    /// The entry at fault, if it is one entry.
    pub(crate) index: Option<usize>,
    pub(crate) problem: ApiProblem,
}

impl AcceptError {
    /// The problem, with the index of the entry at fault.
    pub(crate) fn into_problem(self) -> ApiProblem {
        match self.index {
            Some(index) => self.problem.with("index", index),
            None => self.problem,
        }
    }
}

/// Accepts one draft for one topic.
pub(crate) async fn accept_one(
    api: &Arc<ApiState>,
    topic: &str,
    owner: &str,
    draft: Draft,
    load: LoadGuard,
) -> Result<AcceptedMessage, ApiProblem> {
    let accepted = accept_many(api, topic, owner, vec![draft], load).await;
    accepted.map_err(|refusal| refusal.problem)?.pop().unwrap_or_else(|| Err(no_answer().into()))
}

/// Accepts many drafts for one topic, each with its own outcome. If one is invalid, it accepts none.
pub(crate) async fn accept_many(
    api: &Arc<ApiState>,
    topic: &str,
    owner: &str,
    drafts: Vec<Draft>,
    load: LoadGuard,
) -> Result<Vec<Result<AcceptedMessage, ApiProblem>>, AcceptError> {
    let entered = api.registry.enter(topic, placement_of(&drafts)).await;
    let pass = entered.map_err(|error| AcceptError { index: None, problem: error.into() })?;
    if drafts.iter().any(|draft| draft.own_id.is_some()) {
        let (api, owner) = (Arc::clone(api), owner.to_owned());
        return CancelSafe::new(async move {
            let outcome = claims::accept_claimed(&api, &pass, &owner, drafts).await;
            drop((load, pass));
            outcome
        })
        .await;
    }
    let now = api.ports.clock.now();
    let mut pending_appends = Vec::with_capacity(drafts.len());
    let mut entries = Vec::with_capacity(drafts.len());
    let own_headers: usize = drafts.iter().map(|draft| draft.headers.encoded().len()).sum();
    let mut headers = HeadersBuilder::with_capacity(drafts.len() * HEADER_BYTES_TYPICAL + own_headers);
    for (index, draft) in drafts.into_iter().enumerate() {
        let (pending, entry) = prepare_append(api, &pass, draft, &mut headers, now)
            .map_err(|problem| AcceptError { index: Some(index), problem })?;
        pending_appends.push(pending);
        entries.push(entry);
    }
    let log = Arc::clone(&api.ports.log);
    let (outcome, pass) = CancelSafe::new(async move {
        let outcome = pass.acknowledged(log.append(entries).await);
        drop(load);
        (outcome, pass)
    })
    .await;
    let mut counts = AcceptCounts::of(api, &pass);
    let outcomes = answers_of(outcome, pending_appends.len()).zip(pending_appends);
    let answered = outcomes.map(|(outcome, pending)| pending.accepted(outcome, topic, &mut counts)).collect();
    counts.count(api, now);
    Ok(answered)
}

/// A hold is placed when it fires. A message without a key can go to any partition.
fn placement_of(drafts: &[Draft]) -> Placement {
    let is_by_key = drafts.iter().any(|draft| draft.key.is_some() && draft.later.is_none());
    if is_by_key { Placement::ByKey } else { Placement::Free }
}

/// A message whose append is in progress.
pub(crate) struct PendingAppend {
    pub(crate) id: AcceptedId,
    pub(crate) target: RecordTarget,
    pub(crate) payload_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum RecordTarget {
    Topic { partition: u32 },
    Hold { due: Timestamp, shard: u32 },
}

impl PendingAppend {
    /// The accepted message after its append, or the problem if the append failed.
    pub(crate) fn accepted(
        self,
        outcome: Result<u64, LogError>,
        topic: &str,
        counts: &mut AcceptCounts<'_>,
    ) -> Result<AcceptedMessage, ApiProblem> {
        let offset = outcome.map_err(|error| append_problem(error, topic))?;
        let state = match self.target {
            RecordTarget::Topic { partition } => {
                counts.published += 1;
                counts.published_bytes += self.payload_bytes;
                counts.topic.counters.fold_backlog.appended(partition, offset);
                AcceptedState::InTopic { partition, offset }
            }
            RecordTarget::Hold { due, shard } => {
                counts.held += 1;
                counts.holds.counters.fold_backlog.appended(shard, offset);
                AcceptedState::Held { due }
            }
        };
        Ok(AcceptedMessage { id: self.id, state })
    }
}

/// The record of a draft with a new id, and the expected result of its append.
pub(crate) fn prepare_append(
    api: &ApiState,
    topic: &Topic,
    draft: Draft,
    headers: &mut HeadersBuilder,
    now: Timestamp,
) -> Result<(PendingAppend, Entry), ApiProblem> {
    let payload_bytes = draft.payload.len();
    let made_id = draft.push.as_ref().and_then(PushPart::record_id).map(|id| AcceptedId::Text(id.into()));
    if let Some(later) = draft.later {
        let due = later.due(now);
        let id = made_id.unwrap_or_else(|| AcceptedId::Minted(api.mint.mint_held(now, topic.number())));
        let new_hold = id.with_text(|id| {
            let message = compose(draft, id, &[], headers);
            let id = std::str::from_utf8(id).expect("an id is text");
            NewHold::new(api, topic, id, true, due, now, message)
        })?;
        let target = RecordTarget::Hold { due, shard: new_hold.shard.index };
        return Ok((PendingAppend { id, target, payload_bytes }, new_hold.into_entry(now)));
    }
    let partition = topic.place(draft.key.as_deref());
    let id = made_id.unwrap_or_else(|| AcceptedId::Minted(api.mint.mint(now, partition)));
    let message = id.with_text(|id| compose(draft, id, &[], headers));
    let target = RecordTarget::Topic { partition: partition.index };
    Ok((PendingAppend { id, target, payload_bytes }, entry_of(message, partition, now)))
}

/// The message of a draft, as it is stored in its topic.
pub(crate) fn compose(draft: Draft, id: &[u8], more: &[(&str, &[u8])], headers: &mut HeadersBuilder) -> MessageBody {
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
    MessageBody { key: draft.key, value: draft.payload, headers: headers.take() }
}

/// The record of a message that goes to its topic now.
pub(crate) fn entry_of(message: MessageBody, partition: PartitionId, now: Timestamp) -> Entry {
    let MessageBody { key, value, headers } = message;
    Entry { partition, record: Record { key, value, headers, timestamp: now } }
}

/// Exactly one outcome for each entry, even if an engine returned fewer.
pub(crate) fn answers_of(outcome: AppendOutcome, count: usize) -> impl Iterator<Item = Result<u64, LogError>> {
    outcome.into_iter().chain(std::iter::repeat_with(|| Err(no_answer()))).take(count)
}

fn no_answer() -> LogError {
    LogError::Unknown("the log returned no outcome for this message".to_owned())
}

/// The messages that one call accepted, for the metrics.
#[derive(Debug)]
pub(crate) struct AcceptCounts<'a> {
    topic: &'a Topic,
    holds: &'a Topic,
    pub(crate) published: usize,
    pub(crate) published_bytes: usize,
    pub(crate) held: usize,
}

impl<'a> AcceptCounts<'a> {
    pub(crate) fn of(api: &'a ApiState, topic: &'a Topic) -> Self {
        Self { topic, holds: &api.holds, published: 0, published_bytes: 0, held: 0 }
    }

    pub(crate) fn count(&self, api: &ApiState, now: Timestamp) {
        let topic = self.topic;
        let metrics = &topic.counters.metrics;
        if self.published + self.held > 0 {
            api.stats.published(topic.number(), (self.published + self.held) as u64);
        }
        if self.published > 0 {
            topic.counters.published.add(now, u32::try_from(self.published).unwrap_or(u32::MAX));
            metrics.published_messages.increment(self.published as u64);
            metrics.published_bytes.increment(self.published_bytes as u64);
        }
        if self.held > 0 {
            metrics.held_messages.increment(self.held as u64);
        }
    }
}

/// The problem for a request of which only some parts were stored. If all parts failed with the same code, that problem is the answer.
/// `detail` gets the number of stored parts and of all parts.
pub(crate) fn partly_appended<T>(
    outcomes: Vec<Result<T, ApiProblem>>,
    shown: impl Fn(T) -> Value,
    detail: impl FnOnce(usize, usize) -> String,
) -> ApiProblem {
    if let Some(Err(first)) = outcomes.first()
        && outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|other| other.code() == first.code()))
    {
        return first.clone();
    }
    let detail = detail(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), outcomes.len());
    let one = |outcome| match outcome {
        Ok(accepted) => shown(accepted),
        Err(problem) => json!({ "error": ApiProblem::to_json(&problem) }),
    };
    let messages: Vec<Value> = outcomes.into_iter().map(one).collect();
    ApiProblem::new(Code::PartlyAppended, detail).with("messages", messages)
}

/// Appends one entry to a topic.
pub(crate) async fn append_one(log: &dyn Log, entry: Entry, topic: &str) -> Result<u64, ApiProblem> {
    let outcome = log.append(vec![entry]).await.pop().unwrap_or_else(|| Err(no_answer()));
    outcome.map_err(|error| append_problem(error, topic))
}

/// The problem for a failed append. A missing partition means that the topic was deleted meanwhile.
pub(crate) fn append_problem(error: LogError, topic: &str) -> ApiProblem {
    match error {
        LogError::UnknownPartition(_) => {
            ApiProblem::new(Code::UnknownTopic, format!("topic `{topic}` was deleted during this request"))
        }
        other => other.into(),
    }
}
