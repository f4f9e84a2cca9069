//! Converts between the port's records and the log's bytes.

use std::collections::HashMap;

use whimbrel_model::ports::{Entry, LogError};
use whimbrel_model::{Headers, PartitionId, Record, StoredRecord, Timestamp, TopicNumber};
use whimbrel_storage::{AppendError, LogBatch, LogRecord, PartitionKey, ReadError, WritePart};

pub(super) fn key_of(partition: PartitionId) -> PartitionKey {
    PartitionKey { topic: partition.topic.0, partition: partition.index }
}

pub(super) fn id_of(key: PartitionKey) -> PartitionId {
    PartitionId::new(TopicNumber(key.topic), key.partition)
}

/// Entries grouped by partition for the log, and the position of each entry's offset in the answer.
pub(super) struct PartitionedEntries {
    pub parts: Vec<WritePart>,
    /// For each entry, its part and its position in the part.
    places: Vec<(u32, u32)>,
}

impl PartitionedEntries {
    pub fn new(entries: &[Entry]) -> Self {
        let mut gathered = Self { parts: Vec::new(), places: Vec::with_capacity(entries.len()) };
        let mut by_partition: HashMap<PartitionId, u32> = HashMap::new();
        for Entry { partition, record } in entries {
            let part_count = gathered.parts.len() as u32;
            // A single record, or a batch for one partition, needs no map.
            let index = match gathered.parts.last() {
                Some(part) if part.partition == key_of(*partition) => part_count - 1,
                _ if entries.len() == 1 => 0,
                _ => *by_partition.entry(*partition).or_insert(part_count),
            };
            if index == part_count {
                let records = Vec::with_capacity(if part_count == 0 { size_of_entry(record) } else { 0 });
                let partition = key_of(*partition);
                gathered.parts.push(WritePart { partition, count: 0, max_timestamp: i64::MIN, records });
            }
            let part = &mut gathered.parts[index as usize];
            let timestamp = record.timestamp.as_millis();
            LogRecord::encode(
                &mut part.records,
                timestamp,
                record.key.as_deref(),
                record.headers.encoded(),
                &record.value,
            );
            gathered.places.push((index, part.count));
            part.count += 1;
            part.max_timestamp = part.max_timestamp.max(timestamp);
        }
        gathered
    }

    pub fn first_of_part(places: &[(u32, u32)], part: usize) -> usize {
        places.iter().position(|(index, _)| *index as usize == part).unwrap_or(0)
    }

    pub fn split(self) -> (Vec<WritePart>, Vec<(u32, u32)>) {
        (self.parts, self.places)
    }
}

pub(super) fn size_of_entry(record: &Record) -> usize {
    LogRecord::encoded_len(record.key.as_deref(), record.headers.encoded(), &record.value)
}

/// Decodes the records of batches from an offset on, within limits. Returns the offset to continue from.
pub(super) fn decode(
    batches: &[LogBatch],
    from: u64,
    next: u64,
    max_records: usize,
    max_bytes: usize,
) -> (Vec<StoredRecord>, u64) {
    let mut records = Vec::new();
    let mut bytes = 0;
    for batch in batches {
        for (offset, encoded) in batch.records().skip(from.saturating_sub(batch.base()) as usize) {
            // The log was encoded from valid headers; other bytes fail the checksum.
            let headers = Headers::from_encoded(encoded.headers).unwrap_or_default();
            let timestamp = Timestamp::from_millis(encoded.timestamp);
            let record = Record { key: encoded.key, value: encoded.value, headers, timestamp };
            bytes += record.size();
            if !records.is_empty() && (records.len() >= max_records || bytes > max_bytes) {
                return (records, offset);
            }
            records.push(StoredRecord { offset, record });
        }
    }
    (records, next)
}

pub(super) fn append_error(error: AppendError) -> LogError {
    let text = error.to_string();
    match error {
        AppendError::UnknownPartition(key) => LogError::UnknownPartition(id_of(key)),
        AppendError::TooLarge { size, limit } => LogError::TooLarge { size, limit },
        AppendError::DiskFull(why) => LogError::DiskFull(why),
        AppendError::Overloaded { .. } => LogError::Overloaded(text),
        AppendError::Poisoned(why) => LogError::Poisoned(why),
        AppendError::Closing | AppendError::Delayed(_) => LogError::Unavailable(text),
        AppendError::Unknown(why) => LogError::Unknown(why),
    }
}

pub(super) fn read_error(error: ReadError) -> LogError {
    match error {
        ReadError::UnknownPartition(key) => LogError::UnknownPartition(id_of(key)),
        ReadError::Trimmed { asked, first } => LogError::Trimmed { asked, first },
        ReadError::BeyondEnd { asked, next } => LogError::BeyondEnd { asked, next },
        ReadError::Damaged(damage) => LogError::Damaged {
            what: damage.what,
            file: damage.file,
            position: damage.position,
            resume_at: damage.resume_at.unwrap_or_default(),
        },
        ReadError::Io { .. } => LogError::Unavailable(error.to_string()),
    }
}
