//! The embedded log: one journal for all partitions, segments behind it, recovery, retention.
//!
//! The log handles bytes, offsets and times; topics have no meaning to it. A record takes these steps:
//!
//! 1. [`LogStore::submit`] takes encoded records and queues them, appends and commits apart.
//! 2. The journal thread makes one frame of the waiting requests ([`Core::commit`]), writes it and syncs it once. Then it hands the batches
//!    to their partitions, where readers find them, and answers all waiters.
//! 3. Later, the keeper thread writes batches to segments, makes checkpoints, and drops expired segments.
//!
//! The log must never acknowledge records that are not synced, use bytes without checking their CRC, skip damage silently, continue to
//! write after a failed sync, or access a disk other than through [`disk::Disk`].

mod checkpoint;
mod clock;
mod core;
pub mod disk;
mod error;
pub mod fallback;
mod folder;
pub mod format;
mod journal;
mod lanes;
mod layout;
mod partition;
mod segment;
mod settings;
mod store;
mod ticket;
pub mod verify;

pub use crate::clock::{StorageClock, WallClock};
pub use crate::core::{
    ColdSegment, Core, LogEvent, LogRecovery, LogReply, LogWrite, ScrubResult, TopicRetention, WritePart,
};
pub use error::{AppendError, LogDamage, OpenError, ReadError};
pub use folder::{DataFolder, FOLDER_FORMAT};
pub use format::{LogBatch, LogRecord};
pub use partition::{LogRead, OffsetArrival};
pub use settings::{FRAME_BYTES_MAX, LogSettings};
pub use store::LogStore;
pub use ticket::LogTicket;

/// A partition, identified by the number of its topic and its own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey {
    pub topic: u32,
    pub partition: u32,
}

impl std::fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}
