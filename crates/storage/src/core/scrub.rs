//! The scrub of cold segments: it finds damage before a reader does, while a backup may still have the messages.
//!
//! The caller decides when to read and how fast; this module checks one segment at a time. If retention drops the segment, the scrub
//! releases it at the next read, so that its disk space is free soon.

use std::io;
use std::sync::Arc;

use super::Core;
use crate::PartitionKey;
use crate::disk::is_passing;
use crate::verify::{ReadMeter, ReadOnlyDisk, check_twice};

/// A segment that is no longer written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdSegment {
    pub key: PartitionKey,
    pub base: u64,
}

/// The outcome of the scrub of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubResult {
    /// The scrub read the whole segment, which has this many damaged places.
    Read { damaged: usize },
    /// Retention dropped the segment, or its topic was deleted.
    Dropped,
    /// File descriptors or memory are short. The next pass reads it.
    NotRead,
}

impl Core {
    /// The segments of all partitions that are no longer written to, the oldest of each partition first.
    pub fn cold_segments(&self) -> Vec<ColdSegment> {
        let of = |partition: &Arc<crate::partition::LogPartition>| {
            let key = partition.key;
            partition.sealed().into_iter().map(move |extent| ColdSegment { key, base: extent.base })
        };
        self.partitions.all().iter().flat_map(of).collect()
    }

    /// Reads and checks every batch of a segment. Emits an event for each damaged place, once. Fails if the meter ends the scrub.
    pub fn scrub(&self, segment: ColdSegment, meter: &ReadMeter) -> io::Result<ScrubResult> {
        let Some(partition) = self.partitions.get(segment.key) else { return Ok(ScrubResult::Dropped) };
        let deleting = partition.clone();
        let find = move || partition.sealed().into_iter().find(|extent| extent.base == segment.base);
        let Some(extent) = find() else { return Ok(ScrubResult::Dropped) };
        let is_there = Arc::new(move || find().is_some());
        let (meter, kept) = (meter.clone(), is_there.clone());
        let metered: ReadMeter = Arc::new(move |bytes| {
            meter(bytes)?;
            if kept() { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        });
        let disk = ReadOnlyDisk::new(self.disk.clone(), metered);
        let checked = check_twice(&disk, &extent, &mut |_, _| {});
        if checked.as_ref().is_ok_and(|damage| !damage.is_empty()) {
            // A deletion renames the files before it marks the partition as deleted. Once this lock is free, the mark is set.
            drop(deleting.hold());
        }
        if !is_there() {
            return Ok(ScrubResult::Dropped);
        }
        let damage = match checked {
            Err(error) if is_passing(&error) => return Ok(ScrubResult::NotRead),
            checked => checked?,
        };
        damage.iter().for_each(|damage| self.health.report_damage(damage, Some(segment.key)));
        Ok(ScrubResult::Read { damaged: damage.len() })
    }
}
