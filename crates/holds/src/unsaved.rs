//! What was folded from the log and is not in the store yet.
//!
//! The effects of records up to the folded offset gather in `active`. A checkpoint seals them: they are written while a new
//! `active` gathers, and are let go when the store has them. Whoever looks for an id looks here before the store, so it does not
//! matter whether a read of the store saw the sealed ones already.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use whimbrel_model::ports::{Change, DueCursor, Known, Row};
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::IdMap;

#[derive(Debug, Clone)]
struct Unit {
    state: Known,
    /// The row that the store has for the id, before this is written.
    was: Option<Row>,
}

/// Where a pending hold's row is.
pub fn row_of(hold: &Hold) -> Row {
    Row { due: hold.due, topic: hold.topic }
}

fn row_of_state(state: &Known) -> Option<Row> {
    match state {
        Known::Pending(hold) => Some(row_of(hold)),
        Known::Ended(_) => None,
    }
}

/// About the memory that a remembered end takes.
const END_BYTES: usize = 160;

fn bytes_of(state: &Known) -> usize {
    match state {
        Known::Pending(hold) => hold.size(),
        Known::Ended(_) => END_BYTES,
    }
}

#[derive(Debug, Default)]
pub struct Unsaved {
    active: IdMap<Unit>,
    active_bytes: usize,
    sealed: Option<IdMap<Unit>>,
    sealed_bytes: usize,
    /// Pending ones among both that are not in the window, by due time.
    far: BTreeSet<(Timestamp, HoldId)>,
}

impl Unsaved {
    pub fn get(&self, id: &HoldId) -> Option<&Known> {
        let unit = self.active.get(id).or_else(|| self.sealed.as_ref()?.get(id))?;
        Some(&unit.state)
    }

    /// From now on the id is so. `stored` is the row that the store has for an id that is not here yet.
    pub fn set(&mut self, id: HoldId, state: Known, stored: Option<Row>) {
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
                entry.insert(Unit { state, was });
                earlier
            }
        };
        if let Some(Known::Pending(hold)) = earlier
            && !self.far.is_empty()
        {
            self.far.remove(&(hold.due, hold.id.clone()));
        }
    }

    /// The id is pending and outside of the window: it is given out by [`Unsaved::take_near`] when the window reaches it.
    pub fn note_far(&mut self, hold: &Hold) {
        self.far.insert((hold.due, hold.id.clone()));
    }

    /// Pending holds at or before that place in due order that are not in the window yet, in due order; so many that they have that
    /// many bytes together, where there are as many.
    pub fn take_near(&mut self, place: &DueCursor, max_bytes: usize) -> Vec<Arc<Hold>> {
        let (mut near, mut bytes) = (Vec::new(), 0);
        while (near.is_empty() || bytes < max_bytes) && self.has_near(place) {
            let Some((_, id)) = self.far.pop_first() else { break };
            if let Some(Known::Pending(hold)) = self.get(&id) {
                bytes += hold.size();
                near.push(Arc::clone(hold));
            }
        }
        near
    }

    /// Whether there are any such holds.
    pub fn has_near(&self, place: &DueCursor) -> bool {
        self.far.first().is_some_and(|(due, id)| (*due, id) <= (place.due, &place.id))
    }

    /// Ids that changed since the last seal.
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

    /// Seals what is here; what it changes in the store.
    pub fn seal(&mut self) -> Vec<Change> {
        let sealed = std::mem::take(&mut self.active);
        self.sealed_bytes = std::mem::take(&mut self.active_bytes);
        let changes = sealed.iter().map(|(id, unit)| match &unit.state {
            Known::Pending(hold) => Change::Put { hold: Arc::clone(hold), was: unit.was },
            Known::Ended(end) => Change::End { id: id.clone(), end: end.clone(), was: unit.was },
        });
        let changes = changes.collect();
        self.sealed = Some(sealed);
        changes
    }

    /// What was sealed could not be written: it is active again, below what has changed since.
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

    /// The store has what was sealed.
    pub fn saved(&mut self) {
        for (id, unit) in self.sealed.take().unwrap_or_default() {
            // From now on the window gets it from the store, unless it has changed meanwhile.
            if let Known::Pending(hold) = &unit.state
                && !matches!(self.active.get(&id), Some(Unit { state: Known::Pending(now), .. }) if now.due == hold.due)
            {
                self.far.remove(&(hold.due, id));
            }
        }
        self.sealed_bytes = 0;
    }

    /// Every id here with its state, and the row that the store has for it as long as the sealed ones are not saved; for counting
    /// and listing. With `saved`, as if they were.
    pub fn each(&self, saved: bool) -> impl Iterator<Item = (&HoldId, &Known, Option<Row>)> {
        let sealed = self.sealed.iter().flatten().filter(|(id, _)| !self.active.contains_key(*id));
        let rows = move |id: &HoldId, unit: &Unit| {
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
    fn the_row_of_the_store_is_remembered_over_changes_and_seals() {
        let mut unsaved = Unsaved::default();
        let (first, second) = (hold("a", 5), hold("a", 9));
        unsaved.set(first.id.clone(), Known::Pending(first.clone()), None);
        let Change::Put { was: None, .. } = &unsaved.seal()[0] else { panic!("the store has no row yet") };
        unsaved.set(first.id.clone(), Known::Pending(second.clone()), None);
        assert_eq!(unsaved.each(false).next().unwrap().2, None, "the store may not have it yet");
        assert_eq!(unsaved.each(true).next().unwrap().2, Some(row_of(&first)));
        unsaved.saved();
        unsaved.set(first.id.clone(), Known::Ended(end(&second)), None);
        let changes = unsaved.seal();
        assert!(matches!(&changes[..], [Change::End { was: Some(row), .. }] if row.due == first.due), "{changes:?}");
    }

    #[test]
    fn what_is_far_is_given_out_once_when_it_is_near() {
        let mut unsaved = Unsaved::default();
        for (name, due) in [("a", 5), ("b", 7), ("c", 7), ("d", 9)] {
            let hold = hold(name, due);
            unsaved.set(hold.id.clone(), Known::Pending(hold.clone()), None);
            unsaved.note_far(&hold);
        }
        let near = unsaved.take_near(&place(7, "b"), usize::MAX);
        assert_eq!(ids(&near), ["a", "b"]);
        unsaved.set(HoldId::new("c"), Known::Ended(end(&hold("c", 7))), None);
        let near = unsaved.take_near(&place(100, ""), usize::MAX);
        assert_eq!(ids(&near), ["d"]);
    }

    #[test]
    fn what_the_store_has_is_no_longer_given_out() {
        let mut unsaved = Unsaved::default();
        let (kept, moved) = (hold("a", 5), hold("b", 6));
        for hold in [&kept, &moved] {
            unsaved.set(hold.id.clone(), Known::Pending(hold.clone()), None);
            unsaved.note_far(hold);
        }
        unsaved.seal();
        let again = hold("b", 8);
        unsaved.set(again.id.clone(), Known::Pending(again.clone()), None);
        unsaved.note_far(&again);
        unsaved.saved();
        assert_eq!(ids(&unsaved.take_near(&place(100, ""), usize::MAX)), ["b"]);
    }
}
