//! The work of the keeper: write batches to segments, make checkpoints, drop expired segments, watch the free disk space.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{Core, LogEvent, RejectReason, lock};
use crate::checkpoint::{Checkpoint, PartitionMark};
use crate::disk::{is_full, is_not_begun, is_passing};
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
    fn spill(&self, now: i64, between: &mut dyn FnMut()) -> io::Result<()> {
        let upto = self.published.load(Ordering::Acquire);
        let mut list = std::mem::take(&mut *lock(&self.dirty));
        let mut spilled = SpillResult::default();
        while let Some(partition) = list.pop() {
            let saved_before = spilled.bytes;
            let result = partition.spill(&self.settings, now, &mut spilled);
            self.unsaved_bytes.fetch_sub((spilled.bytes - saved_before) as i64, Ordering::Relaxed);
            lock(&self.touched).extend(spilled.touched.drain(..));
            if let Err(error) = result {
                list.push(partition);
                lock(&self.dirty).append(&mut list);
                return Err(error);
            }
            between();
        }
        self.saved.store(upto, Ordering::Release);
        self.forget_saved();
        Ok(())
    }

    /// Writes unsaved batches to segments, without a checkpoint, so that they can be evicted from memory.
    pub fn relieve_memory(&self, now: i64) -> Result<(), AppendError> {
        let _keeping = lock(&self.keeping);
        self.spill(now, &mut || {}).map_err(|error| self.keeping_failed("writing segments", &error))
    }

    /// Makes everything published so far durable in the segments and frees the journal files. `between` is called between the steps: the
    /// simulator commits there, where in the running log another thread does.
    pub fn checkpoint(&self, now: i64, between: &mut dyn FnMut()) -> Result<(), AppendError> {
        if let Some(RejectReason::Poisoned(why)) = &*lock(&self.refusal) {
            return Err(AppendError::Poisoned(why.clone()));
        }
        let _keeping = lock(&self.keeping);
        let sequence = self.published.load(Ordering::Acquire);
        let bytes = self.bytes_since_checkpoint.load(Ordering::Relaxed);
        self.spill(now, between).map_err(|error| self.keeping_failed("writing segments", &error))?;
        let doomed = self.doomed();
        // Taken after the writes and before the sync, so the sync covers everything that the marks describe.
        let partitions = self.all_partitions().iter().map(|partition| partition.mark()).collect();
        between();
        let touched: Vec<PathBuf> = lock(&self.touched).iter().cloned().collect();
        if let Err(error) = self.disk.sync_all(&self.root, &touched) {
            if is_not_begun(&error) {
                return Err(self.delay("syncing segments", &error));
            }
            // For any reason: the next sync may skip what a failed sync did not write, and report success.
            return Err(AppendError::Poisoned(self.poison("syncing segments", &error)));
        }
        lock(&self.touched).clear();
        between();
        let (generation, begins) = {
            let state = lock(&self.journal);
            (state.generation, state.journal.is_none())
        };
        let checkpoint = Checkpoint { generation, sequence, partitions };
        checkpoint
            .write(&*self.disk, &self.checkpoint_path())
            .map_err(|error| self.keeping_failed("writing the checkpoint", &error))?;
        *lock(&self.last_checkpoint) = Some(checkpoint);
        between();
        let mut state = lock(&self.journal);
        if begins {
            // The generation is durable now, so its frames may be written.
            state.journal = Some(LogJournal::begin(self.slots.clone(), generation, state.last_sequence));
        }
        if let Some(journal) = state.journal.as_mut() {
            journal.trim(sequence);
        }
        drop(state);
        self.delay_reported.store(false, Ordering::Relaxed);
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
        self.all_partitions().into_iter().filter_map(with_doomed).collect()
    }

    /// Removes the files of dropped segments. The checkpoint must not refer to them any more, or the next start would report them as
    /// damage. So the last checkpoint is written again without them, which needs almost no space.
    fn remove_doomed(&self) -> io::Result<Vec<BadSegment>> {
        let doomed = self.doomed();
        if doomed.is_empty() {
            return Ok(Vec::new());
        }
        let amended = lock(&self.last_checkpoint).clone().map(|mut checkpoint| {
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
            let write = || amended.write(&*self.disk, &self.checkpoint_path());
            let written = match write() {
                Err(error) if is_full(&error) => {
                    // The indexes of the dropped segments free enough space, and nothing needs them.
                    let mut segments = doomed.iter().flat_map(|(_, segments)| segments);
                    segments.try_for_each(|segment| segment.remove_index(&*self.disk)).and_then(|()| write())
                }
                other => other,
            };
            match written {
                Ok(()) => *lock(&self.last_checkpoint) = Some(amended),
                Err(error) => {
                    self.keeping_failed("writing the checkpoint", &error);
                    return Err(error);
                }
            }
        }
        Ok(doomed.iter().flat_map(|(partition, segments)| partition.remove(segments)).collect())
    }

    /// A full disk and a shortage of file descriptors or memory are temporary. After other errors, the contents of the disk are unknown.
    fn keeping_failed(&self, what: &str, error: &io::Error) -> AppendError {
        if is_full(error) {
            let why = format!("{what}: {error}");
            self.set_full(why.clone());
            AppendError::DiskFull(why)
        } else if is_passing(error) {
            self.delay(what, error)
        } else {
            AppendError::Poisoned(self.poison(what, error))
        }
    }

    /// Checks the free disk space. The log rejects appends below the reserve. It accepts them again when the space is back and a checkpoint
    /// could write the batches in memory.
    pub fn watch_room(&self, now: i64) {
        let reserve = self.settings.disk_reserve_bytes;
        let Ok(free) = self.disk.free_bytes(&self.root) else { return };
        let is_refusing = matches!(&*lock(&self.refusal), Some(RejectReason::Full(_)));
        if free < reserve {
            self.set_full(format!("{free} bytes are free, and {reserve} must stay free"));
        } else if is_refusing && free >= reserve.saturating_add(reserve / 8) && self.checkpoint(now, &mut || {}).is_ok()
        {
            self.clear_full();
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
        self.retention.write().unwrap_or_else(PoisonError::into_inner).insert(topic, retention);
    }

    /// Drops whole segments that exceed the age or size that their topic keeps. A segment that cannot be read does not block the others. It
    /// is reported once, until it can be read again.
    pub fn retain(&self, now: i64) -> io::Result<()> {
        let _keeping = lock(&self.keeping);
        let mut unreadable = Vec::new();
        for partition in self.all_partitions() {
            let retention =
                self.retention.read().unwrap_or_else(PoisonError::into_inner).get(&partition.key.topic).copied();
            let Some(retention) = retention else { continue };
            let not_before =
                retention.time.map(|time| now.saturating_sub(time.as_millis().min(i64::MAX as u128) as i64));
            unreadable.extend(partition.retain(not_before, retention.bytes));
        }
        let removed = self.remove_doomed();
        unreadable.extend(removed.as_deref().unwrap_or_default().iter().cloned());
        self.report_unreadable(unreadable);
        removed.map(drop)
    }

    fn report_unreadable(&self, unreadable: Vec<BadSegment>) {
        let mut files = HashSet::new();
        let mut known = lock(&self.unreadable);
        let mut news = Vec::new();
        for BadSegment { key, file, error } in unreadable {
            // A segment that cannot be read may also be one that cannot be removed, so a file is reported once.
            if files.insert(file.clone()) && !known.contains(&file) {
                news.push(LogEvent::SegmentUnreadable { key, file, error });
            }
        }
        *known = files;
        drop(known);
        news.into_iter().for_each(&self.on_event);
    }

    /// Makes `before` the first kept offset of a partition. The next checkpoint or retention pass makes it durable and removes the records
    /// below it from the disk.
    pub fn trim(&self, key: PartitionKey, before: u64) -> Result<(), ReadError> {
        self.known_partition(key)?.trim(before);
        Ok(())
    }

    fn unsaved(&self) -> u64 {
        self.unsaved_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Whether the unsaved batches must be written to segments.
    pub fn wants_relief(&self) -> bool {
        self.unsaved() > self.settings.unsaved_bytes_max / 4
    }

    /// Whether appends must wait for the keeper.
    pub fn must_wait(&self) -> bool {
        if self.unsaved() > self.settings.unsaved_bytes_max {
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
