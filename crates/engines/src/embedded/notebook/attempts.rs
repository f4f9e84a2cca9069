//! How attempts lie in a chunk: those of one subscription and partition, in the order in which they were noted.
//!
//! Each begins with a byte of [flags](FAILED), then come the differences of offset and time from the one before, and the time that it
//! took. What is as nearly always (the first attempt, the same run, an answer of 200) is not written: a success takes 4 to 6 bytes. A
//! failure adds its status, its reason, its answer, and what comes next.

use std::collections::HashMap;

use bytes::Bytes;
use whimbrel_model::ports::{ANSWER_KEPT_BYTES, AfterFailure, AttemptNote, AttemptOutcome};
use whimbrel_model::{PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

use super::slice::{BODY_BYTES_MAX, ChunkHead, Group};
use super::varint::{put, put_bytes, put_signed, take, take_as, take_bytes, take_signed};

/// What a byte of flags may have.
const FAILED: u8 = 1;
/// The number of the attempt follows; else it is the first.
const LATER_ATTEMPT: u8 = 2;
/// The run follows; else it is that of the entry before. The first entry has it.
const OTHER_RUN: u8 = 4;
/// The status of a success follows; else it is 200.
const OTHER_STATUS: u8 = 8;

/// What comes after a failure.
const RETRY_AT: u8 = 0;
const DEAD_LETTER: u8 = 1;
const DROPPED: u8 = 2;

const STATUS_USUAL: u16 = 200;
/// Bytes of a reason that are kept.
const REASON_BYTES_MAX: usize = 1 << 10;
/// Bytes of an entry at most: its numbers, its reason, its answer.
const ENTRY_BYTES_MAX: usize = 128 + REASON_BYTES_MAX + ANSWER_KEPT_BYTES;
/// A body is closed when the next entry might not fit.
const BODY_CLOSED_AT: usize = 256 << 10;
const _: () = assert!(BODY_CLOSED_AT + ENTRY_BYTES_MAX <= BODY_BYTES_MAX);

/// Bodies that are open, beyond which all are closed: their memory is bounded, whatever the number of subscriptions.
const OPEN_MAX: usize = 16 << 10;

pub fn attempts_group(subscription: SubscriptionNumber, partition: PartitionId) -> Group {
    [subscription.0, partition.topic.0, partition.index]
}

/// Brings together what belongs to one chunk.
#[derive(Default)]
pub struct AttemptChunks {
    open: HashMap<Group, Body>,
    closed: Vec<u8>,
}

/// A chunk that is being written.
#[derive(Default)]
struct Body {
    bytes: Vec<u8>,
    count: u32,
    first: u64,
    last: u64,
    base: i64,
    previous: Previous,
}

/// What the next entry is a difference from.
#[derive(Debug, Clone, Copy, Default)]
struct Previous {
    offset: u64,
    at: i64,
    run: Option<u32>,
}

impl Previous {
    fn before_the_first(base: i64) -> Self {
        Self { offset: 0, at: base, run: None }
    }
}

impl AttemptChunks {
    pub fn add(&mut self, note: &AttemptNote) {
        let group = attempts_group(note.subscription, note.partition);
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(&group) {
            self.close_all();
        }
        let body = self.open.entry(group).or_default();
        body.add(note);
        if body.bytes.len() >= BODY_CLOSED_AT {
            body.close(group, &mut self.closed);
        }
    }

    /// All chunks so far, one after the other.
    pub fn take(&mut self) -> Vec<u8> {
        self.close_all();
        std::mem::take(&mut self.closed)
    }

    /// Takes back what it gave, so that its memory is used again.
    pub fn give_back(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= BODY_BYTES_MAX {
            bytes.clear();
            self.closed = bytes;
        }
    }

    fn close_all(&mut self) {
        for (group, mut body) in self.open.drain() {
            body.close(group, &mut self.closed);
        }
    }
}

impl Body {
    fn add(&mut self, note: &AttemptNote) {
        let (offset, at) = (note.offset, note.at.as_millis());
        if self.count == 0 {
            (self.first, self.last, self.base) = (offset, offset, at);
            self.previous = Previous::before_the_first(at);
        }
        (self.first, self.last) = (self.first.min(offset), self.last.max(offset));
        self.count += 1;
        encode(&mut self.bytes, note, self.previous);
        self.previous = Previous { offset, at, run: Some(note.run) };
    }

    fn close(&mut self, group: Group, out: &mut Vec<u8>) {
        let Self { bytes, count, first, last, base, .. } = std::mem::take(self);
        if count > 0 {
            out.extend_from_slice(&ChunkHead::of(group, first..=last, base, count, &bytes).encode());
            out.extend_from_slice(&bytes);
        }
    }
}

fn encode(out: &mut Vec<u8>, note: &AttemptNote, previous: Previous) {
    let mut flags = 0;
    if note.attempt != 1 {
        flags |= LATER_ATTEMPT;
    }
    if previous.run != Some(note.run) {
        flags |= OTHER_RUN;
    }
    match note.outcome {
        AttemptOutcome::Delivered { status } if status != STATUS_USUAL => flags |= OTHER_STATUS,
        AttemptOutcome::Delivered { .. } => {}
        AttemptOutcome::Failed { .. } => flags |= FAILED,
    }
    out.push(flags);
    put_signed(out, note.offset.wrapping_sub(previous.offset) as i64);
    put_signed(out, note.at.as_millis().wrapping_sub(previous.at));
    put(out, note.took_ms.into());
    if flags & LATER_ATTEMPT != 0 {
        put(out, note.attempt.into());
    }
    if flags & OTHER_RUN != 0 {
        put(out, note.run.into());
    }
    match &note.outcome {
        AttemptOutcome::Delivered { status } if *status != STATUS_USUAL => put(out, (*status).into()),
        AttemptOutcome::Delivered { .. } => {}
        AttemptOutcome::Failed { status, reason, answer, next } => {
            put(out, status.map_or(0, |status| u64::from(status) + 1));
            put_bytes(out, &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES_MAX)]);
            put_bytes(out, &answer[..answer.len().min(ANSWER_KEPT_BYTES)]);
            match next {
                AfterFailure::RetryAt(time) => {
                    out.push(RETRY_AT);
                    put_signed(out, time.as_millis().wrapping_sub(note.at.as_millis()));
                }
                AfterFailure::DeadLetter => out.push(DEAD_LETTER),
                AfterFailure::Dropped => out.push(DROPPED),
            }
        }
    }
}

/// Adds the attempts at one offset. A body that passed its checksum and cannot be read to its end was written by a newer version: what is
/// understood of it counts.
pub fn find(head: &ChunkHead, mut body: &[u8], offset: u64, found: &mut Vec<AttemptNote>) {
    let mut previous = Previous::before_the_first(head.base);
    for _ in 0..head.count {
        let Some(entry) = Entry::take(&mut body, previous) else { return };
        previous = Previous { offset: entry.offset, at: entry.at, run: Some(entry.run) };
        if entry.offset == offset {
            found.push(entry.to_note(head.group));
        }
    }
}

/// An entry as it lies in a body: nothing is copied of those that nobody wants.
struct Entry<'a> {
    run: u32,
    offset: u64,
    attempt: u32,
    at: i64,
    took_ms: u32,
    outcome: EntryOutcome<'a>,
}

enum EntryOutcome<'a> {
    Delivered { status: u16 },
    Failed { status: Option<u16>, reason: &'a [u8], answer: &'a [u8], next: AfterFailure },
}

impl<'a> Entry<'a> {
    fn take(body: &mut &'a [u8], previous: Previous) -> Option<Self> {
        let (flags, rest) = body.split_first()?;
        *body = rest;
        let has = |flag: u8| flags & flag != 0;
        if flags & !(FAILED | LATER_ATTEMPT | OTHER_RUN | OTHER_STATUS) != 0 {
            return None;
        }
        let offset = previous.offset.wrapping_add(take_signed(body)? as u64);
        let at = previous.at.wrapping_add(take_signed(body)?);
        let took_ms = take_as(body)?;
        let attempt = if has(LATER_ATTEMPT) { take_as(body)? } else { 1 };
        let run = if has(OTHER_RUN) { take_as(body)? } else { previous.run? };
        let outcome = if has(FAILED) {
            EntryOutcome::Failed {
                status: match take(body)? {
                    0 => None,
                    status => Some(u16::try_from(status - 1).ok()?),
                },
                reason: take_bytes(body)?,
                answer: take_bytes(body)?,
                next: take_next(body, at)?,
            }
        } else {
            EntryOutcome::Delivered { status: if has(OTHER_STATUS) { take_as(body)? } else { STATUS_USUAL } }
        };
        Some(Self { run, offset, attempt, at, took_ms, outcome })
    }

    fn to_note(&self, [subscription, topic, index]: Group) -> AttemptNote {
        AttemptNote {
            subscription: SubscriptionNumber(subscription),
            run: self.run,
            partition: PartitionId::new(TopicNumber(topic), index),
            offset: self.offset,
            attempt: self.attempt,
            at: Timestamp::from_millis(self.at),
            took_ms: self.took_ms,
            outcome: match self.outcome {
                EntryOutcome::Delivered { status } => AttemptOutcome::Delivered { status },
                EntryOutcome::Failed { status, reason, answer, next } => AttemptOutcome::Failed {
                    status,
                    reason: String::from_utf8_lossy(reason).into(),
                    answer: Bytes::copy_from_slice(answer),
                    next,
                },
            },
        }
    }
}

fn take_next(body: &mut &[u8], at: i64) -> Option<AfterFailure> {
    let (next, rest) = body.split_first()?;
    *body = rest;
    Some(match *next {
        RETRY_AT => AfterFailure::RetryAt(Timestamp::from_millis(at.wrapping_add(take_signed(body)?))),
        DEAD_LETTER => AfterFailure::DeadLetter,
        DROPPED => AfterFailure::Dropped,
        _ => return None,
    })
}
