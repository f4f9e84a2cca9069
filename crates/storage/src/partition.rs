//! One partition: its recent batches in memory, its segments on disk, and the waiting readers.
//!
//! Batches enter at the tail when their frame is durable ([`LogPartition::publish`]). Later they are written to segments
//! ([`LogPartition::spill`]); after that they can be evicted from memory ([`LogPartition::forget`]). Readers share the batches in memory without
//! a copy, and read the rest from the segments.

mod arrival;
mod read;
mod unreadable;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::PartitionKey;
use crate::checkpoint::PartitionMark;
use crate::disk::Disk;
use crate::error::LogDamage;
use crate::format::{FolderSecret, LogBatch};
use crate::segment::{BatchScope, IndexEntry, Segment};
use crate::settings::LogSettings;
use crate::verify::Extent;

pub use arrival::OffsetArrival;
pub use read::LogRead;
use unreadable::UnreadablePlaces;

pub(crate) struct LogPartition {
    pub key: PartitionKey,
    secret: FolderSecret,
    folder: PathBuf,
    disk: Arc<dyn Disk>,
    state: Mutex<LogState>,
    /// Held while segments are written or removed: by spills, trims and deletions, never by readers or the journal.
    writing: Mutex<()>,
    unreadable: UnreadablePlaces,
    /// Whether there are batches that are not in segments. The first such batch sets it, so the list of dirty partitions has each once.
    dirty: AtomicBool,
}

struct LogState {
    /// The first kept offset.
    first: u64,
    /// The offset of the next record.
    next: u64,
    /// Recent batches in order, dense up to `next` except for gaps from damage.
    tail: VecDeque<TailBatch>,
    /// All records below this offset are in segments.
    saved_next: u64,
    /// Damage took offsets below this one, and they must not be used again. They are in no segment and not in the tail.
    skipped_upto: u64,
    /// In order of their bases. The last one is being written unless `active_len` is zero.
    segments: Vec<Arc<Segment>>,
    /// Dropped segments. Their files are removed when no checkpoint refers to them any more.
    doomed: Vec<Arc<Segment>>,
    active_len: u64,
    active_max_timestamp: i64,
    active_begun_at: i64,
    /// The position of the last index entry of the active segment.
    indexed_upto: u64,
    /// The wakers of waiting readers, by their numbers.
    waiting: HashMap<u64, Waker>,
    next_waiting: u64,
    deleted: bool,
}

struct TailBatch {
    batch: LogBatch,
    /// The frame of the batch.
    sequence: u64,
}

/// The outcome of handing a batch to its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirtyState {
    /// The batch is the first one that is not in segments: the caller adds the partition to the list of dirty partitions.
    NewlyDirty,
    /// The partition is on that list already.
    Dirty,
    /// The partition was deleted.
    Deleted,
}

/// A segment that could not be read, sealed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadSegment {
    pub key: PartitionKey,
    pub file: PathBuf,
    pub error: String,
}

/// The result of writing to segments, also if it failed midway.
#[derive(Default)]
pub(crate) struct SpillResult {
    pub bytes: u64,
    /// The files that were written, for disks that sync file by file.
    pub touched: Vec<PathBuf>,
}

impl LogPartition {
    pub fn new(of: BatchScope, folder: PathBuf, disk: Arc<dyn Disk>, settings: &LogSettings) -> Self {
        let state = LogState {
            first: 0,
            next: 0,
            tail: VecDeque::new(),
            saved_next: 0,
            skipped_upto: 0,
            segments: Vec::new(),
            doomed: Vec::new(),
            active_len: 0,
            active_max_timestamp: i64::MIN,
            active_begun_at: 0,
            indexed_upto: 0,
            waiting: HashMap::new(),
            next_waiting: 0,
            deleted: false,
        };
        Self {
            key: of.key,
            secret: of.secret,
            folder,
            disk,
            state: Mutex::new(state),
            writing: Mutex::new(()),
            unreadable: UnreadablePlaces::new(settings.unreadable_for),
            dirty: AtomicBool::new(false),
        }
    }

    /// Opens a partition as of a checkpoint. Removes segments that were begun later, cuts the active one back, and returns the damage.
    pub fn open(
        of: BatchScope,
        folder: PathBuf,
        disk: Arc<dyn Disk>,
        settings: &LogSettings,
        mark: Option<&PartitionMark>,
        now: i64,
    ) -> io::Result<(Self, Vec<LogDamage>)> {
        let partition = Self::new(of, folder, disk, settings);
        let disk = &*partition.disk;
        let mut bases: Vec<u64> =
            disk.list(&partition.folder)?.iter().filter_map(|name| Segment::base_of(name)).collect();
        bases.sort_unstable();
        let mut damage = Vec::new();
        {
            let mut state = partition.state();
            let (first, next) = mark.map_or((0, 0), |mark| (mark.first.get(), mark.next.get()));
            (state.first, state.next, state.saved_next, state.active_begun_at) = (first, next, next, now);
            let active_len = mark.map_or(0, |mark| mark.active_len.get());
            for (index, base) in bases.iter().copied().enumerate() {
                let segment = Segment::existing(&partition.folder, base);
                let end = bases.get(index + 1).map_or(next, |end| next.min(*end));
                if base >= next {
                    segment.remove(disk)?;
                } else if end <= first && (active_len == 0 || mark.is_none_or(|mark| mark.active_base.get() != base)) {
                    // The segment was dropped before the crash, as the checkpoint shows; only its name came back.
                    state.doomed.push(Arc::new(segment));
                } else {
                    state.segments.push(Arc::new(segment));
                }
            }
            if let (Some(mark), true) = (mark, active_len > 0) {
                let active = state.segments.last().filter(|segment| segment.base == mark.active_base.get()).cloned();
                let len = match &active {
                    Some(segment) => disk.open(segment.path())?.len()?,
                    None => 0,
                };
                if let (Some(segment), true) = (&active, len >= active_len) {
                    disk.open(segment.path())?.set_len(active_len)?;
                    segment.cut_index(disk, active_len)?;
                    state.active_len = active_len;
                    state.indexed_upto = active_len;
                    state.active_max_timestamp = mark.active_max_timestamp.get();
                } else {
                    // The remains stay readable as a sealed segment. The next record begins a new one.
                    damage.push(LogDamage {
                        what: format!("a segment of {len} bytes that should have {active_len}"),
                        file: Segment::existing(&partition.folder, mark.active_base.get()).path().display().to_string(),
                        position: len,
                        resume_at: Some(next),
                    });
                }
            }
        }
        Ok((partition, damage))
    }

    /// The path of the segment that is being written.
    pub fn active_path(&self) -> Option<PathBuf> {
        let state = self.state();
        state.segments.last().filter(|_| state.active_len > 0).map(|segment| segment.path().to_owned())
    }

    /// The segments that are no longer written to, each with the contents that it must have.
    pub fn sealed(&self) -> Vec<Extent> {
        let state = self.state();
        if state.deleted {
            return Vec::new();
        }
        let count = state.segments.len() - usize::from(state.active_len > 0).min(state.segments.len());
        let extent = |(index, segment): (usize, &Arc<Segment>)| Extent {
            of: self.batches_of(),
            path: segment.path().to_owned(),
            base: segment.base,
            len: None,
            end: state.segments.get(index + 1).map_or(state.saved_next, |following| following.base),
        };
        state.segments[..count].iter().enumerate().map(extent).collect()
    }

    /// The secret and the partition that batches must have in their headers.
    fn batches_of(&self) -> BatchScope {
        BatchScope { secret: self.secret, key: self.key }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_deleted(&self) -> bool {
        self.state().deleted
    }

    /// The first kept offset and the next offset.
    pub fn bounds(&self) -> (u64, u64) {
        let state = self.state();
        (state.first, state.next)
    }

    /// The latest record time in memory or in the segment that is being written.
    pub fn latest_time(&self) -> Option<i64> {
        let state = self.state();
        let in_memory = state.tail.iter().map(|tail| tail.batch.header.max_timestamp.get());
        let in_segment = (state.active_len > 0).then_some(state.active_max_timestamp);
        in_memory.chain(in_segment).max()
    }

    pub fn bytes_on_disk(&self) -> u64 {
        let (segments, active_len) = {
            let state = self.state();
            (state.segments.clone(), state.active_len)
        };
        let sealed = segments.len() - usize::from(active_len > 0).min(segments.len());
        let len = |segment: &Arc<Segment>| self.disk.open(segment.path()).and_then(|file| file.len()).unwrap_or(0);
        segments[..sealed].iter().map(len).sum::<u64>() + active_len
    }

    /// Adds a durable batch and wakes the waiting readers.
    pub fn publish(&self, batch: LogBatch, sequence: u64) -> DirtyState {
        let waiting = {
            let mut state = self.state();
            if state.deleted {
                return DirtyState::Deleted;
            }
            debug_assert!(batch.base() >= state.next);
            state.next = batch.end();
            state.tail.push_back(TailBatch { batch, sequence });
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
        if self.dirty.swap(true, Ordering::AcqRel) { DirtyState::Dirty } else { DirtyState::NewlyDirty }
    }

    /// Skips the offsets below `next`, whose records damage took.
    pub fn skip_to(&self, next: u64) {
        let mut state = self.state();
        state.next = state.next.max(next);
        state.skipped_upto = state.skipped_upto.max(next);
    }

    /// Moves the next offset to the first kept offset at least: no record is written below it again, also after damage.
    pub fn reach_first(&self) {
        let mut state = self.state();
        state.next = state.next.max(state.first);
    }

    /// Evicts batches of frames up to `sequence` that are in segments.
    pub fn forget(&self, sequence: u64) {
        let mut state = self.state();
        let saved_next = state.saved_next;
        while state.tail.front().is_some_and(|tail| tail.sequence <= sequence && tail.batch.end() <= saved_next) {
            state.tail.pop_front();
        }
    }

    /// Writes all unsaved batches to segments, without a sync.
    pub fn spill(&self, settings: &LogSettings, now: i64, spilled: &mut SpillResult) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.dirty.store(false, Ordering::Release);
        loop {
            let Some(portion) = self.next_portion(settings, now) else { return Ok(()) };
            match self.write_portion(&portion, settings, now) {
                Ok(path) => {
                    spilled.bytes += portion.bytes;
                    spilled.touched.push(path);
                }
                Err(error) => {
                    // The batches are still unsaved. The next spill writes them.
                    self.dirty.store(true, Ordering::Release);
                    return Err(error);
                }
            }
        }
    }

    /// The unsaved batches that go to one segment.
    fn next_portion(&self, settings: &LogSettings, now: i64) -> Option<Portion> {
        let state = self.state();
        if state.deleted {
            return None;
        }
        let from = state.tail.partition_point(|tail| tail.batch.base() < state.saved_next);
        let first = state.tail.get(from)?;
        let age_ms = now.saturating_sub(state.active_begun_at);
        let room = settings.segment_bytes.saturating_sub(state.active_len);
        let begins_segment = state.active_len == 0
            || first.batch.bytes.len() as u64 > room
            || age_ms > settings.segment_age.as_millis() as i64;
        let room = if begins_segment { settings.segment_bytes } else { room };
        let mut portion = Portion { batches: Vec::new(), bytes: 0, begins_segment };
        for tail in state.tail.range(from..) {
            let len = tail.batch.bytes.len() as u64;
            if !portion.batches.is_empty() && portion.bytes + len > room {
                break;
            }
            portion.bytes += len;
            portion.batches.push(tail.batch.clone());
        }
        Some(portion)
    }

    fn write_portion(&self, portion: &Portion, settings: &LogSettings, now: i64) -> io::Result<PathBuf> {
        let disk = &*self.disk;
        let begun = if portion.begins_segment {
            self.seal_active()?;
            Some(Arc::new(Segment::begin(disk, &self.folder, portion.batches[0].base())?))
        } else {
            None
        };
        let (segment, mut position, mut max_timestamp, mut indexed_upto) = {
            let state = self.state();
            let segment = begun.as_ref().or(state.segments.last()).cloned();
            let segment = segment.expect("a partition that is written to has a segment");
            (segment, state.active_len, state.active_max_timestamp, state.indexed_upto)
        };
        let pieces: Vec<&[u8]> = portion.batches.iter().map(|batch| &batch.bytes[..]).collect();
        disk.open(segment.path())?.write_pieces_at(&pieces, position)?;
        let mut entries = Vec::new();
        for batch in &portion.batches {
            if position - indexed_upto >= settings.index_interval_bytes {
                entries.push(IndexEntry::new(batch.base(), position, max_timestamp));
                indexed_upto = position;
            }
            position += batch.bytes.len() as u64;
            max_timestamp = max_timestamp.max(batch.header.max_timestamp.get());
        }
        segment.extend_index(disk, &entries)?;
        let mut state = self.state();
        // Added only now: readers must not find, and retention must not drop, a segment whose first write failed.
        if let Some(begun) = begun {
            state.segments.push(begun);
            state.active_begun_at = now;
        }
        state.active_len = position;
        state.active_max_timestamp = max_timestamp;
        state.indexed_upto = indexed_upto;
        state.saved_next = portion.batches.last().map_or(state.saved_next, LogBatch::end);
        Ok(segment.path().to_owned())
    }

    /// Seals the active segment; the next spill begins another. The index gets its end, so that retention need not read the segment.
    fn seal_active(&self) -> io::Result<()> {
        let (segment, entry) = {
            let state = self.state();
            match state.segments.last() {
                Some(segment) if state.active_len > 0 => {
                    let entry = IndexEntry::new(state.saved_next, state.active_len, state.active_max_timestamp);
                    (segment.clone(), entry)
                }
                _ => return Ok(()),
            }
        };
        // Cuts off the remains of a failed write, which would look like damage in a sealed segment.
        let file = self.disk.open(segment.path())?;
        let len = u64::from(entry.position.get());
        if file.len()? > len {
            file.set_len(len)?;
        }
        segment.extend_index(&*self.disk, &[entry])?;
        let mut state = self.state();
        state.active_len = 0;
        state.indexed_upto = 0;
        state.active_max_timestamp = i64::MIN;
        Ok(())
    }

    /// The end of the segments, for a checkpoint.
    pub fn mark(&self) -> PartitionMark {
        let state = self.state();
        let active_base = state.segments.last().filter(|_| state.active_len > 0).map_or(0, |segment| segment.base);
        let unsaved = state.tail.iter().map(|tail| tail.batch.base()).find(|base| *base >= state.saved_next);
        let skipped = state.skipped_upto.min(unsaved.unwrap_or(u64::MAX));
        PartitionMark {
            topic: self.key.topic.into(),
            partition: self.key.partition.into(),
            first: state.first.into(),
            next: state.saved_next.max(skipped).into(),
            active_base: active_base.into(),
            active_len: state.active_len.into(),
            active_max_timestamp: state.active_max_timestamp.into(),
        }
    }

    /// Drops whole segments that are older than `not_before`, and the oldest ones while the partition exceeds `bytes_max`. Their files stay
    /// until [`LogPartition::remove`]. Skips files that cannot be read, and returns them.
    pub fn retain(&self, not_before: Option<i64>, bytes_max: Option<u64>) -> Vec<BadSegment> {
        let mut unreadable = Vec::new();
        let mut failed = |segment: &Segment, error: io::Error| {
            unreadable.push(BadSegment { key: self.key, file: segment.path().to_owned(), error: error.to_string() });
        };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let active_expired = {
            let state = self.state();
            if state.deleted {
                return Vec::new();
            }
            let is_expired = not_before.is_some_and(|limit| state.active_max_timestamp < limit);
            state.segments.last().filter(|_| state.active_len > 0 && is_expired).cloned()
        };
        if let Some(active) = active_expired
            && let Err(error) = self.seal_active()
        {
            failed(&active, error);
        }
        let (segments, active_len, saved_next) = {
            let state = self.state();
            (state.segments.clone(), state.active_len, state.saved_next)
        };
        let sealed = &segments[..segments.len() - usize::from(active_len > 0)];
        let mut lens = Vec::with_capacity(sealed.len());
        for segment in sealed {
            lens.push(self.disk.open(segment.path()).and_then(|file| file.len()));
        }
        let mut total = lens.iter().flatten().sum::<u64>() + active_len;
        let mut dropped = 0;
        for (index, (segment, len)) in sealed.iter().zip(lens).enumerate() {
            let end = segments.get(index + 1).map_or(saved_next, |following| following.base);
            let age_of = |len| match not_before {
                Some(_) => segment.max_timestamp(&*self.disk, self.batches_of(), len, end).map(|max| (len, max)),
                None => Ok((len, Some(i64::MAX))),
            };
            let (len, max_timestamp) = len.and_then(age_of).unwrap_or_else(|error| {
                failed(segment, error);
                (0, None)
            });
            let too_old = not_before.zip(max_timestamp).is_some_and(|(limit, max)| max < limit);
            let too_much = bytes_max.is_some_and(|max| total > max);
            if too_old || too_much {
                dropped = index + 1;
            } else if max_timestamp.is_some() {
                break;
            }
            // A segment of unknown age is dropped together with the next one, which is younger.
            total -= len;
        }
        self.state().drop_front(dropped);
        unreadable
    }

    /// Makes `before` the first kept offset and drops the segments below it. Their files stay until [`LogPartition::remove`].
    pub fn trim(&self, before: u64) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let before = before.min(state.next);
        state.first = state.first.max(before);
        let ends = state.segments.iter().skip(1).map(|segment| segment.base);
        let dropped = ends.take_while(|end| *end <= before.min(state.saved_next)).count();
        state.drop_front(dropped);
    }

    /// The dropped segments whose files still exist. Marks that are taken later do not refer to them.
    pub fn doomed(&self) -> Vec<Arc<Segment>> {
        self.state().doomed.clone()
    }

    /// Changes an earlier mark so that it does not refer to these segments.
    pub fn amend(&self, mark: &mut PartitionMark, doomed: &[Arc<Segment>]) {
        mark.first = self.state().first.into();
        if doomed.iter().any(|segment| segment.base == mark.active_base.get()) {
            (mark.active_base, mark.active_len) = (0.into(), 0.into());
        }
    }

    /// Removes the files of dropped segments, after a durable checkpoint without them. Returns the remaining ones; a later call retries
    /// them.
    pub fn remove(&self, doomed: &[Arc<Segment>]) -> Vec<BadSegment> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state().deleted {
            return Vec::new();
        }
        let mut left = Vec::new();
        for segment in doomed {
            match segment.remove(&*self.disk) {
                Ok(()) => self.state().doomed.retain(|other| other.base != segment.base),
                Err(error) => {
                    let file = segment.path().to_owned();
                    left.push(BadSegment { key: self.key, file, error: error.to_string() });
                }
            }
        }
        left
    }

    /// Excludes other writers from the folder of the partition.
    pub fn hold(&self) -> WriteLock<'_> {
        WriteLock { partition: self, _writing: self.writing.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// A partition to whose folder only the holder writes.
pub(crate) struct WriteLock<'a> {
    partition: &'a LogPartition,
    _writing: MutexGuard<'a, ()>,
}

impl WriteLock<'_> {
    /// Ends the partition: wakes its waiting readers and excludes further writes to its folder. Returns its unsaved bytes.
    pub fn delete(&self) -> u64 {
        let (waiting, unsaved) = {
            let mut state = self.partition.state();
            state.deleted = true;
            let saved_next = state.saved_next;
            let unsaved = state.tail.drain(..).filter(|tail| tail.batch.base() >= saved_next);
            let unsaved = unsaved.map(|tail| tail.batch.bytes.len() as u64).sum();
            (std::mem::take(&mut state.waiting), unsaved)
        };
        waiting.into_values().for_each(Waker::wake);
        unsaved
    }
}

impl LogState {
    fn drop_front(&mut self, count: usize) {
        if count > 0 {
            let dropped: Vec<_> = self.segments.drain(..count).collect();
            self.doomed.extend(dropped);
            let first = self.segments.first().map_or(self.saved_next, |segment| segment.base);
            self.first = self.first.max(first);
        }
    }
}

struct Portion {
    batches: Vec<LogBatch>,
    bytes: u64,
    begins_segment: bool,
}
