//! The registry itself: looks up, makes, changes, deletes; reconciles the catalogue with the log at start and when it changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use whimbrel_model::limits::{PARTITIONS_DEFAULT, PARTITIONS_MAX, RETENTION_DEFAULT_MS, TOPIC_NUMBER_MAX};
use whimbrel_model::name::check_any_topic_name;
use whimbrel_model::ports::{Catalogue, CatalogueError, Log, LogError, LogTopics, Versioned};
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_model::{Clock, Event, EventSink, FoundTopic, HOLDS_TOPIC, NamedBounds, Retention, TopicNumber};

use super::gate::{Closed, Pass};
use super::growth::{DRAIN_WITHIN, Growth, PUBLISH_WAITS_WITHIN, ends_of};
use super::stored::{LAST_NUMBER_KEY, StoredTopic, TOPIC_PREFIX, key_of};
use super::system::patiently;
use super::topic::Topic;
use super::workers::WorkersChange;

/// Tries at a write that somebody else was faster at.
const CONFLICT_TRIES: usize = 16;
/// Between two looks at a catalogue that keeps changing or cannot be reached.
const RELOAD_PAUSE: Duration = Duration::from_millis(100);
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Between two looks for topics that others made in the engine, when an unknown one is asked for.
const FIND_PAUSE_MS: i64 = 1000;

/// Topics that may exist at one time, by default.
pub const TOPICS_DEFAULT: usize = 10_000;

/// What a topic gets where nobody says otherwise.
#[derive(Debug, Clone)]
pub struct TopicDefaults {
    /// Whether a topic is made by its first publish.
    pub auto_create: bool,
    pub partitions: u32,
    /// `bytes` is of each partition.
    pub retention: Retention,
    /// Copies of a topic that does not say; `None` leaves it to the engine.
    pub replicas: Option<u32>,
    pub min_insync: Option<u32>,
    /// Topics that may exist at one time.
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

/// What shall be different. `None` leaves a thing as it is, or takes the default for a new topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicChange {
    pub partitions: Option<u32>,
    pub replicas: Option<u32>,
    pub min_insync: Option<u32>,
    /// `Some(None)`: without that bound.
    pub retention: Option<Option<Duration>>,
    pub retention_bytes: Option<Option<u64>>,
    pub workers: Option<WorkersChange>,
}

/// What a `put` did.
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
    #[error("a topic has 1 to {PARTITIONS_MAX} partitions, not {0}")]
    Partitions(u32),
    #[error("`{name}` cannot have {what}: copies are given when a topic is made, and it has {has}")]
    Copies { name: String, what: String, has: String },
    #[error("there are {0} topics already, as many as the settings allow")]
    TooMany(usize),
    #[error("`{0}` is growing; this passes within moments")]
    Growing(String),
    #[error("`{topic}`: {why}")]
    Workers { topic: String, why: &'static str },
    #[error("`{topic}` does not name the worker `{id}`")]
    UnknownWorker { topic: String, id: String },
    #[error("publishes to `{0}` are still under way; delete it again in a moment")]
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
    pub(crate) fn is_log_away(&self) -> bool {
        matches!(self, Self::Log(LogError::Unavailable(_)))
    }
}

/// What the registry works with.
pub struct RegistryPorts {
    pub log: Arc<dyn Log>,
    pub log_topics: Arc<dyn LogTopics>,
    pub catalogue: Arc<dyn Catalogue>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
}

pub struct Registry {
    ports: RegistryPorts,
    defaults: TopicDefaults,
    map: ArcSwap<Map>,
    /// Whoever changes topics holds this, over catalogue, log and map. Its value: when others' topics were last looked for.
    changing: Mutex<i64>,
}

#[derive(Default, Clone)]
struct Map {
    by_name: HashMap<Arc<str>, Arc<Topic>>,
    by_number: HashMap<TopicNumber, Arc<Topic>>,
}

impl Registry {
    /// Reads the catalogue, finishes what a crash left half done, makes every topic known to the log under its number, and takes in
    /// topics that others made. A log that cannot be reached is an error; one topic that fails alone is left out and reported.
    pub async fn open(ports: RegistryPorts, defaults: TopicDefaults) -> Result<Self, TopicError> {
        let registry = Self { ports, defaults, map: ArcSwap::default(), changing: Mutex::new(i64::MIN) };
        patiently("topics", TopicError::is_log_away, async || {
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

    /// Whether the topic of that number is gone for good. Where this process does not know it, the catalogue is asked: another process
    /// may have made it a moment ago, and then it will be known here within moments. Nobody who changes topics is waited for.
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

    /// All topics, by name.
    pub fn all(&self) -> Vec<Arc<Topic>> {
        let mut topics: Vec<_> = self.map.load().by_name.values().cloned().collect();
        topics.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        topics
    }

    /// The topic for a reader: also one that others have just made in the engine.
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

    /// Lets a publish in: makes the topic where that is allowed, waits where it is growing.
    pub async fn enter(&self, name: &str) -> Result<Pass, TopicError> {
        // Twice is enough: a growth that ended is seen by the second look; a second growth within moments may send us away.
        for _ in 0..2 {
            let topic = match self.get(name) {
                Some(topic) => topic,
                None => self.make_by_publish(name).await?,
            };
            match Pass::enter(topic) {
                Ok(pass) => return Ok(pass),
                Err(topic) => {
                    let growing = |_| TopicError::Growing(name.to_owned());
                    topic.gate.settled(PUBLISH_WAITS_WITHIN).await.map_err(growing)?;
                }
            }
        }
        Err(TopicError::Growing(name.to_owned()))
    }

    async fn make_by_publish(&self, name: &str) -> Result<Arc<Topic>, TopicError> {
        if !self.defaults.auto_create {
            return self.find(name).await;
        }
        Ok(self.put(name, TopicChange::default()).await?.topic)
    }

    /// Makes the topic or changes it. Not to be cancelled midway: callers spawn it.
    pub async fn put(&self, name: &str, change: TopicChange) -> Result<PutOutcome, TopicError> {
        if let Some(partitions) = change.partitions.filter(|count| !(1..=PARTITIONS_MAX).contains(count)) {
            return Err(TopicError::Partitions(partitions));
        }
        let changing = self.changing.lock().await;
        if let Some(topic) = self.get(name) {
            return self.change(topic, change, &changing).await;
        }
        // A half-made topic, or one that another process made a moment ago, is in the catalogue already.
        if let Some(found) = self.ports.catalogue.get(&key_of(name)).await?
            && let Some(topic) = self.take_in(&key_of(name), &found, &changing).await?
        {
            return self.change(topic, change, &changing).await;
        }
        let topic = self.create(name, change, false, &changing).await?;
        Ok(PutOutcome { topic, created: true, grown: None })
    }

    async fn create(
        &self,
        name: &str,
        change: TopicChange,
        adopted: bool,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<Arc<Topic>, TopicError> {
        let count = self.map.load().by_name.len();
        if count >= self.defaults.topics_max {
            return Err(TopicError::TooMany(count));
        }
        let defaults = &self.defaults;
        let retention = Retention {
            time: change.retention.unwrap_or(defaults.retention.time),
            bytes: change.retention_bytes.unwrap_or(defaults.retention.bytes),
        };
        let stored = StoredTopic {
            number: self.unused_number().await?,
            partitions: change.partitions.unwrap_or(defaults.partitions),
            retention_ms: None,
            retention_bytes: None,
            replicas: change.replicas.or(defaults.replicas.filter(|_| !adopted)),
            min_insync: change.min_insync.or(defaults.min_insync.filter(|_| !adopted)),
            created_at_ms: self.ports.clock.now().as_millis(),
            adopted,
            deleting: false,
            growths: Vec::new(),
            workers: change.workers.map_or(Ok(None), |workers| workers.applied(name, None))?,
        };
        let stored = stored.with_retention(retention);
        let key = key_of(name);
        let version = self.ports.catalogue.put(&key, encode(&stored), None).await?;
        match self.bring_up(name, stored, version, changing).await {
            // What the engine will never make must not stay in the catalogue, or every start would try again.
            Err(error @ TopicError::Log(LogError::Unsupported(_) | LogError::TooLarge { .. })) => {
                self.ports.catalogue.remove(&key, version).await?;
                Err(error)
            }
            outcome => outcome,
        }
    }

    /// Makes the topic known to the log, finishes a growth that the entry does not know of, and puts it on the map.
    async fn bring_up(
        &self,
        name: &str,
        mut stored: StoredTopic,
        mut version: u64,
        _changing: &MutexGuard<'_, i64>,
    ) -> Result<Arc<Topic>, TopicError> {
        let actual = self.ports.log_topics.create(&stored.spec(name)).await?;
        // The partitions of `_holds` are its shards, those of `_push` places of users, and their number is part of where everything
        // lies: what others added in the engine is not used.
        if actual > stored.partitions && !matches!(name, HOLDS_TOPIC | PUSH_TOPIC) {
            let ends = ends_of(&*self.ports.log, stored.number, stored.partitions).await?;
            let growth =
                Growth { at_ms: self.ports.clock.now().as_millis(), from: stored.partitions, to: actual, ends };
            stored.partitions = actual;
            // A topic that has nothing yet has no order to keep.
            if growth.ends.iter().any(|end| *end > 0) {
                stored.growths.push(growth.clone());
                self.report_growth(name, &growth);
            }
            version = self.ports.catalogue.put(&key_of(name), encode(&stored), Some(version)).await?;
        }
        let topic = match self.get(name).filter(|known| known.number() == stored.number) {
            Some(known) => known.succeeded_by(stored, version),
            None => Topic::new(name, stored, version),
        };
        Ok(self.show(topic))
    }

    async fn change(
        &self,
        topic: Arc<Topic>,
        change: TopicChange,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<PutOutcome, TopicError> {
        let name = topic.name.to_string();
        let mut stored = topic.stored.clone();
        self.check_copies(&topic, &change).await?;
        if let Some(retention) = change.retention {
            stored.retention_ms = retention.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(bytes) = change.retention_bytes {
            stored.retention_bytes = bytes;
        }
        if let Some(workers) = change.workers {
            stored.workers = workers.applied(&name, stored.workers.as_ref())?;
        }
        let wanted = change.partitions.unwrap_or(stored.partitions);
        if wanted < stored.partitions {
            return Err(TopicError::Shrink { name, from: stored.partitions, to: wanted });
        }
        let named = NamedBounds { time: change.retention.is_some(), bytes: change.retention_bytes.is_some() };
        let topic = if stored == topic.stored { topic } else { self.keep_for(topic, stored, named).await? };
        if wanted > topic.stored.partitions {
            let stored = topic.stored.clone();
            return self.grow(topic, stored, wanted, changing).await;
        }
        Ok(PutOutcome { topic, created: false, grown: None })
    }

    /// Changes how long a topic keeps its messages. The catalogue goes first: what the log dropped cannot be brought back, so it must
    /// not hear of a change that is then refused.
    async fn keep_for(
        &self,
        topic: Arc<Topic>,
        stored: StoredTopic,
        named: NamedBounds,
    ) -> Result<Arc<Topic>, TopicError> {
        let (name, key) = (topic.name.to_string(), key_of(&topic.name));
        let version = self.ports.catalogue.put(&key, encode(&stored), Some(topic.version)).await?;
        if let Err(error) = self.ports.log_topics.alter(&stored.spec(&name), named).await {
            let version = self.ports.catalogue.put(&key, encode(&topic.stored), Some(version)).await?;
            self.show(topic.succeeded_by(topic.stored.clone(), version));
            return Err(error.into());
        }
        Ok(self.show(topic.succeeded_by(stored, version)))
    }

    /// Copies are given when a topic is made; asking for what it has is no change.
    async fn check_copies(&self, topic: &Topic, change: &TopicChange) -> Result<(), TopicError> {
        let refused = |what, has: String| TopicError::Copies { name: topic.name.to_string(), what, has };
        if let Some(asked) = change.min_insync.filter(|_| change.min_insync != topic.stored.min_insync) {
            let has = topic.stored.min_insync.map_or("the engine's own number".to_owned(), |has| has.to_string());
            return Err(refused(format!("min_insync {asked}"), has));
        }
        if let Some(asked) = change.replicas.filter(|_| change.replicas != topic.stored.replicas) {
            let status = self.ports.log_topics.describe(topic.number()).await?;
            let has = status.partitions.iter().map(|partition| partition.replicas.len()).max().unwrap_or(0);
            if has != asked as usize {
                return Err(refused(format!("replicas {asked}"), has.to_string()));
            }
        }
        Ok(())
    }

    /// See the module [`super::growth`] for the order of things.
    async fn grow(
        &self,
        topic: Arc<Topic>,
        mut stored: StoredTopic,
        wanted: u32,
        _changing: &MutexGuard<'_, i64>,
    ) -> Result<PutOutcome, TopicError> {
        let name = topic.name.to_string();
        let from = std::mem::replace(&mut stored.partitions, wanted);
        self.ports.log_topics.alter(&stored.spec(&name), NamedBounds::NONE).await?;
        let closed = topic.gate.close(DRAIN_WITHIN).await.map_err(|_| TopicError::Growing(name.clone()))?;
        let ends = ends_of(&*self.ports.log, stored.number, from).await?;
        let growth = Growth { at_ms: self.ports.clock.now().as_millis(), from, to: wanted, ends };
        stored.growths.push(growth.clone());
        let version = self.ports.catalogue.put(&key_of(&name), encode(&stored), Some(topic.version)).await?;
        let grown = self.show(topic.succeeded_by(stored, version));
        closed.replaced();
        self.report_growth(&name, &growth);
        Ok(PutOutcome { topic: grown, created: false, grown: Some(growth) })
    }

    fn report_growth(&self, name: &str, growth: &Growth) {
        let Growth { from, to, .. } = growth;
        let ends: Vec<String> = growth.ends.iter().map(u64::to_string).collect();
        let detail = format!(
            "topic `{name}` grew from {from} to {to} partitions; keys moved, what lies before the barriers is older"
        );
        let event = Event::new("topic_grown", detail)
            .with("topic", name)
            .with("from", from)
            .with("to", to)
            .with("barriers", ends.join(","));
        (self.ports.events)(event);
    }

    /// Begins to delete a topic: nothing passes its gate from now on, and what was under way has ended. Whoever looks at what belongs
    /// to the topic sees all of it. Dropping the answer leaves the topic as it was.
    pub async fn begin_delete(&self, name: &str) -> Result<Deletion<'_>, TopicError> {
        let changing = self.changing.lock().await;
        let topic = self.get(name).ok_or_else(|| TopicError::Unknown(name.to_owned()))?;
        // What is under way ends first: an engine that knows topics by their names would put it into one made anew under this name.
        let closed = topic.gate.close(DRAIN_WITHIN).await.map_err(|_| TopicError::InUse(name.to_owned()))?;
        Ok(Deletion { registry: self, topic, changing, closed })
    }

    async fn finish_deleting(
        &self,
        name: &str,
        stored: &StoredTopic,
        version: u64,
        _changing: &MutexGuard<'_, i64>,
    ) -> Result<(), TopicError> {
        self.ports.log_topics.delete(stored.number).await?;
        self.ports.catalogue.remove(&key_of(name), version).await?;
        (self.ports.events)(Event::new("topic_deleted", format!("topic `{name}` was deleted")).with("topic", name));
        Ok(())
    }

    /// Follows the catalogue until the shutdown.
    pub async fn watch(&self, shutdown: CancellationToken) {
        let mut seen = 0;
        loop {
            let changed = tokio::select! {
                changed = self.ports.catalogue.changed(seen) => changed,
                () = shutdown.cancelled() => return,
            };
            let pause = match changed {
                Ok(revision) => {
                    let changing = self.changing.lock().await;
                    match self.reload(&changing).await {
                        Ok(()) => {
                            seen = revision;
                            RELOAD_PAUSE
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the catalogue changed and could not be followed; trying again");
                            WATCH_RETRY_AFTER
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the catalogue cannot be watched; trying again");
                    WATCH_RETRY_AFTER
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// Takes over what the catalogue has now.
    async fn reload(&self, changing: &MutexGuard<'_, i64>) -> Result<(), TopicError> {
        let entries = self.ports.catalogue.list(TOPIC_PREFIX).await?;
        let map = self.map.load_full();
        for name in map.by_name.keys() {
            if entries.binary_search_by(|(key, _)| key.as_str().cmp(&key_of(name))).is_err() {
                self.hide(name);
            }
        }
        for (key, found) in &entries {
            let known = map.by_name.get(key.strip_prefix(TOPIC_PREFIX).unwrap_or_default());
            if known.is_some_and(|topic| topic.version == found.version) {
                continue;
            }
            match self.take_in(key, found, changing).await {
                Ok(_) => {}
                Err(error @ (TopicError::Log(LogError::Unavailable(_)) | TopicError::Catalogue(_))) => {
                    return Err(error);
                }
                Err(error) => tracing::error!(%error, "the topic under `{key}` is left out until this is mended"),
            }
        }
        Ok(())
    }

    /// Brings one entry of the catalogue to life, or finishes its deletion.
    async fn take_in(
        &self,
        key: &str,
        found: &Versioned,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<Option<Arc<Topic>>, TopicError> {
        let name = key.strip_prefix(TOPIC_PREFIX).unwrap_or(key);
        let malformed = |why: String| TopicError::Malformed { key: key.to_owned(), why };
        let stored: StoredTopic = serde_json::from_slice(&found.value).map_err(|error| malformed(error.to_string()))?;
        if !(1..=PARTITIONS_MAX).contains(&stored.partitions) || stored.number.0 > TOPIC_NUMBER_MAX {
            return Err(malformed("its number or its partitions are out of range".to_owned()));
        }
        if !stored.deleting {
            return self.bring_up(name, stored, found.version, changing).await.map(Some);
        }
        // An engine that has only names learns here which topic the number means.
        self.hide(name);
        // The node that deletes it may be done by now, and the name may be another topic's: this list of entries may be old.
        let current = self.ports.catalogue.get(key).await?;
        if current.is_none_or(|current| current.version != found.version) {
            return Ok(None);
        }
        self.ports.log_topics.create(&stored.spec(name)).await?;
        self.finish_deleting(name, &stored, found.version, changing).await?;
        Ok(None)
    }

    /// Takes in topics that others made in the engine. The system's names are never taken from there.
    async fn adopt_found(&self, changing: &mut MutexGuard<'_, i64>) -> Result<(), TopicError> {
        **changing = self.ports.clock.now().as_millis();
        let is_skipped = |name: &str| {
            whimbrel_model::check_topic_name(name).is_err()
                || self.get(name).is_some_and(|topic| !topic.stored.has_unknown_retention())
        };
        for FoundTopic { name, partitions, retention } in self.ports.log_topics.found(&is_skipped).await? {
            if let Some(topic) = self.get(&name) {
                self.learn_retention(&topic, retention, changing).await?;
                continue;
            }
            if !(1..=PARTITIONS_MAX).contains(&partitions) {
                continue;
            }
            let as_it_is = TopicChange {
                partitions: Some(partitions),
                retention: Some(retention.time),
                retention_bytes: Some(retention.bytes),
                ..TopicChange::default()
            };
            match self.create(&name, as_it_is, true, changing).await {
                Ok(_) => tracing::info!(topic = name, partitions, "took in a topic that was found in the log"),
                Err(
                    error @ TopicError::Catalogue(CatalogueError::Unavailable(_) | CatalogueError::OutcomeUnknown(_)),
                ) => return Err(error),
                Err(error) => tracing::warn!(topic = name, %error, "a topic found in the log could not be taken in"),
            }
        }
        Ok(())
    }

    /// Stores the retention of a topic that was adopted by a version which did not read it.
    async fn learn_retention(
        &self,
        topic: &Topic,
        retention: Retention,
        _changing: &MutexGuard<'_, i64>,
    ) -> Result<(), TopicError> {
        if retention == topic.stored.retention() {
            return Ok(());
        }
        let stored = topic.stored.clone().with_retention(retention);
        match self.ports.catalogue.put(&key_of(&topic.name), encode(&stored), Some(topic.version)).await {
            Ok(version) => drop(self.show(topic.succeeded_by(stored, version))),
            // Another node was faster.
            Err(CatalogueError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// A number that the log does not know either: a catalogue that was put back from a backup may be older than its log.
    async fn unused_number(&self) -> Result<TopicNumber, TopicError> {
        loop {
            let number = self.next_number().await?;
            match self.ports.log_topics.describe(number).await {
                // A log that cannot answer now will say so when the topic is made.
                Err(_) => return Ok(number),
                Ok(_) => tracing::warn!(
                    number = number.0,
                    "the log has a topic of this number that the catalogue does not know"
                ),
            }
        }
    }

    async fn next_number(&self) -> Result<TopicNumber, TopicError> {
        let malformed = |why: &str| TopicError::Malformed { key: LAST_NUMBER_KEY.to_owned(), why: why.to_owned() };
        let mut tries = 0;
        loop {
            let found = self.ports.catalogue.get(LAST_NUMBER_KEY).await?;
            let last = match &found {
                None => 0,
                Some(found) => std::str::from_utf8(&found.value)
                    .ok()
                    .and_then(|text| text.parse::<u32>().ok())
                    .ok_or_else(|| malformed("it is not a number"))?,
            };
            let next = last.saturating_add(1);
            if next > TOPIC_NUMBER_MAX {
                return Err(TopicError::TooMany(last as usize));
            }
            let value = next.to_string().into_bytes();
            match self.ports.catalogue.put(LAST_NUMBER_KEY, value, found.map(|found| found.version)).await {
                Ok(_) => return Ok(TopicNumber(next)),
                Err(CatalogueError::Conflict { .. }) if tries < CONFLICT_TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn show(&self, topic: Topic) -> Arc<Topic> {
        let topic = Arc::new(topic);
        let mut map = Map::clone(&self.map.load());
        if let Some(earlier) = map.by_name.insert(Arc::clone(&topic.name), Arc::clone(&topic)) {
            map.by_number.remove(&earlier.number());
        }
        map.by_number.insert(topic.number(), Arc::clone(&topic));
        self.map.store(Arc::new(map));
        topic
    }

    fn hide(&self, name: &str) {
        let mut map = Map::clone(&self.map.load());
        if let Some(topic) = map.by_name.remove(name) {
            map.by_number.remove(&topic.number());
            self.ports.log_topics.expect_deletion(topic.number());
        }
        self.map.store(Arc::new(map));
    }
}

/// A topic on its way out, its gate closed.
pub struct Deletion<'a> {
    registry: &'a Registry,
    topic: Arc<Topic>,
    changing: MutexGuard<'a, i64>,
    closed: Closed,
}

impl Deletion<'_> {
    /// Deletes the topic with all it has. Not to be cancelled midway: callers spawn it.
    pub async fn finish(self) -> Result<(), TopicError> {
        let Self { registry, topic, changing, closed } = self;
        let name = &*topic.name;
        let mut stored = topic.stored.clone();
        stored.deleting = true;
        let version = registry.ports.catalogue.put(&key_of(name), encode(&stored), Some(topic.version)).await?;
        registry.hide(name);
        closed.replaced();
        registry.finish_deleting(name, &stored, version, &changing).await
    }
}

fn encode(stored: &StoredTopic) -> Vec<u8> {
    serde_json::to_vec(stored).expect("a topic's entry is plain data")
}
