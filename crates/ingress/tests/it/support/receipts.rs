//! The `Receipts` port in memory. Claims lapse on command.

use std::collections::HashMap;
use std::sync::Mutex;

use whimbrel_model::ports::{
    Claim, ClaimKind, ClaimState, LogError, PortFuture, PublishReceipt, Receipts, ReceiptsError,
};
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

type Name = (String, ClaimKind, String, TopicNumber);

#[derive(Default)]
pub struct MemoryReceipts {
    claims: Mutex<HashMap<Name, Kept>>,
    refuses: Mutex<bool>,
    /// The answer to a publisher that checks its claim before it writes.
    held: Mutex<Option<Result<bool, ReceiptsError>>>,
    recovered: Mutex<Vec<PartitionId>>,
    /// The number of times that the log fails while the receipts follow it.
    log_failures: Mutex<u32>,
}

struct Kept {
    fingerprint: u64,
    places: Vec<(PartitionId, u64)>,
    lapsed: bool,
    answer: Option<PublishReceipt>,
}

impl MemoryReceipts {
    pub fn lapse_all(&self) {
        self.claims.lock().unwrap().values_mut().for_each(|kept| kept.lapsed = true);
    }

    /// From now on, the answer to a publisher that checks its claim before it writes.
    pub fn answer_holders(&self, answer: Result<bool, ReceiptsError>) {
        *self.held.lock().unwrap() = Some(answer);
    }

    pub fn refuse(&self, refuses: bool) {
        *self.refuses.lock().unwrap() = refuses;
    }

    /// The log fails the next `times` times that the receipts follow it.
    pub fn fail_log(&self, times: u32) {
        *self.log_failures.lock().unwrap() = times;
    }

    /// The partitions that the receipts followed at startup.
    pub fn recovered(&self) -> Vec<PartitionId> {
        self.recovered.lock().unwrap().clone()
    }

    pub fn under_way(&self) -> usize {
        self.claims.lock().unwrap().values().filter(|kept| kept.answer.is_none()).count()
    }

    fn answering(&self) -> Result<(), ReceiptsError> {
        let refuses = *self.refuses.lock().unwrap();
        if refuses { Err(ReceiptsError::Unavailable("the store is away".to_owned())) } else { Ok(()) }
    }
}

fn name_of(claim: &Claim) -> Name {
    (claim.owner.clone(), claim.kind, claim.text.clone(), claim.topic)
}

impl Receipts for MemoryReceipts {
    fn begin<'a>(
        &'a self,
        claim: &'a Claim,
        end: u64,
        _: Timestamp,
    ) -> PortFuture<'a, Result<ClaimState, ReceiptsError>> {
        Box::pin(async move {
            self.answering()?;
            let mut claims = self.claims.lock().unwrap();
            let Some(kept) = claims.get_mut(&name_of(claim)) else {
                let (fingerprint, places) = (claim.fingerprint, vec![(claim.partition, end)]);
                claims.insert(name_of(claim), Kept { fingerprint, places, lapsed: false, answer: None });
                return Ok(ClaimState::New);
            };
            Ok(match &kept.answer {
                _ if kept.fingerprint != claim.fingerprint => ClaimState::Different,
                Some(answer) => ClaimState::Earlier(answer.clone()),
                None if kept.lapsed => {
                    kept.lapsed = false;
                    let places = kept.places.clone();
                    kept.places.push((claim.partition, end));
                    ClaimState::Lapsed { places }
                }
                None => ClaimState::UnderWay,
            })
        })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, answer: PublishReceipt) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move {
            self.answering()?;
            let mut claims = self.claims.lock().unwrap();
            claims.get_mut(&name_of(claim)).expect("a claim is begun before it finishes").answer = Some(answer);
            Ok(())
        })
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move {
            self.answering()?;
            self.claims.lock().unwrap().remove(&name_of(claim));
            Ok(())
        })
    }

    fn give_back<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move {
            self.answering()?;
            let mut claims = self.claims.lock().unwrap();
            let kept = claims.get_mut(&name_of(claim)).expect("a claim is begun before it is restored");
            kept.places.pop();
            kept.lapsed = true;
            if kept.places.is_empty() {
                claims.remove(&name_of(claim));
            }
            Ok(())
        })
    }

    fn still_holds<'a>(&'a self, _: &'a Claim) -> PortFuture<'a, Result<bool, ReceiptsError>> {
        let held = self.held.lock().unwrap().clone();
        Box::pin(async move { held.unwrap_or(Ok(true)) })
    }

    fn leave<'a>(&'a self, _: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move { self.answering() })
    }

    fn recover<'a>(&'a self, partitions: &'a [PartitionId]) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move {
            self.answering()?;
            let mut failures = self.log_failures.lock().unwrap();
            if *failures > 0 {
                *failures -= 1;
                return Err(ReceiptsError::Log(LogError::Unavailable("the broker is slow".to_owned())));
            }
            *self.recovered.lock().unwrap() = partitions.to_vec();
            Ok(())
        })
    }

    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<PublishReceipt>, ReceiptsError>> {
        Box::pin(async move {
            self.answering()?;
            let claims = self.claims.lock().unwrap();
            let of_id = claims.iter().filter(|((_, kind, text, _), _)| *kind == ClaimKind::Id && text == id);
            let mut answers: Vec<PublishReceipt> = of_id.filter_map(|(_, kept)| kept.answer.clone()).collect();
            answers.sort_by_key(|answer| answer.answered_at);
            Ok(answers)
        })
    }
}
