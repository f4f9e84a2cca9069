//! The registry: looks up, creates and changes topics, in catalogue and log together.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tokio::time::{Instant, timeout};
use whimbrel_model::limits::{PARTITIONS_DEFAULT, PARTITIONS_MAX, RETENTION_DEFAULT_MS};
use whimbrel_model::name::check_any_topic_name;
use whimbrel_model::ports::{Catalogue, CatalogueError, Coordination, Log, LogError, LogTopics};
use whimbrel_model::{Clock, Event, EventSink, NamedBounds, Retention, TopicNumber};

use super::agreement::PendingGrowth;
use super::catalogue_follower::CurrentEntry;
use super::conflicts::Conflicts;
use super::gate::{ClosedGate, GateTimeout, Pass, Placement};
use super::growth::{DRAIN_WITHIN, Growth, PUBLISH_WAITS_WITHIN, SESSION_WAITS_WITHIN, ends_of};
use super::growth_driver::Growths;
use super::mapping_lease::{MappingLease, PublishLease};
use super::stored::{StoredTopic, key_of};
use super::system::retry_while_log_unavailable;
use super::topic::{Topic, is_system_name};
use super::unopened_topics::UnopenedTopics;
use super::workers::WorkersChange;

/// The shortest time between two searches for topics that other applications created in the engine.
const FIND_PAUSE_MS: i64 = 1000;

pub const TOPICS_DEFAULT: usize = 10_000;

/// The settings of a topic that its request does not name.
#[derive(Debug, Clone)]
pub struct TopicDefaults {
    /// Whether a first publish creates its topic.
    pub auto_create: bool,
    pub partitions: u32,
    /// `bytes` is for each partition.
    pub retention: Retention,
    /// The number of copies; `None`: the engine decides.
    pub replicas: Option<u32>,
    pub min_insync: Option<u32>,
    pub topics_max: usize,
}

impl Default for TopicDefaults {
    fn default() -> Self {
        Self {
            auto_create: true,
            partitions: PARTITIONS_DEFAULT,
            retention: Retention { time: Some(Duration::from_millis(RETENTION_DEFAULT_MS)), bytes: None },
            replicas: None,
            min_insync: None,
            topics_max: TOPICS_DEFAULT,
        }
    }
}

/// A requested change. `None` keeps a setting; for a new topic it selects the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicChange {
    pub partitions: Option<u32>,
    pub replicas: Option<u32>,
    pub min_insync: Option<u32>,
    /// `Some(None)` removes the bound.
    pub retention: Option<Option<Duration>>,
    pub retention_bytes: Option<Option<u64>>,
    pub workers: Option<WorkersChange>,
}

#[derive(Debug)]
pub struct PutOutcome {
    pub topic: Arc<Topic>,
    pub created: bool,
    pub grown: Option<Growth>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error("there is no topic `{0}`")]
    Unknown(String),
    #[error("`{name}` has {from} partitions and cannot have {to}: partitions can grow, not shrink")]
    Shrink { name: String, from: u32, to: u32 },
    #[error("{0} partitions are not allowed: a topic has 1 to {PARTITIONS_MAX}")]
    Partitions(u32),
    #[error("`{name}` cannot have {what}: the number of copies is fixed when a topic is created, and it has {has}")]
    Copies { name: String, what: String, has: String },
    #[error("there are {count} topics, and `limits.topics` allows {max}: delete topics, or raise the limit")]
    TooMany { count: usize, max: usize },
    #[error("all {0} numbers of topics have been used; numbers of deleted topics are not used again")]
    NoNumber(u32),
    #[error("`{0}` is growing; try again in a moment")]
    Growing(String),
    #[error(
        "`{0}` did not grow: not every node confirmed it in time, or the log did not add the partitions; the event \
         `topic_growth_rolled_back` names the nodes. Publishes continue with the old partitions"
    )]
    NotConfirmed(String),
    #[error(
        "this node has no session with the coordination service (etcd) and cannot confirm the partitions of `{0}`: \
         publish by key through another node, or try again"
    )]
    NoSession(String),
    #[error("`{topic}`: {why}")]
    Workers { topic: String, why: &'static str },
    #[error("`{topic}` does not name the worker `{id}`")]
    UnknownWorker { topic: String, id: String },
    #[error("publishes to `{0}` are still in progress; repeat the deletion in a moment")]
    InUse(String),
    #[error("the catalogue's entry `{key}` cannot be read: {why}")]
    Malformed { key: String, why: String },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

impl TopicError {
    /// Whether the log does not answer now.
    pub(crate) fn is_log_unavailable(&self) -> bool {
        matches!(self, Self::Log(LogError::Unavailable(_)))
    }
}

pub struct RegistryPorts {
    pub log: Arc<dyn Log>,
    pub log_topics: Arc<dyn LogTopics>,
    pub catalogue: Arc<dyn Catalogue>,
    /// How nodes agree on growths, if several nodes share the topics; `None` in a single process.
    pub coordination: Option<Arc<dyn Coordination>>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
}

pub struct Registry {
    pub(super) ports: RegistryPorts,
    defaults: TopicDefaults,
    pub(super) map: ArcSwap<TopicMap>,
    /// Held by the task that changes topics, over catalogue, log and map. The value is the time of the last search for topics of other
    /// applications.
    pub(super) changing: Mutex<i64>,
    /// Grows when the map changes, or when a write with an unknown outcome must be resolved.
    pub(super) changes: watch::Sender<u64>,
    pub(super) lease: MappingLease,
    pub(super) growths: std::sync::Mutex<Growths>,
    /// Gates of topics whose last write has an unknown outcome. They stay closed until the catalogue was read.
    pub(super) unsettled: std::sync::Mutex<Vec<ClosedGate>>,
    /// Versions of entries that this node has read and not applied, by the name of the topic. Held while the map changes.
    pub(super) unapplied: std::sync::Mutex<HashMap<String, u64>>,
    /// Makes the registry's watch read the catalogue, even if it has not changed.
    pub(super) reread: Notify,
    /// Topics that the log could not open.
    pub(super) unopened: std::sync::Mutex<UnopenedTopics>,
    pub(super) started: Instant,
}

#[derive(Default, Clone)]
pub(super) struct TopicMap {
    pub(super) by_name: HashMap<Arc<str>, Arc<Topic>>,
    by_number: HashMap<TopicNumber, Arc<Topic>>,
}

/// See [`Registry::unapplied`].
pub(super) type UnappliedGuard<'a> = std::sync::MutexGuard<'a, HashMap<String, u64>>;

impl Registry {
    /// Reads the catalogue, finishes operations that a crash interrupted, opens every topic in the log under its number, and adopts
    /// topics of other applications. A log that cannot be reached is an error; a single topic that fails is skipped and reported.
    pub async fn open(ports: RegistryPorts, defaults: TopicDefaults) -> Result<Self, TopicError> {
        let registry = Self {
            lease: MappingLease::new(ports.coordination.is_some()),
            ports,
            defaults,
            map: ArcSwap::default(),
            changing: Mutex::new(i64::MIN),
            changes: watch::Sender::new(0),
            growths: std::sync::Mutex::default(),
            unsettled: std::sync::Mutex::default(),
            unapplied: std::sync::Mutex::default(),
            reread: Notify::new(),
            unopened: std::sync::Mutex::default(),
            started: Instant::now(),
        };
        retry_while_log_unavailable("topics", TopicError::is_log_unavailable, async || {
            let mut changing = registry.changing.lock().await;
            registry.reload(&changing).await?;
            registry.adopt_found(&mut changing).await
        })
        .await?;
        Ok(registry)
    }

    pub fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.map.load().by_name.get(name).cloned()
    }

    pub fn by_number(&self, number: TopicNumber) -> Option<Arc<Topic>> {
        self.map.load().by_number.get(&number).cloned()
    }

    /// Whether the topic of that number was deleted. If this process does not have it, the catalogue decides: another process may have
    /// just created it, and then it appears here in a moment. This does not wait for changes of topics in progress.
    pub async fn is_gone(&self, name: &str, number: TopicNumber) -> Result<bool, TopicError> {
        if self.by_number(number).is_some_and(|topic| &*topic.name == name) {
            return Ok(false);
        }
        let key = key_of(name);
        let Some(found) = self.ports.catalogue.get(&key).await? else { return Ok(true) };
        let malformed = |error: serde_json::Error| TopicError::Malformed { key, why: error.to_string() };
        let stored: StoredTopic = serde_json::from_slice(&found.value).map_err(malformed)?;
        Ok(stored.number != number || stored.deleting)
    }

    pub fn all(&self) -> Vec<Arc<Topic>> {
        let mut topics: Vec<_> = self.map.load().by_name.values().cloned().collect();
        topics.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        topics
    }

    /// The topic for a reader, including one that another application has just created in the engine.
    pub async fn find(&self, name: &str) -> Result<Arc<Topic>, TopicError> {
        if let Some(topic) = self.get(name) {
            return Ok(topic);
        }
        let unknown = || TopicError::Unknown(name.to_owned());
        if check_any_topic_name(name).is_err() {
            return Err(unknown());
        }
        let mut changing = self.changing.lock().await;
        if self.ports.clock.now().as_millis() >= changing.saturating_add(FIND_PAUSE_MS) {
            self.adopt_found(&mut changing).await?;
        }
        self.get(name).ok_or_else(unknown)
    }

    /// Admits a publish, and creates the topic if that is allowed. A publish by key waits for a session of this node, and while the topic
    /// grows.
    pub async fn enter(&self, name: &str, placement: Placement) -> Result<Pass, TopicError> {
        let placement = if is_system_name(name) { Placement::Free } else { placement };
        // Two attempts suffice: the second look-up sees a growth that has ended. A second growth in a row may fail the publish.
        for _ in 0..2 {
            let lease = match placement {
                Placement::Free => Some(PublishLease::Alone),
                Placement::ByKey => self.lease.wait(SESSION_WAITS_WITHIN).await,
            };
            let lease = lease.ok_or_else(|| TopicError::NoSession(name.to_owned()))?;
            let topic = match self.get(name) {
                Some(topic) => topic,
                None => self.create_by_publish(name).await?,
            };
            match Pass::enter(topic, placement, lease) {
                Ok(pass) => return Ok(pass),
                Err(topic) => {
                    let settled = async {
                        topic.gate(placement).settled(PUBLISH_WAITS_WITHIN).await?;
                        self.replaced(&topic, placement).await;
                        Ok(())
                    };
                    let settled = timeout(PUBLISH_WAITS_WITHIN, settled).await.unwrap_or(Err(GateTimeout));
                    settled.map_err(|GateTimeout| TopicError::Growing(name.to_owned()))?;
                }
            }
        }
        Err(TopicError::Growing(name.to_owned()))
    }

    /// Returns when the map has the successor of a topic whose gate was retired. The log may have to open it first.
    async fn replaced(&self, topic: &Topic, placement: Placement) {
        let gate = topic.gate(placement);
        let is_current = || self.get(&topic.name).is_some_and(|now| Arc::ptr_eq(now.gate(placement), gate));
        let mut changes = self.changes.subscribe();
        while gate.is_retired() && is_current() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Admits messages of holds that fire now, by key. `None` if the topic cannot accept messages now.
    pub fn try_enter(&self, topic: Arc<Topic>) -> Option<Pass> {
        let (placement, lease) = match topic.is_system() {
            true => (Placement::Free, PublishLease::Alone),
            false => (Placement::ByKey, self.lease.take()?),
        };
        Pass::enter(topic, placement, lease).ok()
    }

    async fn create_by_publish(&self, name: &str) -> Result<Arc<Topic>, TopicError> {
        if !self.defaults.auto_create {
            return self.find(name).await;
        }
        match self.put(name, TopicChange::default()).await {
            // Only the creation is in doubt. The caller has not written any message to the topic.
            Err(TopicError::Catalogue(CatalogueError::OutcomeUnknown(why))) => {
                let why = format!("topic `{name}` may not have been created, repeat the request: {why}");
                Err(CatalogueError::Unavailable(why).into())
            }
            made => Ok(made?.topic),
        }
    }

    /// Creates or changes the topic. Callers must spawn this: it must not be cancelled.
    pub async fn put(&self, name: &str, change: TopicChange) -> Result<PutOutcome, TopicError> {
        if let Some(partitions) = change.partitions.filter(|count| !(1..=PARTITIONS_MAX).contains(count)) {
            return Err(TopicError::Partitions(partitions));
        }
        match self.put_now(name, change).await? {
            TopicPut::Now(outcome) => Ok(outcome),
            TopicPut::Growing(topic, growing) => self.wait_grown(&topic, growing).await,
        }
    }

    async fn put_now(&self, name: &str, change: TopicChange) -> Result<TopicPut, TopicError> {
        let changing = self.changing.lock().await;
        let mut conflicts = Conflicts::default();
        loop {
            let known = self.get(name).filter(|_| !conflicts.any());
            match self.put_once(name, known, change.clone(), &changing).await {
                Err(error) => conflicts.try_again(error).await?,
                outcome => return outcome,
            }
        }
    }

    /// Changes the known topic, or else the one in the catalogue: it may be incomplete, or another node may have just created it.
    async fn put_once(
        &self,
        name: &str,
        known: Option<Arc<Topic>>,
        change: TopicChange,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<TopicPut, TopicError> {
        let known = match known {
            Some(known) => CurrentEntry::Topic(known),
            None => self.read_entry(name, changing).await?,
        };
        match known {
            CurrentEntry::Topic(topic) => self.change(topic, change, changing).await,
            CurrentEntry::Absent | CurrentEntry::Deleted => {
                let topic = self.create(name, change, false, changing).await?;
                Ok(TopicPut::Now(PutOutcome { topic, created: true, grown: None }))
            }
        }
    }

    pub(super) async fn create(
        &self,
        name: &str,
        change: TopicChange,
        adopted: bool,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<Arc<Topic>, TopicError> {
        let count = self.map.load().by_name.len();
        if count >= self.defaults.topics_max {
            return Err(TopicError::TooMany { count, max: self.defaults.topics_max });
        }
        let defaults = &self.defaults;
        let retention = Retention {
            time: change.retention.unwrap_or(defaults.retention.time),
            bytes: change.retention_bytes.unwrap_or(defaults.retention.bytes),
        };
        let (number, now) = (self.unused_number().await?, self.ports.clock.now());
        let stored = StoredTopic {
            replicas: change.replicas.or(defaults.replicas.filter(|_| !adopted)),
            min_insync: change.min_insync.or(defaults.min_insync.filter(|_| !adopted)),
            adopted,
            workers: change.workers.map_or(Ok(None), |workers| workers.applied(name, None))?,
            ..StoredTopic::new(number, change.partitions.unwrap_or(defaults.partitions), now)
        };
        let stored = stored.with_retention(retention);
        let key = key_of(name);
        let version = self.ports.catalogue.put(&key, encode(&stored), None).await?;
        match self.bring_up(name, stored, version, changing).await {
            // A topic that the engine cannot create must not stay in the catalogue, or every start would retry it.
            Err(error @ TopicError::Log(LogError::Unsupported(_) | LogError::TooLarge { .. })) => {
                self.ports.catalogue.remove(&key, version).await?;
                Err(error)
            }
            outcome => outcome,
        }
    }

    /// Grows a topic that no other node uses. See the module [`super::growth`] for the order of the steps.
    pub(super) async fn grow_alone(
        &self,
        topic: Arc<Topic>,
        wanted: u32,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<PutOutcome, TopicError> {
        let name = topic.name.to_string();
        let mut stored = topic.stored.clone();
        let from = std::mem::replace(&mut stored.partitions, wanted);
        self.ports.log_topics.alter(&stored.spec(&name), NamedBounds::NONE).await?;
        let closed = topic.mapping_gate.close();
        closed.drained(DRAIN_WITHIN).await.map_err(|GateTimeout| TopicError::Growing(name.clone()))?;
        let ends = ends_of(&*self.ports.log, stored.number, from).await?;
        let growth = Growth { at_ms: self.ports.clock.now().as_millis(), from, to: wanted, ends };
        stored.growths.push(growth.clone());
        let grown = match self.ports.catalogue.put(&key_of(&name), encode(&stored), Some(topic.version)).await {
            Ok(version) => self.show(topic.succeeded_by(stored, version))?,
            Err(error) if is_unknown(&error) => {
                self.keep_closed([closed]);
                self.read_entries(changing).await?;
                let now = self.get(&name).filter(|now| now.stored.growths.last() == Some(&growth));
                now.ok_or(error)?
            }
            Err(error) => return Err(error.into()),
        };
        self.report_growth(&name, &growth);
        Ok(PutOutcome { topic: grown, created: false, grown: Some(growth) })
    }

    pub(super) fn report_growth(&self, name: &str, growth: &Growth) {
        let Growth { from, to, .. } = growth;
        let ends: Vec<String> = growth.ends.iter().map(u64::to_string).collect();
        let detail = format!(
            "topic `{name}` grew from {from} to {to} partitions; keys moved, and messages before the barriers are older"
        );
        let event = Event::new("topic_grown", detail)
            .with("topic", name)
            .with("from", from)
            .with("to", to)
            .with("barriers", ends.join(","));
        (self.ports.events)(event);
    }

    pub(super) fn unapplied(&self) -> UnappliedGuard<'_> {
        self.unapplied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a topic visible. If this node has read a later entry of it meanwhile, this is a conflict and nothing changes: gates that the
    /// later entry closed or retired stay so.
    pub(super) fn show(&self, topic: Topic) -> Result<Arc<Topic>, TopicError> {
        let unapplied = self.unapplied();
        if let Some(later) = unapplied.get(&*topic.name).filter(|version| **version > topic.version) {
            return Err(CatalogueError::Conflict { key: key_of(&topic.name), found: Some(*later) }.into());
        }
        let topic = Arc::new(topic);
        let mut map = TopicMap::clone(&self.map.load());
        let earlier = map.by_name.insert(Arc::clone(&topic.name), Arc::clone(&topic));
        if let Some(earlier) = &earlier {
            map.by_number.remove(&earlier.number());
        }
        map.by_number.insert(topic.number(), Arc::clone(&topic));
        self.map.store(Arc::new(map));
        // The old gate is retired before its growth releases it: it must not open in between.
        if let Some(earlier) = earlier {
            if !Arc::ptr_eq(&earlier.mapping_gate, &topic.mapping_gate) {
                earlier.mapping_gate.retire();
            }
            if !Arc::ptr_eq(&earlier.topic_gate, &topic.topic_gate) {
                earlier.topic_gate.retire();
                self.forget_growth(earlier.number());
            }
        }
        self.note_growing(&topic, topic.stored.growing);
        self.changes.send_modify(|count| *count += 1);
        Ok(topic)
    }

    pub(super) fn hide(&self, name: &str) {
        self.hide_under(name, &self.unapplied());
    }

    pub(super) fn hide_under(&self, name: &str, _unapplied: &UnappliedGuard<'_>) {
        let mut map = TopicMap::clone(&self.map.load());
        let hidden = map.by_name.remove(name);
        if let Some(topic) = &hidden {
            map.by_number.remove(&topic.number());
            self.ports.log_topics.expect_deletion(topic.number());
        }
        self.map.store(Arc::new(map));
        if let Some(topic) = hidden {
            topic.retire();
            self.forget_growth(topic.number());
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

/// The state of a change after its first writes.
pub(super) enum TopicPut {
    Now(PutOutcome),
    /// All nodes must confirm the growth.
    Growing(Arc<Topic>, PendingGrowth),
}

/// Whether the catalogue may have made the write.
pub(super) fn is_unknown(error: &CatalogueError) -> bool {
    matches!(error, CatalogueError::Unavailable(_) | CatalogueError::OutcomeUnknown(_))
}

pub(super) fn encode(stored: &StoredTopic) -> Vec<u8> {
    serde_json::to_vec(stored).expect("a topic's entry is plain data")
}
