//! The sending task: puts ready batches into one request per broker, and passes the answers to the `PartitionSender`s.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProducerId};
use whimbrel_model::{PartitionId, TopicNumber};

use super::outgoing_batch::{self, SendBatch};
use super::partition_sender::{PartitionSender, ProducerIdentity, SendOutcome};
use super::{AppendShared, RETRY_PAUSE, ROUND_TRIP_MIN};
use crate::kafka::client::cluster::{ANSWER_MAX, KafkaCluster};
use crate::kafka::client::connection::{BrokerConnection, CallError};
use crate::kafka::client::link::BrokerLinks;
use crate::kafka::outcome;
use crate::kafka::queries::Queries;
use crate::kafka::requests;
use crate::kafka::settings::KafkaSettings;

/// The maximum number of requests in flight on one connection. A broker processes one at a time; the second one is there when the first is
/// done.
const REQUESTS_PER_BROKER: usize = 2;
/// A request with this many bytes gets no further batch.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// The connection of a request. Batches that are sent again use a connection of their own: the broker delays the whole answer while the
/// replicas of one partition lag, which must not delay other partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProduceTarget {
    broker: i32,
    is_repeat: bool,
}

/// A request that has ended.
enum Completion {
    Produced { target: ProduceTarget, batches: Vec<(SendBatch, SendOutcome)> },
    Identified(Result<(i64, i16), String>),
}

pub(super) struct AppendSender {
    shared: Arc<AppendShared>,
    settings: KafkaSettings,
    cluster: Arc<KafkaCluster>,
    queries: Arc<Queries>,
    links: Arc<BrokerLinks>,
    repeat_links: Arc<BrokerLinks>,
    partitions: HashMap<PartitionId, PartitionSender>,
    sendable: VecDeque<PartitionId>,
    under_way: FuturesUnordered<BoxFuture<'static, Completion>>,
    requests: HashMap<ProduceTarget, usize>,
    identities: ProducerIdentities,
}

/// The producer ids of the task. There is one request for a new id at a time.
#[derive(Default)]
struct ProducerIdentities {
    current: Option<ProducerIdentity>,
    /// The number of the last identity.
    last_number: u64,
    is_requested: bool,
    /// Why the last request failed.
    error: Option<String>,
}

impl ProducerIdentities {
    fn newer_than(&self, expired_number: u64) -> Option<ProducerIdentity> {
        self.current.filter(|identity| identity.number > expired_number)
    }

    /// Handles the answer to the request.
    fn answered(&mut self, answer: Result<(i64, i16), String>) {
        self.is_requested = false;
        match answer {
            Ok((producer_id, epoch)) => {
                self.last_number += 1;
                self.error = None;
                self.current = Some(ProducerIdentity { number: self.last_number, producer_id, epoch });
            }
            Err(why) => {
                let why = format!("cannot get a producer id: {why}");
                tracing::debug!("{why}");
                self.error = Some(why);
            }
        }
    }
}

/// The requests and needs that one dispatch collects from the partitions.
struct DispatchRound {
    now: Instant,
    wake_at: Option<Instant>,
    /// The batches of each request, and their bytes.
    requests: HashMap<ProduceTarget, (usize, Vec<SendBatch>)>,
    /// A topic with a partition whose leader is unknown.
    needs_leader: Option<String>,
    needs_identity: bool,
    /// The partitions that can send later.
    waiting: VecDeque<PartitionId>,
}

impl DispatchRound {
    fn at(now: Instant) -> Self {
        let (requests, waiting) = (HashMap::new(), VecDeque::new());
        Self { now, wake_at: None, requests, needs_leader: None, needs_identity: false, waiting }
    }

    /// Keeps a partition for the next dispatch: at this time, or when a request ends.
    fn wait(&mut self, partition: PartitionId, until: Option<Instant>) {
        self.wake_at = [self.wake_at, until].into_iter().flatten().min();
        self.waiting.push_back(partition);
    }
}

impl AppendSender {
    pub(super) fn new(
        shared: Arc<AppendShared>,
        settings: &KafkaSettings,
        cluster: Arc<KafkaCluster>,
        queries: Arc<Queries>,
    ) -> Self {
        Self {
            shared,
            settings: settings.clone(),
            cluster,
            queries,
            links: Arc::default(),
            repeat_links: Arc::default(),
            partitions: HashMap::new(),
            sendable: VecDeque::new(),
            under_way: FuturesUnordered::new(),
            requests: HashMap::new(),
            identities: ProducerIdentities::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            for queue in std::mem::take(&mut *shared.ready.lock().unwrap_or_else(PoisonError::into_inner)) {
                let sender = self.partitions.entry(queue.partition).or_default();
                let partition = queue.partition;
                sender.queues.push_back(queue);
                if !sender.is_under_way && !std::mem::replace(&mut sender.is_sendable, true) {
                    self.sendable.push_back(partition);
                }
            }
            let forgotten = std::mem::take(&mut *shared.forgotten.lock().unwrap_or_else(PoisonError::into_inner));
            if !forgotten.is_empty() {
                self.end_partitions_of(&forgotten, &shared);
            }
            let wake_at = self.dispatch(&shared);
            let timer = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(done) = self.under_way.next(), if !self.under_way.is_empty() => self.handle(done, &shared),
                () = shared.wake.notified() => {}
                () = timer => {}
            }
            // Handles all answers that have arrived before it builds new requests.
            while let Some(Some(done)) = futures_util::FutureExt::now_or_never(self.under_way.next()) {
                self.handle(done, &shared);
            }
        }
    }

    /// Fails the records that wait for topics that no longer exist. A topic of the same name begins with another producer id: with the old
    /// one its first batch could look like a repeat.
    fn end_partitions_of(&mut self, topics: &[TopicNumber], shared: &Arc<AppendShared>) {
        self.identities.current = None;
        self.partitions.retain(|partition, sender| {
            if !topics.contains(&partition.topic) {
                return true;
            }
            sender.end(shared);
            sender.is_over = true;
            sender.is_under_way
        });
    }

    /// Sends all batches that can be sent. Returns when to dispatch again if nothing else wakes the task.
    fn dispatch(&mut self, shared: &Arc<AppendShared>) -> Option<Instant> {
        let mut round = DispatchRound::at(Instant::now());
        for partition in std::mem::take(&mut self.sendable) {
            self.take_turn(partition, &mut round, shared);
        }
        self.sendable = round.waiting;
        for (target, (_, batches)) in round.requests {
            if !batches.is_empty() {
                *self.requests.entry(target).or_default() += 1;
                self.under_way.push(Box::pin(self.produce(target, batches)));
            }
        }
        if let Some(topic) = round.needs_leader {
            self.cluster.refresh_in_background(&topic);
        }
        if round.needs_identity && !std::mem::replace(&mut self.identities.is_requested, true) {
            let cluster = self.cluster.clone();
            self.under_way.push(Box::pin(async move {
                let identity = new_identity(&cluster).await;
                if identity.is_err() {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Completion::Identified(identity)
            }));
        }
        round.wake_at
    }

    /// Adds the next batch of a partition to the round if it can be sent now.
    fn take_turn(&mut self, partition: PartitionId, round: &mut DispatchRound, shared: &Arc<AppendShared>) {
        let (now, retry_at) = (round.now, round.now + RETRY_PAUSE);
        let Some(sender) = self.partitions.get_mut(&partition) else { return };
        sender.expire(now, shared);
        if let Some(not_before) = sender.not_before.filter(|at| *at > now) {
            return round.wait(partition, Some(not_before));
        }
        let Some(topic) = sender.topic() else {
            sender.is_sendable = false;
            return;
        };
        if sender.again.is_empty()
            && let Some(at) = sender.lingers_until(self.settings.linger).filter(|at| *at > now)
        {
            return round.wait(partition, Some(at));
        }
        let Some(leader) = self.cluster.leader(topic.name(), partition.index) else {
            round.needs_leader = Some(topic.name().to_owned());
            sender.not_before = Some(retry_at);
            return round.wait(partition, Some(retry_at));
        };
        let target =
            ProduceTarget { broker: leader, is_repeat: sender.again.front().is_some_and(|batch| batch.is_repeat) };
        let (bytes, batches) = round.requests.entry(target).or_default();
        let under_way = self.requests.get(&target).copied().unwrap_or(0);
        if under_way >= REQUESTS_PER_BROKER || *bytes >= REQUEST_BYTES_MAX {
            return round.wait(partition, None);
        }
        if sender.identity.is_none() {
            sender.identity = self.identities.newer_than(sender.expired_producer_number);
            sender.next_sequence = 0;
        }
        let Some(identity) = sender.identity else {
            round.needs_identity = true;
            sender.last_error = self.identities.error.clone().or(sender.last_error.take());
            return round.wait(partition, Some(retry_at));
        };
        // If no batch could be encoded, the next dispatch finds the queue empty.
        let Some(batch) = sender.take(identity, &self.settings, shared) else {
            return round.wait(partition, Some(now));
        };
        *bytes += batch.bytes;
        (sender.is_sendable, sender.is_under_way) = (false, true);
        batches.push(batch);
    }

    /// One request to one broker.
    fn produce(
        &self,
        target: ProduceTarget,
        batches: Vec<SendBatch>,
    ) -> impl Future<Output = Completion> + Send + 'static {
        let links = if target.is_repeat { self.repeat_links.clone() } else { self.links.clone() };
        let (cluster, queries) = (self.cluster.clone(), self.queries.clone());
        let until = outgoing_batch::answer_by(&batches).unwrap_or_else(Instant::now);
        let send_by = batches.iter().filter_map(SendBatch::send_by).min().unwrap_or(until);
        async move {
            let called = async {
                let connection = connection_by(send_by, &links, &cluster, target.broker).await?;
                let left = until.saturating_duration_since(Instant::now()).max(ROUND_TRIP_MIN);
                let timeout = left.min(ANSWER_MAX);
                connection.call_within(&request_of(&batches, timeout), timeout, left).await
            };
            let answer = match called.await {
                Ok(answer) => answer,
                Err(error) => {
                    let attempt = |batch| (batch, SendOutcome::NotAnswered(error.clone()));
                    return Completion::Produced { target, batches: batches.into_iter().map(attempt).collect() };
                }
            };
            let mut outcomes = Vec::with_capacity(batches.len());
            for batch in batches {
                let topic = answer.responses.iter().find(|topic| topic.name.as_str() == batch.topic.name());
                let found = topic.and_then(|topic| {
                    topic.partition_responses.iter().find(|each| each.index == batch.partition.index as i32)
                });
                let attempt = match found.map(|found| (found, Code::try_from_code(found.error_code))) {
                    None => SendOutcome::NotAnswered(CallError::NoAnswer("the answer lacks a partition".to_owned())),
                    Some((found, None)) => SendOutcome::Written(found.base_offset.max(0) as u64),
                    Some((_, Some(code))) if outcome::is_unknown_partition(code) && batch.is_unknown_for_long() => {
                        match queries.is_missing(&batch.topic, batch.partition.index).await {
                            Ok(true) => SendOutcome::Gone,
                            _ => SendOutcome::Failed(code, Vec::new()),
                        }
                    }
                    Some((found, Some(code))) => {
                        let places = found.record_errors.iter().map(|error| error.batch_index.max(0) as usize);
                        SendOutcome::Failed(code, places.collect())
                    }
                };
                outcomes.push((batch, attempt));
            }
            Completion::Produced { target, batches: outcomes }
        }
    }

    fn handle(&mut self, done: Completion, shared: &Arc<AppendShared>) {
        match done {
            Completion::Identified(answer) => self.identities.answered(answer),
            Completion::Produced { target, batches } => {
                if let Some(requests) = self.requests.get_mut(&target) {
                    *requests -= 1;
                }
                for (batch, attempt) in batches {
                    let partition = batch.partition;
                    let topic = batch.topic.clone();
                    let Some(sender) = self.partitions.get_mut(&partition) else {
                        batch.expired("the log is shutting down", shared);
                        continue;
                    };
                    sender.is_under_way = false;
                    let must_refresh = sender.handle_attempt(batch, attempt, shared);
                    if sender.is_over {
                        sender.end(shared);
                        self.partitions.remove(&partition);
                        continue;
                    }
                    if !std::mem::replace(&mut sender.is_sendable, true) {
                        self.sendable.push_back(partition);
                    }
                    if must_refresh {
                        self.cluster.refresh_in_background(topic.name());
                    }
                }
            }
        }
    }
}

/// The connection to a broker, opened before `send_by`: later the request may not be sent.
async fn connection_by(
    send_by: Instant,
    links: &BrokerLinks,
    cluster: &KafkaCluster,
    broker: i32,
) -> Result<Arc<BrokerConnection>, CallError> {
    match tokio::time::timeout_at(send_by.into(), links.to(cluster, broker)).await {
        Ok(opened) if opened.is_err() || Instant::now() < send_by => opened,
        _ => Err(CallError::NotSent(format!("no connection to broker {broker} before the deadline of the records"))),
    }
}

fn request_of(batches: &[SendBatch], timeout: Duration) -> ProduceRequest {
    let batches = batches.iter().map(|batch| {
        let records = batch.encoded.as_ref().map(|(_, bytes)| bytes.clone());
        (&*batch.topic, batch.partition, records)
    });
    requests::produce(batches, timeout)
}

async fn new_identity(cluster: &KafkaCluster) -> Result<(i64, i16), String> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
        .with_transaction_timeout_ms(i32::MAX);
    let answer = cluster.ask_any(&request, ANSWER_MAX).await.map_err(|error| error.to_string())?;
    outcome::check(answer.error_code).map_err(|code| {
        // A broker that is cut off from the controllers answers, but cannot assign an id.
        cluster.prefer_another();
        code.to_string()
    })?;
    Ok((answer.producer_id.0, answer.producer_epoch))
}
