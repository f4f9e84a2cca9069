//! A broker that crashes and restarts: acknowledged records are there, others are reported as unknown or not written, and the engine
//! recovers without a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use whimbrel_engines::conformance::log::{entry, new_spec, text_of};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{CommitOutcome, Log, LogError, LogTopics, ReadLimits};
use whimbrel_model::{PartitionId, TopicSpec};

use crate::broker::OwnBroker;
use crate::hanging_transactions::{self, commit, opened};
use crate::interoperability::new_topic;
use crate::{ADDRESS, connect, kept_events};

/// The timeout of every condition that must become true.
const PATIENCE: Duration = Duration::from_secs(60);

fn impatient(broker: &OwnBroker) -> KafkaSettings {
    KafkaSettings { transaction_timeout: Duration::from_secs(5), ..hanging_transactions::impatient(broker) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_records_survive_a_crash_of_the_broker_and_appends_resume() {
    needs_servers!(ADDRESS);
    let mut broker = OwnBroker::start();
    let log = connect(impatient(&broker)).await;
    let spec = new_topic(&log, 1).await;
    let partition = PartitionId::new(spec.number, 0);

    let appending = Appending::begin(&log, partition);
    appending.wait_for("acknowledged appends", |state| state.acknowledged.load(Ordering::Acquire) >= 100).await;
    broker.kill();
    appending.wait_for("a failed append", |state| state.failed.load(Ordering::Acquire) >= 1).await;
    let read = log.read(partition, 0, limits(Duration::ZERO));
    let read = tokio::time::timeout(PATIENCE, read).await.expect("a read does not hang without a broker");
    assert!(matches!(read, Ok(_) | Err(LogError::Unavailable(_))), "{read:?}");

    tokio::task::block_in_place(|| broker.start_again());
    let before = appending.state.acknowledged.load(Ordering::Acquire);
    appending.wait_for("appends that go on", |state| state.acknowledged.load(Ordering::Acquire) >= before + 100).await;
    let acknowledged = appending.end().await;

    let found = texts_by_offset(&log, partition).await;
    for (offset, text) in &acknowledged {
        assert_eq!(found.get(offset), Some(text), "the record acknowledged at {offset}");
    }
    let numbers: Vec<u64> = found.values().map(|text| text.parse().expect("a number")).collect();
    assert!(numbers.is_sorted_by(|earlier, later| earlier < later), "no record is there twice or out of order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_across_a_crash_of_the_broker_are_whole_or_absent() {
    needs_servers!(ADDRESS);
    let mut broker = OwnBroker::start();
    let log = connect(impatient(&broker)).await;
    let spec = new_topic(&log, 2).await;
    let partitions = [PartitionId::new(spec.number, 0), PartitionId::new(spec.number, 1)];
    let entries = |n: u64| partitions.iter().map(|partition| entry(*partition, &n.to_string())).collect::<Vec<_>>();

    let fence = log.fence(&spec.name, 1).await.expect("the fence can be opened");
    let mut done = Vec::new();
    assert!(matches!(log.commit(&fence, entries(0)).await, CommitOutcome::Done(_)));
    // Many commits are under way when the broker dies, one of them in its midst.
    let under_way: Vec<_> = (1..40).map(|n| log.commit(&fence, entries(n))).collect();
    tokio::task::block_in_place(|| broker.kill());
    let outcomes = join_all(under_way).await;
    let mut undone = 0;
    for (n, outcome) in (1..).zip(&outcomes) {
        match outcome {
            CommitOutcome::Done(_) => done.push(n.to_string()),
            CommitOutcome::Refused { index, error } => panic!("entry {index} is refused: {error}"),
            CommitOutcome::NotNow(_)
            | CommitOutcome::Blocked { .. }
            | CommitOutcome::Unknown(_)
            | CommitOutcome::Fenced => undone += 1,
        }
    }
    // Commits that were prepared on top of a commit of unknown outcome must not be written after it.
    let after_the_unknown = outcomes.iter().skip_while(|outcome| !matches!(outcome, CommitOutcome::Unknown(_))).skip(1);
    assert!(after_the_unknown.into_iter().all(|outcome| *outcome == CommitOutcome::Fenced), "{outcomes:?}");
    tokio::task::block_in_place(|| broker.start_again());
    let fence = opened(&log, &spec.name).await;
    for n in 100..110 {
        // Nothing of a `NotNow` is written: on a busy machine a commit may take longer than its timeout.
        commit(&log, &fence, &entries(n)).await;
        done.push(n.to_string());
    }
    let first = texts(&log, partitions[0]).await;
    assert_eq!(first, texts(&log, partitions[1]).await, "each commit is in both partitions or in none");
    let missing: Vec<&String> = done.iter().filter(|text| !first.contains(text)).collect();
    assert!(missing.is_empty(), "done, and not there: {missing:?}");
    assert!(undone >= 1, "the crash was felt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replicated_topic_that_one_replica_can_acknowledge_emits_a_warning() {
    needs_servers!(ADDRESS);
    let mut broker = OwnBroker::start();
    tokio::task::block_in_place(|| broker.add_node());
    let (events, kept) = kept_events();
    let log = KafkaLog::connect(KafkaSettings::new(&broker.address), events).await.expect("Kafka can be reached");
    let durable = TopicSpec { replicas: Some(2), min_insync: Some(2), ..new_spec(1) };
    log.create(&durable).await.expect("the topic can be made");
    assert!(kept.lock().unwrap().is_empty(), "a durable topic needs no warning");
    let weak = TopicSpec { replicas: Some(2), min_insync: Some(1), ..new_spec(1) };
    log.create(&weak).await.expect("the topic can be made");
    let kept = kept.lock().unwrap().clone();
    assert_eq!(kept.iter().map(|event| event.kind).collect::<Vec<_>>(), ["acknowledged_not_durable"]);
    assert!(kept[0].detail.contains(&weak.name) && kept[0].detail.contains("min.insync.replicas"));
}

/// A task that appends numbers one after the other until it is stopped.
struct Appending {
    state: Arc<AppendingState>,
    task: tokio::task::JoinHandle<Vec<(u64, String)>>,
}

#[derive(Default)]
struct AppendingState {
    acknowledged: AtomicUsize,
    failed: AtomicUsize,
    ended: AtomicBool,
}

impl Appending {
    fn begin(log: &Arc<KafkaLog>, partition: PartitionId) -> Self {
        let (log, state) = (log.clone(), Arc::new(AppendingState::default()));
        let told = state.clone();
        let task = tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for n in 0u64.. {
                if told.ended.load(Ordering::Acquire) {
                    break;
                }
                let text = n.to_string();
                match append_one(&log, partition, &text).await {
                    Ok(offset) => {
                        acknowledged.push((offset, text));
                        told.acknowledged.fetch_add(1, Ordering::AcqRel);
                    }
                    Err(LogError::Unavailable(_) | LogError::Unknown(_)) => {
                        told.failed.fetch_add(1, Ordering::AcqRel);
                    }
                    Err(error) => panic!("a broker's crash is not {error:?}"),
                }
            }
            acknowledged
        });
        Self { state, task }
    }

    async fn wait_for(&self, what: &str, is_there: impl Fn(&AppendingState) -> bool) {
        let began = Instant::now();
        while !is_there(&self.state) {
            assert!(began.elapsed() < PATIENCE && !self.task.is_finished(), "waited in vain for {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) -> Vec<(u64, String)> {
        self.state.ended.store(true, Ordering::Release);
        self.task.await.expect("the task ends by itself")
    }
}

async fn append_one(log: &Arc<KafkaLog>, partition: PartitionId, text: &str) -> Result<u64, LogError> {
    log.append(vec![entry(partition, text)]).await.remove(0)
}

fn limits(wait: Duration) -> ReadLimits {
    ReadLimits { max_records: 1000, max_bytes: 1 << 20, wait }
}

async fn texts_by_offset(log: &Arc<KafkaLog>, partition: PartitionId) -> BTreeMap<u64, String> {
    let end = log.bounds(partition).await.expect("the partition has bounds").next;
    let (mut next, mut found) = (0, BTreeMap::new());
    while next < end {
        let batch = log.read(partition, next, limits(Duration::from_secs(1))).await.expect("the partition can be read");
        next = batch.next;
        found.extend(batch.records.iter().map(|stored| (stored.offset, text_of(stored))));
    }
    found
}

async fn texts(log: &Arc<KafkaLog>, partition: PartitionId) -> Vec<String> {
    texts_by_offset(log, partition).await.into_values().collect()
}
