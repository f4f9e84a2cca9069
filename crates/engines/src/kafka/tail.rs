//! Tailing: readers that have reached the end of a partition wait here for new records.
//!
//! Every followed partition has one window at its end. One task keeps long-polling fetches in flight on up to 3 connections per broker;
//! each fetch covers the partitions of the broker that are in no other fetch. A broker that does not answer delays only its own partitions.
//! A partition with 1 MiB of unread records is not fetched, and one without readers is dropped after 60 s. All windows together take 256
//! MiB at most. Records in a window must never share the bytes of their answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::FetchResponse;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use whimbrel_model::ports::{ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, StoredRecord, TopicNumber};

use super::client::batch::DECODED_BYTES_MAX;
use super::client::cluster::{ANSWER_MAX, KafkaCluster};
use super::client::connection::CallError;
use super::client::link::BrokerLinks;
use super::fetch::{self, FetchError, FetchQuery};
use super::known_topics::KnownTopic;
use super::marker_record;
use super::outcome::KafkaError;
use super::queries::LogEnd;
use super::stalled_partitions::StalledPartitions;
use super::window::RecordWindow;

/// The time for which a fetch waits at the broker. A partition that joins while all connections wait is fetched after this time at most.
const FETCH_WAIT: Duration = Duration::from_millis(100);
/// The overall timeout of a fetch whose answer keeps being transferred.
const TRANSFER_MAX: Duration = Duration::from_secs(60);
/// Concurrent long-polling fetches per broker.
const FETCHES_PER_BROKER: usize = 3;
/// Bytes of one partition in one answer.
const PARTITION_BYTES: usize = 512 << 10;
/// The same for a partition that got nothing because its next batch is larger: a bit over Kafka's default of `max.message.bytes`. A larger
/// batch is returned when its partition is the first with records in a fetch.
const STARVED_PARTITION_BYTES: usize = 2 << 20;
/// The maximum unread bytes of a partition; beyond it, the partition is not fetched.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// The maximum bytes in the windows of all partitions together. Beyond it, windows keep no read records, and partitions with unread records
/// are not fetched. A process has one engine, so this bounds the process; answers in transfer need additional memory.
const WINDOW_BYTES_MAX: usize = 256 << 20;
/// The time for which a partition without readers is followed.
const IDLE_MAX: Duration = Duration::from_secs(60);
const IDLE_LOOK: Duration = Duration::from_secs(5);
/// The maximum time for which a broker's quota stops the fetches of one connection. Kafka's own limit is its quota window, 11 s by default.
const THROTTLE_MAX: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct PartitionTails {
    tails: Mutex<HashMap<PartitionId, Arc<PartitionTail>>>,
    changed: Notify,
    bytes_max: usize,
    /// Whether the unread bytes of all windows together exceed the maximum.
    is_full: AtomicBool,
}

/// The end of one partition.
pub(super) struct PartitionTail {
    topic: Arc<KnownTopic>,
    partition: PartitionId,
    state: Mutex<TailState>,
    arrived: Notify,
}

struct TailState {
    window: RecordWindow,
    used_at: Instant,
    not_before: Option<Instant>,
    is_under_way: bool,
    /// The number of the last answer that had records of this partition.
    served_in: u64,
    /// Whether the last answer was empty although more is visible.
    is_starved: bool,
}

impl PartitionTails {
    /// Starts the following task on the current runtime. The task ends with the runtime.
    pub fn start(cluster: Arc<KafkaCluster>, hanging: Arc<StalledPartitions>) -> Arc<Self> {
        Self::start_within(WINDOW_BYTES_MAX, cluster, hanging)
    }

    fn start_within(bytes_max: usize, cluster: Arc<KafkaCluster>, hanging: Arc<StalledPartitions>) -> Arc<Self> {
        let tails = Arc::new(Self {
            tails: Mutex::default(),
            changed: Notify::new(),
            bytes_max,
            is_full: AtomicBool::new(false),
        });
        let follower = Follower {
            tails: tails.clone(),
            cluster,
            hanging,
            links: (0..FETCHES_PER_BROKER).map(|_| Arc::default()).collect(),
            under_way: FuturesUnordered::new(),
            busy: HashMap::new(),
            looked_at: Instant::now(),
            answers: 0,
        };
        tokio::spawn(follower.run());
        tails
    }

    pub fn get(&self, partition: PartitionId) -> Option<Arc<PartitionTail>> {
        self.tails().get(&partition).cloned()
    }

    /// Follows the partition from `from`, which is its visible end. Wakes readers at other offsets, which then fetch.
    pub fn follow(&self, topic: &Arc<KnownTopic>, partition: PartitionId, from: u64) {
        let earlier = {
            let mut tails = self.tails();
            if tails.get(&partition).is_some_and(|tail| tail.state().window.covers(from)) {
                return;
            }
            let (topic, state) = (topic.clone(), Mutex::new(TailState::at(from)));
            tails.insert(partition, Arc::new(PartitionTail { topic, partition, state, arrived: Notify::new() }))
        };
        if let Some(earlier) = earlier {
            earlier.arrived.notify_waiters();
        }
        self.changed.notify_one();
    }

    /// Evicts the records before `first`, which the log has dropped.
    pub fn forget_before(&self, partition: PartitionId, first: u64) {
        if let Some(tail) = self.get(partition) {
            tail.state().window.forget_before(first);
            tail.arrived.notify_waiters();
        }
    }

    /// Drops the tails of a deleted topic, whose name another topic may get.
    pub fn retire_topic(&self, topic: TopicNumber) {
        self.retire(|partition, _| partition.topic == topic);
    }

    fn retire(&self, is_over: impl Fn(&PartitionId, &PartitionTail) -> bool) {
        let over: Vec<Arc<PartitionTail>> =
            self.tails().extract_if(|id, tail| is_over(id, tail)).map(|(_, tail)| tail).collect();
        over.iter().for_each(|tail| tail.arrived.notify_waiters());
    }

    /// Drops a tail that cannot be fetched.
    fn lose(&self, lost: &Arc<PartitionTail>) {
        self.retire(|_, tail| std::ptr::eq(tail, Arc::as_ptr(lost)));
    }

    /// Evicts read records if all windows together exceed their limit. Returns whether the unread records alone exceed it.
    fn make_room(&self, all: &[Arc<PartitionTail>]) -> bool {
        let bytes = || all.iter().map(|tail| tail.state().window.bytes()).sum::<usize>();
        let mut is_full = bytes() > self.bytes_max;
        if is_full {
            all.iter().for_each(|tail| tail.state().window.forget_all_read());
            is_full = bytes() > self.bytes_max;
        }
        self.is_full.store(is_full, Ordering::Release);
        is_full
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<PartitionId, Arc<PartitionTail>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TailState {
    fn at(from: u64) -> Self {
        Self {
            window: RecordWindow::at(from),
            used_at: Instant::now(),
            not_before: None,
            is_under_way: false,
            served_in: 0,
            is_starved: false,
        }
    }

    /// Adds the records of one answer to the window. Returns whether readers have more to read.
    fn take_in(&mut self, query: &FetchQuery, fetched: fetch::FetchPage, answer: u64) -> bool {
        // A trim may have moved the window forward meanwhile.
        let has_more = fetched.next > self.window.next();
        if fetched.next > query.from {
            self.served_in = answer;
        }
        self.is_starved = fetched.next == query.from && fetched.visible_end > query.from;
        for stored in fetched.records.into_iter().filter(|stored| !marker_record::is_marker_record(&stored.record)) {
            // Copied into a buffer of its own: otherwise one kept record would keep the whole answer in memory, up to 8 MiB.
            self.window.push(StoredRecord { offset: stored.offset, record: stored.record.compact() });
        }
        self.window.pass_to(fetched.next);
        has_more
    }
}

impl PartitionTail {
    /// Completes when there may be new records. Enable it before reading, then wait.
    pub fn arrived(&self) -> Notified<'_> {
        self.arrived.notified()
    }

    /// Reads the records from `from` on; `None` if the window does not cover that offset.
    pub fn read(&self, tails: &PartitionTails, from: u64, limits: &ReadLimits) -> Option<ReadBatch> {
        let mut state = self.state();
        state.used_at = Instant::now();
        let was_full = state.window.unread_bytes() >= UNREAD_BYTES_MAX;
        let batch = state.window.read(from, limits).ok()?;
        state.window.forget_read();
        let has_room = was_full && state.window.unread_bytes() < UNREAD_BYTES_MAX;
        if has_room || tails.is_full.load(Ordering::Acquire) {
            tails.changed.notify_one();
        }
        Some(batch)
    }

    fn state(&self) -> MutexGuard<'_, TailState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CompletedFetch {
    broker: i32,
    /// The index of the broker's connection that it used.
    slot: usize,
    parts: Vec<FetchPart>,
    answer: Result<FetchResponse, CallError>,
}

struct Follower {
    tails: Arc<PartitionTails>,
    cluster: Arc<KafkaCluster>,
    hanging: Arc<StalledPartitions>,
    links: Vec<Arc<BrokerLinks>>,
    under_way: FuturesUnordered<BoxFuture<'static, CompletedFetch>>,
    /// The connections to each broker that have a fetch in flight.
    busy: HashMap<i32, [bool; FETCHES_PER_BROKER]>,
    looked_at: Instant,
    /// The number of fetches that have ended.
    answers: u64,
}

struct FetchPart {
    tail: Arc<PartitionTail>,
    query: FetchQuery,
    served_in: u64,
}

impl Follower {
    async fn run(mut self) {
        let tails = self.tails.clone();
        loop {
            let wake_at = self.dispatch();
            tokio::select! {
                Some(fetched) = self.under_way.next(), if !self.under_way.is_empty() => self.handle(fetched),
                () = tails.changed.notified() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
    }

    /// Sends a fetch to every broker that leads partitions which are in no fetch. Returns when to check again.
    fn dispatch(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake_at = now + IDLE_LOOK;
        if now.duration_since(self.looked_at) >= IDLE_LOOK {
            self.looked_at = now;
            self.tails.retire(|_, tail| now.duration_since(tail.state().used_at) >= IDLE_MAX);
        }
        let mut by_leader: HashMap<i32, Vec<FetchPart>> = HashMap::new();
        let mut without_leader = None;
        let all: Vec<Arc<PartitionTail>> = self.tails.tails().values().cloned().collect();
        let unread_bytes_max = if self.tails.make_room(&all) { 1 } else { UNREAD_BYTES_MAX };
        for tail in all {
            let mut state = tail.state();
            if state.is_under_way || state.window.unread_bytes() >= unread_bytes_max {
                continue;
            }
            if let Some(not_before) = state.not_before.filter(|at| *at > now) {
                wake_at = wake_at.min(not_before);
                continue;
            }
            let Some(leader) = self.cluster.leader(tail.topic.name(), tail.partition.index) else {
                state.not_before = Some(now + RETRY_PAUSE);
                wake_at = wake_at.min(now + RETRY_PAUSE);
                without_leader = Some(tail.topic.name().to_owned());
                continue;
            };
            if self.free_slot(leader).is_none() {
                continue;
            }
            state.is_under_way = true;
            let query = FetchQuery {
                topic: tail.topic.wire_name(),
                index: tail.partition.index,
                from: state.window.next(),
                bytes_max: if state.is_starved {
                    STARVED_PARTITION_BYTES.max(tail.topic.record_bytes_max + PARTITION_BYTES)
                } else {
                    PARTITION_BYTES
                },
            };
            let served_in = state.served_in;
            drop(state);
            by_leader.entry(leader).or_default().push(FetchPart { tail, query, served_in });
        }
        for (broker, mut parts) in by_leader {
            // Busy partitions must not starve the others: Kafka gives a batch of any size to the first partition that has records.
            parts.sort_unstable_by_key(|part| (part.served_in, part.tail.partition));
            self.fetch(broker, parts);
        }
        if let Some(topic) = without_leader {
            self.cluster.refresh_in_background(&topic);
        }
        wake_at
    }

    fn free_slot(&self, broker: i32) -> Option<usize> {
        self.busy.get(&broker).map_or(Some(0), |slots| slots.iter().position(|is_busy| !is_busy))
    }

    fn fetch(&mut self, broker: i32, parts: Vec<FetchPart>) {
        let Some(slot) = self.free_slot(broker) else { return };
        self.busy.entry(broker).or_default()[slot] = true;
        let (cluster, links) = (self.cluster.clone(), self.links[slot].clone());
        self.under_way.push(Box::pin(async move {
            let queries: Vec<FetchQuery> = parts.iter().map(|part| part.query.clone()).collect();
            let answer = async {
                let connection = links.to(&cluster, broker).await?;
                let request = fetch::request(&queries, LogEnd::Visible, FETCH_WAIT);
                let answer = connection.call_within(&request, FETCH_WAIT + ANSWER_MAX, TRANSFER_MAX).await?;
                fetch::wait_for_quota(&answer, THROTTLE_MAX).await;
                Ok(answer)
            };
            let answer = answer.await;
            CompletedFetch { broker, slot, parts, answer }
        }));
    }

    fn handle(&mut self, CompletedFetch { broker, slot, parts, answer }: CompletedFetch) {
        self.busy.entry(broker).or_default()[slot] = false;
        let mut bytes_left = DECODED_BYTES_MAX;
        self.answers += 1;
        for FetchPart { tail, query, .. } in parts {
            if bytes_left == 0 {
                // The rest of the answer is fetched again, with its partitions first.
                tail.state().is_under_way = false;
                continue;
            }
            let fetched = match &answer {
                Ok(answer) => fetch::part_of(answer, &query, bytes_left),
                Err(error) => Err(error.clone().into()),
            };
            let mut state = tail.state();
            state.is_under_way = false;
            match fetched {
                Ok(fetched) => {
                    bytes_left = bytes_left.saturating_sub(fetched.bytes);
                    let (visible_end, written_end) = (fetched.visible_end, fetched.written_end);
                    let has_more = state.take_in(&query, fetched, self.answers);
                    drop(state);
                    self.hanging.observe(tail.topic.name(), tail.partition, visible_end, written_end);
                    if has_more {
                        tail.arrived.notify_waiters();
                    }
                }
                Err(FetchError::Kafka(error)) if error.is_passing() => {
                    state.not_before = Some(Instant::now() + RETRY_PAUSE);
                    drop(state);
                    self.cluster.refresh_in_background(tail.topic.name());
                }
                Err(error) => {
                    drop(state);
                    if !matches!(error, FetchError::Kafka(KafkaError::Code(Code::OffsetOutOfRange))) {
                        tracing::debug!(partition = %tail.partition, %error, "a partition cannot be followed");
                    }
                    // Its readers fetch directly and report the error.
                    self.tails.lose(&tail);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
