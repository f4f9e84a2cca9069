//! The queue of the journal, in two lanes: appends, and commits with the openings of their fences.
//!
//! A frame is filled from both lanes. So a small publish does not wait behind megabytes of commits, and a stream of publishes does not keep
//! commits out. Within a lane the order of the calls is kept, so commits of one fence land in the order of their calls. There is no order
//! between the lanes.
//!
//! The lanes are plain data: no lock, no clock, no disk.

use std::collections::VecDeque;

use crate::LogWrite;
use crate::error::AppendError;

/// Commits may use one part in this many of the bytes that may wait, and appends the rest. A full lane leaves the other's share free.
const COMMITS_PART: usize = 4;

/// Both lanes. `W` is the waiter for the outcome of a request.
pub(crate) struct Lanes<W> {
    appends: RequestLane<W>,
    /// Commits, and openings of fences, which must not overtake the commits.
    commits: RequestLane<W>,
    /// The lane that goes first into the next frame if both lanes have more than fits.
    turn: LaneTurn,
}

struct RequestLane<W> {
    works: VecDeque<LogWrite>,
    waiting: VecDeque<W>,
    bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneTurn {
    Appends,
    Commits,
}

/// The requests of one frame, each with its waiter.
pub(crate) struct CommitGroup<W> {
    pub works: Vec<LogWrite>,
    pub waiting: Vec<W>,
}

impl<W> Default for Lanes<W> {
    fn default() -> Self {
        Self { appends: RequestLane::default(), commits: RequestLane::default(), turn: LaneTurn::Appends }
    }
}

impl<W> Default for RequestLane<W> {
    fn default() -> Self {
        Self { works: VecDeque::new(), waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<W> Default for CommitGroup<W> {
    fn default() -> Self {
        Self { works: Vec::new(), waiting: Vec::new() }
    }
}

impl<W> Lanes<W> {
    pub fn len(&self) -> usize {
        self.appends.works.len() + self.commits.works.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> usize {
        self.appends.bytes + self.commits.bytes
    }

    /// Checks whether this request may wait. `bytes_max` is the limit of both lanes together. An empty lane accepts anything that fits into
    /// a frame, otherwise it could never be accepted.
    pub fn admit(&self, work: &LogWrite, bytes_max: usize) -> Result<(), AppendError> {
        let for_commits = bytes_max / COMMITS_PART;
        let (lane, part) = match work {
            LogWrite::Append(_) => (&self.appends, bytes_max - for_commits),
            LogWrite::Commit { .. } | LogWrite::OpenFence(_) => (&self.commits, for_commits),
        };
        if lane.works.is_empty() || lane.bytes + work.size() <= part {
            Ok(())
        } else {
            Err(AppendError::Overloaded { waiting: lane.bytes })
        }
    }

    pub fn push(&mut self, work: LogWrite, waiting: W) {
        let lane = match work {
            LogWrite::Append(_) => &mut self.appends,
            LogWrite::Commit { .. } | LogWrite::OpenFence(_) => &mut self.commits,
        };
        lane.bytes += work.size();
        lane.works.push_back(work);
        lane.waiting.push_back(waiting);
    }

    /// Takes the requests of the next frame: up to `target` bytes, or one request that is larger. If both lanes have more than that, each
    /// gets half of it. A lane whose next request does not fit into its half goes first the next time.
    pub fn take_group(&mut self, target: usize) -> CommitGroup<W> {
        let mut group = CommitGroup::default();
        if self.bytes() <= target {
            self.appends.give_all(&mut group);
            self.commits.give_all(&mut group);
            return group;
        }
        let (first, second) = match self.next_turn() {
            LaneTurn::Appends => (&mut self.appends, &mut self.commits),
            LaneTurn::Commits => (&mut self.commits, &mut self.appends),
        };
        let share = (target / 2).max(target.saturating_sub(second.bytes));
        let head = first.works.front().map_or(0, LogWrite::size);
        let given = first.give(share.max(head), &mut group);
        second.give(target.saturating_sub(given), &mut group);
        group
    }

    fn next_turn(&mut self) -> LaneTurn {
        if self.commits.works.is_empty() {
            return LaneTurn::Appends;
        }
        if self.appends.works.is_empty() {
            return LaneTurn::Commits;
        }
        let other = match self.turn {
            LaneTurn::Appends => LaneTurn::Commits,
            LaneTurn::Commits => LaneTurn::Appends,
        };
        std::mem::replace(&mut self.turn, other)
    }
}

impl<W> RequestLane<W> {
    /// Gives everything. The buffers of the first lane become those of the group, so a log without backlog moves no single requests.
    fn give_all(&mut self, group: &mut CommitGroup<W>) {
        let works = std::mem::take(&mut self.works);
        let waiting = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        if group.works.is_empty() {
            *group = CommitGroup { works: works.into(), waiting: waiting.into() };
        } else {
            group.works.extend(works);
            group.waiting.extend(waiting);
        }
    }

    /// Gives the oldest requests while they fit into `budget`. Returns their bytes.
    fn give(&mut self, budget: usize, group: &mut CommitGroup<W>) -> usize {
        let (mut bytes, mut count) = (0, 0);
        for work in &self.works {
            let size = work.size();
            if bytes + size > budget {
                break;
            }
            bytes += size;
            count += 1;
        }
        self.bytes -= bytes;
        group.works.extend(self.works.drain(..count));
        group.waiting.extend(self.waiting.drain(..count));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::BATCH_HEADER_LEN;
    use crate::{PartitionKey, WritePart};

    const TARGET: usize = 1 << 20;
    const COMMIT_BYTES: usize = 256 << 10;
    const WORD_BYTES: usize = 100;
    const BYTES_MAX: usize = 64 << 20;

    fn parts(bytes: usize) -> Vec<WritePart> {
        let records = vec![0; bytes - BATCH_HEADER_LEN];
        vec![WritePart { partition: PartitionKey { topic: 1, partition: 0 }, count: 1, max_timestamp: 0, records }]
    }

    fn append(bytes: usize) -> LogWrite {
        LogWrite::Append(parts(bytes))
    }

    fn commit(bytes: usize) -> LogWrite {
        LogWrite::Commit { fence: "f".into(), token: 1, parts: parts(bytes) }
    }

    fn is_append(work: &LogWrite) -> bool {
        matches!(work, LogWrite::Append(_))
    }

    fn bytes_of(group: &CommitGroup<u32>, wanted: impl Fn(&LogWrite) -> bool) -> usize {
        group.works.iter().filter(|work| wanted(work)).map(LogWrite::size).sum()
    }

    #[test]
    fn requests_that_fit_into_one_frame_go_together() {
        let mut lanes = Lanes::default();
        lanes.push(commit(WORD_BYTES), 1);
        lanes.push(append(WORD_BYTES), 2);
        lanes.push(LogWrite::OpenFence("f".into()), 3);
        let group = lanes.take_group(TARGET);
        assert_eq!(group.waiting, [2, 1, 3]);
        assert!(is_append(&group.works[0]) && lanes.is_empty() && lanes.bytes() == 0);
    }

    #[test]
    fn a_small_append_is_in_the_next_frame_for_any_number_of_waiting_commits() {
        let mut lanes = Lanes::default();
        for number in 0..100 {
            lanes.push(commit(COMMIT_BYTES), number);
        }
        for publisher in 1000..1010 {
            lanes.push(append(WORD_BYTES), publisher);
            let group = lanes.take_group(TARGET);
            assert!(group.waiting.contains(&publisher), "{:?}", group.waiting);
            assert!(bytes_of(&group, |work| !is_append(work)) >= TARGET / 2, "commits continue meanwhile");
        }
    }

    #[test]
    fn a_commit_is_in_the_next_frame_for_any_number_of_waiting_appends() {
        let mut lanes = Lanes::default();
        for number in 0..100 {
            lanes.push(append(COMMIT_BYTES), number);
        }
        for owner in 1000..1010 {
            lanes.push(commit(COMMIT_BYTES), owner);
            assert!(lanes.take_group(TARGET).waiting.contains(&owner));
        }
    }

    #[test]
    fn each_lane_has_half_of_a_frame_for_which_both_have_too_much() {
        let mut lanes = Lanes::default();
        for number in 0..100 {
            lanes.push(append(COMMIT_BYTES), number);
            lanes.push(commit(COMMIT_BYTES), number);
        }
        for _ in 0..10 {
            let group = lanes.take_group(TARGET);
            assert_eq!(bytes_of(&group, is_append), TARGET / 2);
            assert_eq!(bytes_of(&group, |_| true), TARGET);
        }
    }

    #[test]
    fn a_fence_opens_after_the_commits_that_were_called_before_it() {
        let mut lanes = Lanes::default();
        for number in 0..8 {
            lanes.push(commit(COMMIT_BYTES), number);
        }
        lanes.push(LogWrite::OpenFence("f".into()), 8);
        let order: Vec<u32> = (0..3).flat_map(|_| lanes.take_group(TARGET).waiting).collect();
        assert_eq!(order, (0..=8).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_lane_leaves_room_for_the_other() {
        let mut lanes = Lanes::default();
        let full = (0..).find(|number| {
            lanes.push(append(COMMIT_BYTES), *number);
            lanes.admit(&append(COMMIT_BYTES), BYTES_MAX).is_err()
        });
        assert!(full.is_some() && lanes.bytes() < BYTES_MAX);
        lanes.push(commit(COMMIT_BYTES), 0);
        assert_eq!(lanes.admit(&commit(COMMIT_BYTES), BYTES_MAX), Ok(()));
        while lanes.admit(&commit(COMMIT_BYTES), BYTES_MAX).is_ok() {
            lanes.push(commit(COMMIT_BYTES), 0);
        }
        assert!(lanes.bytes() <= BYTES_MAX, "together they keep the bound");
    }

    #[test]
    fn an_empty_lane_takes_work_that_is_larger_than_its_part() {
        let lanes = Lanes::<u32>::default();
        assert_eq!(lanes.admit(&commit(TARGET), TARGET), Ok(()));
        assert_eq!(lanes.admit(&append(TARGET), TARGET), Ok(()));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append(usize),
        Commit(usize),
        Take,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        // Sizes from small ones to ones that exceed a whole frame.
        let size = || prop_oneof![100..2000usize, 2000..60_000usize];
        prop_oneof![size().prop_map(Step::Append), size().prop_map(Step::Commit), Just(Step::Take)]
    }

    proptest! {
        #[test]
        fn lanes_keep_their_order_and_take_turns(steps in proptest::collection::vec(any_step(), 1..200)) {
            const TARGET: usize = 16 << 10;
            let mut lanes = Lanes::default();
            // The waiting requests of each lane, in order; and whether the last frame took nothing from the lane.
            let mut expected: [VecDeque<u32>; 2] = Default::default();
            let mut passed_over = [false; 2];
            let drain = std::iter::repeat_n(Step::Take, steps.len());
            for (number, step) in (0..).zip(steps.iter().cloned().chain(drain)) {
                match step {
                    Step::Append(bytes) => {
                        lanes.push(append(bytes), number);
                        expected[0].push_back(number);
                    }
                    Step::Commit(bytes) => {
                        lanes.push(commit(bytes), number);
                        expected[1].push_back(number);
                    }
                    Step::Take => {
                        let waited = [!expected[0].is_empty(), !expected[1].is_empty()];
                        let group = lanes.take_group(TARGET);
                        let mut went = [false; 2];
                        for (work, number) in group.works.iter().zip(&group.waiting) {
                            let lane = usize::from(!is_append(work));
                            prop_assert_eq!(expected[lane].pop_front(), Some(*number));
                            went[lane] = true;
                        }
                        let bytes = bytes_of(&group, |_| true);
                        prop_assert!(bytes <= TARGET || group.works.len() == 1, "{bytes} bytes in one frame");
                        for lane in 0..2 {
                            prop_assert!(!passed_over[lane] || went[lane], "a lane was passed over twice");
                            passed_over[lane] = waited[lane] && !went[lane];
                        }
                        prop_assert!(went[0] || went[1] || !(waited[0] || waited[1]), "nothing is taken although requests wait");
                    }
                }
                prop_assert_eq!(lanes.len(), expected[0].len() + expected[1].len());
            }
            prop_assert!(lanes.is_empty() && lanes.bytes() == 0);
        }
    }
}
