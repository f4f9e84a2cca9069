//! Sessions whose arrival or announcement is queued, with their acknowledgements and departures since. Without this table, each
//! acknowledgement and each departure would search the queue.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use whimbrel_model::people::GatewayId;

#[derive(Default)]
pub(super) struct PendingArrivals {
    sessions: HashMap<(GatewayId, u64), PendingSession, RandomState>,
}

#[derive(Default)]
struct PendingSession {
    /// Number of its entries in the queue.
    queued: u32,
    /// Number of its first entries that are void: the session left after them.
    void: u32,
    /// The highest number that it acknowledged since its last entry was queued.
    acked: u64,
}

impl PendingArrivals {
    /// Its arrival or announcement was appended to the queue.
    pub(super) fn queued(&mut self, gateway: GatewayId, session: u64) {
        self.sessions.entry((gateway, session)).or_default().queued += 1;
    }

    pub(super) fn acknowledged(&mut self, gateway: GatewayId, session: u64, upto: u64) {
        if !self.sessions.is_empty()
            && let Some(noted) = self.sessions.get_mut(&(gateway, session))
        {
            noted.acked = noted.acked.max(upto);
        }
    }

    /// The session left: all of its queued entries are void.
    pub(super) fn left(&mut self, gateway: GatewayId, session: u64) {
        if !self.sessions.is_empty()
            && let Some(noted) = self.sessions.get_mut(&(gateway, session))
        {
            *noted = PendingSession { queued: noted.queued, void: noted.queued, acked: 0 };
        }
    }

    /// Its first entry left the queue. Returns what the session has acknowledged since, or `None` if it left.
    pub(super) fn dequeued(&mut self, gateway: GatewayId, session: u64) -> Option<u64> {
        let noted = self.sessions.get_mut(&(gateway, session))?;
        let dequeued = (noted.void == 0).then_some(noted.acked);
        noted.queued -= 1;
        noted.void = noted.void.saturating_sub(1);
        if noted.queued == 0 {
            self.sessions.remove(&(gateway, session));
        }
        dequeued
    }

    /// The queued entries of these gateways were removed.
    pub(super) fn died(&mut self, dead: &[GatewayId]) {
        self.sessions.retain(|(gateway, _), _| !dead.contains(gateway));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 7 };

    #[test]
    fn a_departure_voids_earlier_entries_and_no_later_ones() {
        let mut pending_arrivals = PendingArrivals::default();
        pending_arrivals.queued(GATEWAY, 1);
        pending_arrivals.queued(GATEWAY, 2);
        pending_arrivals.left(GATEWAY, 1);
        pending_arrivals.queued(GATEWAY, 1);
        assert_eq!(pending_arrivals.dequeued(GATEWAY, 1), None);
        assert_eq!(pending_arrivals.dequeued(GATEWAY, 2), Some(0));
        assert_eq!(pending_arrivals.dequeued(GATEWAY, 1), Some(0));
        assert!(pending_arrivals.sessions.is_empty());
    }

    #[test]
    fn acknowledgements_of_a_queued_session_are_kept_until_its_turn() {
        let mut pending_arrivals = PendingArrivals::default();
        pending_arrivals.acknowledged(GATEWAY, 1, 9);
        pending_arrivals.queued(GATEWAY, 1);
        pending_arrivals.acknowledged(GATEWAY, 1, 5);
        pending_arrivals.acknowledged(GATEWAY, 1, 3);
        assert_eq!(pending_arrivals.dequeued(GATEWAY, 1), Some(5));
        pending_arrivals.queued(GATEWAY, 1);
        pending_arrivals.died(&[GATEWAY]);
        assert!(pending_arrivals.sessions.is_empty());
    }
}
