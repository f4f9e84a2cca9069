//! Publishing once: messages under an `Idempotency-Key` or an id of the publisher's own.
//!
//! A claim is begun before the append and finished with the answer; a repeat gets that answer. It is abandoned only where it is
//! certain that nothing was written; after an unknown outcome it is left to lapse, and whoever comes next looks through the log
//! for the record, which carries the claim, before anything is written again. This runs to its end also where the client went.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};
use whimbrel_model::ports::{Answer, Begun, Claim, ClaimKind, Entry, LogError, ReadLimits};
use whimbrel_model::record::{HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, idempotency_header};
use whimbrel_model::{HeadersBuilder, PartitionId, StoredRecord, Timestamp};

use super::accept::{Accepted, AcceptedId, Refusal, answers_of, compose, count_accepted};
use super::door::Door;
use super::draft::{Brought, Draft};
use super::problem::{Code, Problem};
use crate::topics::Pass;

/// Records that are looked through for a lapsed claim. Beyond, its outcome cannot be known in time.
const LAPSED_SCAN_RECORDS_MAX: usize = 1_000_000;
/// Records and bytes of each step of that look.
const LAPSED_STEP_RECORDS: usize = 4096;
const LAPSED_STEP_BYTES: usize = 4 << 20;

/// What becomes of one draft of the batch.
enum Fate {
    /// It is appended: the next of the entries.
    Append { id: AcceptedId, partition: u32, payload_bytes: usize, claim: Option<Claim> },
    /// It was published before.
    Earlier(Accepted),
    /// It repeats another draft of the same batch.
    SameAs(usize),
}

/// One call's work on its way through the drafts.
struct Claiming<'a> {
    door: &'a Arc<Door>,
    pass: &'a Pass,
    owner: &'a str,
    now: Timestamp,
    /// The next offset of each partition, read once.
    ends: HashMap<u32, u64>,
    /// Where in this batch a key or id came first, with its fingerprint.
    first_of: HashMap<Box<str>, (usize, u64)>,
    fates: Vec<Fate>,
    entries: Vec<Entry>,
    headers: HeadersBuilder,
}

/// Accepts drafts of which some are claimed.
pub(super) async fn accept_claimed(
    door: &Arc<Door>,
    pass: &Pass,
    owner: &str,
    drafts: Vec<Draft>,
) -> Result<Vec<Result<Accepted, LogError>>, Refusal> {
    let mut claiming = Claiming {
        door,
        pass,
        owner,
        now: door.ports.clock.now(),
        ends: HashMap::new(),
        first_of: HashMap::new(),
        fates: Vec::with_capacity(drafts.len()),
        entries: Vec::with_capacity(drafts.len()),
        headers: HeadersBuilder::default(),
    };
    for (index, draft) in drafts.into_iter().enumerate() {
        if let Err(problem) = claiming.decide(index, draft).await {
            claiming.give_up().await;
            return Err(Refusal { index: Some(index), problem });
        }
    }
    Ok(claiming.append().await)
}

impl Claiming<'_> {
    async fn decide(&mut self, index: usize, draft: Draft) -> Result<(), Problem> {
        let partition = self.pass.place(draft.key.as_deref());
        let Some(brought) = draft.brought.clone() else {
            let id = self.door.mint.mint(self.now, partition);
            let payload_bytes = draft.payload.len();
            self.entries.push(compose(draft, &id.to_text(), &[], &mut self.headers, partition, self.now));
            self.fates.push(Fate::Append {
                id: AcceptedId::Minted(id),
                partition: partition.index,
                payload_bytes,
                claim: None,
            });
            return Ok(());
        };
        let fingerprint = fingerprint(&draft);
        if let Some((first, first_fingerprint)) = self.first_of.get(&brought.text) {
            if *first_fingerprint != fingerprint {
                return Err(different(&brought));
            }
            self.fates.push(Fate::SameAs(*first));
            return Ok(());
        }
        self.first_of.insert(brought.text.clone(), (index, fingerprint));
        let claim = Claim {
            owner: self.owner.to_owned(),
            kind: brought.kind,
            text: brought.text.to_string(),
            topic: partition.topic,
            partition,
            fingerprint,
        };
        let end = self.end_of(partition).await?;
        match self.door.ports.receipts.begin(&claim, end, self.now).await? {
            Begun::New => self.claim(draft, claim),
            Begun::Earlier(answer) => self.fates.push(Fate::Earlier(accepted_of(answer))),
            Begun::Different => return Err(different(&brought)),
            Begun::UnderWay => {
                let detail = format!("the first publish under `{}` has not ended yet", brought.text);
                return Err(Problem::new(Code::InProgress, detail));
            }
            Begun::Lapsed { places } => match self.look_at_places(&claim, places).await? {
                Some(answer) => {
                    self.finish(&claim, answer.clone()).await;
                    self.fates.push(Fate::Earlier(accepted_of(answer)));
                }
                None => self.claim(draft, claim),
            },
        }
        Ok(())
    }

    /// Looks wherever a try may have gone. Where that cannot be found out, the claim is left as it was.
    async fn look_at_places(&self, claim: &Claim, places: Vec<(PartitionId, u64)>) -> Result<Option<Answer>, Problem> {
        for (partition, from) in places {
            match look_for(self.door, claim, partition, from).await {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(problem) => {
                    leave(self.door, claim).await;
                    return Err(problem);
                }
            }
        }
        Ok(None)
    }

    /// Takes the draft under its claim among those that are appended.
    fn claim(&mut self, draft: Draft, claim: Claim) {
        let partition = claim.partition;
        let (id, key) = match claim.kind {
            ClaimKind::Id => (AcceptedId::Text(claim.text.as_str().into()), ""),
            ClaimKind::Key => (AcceptedId::Minted(self.door.mint.mint(self.now, partition)), claim.text.as_str()),
        };
        let owner_and_key = idempotency_header(self.owner, key);
        let fingerprint = format!("{:016x}", claim.fingerprint);
        let more = [(HEADER_IDEMPOTENCY_KEY, &owner_and_key[..]), (HEADER_FINGERPRINT, fingerprint.as_bytes())];
        let payload_bytes = draft.payload.len();
        let entry = id.with_text(|id| compose(draft, id, &more, &mut self.headers, partition, self.now));
        self.entries.push(entry);
        self.fates.push(Fate::Append { id, partition: partition.index, payload_bytes, claim: Some(claim) });
    }

    async fn end_of(&mut self, partition: PartitionId) -> Result<u64, Problem> {
        if let Some(end) = self.ends.get(&partition.index) {
            return Ok(*end);
        }
        let end = self.door.ports.log.bounds(partition).await?.next;
        self.ends.insert(partition.index, end);
        Ok(end)
    }

    /// Nothing was written: every claim that was begun is free again.
    async fn give_up(self) {
        for fate in self.fates {
            if let Fate::Append { claim: Some(claim), .. } = fate {
                abandon(self.door, &claim).await;
            }
        }
    }

    async fn append(mut self) -> Vec<Result<Accepted, LogError>> {
        let entries = std::mem::take(&mut self.entries);
        let count = entries.len();
        let outcome = if count == 0 { Vec::new() } else { self.door.ports.log.append(entries).await };
        let mut outcomes = answers_of(outcome, count);
        let mut answers: Vec<Result<Accepted, LogError>> = Vec::with_capacity(self.fates.len());
        for fate in std::mem::take(&mut self.fates) {
            let answer = match fate {
                Fate::Earlier(accepted) => Ok(accepted),
                Fate::SameAs(first) => answers[first].clone(),
                Fate::Append { id, partition, payload_bytes, claim } => {
                    let outcome = outcomes.next().expect("there is one outcome for each entry");
                    let outcome = outcome.map(|offset| Accepted { id, partition, offset });
                    if outcome.is_ok() {
                        count_accepted(self.pass, self.now, 1, payload_bytes);
                    }
                    self.settle(claim.as_ref(), &outcome).await;
                    outcome
                }
            };
            answers.push(answer);
        }
        answers
    }

    /// Ends the claim as its append ended.
    async fn settle(&self, claim: Option<&Claim>, outcome: &Result<Accepted, LogError>) {
        match (claim, outcome) {
            (None, Ok(_)) => {}
            (Some(claim), Ok(accepted)) => {
                let answer = Answer {
                    id: accepted.id.with_text(|id| String::from_utf8_lossy(id).into_owned()),
                    partition: claim.partition,
                    offset: accepted.offset,
                    due: None,
                    answered_at: self.now,
                };
                self.finish(claim, answer).await;
            }
            (Some(claim), Err(LogError::Unknown(_))) => leave(self.door, claim).await,
            (Some(claim), Err(_)) => abandon(self.door, claim).await,
            (None, Err(_)) => {}
        }
    }

    /// The message is in the log whatever the receipts say, so the publisher gets its answer; a repeat looks through the log.
    async fn finish(&self, claim: &Claim, answer: Answer) {
        if let Err(error) = self.door.ports.receipts.finish(claim, answer).await {
            tracing::warn!(%error, "a receipt could not be kept; a repeat will look for its message in the log");
        }
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
    Accepted { id: AcceptedId::Text(answer.id.into()), partition: answer.partition.index, offset: answer.offset }
}

fn different(brought: &Brought) -> Problem {
    let detail = format!("another message was published under `{}` before; nothing was published now", brought.text);
    Problem::new(Code::DifferentBody, detail)
}

/// Looks for the record of a claim that began and never finished.
async fn look_for(door: &Door, claim: &Claim, partition: PartitionId, from: u64) -> Result<Option<Answer>, Problem> {
    let log = &door.ports.log;
    let end = log.bounds(partition).await?.next;
    let limits = ReadLimits { max_records: LAPSED_STEP_RECORDS, max_bytes: LAPSED_STEP_BYTES, wait: Duration::ZERO };
    let owner_and_key = idempotency_header(&claim.owner, if claim.kind == ClaimKind::Key { &claim.text } else { "" });
    let (mut at, mut looked_at) = (from, 0);
    while at < end {
        let batch = match log.read(partition, at, limits).await {
            Ok(batch) => batch,
            Err(LogError::Trimmed { first, .. }) if first > at => {
                at = first;
                continue;
            }
            Err(LogError::Damaged { resume_at, .. }) if resume_at > at => {
                at = resume_at;
                continue;
            }
            // The topic was made again: nothing of the old one can be found, and nothing is left to repeat.
            Err(LogError::UnknownPartition(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if let Some(found) = batch.records.iter().find(|stored| carries(stored, claim, &owner_and_key)) {
            let id = found.record.headers.get_str(HEADER_ID).unwrap_or_default().to_owned();
            let answered_at = found.record.timestamp;
            return Ok(Some(Answer { id, partition, offset: found.offset, due: None, answered_at }));
        }
        looked_at += batch.records.len();
        if looked_at > LAPSED_SCAN_RECORDS_MAX || batch.next <= at {
            let detail = "an earlier publish under this key has an outcome that could not be found out in time";
            return Err(Problem::new(Code::OutcomeUnknown, detail));
        }
        at = batch.next;
    }
    Ok(None)
}

fn carries(stored: &StoredRecord, claim: &Claim, owner_and_key: &[u8]) -> bool {
    let headers = &stored.record.headers;
    headers.get(HEADER_IDEMPOTENCY_KEY) == Some(owner_and_key)
        && (claim.kind == ClaimKind::Key || headers.get(HEADER_ID) == Some(claim.text.as_bytes()))
}

/// What must be the same for two publishes to be the same. A CRC suffices: it tells a mistake from a repeat, and protects nothing
/// from a publisher who would deceive himself. Lengths go in, so that nothing can move from one part to the next.
fn fingerprint(draft: &Draft) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut part = |bytes: Option<&[u8]>| {
        digest.update(&bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        digest.update(bytes.unwrap_or_default());
    };
    part(Some(&draft.payload));
    part(draft.key.as_deref());
    part(draft.content_type.as_bytes());
    part(Some(draft.headers.encoded()));
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::draft::ContentType;
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
        };
        let others = [
            Draft { payload: Bytes::from_static(b"a"), key: Some(Bytes::from_static(b"b")), ..draft.clone() },
            Draft { key: Some(Bytes::new()), ..draft.clone() },
            Draft { content_type: ContentType::Json, ..draft.clone() },
            Draft { headers: Headers::builder().push("a", b"b").take(), ..draft.clone() },
        ];
        assert_eq!(fingerprint(&draft), fingerprint(&draft.clone()));
        for other in others {
            assert_ne!(fingerprint(&other), fingerprint(&draft), "{other:?}");
        }
    }
}
