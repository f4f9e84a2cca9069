//! Changes that were folded from the log and that the store does not have yet.
//!
//! The effects of records up to the folded offset gather in `active`. A checkpoint seals them: they are written while a new `active`
//! gathers, and are dropped when the store has them. A look-up of an id checks these changes before the store, so it does not matter
//! whether a read of the store saw the sealed ones already.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use whimbrel_model::ports::{DueCursor, DueKey, StoredHold, TimerChange};
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::IdMap;

#[derive(Debug, Clone)]
struct UnsavedHold {
    state: StoredHold,
    /// The row that the store has for the id before this change is written.
    was: Option<DueKey>,
}

/// The key of a pending hold's row in the store.
pub fn row_of(hold: &Hold) -> DueKey {
    DueKey { due: hold.due, topic: hold.topic }
}

fn row_of_state(state: &StoredHold) -> Option<DueKey> {
    match state {
        StoredHold::Pending(hold) => Some(row_of(hold)),
        StoredHold::Ended(_) => None,
    }
}

/// The approximate memory of a kept end, in bytes.
const END_BYTES: usize = 160;

fn bytes_of(state: &StoredHold) -> usize {
    match state {
        StoredHold::Pending(hold) => hold.size(),
        StoredHold::Ended(_) => END_BYTES,
    }
}

#[derive(Debug, Default)]
pub struct UnsavedHolds {
    active: IdMap<UnsavedHold>,
    active_bytes: usize,
    sealed: Option<IdMap<UnsavedHold>>,
    sealed_bytes: usize,
    /// Pending holds, active or sealed, that are not in the window, by due time.
    far: BTreeSet<(Timestamp, HoldId)>,
}

impl UnsavedHolds {
    pub fn get(&self, id: &HoldId) -> Option<&StoredHold> {
        let unit = self.active.get(id).or_else(|| self.sealed.as_ref()?.get(id))?;
        Some(&unit.state)
    }

    /// Sets the state of an id. `stored` is the row that the store has for an id without an unsaved change.
    pub fn set(&mut self, id: HoldId, state: StoredHold, stored: Option<DueKey>) {
        self.active_bytes += bytes_of(&state);
        let earlier = match self.active.entry(id) {
            Entry::Occupied(mut entry) => {
                let earlier = std::mem::replace(&mut entry.get_mut().state, state);
                self.active_bytes -= bytes_of(&earlier);
                Some(earlier)
            }
            Entry::Vacant(entry) => {
                let sealed = self.sealed.as_ref().and_then(|sealed| sealed.get(entry.key()));
                let was = sealed.map_or(stored, |unit| row_of_state(&unit.state));
                let earlier = sealed.map(|unit| unit.state.clone());
                entry.insert(UnsavedHold { state, was });
                earlier
            }
        };
        if let Some(StoredHold::Pending(hold)) = earlier
            && !self.far.is_empty()
        {
            self.far.remove(&(hold.due, hold.id.clone()));
        }
    }

    /// Notes a pending hold outside the window. [`UnsavedHolds::take_near`] returns it when the window reaches it.
    pub fn note_far(&mut self, hold: &Hold) {
        self.far.insert((hold.due, hold.id.clone()));
    }

    /// Takes pending holds at or before `place` that are not in the window, in due order, until they have `max_bytes` bytes together.
    pub fn take_near(&mut self, place: &DueCursor, max_bytes: usize) -> Vec<Arc<Hold>> {
        let (mut near, mut bytes) = (Vec::new(), 0);
        while (near.is_empty() || bytes < max_bytes) && self.has_near(place) {
            let Some((_, id)) = self.far.pop_first() else { break };
            if let Some(StoredHold::Pending(hold)) = self.get(&id) {
                bytes += hold.size();
                near.push(Arc::clone(hold));
            }
        }
        near
    }

    /// Whether there is a pending hold at or before `place` that is not in the window.
    pub fn has_near(&self, place: &DueCursor) -> bool {
        self.far.first().is_some_and(|(due, id)| (*due, id) <= (place.due, &place.id))
    }

    pub fn changes(&self) -> usize {
        self.active.len()
    }

    pub fn bytes(&self) -> usize {
        self.active_bytes
    }

    pub fn bytes_in_all(&self) -> usize {
        self.active_bytes + self.sealed_bytes
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Seals the active changes and returns the writes for the store.
    pub fn seal(&mut self) -> Vec<TimerChange> {
        let sealed = std::mem::take(&mut self.active);
        self.sealed_bytes = std::mem::take(&mut self.active_bytes);
        let changes = sealed.iter().map(|(id, unit)| match &unit.state {
            StoredHold::Pending(hold) => TimerChange::Put { hold: Arc::clone(hold), was: unit.was },
            StoredHold::Ended(end) => TimerChange::End { id: id.clone(), end: end.clone(), was: unit.was },
        });
        let changes = changes.collect();
        self.sealed = Some(sealed);
        changes
    }

    /// Makes the sealed changes active again, beneath the later ones, after they could not be written.
    pub fn unseal(&mut self) {
        for (id, earlier) in self.sealed.take().unwrap_or_default() {
            match self.active.get_mut(&id) {
                Some(unit) => unit.was = earlier.was,
                None => {
                    self.active_bytes += bytes_of(&earlier.state);
                    self.active.insert(id, earlier);
                }
            }
        }
        self.sealed_bytes = 0;
    }

    /// Drops the sealed changes: the store has them.
    pub fn saved(&mut self) {
        for (id, unit) in self.sealed.take().unwrap_or_default() {
            // The window gets the hold from the store now, unless it has changed again.
            if let StoredHold::Pending(hold) = &unit.state
                && !matches!(self.active.get(&id), Some(UnsavedHold { state: StoredHold::Pending(now), .. }) if now.due == hold.due)
            {
                self.far.remove(&(hold.due, id));
            }
        }
        self.sealed_bytes = 0;
    }

    /// All unsaved changes, for lists and counts: each id with its state and the row that the store has for it while the sealed changes
    /// are not saved. With `saved`, the row as if they were.
    pub fn each(&self, saved: bool) -> impl Iterator<Item = (&HoldId, &StoredHold, Option<DueKey>)> {
        let sealed = self.sealed.iter().flatten().filter(|(id, _)| !self.active.contains_key(*id));
        let rows = move |id: &HoldId, unit: &UnsavedHold| {
            if saved {
                return unit.was;
            }
            self.sealed.as_ref().and_then(|sealed| sealed.get(id)).map_or(unit.was, |earlier| earlier.was)
        };
        let active = self.active.iter().map(move |(id, unit)| (id, &unit.state, rows(id, unit)));
        let sealed = sealed.map(move |(id, unit)| {
            let row = if saved { row_of_state(&unit.state) } else { unit.was };
            (id, &unit.state, row)
        });
        active.chain(sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{end, hold};
    use super::*;

    fn place(due: i64, id: &str) -> DueCursor {
        DueCursor { due: Timestamp::from_millis(due), id: HoldId::new(id) }
    }

    fn ids(holds: &[Arc<Hold>]) -> Vec<&str> {
        holds.iter().map(|hold| hold.id.as_str()).collect()
    }

    #[test]
    fn the_row_of_the_store_is_kept_across_changes_and_seals() {
        let mut unsaved = UnsavedHolds::default();
        let (first, second) = (hold("a", 5), hold("a", 9));
        unsaved.set(first.id.clone(), StoredHold::Pending(first.clone()), None);
        let TimerChange::Put { was: None, .. } = &unsaved.seal()[0] else { panic!("the store has no row yet") };
        unsaved.set(first.id.clone(), StoredHold::Pending(second.clone()), None);
        assert_eq!(unsaved.each(false).next().unwrap().2, None, "the store may not have it yet");
        assert_eq!(unsaved.each(true).next().unwrap().2, Some(row_of(&first)));
        unsaved.saved();
        unsaved.set(first.id.clone(), StoredHold::Ended(end(&second)), None);
        let changes = unsaved.seal();
        assert!(
            matches!(&changes[..], [TimerChange::End { was: Some(row), .. }] if row.due == first.due),
            "{changes:?}"
        );
    }

    #[test]
    fn a_far_hold_is_returned_once_when_it_is_near() {
        let mut unsaved = UnsavedHolds::default();
        for (name, due) in [("a", 5), ("b", 7), ("c", 7), ("d", 9)] {
            let hold = hold(name, due);
            unsaved.set(hold.id.clone(), StoredHold::Pending(hold.clone()), None);
            unsaved.note_far(&hold);
        }
        let near = unsaved.take_near(&place(7, "b"), usize::MAX);
        assert_eq!(ids(&near), ["a", "b"]);
        unsaved.set(HoldId::new("c"), StoredHold::Ended(end(&hold("c", 7))), None);
        let near = unsaved.take_near(&place(100, ""), usize::MAX);
        assert_eq!(ids(&near), ["d"]);
    }

    #[test]
    fn a_hold_that_the_store_has_is_no_longer_returned() {
        let mut unsaved = UnsavedHolds::default();
        let (kept, moved) = (hold("a", 5), hold("b", 6));
        for hold in [&kept, &moved] {
            unsaved.set(hold.id.clone(), StoredHold::Pending(hold.clone()), None);
            unsaved.note_far(hold);
        }
        unsaved.seal();
        let again = hold("b", 8);
        unsaved.set(again.id.clone(), StoredHold::Pending(again.clone()), None);
        unsaved.note_far(&again);
        unsaved.saved();
        assert_eq!(ids(&unsaved.take_near(&place(100, ""), usize::MAX)), ["b"]);
    }
}
