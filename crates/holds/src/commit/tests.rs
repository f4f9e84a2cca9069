//! Tests of commits on a log with scripted answers.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use whimbrel_model::ports::{AppendOutcome, Bounds, PortFuture, ReadBatch, ReadLimits};

use super::super::testing::{end, hold};
use super::*;

const SHARD: PartitionId = PartitionId::new(TopicNumber(1), 0);

fn partition(index: u32) -> PartitionId {
    PartitionId::new(TopicNumber(9), index)
}

/// A log that answers commits with the listed outcomes in turn. After the last one it accepts every commit.
#[derive(Default)]
struct ScriptedLog {
    outcomes: Mutex<VecDeque<CommitOutcome>>,
    commits: Mutex<Vec<HashSet<PartitionId>>>,
}

impl Log for ScriptedLog {
    fn append(&self, _: Vec<Entry>) -> PortFuture<'_, AppendOutcome> {
        panic!("only commits are expected")
    }

    fn fence<'a>(&'a self, _: &'a str, _: u64) -> PortFuture<'a, Result<Fence, LogError>> {
        panic!("only commits are expected")
    }

    fn commit<'a>(&'a self, _: &'a Fence, entries: Vec<Entry>) -> PortFuture<'a, CommitOutcome> {
        self.commits.lock().unwrap().push(entries.iter().map(|entry| entry.partition).collect());
        let done = CommitOutcome::Done((0..entries.len() as u64).collect());
        let outcome = self.outcomes.lock().unwrap().pop_front().unwrap_or(done);
        Box::pin(std::future::ready(outcome))
    }

    fn read(&self, _: PartitionId, _: u64, _: ReadLimits) -> PortFuture<'_, Result<ReadBatch, LogError>> {
        panic!("only commits are expected")
    }

    fn bounds(&self, _: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>> {
        panic!("only commits are expected")
    }

    fn offset_at(&self, _: PartitionId, _: Timestamp) -> PortFuture<'_, Result<u64, LogError>> {
        panic!("only commits are expected")
    }

    fn trim(&self, _: PartitionId, _: u64) -> PortFuture<'_, Result<(), LogError>> {
        panic!("only commits are expected")
    }
}

async fn fire_into(log: &ScriptedLog, blocked: &Mutex<BlockedPartitions>, partitions: &[u32]) -> CommitResult {
    let fire = |index: &u32| Decision::Fire(hold(&format!("hold-{index}"), 5));
    let decisions: Vec<Decision> = partitions.iter().map(fire).collect();
    let destinations: Vec<_> = partitions.iter().map(|index| DecisionTarget::Topic(partition(*index))).collect();
    let fence = Fence { name: "holds/0".into(), epoch: 1, handle: Arc::new(()) };
    let target = CommitTarget { log, fence: &fence, shard: SHARD, blocked };
    commit_to(target, &decisions, &destinations, Timestamp::from_millis(6)).await
}

fn blocked_by(partitions: &[PartitionId]) -> CommitOutcome {
    let error = LogError::Unavailable("the partition has no leader".to_owned());
    CommitOutcome::Blocked { partitions: partitions.to_vec(), error }
}

#[tokio::test]
async fn a_commit_leaves_out_partitions_that_cannot_be_written() {
    let (log, blocked) = (ScriptedLog::default(), Mutex::default());
    log.outcomes.lock().unwrap().push_back(blocked_by(&[partition(1)]));
    let CommitResult::Done(written) = fire_into(&log, &blocked, &[0, 1, 2]).await else {
        panic!("the commit succeeds")
    };
    assert_eq!(written.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    // The next commit does not try that partition either: it would wait for its leader again.
    let CommitResult::Done(written) = fire_into(&log, &blocked, &[1, 2]).await else { panic!("the commit succeeds") };
    assert_eq!(written.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    let commits = log.commits.lock().unwrap();
    assert_eq!(commits.len(), 3);
    assert!(commits[1..].iter().all(|partitions| !partitions.contains(&partition(1))));
}

#[tokio::test]
async fn a_commit_gives_up_after_tries_max_blocked_attempts() {
    let (log, blocked) = (ScriptedLog::default(), Mutex::default());
    for index in 0..20 {
        log.outcomes.lock().unwrap().push_back(blocked_by(&[partition(index)]));
    }
    let all: Vec<u32> = (0..20).collect();
    assert!(matches!(fire_into(&log, &blocked, &all).await, CommitResult::NotNow(_)));
    assert_eq!(log.commits.lock().unwrap().len(), TRIES_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_commit_waits_for_the_shards_own_partition() {
    let (log, blocked) = (ScriptedLog::default(), Mutex::default());
    for _ in 0..TRIES_MAX * 2 {
        log.outcomes.lock().unwrap().push_back(blocked_by(&[SHARD]));
    }
    assert!(matches!(fire_into(&log, &blocked, &[0]).await, CommitResult::Done(_)));
}

#[tokio::test]
async fn a_missing_partition_rejects_all_its_messages_at_once_and_the_reason_names_the_topic() {
    let (log, blocked) = (ScriptedLog::default(), Mutex::default());
    let error = LogError::UnknownPartition(partition(1));
    log.outcomes.lock().unwrap().push_back(CommitOutcome::Refused { index: 2, error });
    let CommitResult::Refused { indexes, why } = fire_into(&log, &blocked, &[0, 1, 2, 1, 1]).await else {
        panic!("the commit is rejected")
    };
    assert_eq!(indexes, [1, 3, 4]);
    assert!(why.contains("`orders`") && !why.contains("9/1"), "{why}");
}

#[tokio::test]
async fn a_missing_topic_rejects_the_messages_of_all_its_partitions_at_once() {
    let (log, blocked) = (ScriptedLog::default(), Mutex::default());
    let error = LogError::UnknownPartition(partition(0));
    log.outcomes.lock().unwrap().push_back(CommitOutcome::Refused { index: 0, error });
    let CommitResult::Refused { indexes, why } = fire_into(&log, &blocked, &[3, 1, 2, 1]).await else {
        panic!("the commit is rejected")
    };
    assert_eq!(indexes, [0, 1, 2, 3]);
    assert_eq!(why, "the log has no topic `orders`: it was deleted outside Whimbrel");
}

#[test]
fn only_a_fired_message_or_a_new_hold_can_be_rejected_permanently() {
    let one = hold("a", 5);
    let ended = HoldRecord::Ended { id: one.id.clone(), end: end(&one) };
    let decisions = [
        Decision::Write(ended),
        Decision::Write(HoldRecord::Held(Hold::clone(&one))),
        Decision::Fire(hold("b", 6)),
        Decision::Fire(hold("c", 7)),
    ];
    let places =
        [EntryIndex::Record(0), EntryIndex::Record(1), EntryIndex::LeftOut, EntryIndex::Message(2, partition(0))];
    let refused = |entry| refused_decision(&places, &decisions, entry);
    assert_eq!((refused(1), refused(2)), (Some(1), Some(3)));
    assert_eq!((refused(0), refused(3)), (None, None), "the shard's own records, including `fired` records");
}
