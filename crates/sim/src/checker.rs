//! Checks a log against the model.
//!
//! Every acknowledged record is at its partition and offset with its bytes, and there are no other records. Records that flipped bits made
//! unreadable are reported as damage with a file and an offset at which to continue. Damage is never wrong data, and never larger than the
//! segment or frame with the flipped bits. Without flipped bits there is no damage.

use std::collections::BTreeSet;
use std::path::Path;

use whimbrel_storage::{Core, LogDamage, LogRead, PartitionKey, ReadError};

use crate::SimDisk;
use crate::model::{Model, PartitionModel};

/// The result of a check: an error describes a violation.
pub type CheckResult<T = ()> = Result<T, String>;

/// Bytes of one read in a full walk: few, so that reads begin and end at many offsets.
const WALK_BYTES: usize = 700;

/// The flipped bits, and so the records that may be unreadable.
#[derive(Debug, Default)]
pub struct FlippedBits {
    pub segments: BTreeSet<(PartitionKey, u64)>,
    /// Flips in the journal since the log was last opened.
    pub journal: u64,
    pub total: u64,
}

/// The kind of a file, by its path below the data folder.
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
    pub flipped: &'a FlippedBits,
}

impl Checker<'_> {
    /// Checks every partition completely.
    pub fn check_all(&self) -> CheckResult {
        for key in self.model.alive() {
            self.check_partition(key)?;
        }
        Ok(())
    }

    fn partition(&self, key: PartitionKey) -> CheckResult<&PartitionModel> {
        self.model.partitions.get(&key).ok_or_else(|| format!("the model has no partition {key}"))
    }

    fn check_partition(&self, key: PartitionKey) -> CheckResult {
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

    /// Reads at any offset, checks the answer, and returns the next offset.
    pub fn check_read(&self, key: PartitionKey, from: u64, max_bytes: usize) -> CheckResult<u64> {
        let expected = self.partition(key)?;
        let (first, next) = (expected.first, expected.next());
        match self.core.read(key, from, max_bytes) {
            Err(ReadError::Trimmed { asked, first: stated }) if asked == from && stated == first && from < first => {
                Ok(first)
            }
            Err(ReadError::BeyondEnd { asked, next: stated }) if asked == from && stated == next && from > next => {
                Ok(next)
            }
            Ok(_) if from < first || from > next => Err(format!("{key} was read at {from}, outside {first}..{next}")),
            Ok(read) => self.check_batches(key, from, max_bytes, &read),
            Err(ReadError::Damaged(damage)) => self.check_damage(key, from, &damage),
            Err(error) => Err(format!("reading {key} at {from}: {error}")),
        }
    }

    fn check_batches(&self, key: PartitionKey, from: u64, max_bytes: usize, read: &LogRead) -> CheckResult<u64> {
        let expected = self.partition(key)?;
        let mut next = from;
        for (index, batch) in read.batches.iter().enumerate() {
            let fits = if index == 0 { batch.base() <= from && from < batch.end() } else { batch.base() == next };
            if !fits {
                return Err(format!("{key} at {from}: a batch {}..{} where {next} was due", batch.base(), batch.end()));
            }
            let records: Vec<_> = batch.records().collect();
            if records.len() as u64 != batch.end() - batch.base() {
                return Err(format!("{key} at {from}: a batch with too few records"));
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
            return Err(format!("{key} at {from}: {bytes} bytes instead of at most {max_bytes}"));
        }
        if read.next != next || (next == from && from < expected.next()) {
            return Err(format!("{key} at {from}: ends at {next}, states {}, of {}", read.next, expected.next()));
        }
        Ok(next)
    }

    fn check_damage(&self, key: PartitionKey, from: u64, damage: &LogDamage) -> CheckResult<u64> {
        let expected = self.partition(key)?;
        if damage.file.is_empty() {
            return Err(format!("{key} at {from}: damage without a file: {damage}"));
        }
        let Some(resume_at) = damage.resume_at.filter(|at| *at > from && *at <= expected.next()) else {
            return Err(format!("{key} at {from}: damage without a next offset: {damage:?}"));
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

    /// The offset ranges of the segments with flipped bits.
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

    /// Checks a search by time against a scan of all records.
    pub fn check_offset_at(&self, key: PartitionKey, time: i64) -> CheckResult {
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
