//! The setting of the properties: an open log, topics of their own, and short functions for frequent steps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{Bounds, CommitOutcome, Entry, ExactTopic, Fence, LogError, ReadBatch, ReadLimits};
use whimbrel_model::{Headers, PartitionId, Record, Retention, StoredRecord, TopicNumber, TopicSpec};

use super::{LogFactory, LogTraits, OpenLog};
use crate::conformance::{now, unique_word};

/// The timeout of a read that must return records. It bounds a failure, not a success.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct LogScene<'f> {
    pub factory: &'f dyn LogFactory,
    pub open: OpenLog,
}

impl<'f> LogScene<'f> {
    pub async fn new(factory: &'f dyn LogFactory) -> Self {
        Self { factory, open: factory.open().await }
    }

    pub async fn with_topic(factory: &'f dyn LogFactory, partitions: u32) -> (Self, TopicNumber) {
        let (scene, spec) = Self::with_spec(factory, partitions).await;
        (scene, spec.number)
    }

    pub async fn with_spec(factory: &'f dyn LogFactory, partitions: u32) -> (Self, TopicSpec) {
        let (scene, spec) = (Self::new(factory).await, new_spec(partitions));
        scene.create(&spec).await;
        (scene, spec)
    }

    /// A second instance on the same store, if the engine supports that.
    pub async fn beside(&self) -> Option<LogScene<'f>> {
        if !self.traits().is_shared {
            return None;
        }
        Some(LogScene { factory: self.factory, open: self.factory.open_beside(&self.open).await })
    }

    pub async fn topic(&self, partitions: u32) -> TopicNumber {
        let spec = new_spec(partitions);
        self.create(&spec).await;
        spec.number
    }

    pub async fn create(&self, spec: &TopicSpec) -> u32 {
        self.open.topics.create(spec).await.expect("the topic can be made")
    }

    pub async fn identity(&self, spec: &TopicSpec) -> Option<String> {
        self.open.topics.identity(spec.number, &spec.name).await.expect("the topic can be identified")
    }

    pub async fn delete_exactly(&self, spec: &TopicSpec, identity: Option<&str>) {
        let topic = ExactTopic { number: spec.number, name: &spec.name, identity };
        self.open.topics.delete(topic).await.expect("the topic can be deleted");
    }

    /// Deletes the topic that has this name now.
    pub async fn delete(&self, spec: &TopicSpec) {
        let identity = self.identity(spec).await;
        self.delete_exactly(spec, identity.as_deref()).await;
    }

    pub fn traits(&self) -> LogTraits {
        self.factory.traits()
    }

    /// Appends, and expects that every record is accepted.
    pub async fn append(&self, entries: Vec<Entry>) -> Vec<u64> {
        let expected = entries.len();
        let outcome = self.open.log.append(entries).await;
        assert_eq!(outcome.len(), expected, "one answer per entry");
        outcome.into_iter().map(|each| each.expect("the record is taken")).collect()
    }

    pub async fn append_texts(&self, partition: PartitionId, texts: &[&str]) -> Vec<u64> {
        self.append(texts.iter().map(|text| entry(partition, text)).collect()).await
    }

    pub async fn fence(&self, name: &str) -> Fence {
        self.open.log.fence(name, 1).await.expect("the fence can be opened")
    }

    /// Commits, and expects success.
    pub async fn commit(&self, fence: &Fence, entries: Vec<Entry>) -> Vec<u64> {
        let expected = entries.len();
        match self.open.log.commit(fence, entries).await {
            CommitOutcome::Done(offsets) => {
                assert_eq!(offsets.len(), expected, "one offset per entry");
                offsets
            }
            other => panic!("the commit is not done but {other:?}"),
        }
    }

    pub async fn bounds(&self, partition: PartitionId) -> Bounds {
        self.open.log.bounds(partition).await.expect("the partition has bounds")
    }

    pub async fn try_read(&self, partition: PartitionId, from: u64, wait: Duration) -> Result<ReadBatch, LogError> {
        self.open.log.read(partition, from, ReadLimits { wait, ..wide() }).await
    }

    /// Reads what is there now, without waiting.
    pub async fn read_now(&self, partition: PartitionId, from: u64) -> ReadBatch {
        self.try_read(partition, from, Duration::ZERO).await.expect("the partition can be read")
    }

    /// Reads from `from` to the end that the partition had at the call.
    pub async fn read_to_end(&self, partition: PartitionId, from: u64) -> Vec<StoredRecord> {
        let end = self.bounds(partition).await.next;
        let mut records = Vec::new();
        let mut next = from;
        while next < end {
            let batch = self.try_read(partition, next, PATIENCE).await.expect("the partition can be read");
            assert!(batch.next > next, "reads make no progress at {next} before the end {end}");
            next = batch.next;
            records.extend(batch.records);
        }
        records
    }

    /// The values of a whole partition, as text.
    pub async fn texts(&self, partition: PartitionId) -> Vec<String> {
        let first = self.bounds(partition).await.first;
        self.read_to_end(partition, first).await.iter().map(text_of).collect()
    }
}

/// A topic that no other test of this machine uses, without retention.
pub fn new_spec(partitions: u32) -> TopicSpec {
    static TOPICS: AtomicU32 = AtomicU32::new(1);
    TopicSpec {
        number: TopicNumber(TOPICS.fetch_add(1, Ordering::Relaxed)),
        name: format!("conformance-{}", unique_word()),
        partitions,
        retention: Retention::default(),
        replicas: None,
        min_insync: None,
    }
}

/// A name for a fence that no other test of this machine uses.
pub fn new_fence_name() -> String {
    format!("conformance/{}", unique_word())
}

pub fn wide() -> ReadLimits {
    ReadLimits { max_records: 10_000, max_bytes: 64 << 20, wait: PATIENCE }
}

/// A record of the present time with that value, without a key and headers.
pub fn record(value: impl Into<Bytes>) -> Record {
    Record { key: None, value: value.into(), headers: Headers::EMPTY, timestamp: now() }
}

pub fn entry(partition: PartitionId, text: &str) -> Entry {
    Entry { partition, record: record(text.to_owned()) }
}

/// An entry whose record has exactly that size.
pub fn entry_of_size(partition: PartitionId, size: usize) -> Entry {
    let entry = Entry { partition, record: record(vec![b'x'; size]) };
    assert_eq!(entry.record.size(), size);
    entry
}

pub fn text_of(stored: &StoredRecord) -> String {
    String::from_utf8_lossy(&stored.record.value).into_owned()
}

pub fn assert_growing(offsets: &[u64]) {
    assert!(offsets.is_sorted_by(|earlier, later| earlier < later), "offsets do not grow: {offsets:?}");
}
