//! The requests of a shard, each in the queue of what it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::mem::take;

use whimbrel_model::ports::{HoldRequest, StoredHold};
use whimbrel_model::{HoldId, Timestamp};

use super::CallToken;
use super::pending_commit::DecisionMark;
use super::queries::{PendingQuery, Sweep};

pub type HoldRequestId = u64;

/// How often the shard checks for requests that have waited too long, in milliseconds.
const EXPIRE_EVERY_MS: i64 = 250;

#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) ask: HoldRequestId,
    pub(super) what: HoldRequest,
    /// When the request is answered with an error.
    pub(super) expires_at: Timestamp,
    /// The log is folded to its end as of the request's arrival.
    pub(super) is_folded: bool,
    /// The number of saves, and the store's state of the hold then.
    pub(super) got: Option<(u64, Option<StoredHold>)>,
    /// The number of saves when the store was queried.
    pub(super) asked_after: u64,
    /// The version of the hold when a move was decided.
    pub(super) version_before: Option<u64>,
    /// The decision of an earlier commit with an unknown outcome.
    pub(super) doubt: Option<DecisionMark>,
    /// The withdrawal of a whole topic to which this request belongs.
    pub(super) sweep: Option<HoldRequestId>,
}

impl WaitingRequest {
    pub(super) fn new(ask: HoldRequestId, what: HoldRequest, expires_at: Timestamp) -> Self {
        Self {
            ask,
            what,
            expires_at,
            is_folded: false,
            got: None,
            asked_after: 0,
            version_before: None,
            doubt: None,
            sweep: None,
        }
    }

    pub(super) fn id(&self) -> Option<&HoldId> {
        match &self.what {
            HoldRequest::Accept(hold) => Some(&hold.id),
            HoldRequest::Extend { id, .. }
            | HoldRequest::Withdraw { id }
            | HoldRequest::Fire { id }
            | HoldRequest::Look { id } => Some(id),
            HoldRequest::List(_) | HoldRequest::Dead(_) | HoldRequest::Count(_) | HoldRequest::WithdrawTopic { .. } => {
                None
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct RequestQueues {
    /// Requests that must be looked at.
    pub(super) arrived: Vec<WaitingRequest>,
    /// Requests that wait for the outcome of the commit in progress.
    pub(super) blocked: Vec<WaitingRequest>,
    /// Requests that wait for the log's end.
    pub(super) asking_end: BTreeMap<CallToken, Vec<WaitingRequest>>,
    /// Requests that wait until the log is folded up to an offset.
    pub(super) to_fold: BTreeMap<u64, Vec<WaitingRequest>>,
    /// Requests that wait for the store's state of their holds.
    pub(super) getting: BTreeMap<CallToken, Vec<WaitingRequest>>,
    /// Commands that the next commit decides about.
    pub(super) decidable: VecDeque<WaitingRequest>,
    pub(super) queries: BTreeMap<CallToken, PendingQuery>,
    pub(super) sweeps: BTreeMap<HoldRequestId, Sweep>,
    /// The number of requests without an answer.
    pub(super) count: usize,
    pub(super) expire_at: Timestamp,
}

impl RequestQueues {
    pub(super) fn push(&mut self, waiting: WaitingRequest, now: Timestamp) {
        self.count += 1;
        if self.count == 1 {
            self.expire_at = Timestamp::from_millis(now.as_millis() + EXPIRE_EVERY_MS);
        }
        self.arrived.push(waiting);
    }

    /// Resumes the requests that waited for the log to be folded up to there.
    pub(super) fn folded(&mut self, folded: u64) {
        while let Some(entry) = self.to_fold.first_entry()
            && *entry.key() <= folded
        {
            let folded = entry.remove();
            self.arrived.extend(folded.into_iter().map(|waiting| WaitingRequest { is_folded: true, ..waiting }));
        }
    }

    /// All waiting requests, except those in the commit in progress.
    pub(super) fn all(&self) -> impl Iterator<Item = &WaitingRequest> {
        let lists = [&self.arrived, &self.blocked].into_iter();
        let lists = lists.chain(self.asking_end.values()).chain(self.to_fold.values()).chain(self.getting.values());
        let looking = self.queries.values().map(|looking| &looking.waiting);
        lists.flatten().chain(&self.decidable).chain(looking)
    }

    /// The same, mutable, with the withdrawals of whole topics.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut WaitingRequest> {
        let lists = [&mut self.arrived, &mut self.blocked].into_iter();
        let lists = lists.chain(self.asking_end.values_mut()).chain(self.to_fold.values_mut());
        let lists = lists.chain(self.getting.values_mut());
        let looking = self.queries.values_mut().map(|looking| &mut looking.waiting);
        let sweeps = self.sweeps.values_mut().filter_map(|sweep| sweep.waiting.as_mut());
        lists.flatten().chain(&mut self.decidable).chain(looking).chain(sweeps)
    }

    /// Makes all requests start again: results of earlier queries are void.
    pub(super) fn start_over(&mut self) {
        let mut all = take(&mut self.arrived);
        all.extend(take(&mut self.blocked));
        all.extend(take(&mut self.asking_end).into_values().flatten());
        all.extend(take(&mut self.to_fold).into_values().flatten());
        all.extend(take(&mut self.getting).into_values().flatten());
        all.extend(take(&mut self.decidable));
        all.extend(take(&mut self.queries).into_values().map(|looking| looking.waiting));
        self.arrived =
            all.into_iter().map(|waiting| WaitingRequest { is_folded: false, got: None, ..waiting }).collect();
    }

    /// Takes the requests that have waited too long, except those in the commit in progress.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Vec<WaitingRequest> {
        if self.count == 0 || now < self.expire_at {
            return Vec::new();
        }
        self.expire_at = Timestamp::from_millis(now.as_millis() + EXPIRE_EVERY_MS);
        let mut expired = Vec::new();
        let mut sort = |list: &mut Vec<WaitingRequest>| {
            expired.extend(list.extract_if(.., |waiting| waiting.expires_at <= now));
        };
        sort(&mut self.arrived);
        sort(&mut self.blocked);
        self.asking_end.values_mut().for_each(&mut sort);
        self.to_fold.values_mut().for_each(&mut sort);
        self.to_fold.retain(|_, list| !list.is_empty());
        self.asking_end.retain(|_, list| !list.is_empty());
        let mut decidable = Vec::from(take(&mut self.decidable));
        sort(&mut decidable);
        self.decidable = decidable.into();
        // A store query must keep the order of its requests. All of them arrived at about the same time.
        let late: Vec<CallToken> = self
            .getting
            .iter()
            .filter(|(_, list)| list.iter().all(|waiting| waiting.expires_at <= now))
            .map(|(token, _)| *token)
            .collect();
        expired.extend(late.into_iter().filter_map(|token| self.getting.remove(&token)).flatten());
        let late: Vec<CallToken> = self
            .queries
            .iter()
            .filter(|(_, looking)| looking.waiting.expires_at <= now)
            .map(|(token, _)| *token)
            .collect();
        expired.extend(late.into_iter().filter_map(|token| self.queries.remove(&token)).map(|looking| looking.waiting));
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_over_voids_what_requests_had_learned_and_keeps_their_deadlines() {
        let now = Timestamp::from_millis(0);
        let deadline = Timestamp::from_millis(5_000);
        let mut requests = RequestQueues::default();
        let look = |ask| WaitingRequest::new(ask, HoldRequest::Look { id: HoldId::new("a") }, deadline);
        requests.push(look(1), now);
        requests.to_fold.insert(7, vec![look(2)]);
        requests.folded(7);
        assert!(requests.all().any(|waiting| waiting.is_folded));
        requests.start_over();
        assert_eq!(
            requests.arrived.iter().map(|waiting| (waiting.ask, waiting.is_folded)).collect::<Vec<_>>(),
            [(1, false), (2, false)]
        );
        assert!(requests.take_expired(Timestamp::from_millis(4_999)).is_empty());
        assert_eq!(requests.take_expired(Timestamp::from_millis(4_999 + EXPIRE_EVERY_MS)).len(), 2);
    }
}
