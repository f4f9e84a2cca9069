//! The deadlines by which sessions must acknowledge, in the order of time. An entry may concern a session that has ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Uid};

use super::LiveSession;

#[derive(Default)]
pub(super) struct AckDeadlines {
    heap: BinaryHeap<Reverse<(Timestamp, Uid, GatewayId, u64)>>,
}

impl AckDeadlines {
    pub fn push(&mut self, at: Timestamp, uid: &Uid, live: &LiveSession) {
        self.heap.push(Reverse((at, uid.clone(), live.gateway, live.session)));
    }

    pub fn next(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The user and session of the first deadline that has passed.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<(Uid, GatewayId, u64)> {
        self.next().filter(|at| *at <= now)?;
        self.heap.pop().map(|Reverse((_, uid, gateway, session))| (uid, gateway, session))
    }

    pub fn clear(&mut self) {
        self.heap.clear();
    }
}
