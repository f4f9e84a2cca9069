//! Messages that a seat did not acknowledge after all retries, and their expiry. Pure.

use whimbrel_model::Timestamp;
use whimbrel_model::people::Platform;

use super::{InboxSlot, PlatformRules, Seat, UserBox};

/// The result of an expiry run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Slots that left the box; their rows must be removed too.
    pub gone: Vec<InboxSlot>,
    /// Messages that become dead letters.
    pub exhausted: Vec<Exhausted>,
}

/// A message that expired unacknowledged after its last retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exhausted {
    pub seq: u64,
    /// The platforms whose seats did not acknowledge it.
    pub platforms: Vec<Platform>,
}

impl Seat {
    /// Whether the seat has received all retries of this message and has not acknowledged it.
    pub fn is_exhausted(&self, slot: &InboxSlot) -> bool {
        slot.seq <= self.exhausted && self.waits_for(slot)
    }
}

impl UserBox {
    /// The messages that expire now for seats without retries left, each once.
    pub(super) fn expiring_exhausted(&self, rules: &PlatformRules, now: Timestamp) -> Vec<Exhausted> {
        let mut found: Vec<Exhausted> = Vec::new();
        for seat in self.seats.iter().filter(|seat| seat.exhausted > seat.cursor) {
            let settings = rules(&seat.platform);
            let is_over = |slot: &&InboxSlot| seat.is_exhausted(slot) && slot.is_expired_for(&settings, now);
            for slot in self.slots.iter().filter(is_over) {
                match found.iter_mut().find(|other| other.seq == slot.seq) {
                    Some(other) if other.platforms.contains(&seat.platform) => {}
                    Some(other) => other.platforms.push(seat.platform.clone()),
                    None => found.push(Exhausted { seq: slot.seq, platforms: vec![seat.platform.clone()] }),
                }
            }
        }
        found
    }
}
