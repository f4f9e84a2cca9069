//! The holds that the shard has in memory, in four places.
//!
//! A look-up checks the unsaved changes, then the pending decisions, the window, and the holds that are set aside. A hold that none of them
//! has is in the store, or unknown. The window and the holds set aside have no earlier state of a hold with an unsaved change.

use std::sync::Arc;

use whimbrel_model::ports::{DueKey, StoredHold};
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::super::IdMap;
use super::super::aside::AsideHolds;
use super::super::unsaved_holds::{UnsavedHolds, row_of};
use super::super::window::HoldWindow;

/// Holds that are set aside may take this much memory in addition to the window: 1/4 of the window's bytes.
const WINDOW_PART: usize = 4;

#[derive(Debug)]
pub(super) struct HoldMemory {
    pub(super) unsaved: UnsavedHolds,
    /// Holds that the commit in progress decides about, with the store's row of those that only the store has.
    pub(super) deciding: IdMap<Option<Arc<Hold>>>,
    pub(super) window: HoldWindow,
    /// Holds whose topic cannot accept messages now.
    pub(super) aside: AsideHolds,
}

/// The state of an id, and the row that the store has unless the id is among the unsaved changes.
#[derive(Debug, Clone)]
pub(super) struct KnownHold {
    pub(super) state: Option<StoredHold>,
    pub(super) stored: Option<DueKey>,
}

impl KnownHold {
    pub(super) fn from_store(found: Option<StoredHold>) -> Self {
        let stored = match &found {
            Some(StoredHold::Pending(hold)) => Some(row_of(hold)),
            _ => None,
        };
        Self { state: found, stored }
    }
}

impl HoldMemory {
    pub(super) fn new(now: Timestamp, window_bytes: usize) -> Self {
        Self {
            unsaved: UnsavedHolds::default(),
            deciding: IdMap::default(),
            window: HoldWindow::new(now, window_bytes),
            aside: AsideHolds::new(now, window_bytes / WINDOW_PART),
        }
    }

    pub(super) fn forget(&mut self, now: Timestamp) {
        *self = Self::new(now, self.window.bytes_max());
    }

    /// Drops the window, whose wheel is planned by another time.
    pub(super) fn forget_window(&mut self, now: Timestamp) {
        self.window = HoldWindow::new(now, self.window.bytes_max());
    }

    /// The state of an id in memory. `None`: the store must be queried.
    pub(super) fn resolve(&self, id: &HoldId) -> Option<KnownHold> {
        if let Some(state) = self.unsaved.get(id) {
            return Some(KnownHold { state: Some(state.clone()), stored: None });
        }
        let from_store = self.deciding.get(id).and_then(Option::as_ref).or_else(|| self.window.get(id));
        let from_store = from_store.or_else(|| self.aside.get(id))?;
        Some(KnownHold::from_store(Some(StoredHold::Pending(Arc::clone(from_store)))))
    }

    /// Whether the window takes this hold from the store. It does not if memory has a newer state of the hold, or the hold is set aside.
    pub(super) fn is_new_to_window(&self, id: &HoldId) -> bool {
        self.unsaved.get(id).is_none() && self.aside.get(id).is_none()
    }

    /// Whether only the store has the hold. Commits in progress are not checked: if one leaves the hold out, the window must have it.
    pub(super) fn is_only_stored(&self, id: &HoldId) -> bool {
        self.is_new_to_window(id) && self.window.get(id).is_none()
    }

    pub(super) fn set_pending(&mut self, hold: Arc<Hold>, stored: Option<DueKey>) {
        self.unsaved.set(hold.id.clone(), StoredHold::Pending(Arc::clone(&hold)), stored);
        self.aside.remove(&hold.id);
        if self.window.covers(&hold) {
            self.window.insert(hold);
            self.shrink_window();
        } else {
            self.window.remove(&hold.id);
            self.unsaved.note_far(&hold);
        }
    }

    /// Drops the latest holds of a window that is too large. Holds that only memory has are noted as far.
    fn shrink_window(&mut self) {
        for gone in self.window.shrink() {
            if let Some(StoredHold::Pending(hold)) = self.unsaved.get(&gone.id) {
                let hold = Arc::clone(hold);
                self.unsaved.note_far(&hold);
            }
        }
    }

    /// A lower bound of the due times of all pending holds: in the window, on the wheel, in a commit, set aside, or beyond the horizon.
    /// Stores drop all rows below it, so this function checks every hold of the window instead of relying on the wheel.
    pub(super) fn floor(&self) -> Timestamp {
        let earliest = self.window.earliest().into_iter().chain(self.aside.earliest());
        earliest.chain([self.window.horizon().due]).min().unwrap_or(self.window.horizon().due)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::hold;
    use super::super::super::window::before;
    use super::*;

    #[test]
    fn the_newest_state_of_a_hold_is_found_and_the_window_follows_it() {
        let mut memory = HoldMemory::new(Timestamp::from_millis(0), 1 << 20);
        memory.window.reach(before(Timestamp::from_millis(100)));
        let near = hold("a", 50);
        memory.window.insert(Arc::clone(&near));
        let stored = memory.resolve(&near.id).and_then(|known| known.stored);
        assert_eq!(stored, Some(row_of(&near)), "the store has the hold of the window");
        memory.set_pending(Arc::new(near.moved(Timestamp::from_millis(500), None, 7)), stored);
        let found = memory.resolve(&near.id).and_then(|known| known.state);
        assert!(matches!(found, Some(StoredHold::Pending(hold)) if hold.version == 7));
        assert_eq!(memory.window.count(), 0, "it is due beyond the horizon");
        assert!(!memory.is_only_stored(&near.id));
    }
}
