//! The group commit: one frame of all waiting work, one write, one sync, then all answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use zerocopy::IntoBytes;

use super::{Core, JournalState, RecentFrame, lock};
use crate::error::AppendError;
use crate::format::{BATCH_HAS_COMMIT, BATCH_HEADER_LEN, BATCH_MAGIC, BatchHeader, FRAME_HEADER_LEN, LogBatch, seal};
use crate::journal::FrameWriteError;
use crate::partition::LogPartition;
use crate::{PartitionKey, disk};

/// Frames smaller than this are copied for the tail in memory: most of their buffer would be unused capacity.
const COPY_BELOW_BYTES: usize = 2048;

/// Encoded records for one partition, in order.
#[derive(Debug, Clone)]
pub struct WritePart {
    pub partition: PartitionKey,
    pub count: u32,
    pub max_timestamp: i64,
    pub records: Vec<u8>,
}

/// A request to the log.
#[derive(Debug, Clone)]
pub enum LogWrite {
    Append(Vec<WritePart>),
    /// All or nothing, under a fence.
    Commit {
        fence: String,
        token: u64,
        parts: Vec<WritePart>,
    },
    /// Voids all earlier fences of that name. It is queued with the commits, so it takes effect after all earlier commits.
    OpenFence(String),
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogReply {
    /// The first offset of each part, or its error.
    Appended(Vec<Result<u64, AppendError>>),
    /// The first offset of each part.
    Committed(Vec<u64>),
    FenceOpened(u64),
    /// A newer fence is open. Nothing was written.
    Fenced,
    /// This part can never be written. Nothing was written.
    Refused {
        part: usize,
        error: AppendError,
    },
    /// Nothing was written. With [`AppendError::Unknown`] it may have been written.
    Failed(AppendError),
}

impl LogWrite {
    pub fn size(&self) -> usize {
        self.parts().iter().map(|part| BATCH_HEADER_LEN + part.records.len()).sum()
    }

    fn parts(&self) -> &[WritePart] {
        match self {
            LogWrite::Append(parts) | LogWrite::Commit { parts, .. } => parts,
            LogWrite::OpenFence(_) => &[],
        }
    }
}

/// One part, assigned to its partition, before it is in the frame.
struct PlacedPart {
    partition: Arc<LogPartition>,
    work: usize,
    part: usize,
}

impl Core {
    /// Commits all of `works` in one frame and returns their outcomes in the same order. The caller ensures that they fit into one frame:
    /// together at most `frame_bytes_max`.
    pub fn commit(&self, works: &[LogWrite]) -> Vec<LogReply> {
        if let Some(error) = self.refusal() {
            return works.iter().map(|_| LogReply::Failed(error.clone())).collect();
        }
        let mut state = lock(&self.journal);
        let mut outcomes = Vec::with_capacity(works.len());
        let mut placed = Vec::with_capacity(works.len());
        for (index, work) in works.iter().enumerate() {
            outcomes.push(self.admit(&mut state, index, work, &mut placed));
        }
        if placed.is_empty() {
            return outcomes;
        }
        // A stable sort: within a partition, the order of the calls is kept.
        placed.sort_by_key(|placed| placed.partition.key);
        let mut frame = vec![0; FRAME_HEADER_LEN];
        frame.reserve(placed.iter().map(|p| BATCH_HEADER_LEN + works[p.work].parts()[p.part].records.len()).sum());
        let mut batches = Vec::new();
        for run in placed.chunk_by(|a, b| a.partition.key == b.partition.key) {
            let partition = &run[0].partition;
            let from = frame.len();
            self.build_batch(partition, run, works, &mut frame, &mut outcomes);
            batches.push((partition.clone(), from));
        }
        match self.write_frame(&mut state, frame, batches) {
            Ok(()) => {}
            Err(error) => {
                let mut touched = vec![false; works.len()];
                placed.iter().for_each(|placed| touched[placed.work] = true);
                for (outcome, touched) in outcomes.iter_mut().zip(touched) {
                    if touched {
                        *outcome = LogReply::Failed(error.clone());
                    }
                }
            }
        }
        outcomes
    }

    /// Checks one request and places its parts. The returned outcome applies if the frame is written.
    fn admit(&self, state: &mut JournalState, index: usize, work: &LogWrite, placed: &mut Vec<PlacedPart>) -> LogReply {
        let find = |part: &WritePart| -> Result<Arc<LogPartition>, AppendError> {
            let size = BATCH_HEADER_LEN + part.records.len();
            if size > self.settings.frame_bytes_max {
                return Err(AppendError::TooLarge { size, limit: self.settings.frame_bytes_max });
            }
            self.partitions.get(part.partition).ok_or(AppendError::UnknownPartition(part.partition))
        };
        let place = |part: usize, partition: Arc<LogPartition>| PlacedPart { partition, work: index, part };
        match work {
            LogWrite::OpenFence(name) => {
                state.fence_tokens += 1;
                state.fences.insert(name.clone(), state.fence_tokens);
                LogReply::FenceOpened(state.fence_tokens)
            }
            LogWrite::Append(parts) => {
                let mut answers = Vec::with_capacity(parts.len());
                for (index, part) in parts.iter().enumerate() {
                    answers.push(find(part).map(|partition| {
                        placed.push(place(index, partition));
                        0
                    }));
                }
                LogReply::Appended(answers)
            }
            LogWrite::Commit { fence, token, parts } => {
                if state.fences.get(fence) != Some(token) {
                    return LogReply::Fenced;
                }
                let before = placed.len();
                for (part, found) in parts.iter().map(find).enumerate() {
                    match found {
                        Ok(partition) => placed.push(place(part, partition)),
                        Err(error) => {
                            // All or nothing: the parts that were placed before are removed.
                            placed.truncate(before);
                            return LogReply::Refused { part, error };
                        }
                    }
                }
                LogReply::Committed(vec![0; parts.len()])
            }
        }
    }

    /// Writes the batch of one partition to the frame, and the offset of each part to its outcome.
    fn build_batch(
        &self,
        partition: &LogPartition,
        run: &[PlacedPart],
        works: &[LogWrite],
        frame: &mut Vec<u8>,
        outcomes: &mut [LogReply],
    ) {
        let (_, base) = partition.bounds();
        let from = frame.len();
        frame.extend_from_slice(&[0; BATCH_HEADER_LEN]);
        let (mut count, mut max_timestamp, mut flags) = (0u32, i64::MIN, 0);
        for placed in run {
            let part = &works[placed.work].parts()[placed.part];
            let offset = base + u64::from(count);
            match &mut outcomes[placed.work] {
                LogReply::Appended(answers) => answers[placed.part] = Ok(offset),
                LogReply::Committed(answers) => {
                    answers[placed.part] = offset;
                    flags |= BATCH_HAS_COMMIT;
                }
                _ => {}
            }
            frame.extend_from_slice(&part.records);
            count += part.count;
            max_timestamp = max_timestamp.max(part.max_timestamp);
        }
        let header = BatchHeader {
            magic: BATCH_MAGIC,
            crc: 0.into(),
            secret: self.folder.secret.0.into(),
            body_len: ((frame.len() - from - BATCH_HEADER_LEN) as u32).into(),
            count: count.into(),
            topic: partition.key.topic.into(),
            partition: partition.key.partition.into(),
            base_offset: base.into(),
            max_timestamp: max_timestamp.into(),
            flags: flags.into(),
        };
        frame[from..from + BATCH_HEADER_LEN].copy_from_slice(header.as_bytes());
        seal(&mut frame[from..]);
    }

    fn write_frame(
        &self,
        state: &mut JournalState,
        mut frame: Vec<u8>,
        batches: Vec<(Arc<LogPartition>, usize)>,
    ) -> Result<(), AppendError> {
        let Some(journal) = state.journal.as_mut() else {
            return Err(AppendError::DiskFull("the log could not be opened for writing yet".to_owned()));
        };
        let sequence = match journal.write(&mut frame, batches.len() as u32) {
            Ok(sequence) => sequence,
            Err(FrameWriteError::NoRoom(error)) if disk::is_full(&error) => {
                let why = format!("there is no room for the journal: {error}");
                self.health.set_full(why.clone());
                return Err(AppendError::DiskFull(why));
            }
            Err(FrameWriteError::NoRoom(error)) if disk::is_passing(&error) => {
                return Err(self.health.delay("making a journal file", &error));
            }
            Err(FrameWriteError::NoRoom(error)) => {
                return Err(AppendError::Poisoned(self.health.poison("making a journal file", &error)));
            }
            Err(FrameWriteError::Failed(error)) => {
                return Err(AppendError::Unknown(self.health.poison("writing the journal", &error)));
            }
        };
        self.publish(sequence, frame, batches);
        Ok(())
    }

    /// Hands the batches of a durable frame to their partitions.
    fn publish(&self, sequence: u64, frame: Vec<u8>, batches: Vec<(Arc<LogPartition>, usize)>) {
        let len = frame.len() as u64;
        let frame = if frame.len() < COPY_BELOW_BYTES { Bytes::copy_from_slice(&frame) } else { Bytes::from(frame) };
        self.bytes_since_checkpoint.fetch_add(len, Ordering::Relaxed);
        let mut recent = RecentFrame { sequence, bytes: len, partitions: Vec::with_capacity(batches.len()) };
        let mut ends = batches.iter().skip(1).map(|(_, from)| *from).collect::<Vec<_>>();
        ends.push(frame.len());
        for ((partition, from), end) in batches.into_iter().zip(ends) {
            let bytes = frame.slice(from..end);
            let header =
                zerocopy::FromBytes::read_from_bytes(&bytes[..BATCH_HEADER_LEN]).expect("the header was just written");
            self.unsaved.add(&partition, LogBatch { header, bytes }, sequence);
            recent.partitions.push(partition);
        }
        self.recent.publish(recent);
        self.recent.evict_saved(self.settings.tail_bytes);
    }

    /// Writes an empty frame, which shows that the frame before it is synced. Does nothing if the last frame was empty.
    pub fn mark_idle(&self) {
        if self.refusal().is_some() {
            return;
        }
        let mut state = lock(&self.journal);
        let Some(journal) = state.journal.as_mut() else { return };
        if journal.last_sequence() != self.recent.published() {
            return;
        }
        match journal.write(&mut vec![0; FRAME_HEADER_LEN], 0) {
            Ok(_) => {}
            Err(FrameWriteError::NoRoom(error)) if disk::is_full(&error) || disk::is_passing(&error) => {}
            Err(FrameWriteError::NoRoom(error) | FrameWriteError::Failed(error)) => {
                self.health.poison("writing the journal", &error);
            }
        }
    }
}
