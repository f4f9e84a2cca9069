//! The `Log` and `LogTopics` ports in memory: true to their contracts, with handles to make them fail or wait.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use whimbrel_model::ports::{
    AppendOutcome, Bounds, CommitOutcome, Entry, ExactTopic, Fence, Log, LogError, LogTopics, PartitionStatus,
    PortFuture, ReadBatch, ReadLimits, TopicStatus,
};
use whimbrel_model::{
    ExistingTopic, NamedBounds, PartitionId, Record, Retention, StoredRecord, Timestamp, TopicNumber, TopicSpec,
};

/// The retention of topics that other applications made.
pub const RETENTION_OF_OTHERS: Duration = Duration::from_secs(3600);

/// The calls of a topic that wait.
#[derive(Clone, Copy, PartialEq)]
pub enum Hanging {
    Alterations,
    /// Also calls that open the topic.
    All,
}

/// Called for each entry before it is stored. An error is the outcome of that entry.
type AppendCheck = Box<dyn FnMut(&Entry) -> Result<(), LogError> + Send>;

#[derive(Default)]
pub struct MemoryLog {
    state: Mutex<State>,
    /// Increases with every append, to wake readers at the tail.
    appended: watch::Sender<u64>,
    held_up: watch::Sender<bool>,
    /// Whether requests for the bounds of a partition hang.
    hides_bounds: AtomicBool,
    hanging: watch::Sender<BTreeMap<String, Hanging>>,
    hanging_calls: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    topics: BTreeMap<TopicNumber, (TopicSpec, Vec<Partition>)>,
    found: Vec<ExistingTopic>,
    expects_deletion: Vec<TopicNumber>,
    /// The bounds that the last change of a topic named.
    named: Option<NamedBounds>,
    judge: Option<AppendCheck>,
    /// The error of `create`, `alter` and all reads, while it is set.
    refuses: Option<LogError>,
    unavailable: BTreeSet<String>,
    /// Topics of other systems disappear after the next listing.
    deletes_found: bool,
    /// The next change of a topic succeeds, and is answered with this error.
    lost_alteration: Option<LogError>,
    /// The reason that the log reports while it accepts no appends.
    refusal: Option<LogError>,
    waiting_appends: usize,
    /// Appends are stored, and answered with an unknown outcome.
    loses_answers: bool,
    largest_record: Option<usize>,
}

#[derive(Default)]
struct Partition {
    first: u64,
    records: Vec<Record>,
    damaged: Option<(u64, u64)>,
    /// Retention removes messages right after the next request for the bounds.
    drops_after_bounds: Option<u64>,
}

impl MemoryLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn judge(&self, judge: impl FnMut(&Entry) -> Result<(), LogError> + Send + 'static) {
        self.state().judge = Some(Box::new(judge));
    }

    pub fn judge_nothing(&self) {
        self.state().judge = None;
    }

    pub fn lose_answers(&self, loses: bool) {
        self.state().loses_answers = loses;
    }

    /// From now on, the largest record of any topic.
    pub fn largest_record(&self, bytes: usize) {
        self.state().largest_record = Some(bytes);
    }

    pub fn retention_of(&self, name: &str) -> Retention {
        let number = self.number_of(name).unwrap();
        self.state().topics[&number].0.retention
    }

    pub fn accept_nothing(&self, why: LogError) {
        self.state().refusal = Some(why);
    }

    /// From now on, requests for bounds hang.
    pub fn hide_bounds(&self) {
        self.hides_bounds.store(true, Ordering::Release);
    }

    pub fn refuse(&self, error: Option<LogError>) {
        self.state().refuses = error;
    }

    /// From now on, the topic cannot be opened, or can be opened again.
    pub fn set_unavailable(&self, name: &str, is_unavailable: bool) {
        let mut state = self.state();
        state.unavailable.remove(name);
        state.unavailable.extend(is_unavailable.then(|| name.to_owned()));
    }

    /// From now on, calls that name the topic hang, or continue.
    pub fn set_hanging(&self, name: &str, hangs: Option<Hanging>) {
        self.hanging.send_modify(|names| {
            names.remove(name);
            names.extend(hangs.map(|hangs| (name.to_owned(), hangs)));
        });
    }

    /// Returns when a call hangs because of its topic.
    pub async fn until_call_hangs(&self) {
        let mut waiting = self.hanging_calls.subscribe();
        waiting.wait_for(|count| *count > 0).await.expect("the sender exists");
    }

    async fn pass_hanging(&self, name: &str, is_alteration: bool) {
        let hangs = |names: &BTreeMap<String, Hanging>| {
            names.get(name).is_some_and(|hangs| is_alteration || *hangs == Hanging::All)
        };
        let mut hanging = self.hanging.subscribe();
        if hangs(&hanging.borrow_and_update()) {
            self.hanging_calls.send_modify(|count| *count += 1);
            hanging.wait_for(|names| !hangs(names)).await.expect("the sender exists");
            self.hanging_calls.send_modify(|count| *count -= 1);
        }
    }

    /// The next change of a topic succeeds, but is answered with this error.
    pub fn lose_next_alteration(&self, error: LogError) {
        self.state().lost_alteration = Some(error);
    }

    /// Other systems delete their topics right after the next listing.
    pub fn delete_others_after_next_listing(&self) {
        self.state().deletes_found = true;
    }

    pub fn has_topics_of_others(&self, found: &[(&str, u32)]) {
        let found = found.iter().map(|(name, partitions)| ExistingTopic {
            name: (*name).to_owned(),
            partitions: *partitions,
            retention: Retention { time: Some(RETENTION_OF_OTHERS), bytes: None },
        });
        self.state().found = found.collect();
    }

    pub fn expects_deletion(&self, topic: TopicNumber) -> bool {
        self.state().expects_deletion.contains(&topic)
    }

    pub fn named_bounds(&self) -> Option<NamedBounds> {
        self.state().named
    }

    /// From now on, appends wait, until they are released.
    pub fn hold_up(&self, held_up: bool) {
        self.held_up.send_replace(held_up);
    }

    /// From now on, appends wait, until they are released. Runs a request until its append waits. A request that is dropped afterwards is
    /// the one of a disconnected client.
    pub async fn hold_up_append_of<T>(&self, mut request: Pin<&mut impl Future<Output = T>>) {
        self.hold_up(true);
        while self.state().waiting_appends == 0 {
            assert!(futures_util::poll!(request.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
    }

    /// Makes the offsets from `from` to before `resume_at` unreadable.
    pub fn damage(&self, partition: PartitionId, from: u64, resume_at: u64) {
        self.state().partition(partition).unwrap().damaged = Some((from, resume_at));
    }

    pub fn drop_before(&self, partition: PartitionId, first: u64) {
        self.state().partition(partition).unwrap().first = first;
    }

    /// Removes the messages after the next request for the bounds, so that its answer is outdated.
    pub fn drop_after_next_bounds(&self, partition: PartitionId, first: u64) {
        self.state().partition(partition).unwrap().drops_after_bounds = Some(first);
    }

    pub fn number_of(&self, name: &str) -> Option<TopicNumber> {
        self.state().topics.iter().find(|(_, (spec, _))| spec.name == name).map(|(number, _)| *number)
    }

    pub fn records(&self, partition: PartitionId) -> Vec<Record> {
        self.state().partition(partition).unwrap().records.clone()
    }

    pub fn partitions_of(&self, number: TopicNumber) -> usize {
        self.state().topics[&number].1.len()
    }

    /// Adds partitions like another system.
    pub fn add_partitions(&self, number: TopicNumber, partitions: usize) {
        let mut state = self.state();
        let (_, kept) = state.topics.get_mut(&number).unwrap();
        kept.resize_with(partitions, Partition::default);
    }

    /// Appends a record like another system.
    pub fn put(&self, partition: PartitionId, record: Record) {
        self.state().partition(partition).unwrap().records.push(record);
        self.appended.send_modify(|count| *count += 1);
    }

    fn keep(&self, entries: Vec<Entry>) -> AppendOutcome {
        let mut state = self.state();
        let mut outcome = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut judge = state.judge.take();
            let judged = judge.as_mut().map_or(Ok(()), |judge| judge(&entry));
            state.judge = judge;
            outcome.push(judged.and_then(|()| {
                let partition = state.partition(entry.partition)?;
                partition.records.push(entry.record);
                let offset = partition.records.len() as u64 - 1;
                if state.loses_answers { Err(LogError::Unknown("timed out".to_owned())) } else { Ok(offset) }
            }));
        }
        drop(state);
        self.appended.send_modify(|count| *count += 1);
        outcome
    }

    fn read_now(&self, partition: PartitionId, from: u64, limits: ReadLimits) -> Result<ReadBatch, LogError> {
        let mut state = self.state();
        state.answering()?;
        let partition = state.partition(partition)?;
        let next = partition.records.len() as u64;
        if from < partition.first {
            return Err(LogError::Trimmed { asked: from, first: partition.first });
        }
        if from > next {
            return Err(LogError::BeyondEnd { asked: from, next });
        }
        let mut until = next;
        if let Some((damaged, resume_at)) = partition.damaged {
            if (damaged..resume_at).contains(&from) {
                let (what, file) = ("a bad checksum".to_owned(), "00000.log".to_owned());
                return Err(LogError::Damaged { what, file, position: 7, resume_at });
            }
            if from < damaged {
                until = damaged;
            }
        }
        let mut records = Vec::new();
        let mut bytes = 0;
        for offset in from..until {
            let record = &partition.records[offset as usize];
            bytes += record.size();
            if records.len() == limits.max_records || (!records.is_empty() && bytes > limits.max_bytes) {
                break;
            }
            records.push(StoredRecord { offset, record: record.clone() });
        }
        let next = from + records.len() as u64;
        Ok(ReadBatch { records, next })
    }
}

impl State {
    fn partition(&mut self, partition: PartitionId) -> Result<&mut Partition, LogError> {
        let topic = self.topics.get_mut(&partition.topic);
        topic
            .and_then(|(_, partitions)| partitions.get_mut(partition.index as usize))
            .ok_or(LogError::UnknownPartition(partition))
    }

    fn answering(&self) -> Result<(), LogError> {
        self.refuses.clone().map_or(Ok(()), Err)
    }
}

impl Log for MemoryLog {
    fn largest_record(&self, _: TopicNumber) -> usize {
        self.state().largest_record.unwrap_or(usize::MAX)
    }

    fn refusal(&self) -> Option<LogError> {
        self.state().refusal.clone()
    }

    fn append(&self, entries: Vec<Entry>) -> PortFuture<'_, AppendOutcome> {
        Box::pin(async move {
            let mut held_up = self.held_up.subscribe();
            if *held_up.borrow() {
                self.state().waiting_appends += 1;
                held_up.wait_for(|held_up| !held_up).await.unwrap();
                self.state().waiting_appends -= 1;
            }
            self.keep(entries)
        })
    }

    fn fence<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<Fence, LogError>> {
        Box::pin(async move { Ok(Fence { name: name.into(), epoch, handle: std::sync::Arc::new(()) }) })
    }

    fn commit<'a>(&'a self, _: &'a Fence, _: Vec<Entry>) -> PortFuture<'a, CommitOutcome> {
        Box::pin(async { CommitOutcome::NotNow(LogError::Unsupported("the door decides nothing".to_owned())) })
    }

    fn read(
        &self,
        partition: PartitionId,
        from: u64,
        limits: ReadLimits,
    ) -> PortFuture<'_, Result<ReadBatch, LogError>> {
        Box::pin(async move {
            let deadline = Instant::now() + limits.wait;
            let mut appended = self.appended.subscribe();
            loop {
                let batch = self.read_now(partition, from, limits)?;
                if !batch.records.is_empty() || timeout_at(deadline, appended.changed()).await.is_err() {
                    return Ok(batch);
                }
            }
        })
    }

    fn bounds(&self, partition: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>> {
        Box::pin(async move {
            if self.hides_bounds.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
            let mut state = self.state();
            state.answering()?;
            let partition = state.partition(partition)?;
            let bounds = Bounds { first: partition.first, next: partition.records.len() as u64 };
            if let Some(first) = partition.drops_after_bounds.take() {
                partition.first = first;
            }
            Ok(bounds)
        })
    }

    fn offset_at(&self, partition: PartitionId, time: Timestamp) -> PortFuture<'_, Result<u64, LogError>> {
        Box::pin(async move {
            let mut state = self.state();
            state.answering()?;
            let partition = state.partition(partition)?;
            let kept = partition.records.iter().enumerate().skip(partition.first as usize);
            let found = kept.clone().find(|(_, record)| record.timestamp >= time);
            Ok(found.map_or(partition.records.len(), |(offset, _)| offset) as u64)
        })
    }

    fn trim(&self, partition: PartitionId, before: u64) -> PortFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            self.drop_before(partition, before);
            Ok(())
        })
    }
}

impl LogTopics for MemoryLog {
    fn create<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<u32, LogError>> {
        Box::pin(async move {
            self.pass_hanging(&spec.name, false).await;
            let mut state = self.state();
            state.answering()?;
            if state.unavailable.contains(&spec.name) {
                return Err(LogError::Unavailable(format!("topic `{}` has no leader", spec.name)));
            }
            if spec.replicas.is_some_and(|replicas| replicas > 1) {
                return Err(LogError::Unsupported("this log has one copy of everything".to_owned()));
            }
            let (_, partitions) = state.topics.entry(spec.number).or_insert_with(|| (spec.clone(), Vec::new()));
            while partitions.len() < spec.partitions as usize {
                partitions.push(Partition::default());
            }
            Ok(partitions.len() as u32)
        })
    }

    fn alter<'a>(&'a self, spec: &'a TopicSpec, named: NamedBounds) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(async move {
            self.pass_hanging(&spec.name, true).await;
            self.state().named = Some(named);
            self.create(spec).await?;
            let mut state = self.state();
            state.topics.get_mut(&spec.number).unwrap().0 = spec.clone();
            state.lost_alteration.take().map_or(Ok(()), Err)
        })
    }

    fn identity<'a>(&'a self, topic: TopicNumber, _: &'a str) -> PortFuture<'a, Result<Option<String>, LogError>> {
        Box::pin(async move {
            let state = self.state();
            state.answering()?;
            Ok(state.topics.contains_key(&topic).then(|| topic.0.to_string()))
        })
    }

    fn delete<'a>(&'a self, topic: ExactTopic<'a>) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(async move {
            self.state().answering()?;
            self.state().topics.remove(&topic.number);
            self.appended.send_modify(|count| *count += 1);
            Ok(())
        })
    }

    fn expect_deletion(&self, topic: TopicNumber) {
        self.state().expects_deletion.push(topic);
    }

    fn describe(&self, topic: TopicNumber) -> PortFuture<'_, Result<TopicStatus, LogError>> {
        Box::pin(async move {
            let state = self.state();
            state.answering()?;
            let unknown = LogError::UnknownPartition(PartitionId::new(topic, 0));
            let (_, partitions) = state.topics.get(&topic).ok_or(unknown)?;
            let status = |index| PartitionStatus {
                index: index as u32,
                leader: Some(0),
                replicas: vec![0],
                in_sync: vec![0],
                bytes: Some(0),
            };
            Ok(TopicStatus { partitions: (0..partitions.len()).map(status).collect() })
        })
    }

    fn exists<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<bool, LogError>> {
        Box::pin(async move {
            self.state().answering()?;
            Ok(self.state().found.iter().any(|topic| topic.name == name))
        })
    }

    fn found<'a>(
        &'a self,
        is_skipped: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> PortFuture<'a, Result<Vec<ExistingTopic>, LogError>> {
        Box::pin(async move {
            self.state().answering()?;
            let mut state = self.state();
            let found = if state.deletes_found { std::mem::take(&mut state.found) } else { state.found.clone() };
            Ok(found.into_iter().filter(|topic| !is_skipped(&topic.name)).collect())
        })
    }
}
