//! The cached state of the cluster: brokers, leaders of partitions, and connections for short requests.
//!
//! Leaders come from `Metadata` answers. They are cached for 30 s at most, and until a broker answers that it is not the leader or cannot
//! be reached. One caller at a time refreshes, and all callers that wait share the result. Each refresh asks another broker than the one
//! before, and ignores a leader of an older epoch: a broker that is cut off from the controllers answers from old metadata. A broker that
//! has just started may list no topic and no broker, not even itself: such an answer changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::{Request, StrBytes};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::error::Elapsed;

use super::connection::{BrokerConnection, CallError};
use super::dial::BrokerDialer;
use super::link::BrokerLink;

/// The timeout of one broker for a short request. After it, another broker is asked.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The minimum time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);
/// The timeout per broker while other brokers remain to be asked.
const ONE_OF_SEVERAL_MAX: Duration = Duration::from_millis(1500);
/// The maximum age of the leaders: after this time they are looked up without a request.
const REFRESH_AT_LEAST_EVERY: Duration = Duration::from_secs(30);
/// The time for which a broker that has not answered is asked after all others.
const AVOIDED_FOR: Duration = Duration::from_secs(10);
/// The maximum number of partitions of one topic that are accepted from an answer; further ones are ignored.
const PARTITIONS_MAX: usize = 1 << 20;
/// An unreachable cluster is logged at most once in this time.
const UNREACHABLE_LOGGED_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct KafkaCluster {
    dialer: BrokerDialer,
    bootstrap: Vec<String>,
    state: Mutex<ClusterState>,
    /// Locked during a refresh. Contains the time of the last one.
    refreshing: AsyncMutex<Option<Instant>>,
    /// Whether a refresh runs in the background.
    is_refreshing: AtomicBool,
    metadata_connections: Pool,
    /// Slow requests have connections of their own.
    admin_connections: Pool,
}

/// One shared connection to each broker, by address.
#[derive(Default)]
struct Pool(Mutex<HashMap<String, Arc<BrokerLink>>>);

#[derive(Default)]
struct ClusterState {
    brokers: BTreeMap<i32, String>,
    controller: Option<i32>,
    leaders: HashMap<String, TopicLeaders>,
    /// Topics that the next refresh asks for.
    wanted: BTreeSet<String>,
    /// The broker that answered last, which is asked first.
    preferred: Option<String>,
    /// Brokers that did not answer, with the time of the failure.
    avoided: HashMap<String, Instant>,
    unreachable_logged: Option<Instant>,
}

/// The leaders of a topic's partitions.
struct TopicLeaders {
    topic_id: [u8; 16],
    partitions: Vec<Leader>,
}

#[derive(Clone, Copy)]
struct Leader {
    /// `None` if the partition has no leader now.
    broker: Option<i32>,
    epoch: i32,
    /// The number of replicas, and the number of in-sync replicas.
    replicas: usize,
    in_sync: usize,
}

impl Leader {
    const UNKNOWN: Self = Self { broker: None, epoch: i32::MIN, replicas: 0, in_sync: 0 };
}

impl KafkaCluster {
    pub fn new(dialer: BrokerDialer, bootstrap: &str) -> Self {
        let bootstrap = bootstrap.split(',').map(|address| address.trim().to_owned()).filter(|each| !each.is_empty());
        Self {
            dialer,
            bootstrap: bootstrap.collect(),
            state: Mutex::default(),
            refreshing: AsyncMutex::default(),
            is_refreshing: AtomicBool::new(false),
            metadata_connections: Pool::default(),
            admin_connections: Pool::default(),
        }
    }

    /// The leader of the partition, if it is known.
    pub fn leader(&self, topic: &str, index: u32) -> Option<i32> {
        let mut state = self.state();
        match state.leaders.get(topic) {
            Some(leaders) => leaders.partitions.get(index as usize).and_then(|leader| leader.broker),
            None => {
                state.wanted.insert(topic.to_owned());
                None
            }
        }
    }

    /// The leader epoch of the partition, if it is known. Each change of the leader increments it.
    pub fn leader_epoch(&self, topic: &str, index: u32) -> Option<i32> {
        let state = self.state();
        let known = state.leaders.get(topic).and_then(|leaders| leaders.partitions.get(index as usize));
        known.map(|leader| leader.epoch)
    }

    /// Whether the brokers have reported that the partition has no leader, or fewer in-sync replicas than a write requires.
    pub fn is_unwritable(&self, topic: &str, index: u32, min_insync: u32) -> bool {
        let state = self.state();
        let known = state.leaders.get(topic).and_then(|leaders| leaders.partitions.get(index as usize));
        let needed = |leader: &Leader| leader.replicas.min(min_insync as usize);
        known.is_some_and(|leader| leader.broker.is_none() || leader.in_sync < needed(leader))
    }

    /// Records a broker that an answer other than `Metadata` named.
    pub fn learn_broker(&self, broker: i32, host: &str, port: i32) {
        self.state().brokers.insert(broker, address(host, port));
    }

    /// Removes a topic that is no longer used.
    pub fn forget(&self, topic: &str) {
        let mut state = self.state();
        state.leaders.remove(topic);
        state.wanted.remove(topic);
    }

    /// Hint for connections that the broker closes without an error.
    pub fn listener_hint(&self) -> &'static str {
        self.dialer.listener_hint()
    }

    /// The connection of a link to a broker. The error names the address and the step that failed.
    pub async fn connection(&self, link: &BrokerLink, broker: i32) -> Result<Arc<BrokerConnection>, CallError> {
        link.connection(&self.dialer, &self.address_of(broker)?).await
    }

    /// The shared connection to a broker for short requests.
    pub async fn metadata_connection(&self, broker: i32) -> Result<Arc<BrokerConnection>, CallError> {
        self.shared(&self.metadata_connections, &self.address_of(broker)?).await
    }

    /// The shared connection to a broker for slow requests.
    pub async fn admin_connection(&self, broker: i32) -> Result<Arc<BrokerConnection>, CallError> {
        self.shared(&self.admin_connections, &self.address_of(broker)?).await
    }

    async fn shared(&self, pool: &Pool, address: &str) -> Result<Arc<BrokerConnection>, CallError> {
        let link = {
            let mut links = pool.0.lock().unwrap_or_else(PoisonError::into_inner);
            links.entry(address.to_owned()).or_default().clone()
        };
        link.connection(&self.dialer, address).await
    }

    fn address_of(&self, broker: i32) -> Result<String, CallError> {
        let address = self.state().brokers.get(&broker).cloned();
        address.ok_or_else(|| CallError::NotSent(format!("broker {broker} has no known address")))
    }

    /// Asks the controller; any broker if the controller is unknown or no connection to it can be opened.
    pub async fn ask_controller<R: Request>(&self, request: &R, timeout: Duration) -> Result<R::Response, CallError> {
        let controller = {
            let state = self.state();
            state.controller.and_then(|broker| state.brokers.get(&broker).cloned())
        };
        if let Some(address) = controller
            && let Ok(connection) = self.shared(&self.admin_connections, &address).await
        {
            return connection.call(request, timeout.min(ANSWER_MAX)).await;
        }
        self.ask_any(request, timeout).await
    }

    /// Asks one broker after the other until one answers. Only for requests that may be sent twice.
    pub async fn ask_any<R: Request>(&self, request: &R, timeout: Duration) -> Result<R::Response, CallError> {
        let deadline = Instant::now() + timeout;
        let mut last = None;
        let addresses = self.addresses();
        let attempt_max = if addresses.len() > 1 { ONE_OF_SEVERAL_MAX } else { ANSWER_MAX };
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).min(attempt_max);
            if left.is_zero() {
                break;
            }
            match self.ask(&address, request, left).await {
                Ok(Ok(answer)) => {
                    self.state().preferred = Some(address);
                    return Ok(answer);
                }
                Ok(Err(error)) => last = Some(error),
                // The deadline cut this attempt short: the error of the one before names the cause.
                Err(_) if left < attempt_max && last.is_some() => continue,
                Err(_) if left < attempt_max => {
                    last = Some(CallError::NoAnswer(format!("{address}: no answer in time")))
                }
                Err(_) => {
                    let why = format!("{address}: no answer within {} ms", left.as_millis());
                    last = Some(CallError::NoAnswer(why));
                }
            }
            self.state().avoided.insert(address, Instant::now());
        }
        let last = last.unwrap_or_else(|| CallError::NotSent("no broker is known".to_owned()));
        self.log_unreachable(&last);
        Err(last)
    }

    /// One request to one broker, within `limit`, dialling included.
    async fn ask<R: Request>(
        &self,
        address: &str,
        request: &R,
        limit: Duration,
    ) -> Result<Result<R::Response, CallError>, Elapsed> {
        let asked = async {
            let connection = self.shared(&self.metadata_connections, address).await?;
            connection.call(request, limit).await
        };
        tokio::time::timeout(limit, asked).await
    }

    /// All known addresses: first the broker that answered last, at the end brokers that failed to answer within the last `AVOIDED_FOR`.
    fn addresses(&self) -> Vec<String> {
        let mut state = self.state();
        state.avoided.retain(|_, at| at.elapsed() < AVOIDED_FOR);
        let mut all: Vec<String> = Vec::new();
        let preferred = state.preferred.iter().filter(|each| state.brokers.values().any(|known| known == *each));
        for address in preferred.chain(state.brokers.values()).chain(&self.bootstrap) {
            if !all.contains(address) {
                all.push(address.clone());
            }
        }
        all.sort_by_key(|address| state.avoided.contains_key(address));
        all
    }

    /// Makes the broker after the one that answered last the first to be asked.
    pub fn prefer_another(&self) {
        let mut state = self.state();
        let known: Vec<&String> = state.brokers.values().collect();
        let at = known.iter().position(|address| Some(*address) == state.preferred.as_ref());
        let next = at.and_then(|at| known.get((at + 1) % known.len())).map(|address| (*address).clone());
        state.preferred = next.or_else(|| state.preferred.take());
    }

    /// The metadata of one topic from each broker. Fails if no majority of the brokers answers.
    pub async fn metadata_of_each(&self, topic: &str, timeout: Duration) -> Result<Vec<MetadataResponse>, CallError> {
        let request = metadata_request(Some(&[topic]));
        let mut addresses: Vec<String> = self.state().brokers.values().cloned().collect();
        if addresses.is_empty() {
            addresses.clone_from(&self.bootstrap);
        }
        let asked = addresses.iter().map(|address| self.ask(address, &request, timeout));
        let asked = futures_util::future::join_all(asked).await;
        let answers: Vec<MetadataResponse> = asked.into_iter().flatten().flatten().collect();
        if answers.len() * 2 > addresses.len() {
            Ok(answers)
        } else {
            Err(CallError::NotSent(format!("only {} of {} brokers answered", answers.len(), addresses.len())))
        }
    }

    /// The metadata of all topics, or of the named ones, from the brokers. A missing topic is in the answer with an error.
    pub async fn metadata(&self, topics: Option<&[&str]>, timeout: Duration) -> Result<MetadataResponse, CallError> {
        let answer = self.ask_any(&metadata_request(topics), timeout).await?;
        self.learn(&answer);
        Ok(answer)
    }

    /// Fetches the metadata of these topics and does not update the known leaders.
    pub async fn look_up(&self, topics: &[&str], timeout: Duration) -> Result<MetadataResponse, CallError> {
        self.ask_any(&metadata_request(Some(topics)), timeout).await
    }

    /// Looks up the leaders of all topics in use again, at most once in `REFRESH_INTERVAL`. Errors are not reported: the leader then
    /// stays unknown, and the caller tries again.
    pub async fn refresh(&self, topic: &str) {
        self.state().wanted.insert(topic.to_owned());
        self.refresh_all().await;
    }

    async fn refresh_all(&self) {
        let asked_at = Instant::now();
        let mut last = self.refreshing.lock().await;
        if last.is_some_and(|last| last > asked_at) {
            return;
        }
        if let Some(last) = *last {
            tokio::time::sleep_until((last + REFRESH_INTERVAL).into()).await;
        }
        self.prefer_another();
        let names: Vec<String> = {
            let mut state = self.state();
            let wanted = std::mem::take(&mut state.wanted);
            state.leaders.keys().cloned().collect::<BTreeSet<_>>().union(&wanted).cloned().collect()
        };
        let asked: Vec<&str> = names.iter().map(String::as_str).collect();
        if self.metadata(Some(&asked), ANSWER_MAX).await.is_err() {
            self.state().wanted.extend(names);
        }
        *last = Some(Instant::now());
    }

    pub fn topics_in_use(&self) -> Vec<String> {
        self.state().leaders.keys().cloned().collect()
    }

    /// Looks up the leaders of topics at one broker. A leader with a later epoch replaces the known one.
    pub async fn learn_leaders_from(
        &self,
        connection: &BrokerConnection,
        topics: &[&str],
        timeout: Duration,
    ) -> Result<(), CallError> {
        let answer = connection.call(&metadata_request(Some(topics)), timeout).await?;
        self.learn(&answer);
        Ok(())
    }

    /// Starts a refresh in the background, unless one is running there. The caller looks for the leader again after a pause.
    pub fn refresh_in_background(self: &Arc<Self>, topic: &str) {
        if self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (cluster, topic) = (self.clone(), topic.to_owned());
        tokio::spawn(async move {
            cluster.refresh(&topic).await;
            cluster.is_refreshing.store(false, Ordering::Release);
        });
    }

    fn learn(&self, answer: &MetadataResponse) {
        if answer.brokers.is_empty() {
            return;
        }
        let mut state = self.state();
        state.brokers =
            answer.brokers.iter().map(|broker| (broker.node_id.0, address(&broker.host, broker.port))).collect();
        state.controller = (answer.controller_id.0 >= 0).then_some(answer.controller_id.0);
        for topic in &answer.topics {
            let Some(name) = &topic.name else { continue };
            if topic.partitions.is_empty() {
                continue;
            }
            let topic_id = topic.topic_id.into_bytes();
            let known = state.leaders.get(name.as_str()).filter(|known| known.topic_id == topic_id);
            let count = topic.partitions.iter().map(|each| each.partition_index.max(0) as usize + 1).max().unwrap_or(0);
            let mut partitions = known.map_or_else(Vec::new, |known| known.partitions.clone());
            partitions.resize(count.min(PARTITIONS_MAX).max(partitions.len()), Leader::UNKNOWN);
            for partition in &topic.partitions {
                let place = usize::try_from(partition.partition_index).ok().and_then(|index| partitions.get_mut(index));
                if let Some(place) = place
                    && partition.leader_epoch >= place.epoch
                {
                    let broker = (partition.leader_id.0 >= 0).then_some(partition.leader_id.0);
                    let (replicas, in_sync) = (partition.replica_nodes.len(), partition.isr_nodes.len());
                    *place = Leader { broker, epoch: partition.leader_epoch, replicas, in_sync };
                }
            }
            state.leaders.insert(name.to_string(), TopicLeaders { topic_id, partitions });
        }
    }

    /// Looks up the leaders every `REFRESH_AT_LEAST_EVERY`: a broker that has not noticed the loss of its leadership answers without an
    /// error.
    pub async fn stay_current(&self) {
        loop {
            tokio::time::sleep(REFRESH_AT_LEAST_EVERY).await;
            if !self.state().leaders.is_empty() {
                self.refresh_all().await;
            }
        }
    }

    fn log_unreachable(&self, why: &CallError) {
        let mut state = self.state();
        if state.unreachable_logged.is_none_or(|at| at.elapsed() >= UNREACHABLE_LOGGED_EVERY) {
            state.unreachable_logged = Some(Instant::now());
            tracing::warn!("no Kafka broker answers: {why}");
        }
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn metadata_request(topics: Option<&[&str]>) -> MetadataRequest {
    let topic = |name: &&str| {
        MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string((*name).to_owned()))))
    };
    MetadataRequest::default()
        .with_topics(topics.map(|topics| topics.iter().map(topic).collect()))
        .with_allow_auto_topic_creation(false)
}

fn address(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
