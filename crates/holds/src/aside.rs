//! Due holds whose topic or partition cannot accept messages now. They are set aside, so that the window has space for the holds of other
//! topics and partitions. Pure: the time is passed in.
//!
//! Up to a bound in bytes, these holds stay in memory and are retried after a pause. Beyond the bound, memory has only the range of the due
//! order that contains such holds. The owner reads them from the store again, page by page; reading the whole range is a round. A hold that
//! is not saved in the store yet always stays in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use whimbrel_model::ports::DueCursor;
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::IdMap;
use super::window::{before, place_of};

#[derive(Debug)]
pub struct AsideHolds {
    holds: IdMap<Arc<Hold>>,
    bytes: usize,
    bytes_max: usize,
    /// When each hold is retried, in order. An entry is void if its version differs from the hold's.
    queue: VecDeque<(Timestamp, HoldId, u64)>,
    /// The range that contains the holds that are only in the store, except for those in `scan`.
    left: Option<DueRange>,
    /// The range that this round has not read yet.
    scan: Option<DueRange>,
    scan_at: Timestamp,
    /// The holds of the last page, which are being retried.
    tried: Vec<(HoldId, u64)>,
    /// Whether a hold was set aside since the last page was read.
    is_blocked: bool,
}

/// A range of the due order: after `after`, up to and including `upto`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRange {
    pub after: DueCursor,
    pub upto: DueCursor,
}

impl AsideHolds {
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

    /// Sets a hold aside until `until`. `is_stored`: the store has this version of the hold.
    pub fn put(&mut self, hold: Arc<Hold>, until: Timestamp, is_stored: bool) {
        self.remove(&hold.id);
        self.is_blocked = true;
        if is_stored && self.bytes + hold.size() > self.bytes_max {
            // New holds do not delay the next page, or a stream of them would delay it forever.
            if self.scan_at().is_none() || self.tried.iter().any(|(id, _)| *id == hold.id) {
                self.scan_at = self.scan_at.max(until);
            }
            self.leave(&hold);
            return;
        }
        self.bytes += hold.size();
        self.queue.push_back((until, hold.id.clone(), hold.version));
        self.holds.insert(hold.id.clone(), hold);
    }

    /// Does not keep the hold in memory, and extends the range to be read from the store.
    fn leave(&mut self, hold: &Hold) {
        let (after, place) = (before(hold.due), place_of(hold));
        self.left = Some(match self.left.take() {
            Some(left) => DueRange { after: left.after.min(after), upto: left.upto.max(place) },
            None => DueRange { after, upto: place },
        });
    }

    pub fn remove(&mut self, id: &HoldId) -> Option<Arc<Hold>> {
        let hold = self.holds.remove(id)?;
        self.bytes -= hold.size();
        Some(hold)
    }

    /// Removes at most `most` holds from memory that are to be retried now.
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

    /// When the next hold in memory is retried.
    pub fn retry_at(&self) -> Option<Timestamp> {
        self.queue.front().map(|(until, ..)| *until)
    }

    /// When the next page may be read.
    pub fn scan_at(&self) -> Option<Timestamp> {
        (self.left.is_some() || self.scan.is_some()).then_some(self.scan_at)
    }

    /// A lower bound of the due times of all holds that are set aside.
    pub fn earliest(&self) -> Option<Timestamp> {
        let stretches = [&self.left, &self.scan].into_iter().flatten().map(|stretch| stretch.after.due);
        self.holds.values().map(|hold| hold.due).chain(stretches).min()
    }

    /// The range of which a page is to be read now. `is_waiting` tells whether a hold of the last page is still undecided; the next page
    /// waits for all of them. If the holds of the last page could be written, the next page follows at once.
    pub fn next_page(
        &mut self,
        now: Timestamp,
        again_at: Timestamp,
        is_waiting: impl Fn(&HoldId, u64) -> bool,
    ) -> Option<DueRange> {
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

    /// Records that a page was read: the holds to retry now, and where the next page begins. `None`: the round is over.
    pub fn page_read(&mut self, tried: Vec<(HoldId, u64)>, next: Option<DueCursor>, again_at: Timestamp) {
        self.tried = tried;
        self.is_blocked = false;
        self.scan_at = again_at;
        self.scan = self.scan.take().zip(next).map(|(scan, after)| DueRange { after, ..scan });
    }

    /// Records that the read of the page failed.
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
    fn beyond_its_bound_memory_keeps_only_the_range_of_holds_that_the_store_has() {
        let one = hold("a", 5).size();
        let mut aside = AsideHolds::new(at(10), 2 * one);
        for (id, due, is_stored) in [("a", 5, true), ("b", 6, true), ("c", 7, true), ("d", 3, true), ("e", 8, false)] {
            aside.put(hold(id, due), at(20), is_stored);
        }
        assert_eq!((aside.count(), aside.bytes()), (3, 3 * one), "the store does not have the last one");
        assert_eq!((aside.earliest(), aside.retry_at(), aside.scan_at()), (Some(at(3)), Some(at(20)), Some(at(20))));
        let stretch = aside.next_page(at(20), at(30), |_, _| false).unwrap();
        assert_eq!(stretch, DueRange { after: before(at(3)), upto: place_of(&hold("c", 7)) });
    }

    #[test]
    fn a_hold_that_changed_while_set_aside_is_not_retried() {
        let mut aside = AsideHolds::new(at(10), 1 << 20);
        let (one, other) = (hold("a", 5), hold("b", 5));
        aside.put(Arc::clone(&one), at(20), true);
        aside.put(Arc::clone(&other), at(20), true);
        assert!(aside.take_due(at(19), 10).is_empty());
        aside.remove(&one.id);
        assert_eq!(aside.take_due(at(20), 10), [other]);
        assert_eq!((aside.count(), aside.bytes(), aside.retry_at()), (0, 0, None));
    }

    #[test]
    fn a_round_reads_page_by_page_and_the_next_round_reads_the_holds_set_aside_since() {
        let mut aside = AsideHolds::new(at(10), 0);
        let holds = [hold("a", 1), hold("b", 2)];
        holds.iter().for_each(|hold| aside.put(Arc::clone(hold), at(20), true));
        assert!(aside.next_page(at(19), at(30), |_, _| false).is_none(), "not before the pause is over");
        assert!(aside.next_page(at(20), at(30), |_, _| false).is_some());
        aside.page_read(vec![(holds[0].id.clone(), 1)], Some(place_of(&holds[0])), at(30));
        assert!(aside.next_page(at(40), at(50), |_, _| true).is_none(), "the first hold is still undecided");
        // The first hold was fired: there is no pause before the next page.
        let stretch = aside.next_page(at(40), at(50), |_, _| false).unwrap();
        assert_eq!(stretch.after, place_of(&holds[0]));
        aside.page_read(vec![(holds[1].id.clone(), 1)], None, at(60));
        aside.put(Arc::clone(&holds[1]), at(65), true);
        assert!(aside.next_page(at(60), at(70), |_, _| false).is_none());
        assert_eq!(aside.next_page(at(65), at(70), |_, _| false).unwrap().upto, place_of(&holds[1]));
    }

    #[test]
    fn new_holds_do_not_delay_the_next_page() {
        let mut aside = AsideHolds::new(at(10), 0);
        aside.put(hold("a", 1), at(20), true);
        for ms in 11..20 {
            aside.put(hold("b", 2 + ms), at(ms + 10), true);
        }
        assert_eq!(aside.scan_at(), Some(at(20)));
        assert!(aside.next_page(at(20), at(30), |_, _| false).is_some());
    }
}
