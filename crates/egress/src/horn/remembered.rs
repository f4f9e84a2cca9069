//! Which devices have got which notices, as far back as the bound lets: an attempt that is repeated leaves them out.
//!
//! It is lost with the process. Then a device may be woken again, and the names that providers are given for a notice let the second
//! take the first one's place on its screen.

use std::collections::{HashSet, VecDeque};

use super::letter::DeliveryName;
use super::limits::REMEMBERED_MAX;

#[derive(Default)]
pub(super) struct Remembered {
    names: HashSet<DeliveryName>,
    /// The oldest first.
    order: VecDeque<DeliveryName>,
}

impl Remembered {
    pub(super) fn has(&self, name: &DeliveryName) -> bool {
        self.names.contains(name)
    }

    pub(super) fn put(&mut self, name: DeliveryName) {
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
    fn the_oldest_are_forgotten_beyond_the_bound() {
        let name = |number: usize| DeliveryName::of("u1", "m1", &number.to_string());
        let mut remembered = Remembered::default();
        for number in 0..=REMEMBERED_MAX {
            remembered.put(name(number));
            remembered.put(name(number));
        }
        assert!(!remembered.has(&name(0)));
        assert!(remembered.has(&name(1)) && remembered.has(&name(REMEMBERED_MAX)));
        assert_eq!((remembered.names.len(), remembered.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    }
}
