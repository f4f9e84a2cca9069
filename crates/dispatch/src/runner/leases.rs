//! Hands messages out to pulling consumers: leases, acknowledgements and expiry.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{DispatchError, DispatchReply, LeasedMessage};
use whimbrel_model::subscription::{Mode, RetryPolicy};

use super::{RequestId, SubscriptionRunner};
use crate::call_verdict::DeliveryFailure;
use crate::line_set::{DeliveryRef, OutgoingMessage};
use crate::runner_clock::later;

const PULLS_WAITING_MAX: usize = 1000;
pub(super) const PULL_MESSAGES_MAX: usize = 1000;
const PULL_WAIT_MAX: Duration = Duration::from_secs(60);
const LEASE_MAX: Duration = Duration::from_secs(12 * 3600);

/// The leased messages, and the waiting pulls.
pub(super) struct Leases {
    /// Distinguishes the ack ids of this runner from those of other epochs and other runners.
    prefix: String,
    out: HashMap<String, PullLease>,
    ends: BTreeSet<(Timestamp, String)>,
    pulls: VecDeque<WaitingPull>,
}

struct PullLease {
    until: Timestamp,
    outgoing: OutgoingMessage,
}

struct WaitingPull {
    max: usize,
    until: Timestamp,
    request: RequestId,
}

impl Leases {
    pub fn new(epoch: u64, began_at: Timestamp) -> Self {
        let prefix = format!("{epoch:x}-{:x}", began_at.as_millis());
        Self { prefix, out: HashMap::new(), ends: BTreeSet::new(), pulls: VecDeque::new() }
    }

    pub fn next_time(&self) -> Option<Timestamp> {
        let pulls = self.pulls.iter().map(|pull| pull.until);
        self.ends.first().map(|(until, _)| *until).into_iter().chain(pulls).min()
    }

    /// Moves the times after the clock was set back by `by`.
    pub fn set_back(&mut self, by: Duration) {
        self.out.values_mut().for_each(|lease| lease.until = lease.until.saturating_sub(by));
        self.ends = self.out.iter().map(|(id, lease)| (lease.until, id.clone())).collect();
        self.pulls.iter_mut().for_each(|pull| pull.until = pull.until.saturating_sub(by));
    }

    /// Drops the leases of lines that no longer exist.
    pub fn forget_lines(&mut self, mut is_there: impl FnMut(u32, u64) -> bool) {
        self.out.retain(|_, lease| is_there(lease.outgoing.out.line, lease.outgoing.out.incarnation));
        self.ends.retain(|(_, id)| self.out.contains_key(id));
    }

    /// Takes the waiting pulls.
    pub fn take_pulls(&mut self) -> Vec<RequestId> {
        self.pulls.drain(..).map(|pull| pull.request).collect()
    }

    /// Drops a waiting pull whose consumer has left.
    pub fn abandon(&mut self, request: RequestId) {
        self.pulls.retain(|pull| pull.request != request);
    }

    /// Takes all leased messages: they can no longer be acknowledged.
    pub fn take_all(&mut self) -> Vec<DeliveryRef> {
        self.ends.clear();
        self.out.drain().map(|(_, lease)| lease.outgoing.out).collect()
    }

    fn take(&mut self, ack_id: &str) -> Option<OutgoingMessage> {
        let lease = self.out.remove(ack_id)?;
        self.ends.remove(&(lease.until, ack_id.to_owned()));
        Some(lease.outgoing)
    }
}

pub(super) fn wrong_mode() -> DispatchError {
    DispatchError::WrongMode("the subscription has the mode `push`; a pull requires `mode` = \"pull\"".to_owned())
}

impl SubscriptionRunner {
    pub(super) fn pull(&mut self, max: usize, wait_ms: u64, request: RequestId) {
        if self.subscription.stored.spec.mode != Mode::Pull {
            return self.reply(request, Err(wrong_mode()));
        }
        if self.leases.pulls.len() >= PULLS_WAITING_MAX {
            let why = format!("{PULLS_WAITING_MAX} pulls wait already");
            return self.reply(request, Err(DispatchError::Unavailable(why)));
        }
        let now = self.now();
        let until = later(now, Duration::from_millis(wait_ms).min(PULL_WAIT_MAX));
        self.leases.pulls.push_back(WaitingPull { max: max.clamp(1, PULL_MESSAGES_MAX), until, request });
        self.serve_pulls(now);
        self.end_pulls(now);
    }

    /// Hands out ready messages to the waiting pulls, the oldest pull first.
    pub(super) fn serve_pulls(&mut self, now: Timestamp) {
        if !self.subscription.stored.is_active() {
            return;
        }
        while let Some(pull) = self.leases.pulls.pop_front() {
            let mut pulled = Vec::new();
            while pulled.len() < pull.max && self.health.rate_allows(now) {
                let Some(outgoing) = self.next_outgoing(now) else { break };
                pulled.push(self.lease(outgoing, now));
            }
            if pulled.is_empty() {
                self.leases.pulls.push_front(pull);
                return;
            }
            // If the consumer has left, the leases expire and the messages are handed out again.
            self.reply(pull.request, Ok(DispatchReply::Pulled(pulled)));
        }
    }

    fn lease(&mut self, outgoing: OutgoingMessage, now: Timestamp) -> LeasedMessage {
        let until = later(now, Duration::from_millis(self.subscription.stored.spec.lease_ms));
        let DeliveryRef { line, incarnation, ticket } = outgoing.out;
        // Tickets restart with each runner. The id must not match a message of an earlier runner.
        let ack_id = format!("{}-{line:x}-{incarnation:x}-{:x}", self.leases.prefix, ticket.0);
        let message = &outgoing.message;
        let pulled = LeasedMessage {
            ack_id: ack_id.clone(),
            lease_until: until,
            attempt: outgoing.attempt,
            topic: message.topic.to_string(),
            partition: message.place.index,
            offset: message.offset,
            id: message.id.to_string(),
            published_at: message.published_at,
            record: message.record.clone(),
        };
        self.leases.ends.insert((until, ack_id.clone()));
        self.leases.out.insert(ack_id, PullLease { until, outgoing });
        pulled
    }

    /// Treats expired leases as failures, and answers pulls whose wait is over.
    pub(super) fn expire_leases(&mut self, now: Timestamp) {
        while let Some((until, _)) = self.leases.ends.first()
            && *until <= now
        {
            let (until, ack_id) = self.leases.ends.pop_first().expect("there is a first one");
            let Some(lease) = self.leases.out.remove(&ack_id) else { continue };
            let held = Duration::from_millis((until.as_millis() - lease.outgoing.started.as_millis()).max(0) as u64);
            self.given_back(lease.outgoing, "the lease expired without an acknowledgement", Some(0), held, now);
        }
        self.end_pulls(now);
    }

    fn end_pulls(&mut self, now: Timestamp) {
        let pulls = std::mem::take(&mut self.leases.pulls);
        let (ended, waiting): (VecDeque<_>, VecDeque<_>) = pulls.into_iter().partition(|pull| pull.until <= now);
        self.leases.pulls = waiting;
        ended.into_iter().for_each(|pull| self.reply(pull.request, Ok(DispatchReply::Pulled(Vec::new()))));
    }

    pub(super) fn ack(&mut self, ack_ids: Vec<String>) -> DispatchReply {
        let now = self.now();
        self.each_lease(ack_ids, |runner, outgoing| {
            let took = Duration::from_millis((now.as_millis() - outgoing.started.as_millis()).max(0) as u64);
            runner.succeeded(outgoing, 200, took, now);
        })
    }

    pub(super) fn nack(&mut self, ack_ids: Vec<String>, delay_ms: Option<u64>) -> DispatchReply {
        let now = self.now();
        self.each_lease(ack_ids, |runner, outgoing| {
            let took = Duration::from_millis((now.as_millis() - outgoing.started.as_millis()).max(0) as u64);
            runner.given_back(outgoing, "nack by the consumer", delay_ms, took, now);
        })
    }

    pub(super) fn extend(&mut self, ack_ids: Vec<String>, lease_ms: u64) -> DispatchReply {
        let until = later(self.now(), Duration::from_millis(lease_ms).min(LEASE_MAX));
        let mut unknown = Vec::new();
        let asked = ack_ids.len();
        for ack_id in ack_ids {
            match self.leases.out.get_mut(&ack_id) {
                Some(lease) => {
                    self.leases.ends.remove(&(lease.until, ack_id.clone()));
                    lease.until = until;
                    self.leases.ends.insert((until, ack_id));
                }
                None => unknown.push(ack_id),
            }
        }
        DispatchReply::Settled { known: asked - unknown.len(), unknown }
    }

    fn each_lease(&mut self, ack_ids: Vec<String>, mut each: impl FnMut(&mut Self, OutgoingMessage)) -> DispatchReply {
        let mut unknown = Vec::new();
        let asked = ack_ids.len();
        for ack_id in ack_ids {
            match self.leases.take(&ack_id) {
                Some(outgoing) => each(self, outgoing),
                None => unknown.push(ack_id),
            }
        }
        DispatchReply::Settled { known: asked - unknown.len(), unknown }
    }

    /// Handles a message that a consumer returned or let expire. `delay_ms` precedes the schedule; the attempt counts.
    fn given_back(
        &mut self,
        mut outgoing: OutgoingMessage,
        reason: &str,
        delay_ms: Option<u64>,
        took: Duration,
        now: Timestamp,
    ) {
        if let Some(delay_ms) = delay_ms {
            let times = self.subscription.stored.spec.retry.times;
            let mut rule = outgoing.message.rule.as_deref().cloned().unwrap_or_default();
            let times = rule.retry.map_or(times, |retry| retry.times);
            rule.retry = Some(RetryPolicy { times, schedule_ms: vec![delay_ms] });
            outgoing.message.rule = Some(rule.into());
        }
        let failure = DeliveryFailure {
            status: None,
            reason: reason.to_owned(),
            answer: Bytes::new(),
            retry_after: None,
            strain: false,
            // There is no endpoint whose health could suffer.
            endpoint: false,
            throttled: false,
            is_final: false,
        };
        self.failed(outgoing, failure, took, now);
    }
}
