//! The format of attempts in a chunk. A chunk has attempts of one subscription and partition, in the order in which they were noted.
//!
//! An entry begins with a byte of [flags](FAILED). The differences of offset and time from the entry before follow, and the duration. Usual
//! values (the first attempt, the same run, a status of 200) are omitted: a success takes 4 to 6 bytes. A failure adds its status, its
//! reason, its answer, and the follow-up.

use std::collections::HashMap;

use bytes::Bytes;
use whimbrel_model::ports::{ANSWER_KEPT_BYTES, AfterFailure, AttemptOutcome, AttemptRecord};
use whimbrel_model::{PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

use super::slice::{BODY_BYTES_MAX, ChunkHead, ChunkKey};
use super::varint::{put, put_bytes, put_signed, take, take_as, take_bytes, take_signed};

/// The bits of the flags.
const FAILED: u8 = 1;
/// The number of the attempt follows; otherwise it is the first attempt.
const LATER_ATTEMPT: u8 = 2;
/// The run follows; otherwise it is that of the entry before. The first entry of a chunk has the run.
const OTHER_RUN: u8 = 4;
/// The status of a success follows; otherwise it is 200.
const OTHER_STATUS: u8 = 8;

/// The follow-up of a failure.
const RETRY_AT: u8 = 0;
const DEAD_LETTER: u8 = 1;
const DROPPED: u8 = 2;

const STATUS_USUAL: u16 = 200;
/// The maximum bytes of a reason that are stored.
const REASON_BYTES_MAX: usize = 1 << 10;
/// The maximum bytes of an entry: its numbers, its reason, its answer.
const ENTRY_BYTES_MAX: usize = 128 + REASON_BYTES_MAX + ANSWER_KEPT_BYTES;
/// A body is closed when the next entry might not fit.
const BODY_CLOSED_AT: usize = 256 << 10;
const _: () = assert!(BODY_CLOSED_AT + ENTRY_BYTES_MAX <= BODY_BYTES_MAX);

/// The maximum number of open bodies; beyond it, all are closed. It bounds their memory for any number of subscriptions.
const OPEN_MAX: usize = 16 << 10;

pub fn attempts_group(subscription: SubscriptionNumber, partition: PartitionId) -> ChunkKey {
    [subscription.0, partition.topic.0, partition.index]
}

#[derive(Default)]
pub struct AttemptChunks {
    open: HashMap<ChunkKey, OpenChunk>,
    closed: Vec<u8>,
}

/// A chunk that is being written.
#[derive(Default)]
struct OpenChunk {
    bytes: Vec<u8>,
    count: u32,
    first: u64,
    last: u64,
    base: i64,
    previous: PreviousAttempt,
}

/// The values from which the differences of the next entry count.
#[derive(Debug, Clone, Copy, Default)]
struct PreviousAttempt {
    offset: u64,
    at: i64,
    run: Option<u32>,
}

impl PreviousAttempt {
    fn before_the_first(base: i64) -> Self {
        Self { offset: 0, at: base, run: None }
    }
}

impl AttemptChunks {
    pub fn add(&mut self, note: &AttemptRecord) {
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

    /// Returns all chunks so far, concatenated.
    pub fn take(&mut self) -> Vec<u8> {
        self.close_all();
        std::mem::take(&mut self.closed)
    }

    /// Returns the buffer of [`Self::take`], to use its memory again.
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

impl OpenChunk {
    fn add(&mut self, note: &AttemptRecord) {
        let (offset, at) = (note.offset, note.at.as_millis());
        if self.count == 0 {
            (self.first, self.last, self.base) = (offset, offset, at);
            self.previous = PreviousAttempt::before_the_first(at);
        }
        (self.first, self.last) = (self.first.min(offset), self.last.max(offset));
        self.count += 1;
        encode(&mut self.bytes, note, self.previous);
        self.previous = PreviousAttempt { offset, at, run: Some(note.run) };
    }

    fn close(&mut self, group: ChunkKey, out: &mut Vec<u8>) {
        let Self { bytes, count, first, last, base, .. } = std::mem::take(self);
        if count > 0 {
            out.extend_from_slice(&ChunkHead::of(group, first..=last, base, count, &bytes).encode());
            out.extend_from_slice(&bytes);
        }
    }
}

fn encode(out: &mut Vec<u8>, note: &AttemptRecord, previous: PreviousAttempt) {
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

/// Adds the attempts at one offset to `found`. A newer version wrote a body that passes its checksum and cannot be decoded to its end: the
/// entries up to that point count.
pub fn find(head: &ChunkHead, mut body: &[u8], offset: u64, found: &mut Vec<AttemptRecord>) {
    let mut previous = PreviousAttempt::before_the_first(head.base);
    for _ in 0..head.count {
        let Some(entry) = EncodedAttempt::take(&mut body, previous) else { return };
        previous = PreviousAttempt { offset: entry.offset, at: entry.at, run: Some(entry.run) };
        if entry.offset == offset {
            found.push(entry.to_note(head.group));
        }
    }
}

/// An entry in a body. It borrows its bytes: entries of other offsets are not copied.
struct EncodedAttempt<'a> {
    run: u32,
    offset: u64,
    attempt: u32,
    at: i64,
    took_ms: u32,
    outcome: EncodedOutcome<'a>,
}

enum EncodedOutcome<'a> {
    Delivered { status: u16 },
    Failed { status: Option<u16>, reason: &'a [u8], answer: &'a [u8], next: AfterFailure },
}

impl<'a> EncodedAttempt<'a> {
    fn take(body: &mut &'a [u8], previous: PreviousAttempt) -> Option<Self> {
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
            EncodedOutcome::Failed {
                status: match take(body)? {
                    0 => None,
                    status => Some(u16::try_from(status - 1).ok()?),
                },
                reason: take_bytes(body)?,
                answer: take_bytes(body)?,
                next: take_next(body, at)?,
            }
        } else {
            EncodedOutcome::Delivered { status: if has(OTHER_STATUS) { take_as(body)? } else { STATUS_USUAL } }
        };
        Some(Self { run, offset, attempt, at, took_ms, outcome })
    }

    fn to_note(&self, [subscription, topic, index]: ChunkKey) -> AttemptRecord {
        AttemptRecord {
            subscription: SubscriptionNumber(subscription),
            run: self.run,
            partition: PartitionId::new(TopicNumber(topic), index),
            offset: self.offset,
            attempt: self.attempt,
            at: Timestamp::from_millis(self.at),
            took_ms: self.took_ms,
            outcome: match self.outcome {
                EncodedOutcome::Delivered { status } => AttemptOutcome::Delivered { status },
                EncodedOutcome::Failed { status, reason, answer, next } => AttemptOutcome::Failed {
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
