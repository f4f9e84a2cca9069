//! Publishing once: messages under an `Idempotency-Key` or an id of the publisher's own.
//!
//! A claim is begun before the message is written and finished with the answer; a repeat gets that answer. It is abandoned only where
//! it is certain that nothing was written; after an unknown outcome it is left to lapse, and whoever comes next looks through the log
//! for the record, which carries the claim, before anything is written again. This runs to its end also where the client went.
//!
//! A push may have two names, an id and its origin, and is claimed under both, always in that order. Whoever finds one of them taken
//! gets that answer, and the other name is from then on one for it too.
//!
//! A message that is held under an id that its publisher brought is not appended here: the owner of its shard is asked to take it,
//! since only the owner knows whether another hold has that id.

use std::collections::HashMap;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use futures_util::StreamExt;
use whimbrel_model::ports::{Answer, Ask, Begun, Claim, ClaimKind, Entry, HoldsError, LogError, Told};
use whimbrel_model::record::{
    HEADER_ALSO_ID, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, idempotency_header,
};
use whimbrel_model::{HeadersBuilder, Hold, HoldId, HoldRecord, PartitionId, StoredRecord, Timestamp};

use super::accept::{
    Accepted, AcceptedId, Expected, Refusal, Standing, Taken, Whither, answers_of, compose, entry_of, expect,
};
use super::door::Door;
use super::draft::{Brought, Draft};
use super::holding::Holding;
use super::problem::{Code, Problem};
use whimbrel_catalogue::topics::Pass;
use whimbrel_model::log_walk::LogWalk;

/// Records that are looked through for a lapsed claim. Beyond, its outcome cannot be known in time.
const LAPSED_SCAN_RECORDS_MAX: usize = 1_000_000;
/// Owners that one batch asks at the same time; what they decide at the same time they commit together.
const ASKS_AT_ONCE: usize = 256;

/// What becomes of one draft of the batch.
enum Fate {
    /// It is appended: the next of the entries.
    Append { expected: Expected, claims: Vec<Claim> },
    /// The owner of its shard is asked: the next of the questions.
    Ask { id: HoldId, claims: Vec<Claim>, end: u64 },
    /// It was published before.
    Earlier(Accepted),
    /// It repeats another draft of the same batch, with claims that the other has not.
    SameAs { first: usize, claims: Vec<Claim> },
}

/// A claimed draft, ready to be written.
enum Ready {
    Append(Expected, Entry),
    Ask(Arc<Hold>),
}

/// One call's work on its way through the drafts.
struct Claiming<'a> {
    door: &'a Arc<Door>,
    pass: &'a Pass,
    owner: &'a str,
    now: Timestamp,
    /// The next offset of each partition, read once.
    ends: HashMap<PartitionId, u64>,
    /// Where in this batch a key or id came first, with its fingerprint.
    first_of: HashMap<Box<str>, (usize, u64)>,
    fates: Vec<Fate>,
    entries: Vec<Entry>,
    questions: Vec<(u32, Ask)>,
    headers: HeadersBuilder,
    taken: Taken<'a>,
}

/// Accepts drafts of which some are claimed.
pub(super) async fn accept_claimed(
    door: &Arc<Door>,
    pass: &Pass,
    owner: &str,
    drafts: Vec<Draft>,
) -> Result<Vec<Result<Accepted, Problem>>, Refusal> {
    let mut claiming = Claiming {
        door,
        pass,
        owner,
        now: door.ports.clock.now(),
        ends: HashMap::new(),
        first_of: HashMap::new(),
        fates: Vec::with_capacity(drafts.len()),
        entries: Vec::with_capacity(drafts.len()),
        questions: Vec::new(),
        headers: HeadersBuilder::default(),
        taken: Taken::of(door, pass),
    };
    for (index, draft) in drafts.into_iter().enumerate() {
        if let Err(problem) = claiming.decide(index, draft).await {
            claiming.give_up().await;
            return Err(Refusal { index: Some(index), problem });
        }
    }
    if let Err(refusal) = claiming.check_claims().await {
        claiming.give_up().await;
        return Err(refusal);
    }
    Ok(claiming.write().await)
}

impl Claiming<'_> {
    async fn decide(&mut self, index: usize, mut draft: Draft) -> Result<(), Problem> {
        let Some(brought) = draft.brought.take() else {
            let (expected, entry) = expect(self.door, self.pass, draft, &mut self.headers, self.now)?;
            self.entries.push(entry);
            self.fates.push(Fate::Append { expected, claims: Vec::new() });
            return Ok(());
        };
        let fingerprint = fingerprint(&draft, &brought);
        let (known, new): (Vec<&str>, Vec<&str>) = brought.names().partition(|name| self.first_of.contains_key(*name));
        let firsts: Vec<(usize, u64)> = known.into_iter().map(|name| self.first_of[name]).collect();
        if firsts.iter().any(|(_, of_first)| *of_first != fingerprint) {
            return Err(different(&brought.text));
        }
        let first = firsts.into_iter().map(|(first, _)| first).min();
        self.first_of.extend(new.iter().map(|name| ((*name).into(), (first.unwrap_or(index), fingerprint))));
        let key = draft.key.clone();
        let (partition, ready) = self.make_ready(draft, &brought, fingerprint)?;
        let claim_of = |name: &str| Claim {
            owner: self.owner.to_owned(),
            kind: brought.kind,
            text: name.to_string(),
            topic: self.pass.number(),
            partition,
            fingerprint,
        };
        let claims: Vec<Claim> = new.into_iter().map(claim_of).collect();
        let end = self.end_of(partition).await?;
        let earlier = self.begin(&claims, end, key.as_deref()).await?;
        match (first, earlier) {
            (Some(first), None) => self.fates.push(Fate::SameAs { first, claims }),
            // Whatever its other name has had before: in this batch it is that one.
            (Some(first), Some(_)) => self.fates.push(Fate::SameAs { first, claims: Vec::new() }),
            (None, Some(answer)) => self.fates.push(Fate::Earlier(accepted_of(answer))),
            (None, None) => self.take(ready, claims, end),
        }
        Ok(())
    }

    /// Begins all claims of a message. Where it was published before under one of them, the others are finished with that answer; where
    /// one stands in the way, none of them is begun. `key` is the key of the message.
    async fn begin(&self, claims: &[Claim], end: u64, key: Option<&[u8]>) -> Result<Option<Answer>, Problem> {
        let (mut begun, mut answer) = (Vec::with_capacity(claims.len()), None);
        for claim in claims {
            let problem = match self.door.ports.receipts.begin(claim, end, self.now).await {
                Ok(Begun::New) => {
                    begun.push((claim, Vec::new()));
                    continue;
                }
                Ok(Begun::Lapsed { places }) => {
                    begun.push((claim, places));
                    continue;
                }
                Ok(Begun::Earlier(earlier)) => {
                    answer.get_or_insert(earlier);
                    continue;
                }
                Ok(Begun::Different) => different(&claim.text),
                Ok(Begun::UnderWay) => {
                    let detail = format!(
                        "an earlier publish under `{}` is in progress, or ended without a known outcome; repeat this request later",
                        claim.text
                    );
                    Problem::new(Code::InProgress, detail)
                }
                Err(error) => error.into(),
            };
            self.give_back(&begun).await;
            return Err(problem);
        }
        for (claim, places) in &begun {
            if answer.is_none() {
                match self.look_at_places(claim, places).await {
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

    /// The answer to a repeat whose message is in the log behind a barrier: the node that wrote it did not know of the growth. The message
    /// is not acknowledged, because readers may deliver later messages of its key first. It is not written again, because readers deliver
    /// it.
    fn out_of_order(&self, answer: &Answer, key: Option<&[u8]>) -> Option<Problem> {
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
        Some(Problem::new(Code::OutcomeUnknown, detail))
    }

    /// Claims as they were before they were begun: free, or with the unknown outcome of earlier tries.
    async fn give_back(&self, begun: &[(&Claim, Vec<(PartitionId, u64)>)]) {
        for (claim, _) in begun {
            if let Err(error) = self.door.ports.receipts.give_back(claim).await {
                tracing::warn!(%error, "a claim could not be given back; it will lapse");
            }
        }
    }

    /// The message as it would be written, and the partition that its record goes to.
    fn make_ready(
        &mut self,
        draft: Draft,
        brought: &Brought,
        fingerprint: u64,
    ) -> Result<(PartitionId, Ready), Problem> {
        let (door, now, payload_bytes) = (self.door, self.now, draft.payload.len());
        let due = draft.later.map(|later| later.due(now));
        let in_topic = self.pass.place(draft.key.as_deref());
        let own_id = if brought.kind == ClaimKind::Id { Some(&brought.text) } else { brought.id.as_ref() };
        let id = match (own_id, due) {
            (Some(id), _) => AcceptedId::Text(id.clone()),
            (None, None) => AcceptedId::Minted(door.mint.mint(now, in_topic)),
            (None, Some(_)) => AcceptedId::Minted(door.mint.mint_held(now, self.pass.number())),
        };
        let owner_and_key = claim_header(self.owner, brought.kind, &brought.text);
        let fingerprint = format!("{fingerprint:016x}");
        let mut more = vec![(HEADER_IDEMPOTENCY_KEY, &owner_and_key[..]), (HEADER_FINGERPRINT, fingerprint.as_bytes())];
        more.extend(brought.also.as_ref().map(|also| (HEADER_ALSO_ID, also.as_bytes())));
        let message = id.with_text(|id| compose(draft, id, &more, &mut self.headers));
        let Some(due) = due else {
            let expected = Expected { id, whither: Whither::Topic { partition: in_topic.index }, payload_bytes };
            return Ok((in_topic, Ready::Append(expected, entry_of(message, in_topic, now))));
        };
        let fresh = own_id.is_none();
        let holding = Holding::new(door, self.pass, &id.to_text(), fresh, due, now, message)?;
        let shard = holding.shard;
        if !fresh {
            return Ok((shard, Ready::Ask(Arc::new(holding.hold))));
        }
        let expected = Expected { id, whither: Whither::Hold { due, shard: shard.index }, payload_bytes };
        Ok((shard, Ready::Append(expected, holding.into_entry(now))))
    }

    /// Takes what is ready among those that are written.
    fn take(&mut self, ready: Ready, claims: Vec<Claim>, end: u64) {
        match ready {
            Ready::Append(expected, entry) => {
                self.entries.push(entry);
                self.fates.push(Fate::Append { expected, claims });
            }
            Ready::Ask(hold) => {
                self.fates.push(Fate::Ask { id: hold.id.clone(), claims, end });
                self.questions.push((hold.id.shard(self.door.holds.partitions()), Ask::Accept(hold)));
            }
        }
    }

    /// Looks wherever a try may have gone.
    async fn look_at_places(&self, claim: &Claim, places: &[(PartitionId, u64)]) -> Result<Option<Answer>, Problem> {
        for (partition, from) in places {
            let found = look_for(self.door, claim, *partition, *from).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    async fn end_of(&mut self, partition: PartitionId) -> Result<u64, Problem> {
        if let Some(end) = self.ends.get(&partition) {
            return Ok(*end);
        }
        let end = self.door.ports.log.bounds(partition).await?.next;
        self.ends.insert(partition, end);
        Ok(end)
    }

    /// Nothing was written: every claim that was begun is free again.
    async fn give_up(self) {
        for fate in self.fates {
            if let Fate::Append { claims, .. } | Fate::Ask { claims, .. } | Fate::SameAs { claims, .. } = fate {
                abandon_all(self.door, &claims).await;
            }
        }
    }

    /// Checks right before the write that no other node has taken a claim over. This node may have been paused since it claimed.
    async fn check_claims(&self) -> Result<(), Refusal> {
        for (index, fate) in self.fates.iter().enumerate() {
            let (Fate::Append { claims, .. } | Fate::Ask { claims, .. }) = fate else { continue };
            for claim in claims {
                let problem = match self.door.ports.receipts.still_holds(claim).await {
                    Ok(true) => continue,
                    Ok(false) => {
                        let detail = format!(
                            "this node was too slow: another node publishes under `{}` now. This node wrote nothing; repeat the request",
                            claim.text
                        );
                        Problem::new(Code::InProgress, detail)
                    }
                    Err(error) => error.into(),
                };
                return Err(Refusal { index: Some(index), problem });
            }
        }
        Ok(())
    }

    async fn write(mut self) -> Vec<Result<Accepted, Problem>> {
        let (entries, questions) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.questions));
        let (log, holds) = (&self.door.ports.log, &self.door.ports.holds);
        let count = entries.len();
        let pass = self.pass;
        let append = async { if count == 0 { Vec::new() } else { pass.acknowledged(log.append(entries).await) } };
        let asked = questions.into_iter().map(|(shard, ask)| holds.ask(shard, ask));
        let asked = futures_util::stream::iter(asked).buffered(ASKS_AT_ONCE).collect::<Vec<_>>();
        let (outcome, told) = futures_util::future::join(append, asked).await;
        let (mut outcomes, mut told) = (answers_of(outcome, count), told.into_iter());
        let mut answers: Vec<Result<Accepted, Problem>> = Vec::with_capacity(self.fates.len());
        for fate in std::mem::take(&mut self.fates) {
            let answer = match fate {
                Fate::Earlier(accepted) => Ok(accepted),
                Fate::SameAs { first, claims } => self.settle_repeat(answers[first].clone(), claims).await,
                Fate::Append { expected, claims } => {
                    let outcome = outcomes.next().expect("there is one outcome for each entry");
                    self.settle_append(expected, claims, outcome).await
                }
                Fate::Ask { id, claims, end } => {
                    let told = told.next().expect("there is one answer for each question");
                    self.settle_ask(id, claims, end, told).await
                }
            };
            answers.push(answer);
        }
        self.taken.count(self.door, self.now);
        answers
    }

    /// Names that only a repeat within the batch had are names of the first from now on, where that was taken.
    async fn settle_repeat(&self, first: Result<Accepted, Problem>, claims: Vec<Claim>) -> Result<Accepted, Problem> {
        for claim in &claims {
            let Ok(accepted) = &first else {
                abandon(self.door, claim).await;
                continue;
            };
            let end = self.ends.get(&claim.partition).copied().unwrap_or_default();
            let (offset, due) = match accepted.standing {
                Standing::InTopic { offset, .. } => (offset, None),
                Standing::Held { due } => (end, Some(due)),
            };
            let (id, partition, answered_at) = (accepted.id.to_text(), claim.partition, self.now);
            self.finish(claim, Answer { id, partition, offset, due, answered_at }).await;
        }
        first
    }

    /// Ends the claims as their append ended.
    async fn settle_append(
        &mut self,
        expected: Expected,
        claims: Vec<Claim>,
        outcome: Result<u64, LogError>,
    ) -> Result<Accepted, Problem> {
        let accepted = expected.accepted(outcome.clone(), &self.pass.name, &mut self.taken);
        for claim in &claims {
            match (&accepted, &outcome) {
                (Ok(accepted), Ok(offset)) => {
                    let due = match accepted.standing {
                        Standing::InTopic { .. } => None,
                        Standing::Held { due } => Some(due),
                    };
                    let (id, partition, offset) = (accepted.id.to_text(), claim.partition, *offset);
                    self.finish(claim, Answer { id, partition, offset, due, answered_at: self.now }).await;
                }
                (_, Err(LogError::Unknown(_))) => leave(self.door, claim).await,
                _ => abandon(self.door, claim).await,
            }
        }
        accepted
    }

    /// Ends the claims as the owner decided. Where the `held` record lies is only known to lie at `end` or behind.
    async fn settle_ask(
        &mut self,
        id: HoldId,
        claims: Vec<Claim>,
        end: u64,
        told: Result<Told, HoldsError>,
    ) -> Result<Accepted, Problem> {
        match told {
            Ok(Told::Held { due }) => {
                self.taken.held += 1;
                let id = id.to_string();
                for claim in &claims {
                    let (id, partition, answered_at) = (id.clone(), claim.partition, self.now);
                    self.finish(claim, Answer { id, partition, offset: end, due: Some(due), answered_at }).await;
                }
                Ok(Accepted { id: AcceptedId::Text(id.into()), standing: Standing::Held { due } })
            }
            Ok(Told::Taken) => {
                abandon_all(self.door, &claims).await;
                Err(Problem::new(Code::IdTaken, "another message is or was held under this id; nothing was held now"))
            }
            Ok(other) => {
                tracing::error!(?other, "an owner answered what it was not asked");
                leave_all(self.door, &claims).await;
                Err(Problem::new(Code::OutcomeUnknown, "the owner of the shard gave no answer that is understood"))
            }
            Err(error @ HoldsError::OutcomeUnknown(_)) => {
                leave_all(self.door, &claims).await;
                Err(error.into())
            }
            Err(error) => {
                abandon_all(self.door, &claims).await;
                Err(error.into())
            }
        }
    }

    /// The message is in the log whatever the receipts say, so the publisher gets its answer; a repeat looks through the log.
    async fn finish(&self, claim: &Claim, answer: Answer) {
        if let Err(error) = self.door.ports.receipts.finish(claim, answer).await {
            tracing::warn!(%error, "a receipt could not be kept; a repeat will look for its message in the log");
        }
    }
}

async fn leave_all(door: &Door, claims: &[Claim]) {
    for claim in claims {
        leave(door, claim).await;
    }
}

async fn abandon_all(door: &Door, claims: &[Claim]) {
    for claim in claims {
        abandon(door, claim).await;
    }
}

async fn leave(door: &Door, claim: &Claim) {
    if let Err(error) = door.ports.receipts.leave(claim).await {
        tracing::warn!(%error, "a claim whose outcome is not known could not be left; it will lapse");
    }
}

async fn abandon(door: &Door, claim: &Claim) {
    if let Err(error) = door.ports.receipts.abandon(claim).await {
        tracing::warn!(%error, "a claim could not be given up; it will lapse");
    }
}

fn accepted_of(answer: Answer) -> Accepted {
    let standing = match answer.due {
        Some(due) => Standing::Held { due },
        None => Standing::InTopic { partition: answer.partition.index, offset: answer.offset },
    };
    Accepted { id: AcceptedId::Text(answer.id.into()), standing }
}

fn different(name: &str) -> Problem {
    let detail = format!("another message was published under `{name}` before; nothing was published now");
    Problem::new(Code::DifferentBody, detail)
}

/// What the record of a claim carries.
fn claim_header(owner: &str, kind: ClaimKind, text: &str) -> Vec<u8> {
    idempotency_header(owner, if kind == ClaimKind::Key { text } else { "" })
}

/// Looks for the record of a claim that began and never finished.
async fn look_for(door: &Door, claim: &Claim, partition: PartitionId, from: u64) -> Result<Option<Answer>, Problem> {
    let log = &door.ports.log;
    let end = log.bounds(partition).await?.next;
    let owner_and_key = claim_header(&claim.owner, claim.kind, &claim.text);
    let mut walk = LogWalk::new(&**log, partition, from, end);
    let mut looked_at = 0;
    while looked_at <= LAPSED_SCAN_RECORDS_MAX {
        let records = match walk.step(usize::MAX).await {
            Ok(Some(records)) => records,
            // What is dropped may have been it: to write again would be to write twice.
            Ok(None) if walk.has_passed_over() => {
                let detail = "an earlier publish under this key has an outcome that nobody knows any more: what was written then has been \
                              dropped from the log. Nothing was published now; look whether its message was delivered, and publish \
                              under another key if not";
                return Err(Problem::new(Code::OutcomeUnknown, detail));
            }
            Ok(None) if walk.is_at_end() => return Ok(None),
            Ok(None) => break,
            // The topic was made again: nothing of the old one can be found, and nothing is left to repeat.
            Err(LogError::UnknownPartition(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = records.iter().filter(|stored| carries(stored, claim, &owner_and_key));
        let answer = found.filter_map(|stored| answer_in(door, claim, partition, stored)).next();
        if answer.is_some() {
            return Ok(answer);
        }
        looked_at += records.len();
    }
    let detail = "an earlier publish under this key has an outcome that could not be found out in time";
    Err(Problem::new(Code::OutcomeUnknown, detail))
}

fn carries(stored: &StoredRecord, claim: &Claim, owner_and_key: &[u8]) -> bool {
    let headers = &stored.record.headers;
    let is_named = |name| headers.get(name) == Some(claim.text.as_bytes());
    headers.get(HEADER_IDEMPOTENCY_KEY) == Some(owner_and_key)
        && (claim.kind == ClaimKind::Key || is_named(HEADER_ID) || is_named(HEADER_ALSO_ID))
}

/// The answer that a record which carries the claim's header gives. A shard has the holds of all topics: only one for the claim's own
/// topic is meant.
fn answer_in(door: &Door, claim: &Claim, partition: PartitionId, stored: &StoredRecord) -> Option<Answer> {
    let mut due = None;
    if partition.topic == door.holds.number() {
        match HoldRecord::of(&stored.record, stored.offset) {
            Ok(HoldRecord::Held(hold) | HoldRecord::Carried(hold)) if hold.topic == claim.topic => due = Some(hold.due),
            _ => return None,
        }
    }
    let id = stored.record.headers.get_str(HEADER_ID).unwrap_or_default().to_owned();
    Some(Answer { id, partition, offset: stored.offset, due, answered_at: stored.record.timestamp })
}

/// What must be the same for two publishes to be the same. A CRC suffices: it tells a mistake from a repeat, and protects nothing
/// from a publisher who would deceive himself. Lengths go in, so that nothing can move from one part to the next.
///
/// By which of its names a push came is no part of it, since each of them alone makes it a repeat.
/// When a message is due is no part of it: whoever repeats a publish with a delay computes another time. An id that came beside the
/// key is, with the key itself: the same id under another key is another message.
fn fingerprint(draft: &Draft, brought: &Brought) -> u64 {
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
    if let Some(id) = &brought.id {
        part(Some(id.as_bytes()));
        part(Some(brought.text.as_bytes()));
    }
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::draft::{ContentType, Later, PushPart, PushShare};
    use super::*;
    use bytes::Bytes;
    use whimbrel_model::Headers;

    #[test]
    fn a_fingerprint_is_of_every_part_of_the_message() {
        let draft = Draft {
            key: None,
            payload: Bytes::from_static(b"ab"),
            content_type: ContentType::Absent,
            headers: Headers::EMPTY,
            brought: None,
            later: None,
            push: None,
        };
        let key = Brought { kind: ClaimKind::Key, text: "k".into(), id: None, also: None };
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
        assert_eq!(fingerprint(&push(b"a)", None), &key), fingerprint(&others[4], &key), "by which names is no part");
        assert_ne!(fingerprint(&others[4], &key), fingerprint(&others[5], &key));
        assert_ne!(fingerprint(&others[4], &key), fingerprint(&others[6], &key), "other users are another push");
        let later = Draft { later: Some(Later::At(Timestamp::from_millis(1))), ..draft.clone() };
        assert_eq!(fingerprint(&draft, &key), fingerprint(&later, &key), "a repeat may ask for another time");
        for other in others {
            assert_ne!(fingerprint(&other, &key), fingerprint(&draft, &key), "{other:?}");
        }
        let with_id = |text: &str| Brought { text: text.into(), id: Some("task".into()), ..key.clone() };
        assert_ne!(fingerprint(&draft, &with_id("a")), fingerprint(&draft, &with_id("b")));
    }
}
