//! Making, growing, deleting and describing topics, and what is said when one is not as durable as it looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaRespErr;
use whimbrel_model::ports::{LogError, PartitionStatus, TopicStatus};
use whimbrel_model::{Event, EventSink, PartitionId, TopicNumber, TopicSpec};

use super::context::Quiet;
use super::cursors::Cursors;
use super::known::{KnownTopic, KnownTopics};
use super::outcome;
use super::queries::Queries;
use super::settings::KafkaSettings;

/// How often the brokers are asked whether they know of a change.
const NEWS_LOOK: Duration = Duration::from_millis(20);
/// Kafka's own topics, which are nobody's to read as messages.
const KAFKAS_OWN_PREFIX: &str = "__";
/// What asks the broker for its own default of copies.
const BROKERS_DEFAULT_REPLICATION: i32 = -1;

pub(super) struct Topics {
    pub admin: AdminClient<Quiet>,
    pub known: Arc<KnownTopics>,
    pub queries: Arc<Queries>,
    pub cursors: Arc<Cursors>,
    pub settings: KafkaSettings,
    pub events: EventSink,
}

impl Topics {
    pub fn new(
        settings: &KafkaSettings,
        known: Arc<KnownTopics>,
        queries: Arc<Queries>,
        cursors: Arc<Cursors>,
        events: EventSink,
    ) -> Result<Self, KafkaError> {
        let admin = AdminClient::from_config_and_context(&settings.admin(), Quiet)?;
        Ok(Self { admin, known, queries, cursors, settings: settings.clone(), events })
    }

    pub async fn create(&self, spec: &TopicSpec) -> Result<u32, LogError> {
        if let Some(found) = self.look(&spec.name, |_| true).await? {
            return self.make_known(spec, &found, Vec::new()).await;
        }
        let configs = new_configs(spec, self.settings.batch_bytes_max());
        let replication = spec.replicas.map_or(BROKERS_DEFAULT_REPLICATION, |replicas| replicas as i32);
        let new = NewTopic::new(&spec.name, spec.partitions as i32, TopicReplication::Fixed(replication));
        let new = configs.iter().fold(new, |new, (key, value)| new.set(key, value));
        let created =
            self.admin.create_topics([&new], &self.options()).await.map_err(|error| outcome::unavailable(&error))?;
        let just_set = match created.into_iter().next() {
            Some(Ok(_)) => configs,
            // Somebody else made it in the same moment: then it is there, which is what was asked for.
            Some(Err((_, Code::TopicAlreadyExists))) => Vec::new(),
            Some(Err((_, code))) => return Err(refused(code, &spec.name)),
            None => return Err(LogError::Unavailable("Kafka did not say whether the topic was made".to_owned())),
        };
        let found =
            self.wait_for(&spec.name, |topic| topic.partitions.iter().all(|each| each.leader.is_some())).await?;
        self.make_known(spec, &found, just_set).await
    }

    async fn make_known(
        &self,
        spec: &TopicSpec,
        found: &FoundTopic,
        just_set: Vec<(&str, String)>,
    ) -> Result<u32, LogError> {
        let in_force = InForce::of(&self.configs(&spec.name).await?, &just_set);
        let partitions = found.partitions.len() as u32;
        self.remember(spec.number, &spec.name, partitions, in_force.batch_bytes_max).await;
        self.warn_if_not_durable(&spec.name, found, in_force.min_insync);
        Ok(partitions)
    }

    async fn remember(&self, number: TopicNumber, name: &str, partitions: u32, batch_bytes_max: usize) {
        let record_bytes_max = self.settings.record_bytes_max_under(batch_bytes_max);
        let displaced = self.known.put(KnownTopic::new(number, name.to_owned(), partitions, record_bytes_max));
        self.retire(displaced).await;
    }

    pub async fn alter(&self, spec: &TopicSpec) -> Result<(), LogError> {
        let known = self.known.get(spec.number).ok_or(unknown(spec.number))?;
        let found = self.look(&known.name, |_| true).await?.ok_or(unknown(spec.number))?;
        let batch_bytes_max = self.settings.batch_bytes_max();
        self.change_configs(&known.name, changeable_configs(spec), batch_bytes_max).await?;
        let mut partitions = found.partitions.len() as u32;
        if spec.partitions > partitions {
            partitions = self.grow(&known.name, spec.partitions).await?;
        }
        self.remember(spec.number, &known.name, partitions, batch_bytes_max).await;
        Ok(())
    }

    async fn grow(&self, name: &str, partitions: u32) -> Result<u32, LogError> {
        let grown = NewPartitions::new(name, partitions as usize);
        let grown = self
            .admin
            .create_partitions([&grown], &self.options())
            .await
            .map_err(|error| outcome::unavailable(&error))?;
        match grown.into_iter().next() {
            // It has that many already: somebody else was faster.
            Some(Ok(_) | Err((_, Code::InvalidPartitions))) => {}
            Some(Err((_, code))) => return Err(refused(code, name)),
            None => return Err(LogError::Unavailable("Kafka did not say whether the topic has grown".to_owned())),
        }
        let has_grown = |found: &FoundTopic| {
            found.partitions.len() as u32 >= partitions && found.partitions.iter().all(|each| each.leader.is_some())
        };
        let found = self.wait_for(name, has_grown).await?;
        Ok(found.partitions.len() as u32)
    }

    pub async fn delete(&self, number: TopicNumber) -> Result<(), LogError> {
        let Some(topic) = self.known.get(number) else { return Ok(()) };
        let deleted = self.admin.delete_topics(&[&topic.name], &self.options()).await;
        match deleted.map_err(|error| outcome::unavailable(&error))?.into_iter().next() {
            Some(Err((_, code))) if !outcome::is_unknown_partition(code) => return Err(refused(code, &topic.name)),
            _ => {}
        }
        self.known.remove(number);
        self.retire(vec![number]).await;
        let began = Instant::now();
        while self.look(&topic.name, |_| true).await?.is_some() {
            if began.elapsed() > self.settings.request_timeout {
                return Err(LogError::Unavailable(format!("Kafka has not deleted `{}` in time", topic.name)));
            }
            tokio::time::sleep(NEWS_LOOK).await;
        }
        Ok(())
    }

    /// Ends the cursors of topics that are no more.
    async fn retire(&self, topics: Vec<TopicNumber>) {
        if topics.is_empty() {
            return;
        }
        let cursors = self.cursors.clone();
        let retired =
            tokio::task::spawn_blocking(move || topics.into_iter().for_each(|topic| cursors.retire_topic(topic))).await;
        debug_assert!(retired.is_ok(), "retiring cursors does not panic");
    }

    pub async fn describe(&self, number: TopicNumber) -> Result<TopicStatus, LogError> {
        let topic = self.known.get(number).ok_or(unknown(number))?;
        let found = self.look(&topic.name, |_| true).await?.ok_or(unknown(number))?;
        Ok(TopicStatus { partitions: found.partitions })
    }

    pub async fn found(&self) -> Result<Vec<(String, u32)>, LogError> {
        let metadata = self.queries.metadata(None).await?;
        let topics = metadata.topics().iter().filter(|topic| !topic.name().starts_with(KAFKAS_OWN_PREFIX));
        Ok(topics.map(|topic| (topic.name().to_owned(), topic.partitions().len() as u32)).collect())
    }

    /// Asks whether a topic has grown beyond what is known, where that is worth a question.
    pub async fn look_for_growth(&self, topic: &KnownTopic) {
        if topic.may_look_up(Instant::now())
            && let Ok(Some(found)) = self.look(&topic.name, |_| true).await
        {
            topic.learn_partitions(found.partitions.len() as u32);
        }
    }

    /// The topic as the brokers have it now; `None` where it is not there or not as wanted.
    async fn look(&self, name: &str, as_wanted: impl Fn(&FoundTopic) -> bool) -> Result<Option<FoundTopic>, LogError> {
        let metadata = self.queries.metadata(Some(name)).await?;
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else { return Ok(None) };
        match topic.error() {
            Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) | None => {}
            Some(error) if outcome::is_unknown_partition(error.into()) => return Ok(None),
            Some(error) => return Err(refused(error.into(), name)),
        }
        let found = FoundTopic::new(topic);
        Ok((!found.partitions.is_empty() && as_wanted(&found)).then_some(found))
    }

    /// Waits until the brokers tell of the topic as wanted.
    async fn wait_for(&self, name: &str, as_wanted: impl Fn(&FoundTopic) -> bool) -> Result<FoundTopic, LogError> {
        let began = Instant::now();
        loop {
            if let Some(found) = self.look(name, &as_wanted).await? {
                return Ok(found);
            }
            if began.elapsed() > self.settings.request_timeout {
                return Err(LogError::Unavailable(format!("Kafka has not made `{name}` ready in time")));
            }
            tokio::time::sleep(NEWS_LOOK).await;
        }
    }

    /// What is set on the topic and what it has by default.
    async fn configs(&self, name: &str) -> Result<BTreeMap<String, String>, LogError> {
        Ok(self.config_entries(name).await?.into_iter().map(|(key, (value, _))| (key, value)).collect())
    }

    async fn config_entries(&self, name: &str) -> Result<BTreeMap<String, (String, ConfigSource)>, LogError> {
        let asked = self.admin.describe_configs([&ResourceSpecifier::Topic(name)], &self.options()).await;
        match asked.map_err(|error| outcome::unavailable(&error))?.into_iter().next() {
            Some(Ok(resource)) => {
                let entries = resource.entries.into_iter();
                Ok(entries.filter_map(|entry| Some((entry.name, (entry.value?, entry.source)))).collect())
            }
            Some(Err(code)) => Err(refused(code, name)),
            None => Err(LogError::Unavailable("Kafka did not describe the topic".to_owned())),
        }
    }

    /// Kafka's request replaces all settings of a topic at once, so what others have set is sent along as it is. Batches of
    /// `batch_bytes` must fit afterwards; a topic that others made for larger ones keeps its limit.
    async fn change_configs(
        &self,
        name: &str,
        mut changes: Vec<(&'static str, String)>,
        batch_bytes: usize,
    ) -> Result<(), LogError> {
        let entries = self.config_entries(name).await?;
        let limit = entries.get("max.message.bytes").and_then(|(value, _)| value.parse::<usize>().ok());
        if limit.is_none_or(|limit| limit < batch_bytes) {
            changes.push(("max.message.bytes", batch_bytes.to_string()));
        }
        let mut wanted: BTreeMap<String, String> = entries
            .into_iter()
            .filter(|(_, (_, source))| *source == ConfigSource::DynamicTopic)
            .map(|(key, (value, _))| (key, value))
            .collect();
        let before = wanted.clone();
        wanted.extend(changes.into_iter().map(|(key, value)| (key.to_owned(), value)));
        if wanted == before {
            return Ok(());
        }
        let change = wanted
            .iter()
            .fold(AlterConfig::new(ResourceSpecifier::Topic(name)), |change, (key, value)| change.set(key, value));
        let changed = self.admin.alter_configs([&change], &self.options()).await;
        match changed.map_err(|error| outcome::unavailable(&error))?.into_iter().next() {
            Some(Err((_, code))) => Err(refused(code, name)),
            _ => Ok(()),
        }
    }

    fn warn_if_not_durable(&self, name: &str, found: &FoundTopic, min_insync: u32) {
        let replicas = found.partitions.iter().map(|partition| partition.replicas.len()).max().unwrap_or(0);
        if is_weaker_than_it_looks(replicas, min_insync) {
            let detail = format!(
                "topic `{name}` has {replicas} copies and min.insync.replicas={min_insync}: a message is acknowledged when one broker \
                 has it, and is lost with that broker; set min.insync.replicas to 2 or more"
            );
            tracing::warn!("{detail}");
            let event = Event::warning("acknowledged_not_durable", detail);
            (self.events)(event.with("topic", name).with("replicas", replicas).with("min_insync", min_insync));
        }
    }

    fn options(&self) -> AdminOptions {
        let timeout = Some(self.settings.request_timeout);
        AdminOptions::new().request_timeout(timeout).operation_timeout(timeout)
    }
}

/// A topic as the brokers tell of it.
struct FoundTopic {
    partitions: Vec<PartitionStatus>,
}

impl FoundTopic {
    fn new(topic: &MetadataTopic) -> Self {
        let mut partitions: Vec<PartitionStatus> = topic
            .partitions()
            .iter()
            .map(|partition| PartitionStatus {
                index: partition.id().max(0) as u32,
                leader: (partition.leader() >= 0).then(|| partition.leader()),
                replicas: partition.replicas().to_vec(),
                in_sync: partition.isr().to_vec(),
                bytes: None,
            })
            .collect();
        partitions.sort_by_key(|partition| partition.index);
        Self { partitions }
    }
}

/// What the engine must know of a topic's settings.
#[derive(Debug, PartialEq, Eq)]
struct InForce {
    batch_bytes_max: usize,
    min_insync: u32,
}

impl InForce {
    /// A broker may not have heard yet what was set a moment ago, and answers with its defaults: what was set wins.
    fn of(asked: &BTreeMap<String, String>, just_set: &[(&str, String)]) -> Self {
        let value = |key: &str| {
            let set = just_set.iter().find(|(name, _)| *name == key).map(|(_, value)| value);
            set.or_else(|| asked.get(key))
        };
        Self {
            batch_bytes_max: value("max.message.bytes").and_then(|value| value.parse().ok()).unwrap_or(usize::MAX),
            min_insync: value("min.insync.replicas").and_then(|value| value.parse().ok()).unwrap_or(1),
        }
    }
}

/// `acks=all` waits for those copies that are in sync, and with one required, one is enough.
fn is_weaker_than_it_looks(replicas: usize, min_insync: u32) -> bool {
    replicas > 1 && min_insync < 2
}

/// What is set on a topic that is made.
fn new_configs(spec: &TopicSpec, batch_bytes_max: usize) -> Vec<(&'static str, String)> {
    let mut configs = changeable_configs(spec);
    configs.push(("max.message.bytes", batch_bytes_max.to_string()));
    configs.push(("message.timestamp.type", "CreateTime".to_owned()));
    configs
}

/// What can be changed of a topic later.
fn changeable_configs(spec: &TopicSpec) -> Vec<(&'static str, String)> {
    const WITHOUT_BOUND: &str = "-1";
    let time = spec.retention.time.map(|time| time.as_millis().to_string());
    let bytes = spec.retention.bytes.map(|bytes| bytes.to_string());
    let mut configs = vec![
        ("retention.ms", time.unwrap_or_else(|| WITHOUT_BOUND.to_owned())),
        ("retention.bytes", bytes.unwrap_or_else(|| WITHOUT_BOUND.to_owned())),
    ];
    if let Some(min_insync) = spec.min_insync {
        configs.push(("min.insync.replicas", min_insync.to_string()));
    }
    configs
}

fn refused(code: Code, name: &str) -> LogError {
    match code {
        Code::InvalidReplicationFactor => {
            LogError::Unsupported(format!("Kafka has not enough brokers for the copies that `{name}` shall have"))
        }
        Code::InvalidPartitions
        | Code::InvalidConfig
        | Code::InvalidTopic
        | Code::InvalidRequest
        | Code::PolicyViolation
        | Code::TopicDeletionDisabled
        | Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed => LogError::Unsupported(format!("Kafka refuses it for `{name}`: {code}")),
        _ => LogError::Unavailable(format!("Kafka cannot do it for `{name}` now: {code}")),
    }
}

fn unknown(number: TopicNumber) -> LogError {
    LogError::UnknownPartition(PartitionId::new(number, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::Retention;

    #[test]
    fn a_replicated_topic_that_acknowledges_with_one_copy_is_weaker_than_it_looks() {
        assert!(is_weaker_than_it_looks(3, 1));
        assert!(!is_weaker_than_it_looks(3, 2));
        assert!(!is_weaker_than_it_looks(1, 1));
    }

    #[test]
    fn what_was_just_set_is_in_force_though_a_broker_has_not_heard_of_it() {
        let defaults = [("max.message.bytes", "1048588"), ("min.insync.replicas", "1")];
        let asked = defaults.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
        let set = [("max.message.bytes", "2000000".to_owned()), ("min.insync.replicas", "2".to_owned())];
        assert_eq!(InForce::of(&asked, &set), InForce { batch_bytes_max: 2_000_000, min_insync: 2 });
        assert_eq!(InForce::of(&asked, &[]), InForce { batch_bytes_max: 1_048_588, min_insync: 1 });
    }

    #[test]
    fn a_topic_without_bounds_is_kept_for_good() {
        let spec = TopicSpec {
            number: TopicNumber(1),
            name: "t".to_owned(),
            partitions: 1,
            retention: Retention::default(),
            replicas: None,
            min_insync: Some(2),
        };
        let configs: BTreeMap<_, _> = new_configs(&spec, 5000).into_iter().collect();
        assert_eq!(configs["retention.ms"], "-1");
        assert_eq!(configs["retention.bytes"], "-1");
        assert_eq!(configs["max.message.bytes"], "5000");
        assert_eq!(configs["min.insync.replicas"], "2");
    }
}
