//! Holds that are due and whose topic or partition takes no message now. They are set aside, so that they take no room in the window from
//! the holds of other topics and partitions. Pure: the time is passed in.
//!
//! Holds up to a bound in bytes stay in memory and are tried again after a pause. Beyond the bound, only the stretch of due order is
//! remembered in which such holds are. The store has them, and they are read from there page by page, round after round. A hold that the store
//! does not have yet stays in memory, where it is among the unsaved anyway.

use std::collections::VecDeque;
use std::sync::Arc;

use whimbrel_model::ports::DueCursor;
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::IdMap;
use super::window::{before, place_of};

#[derive(Debug)]
pub struct Aside {
    holds: IdMap<Arc<Hold>>,
    bytes: usize,
    bytes_max: usize,
    /// When each hold is tried again, in order. An entry with another version than the hold's is void.
    queue: VecDeque<(Timestamp, HoldId, u64)>,
    /// Where the holds are that only the store has, apart from those of `scan`.
    left: Option<Stretch>,
    /// What is still to be read in this round.
    scan: Option<Stretch>,
    scan_at: Timestamp,
    /// Holds of the last page, which are tried now.
    tried: Vec<(HoldId, u64)>,
    /// Whether a hold was set aside since the last page was read.
    is_blocked: bool,
}

/// A part of the due order: behind `after`, up to `upto`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub after: DueCursor,
    pub upto: DueCursor,
}

impl Aside {
    pub fn new(now: Timestamp, bytes_max: usize) -> Self {
        Self {
            holds: IdMap::default(),
            bytes: 0,
            bytes_max,
            queue: VecDeque::new(),
            left: None,
            scan: None,
            scan_at: now,
            tried: Vec::new(),
            is_blocked: false,
        }
    }

    pub fn get(&self, id: &HoldId) -> Option<&Arc<Hold>> {
        self.holds.get(id)
    }

    pub fn count(&self) -> usize {
        self.holds.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Sets a hold aside until then. `is_stored`: the store has it, as it is.
    pub fn put(&mut self, hold: Arc<Hold>, until: Timestamp, is_stored: bool) {
        self.remove(&hold.id);
        self.is_blocked = true;
        if is_stored && self.bytes + hold.size() > self.bytes_max {
            self.leave(&hold);
            self.scan_at = self.scan_at.max(until);
            return;
        }
        self.bytes += hold.size();
        self.queue.push_back((until, hold.id.clone(), hold.version));
        self.holds.insert(hold.id.clone(), hold);
    }

    /// Only the store has the hold from now on.
    fn leave(&mut self, hold: &Hold) {
        let (after, place) = (before(hold.due), place_of(hold));
        self.left = Some(match self.left.take() {
            Some(left) => Stretch { after: left.after.min(after), upto: left.upto.max(place) },
            None => Stretch { after, upto: place },
        });
    }

    pub fn remove(&mut self, id: &HoldId) -> Option<Arc<Hold>> {
        let hold = self.holds.remove(id)?;
        self.bytes -= hold.size();
        Some(hold)
    }

    /// Holds in memory that are tried again now, at most so many.
    pub fn take_due(&mut self, now: Timestamp, most: usize) -> Vec<Arc<Hold>> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some((_, id, version)) = self.queue.pop_front_if(|(until, ..)| *until <= now)
        {
            if self.holds.get(&id).is_some_and(|hold| hold.version == version) {
                due.extend(self.remove(&id));
            }
        }
        due
    }

    /// When a hold in memory is tried again.
    pub fn retry_at(&self) -> Option<Timestamp> {
        self.queue.front().map(|(until, ..)| *until)
    }

    /// When a page may be read.
    pub fn scan_at(&self) -> Option<Timestamp> {
        (self.left.is_some() || self.scan.is_some()).then_some(self.scan_at)
    }

    /// Nothing that is set aside is due earlier.
    pub fn earliest(&self) -> Option<Timestamp> {
        let stretches = [&self.left, &self.scan].into_iter().flatten().map(|stretch| stretch.after.due);
        self.holds.values().map(|hold| hold.due).chain(stretches).min()
    }

    /// The stretch to read a page of now. `is_waiting` says of a hold of the last page whether it is not decided yet: there is no new page
    /// before. Where the holds of the last page could be written, the next page follows at once.
    pub fn next_page(
        &mut self,
        now: Timestamp,
        again_at: Timestamp,
        is_waiting: impl Fn(&HoldId, u64) -> bool,
    ) -> Option<Stretch> {
        if self.scan.is_none() && self.left.is_none() || self.is_blocked && now < self.scan_at {
            return None;
        }
        self.tried.retain(|(id, version)| is_waiting(id, *version));
        if !self.tried.is_empty() {
            self.scan_at = again_at;
            return None;
        }
        if self.scan.is_none() {
            self.scan = self.left.take();
        }
        self.scan.clone()
    }

    /// A page was read: its holds that are tried now, and where the next page begins. `None`: the round is over.
    pub fn page_read(&mut self, tried: Vec<(HoldId, u64)>, next: Option<DueCursor>, again_at: Timestamp) {
        self.tried = tried;
        self.is_blocked = false;
        self.scan_at = again_at;
        self.scan = self.scan.take().zip(next).map(|(scan, after)| Stretch { after, ..scan });
    }

    /// The page could not be read.
    pub fn page_failed(&mut self, again_at: Timestamp) {
        self.is_blocked = true;
        self.scan_at = again_at;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::hold;
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn beyond_its_bound_it_keeps_only_the_stretch_of_holds_that_the_store_has() {
        let one = hold("a", 5).size();
        let mut aside = Aside::new(at(10), 2 * one);
        for (id, due, is_stored) in [("a", 5, true), ("b", 6, true), ("c", 7, true), ("d", 3, true), ("e", 8, false)] {
            aside.put(hold(id, due), at(20), is_stored);
        }
        assert_eq!((aside.count(), aside.bytes()), (3, 3 * one), "the store does not have the last one");
        assert_eq!((aside.earliest(), aside.retry_at(), aside.scan_at()), (Some(at(3)), Some(at(20)), Some(at(20))));
        let stretch = aside.next_page(at(20), at(30), |_, _| false).unwrap();
        assert_eq!(stretch, Stretch { after: before(at(3)), upto: place_of(&hold("c", 7)) });
    }

    #[test]
    fn a_hold_that_changed_meanwhile_is_not_tried_again() {
        let mut aside = Aside::new(at(10), 1 << 20);
        let (one, other) = (hold("a", 5), hold("b", 5));
        aside.put(Arc::clone(&one), at(20), true);
        aside.put(Arc::clone(&other), at(20), true);
        assert!(aside.take_due(at(19), 10).is_empty());
        aside.remove(&one.id);
        assert_eq!(aside.take_due(at(20), 10), [other]);
        assert_eq!((aside.count(), aside.bytes(), aside.retry_at()), (0, 0, None));
    }

    #[test]
    fn a_round_reads_page_after_page_and_the_next_one_what_is_left_again() {
        let mut aside = Aside::new(at(10), 0);
        let holds = [hold("a", 1), hold("b", 2)];
        holds.iter().for_each(|hold| aside.put(Arc::clone(hold), at(20), true));
        assert!(aside.next_page(at(19), at(30), |_, _| false).is_none(), "not before the pause is over");
        assert!(aside.next_page(at(20), at(30), |_, _| false).is_some());
        aside.page_read(vec![(holds[0].id.clone(), 1)], Some(place_of(&holds[0])), at(30));
        assert!(aside.next_page(at(40), at(50), |_, _| true).is_none(), "the first is not decided yet");
        // It was fired: there is no pause before the next page.
        let stretch = aside.next_page(at(40), at(50), |_, _| false).unwrap();
        assert_eq!(stretch.after, place_of(&holds[0]));
        aside.page_read(vec![(holds[1].id.clone(), 1)], None, at(60));
        aside.put(Arc::clone(&holds[1]), at(65), true);
        assert!(aside.next_page(at(60), at(70), |_, _| false).is_none());
        assert_eq!(aside.next_page(at(65), at(70), |_, _| false).unwrap().upto, place_of(&holds[1]));
    }
}
