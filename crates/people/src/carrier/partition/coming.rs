//! Sessions on their way in: whose arrival or announcement waits in the queue of work. What is said of them meanwhile is noted here, so that
//! nobody has to look through the queue for each acknowledgement and each goodbye.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use whimbrel_model::people::GatewayId;

#[derive(Default)]
pub(super) struct Coming {
    sessions: HashMap<(GatewayId, u64), Noted, RandomState>,
}

#[derive(Default)]
struct Noted {
    /// How often it is in the queue.
    queued: u32,
    /// So many of those, the first ones, are void: it left after them.
    void: u32,
    /// What it has acknowledged since it was queued last.
    acked: u64,
}

impl Coming {
    /// Its arrival or announcement was put at the end of the queue.
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

    /// It left: whatever of it is in the queue is void.
    pub(super) fn left(&mut self, gateway: GatewayId, session: u64) {
        if !self.sessions.is_empty()
            && let Some(noted) = self.sessions.get_mut(&(gateway, session))
        {
            *noted = Noted { queued: noted.queued, void: noted.queued, acked: 0 };
        }
    }

    /// The first of what is queued of it has come to its turn: what it has acknowledged since; `None`: it left.
    pub(super) fn came(&mut self, gateway: GatewayId, session: u64) -> Option<u64> {
        let noted = self.sessions.get_mut(&(gateway, session))?;
        let came = (noted.void == 0).then_some(noted.acked);
        noted.queued -= 1;
        noted.void = noted.void.saturating_sub(1);
        if noted.queued == 0 {
            self.sessions.remove(&(gateway, session));
        }
        came
    }

    /// What is queued of these gateways was taken out of the queue.
    pub(super) fn died(&mut self, dead: &[GatewayId]) {
        self.sessions.retain(|(gateway, _), _| !dead.contains(gateway));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 7 };

    #[test]
    fn who_left_does_not_come_and_who_comes_again_after_that_does() {
        let mut coming = Coming::default();
        coming.queued(GATEWAY, 1);
        coming.queued(GATEWAY, 2);
        coming.left(GATEWAY, 1);
        coming.queued(GATEWAY, 1);
        assert_eq!(coming.came(GATEWAY, 1), None);
        assert_eq!(coming.came(GATEWAY, 2), Some(0));
        assert_eq!(coming.came(GATEWAY, 1), Some(0));
        assert!(coming.sessions.is_empty());
    }

    #[test]
    fn what_was_acknowledged_on_the_way_in_is_kept_for_the_turn() {
        let mut coming = Coming::default();
        coming.acknowledged(GATEWAY, 1, 9);
        coming.queued(GATEWAY, 1);
        coming.acknowledged(GATEWAY, 1, 5);
        coming.acknowledged(GATEWAY, 1, 3);
        assert_eq!(coming.came(GATEWAY, 1), Some(5));
        coming.queued(GATEWAY, 1);
        coming.died(&[GATEWAY]);
        assert!(coming.sessions.is_empty());
    }
}
