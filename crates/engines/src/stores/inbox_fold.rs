//! Folds the changes of one write into one result per key, because engines write a key once. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use whimbrel_model::ports::{InboxChange, InboxWrite, reclaim_hour};

/// The changes of one write, grouped by the key that they change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoldedWrite<'a> {
    pub boxes: BTreeMap<&'a str, BoxAfter<'a>>,
    pub own: BTreeMap<(&'a str, u64), Option<&'a Bytes>>,
    pub shared: BTreeMap<u64, SharedAfter<'a>>,
}

/// A box after the write, and its hours in the index of reclaimable boxes before and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoxAfter<'a> {
    pub state: Option<&'a Bytes>,
    pub was: Option<u32>,
    pub hour: Option<u32>,
}

/// The steps of a shared row. The result depends on the stored number of references: no more than those can be released.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedAfter<'a> {
    pub steps: Vec<SharedStep<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedStep<'a> {
    Add { row: &'a Bytes, references: u32 },
    Release(u32),
}

impl<'a> FoldedWrite<'a> {
    pub fn of(write: &'a InboxWrite) -> Self {
        let mut folded = Self::default();
        for change in &write.changes {
            match change {
                InboxChange::PutBox { uid, state, reclaim_at, was } => {
                    let state = state.as_ref();
                    let hour = state.and(*reclaim_at).map(reclaim_hour);
                    // The index has no entries of a partition that is emptied.
                    let was = was.filter(|_| !write.reset).map(reclaim_hour);
                    let after = folded.boxes.entry(uid.as_str()).or_insert(BoxAfter { state, was, hour });
                    (after.state, after.hour) = (state, hour);
                }
                InboxChange::PutOwn { uid, seq, row } => {
                    folded.own.insert((uid.as_str(), *seq), Some(row));
                }
                InboxChange::DropOwn { uid, seq } => {
                    folded.own.insert((uid.as_str(), *seq), None);
                }
                InboxChange::PutShared { seq, row, references } => {
                    folded.share(*seq, SharedStep::Add { row, references: *references });
                }
                InboxChange::ReleaseShared { seq, references } => {
                    folded.share(*seq, SharedStep::Release(*references));
                }
            }
        }
        folded
    }

    /// The maximum number of keys that the write changes.
    pub fn keys(&self) -> usize {
        self.boxes.len() * 3 + self.own.len() + self.shared.len() * 2
    }

    /// Merges consecutive releases into one step: many users release the same row.
    fn share(&mut self, seq: u64, step: SharedStep<'a>) {
        let steps = &mut self.shared.entry(seq).or_default().steps;
        match (steps.last_mut(), step) {
            (Some(SharedStep::Release(before)), SharedStep::Release(more)) => *before = before.saturating_add(more),
            _ => steps.push(step),
        }
    }
}

impl<'a> SharedAfter<'a> {
    /// The remaining references, given the stored number, and the row if it is new.
    pub fn after(&self, references: u32) -> (u32, Option<&'a Bytes>) {
        self.steps.iter().fold((references, None), |(references, new), step| match *step {
            SharedStep::Add { row, references: more } => {
                let new = if references == 0 { Some(row) } else { new };
                (references.saturating_add(more), new.filter(|_| references.saturating_add(more) > 0))
            }
            SharedStep::Release(fewer) if fewer >= references => (0, None),
            SharedStep::Release(fewer) => (references - fewer, new),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::Timestamp;
    use whimbrel_model::people::Uid;

    const HOUR_MS: i64 = 3_600_000;

    fn write(reset: bool, changes: Vec<InboxChange>) -> InboxWrite {
        InboxWrite { epoch: 1, expected: 0, reset, changes, applied: 1, synced: false }
    }

    fn put_box(state: Option<&'static str>, reclaim: Option<i64>, was: Option<i64>) -> InboxChange {
        let hour = |hours: i64| Timestamp::from_millis(hours * HOUR_MS);
        let (reclaim_at, was) = (reclaim.map(hour), was.map(hour));
        InboxChange::PutBox { uid: Uid::new("u").unwrap(), state: state.map(Bytes::from), reclaim_at, was }
    }

    #[test]
    fn several_changes_of_a_box_keep_the_last_state_and_the_first_previous_hour() {
        let changes = vec![put_box(Some("a"), Some(5), Some(3)), put_box(Some("b"), Some(7), Some(5))];
        for (reset, was) in [(false, Some(3)), (true, None)] {
            let write = write(reset, changes.clone());
            let state = Bytes::from("b");
            let after = BoxAfter { state: Some(&state), was, hour: Some(7) };
            assert_eq!(FoldedWrite::of(&write).boxes[&"u"], after);
        }
    }

    #[test]
    fn a_removed_box_has_no_hour_in_the_index() {
        let write = write(false, vec![put_box(None, Some(5), Some(3))]);
        assert_eq!(FoldedWrite::of(&write).boxes[&"u"], BoxAfter { state: None, was: Some(3), hour: None });
    }

    #[test]
    fn a_shared_row_is_removed_with_its_last_reference_and_can_be_added_again() {
        let (old, new) = (Bytes::from("old"), Bytes::from("new"));
        let add = |row, references| SharedStep::Add { row, references };
        let after = |steps: Vec<_>, references| SharedAfter { steps }.after(references);
        assert_eq!(after(vec![add(&old, 3), SharedStep::Release(1)], 0), (2, Some(&old)));
        assert_eq!(after(vec![add(&new, 3)], 2), (5, None), "the stored row stays");
        assert_eq!(after(vec![SharedStep::Release(9), add(&new, 1)], 2), (1, Some(&new)));
        assert_eq!(after(vec![add(&old, 2), SharedStep::Release(2)], 0), (0, None));
        assert_eq!(after(vec![SharedStep::Release(1)], 0), (0, None));
        assert_eq!(after(vec![add(&old, 0)], 0), (0, None), "a row without references is not stored");
    }

    #[test]
    fn consecutive_releases_are_one_step() {
        let release = || InboxChange::ReleaseShared { seq: 4, references: 1 };
        let write = write(false, vec![release(), release(), release()]);
        assert_eq!(FoldedWrite::of(&write).shared[&4].steps, [SharedStep::Release(3)]);
    }
}
