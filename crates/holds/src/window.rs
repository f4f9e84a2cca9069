//! The holds that come due soon, with their messages, in memory and on the timing wheel.
//!
//! All pending holds at or before the **horizon** are here, except those set aside; later holds are in the store, or unsaved. The window
//! is bounded in bytes: beyond the bound it drops its latest holds and the horizon moves nearer. A wheel entry is valid only if its
//! version and due time are the hold's.

use std::sync::Arc;

use whimbrel_model::ports::DueCursor;
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::IdMap;
use super::timing_wheel::TimingWheel;

#[derive(Debug)]
pub struct HoldWindow {
    wheel: TimingWheel<(HoldId, u64)>,
    holds: IdMap<Arc<Hold>>,
    bytes: usize,
    bytes_max: usize,
    horizon: DueCursor,
}

/// The place before everything that is due at that time.
pub fn before(due: Timestamp) -> DueCursor {
    DueCursor { due, id: HoldId::new("") }
}

pub fn place_of(hold: &Hold) -> DueCursor {
    DueCursor { due: hold.due, id: hold.id.clone() }
}

impl HoldWindow {
    /// An empty window whose horizon is before all holds.
    pub fn new(now: Timestamp, bytes_max: usize) -> Self {
        Self {
            wheel: TimingWheel::new(now.as_millis()),
            holds: IdMap::default(),
            bytes: 0,
            bytes_max,
            horizon: before(Timestamp::from_millis(i64::MIN)),
        }
    }

    pub fn horizon(&self) -> &DueCursor {
        &self.horizon
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

    pub fn covers(&self, hold: &Hold) -> bool {
        (hold.due, &hold.id) <= (self.horizon.due, &self.horizon.id)
    }

    /// Moves the horizon: all pending holds up to there are in the window now.
    pub fn reach(&mut self, horizon: DueCursor) {
        self.horizon = horizon;
    }

    /// Inserts a hold in its current state, replacing an earlier one.
    pub fn insert(&mut self, hold: Arc<Hold>) {
        if self.holds.get(&hold.id).is_some_and(|known| known.version == hold.version && known.due == hold.due) {
            return;
        }
        self.wheel.insert(hold.due.as_millis(), (hold.id.clone(), hold.version));
        self.bytes += hold.size();
        if let Some(earlier) = self.holds.insert(hold.id.clone(), hold) {
            self.bytes -= earlier.size();
        }
    }

    pub fn remove(&mut self, id: &HoldId) -> Option<Arc<Hold>> {
        let hold = self.holds.remove(id)?;
        self.bytes -= hold.size();
        Some(hold)
    }

    /// Pops the next due hold off the wheel. It stays in the window until it is removed.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<Arc<Hold>> {
        loop {
            let (due, (id, version)) = self.wheel.pop(now.as_millis())?;
            if let Some(hold) = self.holds.get(&id)
                && hold.version == version
                && hold.due.as_millis() == due
            {
                return Some(Arc::clone(hold));
            }
        }
    }

    /// Puts a popped hold back on the wheel, if it is still in the window.
    pub fn put_back(&mut self, hold: &Hold) {
        if self.holds.get(&hold.id).is_some_and(|known| known.version == hold.version) {
            self.wheel.put_back(hold.due.as_millis(), (hold.id.clone(), hold.version));
        }
    }

    /// The earliest due time of all holds here, including those that were popped and not removed.
    pub fn earliest(&self) -> Option<Timestamp> {
        self.holds.values().map(|hold| hold.due).min()
    }

    /// A time before which nothing on the wheel is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.wheel.next().map(Timestamp::from_millis)
    }

    /// Drops and returns the latest holds, until the window is within its bound or has one hold.
    pub fn shrink(&mut self) -> Vec<Arc<Hold>> {
        let mut gone = Vec::new();
        while self.bytes > self.bytes_max && self.holds.len() > 1 {
            let Some((from, entries)) = self.wheel.pop_latest() else { break };
            for (due, (id, version)) in entries {
                if self.holds.get(&id).is_some_and(|hold| hold.version == version && hold.due.as_millis() == due)
                    && let Some(hold) = self.holds.remove(&id)
                {
                    self.bytes -= hold.size();
                    gone.push(hold);
                }
            }
            self.horizon = self.horizon.clone().min(before(Timestamp::from_millis(from)));
        }
        gone
    }

    /// How many bytes may be read in at once. The last quarter of the bound is for holds that are accepted meanwhile.
    pub fn room(&self) -> usize {
        (self.bytes_max - self.bytes_max / 4).saturating_sub(self.bytes)
    }

    pub fn has_room(&self) -> bool {
        self.bytes < self.bytes_max / 2
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::hold;
    use super::*;

    #[test]
    fn a_wheel_entry_of_an_old_version_is_ignored() {
        let mut window = HoldWindow::new(Timestamp::from_millis(0), 1 << 20);
        let early = hold("a", 5);
        window.insert(Arc::clone(&early));
        window.insert(Arc::new(early.moved(Timestamp::from_millis(9), None, 77)));
        assert_eq!(window.pop_due(Timestamp::from_millis(8)), None);
        assert_eq!(window.pop_due(Timestamp::from_millis(9)).unwrap().version, 77);
        assert_eq!(window.count(), 1, "it stays until it is removed");
        window.remove(&early.id);
        assert_eq!((window.count(), window.bytes()), (0, 0));
    }

    #[test]
    fn a_hold_moved_nearer_is_due_at_its_new_time_only() {
        let mut window = HoldWindow::new(Timestamp::from_millis(0), 1 << 20);
        let far = hold("a", 900);
        window.insert(Arc::clone(&far));
        window.insert(Arc::new(far.moved(Timestamp::from_millis(3), None, 2)));
        let popped = window.pop_due(Timestamp::from_millis(4)).unwrap();
        window.remove(&popped.id);
        assert_eq!(window.pop_due(Timestamp::from_millis(1_000)), None);
    }

    #[test]
    fn beyond_its_bound_the_window_drops_the_latest_holds_and_moves_the_horizon() {
        let one = hold("a", 10).size();
        let mut window = HoldWindow::new(Timestamp::from_millis(0), 2 * one);
        window.reach(before(Timestamp::from_millis(10_000)));
        for (id, due) in [("a", 10), ("b", 20), ("c", 9_000), ("d", 9_001)] {
            window.insert(hold(id, due));
        }
        let gone = window.shrink();
        assert_eq!(gone.len(), 2);
        assert!(window.covers(&hold("b", 20)) && !window.covers(&hold("c", 9_000)));
        assert_eq!(window.count(), 2);
    }
}
