//! The embedded log: one journal for all partitions, segments behind it, recovery, retention.
//!
//! It knows bytes, offsets and times, and nothing of what topics mean. The way of a record:
//!
//! 1. [`Store::submit`] takes encoded records and queues them, appends and commits apart.
//! 2. The journal's thread makes one frame of those that wait ([`Core::commit`]), writes it, syncs it once, hands the batches to
//!    their partitions, where readers find them, and answers all who waited.
//! 3. Behind that, the keeper's thread writes batches to segments, makes checkpoints, and drops what retention lets go.
//!
//! What it must never do: acknowledge what is not synced; read a place without checking its CRC; skip over damage silently; go
//! on writing after a sync failed; touch a disk other than through [`disk::Disk`].

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
mod partition;
mod segment;
mod settings;
mod store;
mod ticket;
pub mod verify;

pub use crate::clock::{Clock, SystemClock};
pub use crate::core::{ColdSegment, Core, Event, Outcome, Part, Recovered, Scrubbed, TopicRetention, Work};
pub use error::{AppendError, Damage, OpenError, ReadError};
pub use folder::{DataFolder, FOLDER_FORMAT};
pub use format::{Batch, Record};
pub use partition::{Arrival, Batches};
pub use settings::{FRAME_BYTES_MAX, Settings};
pub use store::Store;
pub use ticket::Ticket;

/// A partition, by its topic's number and its own.
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
