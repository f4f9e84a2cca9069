//! Reads a partition by offset and by time.

use std::io;
use std::sync::Arc;

use super::unreadable::{BadPart, ReadableAt};
use super::{LogPartition, LogState};
use crate::disk::is_unreadable;
use crate::error::{LogDamage, ReadError};
use crate::format::LogBatch;
use crate::segment::{ScanError, Scanner, Segment};

/// A file in the partition's folder that is written and removed to probe the disk.
const PROBE: &str = "probe";
const PROBE_LEN: usize = 4096;

/// The result of a read. The first batch may begin before the requested offset.
#[derive(Debug, Default)]
pub struct LogRead {
    pub batches: Vec<LogBatch>,
    /// The offset of the next read.
    pub next: u64,
}

/// The part of a segment to read, taken while the state was locked.
struct SegmentPlan {
    segment: Arc<Segment>,
    /// `None` means up to the end of the file, since the segment is sealed.
    len: Option<u64>,
    /// The offset after the segment's last record.
    end_offset: u64,
}

impl LogPartition {
    /// Reads from memory. Returns `None` if `from` is on disk only, and no batches at the tail.
    pub fn read_memory(&self, from: u64, max_bytes: usize) -> Result<Option<LogRead>, ReadError> {
        let state = self.state();
        check_bounds(&state, from)?;
        if from == state.next {
            return Ok(Some(LogRead { batches: Vec::new(), next: from }));
        }
        let at = state.tail.partition_point(|tail| tail.batch.end() <= from);
        match state.tail.get(at) {
            // A gap before the batch is damage, which the read from disk reports.
            Some(tail) if tail.batch.base() <= from => {}
            _ => return Ok(None),
        }
        let mut read = LogRead { batches: Vec::new(), next: from };
        let mut bytes = 0;
        for tail in state.tail.range(at..) {
            let len = tail.batch.bytes.len();
            let is_gap = tail.batch.base() > read.next;
            if !read.batches.is_empty() && (bytes + len > max_bytes || is_gap) {
                break;
            }
            bytes += len;
            read.next = tail.batch.end();
            read.batches.push(tail.batch.clone());
        }
        Ok(Some(read))
    }

    /// Reads from memory or disk; may block on the disk. Returns at least one batch if there is one.
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<LogRead, ReadError> {
        loop {
            if let Some(read) = self.read_memory(from, max_bytes)? {
                return Ok(read);
            }
            let plan = {
                let state = self.state();
                check_bounds(&state, from)?;
                plan_for(&state, from)
            };
            let Some(plan) = plan else {
                return Err(if self.is_deleted() { ReadError::UnknownPartition(self.key) } else { self.hole_at(from) });
            };
            match self.read_segment(&plan, from, max_bytes) {
                // If retention dropped the segment meanwhile, the next round returns the new bounds.
                Err(ReadError::Io { .. } | ReadError::Damaged(_)) if self.bounds().0 > from => {}
                Err(_) if self.is_deleted() => return Err(ReadError::UnknownPartition(self.key)),
                other => return other,
            }
        }
    }

    fn read_segment(&self, plan: &SegmentPlan, from: u64, max_bytes: usize) -> Result<LogRead, ReadError> {
        let position = plan.segment.position_for(&*self.disk, from);
        match self.read_from(plan, position, from, max_bytes) {
            // The position in the index may be wrong: read the segment from its beginning.
            Err(ReadError::Damaged(_)) if position > 0 => self.read_from(plan, 0, from, max_bytes),
            other => other,
        }
    }

    fn read_from(&self, plan: &SegmentPlan, position: u64, from: u64, max_bytes: usize) -> Result<LogRead, ReadError> {
        let mut scanner = match self.scanner(plan, position) {
            Ok(scanner) => scanner.with_chunk(max_bytes),
            Err(error) => {
                let (resume_at, _) = self.next_readable(plan, BadPart::Whole, &error)?;
                return Err(self.damaged(plan, 0, &unreadable(&error), resume_at));
            }
        };
        self.unreadable.succeeded((plan.segment.base, BadPart::Whole));
        let mut read = LogRead { batches: Vec::new(), next: from };
        let mut bytes = 0;
        loop {
            let (position, what, (resume_at, onwards)) = match scanner.next() {
                Ok(Some((at, batch))) => {
                    self.unreadable.succeeded((plan.segment.base, BadPart::Position(at)));
                    if batch.end() <= from {
                        continue;
                    }
                    if batch.base() > read.next {
                        // A gap between batches: the journal frame with these records was damaged.
                        return if read.batches.is_empty() {
                            Err(self.damaged(plan, at, "records are missing", batch.base()))
                        } else {
                            Ok(read)
                        };
                    }
                    let len = batch.bytes.len();
                    if !read.batches.is_empty() && bytes + len > max_bytes {
                        return Ok(read);
                    }
                    bytes += len;
                    read.next = batch.end();
                    read.batches.push(batch);
                    if bytes >= max_bytes {
                        return Ok(read);
                    }
                    continue;
                }
                Ok(None) if read.batches.is_empty() => {
                    let end = scanner_end(plan, &scanner);
                    return Err(self.damaged(plan, end, "records are missing", plan.end_offset));
                }
                Ok(None) => return Ok(read),
                Err(_) if !read.batches.is_empty() => return Ok(read),
                Err(ScanError::Io(error)) => {
                    let at = scanner.position();
                    (at, unreadable(&error), self.next_readable(plan, BadPart::Position(at), &error)?)
                }
                Err(ScanError::Bad { position, what }) => {
                    (position, what.to_owned(), self.resume_after(plan, position)?)
                }
            };
            match onwards {
                // The damage lies before the requested offset.
                Some(onwards) if resume_at <= from => {
                    scanner = self.scanner(plan, onwards).map_err(|error| io_error(plan, &error))?;
                }
                _ => return Err(self.damaged(plan, position, &what, resume_at)),
            }
        }
    }

    /// Returns the next readable place if the disk failed here several times in a row and works elsewhere. A disk that does not respond at
    /// all may still have the records, so readers must not skip them.
    fn next_readable(&self, plan: &SegmentPlan, spot: BadPart, error: &io::Error) -> Result<ReadableAt, ReadError> {
        let place = (plan.segment.base, spot);
        if !is_unreadable(error) || !self.unreadable.failed(place) {
            return Err(io_error(plan, error));
        }
        if let Some(onwards) = self.unreadable.onwards(place) {
            return Ok(onwards);
        }
        let passing = |error: io::Error| io_error(plan, &error);
        self.probe_disk().map_err(passing)?;
        let onwards = match spot {
            BadPart::Whole => (plan.end_offset, None),
            BadPart::Position(position) => self.resume_after(plan, position)?,
        };
        // The disk may have been offline during the search.
        self.probe_disk().map_err(passing)?;
        if self.is_readable(plan, spot) {
            self.unreadable.succeeded(place);
            return Err(io_error(plan, error));
        }
        // Only for sealed segments: the end of a segment that is being written moves.
        if plan.len.is_none() {
            self.unreadable.set_onwards(place, onwards);
        }
        Ok(onwards)
    }

    /// Writes and syncs a small file. This fails on an offline disk, but not on a disk with a bad sector.
    fn probe_disk(&self) -> io::Result<()> {
        let path = self.folder.join(PROBE);
        let written = self.disk.create(&path).and_then(|file| {
            file.write_at(&[0; PROBE_LEN], 0)?;
            file.sync()
        });
        let removed = self.disk.remove_file(&path);
        written.and(removed)
    }

    fn is_readable(&self, plan: &SegmentPlan, spot: BadPart) -> bool {
        match (self.scanner(plan, 0), spot) {
            (Err(_), _) => false,
            (Ok(_), BadPart::Whole) => true,
            (Ok(_), BadPart::Position(at)) => {
                self.scanner(plan, at).is_ok_and(|mut scanner| !matches!(scanner.next(), Err(ScanError::Io(_))))
            }
        }
    }

    /// The offset of the first record at or after `time`, or the next offset if there is none.
    pub fn offset_at(&self, time: i64) -> Result<u64, ReadError> {
        // Reads the tail and the list of segments under one lock: a batch may move from the tail to a segment a moment later.
        let (plans, first, in_memory) = {
            let state = self.state();
            let mut unsaved = state.tail.iter().filter(|tail| tail.batch.end() > state.saved_next);
            let in_memory = unsaved.find_map(|tail| first_in_batch(&tail.batch, time, state.first));
            (all_plans(&state), state.first, in_memory.unwrap_or(state.next))
        };
        for plan in plans {
            match self.first_at_or_after(&plan, time, first) {
                Ok(Some(offset)) => return Ok(offset),
                Ok(None) => {}
                Err(ReadError::Io { .. }) if self.bounds().0 >= plan.end_offset => {}
                Err(error) => return Err(error),
            }
        }
        Ok(in_memory)
    }

    fn first_at_or_after(&self, plan: &SegmentPlan, time: i64, first: u64) -> Result<Option<u64>, ReadError> {
        let failed = |error: io::Error| io_error(plan, &error);
        let trusted = match plan.segment.place_for_time(&*self.disk, time) {
            Some((offset, position)) => self.trusted_scanner(plan, offset, position)?,
            None => None,
        };
        let mut scanner = match trusted.map_or_else(|| self.scanner(plan, 0), Ok) {
            Ok(scanner) => scanner,
            // A segment that cannot be opened has no time.
            Err(error) => return self.next_readable(plan, BadPart::Whole, &error).map(|_| None),
        };
        loop {
            match scanner.next() {
                Ok(Some((_, batch))) => {
                    if let Some(offset) = first_in_batch(&batch, time, first) {
                        return Ok(Some(offset));
                    }
                }
                Ok(None) => return Ok(None),
                // The unreadable part has no time. Continue after it.
                Err(bad) => {
                    let (_, onwards) = match bad {
                        ScanError::Io(error) => {
                            self.next_readable(plan, BadPart::Position(scanner.position()), &error)?
                        }
                        ScanError::Bad { position, .. } => self.resume_after(plan, position)?,
                    };
                    match onwards {
                        Some(onwards) => scanner = self.scanner(plan, onwards).map_err(failed)?,
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    /// A scanner at a place from the index, if the segment has there the batch of the index entry. A wrong index could lead past the
    /// record.
    fn trusted_scanner(&self, plan: &SegmentPlan, offset: u64, position: u64) -> Result<Option<Scanner>, ReadError> {
        let Ok(mut scanner) = self.scanner(plan, position) else { return Ok(None) };
        let found = match scanner.next() {
            Ok(Some((at, batch))) => (at, batch.base()),
            Ok(None) => (position, plan.end_offset),
            Err(ScanError::Io(error)) if !is_unreadable(&error) => return Err(io_error(plan, &error)),
            Err(_) => return Ok(None),
        };
        let again = || self.scanner(plan, position).map_err(|error| io_error(plan, &error));
        if found != (position, offset) { Ok(None) } else { again().map(Some) }
    }

    fn scanner(&self, plan: &SegmentPlan, position: u64) -> io::Result<Scanner> {
        let file = self.disk.open(plan.segment.path())?;
        let len = match plan.len {
            Some(len) => len,
            None => file.len()?,
        };
        Ok(Scanner::new(file, self.batches_of(), position.min(len), len))
    }

    /// The offset at which reading can continue after a bad batch at `position`, and its position in the segment: the next whole batch, or
    /// after the segment. The search does not use the sparse index.
    fn resume_after(&self, plan: &SegmentPlan, position: u64) -> Result<ReadableAt, ReadError> {
        let found = match self.scanner(plan, position + 1) {
            Ok(mut scanner) => scanner.find_next(),
            Err(error) => Err(ScanError::Io(error)),
        };
        match found {
            Ok(Some((position, batch))) => Ok((batch.base(), Some(position))),
            // A temporary error, such as a shortage of file descriptors, does not prove that nothing can be read.
            Err(ScanError::Io(error)) if !is_unreadable(&error) => Err(io_error(plan, &error)),
            Ok(None) | Err(_) => Ok((plan.end_offset, None)),
        }
    }

    fn hole_at(&self, from: u64) -> ReadError {
        let state = self.state();
        let segments = state.segments.iter().map(|segment| segment.base);
        let after = segments.chain(state.tail.iter().map(|tail| tail.batch.base())).filter(|base| *base > from).min();
        ReadError::Damaged(LogDamage {
            what: "records are missing".to_owned(),
            file: self.folder.display().to_string(),
            position: 0,
            resume_at: Some(after.unwrap_or(state.next)),
        })
    }

    fn damaged(&self, plan: &SegmentPlan, position: u64, what: &str, resume_at: u64) -> ReadError {
        let file = plan.segment.path().display().to_string();
        ReadError::Damaged(LogDamage { what: what.to_owned(), file, position, resume_at: Some(resume_at) })
    }
}

fn io_error(plan: &SegmentPlan, error: &io::Error) -> ReadError {
    ReadError::Io { file: plan.segment.path().display().to_string(), why: error.to_string() }
}

fn unreadable(error: &io::Error) -> String {
    format!("a place that the disk cannot read ({error})")
}

fn scanner_end(plan: &SegmentPlan, scanner: &Scanner) -> u64 {
    plan.len.unwrap_or_else(|| scanner.end())
}

fn check_bounds(state: &LogState, from: u64) -> Result<(), ReadError> {
    if from < state.first {
        return Err(ReadError::Trimmed { asked: from, first: state.first });
    }
    if from > state.next {
        return Err(ReadError::BeyondEnd { asked: from, next: state.next });
    }
    Ok(())
}

/// The segment with the offset `from`; `None` if it is in no segment.
fn plan_for(state: &LogState, from: u64) -> Option<SegmentPlan> {
    let after = state.segments.partition_point(|segment| segment.base <= from);
    let index = after.checked_sub(1)?;
    let plan = plan_of(state, index);
    (from < plan.end_offset).then_some(plan)
}

fn plan_of(state: &LogState, index: usize) -> SegmentPlan {
    let is_last = index + 1 == state.segments.len();
    SegmentPlan {
        segment: state.segments[index].clone(),
        len: (is_last && state.active_len > 0).then_some(state.active_len),
        end_offset: if is_last { state.saved_next } else { state.segments[index + 1].base },
    }
}

fn all_plans(state: &LogState) -> Vec<SegmentPlan> {
    (0..state.segments.len()).map(|index| plan_of(state, index)).collect()
}

fn first_in_batch(batch: &LogBatch, time: i64, first: u64) -> Option<u64> {
    if batch.header.max_timestamp.get() < time {
        return None;
    }
    batch.records().find(|(offset, record)| *offset >= first && record.timestamp >= time).map(|(offset, _)| offset)
}
