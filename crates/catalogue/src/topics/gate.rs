//! The gates for publishes to a topic. They let a growth or deletion wait until the old mapping, or the topic, is not used any more.
//!
//! A topic has two gates. Publishes that place messages by key enter the mapping gate; all others enter the topic gate. A publish enters
//! before it computes a partition, and leaves when its append has ended. A growth closes the mapping gate and waits until it is drained;
//! a deletion closes both. A gate whose mapping or topic was replaced is retired: it stays closed, so that a publish that looked up the
//! topic earlier cannot use it.
//!
//! If the caller of an append disconnects, the append continues in the background and stays inside (see `ingress::accept::cancel_safe`): leaving
//! means that the log has answered. Before an engine answers "unknown", it must ensure that the append has ended.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use whimbrel_model::ports::{AppendOutcome, LogError};

use super::Topic;
use super::mapping_lease::PublishLease;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// At least one message goes to the partition of its key.
    ByKey,
    /// No message depends on the mapping of keys: it has no key, or it is held and placed when it fires.
    Free,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    inside: AtomicUsize,
    /// The number of growths and deletions that keep the gate closed.
    closers: AtomicUsize,
    retired: AtomicBool,
    drained: Notify,
    settled: Notify,
}

/// The right to append to a topic until it is dropped; with [`Placement::ByKey`], by its mapping of keys.
#[derive(Debug)]
pub struct Pass {
    topic: Arc<Topic>,
    placement: Placement,
    lease: PublishLease,
}

impl Pass {
    /// Enters, unless the gate is closed. The caller must have taken the lease before: the registry retires old mappings before it grants
    /// a lease under a new session.
    ///
    /// Entering first counts and then checks whether the gate is closed. Closing first closes and then reads the count. In any order of
    /// the two, one sees the other. That requires sequential consistency.
    pub(super) fn enter(topic: Arc<Topic>, placement: Placement, lease: PublishLease) -> Result<Self, Arc<Topic>> {
        topic.gate(placement).inside.fetch_add(1, Ordering::SeqCst);
        let pass = Self { topic, placement, lease };
        if pass.topic.gate(placement).is_closed() {
            let topic = Arc::clone(&pass.topic);
            return Err(topic);
        }
        Ok(pass)
    }

    /// The outcome that may be acknowledged. If the session of the mapping has ended, a growth may have read its barriers before this
    /// append. Its messages may then be behind the barriers, so none is acknowledged.
    pub fn acknowledged(&self, outcome: AppendOutcome) -> AppendOutcome {
        if self.lease.is_valid() {
            return outcome;
        }
        let unknown = || {
            let why = "the node lost its session with the coordination service during the append: the message may be in \
                       the partition of an earlier mapping; publish it again";
            LogError::Unknown(why.to_owned())
        };
        outcome.into_iter().map(|each| each.and_then(|_| Err(unknown()))).collect()
    }
}

impl Deref for Pass {
    type Target = Topic;

    fn deref(&self) -> &Topic {
        &self.topic
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let gate = self.topic.gate(self.placement);
        if gate.inside.fetch_sub(1, Ordering::SeqCst) == 1 && gate.is_closed() {
            gate.drained.notify_waiters();
        }
    }
}

/// Keeps a gate closed. The gate opens when the last one is dropped, unless it was retired.
#[derive(Debug)]
pub(crate) struct ClosedGate {
    gate: Arc<Gate>,
}

impl Gate {
    fn is_closed(&self) -> bool {
        self.closers.load(Ordering::SeqCst) > 0 || self.is_retired()
    }

    /// Whether the mapping was replaced, or the topic was deleted.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// Closes the gate at once. Publishes inside stay inside.
    pub(crate) fn close(self: &Arc<Self>) -> ClosedGate {
        self.closers.fetch_add(1, Ordering::SeqCst);
        ClosedGate { gate: Arc::clone(self) }
    }

    /// Closes the gate permanently, because the mapping was replaced or the topic was deleted. Waiting publishes look up the topic again.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.settled.notify_waiters();
    }

    /// Waits until a closed gate opens or is retired, for at most `within`.
    pub(crate) async fn settled(&self, within: Duration) -> Result<(), GateTimeout> {
        let settled = self.settled.notified();
        tokio::pin!(settled);
        settled.as_mut().enable();
        if !self.is_closed() || self.is_retired() {
            return Ok(());
        }
        tokio::time::timeout(within, settled).await.map_err(|_| GateTimeout)
    }
}

impl ClosedGate {
    pub(crate) fn is_drained(&self) -> bool {
        self.gate.inside.load(Ordering::SeqCst) == 0
    }

    /// Waits until all publishes have left, for at most `within`.
    pub(crate) async fn drained(&self, within: Duration) -> Result<(), GateTimeout> {
        let deadline = Instant::now() + within;
        loop {
            let left = self.gate.drained.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.is_drained() {
                return Ok(());
            }
            timeout_at(deadline, left).await.map_err(|_| GateTimeout)?;
        }
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        if self.gate.closers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gate.settled.notify_waiters();
        }
    }
}

/// The timeout passed before the gate was drained, or open again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateTimeout;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn enter(topic: &Arc<Topic>) -> Result<Pass, Arc<Topic>> {
        Pass::enter(Arc::clone(topic), Placement::ByKey, PublishLease::Alone)
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_drains_and_rejects_new_publishes() {
        let topic = Topic::for_tests("orders", 1);
        let inside = enter(&topic).unwrap();
        let closed = topic.mapping_gate.close();
        assert!(closed.drained(SECOND).await.is_err(), "a publish is inside");
        drop(closed);
        let again = enter(&topic).expect("the gate opened again");
        drop((inside, again));
        let closed = topic.mapping_gate.close();
        closed.drained(SECOND).await.unwrap();
        assert!(enter(&topic).is_err());
        topic.mapping_gate.retire();
        drop(closed);
        assert!(enter(&topic).is_err(), "an old mapping is never used again");
    }

    #[tokio::test]
    async fn a_publish_that_begins_to_wait_after_the_replacement_does_not_wait() {
        let topic = Topic::for_tests("orders", 1);
        let _closed = topic.mapping_gate.close();
        assert!(enter(&topic).is_err());
        topic.mapping_gate.retire();
        let settled = topic.mapping_gate.settled(5 * SECOND);
        tokio::pin!(settled);
        assert_eq!(futures_util::poll!(settled), std::task::Poll::Ready(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_growth_resumes_waiting_publishes() {
        let topic = Topic::for_tests("orders", 1);
        let closed = topic.mapping_gate.close();
        {
            let waiting = topic.mapping_gate.settled(SECOND);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(waiting.as_mut()).is_pending());
            drop(closed);
            assert_eq!(waiting.await, Ok(()));
        }
        assert!(enter(&topic).is_ok());
    }

    #[test]
    fn a_gate_with_two_closers_opens_after_the_second() {
        let topic = Topic::for_tests("orders", 1);
        let (growth, deletion) = (topic.mapping_gate.close(), topic.mapping_gate.close());
        drop(deletion);
        assert!(enter(&topic).is_err());
        drop(growth);
        assert!(enter(&topic).is_ok());
    }

    #[test]
    fn publishes_without_a_key_pass_while_the_mapping_changes() {
        let topic = Topic::for_tests("orders", 1);
        let _closed = topic.mapping_gate.close();
        assert!(enter(&topic).is_err());
        assert!(Pass::enter(Arc::clone(&topic), Placement::Free, PublishLease::Alone).is_ok());
    }
}
