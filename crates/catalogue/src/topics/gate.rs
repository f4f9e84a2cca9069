//! The gates that publishes pass, so that a growing or deleted topic knows when nothing uses it in the old way any more.
//!
//! A topic has two gates. Publishes that place messages by their keys enter the gate of the mapping; all others enter the gate of the
//! topic itself. A publish enters before it computes a partition and leaves when its append has ended. A growth closes the gate of
//! the mapping and waits until it is drained; a deletion closes both. A gate whose mapping or topic has a successor is retired: it
//! stays closed for good, so that a publish that had looked up the topic before cannot use it.
//!
//! An append whose caller went away is carried on in the background and stays inside (see `receive::undisturbed`): leaving means
//! that the log has answered. What the log answered with "unknown" is the engine's to end before it says so.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use whimbrel_model::ports::{AppendOutcome, LogError};

use super::Topic;
use super::mapping_lease::Lease;

/// How a publish places its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// At least one message goes to the partition that its key maps to.
    ByKey,
    /// No message depends on the mapping of keys: it has no key, or it is held and placed when it fires.
    Free,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    inside: AtomicUsize,
    /// Growths and deletions that keep it closed.
    closers: AtomicUsize,
    retired: AtomicBool,
    drained: Notify,
    settled: Notify,
}

/// The right to append to a topic, and by its mapping of keys where it was asked for, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    topic: Arc<Topic>,
    placement: Placement,
    lease: Lease,
}

impl Pass {
    /// Enters, unless the gate is closed. The lease must have been taken before: the registry retires old mappings before it gives a
    /// lease under a new session.
    ///
    /// Entering counts first and looks afterwards, closing closes first and counts afterwards: in whatever order the two happen,
    /// one sees the other. That needs sequential consistency.
    pub(super) fn enter(topic: Arc<Topic>, placement: Placement, lease: Lease) -> Result<Self, Arc<Topic>> {
        topic.gate(placement).inside.fetch_add(1, Ordering::SeqCst);
        let pass = Self { topic, placement, lease };
        if pass.topic.gate(placement).is_closed() {
            let topic = Arc::clone(&pass.topic);
            return Err(topic);
        }
        Ok(pass)
    }

    /// What may be acknowledged of an append. When the session under which the mapping was used has ended meanwhile, a growth may
    /// have read its barriers before this append: its messages may lie behind them, and nothing of it is acknowledged.
    pub fn acknowledged(&self, outcome: AppendOutcome) -> AppendOutcome {
        if self.lease.stands() {
            return outcome;
        }
        let unknown = || {
            let why = "the node lost its session with the coordination while it appended: the message may lie in the \
                       partition of an earlier mapping; publish it again";
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

/// Keeps a gate closed. When the last one is dropped the gate opens again, unless it was retired.
#[derive(Debug)]
pub(crate) struct Closed {
    gate: Arc<Gate>,
}

impl Gate {
    fn is_closed(&self) -> bool {
        self.closers.load(Ordering::SeqCst) > 0 || self.is_retired()
    }

    /// Whether the mapping was replaced, or the topic is gone.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// Closes the gate at once; publishes that are inside stay inside.
    pub(crate) fn close(self: &Arc<Self>) -> Closed {
        self.closers.fetch_add(1, Ordering::SeqCst);
        Closed { gate: Arc::clone(self) }
    }

    /// The mapping has a successor, or the topic is gone: the gate stays closed for good, and publishes that wait at it look up the
    /// topic again.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.settled.notify_waiters();
    }

    /// Waits until a closed gate has opened or was retired, at most so long.
    pub(crate) async fn settled(&self, within: Duration) -> Result<(), StillInside> {
        let settled = self.settled.notified();
        tokio::pin!(settled);
        settled.as_mut().enable();
        if !self.is_closed() || self.is_retired() {
            return Ok(());
        }
        tokio::time::timeout(within, settled).await.map_err(|_| StillInside)
    }
}

impl Closed {
    /// Whether every publish that was inside has left.
    pub(crate) fn is_drained(&self) -> bool {
        self.gate.inside.load(Ordering::SeqCst) == 0
    }

    /// Waits until every publish that was inside has left, at most so long.
    pub(crate) async fn drained(&self, within: Duration) -> Result<(), StillInside> {
        let deadline = Instant::now() + within;
        loop {
            let left = self.gate.drained.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.is_drained() {
                return Ok(());
            }
            timeout_at(deadline, left).await.map_err(|_| StillInside)?;
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if self.gate.closers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gate.settled.notify_waiters();
        }
    }
}

/// The time was over before the gate was where it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StillInside;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn enter(topic: &Arc<Topic>) -> Result<Pass, Arc<Topic>> {
        Pass::enter(Arc::clone(topic), Placement::ByKey, Lease::Alone)
    }

    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_publishes_inside_and_keeps_others_out() {
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
    async fn a_failed_growth_lets_waiting_publishes_go_on() {
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
    fn a_gate_that_two_keep_closed_opens_with_the_second() {
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
        assert!(Pass::enter(Arc::clone(&topic), Placement::Free, Lease::Alone).is_ok());
    }
}
