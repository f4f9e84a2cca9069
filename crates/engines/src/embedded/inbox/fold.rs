//! What a write leaves of each key, whatever its changes did to it in between: engines write a key once. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use whimbrel_model::ports::{InboxChange, InboxWrite, reclaim_hour};

/// The changes of one write, by what they change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Folded<'a> {
    pub boxes: BTreeMap<&'a str, BoxAfter<'a>>,
    pub own: BTreeMap<(&'a str, u64), Option<&'a Bytes>>,
    pub shared: BTreeMap<u64, SharedAfter<'a>>,
}

/// A box, and the hours that the index of what may be reclaimed has it under, before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoxAfter<'a> {
    pub state: Option<&'a Bytes>,
    pub was: Option<u32>,
    pub hour: Option<u32>,
}

/// What happens to a shared row. Which of its steps count depends on the references that there are: more cannot be released.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedAfter<'a> {
    pub steps: Vec<SharedStep<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedStep<'a> {
    Add { row: &'a Bytes, references: u32 },
    Release(u32),
}

impl<'a> Folded<'a> {
    pub fn of(write: &'a InboxWrite) -> Self {
        let mut folded = Self::default();
        for change in &write.changes {
            match change {
                InboxChange::PutBox { uid, state, reclaim_at, was } => {
                    let state = state.as_ref();
                    let hour = state.and(*reclaim_at).map(reclaim_hour);
                    // A partition that is emptied has nothing under any hour.
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

    /// Keys that are written at most.
    pub fn keys(&self) -> usize {
        self.boxes.len() * 3 + self.own.len() + self.shared.len() * 2
    }

    /// Many users release one after the other: that is one step.
    fn share(&mut self, seq: u64, step: SharedStep<'a>) {
        let steps = &mut self.shared.entry(seq).or_default().steps;
        match (steps.last_mut(), step) {
            (Some(SharedStep::Release(before)), SharedStep::Release(more)) => *before = before.saturating_add(more),
            _ => steps.push(step),
        }
    }
}

impl<'a> SharedAfter<'a> {
    /// The references that are left of so many, and the row where it is a new one.
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
    fn of_many_changes_of_a_box_the_last_stays_and_the_first_says_what_was() {
        let changes = vec![put_box(Some("a"), Some(5), Some(3)), put_box(Some("b"), Some(7), Some(5))];
        for (reset, was) in [(false, Some(3)), (true, None)] {
            let write = write(reset, changes.clone());
            let state = Bytes::from("b");
            let after = BoxAfter { state: Some(&state), was, hour: Some(7) };
            assert_eq!(Folded::of(&write).boxes[&"u"], after);
        }
    }

    #[test]
    fn a_box_that_is_no_more_is_under_no_hour() {
        let write = write(false, vec![put_box(None, Some(5), Some(3))]);
        assert_eq!(Folded::of(&write).boxes[&"u"], BoxAfter { state: None, was: Some(3), hour: None });
    }

    #[test]
    fn a_shared_row_goes_with_its_last_reference_and_comes_anew_after_that() {
        let (old, new) = (Bytes::from("old"), Bytes::from("new"));
        let add = |row, references| SharedStep::Add { row, references };
        let after = |steps: Vec<_>, references| SharedAfter { steps }.after(references);
        assert_eq!(after(vec![add(&old, 3), SharedStep::Release(1)], 0), (2, Some(&old)));
        assert_eq!(after(vec![add(&new, 3)], 2), (5, None), "the row that is there stays");
        assert_eq!(after(vec![SharedStep::Release(9), add(&new, 1)], 2), (1, Some(&new)));
        assert_eq!(after(vec![add(&old, 2), SharedStep::Release(2)], 0), (0, None));
        assert_eq!(after(vec![SharedStep::Release(1)], 0), (0, None));
        assert_eq!(after(vec![add(&old, 0)], 0), (0, None), "a row that nobody refers to is not kept");
    }

    #[test]
    fn releases_that_follow_each_other_are_one() {
        let release = || InboxChange::ReleaseShared { seq: 4, references: 1 };
        let write = write(false, vec![release(), release(), release()]);
        assert_eq!(Folded::of(&write).shared[&4].steps, [SharedStep::Release(3)]);
    }
}
