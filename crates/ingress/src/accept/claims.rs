//! Idempotent publishes: messages with an `Idempotency-Key` or an id that the publisher chose.
//!
//! A claim begins before the message is written, and finishes with the answer. A repeat gets that answer. A claim is abandoned only if
//! certainly nothing was written. After an unknown outcome the claim lapses. The next repeat searches the log for the record, which carries
//! the claim, before it writes anything. All this runs to its end even if the client disconnects.
//!
//! A push may have two names: an id and its origin. It is claimed under both, always in that order. If one of them is taken, the publisher
//! gets the answer of that publish, and both names lead to it from then on.
//!
//! A held message with the publisher's own id is not appended here. The owner of its shard appends it, because only the owner knows whether
//! another hold has that id.

use std::collections::HashMap;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use futures_util::StreamExt;
use whimbrel_model::ports::{
    Claim, ClaimKind, ClaimState, Entry, HoldReply, HoldRequest, HoldsError, LogError, PublishReceipt,
};
use whimbrel_model::record::{
    HEADER_ALSO_ID, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, idempotency_header,
};
use whimbrel_model::{HeadersBuilder, Hold, HoldId, HoldRecord, PartitionId, StoredRecord, Timestamp};

use crate::accept::draft::{Draft, PublisherId};
use crate::accept::new_hold::NewHold;
use crate::accept::{
    AcceptCounts, AcceptError, AcceptedId, AcceptedMessage, AcceptedState, PendingAppend, RecordTarget, answers_of,
    compose, entry_of, prepare_append,
};
use crate::api_state::ApiState;
use crate::endpoints::hold_calls::wrong_reply;
use crate::problem::{ApiProblem, Code};
use whimbrel_catalogue::topics::Pass;
use whimbrel_model::log_walk::LogWalk;

/// The maximum number of records to search for a lapsed claim. Beyond it the outcome stays unknown.
const LAPSED_SCAN_RECORDS_MAX: usize = 1_000_000;
/// Concurrent requests of one batch to owners. An owner commits concurrent requests together.
const REQUESTS_AT_ONCE: usize = 256;

/// The way in which one draft of the batch is handled.
enum DraftPlan {
    /// It is appended: the next one of `entries`.
    Append { pending: PendingAppend, claims: Vec<Claim> },
    /// The owner of its shard appends it: the next one of `questions`.
    Ask { id: HoldId, claims: Vec<Claim>, end: u64 },
    /// It was published before.
    Earlier(AcceptedMessage),
    /// It repeats another draft of the same batch. `claims` are names that the other draft does not have.
    SameAs { first: usize, claims: Vec<Claim> },
}

/// A claimed draft that is ready to be written.
enum ReadyDraft {
    Append(PendingAppend, Entry),
    Ask(Arc<Hold>),
}

/// The state of one call while it handles its drafts.
struct ClaimedBatch<'a> {
    api: &'a Arc<ApiState>,
    pass: &'a Pass,
    owner: &'a str,
    now: Timestamp,
    /// The next offset of each partition, read once.
    ends: HashMap<PartitionId, u64>,
    /// The first draft of this batch with a name, and its fingerprint.
    first_of: HashMap<Box<str>, (usize, u64)>,
    plans: Vec<DraftPlan>,
    entries: Vec<Entry>,
    questions: Vec<(u32, HoldRequest)>,
    headers: HeadersBuilder,
    counts: AcceptCounts<'a>,
}

/// Accepts drafts of which at least one has a claim.
pub(crate) async fn accept_claimed(
    api: &Arc<ApiState>,
    pass: &Pass,
    owner: &str,
    drafts: Vec<Draft>,
) -> Result<Vec<Result<AcceptedMessage, ApiProblem>>, AcceptError> {
    let mut batch = ClaimedBatch {
        api,
        pass,
        owner,
        now: api.ports.clock.now(),
        ends: HashMap::new(),
        first_of: HashMap::new(),
        plans: Vec::with_capacity(drafts.len()),
        entries: Vec::with_capacity(drafts.len()),
        questions: Vec::new(),
        headers: HeadersBuilder::default(),
        counts: AcceptCounts::of(api, pass),
    };
    for (index, draft) in drafts.into_iter().enumerate() {
        if let Err(problem) = batch.decide(index, draft).await {
            batch.give_up().await;
            return Err(AcceptError { index: Some(index), problem });
        }
    }
    if let Err(refusal) = batch.check_claims().await {
        batch.give_up().await;
        return Err(refusal);
    }
    Ok(batch.write().await)
}

impl ClaimedBatch<'_> {
    async fn decide(&mut self, index: usize, mut draft: Draft) -> Result<(), ApiProblem> {
        let Some(own_id) = draft.own_id.take() else {
            let (pending, entry) = prepare_append(self.api, self.pass, draft, &mut self.headers, self.now)?;
            self.entries.push(entry);
            self.plans.push(DraftPlan::Append { pending, claims: Vec::new() });
            return Ok(());
        };
        let fingerprint = fingerprint(&draft, &own_id);
        let (known, new): (Vec<&str>, Vec<&str>) = own_id.names().partition(|name| self.first_of.contains_key(*name));
        let firsts: Vec<(usize, u64)> = known.into_iter().map(|name| self.first_of[name]).collect();
        if firsts.iter().any(|(_, of_first)| *of_first != fingerprint) {
            return Err(different(&own_id.text));
        }
        let first = firsts.into_iter().map(|(first, _)| first).min();
        self.first_of.extend(new.iter().map(|name| ((*name).into(), (first.unwrap_or(index), fingerprint))));
        let key = draft.key.clone();
        let (partition, ready) = self.make_ready(draft, &own_id, fingerprint)?;
        let claim_of = |name: &str| Claim {
            owner: self.owner.to_owned(),
            kind: own_id.kind,
            text: name.to_string(),
            topic: self.pass.number(),
            partition,
            fingerprint,
        };
        let claims: Vec<Claim> = new.into_iter().map(claim_of).collect();
        let end = self.end_of(partition).await?;
        let earlier = self.begin(&claims, end, key.as_deref()).await?;
        match (first, earlier) {
            (Some(first), None) => self.plans.push(DraftPlan::SameAs { first, claims }),
            // In this batch the name belongs to the first draft, whatever an earlier publish under its other name was.
            (Some(first), Some(_)) => self.plans.push(DraftPlan::SameAs { first, claims: Vec::new() }),
            (None, Some(answer)) => self.plans.push(DraftPlan::Earlier(accepted_of(answer))),
            (None, None) => self.take(ready, claims, end),
        }
        Ok(())
    }

    /// Begins all claims of a message. If one of them has an answer, the others are finished with it. If one is in conflict, none is begun.
    /// `key` is the partition key of the message.
    async fn begin(
        &self,
        claims: &[Claim],
        end: u64,
        key: Option<&[u8]>,
    ) -> Result<Option<PublishReceipt>, ApiProblem> {
        let (mut begun, mut answer) = (Vec::with_capacity(claims.len()), None);
        for claim in claims {
            let problem = match self.api.ports.receipts.begin(claim, end, self.now).await {
                Ok(ClaimState::New) => {
                    begun.push((claim, Vec::new()));
                    continue;
                }
                Ok(ClaimState::Lapsed { places }) => {
                    begun.push((claim, places));
                    continue;
                }
                Ok(ClaimState::Earlier(earlier)) => {
                    answer.get_or_insert(earlier);
                    continue;
                }
                Ok(ClaimState::Different) => different(&claim.text),
                Ok(ClaimState::UnderWay) => {
                    let detail = format!(
                        "an earlier publish under `{}` is in progress, or ended without a known outcome; repeat this request later",
                        claim.text
                    );
                    ApiProblem::new(Code::InProgress, detail)
                }
                Err(error) => error.into(),
            };
            self.give_back(&begun).await;
            return Err(problem);
        }
        for (claim, places) in &begun {
            if answer.is_none() {
                match self.search_partitions(claim, places).await {
                    Ok(found) => answer = found,
                    Err(problem) => {
                        self.give_back(&begun).await;
                        return Err(problem);
                    }
                }
            }
        }
        if let Some(problem) = answer.as_ref().and_then(|answer| self.out_of_order(answer, key)) {
            self.give_back(&begun).await;
            return Err(problem);
        }
        if let Some(answer) = &answer {
            for (claim, _) in &begun {
                self.finish(claim, answer.clone()).await;
            }
        }
        Ok(answer)
    }

    /// The problem for a repeat whose message lies behind a barrier of a growth: the node that wrote it had not seen the growth. The
    /// message is not acknowledged, because readers may deliver later messages of its key first. It is not written again, because readers
    /// deliver it.
    fn out_of_order(&self, answer: &PublishReceipt, key: Option<&[u8]>) -> Option<ApiProblem> {
        let place = answer.partition;
        let is_by_key = answer.due.is_none() && place.topic == self.pass.number();
        let key = key.filter(|key| is_by_key && !self.pass.is_in_order(key, place.index, answer.offset))?;
        let detail = format!(
            "the message is in partition {} at offset {}, but key `{}` had moved to another partition by then: a node wrote it without \
             a session while the topic grew. It will be delivered, possibly after later messages of its key. This request published \
             nothing. If the order matters, publish the message again with another `Idempotency-Key` or `id`",
            place.index,
            answer.offset,
            String::from_utf8_lossy(key)
        );
        Some(ApiProblem::new(Code::OutcomeUnknown, detail))
    }

    /// Restores claims to their state before `begin`: free, or with the unknown outcome of earlier attempts.
    async fn give_back(&self, begun: &[(&Claim, Vec<(PartitionId, u64)>)]) {
        for (claim, _) in begun {
            if let Err(error) = self.api.ports.receipts.give_back(claim).await {
                tracing::warn!(%error, "cannot restore a claim; it will lapse");
            }
        }
    }

    /// The message as it will be written, and the partition of its record.
    fn make_ready(
        &mut self,
        draft: Draft,
        own_id: &PublisherId,
        fingerprint: u64,
    ) -> Result<(PartitionId, ReadyDraft), ApiProblem> {
        let (api, now, payload_bytes) = (self.api, self.now, draft.payload.len());
        let due = draft.later.map(|later| later.due(now));
        let in_topic = self.pass.place(draft.key.as_deref());
        let message_id = if own_id.kind == ClaimKind::Id { Some(&own_id.text) } else { own_id.id.as_ref() };
        let id = match (message_id, due) {
            (Some(id), _) => AcceptedId::Text(id.clone()),
            (None, None) => AcceptedId::Minted(api.mint.mint(now, in_topic)),
            (None, Some(_)) => AcceptedId::Minted(api.mint.mint_held(now, self.pass.number())),
        };
        let owner_and_key = claim_header(self.owner, own_id.kind, &own_id.text);
        let fingerprint = format!("{fingerprint:016x}");
        let mut more = vec![(HEADER_IDEMPOTENCY_KEY, &owner_and_key[..]), (HEADER_FINGERPRINT, fingerprint.as_bytes())];
        more.extend(own_id.also.as_ref().map(|also| (HEADER_ALSO_ID, also.as_bytes())));
        let message = id.with_text(|id| compose(draft, id, &more, &mut self.headers));
        let Some(due) = due else {
            let pending =
                PendingAppend { id, target: RecordTarget::Topic { partition: in_topic.index }, payload_bytes };
            return Ok((in_topic, ReadyDraft::Append(pending, entry_of(message, in_topic, now))));
        };
        let fresh = message_id.is_none();
        let new_hold = NewHold::new(api, self.pass, &id.to_text(), fresh, due, now, message)?;
        let shard = new_hold.shard;
        if !fresh {
            return Ok((shard, ReadyDraft::Ask(Arc::new(new_hold.hold))));
        }
        let pending = PendingAppend { id, target: RecordTarget::Hold { due, shard: shard.index }, payload_bytes };
        Ok((shard, ReadyDraft::Append(pending, new_hold.into_entry(now))))
    }

    fn take(&mut self, ready: ReadyDraft, claims: Vec<Claim>, end: u64) {
        match ready {
            ReadyDraft::Append(pending, entry) => {
                self.entries.push(entry);
                self.plans.push(DraftPlan::Append { pending, claims });
            }
            ReadyDraft::Ask(hold) => {
                self.plans.push(DraftPlan::Ask { id: hold.id.clone(), claims, end });
                self.questions.push((hold.id.shard(self.api.holds.partitions()), HoldRequest::Accept(hold)));
            }
        }
    }

    /// Searches all partitions to which an attempt may have written.
    async fn search_partitions(
        &self,
        claim: &Claim,
        places: &[(PartitionId, u64)],
    ) -> Result<Option<PublishReceipt>, ApiProblem> {
        for (partition, from) in places {
            let found = search_log(self.api, claim, *partition, *from).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    async fn end_of(&mut self, partition: PartitionId) -> Result<u64, ApiProblem> {
        if let Some(end) = self.ends.get(&partition) {
            return Ok(*end);
        }
        let end = self.api.ports.log.bounds(partition).await?.next;
        self.ends.insert(partition, end);
        Ok(end)
    }

    /// Frees all claims of this call. Nothing was written.
    async fn give_up(self) {
        for plan in self.plans {
            if let DraftPlan::Append { claims, .. } | DraftPlan::Ask { claims, .. } | DraftPlan::SameAs { claims, .. } =
                plan
            {
                abandon_all(self.api, &claims).await;
            }
        }
    }

    /// Checks right before the write that no other node has taken over a claim. This node may have been paused since it claimed.
    async fn check_claims(&self) -> Result<(), AcceptError> {
        for (index, plan) in self.plans.iter().enumerate() {
            let (DraftPlan::Append { claims, .. } | DraftPlan::Ask { claims, .. }) = plan else { continue };
            for claim in claims {
                let problem = match self.api.ports.receipts.still_holds(claim).await {
                    Ok(true) => continue,
                    Ok(false) => {
                        let detail = format!(
                            "another node took over the publish under `{}`, because the claim of this node expired. This node wrote nothing; retry",
                            claim.text
                        );
                        ApiProblem::new(Code::InProgress, detail)
                    }
                    Err(error) => error.into(),
                };
                return Err(AcceptError { index: Some(index), problem });
            }
        }
        Ok(())
    }

    async fn write(mut self) -> Vec<Result<AcceptedMessage, ApiProblem>> {
        let (entries, questions) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.questions));
        let (log, holds) = (&self.api.ports.log, &self.api.ports.holds);
        let count = entries.len();
        let pass = self.pass;
        let append = async { if count == 0 { Vec::new() } else { pass.acknowledged(log.append(entries).await) } };
        let asked = questions.into_iter().map(|(shard, ask)| holds.ask(shard, ask));
        let asked = futures_util::stream::iter(asked).buffered(REQUESTS_AT_ONCE).collect::<Vec<_>>();
        let (outcome, told) = futures_util::future::join(append, asked).await;
        let (mut outcomes, mut told) = (answers_of(outcome, count), told.into_iter());
        let mut answers: Vec<Result<AcceptedMessage, ApiProblem>> = Vec::with_capacity(self.plans.len());
        for plan in std::mem::take(&mut self.plans) {
            let answer = match plan {
                DraftPlan::Earlier(accepted) => Ok(accepted),
                DraftPlan::SameAs { first, claims } => self.settle_repeat(answers[first].clone(), claims).await,
                DraftPlan::Append { pending, claims } => {
                    let outcome = outcomes.next().expect("each entry has one outcome");
                    self.settle_append(pending, claims, outcome).await
                }
                DraftPlan::Ask { id, claims, end } => {
                    let told = told.next().expect("each request has one reply");
                    self.settle_ask(id, claims, end, told).await
                }
            };
            answers.push(answer);
        }
        self.counts.count(self.api, self.now);
        answers
    }

    /// Gives names that only a repeat within the batch has the answer of the first draft, if that was accepted.
    async fn settle_repeat(
        &self,
        first: Result<AcceptedMessage, ApiProblem>,
        claims: Vec<Claim>,
    ) -> Result<AcceptedMessage, ApiProblem> {
        let Ok(accepted) = &first else {
            abandon_all(self.api, &claims).await;
            return first;
        };
        for claim in &claims {
            let end = self.ends.get(&claim.partition).copied().unwrap_or_default();
            let offset = if let AcceptedState::InTopic { offset, .. } = accepted.state { offset } else { end };
            self.finish_with(claim, accepted, offset).await;
        }
        first
    }

    /// Ends the claims with the outcome of their append.
    async fn settle_append(
        &mut self,
        pending: PendingAppend,
        claims: Vec<Claim>,
        outcome: Result<u64, LogError>,
    ) -> Result<AcceptedMessage, ApiProblem> {
        let accepted = pending.accepted(outcome.clone(), &self.pass.name, &mut self.counts);
        match (&accepted, &outcome) {
            (Ok(accepted), Ok(offset)) => {
                for claim in &claims {
                    self.finish_with(claim, accepted, *offset).await;
                }
            }
            (_, Err(LogError::Unknown(_))) => leave_all(self.api, &claims).await,
            _ => abandon_all(self.api, &claims).await,
        }
        accepted
    }

    /// Ends the claims with the owner's reply. The exact offset of the `held` record is unknown: it is `end` or higher.
    async fn settle_ask(
        &mut self,
        id: HoldId,
        claims: Vec<Claim>,
        end: u64,
        told: Result<HoldReply, HoldsError>,
    ) -> Result<AcceptedMessage, ApiProblem> {
        match told {
            Ok(HoldReply::Held { due }) => {
                self.counts.held += 1;
                let id = AcceptedId::Text(id.to_string().into());
                let accepted = AcceptedMessage { id, state: AcceptedState::Held { due } };
                for claim in &claims {
                    self.finish_with(claim, &accepted, end).await;
                }
                Ok(accepted)
            }
            Ok(HoldReply::Taken) => {
                abandon_all(self.api, &claims).await;
                Err(ApiProblem::new(Code::IdTaken, "another hold, pending or ended, has this id: use another id"))
            }
            Ok(other) => {
                leave_all(self.api, &claims).await;
                Err(wrong_reply(&other))
            }
            Err(error @ HoldsError::OutcomeUnknown(_)) => {
                leave_all(self.api, &claims).await;
                Err(error.into())
            }
            Err(error) => {
                abandon_all(self.api, &claims).await;
                Err(error.into())
            }
        }
    }

    async fn finish_with(&self, claim: &Claim, accepted: &AcceptedMessage, offset: u64) {
        let due = match accepted.state {
            AcceptedState::InTopic { .. } => None,
            AcceptedState::Held { due } => Some(due),
        };
        let (id, partition, answered_at) = (accepted.id.to_text(), claim.partition, self.now);
        self.finish(claim, PublishReceipt { id, partition, offset, due, answered_at }).await;
    }

    /// Stores the answer. If that fails, the publisher still gets it, because the message is in the log. A repeat then searches the log.
    async fn finish(&self, claim: &Claim, answer: PublishReceipt) {
        if let Err(error) = self.api.ports.receipts.finish(claim, answer).await {
            tracing::warn!(%error, "cannot store a receipt; a repeat will search the log for its message");
        }
    }
}

async fn leave_all(api: &ApiState, claims: &[Claim]) {
    for claim in claims {
        if let Err(error) = api.ports.receipts.leave(claim).await {
            tracing::warn!(%error, "cannot mark a claim as of unknown outcome; it will lapse");
        }
    }
}

async fn abandon_all(api: &ApiState, claims: &[Claim]) {
    for claim in claims {
        if let Err(error) = api.ports.receipts.abandon(claim).await {
            tracing::warn!(%error, "cannot abandon a claim; it will lapse");
        }
    }
}

fn accepted_of(answer: PublishReceipt) -> AcceptedMessage {
    let state = match answer.due {
        Some(due) => AcceptedState::Held { due },
        None => AcceptedState::InTopic { partition: answer.partition.index, offset: answer.offset },
    };
    AcceptedMessage { id: AcceptedId::Text(answer.id.into()), state }
}

fn different(name: &str) -> ApiProblem {
    let detail = format!("another message was published under `{name}` before: use another key or id");
    ApiProblem::new(Code::DifferentBody, detail)
}

/// The claim header of a record.
fn claim_header(owner: &str, kind: ClaimKind, text: &str) -> Vec<u8> {
    idempotency_header(owner, if kind == ClaimKind::Key { text } else { "" })
}

/// Searches the log for the record of a claim that was begun and never finished.
async fn search_log(
    api: &ApiState,
    claim: &Claim,
    partition: PartitionId,
    from: u64,
) -> Result<Option<PublishReceipt>, ApiProblem> {
    let log = &api.ports.log;
    let end = log.bounds(partition).await?.next;
    let owner_and_key = claim_header(&claim.owner, claim.kind, &claim.text);
    let mut walk = LogWalk::new(&**log, partition, from, end);
    let mut looked_at = 0;
    while looked_at <= LAPSED_SCAN_RECORDS_MAX {
        let records = match walk.step(usize::MAX).await {
            Ok(Some(records)) => records,
            // A dropped record may have been the one: writing again could publish twice.
            Ok(None) if walk.has_passed_over() => {
                let detail = "the outcome of an earlier publish under this key is lost: the records of that time have been \
                              dropped from the log. This request published nothing. Check whether the earlier message was delivered, and \
                              publish under another key if not";
                return Err(ApiProblem::new(Code::OutcomeUnknown, detail));
            }
            Ok(None) if walk.is_at_end() => return Ok(None),
            Ok(None) => break,
            // The topic was deleted and created again: nothing of the old one is left to repeat.
            Err(LogError::UnknownPartition(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = records.iter().filter(|stored| carries_claim(stored, claim, &owner_and_key));
        let answer = found.filter_map(|stored| answer_in(api, claim, partition, stored)).next();
        if answer.is_some() {
            return Ok(answer);
        }
        looked_at += records.len();
    }
    let detail = "an earlier publish under this key has an unknown outcome: its message was not found in time";
    Err(ApiProblem::new(Code::OutcomeUnknown, detail))
}

fn carries_claim(stored: &StoredRecord, claim: &Claim, owner_and_key: &[u8]) -> bool {
    let headers = &stored.record.headers;
    let is_named = |name| headers.get(name) == Some(claim.text.as_bytes());
    headers.get(HEADER_IDEMPOTENCY_KEY) == Some(owner_and_key)
        && (claim.kind == ClaimKind::Key || is_named(HEADER_ID) || is_named(HEADER_ALSO_ID))
}

/// The answer in a record that carries the claim's header. A shard has the holds of all topics, so the topic must match.
fn answer_in(api: &ApiState, claim: &Claim, partition: PartitionId, stored: &StoredRecord) -> Option<PublishReceipt> {
    let mut due = None;
    if partition.topic == api.holds.number() {
        match HoldRecord::of(&stored.record, stored.offset) {
            Ok(HoldRecord::Held(hold) | HoldRecord::Carried(hold)) if hold.topic == claim.topic => due = Some(hold.due),
            _ => return None,
        }
    }
    let id = stored.record.headers.get_str(HEADER_ID).unwrap_or_default().to_owned();
    Some(PublishReceipt { id, partition, offset: stored.offset, due, answered_at: stored.record.timestamp })
}

/// A checksum of the parts that must be equal in two repeats of a publish. A CRC suffices: it detects mistakes, and is no protection
/// against a publisher who forges a repeat. Lengths are included, so that no bytes can move between parts.
///
/// The set of names of a push is not included, because each name alone makes it a repeat. The due time is not included, because a repeat
/// with a delay has another one. An id beside the key, and then the key too, are included: the same id under another key is another
/// message.
fn fingerprint(draft: &Draft, own_id: &PublisherId) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut part = |bytes: Option<&[u8]>| {
        digest.update(&bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        digest.update(bytes.unwrap_or_default());
    };
    part(Some(&draft.payload));
    part(draft.key.as_deref());
    part(draft.content_type.as_bytes());
    part(Some(draft.headers.encoded()));
    if let Some(push) = &draft.push {
        part(Some(push.essence()));
        part(push.share.as_ref().map(|share| &share.uids_sum[..]));
    }
    if let Some(id) = &own_id.id {
        part(Some(id.as_bytes()));
        part(Some(own_id.text.as_bytes()));
    }
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::draft::{ContentType, DeliveryTime, PushPart, PushShare};
    use bytes::Bytes;
    use whimbrel_model::Headers;

    #[test]
    fn a_fingerprint_covers_every_part_of_the_message() {
        let draft = Draft {
            key: None,
            payload: Bytes::from_static(b"ab"),
            content_type: ContentType::Absent,
            headers: Headers::EMPTY,
            own_id: None,
            later: None,
            push: None,
        };
        let key = PublisherId { kind: ClaimKind::Key, text: "k".into(), id: None, also: None };
        let push = |rest: &'static [u8], uids_sum: Option<[u8; 8]>| {
            let share = uids_sum.map(|uids_sum| PushShare { id: "m".into(), record_id: "m.p1".into(), uids_sum });
            let push = PushPart { rest: Bytes::from_static(rest), names_bytes: 1, share: share.map(Box::new) };
            Draft { push: Some(push), ..draft.clone() }
        };
        let others = [
            Draft { payload: Bytes::from_static(b"a"), key: Some(Bytes::from_static(b"b")), ..draft.clone() },
            Draft { key: Some(Bytes::new()), ..draft.clone() },
            Draft { content_type: ContentType::Json, ..draft.clone() },
            Draft { headers: Headers::builder().push("a", b"b").take(), ..draft.clone() },
            push(b"a}", None),
            push(b"b}", None),
            push(b"a}", Some([1; 8])),
        ];
        assert_eq!(fingerprint(&push(b"a)", None), &key), fingerprint(&others[4], &key), "names are not included");
        assert_ne!(fingerprint(&others[4], &key), fingerprint(&others[5], &key));
        assert_ne!(fingerprint(&others[4], &key), fingerprint(&others[6], &key), "other users are another push");
        let later = Draft { later: Some(DeliveryTime::At(Timestamp::from_millis(1))), ..draft.clone() };
        assert_eq!(fingerprint(&draft, &key), fingerprint(&later, &key), "a repeat may have another due time");
        for other in others {
            assert_ne!(fingerprint(&other, &key), fingerprint(&draft, &key), "{other:?}");
        }
        let with_id = |text: &str| PublisherId { text: text.into(), id: Some("task".into()), ..key.clone() };
        assert_ne!(fingerprint(&draft, &with_id("a")), fingerprint(&draft, &with_id("b")));
    }
}
