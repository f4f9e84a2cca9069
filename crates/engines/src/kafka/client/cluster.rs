//! The cluster as this process knows it: brokers, leaders of partitions, and connections for short questions.
//!
//! Leaders come from `Metadata` answers, which are kept until a broker answers that it is not the leader or cannot be reached. A
//! refresh is made by one caller at a time and shared by all who wait for it. A broker that has just started may know no topic and
//! no broker, not even itself: such an answer changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::{Request, StrBytes};
use tokio::sync::Mutex as AsyncMutex;

use super::connection::{CallError, Connection};
use super::dial::Dialer;

/// How long one broker may take to answer a short question before another broker is asked.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The shortest time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);
/// The same where other brokers are left to ask.
const ONE_OF_SEVERAL_MAX: Duration = Duration::from_millis(1500);
/// An unreachable cluster is logged at most once in this time.
const UNREACHABLE_LOGGED_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Cluster {
    dialer: Dialer,
    bootstrap: Vec<String>,
    state: Mutex<State>,
    /// Held while a refresh is under way; the time of the last one.
    refreshing: AsyncMutex<Option<Instant>>,
    /// Whether a refresh runs in the background.
    is_refreshing: AtomicBool,
    questions: AsyncMutex<HashMap<String, Arc<Connection>>>,
}

#[derive(Default)]
struct State {
    brokers: HashMap<i32, String>,
    controller: Option<i32>,
    /// Leaders by topic and partition; `None` where the partition has none now.
    leaders: HashMap<String, Vec<Option<i32>>>,
    /// Topics that the next refresh asks for.
    wanted: BTreeSet<String>,
    /// The broker that answered last, which is asked first.
    preferred: Option<String>,
    unreachable_logged: Option<Instant>,
}

impl Cluster {
    pub fn new(dialer: Dialer, bootstrap: &str) -> Self {
        let bootstrap = bootstrap.split(',').map(|address| address.trim().to_owned()).filter(|each| !each.is_empty());
        Self {
            dialer,
            bootstrap: bootstrap.collect(),
            state: Mutex::default(),
            refreshing: AsyncMutex::default(),
            is_refreshing: AtomicBool::new(false),
            questions: AsyncMutex::default(),
        }
    }

    /// The broker that leads the partition, as far as is known.
    pub fn leader(&self, topic: &str, index: u32) -> Option<i32> {
        let mut state = self.state();
        match state.leaders.get(topic) {
            Some(leaders) => leaders.get(index as usize).copied().flatten(),
            None => {
                state.wanted.insert(topic.to_owned());
                None
            }
        }
    }

    /// Takes in a broker that an answer other than `Metadata` named.
    pub fn learn_broker(&self, broker: i32, host: &str, port: i32) {
        self.state().brokers.insert(broker, address(host, port));
    }

    /// Forgets a topic that is no longer used.
    pub fn forget(&self, topic: &str) {
        let mut state = self.state();
        state.leaders.remove(topic);
        state.wanted.remove(topic);
    }

    /// What a listener may want that closes connections without a word.
    pub fn listener_hint(&self) -> &'static str {
        self.dialer.listener_hint()
    }

    /// A new connection to a broker. The error says what failed.
    pub async fn connect(&self, broker: i32) -> Result<Connection, String> {
        let address = self.address_of(broker).ok_or_else(|| format!("broker {broker} has no known address"))?;
        self.open(&address).await
    }

    /// A connection for short questions, shared by all who ask this broker.
    pub async fn question(&self, broker: i32) -> Result<Arc<Connection>, String> {
        let address = self.address_of(broker).ok_or_else(|| format!("broker {broker} has no known address"))?;
        self.question_at(&address).await
    }

    async fn question_at(&self, address: &str) -> Result<Arc<Connection>, String> {
        if let Some(open) = self.questions.lock().await.get(address).filter(|each| !each.is_closed()) {
            return Ok(open.clone());
        }
        // Not under the lock: a broker that hangs must not hold questions to others up. Two may open one each; the second stays.
        let opened = Arc::new(self.open(address).await?);
        self.questions.lock().await.insert(address.to_owned(), opened.clone());
        Ok(opened)
    }

    async fn open(&self, address: &str) -> Result<Connection, String> {
        self.dialer.open(address).await
    }

    fn address_of(&self, broker: i32) -> Option<String> {
        self.state().brokers.get(&broker).cloned()
    }

    /// Asks the broker that was named as controller, else any.
    pub async fn ask_controller<R: Request>(&self, request: &R, timeout: Duration) -> Result<R::Response, CallError> {
        let controller = {
            let state = self.state();
            state.controller.and_then(|broker| state.brokers.get(&broker).cloned())
        };
        if let Some(address) = controller
            && let Ok(connection) = self.question_at(&address).await
        {
            return connection.call(request, timeout.min(ANSWER_MAX)).await;
        }
        self.ask_any(request, timeout).await
    }

    /// Asks one broker after the other until one answers. Only for requests that may be sent twice.
    pub async fn ask_any<R: Request>(&self, request: &R, timeout: Duration) -> Result<R::Response, CallError> {
        let deadline = Instant::now() + timeout;
        let mut last = CallError::NotSent("no broker is known".to_owned());
        let addresses = self.addresses();
        let attempt_max = if addresses.len() > 1 { ONE_OF_SEVERAL_MAX } else { ANSWER_MAX };
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).min(attempt_max);
            if left.is_zero() {
                break;
            }
            let asked = async {
                let connection = self.question_at(&address).await.map_err(CallError::NotSent)?;
                connection.call(request, left).await
            };
            match tokio::time::timeout(left, asked).await {
                Ok(Ok(answer)) => {
                    self.state().preferred = Some(address);
                    return Ok(answer);
                }
                Ok(Err(error)) => last = error,
                Err(_) if left < attempt_max => {}
                Err(_) => last = CallError::NoAnswer(format!("{address}: no answer within {} ms", left.as_millis())),
            }
        }
        self.log_unreachable(&last);
        Err(last)
    }

    /// Every address worth asking, the one that answered last first.
    fn addresses(&self) -> Vec<String> {
        let state = self.state();
        let mut all: Vec<String> = Vec::new();
        let preferred = state.preferred.iter().filter(|each| state.brokers.values().any(|known| known == *each));
        for address in preferred.chain(state.brokers.values()).chain(&self.bootstrap) {
            if !all.contains(address) {
                all.push(address.clone());
            }
        }
        all
    }

    /// The topics as the brokers describe them now: all, or those that are named. A topic that is not there is in the answer with an
    /// error.
    pub async fn metadata(&self, topics: Option<&[&str]>, timeout: Duration) -> Result<MetadataResponse, CallError> {
        let topic = |name: &&str| {
            MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string((*name).to_owned()))))
        };
        let request = MetadataRequest::default()
            .with_topics(topics.map(|topics| topics.iter().map(topic).collect()))
            .with_allow_auto_topic_creation(false);
        let answer = self.ask_any(&request, timeout).await?;
        self.learn(&answer);
        Ok(answer)
    }

    /// Looks the leaders of everything in use up again, at most once in `REFRESH_INTERVAL`. Errors are not reported: what was to be
    /// learned is still unknown then, and the caller tries again.
    pub async fn refresh(&self, topic: &str) {
        let asked_at = Instant::now();
        self.state().wanted.insert(topic.to_owned());
        let mut last = self.refreshing.lock().await;
        if last.is_some_and(|last| last > asked_at) {
            return;
        }
        if let Some(last) = *last {
            tokio::time::sleep_until((last + REFRESH_INTERVAL).into()).await;
        }
        let names: Vec<String> = {
            let mut state = self.state();
            let wanted = std::mem::take(&mut state.wanted);
            state.leaders.keys().cloned().collect::<BTreeSet<_>>().union(&wanted).cloned().collect()
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if self.metadata(Some(&names), ANSWER_MAX).await.is_err() {
            self.state().wanted.insert(topic.to_owned());
        }
        *last = Some(Instant::now());
    }

    /// Starts a refresh in the background, where none is under way there. The caller looks for the leader again after a pause.
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
            let count = topic.partitions.iter().map(|each| each.partition_index + 1).max().unwrap_or(0);
            let mut leaders = vec![None; count.max(0) as usize];
            for partition in &topic.partitions {
                if let Some(place) = leaders.get_mut(partition.partition_index as usize) {
                    *place = (partition.leader_id.0 >= 0).then_some(partition.leader_id.0);
                }
            }
            state.leaders.insert(name.to_string(), leaders);
        }
    }

    fn log_unreachable(&self, why: &CallError) {
        let mut state = self.state();
        if state.unreachable_logged.is_none_or(|at| at.elapsed() >= UNREACHABLE_LOGGED_EVERY) {
            state.unreachable_logged = Some(Instant::now());
            tracing::warn!("no Kafka broker answers: {why}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn address(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Connections of one owner, one to each broker, opened when they are first needed. Brokers answer the requests of a connection one
/// after the other, so owners that must not wait for each other have links of their own.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashMap<i32, Arc<Link>>>);

#[derive(Default)]
struct Link(AsyncMutex<Option<Arc<Connection>>>);

impl Links {
    /// The owner's connection to the broker, opened where there is none.
    pub async fn to(&self, cluster: &Cluster, broker: i32) -> Result<Arc<Connection>, CallError> {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(broker).or_default().clone();
        let mut connection = link.0.lock().await;
        if let Some(open) = connection.as_ref().filter(|each| !each.is_closed()) {
            return Ok(open.clone());
        }
        let opened = Arc::new(cluster.connect(broker).await.map_err(CallError::NotSent)?);
        *connection = Some(opened.clone());
        Ok(opened)
    }
}
