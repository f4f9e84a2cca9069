//! Outcomes (ends) of claims that Redis has not confirmed: this process has the outcome of its publish, and Redis may not have it yet.
//!
//! A claim is added here when a call to Redis fails. Redis may still execute that call, even after a call that was sent later. So an end
//! is kept for a whole lease: after that the claim lapses without action. Pure: the time is passed in.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use whimbrel_model::ports::{Claim, PublishReceipt};

/// Claims whose ends are kept. Further claims lapse after their lease.
const CLAIMS_MAX: usize = 50_000;
/// The maximum number of holders of a claim that are remembered to have written nothing: repeats while Redis is unreachable. A new one
/// evicts the oldest.
const HOLDERS_MAX: usize = 32;
/// The pause after a reply of Redis that it has no such claim. It doubles each time, because the claim may still arrive.
const PAUSE_FIRST: Duration = Duration::from_millis(500);

/// The local state of a claim, before a call to Redis.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LocalClaimState {
    /// The publish succeeded; Redis may not have the answer.
    Answered { fingerprint: u64, answer: PublishReceipt },
    /// These holders of the claim wrote nothing and never will. Empty: this process has no information.
    NotWritten { holders: Vec<String> },
}

/// An end that must be sent to Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    NotWritten { key: String, holder: String },
    Answered { key: String, claim: Claim, answer: PublishReceipt },
}

impl ClaimOutcome {
    pub fn key(&self) -> &str {
        match self {
            Self::NotWritten { key, .. } | Self::Answered { key, .. } => key,
        }
    }
}

/// The ends of this process's claims that Redis has not confirmed.
pub(super) struct UnconfirmedOutcomes {
    lease: Duration,
    by_key: HashMap<String, UnconfirmedClaim>,
    /// Claims whose last confirmation failed.
    failed: HashSet<String>,
}

enum UnconfirmedClaim {
    NotWritten(Vec<DeadHolder>),
    Answered { claim: Claim, answer: PublishReceipt, until: Instant },
}

struct DeadHolder {
    holder: String,
    /// The time by which the claim has lapsed.
    until: Instant,
    next_at: Instant,
    pause: Duration,
}

impl UnconfirmedOutcomes {
    pub fn new(lease: Duration) -> Self {
        Self { lease, by_key: HashMap::new(), failed: HashSet::new() }
    }

    /// Records that the holder of a claim wrote nothing. Redis may have the claim under that holder.
    pub fn not_written(&mut self, key: String, holder: String, now: Instant) {
        if self.by_key.len() >= CLAIMS_MAX && !self.by_key.contains_key(&key) {
            return;
        }
        let dead = DeadHolder { holder, until: now + self.lease, next_at: now, pause: PAUSE_FIRST };
        match self.by_key.entry(key).or_insert_with(|| UnconfirmedClaim::NotWritten(Vec::new())) {
            UnconfirmedClaim::NotWritten(holders) => {
                if holders.len() >= HOLDERS_MAX {
                    holders.remove(0);
                }
                holders.push(dead);
            }
            // The answer takes precedence.
            UnconfirmedClaim::Answered { .. } => {}
        }
    }

    /// Records that the publish of a claim succeeded with this answer.
    pub fn answered(&mut self, key: String, claim: Claim, answer: PublishReceipt, now: Instant) {
        if self.by_key.len() < CLAIMS_MAX || self.by_key.contains_key(&key) {
            self.by_key.insert(key, UnconfirmedClaim::Answered { claim, answer, until: now + self.lease });
        }
    }

    pub fn known(&self, key: &str, now: Instant) -> LocalClaimState {
        match self.by_key.get(key) {
            Some(UnconfirmedClaim::Answered { claim, answer, until }) if *until > now => {
                LocalClaimState::Answered { fingerprint: claim.fingerprint, answer: answer.clone() }
            }
            Some(UnconfirmedClaim::NotWritten(holders)) => {
                let live = holders.iter().filter(|dead| dead.until > now);
                LocalClaimState::NotWritten { holders: live.map(|dead| dead.holder.clone()).collect() }
            }
            _ => LocalClaimState::NotWritten { holders: Vec::new() },
        }
    }

    /// The outcomes to send to Redis now; outcomes whose last confirmation failed come last. Drops the outcomes of lapsed claims.
    pub fn due(&mut self, now: Instant) -> Vec<ClaimOutcome> {
        let mut due = Vec::new();
        self.by_key.retain(|key, entry| match entry {
            UnconfirmedClaim::Answered { claim, answer, until } => {
                due.push(ClaimOutcome::Answered { key: key.clone(), claim: claim.clone(), answer: answer.clone() });
                *until > now
            }
            UnconfirmedClaim::NotWritten(holders) => {
                holders.retain(|dead| dead.until > now);
                let ready = holders.iter().filter(|dead| dead.next_at <= now);
                due.extend(
                    ready.map(|dead| ClaimOutcome::NotWritten { key: key.clone(), holder: dead.holder.clone() }),
                );
                !holders.is_empty()
            }
        });
        self.failed.retain(|key| self.by_key.contains_key(key));
        due.sort_by_key(|end| self.failed.contains(end.key()));
        due
    }

    /// Records whether Redis has confirmed an outcome.
    pub fn tried(&mut self, key: &str, is_confirmed: bool) {
        if is_confirmed {
            self.failed.remove(key);
        } else if self.by_key.contains_key(key) {
            self.failed.insert(key.to_owned());
        }
    }

    pub fn confirmed_answer(&mut self, key: &str) {
        self.by_key.remove(key);
    }

    /// Records a reply of Redis about a holder that wrote nothing: it released the claim, or had no such claim.
    pub fn confirmed_release(&mut self, key: &str, holder: &str, was_held: bool, now: Instant) {
        let Some(UnconfirmedClaim::NotWritten(holders)) = self.by_key.get_mut(key) else { return };
        for dead in holders.iter_mut().filter(|dead| dead.holder == holder) {
            if was_held {
                dead.next_at = dead.until;
            } else {
                dead.next_at = now + dead.pause;
                dead.pause *= 2;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::ports::ClaimKind;
    use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn claim() -> Claim {
        let partition = PartitionId::new(TopicNumber(1), 0);
        let (owner, text) = (String::new(), "order-1".to_owned());
        Claim { owner, kind: ClaimKind::Key, text, topic: partition.topic, partition, fingerprint: 7 }
    }

    fn answer() -> PublishReceipt {
        let answered_at = Timestamp::from_millis(5);
        PublishReceipt { id: "m1".to_owned(), partition: claim().partition, offset: 3, due: None, answered_at }
    }

    fn not_written(holder: &str) -> ClaimOutcome {
        ClaimOutcome::NotWritten { key: "k".to_owned(), holder: holder.to_owned() }
    }

    #[test]
    fn a_holder_that_wrote_nothing_is_remembered_and_sent_until_its_lease_ends() {
        let (began, mut ends) = (Instant::now(), UnconfirmedOutcomes::new(LEASE));
        ends.not_written("k".to_owned(), "a".to_owned(), began);
        assert_eq!(ends.known("k", began), LocalClaimState::NotWritten { holders: vec!["a".to_owned()] });
        assert_eq!(ends.due(began), [not_written("a")]);
        assert_eq!(ends.due(began), [not_written("a")], "Redis did not answer");
        ends.confirmed_release("k", "a", true, began);
        assert_eq!(ends.due(began + LEASE - PAUSE_FIRST), [], "it was released");
        assert_eq!(ends.known("k", began).holders(), ["a"], "it may arrive a second time");
        assert_eq!((ends.due(began + LEASE), ends.by_key.len()), (vec![], 0));
    }

    #[test]
    fn a_claim_that_reaches_redis_late_is_released() {
        let (began, mut ends) = (Instant::now(), UnconfirmedOutcomes::new(LEASE));
        ends.not_written("k".to_owned(), "a".to_owned(), began);
        let mut told = 0;
        for step in 0..600 {
            let now = began + step * Duration::from_millis(100);
            for _ in ends.due(now) {
                ends.confirmed_release("k", "a", false, now);
                told += 1;
            }
        }
        assert!((5..10).contains(&told), "sent {told} times in a lease");
    }

    #[test]
    fn an_answer_is_kept_until_redis_has_it() {
        let (began, mut ends) = (Instant::now(), UnconfirmedOutcomes::new(LEASE));
        ends.not_written("k".to_owned(), "a".to_owned(), began);
        ends.answered("k".to_owned(), claim(), answer(), began);
        ends.not_written("k".to_owned(), "b".to_owned(), began);
        assert_eq!(ends.known("k", began), LocalClaimState::Answered { fingerprint: 7, answer: answer() });
        assert_eq!(ends.due(began), [ClaimOutcome::Answered { key: "k".to_owned(), claim: claim(), answer: answer() }]);
        ends.confirmed_answer("k");
        assert_eq!(ends.known("k", began).holders(), [""; 0]);
    }

    #[test]
    fn ends_whose_confirmation_failed_come_after_the_others() {
        let (now, mut ends) = (Instant::now(), UnconfirmedOutcomes::new(LEASE));
        for number in 0..100 {
            ends.not_written(format!("away-{number}"), "a".to_owned(), now);
            ends.tried(&format!("away-{number}"), false);
        }
        ends.not_written("here".to_owned(), "a".to_owned(), now);
        assert_eq!(ends.due(now)[0].key(), "here");
        ends.due(now + LEASE);
        assert_eq!(ends.failed.len(), 0, "ends of lapsed claims are dropped");
    }

    #[test]
    fn repeats_and_claims_are_bounded() {
        let (now, mut ends) = (Instant::now(), UnconfirmedOutcomes::new(LEASE));
        for number in 0..2 * HOLDERS_MAX {
            ends.not_written("k".to_owned(), number.to_string(), now);
        }
        assert_eq!(ends.known("k", now).holders().len(), HOLDERS_MAX);
        for number in 0..CLAIMS_MAX + 10 {
            ends.not_written(format!("key-{number}"), "a".to_owned(), now);
        }
        assert_eq!(ends.by_key.len(), CLAIMS_MAX);
    }

    impl LocalClaimState {
        fn holders(&self) -> &[String] {
            match self {
                Self::NotWritten { holders } => holders,
                Self::Answered { .. } => &[],
            }
        }
    }
}
