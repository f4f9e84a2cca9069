//! Commits of which Kafka accepts one partition and refuses another.

use std::sync::Arc;

use whimbrel_engines::conformance::log::record;
use whimbrel_engines::kafka::KafkaLog;
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{CommitOutcome, Entry, Log, LogError};
use whimbrel_model::{PartitionId, Record, TopicSpec};

use crate::interoperability::{new_topic, read_all};
use crate::programs::Peer;
use crate::{ADDRESS, bootstrap, connect, settings};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commit_after_a_refused_one_is_written_where_the_refused_one_was_accepted() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let (compacted, shard) = (compacted(&log).await, new_topic(&log, 1).await);
    let fence = log.fence(&shard.name, 1).await.expect("the fence can be opened");
    for round in 0..3 {
        // A compacted topic takes no record without a key. The other partition has accepted its record by then.
        let entries = vec![entry(&compacted, None, "message"), entry(&shard, None, "fired")];
        let refused = log.commit(&fence, entries).await;
        assert!(matches!(refused, CommitOutcome::Refused { index: 0, error: LogError::Unsupported(_) }), "{refused:?}");
        let done = log.commit(&fence, vec![entry(&shard, None, "given up")]).await;
        let CommitOutcome::Done(offsets) = done else { panic!("{done:?}") };
        let read = read_all(&log, &shard, 0, round + 1).await;
        let last = read.last().expect("the commit is read");
        assert_eq!((last.offset, &last.record.value[..]), (offsets[0], &b"given up"[..]));
        assert_eq!(read.len(), round + 1, "nothing of a refused commit is read");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_names_the_record_that_kafka_refuses() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let compacted = compacted(&log).await;
    let fence = log.fence(&compacted.name, 1).await.expect("the fence can be opened");
    let entries = vec![entry(&compacted, Some("a"), "one"), entry(&compacted, None, "two")];
    let refused = log.commit(&fence, entries).await;
    assert!(matches!(refused, CommitOutcome::Refused { index: 1, .. }), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_split_where_the_limit_of_its_topic_was_lowered() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    tokio::task::block_in_place(|| Peer::start(&bootstrap()).set_config(&spec.name, "max.message.bytes", "20000"));
    let fence = log.fence(&spec.name, 1).await.expect("the fence can be opened");
    let text = "x".repeat(9000);
    // Until the broker has received the new limit it accepts the whole batch, which is correct too.
    let done = log.commit(&fence, vec![entry(&spec, None, &text); 9]).await;
    assert_eq!(done, CommitOutcome::Done((0..9).collect()));
    assert_eq!(read_all(&log, &spec, 0, 9).await.len(), 9);
}

fn entry(spec: &TopicSpec, key: Option<&str>, text: &str) -> Entry {
    let record = Record { key: key.map(|key| key.to_owned().into()), ..record(text.to_owned()) };
    Entry { partition: PartitionId::new(spec.number, 0), record }
}

async fn compacted(log: &Arc<KafkaLog>) -> TopicSpec {
    let spec = new_topic(log, 1).await;
    tokio::task::block_in_place(|| {
        let mut peer = Peer::start(&bootstrap());
        peer.set_config(&spec.name, "cleanup.policy", "compact");
    });
    spec
}
