//! Fences and commits. A fence is a transactional producer whose `transactional.id` is the fence's name: opening one makes Kafka abort
//! the open transaction of the previous producer and fence that producer. A commit is one transaction.
//!
//! A fence is a task with connections of its own, which takes commits one after the other: their order is that of the calls.
//! `transaction` has the requests, `part` the batches of one partition, `inspect` the open transactions that leaders report, `repair`
//! the closing of transactions that Kafka has left open.

mod inspect;
mod part;
mod repair;
#[cfg(test)]
mod tests;
mod transaction;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;
use whimbrel_model::ports::{CommitOutcome, Entry, LogError};
use whimbrel_model::{EventSink, PartitionId, TopicNumber};

use self::transaction::{FenceError, FencedProducer};
use super::append::check_record;
use super::client::cluster::KafkaCluster;
use super::fetch::Fetcher;
use super::known_topics::{KnownTopic, KnownTopics};
use super::queries::Queries;
use super::settings::Compression;
use super::stalled_partitions::StalledPartitions;

/// The maximum number of commits in the queue of one fence; beyond it, a commit is `NotNow`.
const COMMITS_WAITING_MAX: usize = 64;
/// The time in which a failed commit may end its transaction. The next check tries again.
const CLEAN_UP_MAX: Duration = Duration::from_millis(500);
/// The time that a commit may take beyond its timeout, for the last request of each step, before its outcome is unknown.
const COMMIT_GRACE: Duration = Duration::from_secs(5);
/// The interval at which a fence checks for hanging transactions.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The parts of the engine that a fence uses, and its settings.
#[derive(Clone)]
pub(super) struct FenceContext {
    pub cluster: Arc<KafkaCluster>,
    pub known: Arc<KnownTopics>,
    pub queries: Arc<Queries>,
    pub fetcher: Arc<Fetcher>,
    pub hanging: Arc<StalledPartitions>,
    pub events: EventSink,
    pub transactional_id: String,
    /// The timeout of opening and of one commit; also the time after which Kafka aborts a transaction that was left open.
    pub timeout: Duration,
    /// The timeout of writing the records of a commit.
    pub write_timeout: Duration,
    pub compression: Compression,
    /// The time after which an unconfirmed commit or a stalled partition is examined.
    pub stalled_after: Duration,
}

/// An open fence, as [`whimbrel_model::ports::Fence`] carries it. Its task ends when the last clone is dropped.
pub(super) struct FenceHandle {
    commits: mpsc::Sender<Commit>,
    /// The time after which the outcome of an unanswered commit is unknown.
    answer_max: Duration,
}

struct Commit {
    entries: Vec<Entry>,
    put_at: Instant,
    answer: oneshot::Sender<CommitOutcome>,
}

impl FenceHandle {
    /// Opens the fence on the current runtime.
    pub async fn open(context: FenceContext) -> Result<Self, LogError> {
        let answer_max = context.timeout + COMMIT_GRACE;
        let fence = FencedProducer::open(context).await?;
        let (commits, waiting) = mpsc::channel(COMMITS_WAITING_MAX);
        tokio::spawn(fence.serve(waiting));
        Ok(Self { commits, answer_max })
    }

    /// Queues a commit when it is called, not when it is polled. So the order of commits is that of the calls.
    pub fn commit(&self, entries: Vec<Entry>) -> impl Future<Output = CommitOutcome> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        let (put_at, answer_max) = (Instant::now(), self.answer_max);
        let sent = self.commits.try_send(Commit { entries, put_at, answer });
        async move {
            match sent {
                Ok(()) => match tokio::time::timeout_at((put_at + answer_max).into(), answered).await {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) => CommitOutcome::Unknown("the fence was closed during the commit".to_owned()),
                    Err(_) => CommitOutcome::Unknown(format!("no outcome within {answer_max:?}")),
                },
                Err(TrySendError::Full(_)) => CommitOutcome::NotNow(LogError::Overloaded(format!(
                    "{COMMITS_WAITING_MAX} commits of this fence are waiting, which is the limit"
                ))),
                Err(TrySendError::Closed(_)) => CommitOutcome::Fenced,
            }
        }
    }
}

impl FencedProducer {
    /// Takes commits until the fence is dropped or void. Commits that wait behind a void fence are answered as fenced.
    async fn serve(mut self, mut waiting: mpsc::Receiver<Commit>) {
        let mut check_at = Instant::now();
        loop {
            let until_check = check_at.saturating_duration_since(Instant::now());
            let commit = match tokio::time::timeout(until_check, waiting.recv()).await {
                Ok(Some(commit)) => Some(commit),
                Ok(None) => {
                    // The next fence would abort it, and with it a commit whose marker is missing.
                    let _ = self.end_open(Instant::now() + self.context.timeout).await;
                    return;
                }
                Err(_) => None,
            };
            let mut is_void = false;
            if Instant::now() >= check_at {
                is_void = matches!(self.repair_stalled().await, Err(FenceError::Fenced));
                check_at = Instant::now() + CHECK_INTERVAL;
            }
            if let Some(commit) = commit {
                let outcome =
                    if is_void { CommitOutcome::Fenced } else { self.commit(&commit.entries, commit.put_at).await };
                if !matches!(outcome, CommitOutcome::Done(_)) {
                    tracing::debug!(id = self.context.transactional_id, ?outcome, "a commit failed");
                }
                is_void |= matches!(outcome, CommitOutcome::Fenced | CommitOutcome::Unknown(_));
                let _ = commit.answer.send(outcome);
            }
            if is_void {
                break;
            }
        }
        // The connections are closed now; the caller may keep the fence for long.
        drop(self);
        waiting.close();
        while let Some(commit) = waiting.recv().await {
            let _ = commit.answer.send(CommitOutcome::Fenced);
        }
    }

    /// The timeout of a commit begins when it is queued, so that commits that wait for the same broker time out together.
    async fn commit(&mut self, entries: &[Entry], put_at: Instant) -> CommitOutcome {
        if entries.is_empty() {
            return CommitOutcome::Done(Vec::new());
        }
        let (deadline, write_deadline) = (put_at + self.context.timeout, put_at + self.context.write_timeout);
        if Instant::now() >= write_deadline {
            let limit = self.context.write_timeout;
            let why =
                format!("the commit waited more than {limit:?} for earlier commits of its fence and was not started");
            return CommitOutcome::NotNow(LogError::Unavailable(why));
        }
        let mut topics = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            match self.check(entry).await {
                Ok(topic) => topics.push(topic),
                Err(error) => return self.failed(index, error),
            }
        }
        match self.begin_and_write(&topics, entries, write_deadline).await {
            Ok(offsets) => {
                let outcome = self.end(offsets, deadline).await;
                if let CommitOutcome::Done(offsets) = &outcome {
                    self.remember_committed(entries, offsets);
                }
                outcome
            }
            Err(FenceError::Fenced) => CommitOutcome::Fenced,
            Err(FenceError::Entry { index, error }) => {
                if matches!(self.end_open(Instant::now() + CLEAN_UP_MAX).await, Err(FenceError::Fenced)) {
                    return CommitOutcome::Fenced;
                }
                self.failed(index, error)
            }
            Err(FenceError::Blocked { partitions, error }) => {
                if matches!(self.end_open(Instant::now() + CLEAN_UP_MAX).await, Err(FenceError::Fenced)) {
                    return CommitOutcome::Fenced;
                }
                CommitOutcome::Blocked { partitions, error }
            }
        }
    }

    /// Checks an entry before anything is sent.
    async fn check(&self, entry: &Entry) -> Result<Arc<KnownTopic>, LogError> {
        let topic = self.context.known.get(entry.partition.topic).ok_or(LogError::UnknownPartition(entry.partition))?;
        self.context.queries.check_exists(&topic, entry.partition).await?;
        if self.context.queries.is_still_missing(&topic, entry.partition.index).await? {
            return Err(LogError::UnknownPartition(entry.partition));
        }
        check_record(&entry.record, topic.record_bytes_max)?;
        Ok(topic)
    }

    /// The outcome of a commit that wrote nothing because of the entry at `index`.
    fn failed(&self, index: usize, error: LogError) -> CommitOutcome {
        match error {
            LogError::Unavailable(_) | LogError::Overloaded(_) | LogError::Unknown(_) => CommitOutcome::NotNow(error),
            LogError::UnknownPartition(partition) if self.is_topic_missing(partition.topic) => {
                let error = LogError::UnknownPartition(PartitionId::new(partition.topic, 0));
                CommitOutcome::Refused { index, error }
            }
            refused => CommitOutcome::Refused { index, error: refused },
        }
    }

    fn is_topic_missing(&self, number: TopicNumber) -> bool {
        self.context.known.get(number).is_some_and(|topic| topic.missing.is_whole_topic())
    }
}
