//! The gate that every publish passes, so that a growing topic knows when the old mapping is no longer in use.
//!
//! A gate belongs to one mapping of keys to partitions. A publish enters it before it computes a partition and leaves it when its
//! append has ended. Growing closes the gate, waits until nobody is inside, takes the old partitions' ends as barriers, writes the
//! catalogue, and swaps in the topic with a new gate; the old gate stays closed for good, so that a publish that had looked up the
//! topic before cannot use the old mapping after. Where growing fails, the old gate opens again.
//! Deleting closes it in the same way, so that nothing under way lands in a topic that is made anew under the name.
//!
//! An append whose caller went away is carried on in the background and stays inside (see `receive::undisturbed`): leaving means
//! that the log has answered. What the log answered with "unknown" is the engine's to end before it says so.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Topic;

#[derive(Debug, Default)]
pub(crate) struct Gate {
    inside: AtomicUsize,
    closed: AtomicBool,
    /// Closed for good: whoever comes to wait only now must not wait for a notification that is over.
    replaced: AtomicBool,
    drained: Notify,
    settled: Notify,
}

/// The right to append by this topic's mapping, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    topic: Arc<Topic>,
}

impl Pass {
    /// Enters, unless the gate is closed.
    ///
    /// Entering counts first and looks afterwards, closing closes first and counts afterwards: in whatever order the two happen,
    /// one sees the other. That needs sequential consistency.
    pub(crate) fn enter(topic: Arc<Topic>) -> Result<Self, Arc<Topic>> {
        topic.gate.inside.fetch_add(1, Ordering::SeqCst);
        let pass = Self { topic };
        if pass.topic.gate.closed.load(Ordering::SeqCst) {
            let topic = Arc::clone(&pass.topic);
            return Err(topic);
        }
        Ok(pass)
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
        let gate = &self.topic.gate;
        if gate.inside.fetch_sub(1, Ordering::SeqCst) == 1 && gate.closed.load(Ordering::SeqCst) {
            gate.drained.notify_one();
        }
    }
}

/// A closed gate. Dropping it opens the gate again, unless the mapping was replaced.
pub(crate) struct Closed {
    gate: Arc<Gate>,
}

impl Gate {
    /// Closes the gate and waits until nobody is inside, at most so long.
    pub(crate) async fn close(self: &Arc<Self>, within: Duration) -> Result<Closed, StillInside> {
        let deadline = Instant::now() + within;
        self.closed.store(true, Ordering::SeqCst);
        let closed = Closed { gate: Arc::clone(self) };
        while self.inside.load(Ordering::SeqCst) > 0 {
            timeout_at(deadline, self.drained.notified()).await.map_err(|_| StillInside)?;
        }
        Ok(closed)
    }

    /// Waits until a closed gate has opened or its topic was replaced, at most so long.
    pub(crate) async fn settled(&self, within: Duration) -> Result<(), StillInside> {
        let settled = self.settled.notified();
        tokio::pin!(settled);
        settled.as_mut().enable();
        if !self.closed.load(Ordering::SeqCst) || self.replaced.load(Ordering::SeqCst) {
            return Ok(());
        }
        tokio::time::timeout(within, settled).await.map_err(|_| StillInside)
    }
}

impl Closed {
    /// The mapping has a successor, or the topic is gone: the gate stays closed for good, and who waits at it looks up the topic
    /// anew.
    pub(crate) fn replaced(self) {
        self.gate.replaced.store(true, Ordering::SeqCst);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if !self.gate.replaced.load(Ordering::SeqCst) {
            self.gate.closed.store(false, Ordering::SeqCst);
        }
        self.gate.settled.notify_waiters();
    }
}

/// The time was over before the gate was where it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StillInside;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_who_is_inside_and_keeps_others_out() {
        let topic = Topic::for_tests("orders", 1);
        let inside = Pass::enter(Arc::clone(&topic)).unwrap();
        assert!(topic.gate.close(Duration::from_secs(1)).await.is_err(), "somebody was inside");
        let again = Pass::enter(Arc::clone(&topic)).expect("a failed close opens the gate again");
        drop(inside);
        drop(again);
        let closed = topic.gate.close(Duration::from_secs(1)).await.unwrap();
        assert!(Pass::enter(Arc::clone(&topic)).is_err());
        closed.replaced();
        assert!(Pass::enter(topic).is_err(), "an old mapping is never used again");
    }

    #[tokio::test]
    async fn who_comes_to_wait_after_the_replacement_does_not_wait() {
        let topic = Topic::for_tests("orders", 1);
        let closed = topic.gate.close(Duration::from_secs(1)).await.unwrap();
        assert!(Pass::enter(Arc::clone(&topic)).is_err());
        closed.replaced();
        let settled = topic.gate.settled(Duration::from_secs(5));
        tokio::pin!(settled);
        assert_eq!(futures_util::poll!(settled), std::task::Poll::Ready(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_growth_lets_those_who_waited_go_on() {
        let topic = Topic::for_tests("orders", 1);
        let closed = topic.gate.close(Duration::from_secs(1)).await.unwrap();
        {
            let waiting = topic.gate.settled(Duration::from_secs(1));
            tokio::pin!(waiting);
            assert!(futures_util::poll!(waiting.as_mut()).is_pending());
            drop(closed);
            assert_eq!(waiting.await, Ok(()));
        }
        assert!(Pass::enter(topic).is_ok());
    }
}
