//! Reading where a broker's files are damaged, and where large records wait beside busy partitions.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_engines::conformance::log::{entry_of_size, new_spec};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_engines::needs_servers;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{Log as _, LogError, LogTopics as _, ReadLimits};

use crate::broker::OwnBroker;
use crate::interoperability::new_topic;
use crate::{ADDRESS, connect};

const LIMITS: ReadLimits = ReadLimits { max_records: 1000, max_bytes: 4 << 20, wait: Duration::from_secs(10) };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_damaged_batch_is_lost_to_readers() {
    needs_servers!(ADDRESS);
    let broker = OwnBroker::start();
    let log = connect(KafkaSettings::new(&broker.address)).await;
    let spec = new_topic(&log, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    for offset in 0..4 {
        append(&log, partition, 100, offset).await;
    }
    broker.damage_batch(&spec.name, 0, 2);
    let offsets = |batch: &whimbrel_model::ports::ReadBatch| -> Vec<u64> {
        batch.records.iter().map(|stored| stored.offset).collect()
    };
    let before = log.read(partition, 0, LIMITS).await.expect("the records before the damage can be read");
    assert_eq!((offsets(&before), before.next), (vec![0, 1], 2));
    let damage = log.read(partition, 2, LIMITS).await.expect_err("the batch is damaged");
    assert!(matches!(damage, LogError::Damaged { resume_at: 3, position: 2, .. }), "{damage:?}");
    let behind = log.read(partition, 3, LIMITS).await.expect("the records behind the damage can be read");
    assert_eq!((offsets(&behind), behind.next), (vec![3], 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_records_reach_waiting_readers_beside_busy_partitions_of_several_topics() {
    const LARGE_BYTES: usize = 1 << 20;
    needs_servers!(ADDRESS);
    let broker = OwnBroker::start();
    let log = connect(KafkaSettings::new(&broker.address)).await;
    let specs = [new_spec(2), new_spec(2), new_spec(2)];
    let mut readers = tokio::task::JoinSet::new();
    let mut busy = tokio::task::JoinSet::new();
    for spec in &specs {
        log.create(spec).await.expect("the topic can be created");
        let (quiet, partition) = (PartitionId::new(spec.number, 0), PartitionId::new(spec.number, 1));
        let log = log.clone();
        let reader = log.clone();
        readers.spawn(async move {
            for from in 0..3 {
                let batch = reader.read(quiet, from, LIMITS).await.expect("the partition can be read");
                assert_eq!(batch.next, from + 1, "the reader of {quiet} waits in vain");
            }
        });
        let writer = log.clone();
        busy.spawn(async move {
            for offset in 0.. {
                append(&writer, partition, 200 << 10, offset).await;
            }
        });
        busy.spawn(async move {
            let mut from = 0;
            loop {
                from = log.read(partition, from, LIMITS).await.expect("the partition can be read").next;
            }
        });
    }
    for offset in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        for spec in &specs {
            append(&log, PartitionId::new(spec.number, 0), LARGE_BYTES, offset).await;
        }
    }
    while let Some(reader) = readers.join_next().await {
        reader.expect("the reader gets every record");
    }
    busy.abort_all();
    while let Some(ended) = busy.join_next().await {
        assert!(ended.is_err_and(|error| error.is_cancelled()), "a busy partition failed");
    }
}

async fn append(log: &Arc<KafkaLog>, partition: PartitionId, value_bytes: usize, offset: u64) {
    assert_eq!(log.append(vec![entry_of_size(partition, value_bytes)]).await, [Ok(offset)]);
}
