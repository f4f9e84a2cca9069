//! Partitions of one topic that the brokers do not have although the catalogue has the topic, and the report that the topic is missing.
//!
//! A topic that is deleted through Whimbrel on another node is missing here before this node has read the catalogue. The report therefore
//! waits for a while, and is dropped if the deletion becomes known meanwhile. Pure: the time is passed in.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct MissingPartitions(Mutex<MissingState>);

#[derive(Debug, Default)]
struct MissingState {
    /// The time when the brokers last reported that they do not have the partition.
    partitions: HashMap<u32, Instant>,
    report: MissingReport,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum MissingReport {
    #[default]
    None,
    Waiting,
    Done,
    /// The topic is deleted through Whimbrel.
    Unwanted,
}

impl MissingPartitions {
    /// Records that the brokers do not have the partition, or that they have it.
    pub fn learn(&self, index: u32, is_missing: bool, now: Instant) {
        let mut state = self.state();
        if is_missing {
            state.partitions.insert(index, now);
            return;
        }
        state.partitions.remove(&index);
        if state.report == MissingReport::Done {
            state.report = MissingReport::None;
        }
    }

    /// Records that the brokers do not have the topic. `partitions` is the number of partitions that it had.
    pub fn learn_all_missing(&self, partitions: u32, now: Instant) {
        self.state().partitions.extend((0..partitions).map(|index| (index, now)));
    }

    /// Whether the brokers do not have the topic at all. Every topic has partition 0.
    pub fn is_whole_topic(&self) -> bool {
        self.at(0).is_some()
    }

    /// The time when the brokers last reported that they do not have the partition.
    pub fn at(&self, index: u32) -> Option<Instant> {
        self.state().partitions.get(&index).copied()
    }

    /// Whether a report must begin: none is waiting, sent or suppressed.
    pub fn begin_report(&self) -> bool {
        let mut state = self.state();
        let begins = state.report == MissingReport::None;
        if begins {
            state.report = MissingReport::Waiting;
        }
        begins
    }

    /// Ends the wait of a report. Returns whether the topic must be reported: it is still missing, and not deleted through Whimbrel.
    pub fn finish_report(&self, is_missing: bool) -> bool {
        let mut state = self.state();
        let is_due = state.report == MissingReport::Waiting && is_missing;
        if state.report == MissingReport::Waiting {
            state.report = if is_missing { MissingReport::Done } else { MissingReport::None };
        }
        is_due
    }

    /// Suppresses the report that the topic is missing: it is deleted through Whimbrel.
    pub fn expect(&self) {
        self.state().report = MissingReport::Unwanted;
    }

    fn state(&self) -> MutexGuard<'_, MissingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_topic_is_reported_once_until_it_exists_again() {
        let (missing, now) = (MissingPartitions::default(), Instant::now());
        missing.learn(0, true, now);
        assert!(missing.begin_report());
        assert!(!missing.begin_report(), "one report waits already");
        assert!(missing.finish_report(true));
        assert!(!missing.begin_report() && !missing.finish_report(true));
        missing.learn(0, false, now);
        assert_eq!(missing.at(0), None);
        assert!(missing.begin_report());
    }

    #[test]
    fn a_topic_that_comes_back_during_the_wait_is_not_reported() {
        let missing = MissingPartitions::default();
        assert!(missing.begin_report());
        assert!(!missing.finish_report(false));
        assert!(missing.begin_report(), "it can go missing again");
    }

    #[test]
    fn a_topic_whose_deletion_becomes_known_during_the_wait_is_not_reported() {
        let missing = MissingPartitions::default();
        assert!(missing.begin_report());
        missing.expect();
        assert!(!missing.finish_report(true));
        missing.learn(0, false, Instant::now());
        assert!(!missing.begin_report());
    }
}
