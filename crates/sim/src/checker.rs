//! What must be true of a log, compared with the model.
//!
//! Every acknowledged record is at its partition and offset with its bytes, and nothing else is there. What flipped bits may
//! have made unreadable is told as damage with a file and a place to go on; it is never wrong data, and never more than the
//! segment or the frame that was hit. Without flipped bits there is no damage at all.

use std::collections::BTreeSet;
use std::path::Path;

use whimbrel_storage::{Batches, Core, Damage, PartitionKey, ReadError};

use crate::SimDisk;
use crate::model::{Model, PartitionModel};

/// What a checker says that found something wrong.
pub type Check<T = ()> = Result<T, String>;

/// Bytes that a whole walk reads together: small, so that reads begin and end everywhere.
const WALK_BYTES: usize = 700;

/// What bits were flipped, and so what may be unreadable.
#[derive(Debug, Default)]
pub struct Flipped {
    pub segments: BTreeSet<(PartitionKey, u64)>,
    /// Flips in the journal since the log was last opened.
    pub journal: u64,
    pub total: u64,
}

/// What kind of file a path below the data folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    Segment(PartitionKey, u64),
    Index,
    Journal,
    Other,
}

impl FileKind {
    pub fn of(path: &Path) -> Self {
        let names: Vec<&str> = path.iter().filter_map(|name| name.to_str()).collect();
        match names[..] {
            [.., "journal", _] => FileKind::Journal,
            [.., "topics", topic, partition, file] => {
                // A topic whose deletion is not durable may come back.
                let topic = topic.strip_suffix(".deleted").unwrap_or(topic);
                let key = topic.parse().ok().zip(partition.parse().ok());
                let key = key.map(|(topic, partition)| PartitionKey { topic, partition });
                match (key, file.strip_suffix(".segment").and_then(|base| base.parse().ok())) {
                    (Some(key), Some(base)) => FileKind::Segment(key, base),
                    _ => FileKind::Index,
                }
            }
            _ => FileKind::Other,
        }
    }
}

pub struct Checker<'a> {
    pub core: &'a Core,
    pub model: &'a Model,
    pub disk: &'a SimDisk,
    pub flipped: &'a Flipped,
}

impl Checker<'_> {
    /// Everything about every partition.
    pub fn check_all(&self) -> Check {
        for key in self.model.alive() {
            self.check_partition(key)?;
        }
        Ok(())
    }

    fn partition(&self, key: PartitionKey) -> Check<&PartitionModel> {
        self.model.partitions.get(&key).ok_or_else(|| format!("the model has no partition {key}"))
    }

    fn check_partition(&self, key: PartitionKey) -> Check {
        let expected = self.partition(key)?;
        let bounds = self.core.bounds(key).map_err(|error| format!("the bounds of {key}: {error}"))?;
        if bounds != (expected.first, expected.next()) {
            return Err(format!("{key} has bounds {bounds:?} instead of {:?}", (expected.first, expected.next())));
        }
        let mut from = expected.first;
        while from < expected.next() {
            from = self.check_read(key, from, WALK_BYTES)?;
        }
        Ok(())
    }

    /// Reads at an offset, whatever it is, and returns where to read on.
    pub fn check_read(&self, key: PartitionKey, from: u64, max_bytes: usize) -> Check<u64> {
        let expected = self.partition(key)?;
        let (first, next) = (expected.first, expected.next());
        match self.core.read(key, from, max_bytes) {
            Err(ReadError::Trimmed { asked, first: told }) if asked == from && told == first && from < first => {
                Ok(first)
            }
            Err(ReadError::BeyondEnd { asked, next: told }) if asked == from && told == next && from > next => Ok(next),
            Ok(_) if from < first || from > next => Err(format!("{key} was read at {from}, outside {first}..{next}")),
            Ok(read) => self.check_batches(key, from, max_bytes, &read),
            Err(ReadError::Damaged(damage)) => self.check_damage(key, from, &damage),
            Err(error) => Err(format!("reading {key} at {from}: {error}")),
        }
    }

    fn check_batches(&self, key: PartitionKey, from: u64, max_bytes: usize, read: &Batches) -> Check<u64> {
        let expected = self.partition(key)?;
        let mut next = from;
        for (index, batch) in read.batches.iter().enumerate() {
            let fits = if index == 0 { batch.base() <= from && from < batch.end() } else { batch.base() == next };
            if !fits {
                return Err(format!("{key} at {from}: a batch {}..{} where {next} was due", batch.base(), batch.end()));
            }
            let records: Vec<_> = batch.records().collect();
            if records.len() as u64 != batch.end() - batch.base() {
                return Err(format!("{key} at {from}: a batch with fewer records than it says"));
            }
            for (offset, record) in records {
                let entry = expected.entries.get(offset as usize);
                if entry.is_none_or(|entry| entry.record() != record) {
                    return Err(format!("{key} at {offset}: {record:?} instead of {entry:?}"));
                }
            }
            next = batch.end();
        }
        let bytes: usize = read.batches.iter().map(|batch| batch.bytes.len()).sum();
        if read.batches.len() > 1 && bytes > max_bytes {
            return Err(format!("{key} at {from}: {bytes} bytes where {max_bytes} were asked for"));
        }
        if read.next != next || (next == from && from < expected.next()) {
            return Err(format!("{key} at {from}: ended at {next}, said {}, of {}", read.next, expected.next()));
        }
        Ok(next)
    }

    fn check_damage(&self, key: PartitionKey, from: u64, damage: &Damage) -> Check<u64> {
        let expected = self.partition(key)?;
        if damage.file.is_empty() {
            return Err(format!("{key} at {from}: damage without a file: {damage}"));
        }
        let Some(resume_at) = damage.resume_at.filter(|at| *at > from && *at <= expected.next()) else {
            return Err(format!("{key} at {from}: damage that leads nowhere: {damage:?}"));
        };
        let lossy = self.lossy_ranges(key);
        let is_excused = |offset: &u64| self.may_be_lost(expected, &lossy, *offset);
        match (from..resume_at).find(|offset| !is_excused(offset)) {
            Some(offset) => {
                Err(format!("{key} at {from}: {damage} (on at {resume_at}) hides {offset}, which is whole"))
            }
            None => Ok(resume_at),
        }
    }

    /// Offsets of the segments in which bits were flipped.
    fn lossy_ranges(&self, key: PartitionKey) -> Vec<(u64, u64)> {
        if self.flipped.segments.is_empty() {
            return Vec::new();
        }
        let bases: Vec<u64> = self
            .disk
            .files()
            .iter()
            .filter_map(|(path, _)| match FileKind::of(path) {
                FileKind::Segment(of, base) if of == key => Some(base),
                _ => None,
            })
            .collect();
        let hit = self.flipped.segments.iter().filter(|(of, _)| *of == key);
        hit.map(|(_, base)| (*base, bases.iter().find(|other| *other > base).copied().unwrap_or(u64::MAX))).collect()
    }

    fn may_be_lost(&self, expected: &PartitionModel, lossy: &[(u64, u64)], offset: u64) -> bool {
        expected.holes.contains(&offset) || lossy.iter().any(|(from, to)| (*from..*to).contains(&offset))
    }

    /// By time, compared with a look at all records.
    pub fn check_offset_at(&self, key: PartitionKey, time: i64) -> Check {
        let expected = self.partition(key)?;
        let naive = expected.offset_at(time);
        let found = self.core.offset_at(key, time).map_err(|error| format!("{key} at time {time}: {error}"))?;
        if found == naive {
            return Ok(());
        }
        let lossy = self.lossy_ranges(key);
        let is_excused = found > naive
            && found <= expected.next()
            && (naive..found).all(|offset| {
                let entry = expected.entries.get(offset as usize);
                entry.is_some_and(|entry| entry.timestamp < time) || self.may_be_lost(expected, &lossy, offset)
            });
        let is_in_time = expected.entries.get(found as usize).is_none_or(|entry| entry.timestamp >= time);
        if is_excused && is_in_time {
            return Ok(());
        }
        Err(format!("{key}: time {time} leads to {found} instead of {naive}"))
    }
}
