//! Reads a range of one partition and skips records that retention removed or that are damaged.
//!
//! For searches in the log only. A reader that must account for every record (a fold, a reader that reports losses) uses the port itself: a
//! walk reports only that it skipped records, not which.

use std::time::Duration;

use crate::ports::{Log, LogError, ReadLimits};
use crate::{PartitionId, StoredRecord};

/// Records and bytes of one step.
const STEP_RECORDS: usize = 4096;
const STEP_BYTES: usize = 4 << 20;

pub struct LogWalk<'a> {
    log: &'a dyn Log,
    partition: PartitionId,
    at: u64,
    until: u64,
    has_passed_over: bool,
}

impl<'a> LogWalk<'a> {
    /// A walk from offset `from` to before `until`.
    pub fn new(log: &'a dyn Log, partition: PartitionId, from: u64, until: u64) -> Self {
        Self { log, partition, at: from, until, has_passed_over: false }
    }

    /// The next records: at least one and at most `most`. `None` at the end of the range or of the visible records: a walk does not wait.
    pub async fn step(&mut self, most: usize) -> Result<Option<Vec<StoredRecord>>, LogError> {
        let max_records = STEP_RECORDS.min(most.max(1));
        let limits = ReadLimits { max_records, max_bytes: STEP_BYTES, wait: Duration::ZERO };
        while self.at < self.until {
            let mut batch = match self.log.read(self.partition, self.at, limits).await {
                Ok(batch) => batch,
                Err(LogError::Trimmed { first, .. }) if first > self.at => {
                    self.pass_over(first);
                    continue;
                }
                Err(LogError::Damaged { resume_at, .. }) if resume_at > self.at => {
                    self.pass_over(resume_at);
                    continue;
                }
                Err(LogError::BeyondEnd { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            if batch.next <= self.at {
                return Ok(None);
            }
            self.at = batch.next;
            batch.records.retain(|stored| stored.offset < self.until);
            if !batch.records.is_empty() {
                return Ok(Some(batch.records));
            }
        }
        Ok(None)
    }

    fn pass_over(&mut self, to: u64) {
        self.at = to;
        self.has_passed_over = true;
    }

    /// Whether records of the range were skipped because they were removed or damaged.
    pub fn has_passed_over(&self) -> bool {
        self.has_passed_over
    }

    /// Whether the walk has read or skipped the whole range.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.until
    }

    /// The offset of the next step.
    pub fn at(&self) -> u64 {
        self.at
    }
}
