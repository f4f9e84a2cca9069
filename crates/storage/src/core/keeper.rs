//! The work of the keeper: write batches to segments, make checkpoints, drop expired segments, watch the free disk space.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{CheckpointState, Core, lock};
use crate::checkpoint::{Checkpoint, PartitionMark};
use crate::disk::{is_full, is_not_begun};
use crate::error::ReadError;
use crate::journal::LogJournal;
use crate::partition::{BadSegment, LogPartition, SpillResult};
use crate::segment::Segment;
use crate::{AppendError, PartitionKey};

/// The retention of a topic: the age of its records, and the bytes of each of its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicRetention {
    pub time: Option<Duration>,
    pub bytes: Option<u64>,
}

/// A partition with its dropped segments.
type Doomed = (Arc<LogPartition>, Vec<Arc<Segment>>);

impl Core {
    /// Writes all unsaved batches to segments, without a sync.
    fn spill(&self, state: &mut CheckpointState, now: i64, between: &mut dyn FnMut()) -> io::Result<()> {
        let upto = self.recent.published();
        let mut list = self.unsaved.take_dirty();
        let mut spilled = SpillResult::default();
        while let Some(partition) = list.pop() {
            let saved_before = spilled.bytes;
            let result = partition.spill(&self.settings, now, &mut spilled);
            self.unsaved.subtract(spilled.bytes - saved_before);
            state.touched.extend(spilled.touched.drain(..));
            if let Err(error) = result {
                list.push(partition);
                self.unsaved.give_back(list);
                return Err(error);
            }
            between();
        }
        self.recent.set_saved(upto);
        self.recent.evict_saved(self.settings.tail_bytes);
        Ok(())
    }

    /// Writes unsaved batches to segments, without a checkpoint, so that they can be evicted from memory.
    pub fn relieve_memory(&self, now: i64) -> Result<(), AppendError> {
        let mut state = lock(&self.checkpoints);
        self.spill(&mut state, now, &mut || {}).map_err(|error| self.health.keeping_failed("writing segments", &error))
    }

    /// Makes everything published so far durable in the segments and frees the journal files. `between` is called between the steps: the
    /// simulator commits there, where in the running log another thread does.
    pub fn checkpoint(&self, now: i64, between: &mut dyn FnMut()) -> Result<(), AppendError> {
        if let Some(error @ AppendError::Poisoned(_)) = self.refusal() {
            return Err(error);
        }
        let mut state = lock(&self.checkpoints);
        let sequence = self.recent.published();
        let bytes = self.bytes_since_checkpoint.load(Ordering::Relaxed);
        self.spill(&mut state, now, between).map_err(|error| self.health.keeping_failed("writing segments", &error))?;
        let doomed = self.doomed();
        // Taken after the writes and before the sync, so the sync covers everything that the marks describe.
        let partitions = self.partitions.all().iter().map(|partition| partition.mark()).collect();
        between();
        let touched: Vec<PathBuf> = state.touched.iter().cloned().collect();
        if let Err(error) = self.disk.sync_all(&self.layout.root, &touched) {
            if is_not_begun(&error) {
                return Err(self.health.delay("syncing segments", &error));
            }
            // For any reason: the next sync may skip what a failed sync did not write, and report success.
            return Err(AppendError::Poisoned(self.health.poison("syncing segments", &error)));
        }
        state.touched.clear();
        between();
        let (generation, begins) = {
            let journal = lock(&self.journal);
            (journal.generation, journal.journal.is_none())
        };
        let checkpoint = Checkpoint { generation, sequence, partitions };
        checkpoint
            .write(&*self.disk, &self.layout.checkpoint())
            .map_err(|error| self.health.keeping_failed("writing the checkpoint", &error))?;
        state.last = Some(checkpoint);
        between();
        let mut journal = lock(&self.journal);
        if begins {
            // The generation is durable now, so its frames may be written.
            journal.journal = Some(LogJournal::begin(self.slots.clone(), generation, journal.last_sequence));
        }
        if let Some(journal) = journal.journal.as_mut() {
            journal.trim(sequence);
        }
        drop(journal);
        self.health.end_delay();
        self.bytes_since_checkpoint.fetch_sub(bytes, Ordering::Relaxed);
        let left: Vec<BadSegment> =
            doomed.iter().flat_map(|(partition, segments)| partition.remove(segments)).collect();
        for BadSegment { file, error, .. } in left {
            tracing::warn!(file = %file.display(), error, "an old segment could not be removed; it is retried later");
        }
        Ok(())
    }

    /// All dropped segments whose files still exist.
    fn doomed(&self) -> Vec<Doomed> {
        let with_doomed = |partition: Arc<LogPartition>| {
            let segments = partition.doomed();
            (!segments.is_empty()).then_some((partition, segments))
        };
        self.partitions.all().into_iter().filter_map(with_doomed).collect()
    }

    /// Removes the files of dropped segments. The checkpoint must not refer to them any more, or the next start would report them as
    /// damage. So the last checkpoint is written again without them, which needs almost no space.
    fn remove_doomed(&self, state: &mut CheckpointState) -> io::Result<Vec<BadSegment>> {
        let doomed = self.doomed();
        if doomed.is_empty() {
            return Ok(Vec::new());
        }
        let amended = state.last.clone().map(|mut checkpoint| {
            for (partition, segments) in &doomed {
                let key = partition.key;
                let is_its =
                    |mark: &&mut PartitionMark| (mark.topic.get(), mark.partition.get()) == (key.topic, key.partition);
                if let Some(mark) = checkpoint.partitions.iter_mut().find(is_its) {
                    partition.amend(mark, segments);
                }
            }
            checkpoint
        });
        if let Some(amended) = amended {
            let write = || amended.write(&*self.disk, &self.layout.checkpoint());
            let written = match write() {
                Err(error) if is_full(&error) => {
                    // The indexes of the dropped segments free enough space, and nothing needs them.
                    let mut segments = doomed.iter().flat_map(|(_, segments)| segments);
                    segments.try_for_each(|segment| segment.remove_index(&*self.disk)).and_then(|()| write())
                }
                other => other,
            };
            match written {
                Ok(()) => state.last = Some(amended),
                Err(error) => {
                    self.health.keeping_failed("writing the checkpoint", &error);
                    return Err(error);
                }
            }
        }
        Ok(doomed.iter().flat_map(|(partition, segments)| partition.remove(segments)).collect())
    }

    /// Checks the free disk space. The log rejects appends below the reserve. It accepts them again when the space is back and a checkpoint
    /// could write the batches in memory.
    pub fn watch_room(&self, now: i64) {
        let reserve = self.settings.disk_reserve_bytes;
        let Ok(free) = self.disk.free_bytes(&self.layout.root) else { return };
        let is_refusing = matches!(self.refusal(), Some(AppendError::DiskFull(_)));
        if free < reserve {
            self.health.set_full(format!("{free} bytes are free, and {reserve} must stay free"));
        } else if is_refusing && free >= reserve.saturating_add(reserve / 8) && self.checkpoint(now, &mut || {}).is_ok()
        {
            self.health.clear_full();
        }
    }

    /// Creates the next journal file before it is needed.
    pub fn prepare_journal(&self) {
        if self.slots.free() == 0 && self.refusal().is_none() {
            // If this fails, the commit that needs the file meets the same error and reports it.
            if let Err(error) = self.slots.make() {
                tracing::debug!(%error, "cannot create a journal file in advance");
            }
        }
    }

    pub fn set_retention(&self, topic: u32, retention: TopicRetention) {
        self.partitions.set_retention(topic, retention);
    }

    /// Drops whole segments that exceed the age or size that their topic keeps. A segment that cannot be read does not block the others. It
    /// is reported once, until it can be read again.
    pub fn retain(&self, now: i64) -> io::Result<()> {
        let mut state = lock(&self.checkpoints);
        let mut unreadable = Vec::new();
        for partition in self.partitions.all() {
            let Some(retention) = self.partitions.retention(partition.key.topic) else { continue };
            let not_before =
                retention.time.map(|time| now.saturating_sub(time.as_millis().min(i64::MAX as u128) as i64));
            unreadable.extend(partition.retain(not_before, retention.bytes));
        }
        let removed = self.remove_doomed(&mut state);
        unreadable.extend(removed.as_deref().unwrap_or_default().iter().cloned());
        self.health.report_unreadable(unreadable);
        removed.map(drop)
    }

    /// Makes `before` the first kept offset of a partition. The next checkpoint or retention pass makes it durable and removes the records
    /// below it from the disk.
    pub fn trim(&self, key: PartitionKey, before: u64) -> Result<(), ReadError> {
        self.known_partition(key)?.trim(before);
        Ok(())
    }

    /// Whether the unsaved batches must be written to segments.
    pub fn wants_relief(&self) -> bool {
        self.unsaved.bytes() > self.settings.unsaved_bytes_max / 4
    }

    /// Whether appends must wait for the keeper.
    pub fn must_wait(&self) -> bool {
        if self.unsaved.bytes() > self.settings.unsaved_bytes_max {
            return true;
        }
        let state = lock(&self.journal);
        let headroom = 2 * self.settings.journal_file_bytes;
        state.journal.as_ref().is_some_and(|journal| journal.used_bytes() + headroom > self.settings.journal_bytes_max)
    }

    /// Whether enough was written for a checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        self.bytes_since_checkpoint.load(Ordering::Relaxed) > self.settings.checkpoint_bytes
    }

    pub fn has_written(&self) -> bool {
        self.bytes_since_checkpoint.load(Ordering::Relaxed) > 0
    }
}
