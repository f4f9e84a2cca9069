//! One partition: its recent batches in memory, its segments on disk, and those who wait for more.
//!
//! Batches enter at the tail when their frame is durable ([`Partition::publish`]). Behind the journal they are written to
//! segments ([`Partition::spill`]); after that memory may let go of them ([`Partition::forget`]). A reader takes from memory what
//! is there, shared and not copied, and the rest from the segments.

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
use crate::error::Damage;
use crate::format::{Batch, FolderSecret};
use crate::segment::{BatchesOf, IndexEntry, Segment};
use crate::settings::Settings;
use crate::verify::Extent;

pub use arrival::Arrival;
pub use read::Batches;
use unreadable::UnreadablePlaces;

pub(crate) struct Partition {
    pub key: PartitionKey,
    secret: FolderSecret,
    folder: PathBuf,
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    /// Held while segments are written or removed: by whoever spills, trims or deletes, never by readers or the journal.
    writing: Mutex<()>,
    unreadable: UnreadablePlaces,
    /// There are batches that are not in segments; set by the first, so that the list of such partitions has each once.
    dirty: AtomicBool,
}

struct State {
    /// The first offset that is kept.
    first: u64,
    /// The offset that the next record gets.
    next: u64,
    /// Recent batches in order, without a gap to `next` except where damage left one.
    tail: VecDeque<TailBatch>,
    /// Everything below is in segments.
    saved_next: u64,
    /// Offsets below that damage took and that nobody may get again; they are in no segment and not in the tail.
    skipped_upto: u64,
    /// In order of their bases; the last one is being written unless `active_len` is zero.
    segments: Vec<Arc<Segment>>,
    /// Dropped, and to be removed when no checkpoint speaks of them any more.
    doomed: Vec<Arc<Segment>>,
    active_len: u64,
    active_max_timestamp: i64,
    active_begun_at: i64,
    /// Where the last index entry of the active segment points.
    indexed_upto: u64,
    /// Those who wait for more, by the number that each was given.
    waiting: HashMap<u64, Waker>,
    next_waiting: u64,
    deleted: bool,
}

struct TailBatch {
    batch: Batch,
    /// The frame it came with.
    sequence: u64,
}

/// What became of a batch that was handed to its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    /// It is the first that is not in segments: the partition belongs on the list of those that have such.
    NewlyDirty,
    /// The partition is on that list.
    Dirty,
    /// The partition was deleted meanwhile.
    Deleted,
}

/// A segment that could not be read, sealed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub key: PartitionKey,
    pub file: PathBuf,
    pub error: String,
}

/// What a segment write brought, also where it failed midway.
#[derive(Default)]
pub(crate) struct Spilled {
    pub bytes: u64,
    /// The files that were written, for disks that sync by file.
    pub touched: Vec<PathBuf>,
}

impl Partition {
    pub fn new(of: BatchesOf, folder: PathBuf, disk: Arc<dyn Disk>, settings: &Settings) -> Self {
        let state = State {
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

    /// Opens what a checkpoint left: drops segments that were begun after it, cuts the active one back, and tells of what is
    /// missing.
    pub fn open(
        of: BatchesOf,
        folder: PathBuf,
        disk: Arc<dyn Disk>,
        settings: &Settings,
        mark: Option<&PartitionMark>,
        now: i64,
    ) -> io::Result<(Self, Vec<Damage>)> {
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
                    // Dropped before the crash, as the checkpoint says; only its name came back.
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
                    // Whatever of it is there stays readable as a sealed segment; the next record begins a new one.
                    damage.push(Damage {
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

    /// The file that is being written.
    pub fn active_path(&self) -> Option<PathBuf> {
        let state = self.state();
        state.segments.last().filter(|_| state.active_len > 0).map(|segment| segment.path().to_owned())
    }

    /// The segments that are not written to any more, each with what must be in it.
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

    /// What its batches must say of themselves.
    fn batches_of(&self) -> BatchesOf {
        BatchesOf { secret: self.secret, key: self.key }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_deleted(&self) -> bool {
        self.state().deleted
    }

    /// First kept and next offset.
    pub fn bounds(&self) -> (u64, u64) {
        let state = self.state();
        (state.first, state.next)
    }

    /// The latest time in memory or in the segment that is being written.
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

    /// Takes a durable batch.
    pub fn publish(&self, batch: Batch, sequence: u64) -> Published {
        let waiting = {
            let mut state = self.state();
            if state.deleted {
                return Published::Deleted;
            }
            debug_assert!(batch.base() >= state.next);
            state.next = batch.end();
            state.tail.push_back(TailBatch { batch, sequence });
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
        if self.dirty.swap(true, Ordering::AcqRel) { Published::Dirty } else { Published::NewlyDirty }
    }

    /// Gives up the offsets below: damage took what was there.
    pub fn skip_to(&self, next: u64) {
        let mut state = self.state();
        state.next = state.next.max(next);
        state.skipped_upto = state.skipped_upto.max(next);
    }

    /// Nothing is written below the first kept offset again, also where damage took what was between.
    pub fn reach_first(&self) {
        let mut state = self.state();
        state.next = state.next.max(state.first);
    }

    /// Lets go of batches of frames up to `sequence` that are in segments.
    pub fn forget(&self, sequence: u64) {
        let mut state = self.state();
        let saved_next = state.saved_next;
        while state.tail.front().is_some_and(|tail| tail.sequence <= sequence && tail.batch.end() <= saved_next) {
            state.tail.pop_front();
        }
    }

    /// Writes everything unsaved to segments, without syncing.
    pub fn spill(&self, settings: &Settings, now: i64, spilled: &mut Spilled) -> io::Result<()> {
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
                    // Still unsaved: whoever spills next finds it again.
                    self.dirty.store(true, Ordering::Release);
                    return Err(error);
                }
            }
        }
    }

    /// The unsaved batches that go to one segment.
    fn next_portion(&self, settings: &Settings, now: i64) -> Option<Portion> {
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

    fn write_portion(&self, portion: &Portion, settings: &Settings, now: i64) -> io::Result<PathBuf> {
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
        // Only now is it a segment: one whose first write failed must not be found by readers, nor dropped by retention.
        if let Some(begun) = begun {
            state.segments.push(begun);
            state.active_begun_at = now;
        }
        state.active_len = position;
        state.active_max_timestamp = max_timestamp;
        state.indexed_upto = indexed_upto;
        state.saved_next = portion.batches.last().map_or(state.saved_next, Batch::end);
        Ok(segment.path().to_owned())
    }

    /// Ends the active segment; the next spill begins another. Its end goes into the index, so that retention need not read it.
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
        // What a failed write left behind it would stand in a sealed segment for damage.
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

    /// How far the segments reach, for a checkpoint.
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

    /// Drops whole segments that are older than `not_before`, and the oldest while there are more than `bytes_max`. Their files
    /// stay until [`Partition::remove`]. Returns the files that could not be read: retention goes on around them.
    pub fn retain(&self, not_before: Option<i64>, bytes_max: Option<u64>) -> Vec<Unreadable> {
        let mut unreadable = Vec::new();
        let mut failed = |segment: &Segment, error: io::Error| {
            unreadable.push(Unreadable { key: self.key, file: segment.path().to_owned(), error: error.to_string() });
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
            // One whose age cannot be told goes when the next one does, which is younger.
            total -= len;
        }
        self.state().drop_front(dropped);
        unreadable
    }

    /// Makes `before` the first kept offset and drops the segments that are wholly below it. Their files stay until
    /// [`Partition::remove`].
    pub fn trim(&self, before: u64) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let before = before.min(state.next);
        state.first = state.first.max(before);
        let ends = state.segments.iter().skip(1).map(|segment| segment.base);
        let dropped = ends.take_while(|end| *end <= before.min(state.saved_next)).count();
        state.drop_front(dropped);
    }

    /// The segments that were dropped and whose files are there. Marks that are taken after this do not speak of them.
    pub fn doomed(&self) -> Vec<Arc<Segment>> {
        self.state().doomed.clone()
    }

    /// Makes an earlier mark true for when these segments are gone.
    pub fn amend(&self, mark: &mut PartitionMark, doomed: &[Arc<Segment>]) {
        mark.first = self.state().first.into();
        if doomed.iter().any(|segment| segment.base == mark.active_base.get()) {
            (mark.active_base, mark.active_len) = (0.into(), 0.into());
        }
    }

    /// Removes the files of dropped segments, of which no durable checkpoint speaks any more. Returns those that could not be
    /// removed; they are tried again with the next ones.
    pub fn remove(&self, doomed: &[Arc<Segment>]) -> Vec<Unreadable> {
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
                    left.push(Unreadable { key: self.key, file, error: error.to_string() });
                }
            }
        }
        left
    }

    /// Keeps everybody from writing to the partition's folder.
    pub fn hold(&self) -> Held<'_> {
        Held { partition: self, _writing: self.writing.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// A partition to whose folder nobody writes meanwhile.
pub(crate) struct Held<'a> {
    partition: &'a Partition,
    _writing: MutexGuard<'a, ()>,
}

impl Held<'_> {
    /// Ends the partition: nobody waits for it any more, and nothing is written to its folder again. Returns how many bytes it
    /// had that were not in segments.
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

impl State {
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
    batches: Vec<Batch>,
    bytes: u64,
    begins_segment: bool,
}
