//! The entries of a commit for one partition, and the batches that they are written in.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use kafka_protocol::ResponseError as Code;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{Entry, LogError};

use super::transaction::{FenceError, refused};
use crate::kafka::client::batch::{self, BatchIdentity};
use crate::kafka::known_topics::KnownTopic;
use crate::kafka::settings::Compression;

/// The entries of a commit for one partition.
pub(super) struct FencePart {
    pub(super) topic: Arc<KnownTopic>,
    pub(super) partition: PartitionId,
    /// Entries that are not written yet, by their indexes in the commit.
    pub(super) indexes: Vec<usize>,
    pub(super) first: usize,
    pub(super) largest: usize,
    /// The first batch of these entries: their number, and the encoded bytes.
    pub(super) prepared: Option<(usize, Bytes)>,
    /// The maximum number of records in one batch; lowered if the broker finds a batch too large.
    pub(super) batch_records_max: usize,
    pub(super) unknown_since: Option<Instant>,
}

impl FencePart {
    pub(super) fn of(topics: &[Arc<KnownTopic>], entries: &[Entry]) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        let mut places: HashMap<PartitionId, usize> = HashMap::new();
        for (index, (topic, entry)) in topics.iter().zip(entries).enumerate() {
            let place = *places.entry(entry.partition).or_insert_with(|| {
                parts.push(Self {
                    topic: topic.clone(),
                    partition: entry.partition,
                    indexes: Vec::new(),
                    first: index,
                    largest: 0,
                    prepared: None,
                    batch_records_max: usize::MAX,
                    unknown_since: None,
                });
                parts.len() - 1
            });
            parts[place].indexes.push(index);
            parts[place].largest = parts[place].largest.max(entry.record.size());
        }
        parts
    }

    pub(super) fn first_index(&self) -> usize {
        self.indexes.first().copied().unwrap_or(self.first)
    }

    /// Encodes the next batch, unless it is encoded already. Returns whether there is a batch to send.
    pub(super) fn prepare(
        &mut self,
        entries: &[Entry],
        identity: BatchIdentity,
        compression: Compression,
    ) -> Result<bool, FenceError> {
        if self.indexes.is_empty() || self.prepared.is_some() {
            return Ok(!self.indexes.is_empty());
        }
        let (mut used, room) = (0, self.topic.batch_bytes_max());
        let fits = |index: &&usize| {
            used += batch::encoded_bytes_max(&entries[**index].record);
            used <= room
        };
        let count = self.indexes.iter().take(self.batch_records_max).take_while(fits).count().max(1);
        let records = self.indexes[..count].iter().map(|index| &entries[*index].record);
        let bytes = batch::encode(records, identity, compression).map_err(|error| FenceError::Entry {
            index: self.first_index(),
            error: LogError::Unsupported(format!("the batch cannot be encoded: {error}")),
        })?;
        self.prepared = Some((count, bytes));
        Ok(true)
    }

    pub(super) fn has_several_records(&self) -> bool {
        self.prepared.as_ref().is_some_and(|(count, _)| *count > 1)
    }

    /// Encodes the batch again with half of its records. For a batch that was certainly not written.
    pub(super) fn split(&mut self) {
        if let Some((count, _)) = self.prepared.take() {
            self.batch_records_max = (count / 2).max(1);
        }
    }

    /// The index in the commit of a record of the batch.
    pub(super) fn index_in_batch(&self, at: usize) -> usize {
        self.indexes.get(at).copied().unwrap_or_else(|| self.first_index())
    }

    /// The rejection of one entry.
    pub(super) fn refused(&self, index: usize, code: Code) -> FenceError {
        refused(&(self.topic.clone(), self.partition), index, code, self.largest)
    }

    /// Records that the batch in flight is written. Returns the number of its records.
    pub(super) fn written(&mut self, base: u64, offsets: &mut [u64]) -> usize {
        let Some((count, _)) = self.prepared.take() else { return 0 };
        for (index, offset) in self.indexes.drain(..count).zip(base..) {
            offsets[index] = offset;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::{Headers, Record, Timestamp, TopicNumber};

    fn entry(index: u32, size: usize) -> Entry {
        let record = Record {
            key: None,
            value: vec![0; size].into(),
            headers: Headers::EMPTY,
            timestamp: Timestamp::from_millis(1),
        };
        Entry { partition: PartitionId::new(TopicNumber(1), index), record }
    }

    #[test]
    fn entries_are_written_by_partition_in_batches_and_keep_their_places() {
        let topic = Arc::new(KnownTopic::new(TopicNumber(1), "t".to_owned(), 2, 1000));
        let entries = [entry(0, 400), entry(1, 10), entry(0, 400), entry(0, 400)];
        let mut parts = FencePart::of(&vec![topic; 4], &entries);
        assert_eq!(parts.len(), 2);
        let identity = BatchIdentity { producer_id: 1, producer_epoch: 0, base_sequence: 0, is_transactional: true };
        let mut offsets = vec![0; 4];
        let mut counts = Vec::new();
        while parts[0].prepare(&entries, identity, Compression::None).is_ok_and(|more| more) {
            let base = 100 + 10 * counts.len() as u64;
            counts.push(parts[0].written(base, &mut offsets));
        }
        assert_eq!(counts, [2, 1]);
        assert_eq!(offsets, [100, 0, 101, 110]);
    }
}
