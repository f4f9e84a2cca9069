//! Reading on through a stretch of one partition, past what retention or damage has taken.
//!
//! Whoever looks for something in the log walks; whoever must account for every record (a fold, a reader who is told of losses) reads
//! the port itself, since a walk says only that it passed over something, and not what.

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
    /// A walk from `from` to before `until`.
    pub fn new(log: &'a dyn Log, partition: PartitionId, from: u64, until: u64) -> Self {
        Self { log, partition, at: from, until, has_passed_over: false }
    }

    /// The next records, at most so many and at least one. `None` at the end of the stretch, or where nothing more is visible: a walk
    /// does not wait.
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

    /// Whether something of the stretch was there and can not be seen any more.
    pub fn has_passed_over(&self) -> bool {
        self.has_passed_over
    }

    /// Whether everything of the stretch was seen or can never be.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.until
    }

    /// Where the walk goes on.
    pub fn at(&self) -> u64 {
        self.at
    }
}
