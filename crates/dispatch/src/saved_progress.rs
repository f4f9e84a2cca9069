//! The saved progress of a subscription, until a line opens the partition of each row. Pure.

use std::collections::HashMap;

use whimbrel_model::ports::{ProgressKey, ProgressRow};
use whimbrel_model::{PartitionId, Record, Timestamp};

use super::delivery_line::DeliveryLine;
use super::progress_format::{self, MalformedProgress};
use super::window::PartitionResume;

/// Where a line starts in a partition.
#[derive(Debug, PartialEq)]
pub enum SavedStart {
    /// No row counts for the line.
    Fresh,
    /// The row's progress, and the time since which all attempts have failed.
    Resumed(PartitionResume, Option<Timestamp>),
    Malformed(MalformedProgress),
}

pub struct SavedProgress {
    rows: HashMap<ProgressKey, ProgressRow>,
}

impl SavedProgress {
    pub fn new(rows: Vec<ProgressRow>) -> Self {
        Self { rows: rows.into_iter().map(|row| (row.place, row)).collect() }
    }

    /// Whether rows of the line belong to a seek that this node has not seen yet.
    pub fn are_ahead(&self, line: &DeliveryLine<Record>) -> bool {
        let rows = self.rows.values().filter(|row| row.place.line == line.number);
        progress_format::are_ahead(rows.map(|row| row.run), line.run)
    }

    /// Takes the row of a partition.
    pub fn take(&mut self, line: &DeliveryLine<Record>, partition: PartitionId, is_retry: bool) -> SavedStart {
        match self.take_row(line.number, partition) {
            Some(row) if progress_format::counts(row.run, line.run, is_retry) => {
                match progress_format::decode(&row.state) {
                    Ok((resume, failing_since)) => SavedStart::Resumed(resume, failing_since),
                    Err(error) => SavedStart::Malformed(error),
                }
            }
            _ => SavedStart::Fresh,
        }
    }

    pub fn take_row(&mut self, line: u32, partition: PartitionId) -> Option<ProgressRow> {
        self.rows.remove(&ProgressKey { line, partition })
    }

    /// Keeps a line's progress in a partition until that partition is opened again, by a line of this run.
    pub fn keep(
        &mut self,
        line: &DeliveryLine<Record>,
        partition: PartitionId,
        run: u32,
        failing_since: Option<Timestamp>,
    ) {
        let Some(progress) = line.window.progress(partition) else { return };
        let place = ProgressKey { line: line.number, partition };
        let state = progress_format::encode(&progress, failing_since).into();
        self.rows.insert(place, ProgressRow { place, run, state });
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::subscription::{Mode, Ordering};
    use whimbrel_model::{SubscriptionSpec, TopicNumber};

    use super::super::delivery_line::LineRules;
    use super::super::window::WindowLimits;
    use super::*;

    const PARTITION: PartitionId = PartitionId::new(TopicNumber(1), 0);

    fn line(run: u32) -> DeliveryLine<Record> {
        let limits = WindowLimits { body_bytes: 1 << 20, parked_bytes: 1 << 20 };
        let rules = LineRules::of(&SubscriptionSpec::new(Vec::new(), Mode::Push, None));
        let mut line = DeliveryLine::new(0, run, 1, Ordering::Key, limits, rules);
        line.window.open(PARTITION, PartitionResume::at(7), None, false);
        line
    }

    fn rows(run: u32) -> SavedProgress {
        let mut rows = SavedProgress::new(Vec::new());
        rows.keep(&line(run), PARTITION, run, Some(Timestamp::from_millis(5)));
        rows
    }

    #[test]
    fn a_row_counts_once_for_its_run() {
        let mut saved = rows(2);
        let resumed = SavedStart::Resumed(PartitionResume::at(7), Some(Timestamp::from_millis(5)));
        assert_eq!(saved.take(&line(2), PARTITION, false), resumed);
        assert_eq!(saved.take(&line(2), PARTITION, false), SavedStart::Fresh);
        assert_eq!(rows(1).take(&line(2), PARTITION, false), SavedStart::Fresh);
        assert_eq!(rows(1).take(&line(2), PARTITION, true), resumed, "retries belong to no run");
    }

    #[test]
    fn a_line_waits_for_a_seek_that_is_ahead() {
        assert!(rows(3).are_ahead(&line(2)) && !rows(2).are_ahead(&line(2)));
    }

    #[test]
    fn a_row_that_cannot_be_read_is_not_a_fresh_start() {
        let place = ProgressKey { line: 0, partition: PARTITION };
        let row = |state: &'static [u8]| ProgressRow { place, run: 2, state: state.into() };
        let start = |state| SavedProgress::new(vec![row(state)]).take(&line(2), PARTITION, false);
        assert_eq!(start(&[9, 1]), SavedStart::Malformed(MalformedProgress::OtherFormat(9)));
        assert_eq!(start(&[1, 1]), SavedStart::Malformed(MalformedProgress::Garbled));
    }
}
