//! The devices that received a notice, up to a bound. A repeated attempt skips them.
//!
//! The memory is lost with the process. A device may then be notified again, but both notifications have the same collapse name, so the
//! second replaces the first on the screen.

use std::collections::{HashSet, VecDeque};

use super::device_notice::DeliveryId;
use super::limits::REMEMBERED_MAX;

#[derive(Default)]
pub(super) struct SentNotices {
    names: HashSet<DeliveryId>,
    /// The ids from oldest to newest.
    order: VecDeque<DeliveryId>,
}

impl SentNotices {
    pub(super) fn has(&self, name: &DeliveryId) -> bool {
        self.names.contains(name)
    }

    pub(super) fn put(&mut self, name: DeliveryId) {
        if !self.names.insert(name) {
            return;
        }
        self.order.push_back(name);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ids_are_dropped_beyond_the_bound() {
        let name = |number: usize| DeliveryId::of("u1", "m1", &number.to_string());
        let mut remembered = SentNotices::default();
        for number in 0..=REMEMBERED_MAX {
            remembered.put(name(number));
            remembered.put(name(number));
        }
        assert!(!remembered.has(&name(0)));
        assert!(remembered.has(&name(1)) && remembered.has(&name(REMEMBERED_MAX)));
        assert_eq!((remembered.names.len(), remembered.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    }
}
