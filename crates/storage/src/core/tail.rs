//! The batches in memory: those that are not in segments yet, and the newest frames, which readers at the tail share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::lock;
use crate::format::LogBatch;
use crate::partition::{DirtyState, LogPartition};

/// Batches that are not in segments. Commits add them, the keeper takes them.
#[derive(Default)]
pub(super) struct UnsavedBatches {
    /// The partitions that have some, each once.
    dirty: Mutex<Vec<Arc<LogPartition>>>,
    /// Below zero for a moment if the keeper counts before the commit does.
    bytes: AtomicI64,
}

impl UnsavedBatches {
    /// Hands a batch to its partition and counts its bytes.
    pub fn add(&self, partition: &Arc<LogPartition>, batch: LogBatch, sequence: u64) {
        let len = batch.bytes.len() as i64;
        match partition.publish(batch, sequence) {
            DirtyState::Deleted => return,
            DirtyState::Dirty => {}
            DirtyState::NewlyDirty => lock(&self.dirty).push(partition.clone()),
        }
        self.bytes.fetch_add(len, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Subtracts bytes that are in segments now, or whose topic was deleted.
    pub fn subtract(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    pub fn take_dirty(&self) -> Vec<Arc<LogPartition>> {
        std::mem::take(&mut *lock(&self.dirty))
    }

    /// Returns partitions that could not be saved.
    pub fn give_back(&self, mut partitions: Vec<Arc<LogPartition>>) {
        lock(&self.dirty).append(&mut partitions);
    }
}

/// The frames that are still in memory, and the positions of publication and of the segments.
pub(super) struct RecentFrames {
    queue: Mutex<FrameQueue>,
    /// The last frame whose batches are all in their partitions.
    published: AtomicU64,
    /// The segments contain every frame up to this one, synced or not.
    saved: AtomicU64,
}

#[derive(Default)]
struct FrameQueue {
    frames: VecDeque<RecentFrame>,
    bytes: u64,
}

pub(super) struct RecentFrame {
    pub sequence: u64,
    pub bytes: u64,
    pub partitions: Vec<Arc<LogPartition>>,
}

impl RecentFrames {
    /// No frames are in memory, and the segments contain all frames up to `sequence`.
    pub fn after(sequence: u64) -> Self {
        Self { queue: Mutex::default(), published: AtomicU64::new(sequence), saved: AtomicU64::new(sequence) }
    }

    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Adds a frame. Its batches must be in their partitions.
    pub fn publish(&self, frame: RecentFrame) {
        self.published.store(frame.sequence, Ordering::Release);
        let mut queue = lock(&self.queue);
        queue.bytes += frame.bytes;
        queue.frames.push_back(frame);
    }

    pub fn set_saved(&self, upto: u64) {
        self.saved.store(upto, Ordering::Release);
    }

    /// Evicts the oldest saved frames while the frames are larger than `bytes_max`.
    pub fn evict_saved(&self, bytes_max: u64) {
        let saved = self.saved.load(Ordering::Acquire);
        let mut queue = lock(&self.queue);
        while queue.bytes > bytes_max && queue.frames.front().is_some_and(|frame| frame.sequence <= saved) {
            let Some(frame) = queue.frames.pop_front() else { break };
            queue.bytes -= frame.bytes;
            frame.partitions.iter().for_each(|partition| partition.forget(frame.sequence));
        }
    }
}
