//! The scrub of cold segments: damage is found while a backup may still have the messages, not when a reader comes to them.
//!
//! What reads when, and how fast, is the caller's; here is one segment at a time. A segment that retention drops is let go of at the next read,
//! so that its bytes are free soon.

use std::io;
use std::sync::Arc;

use super::Core;
use crate::PartitionKey;
use crate::verify::{Meter, ReadOnlyDisk, check_twice};

/// A segment that is not written to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdSegment {
    pub key: PartitionKey,
    pub base: u64,
}

/// What became of the scrub of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scrubbed {
    /// It was read whole, and has this many damaged places.
    Read { damaged: usize },
    /// Retention dropped it, or its topic was deleted.
    Dropped,
}

impl Core {
    /// The segments that are not written to any more, of all partitions, the oldest of each partition first.
    pub fn cold_segments(&self) -> Vec<ColdSegment> {
        let of = |partition: &Arc<crate::partition::Partition>| {
            let key = partition.key;
            partition.sealed().into_iter().map(move |extent| ColdSegment { key, base: extent.base })
        };
        self.all_partitions().iter().flat_map(of).collect()
    }

    /// Reads every batch of a segment and checks it. Damage is an event, once per place. Fails where the meter ends it.
    pub fn scrub(&self, segment: ColdSegment, meter: &Meter) -> io::Result<Scrubbed> {
        let Some(partition) = self.partition(segment.key) else { return Ok(Scrubbed::Dropped) };
        let find = move || partition.sealed().into_iter().find(|extent| extent.base == segment.base);
        let Some(extent) = find() else { return Ok(Scrubbed::Dropped) };
        let is_there = Arc::new(move || find().is_some());
        let (meter, kept) = (meter.clone(), is_there.clone());
        let metered: Meter = Arc::new(move |bytes| {
            meter(bytes)?;
            if kept() { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        });
        let disk = ReadOnlyDisk::new(self.disk.clone(), metered);
        let checked = check_twice(&disk, &extent, &mut |_, _| {});
        if !is_there() {
            return Ok(Scrubbed::Dropped);
        }
        let damage = checked?;
        damage.iter().for_each(|damage| self.tell_of(damage, Some(segment.key)));
        Ok(Scrubbed::Read { damaged: damage.len() })
    }
}
