//! Creates, changes and describes topics, and warns about topics that acknowledge with one replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest, TopicName,
};
use kafka_protocol::protocol::{Request, StrBytes};
use whimbrel_model::ports::{LogError, PartitionStatus, TopicStatus};
use whimbrel_model::{Event, EventSink, ExistingTopic, NamedBounds, PartitionId, Retention, TopicNumber, TopicSpec};

use super::append::Appender;
use super::client::cluster::KafkaCluster;
use super::known_topics::{KnownTopic, KnownTopics};
use super::outcome::{self, KafkaError};
use super::queries::{Attempt, Queries};
use super::read::PartitionReader;
use super::settings::KafkaSettings;

mod deletion;

const RETENTION_MS: &str = "retention.ms";
const RETENTION_BYTES: &str = "retention.bytes";
/// The value of a retention without that bound.
const WITHOUT_BOUND: &str = "-1";
/// The maximum number of topics in one request for settings.
const TOPICS_PER_REQUEST: usize = 500;
/// The interval at which the brokers are asked whether they have received a change.
const METADATA_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Kafka's own topics, which Whimbrel does not expose.
const KAFKAS_OWN_PREFIX: &str = "__";
/// The `replication_factor` that selects the broker's default.
const BROKERS_DEFAULT_REPLICATION: i16 = -1;
/// The code for an answer that lacks the requested data.
const UNKNOWN_ERROR: i16 = -1;
const TOPIC_RESOURCE: i8 = 2;
/// The source of a setting that is set on the topic itself.
const SET_ON_TOPIC: i8 = 1;
/// The operation that sets a value.
const SET_CONFIG: i8 = 0;

pub(super) struct KafkaTopics {
    pub cluster: Arc<KafkaCluster>,
    pub known: Arc<KnownTopics>,
    pub queries: Arc<Queries>,
    pub reader: Arc<PartitionReader>,
    pub appender: Arc<Appender>,
    pub settings: KafkaSettings,
    pub events: EventSink,
}

impl KafkaTopics {
    pub async fn create(&self, spec: &TopicSpec) -> Result<u32, LogError> {
        if let Some(found) = self.look(&spec.name, |_| true).await? {
            let found = self.look_at_each(spec, found).await?;
            return self.make_known(spec, &found, Vec::new()).await;
        }
        let configs = new_configs(spec, self.settings.batch_bytes_max());
        let replication = spec.replicas.map_or(BROKERS_DEFAULT_REPLICATION, |replicas| replicas as i16);
        let config = |(key, value): &(&'static str, String)| {
            CreatableTopicConfig::default().with_name(StrBytes::from_static_str(key)).with_value(Some(text(value)))
        };
        let topic = CreatableTopic::default()
            .with_name(TopicName(text(&spec.name)))
            .with_num_partitions(spec.partitions as i32)
            .with_replication_factor(replication)
            .with_configs(configs.iter().map(config).collect());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(self.timeout_ms());
        let created = self.administer(&request, |answer| Some(answer.topics.first()?.error_code)).await;
        let just_set = match created {
            Ok(_) => configs,
            // Another client created it at the same time: it exists, as requested.
            Err(KafkaError::Code(Code::TopicAlreadyExists)) => Vec::new(),
            Err(error) => return Err(refused(&error, &spec.name)),
        };
        let found =
            self.wait_for(&spec.name, |topic| topic.partitions.iter().all(|each| each.leader.is_some())).await?;
        self.make_known(spec, &found, just_set).await
    }

    async fn make_known(
        &self,
        spec: &TopicSpec,
        found: &ReportedTopic,
        just_set: Vec<(&str, String)>,
    ) -> Result<u32, LogError> {
        let effective = EffectiveConfigs::of(&self.configs(&spec.name).await?, &just_set);
        let partitions = found.partitions.len() as u32;
        self.remember(spec.number, &spec.name, partitions, effective.batch_bytes_max);
        if let Some(topic) = self.known.get(spec.number) {
            topic.learn_min_insync(effective.min_insync);
        }
        self.warn_if_not_durable(&spec.name, found, effective.min_insync);
        Ok(partitions)
    }

    fn remember(&self, number: TopicNumber, name: &str, partitions: u32, batch_bytes_max: usize) {
        let record_bytes_max = self.settings.record_bytes_max_under(batch_bytes_max);
        let displaced = self.known.put(KnownTopic::new(number, name.to_owned(), partitions, record_bytes_max));
        self.retire(&displaced);
    }

    pub async fn alter(&self, spec: &TopicSpec, named: NamedBounds) -> Result<(), LogError> {
        let known = self.known.get(spec.number).ok_or(unknown(spec.number))?;
        let found = self.look(known.name(), |_| true).await?.ok_or(unknown(spec.number))?;
        let batch_bytes_max = self.settings.batch_bytes_max();
        self.change_configs(known.name(), retention_configs(spec.retention, named), batch_bytes_max).await?;
        let mut partitions = found.partitions.len() as u32;
        if spec.partitions > partitions {
            partitions = self.grow(known.name(), spec.partitions).await?;
        }
        self.remember(spec.number, known.name(), partitions, batch_bytes_max);
        Ok(())
    }

    async fn grow(&self, name: &str, partitions: u32) -> Result<u32, LogError> {
        let topic = CreatePartitionsTopic::default()
            .with_name(TopicName(text(name)))
            .with_count(partitions as i32)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(self.timeout_ms());
        match self.administer(&request, |answer| Some(answer.results.first()?.error_code)).await {
            // It has that many partitions already: another client was faster.
            Ok(_) | Err(KafkaError::Code(Code::InvalidPartitions)) => {}
            Err(error) => return Err(refused(&error, name)),
        }
        let has_grown = |found: &ReportedTopic| {
            found.partitions.len() as u32 >= partitions && found.partitions.iter().all(|each| each.leader.is_some())
        };
        let found = self.wait_for(name, has_grown).await?;
        Ok(found.partitions.len() as u32)
    }

    /// Drops the records before an offset.
    pub async fn delete_records(
        &self,
        topic: &KnownTopic,
        partition: PartitionId,
        before: u64,
    ) -> Result<(), LogError> {
        let offset = i64::try_from(before).unwrap_or(i64::MAX);
        let records =
            DeleteRecordsPartition::default().with_partition_index(partition.index as i32).with_offset(offset);
        let records = DeleteRecordsTopic::default().with_name(topic.wire_name()).with_partitions(vec![records]);
        let request = DeleteRecordsRequest::default().with_topics(vec![records]).with_timeout_ms(self.timeout_ms());
        let request = &request;
        let attempt = |left| -> Attempt<'_, ()> {
            Box::pin(async move {
                let leader = self.queries.leader(topic.name(), partition.index).await?;
                let connection = self.cluster.admin_connection(leader).await?;
                let answer = connection.call(request, left).await?;
                let answer = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
                let code = answer.map_or(UNKNOWN_ERROR, |partition| partition.error_code);
                outcome::check(code).map_err(KafkaError::Code)
            })
        };
        self.queries.ask(topic, partition, attempt).await
    }

    /// Ends the reads of topics that no longer exist.
    fn retire(&self, topics: &[TopicNumber]) {
        for topic in topics {
            self.reader.retire_topic(*topic);
            self.appender.forget(*topic);
        }
    }

    pub async fn describe(&self, number: TopicNumber) -> Result<TopicStatus, LogError> {
        let topic = self.known.get(number).ok_or(unknown(number))?;
        let found = self.look(topic.name(), |_| true).await?.ok_or(unknown(number))?;
        Ok(TopicStatus { partitions: found.partitions })
    }

    pub async fn found(&self, is_skipped: &(dyn Fn(&str) -> bool + Sync)) -> Result<Vec<ExistingTopic>, LogError> {
        let metadata = self.queries.metadata(None).await?;
        let named = metadata.topics.iter().filter_map(|topic| Some((topic.name.as_ref()?.as_str(), topic)));
        let topics = named
            .filter(|(name, topic)| !name.starts_with(KAFKAS_OWN_PREFIX) && !topic.is_internal && !is_skipped(name));
        let topics: Vec<(&str, u32)> = topics.map(|(name, topic)| (name, topic.partitions.len() as u32)).collect();
        let mut found = Vec::with_capacity(topics.len());
        for some in topics.chunks(TOPICS_PER_REQUEST) {
            let retentions = self.retentions(some.iter().map(|(name, _)| *name)).await?;
            found.extend(some.iter().filter_map(|(name, partitions)| {
                let retention = *retentions.get(*name)?;
                Some(ExistingTopic { name: (*name).to_owned(), partitions: *partitions, retention })
            }));
        }
        Ok(found)
    }

    /// The retention of each topic. A topic whose settings cannot be read is left out, with a warning.
    async fn retentions(&self, names: impl Iterator<Item = &str>) -> Result<BTreeMap<String, Retention>, LogError> {
        let resource = |name| {
            DescribeConfigsResource::default()
                .with_resource_type(TOPIC_RESOURCE)
                .with_resource_name(text(name))
                .with_configuration_keys(Some([RETENTION_MS, RETENTION_BYTES].map(StrBytes::from_static_str).to_vec()))
        };
        let request = DescribeConfigsRequest::default().with_resources(names.map(resource).collect());
        let answer = self.administer(&request, |_| Some(0)).await.map_err(|error| outcome::unavailable(&error))?;
        let mut retentions = BTreeMap::new();
        for result in answer.results {
            let name = result.resource_name.to_string();
            match outcome::check(result.error_code) {
                Ok(()) => {
                    let value = |config: &DescribeConfigsResourceResult| {
                        Some((config.name.to_string(), config.value.as_ref()?.to_string()))
                    };
                    retentions.insert(name, retention_of(&result.configs.iter().filter_map(value).collect()));
                }
                // The topic was deleted after it was listed.
                Err(code) if outcome::is_unknown_partition(code) => {}
                Err(code) => {
                    tracing::warn!(topic = name, %code, "cannot read the settings of a Kafka topic; it is not adopted")
                }
            }
        }
        Ok(retentions)
    }

    /// Looks up whether a topic has grown, unless it was looked up a moment ago.
    pub async fn look_for_growth(&self, topic: &KnownTopic) {
        if topic.may_look_up(Instant::now())
            && let Ok(Some(found)) = self.look(topic.name(), |_| true).await
        {
            topic.learn_partitions(found.partitions.len() as u32);
        }
    }

    /// The topic with all its partitions. A broker that has not learned of a growth yet reports fewer than another one.
    async fn look_at_each(&self, spec: &TopicSpec, found: ReportedTopic) -> Result<ReportedTopic, LogError> {
        let count = found.partitions.len() as u32;
        if count >= spec.partitions {
            return Ok(found);
        }
        let most = self.queries.partition_count(&spec.name).await?;
        if most <= count {
            return Ok(found);
        }
        self.wait_for(&spec.name, |topic| topic.partitions.len() as u32 >= most).await
    }

    /// The topic as the brokers report it now; `None` if it does not exist or `accepts` returns false.
    async fn look(
        &self,
        name: &str,
        accepts: impl Fn(&ReportedTopic) -> bool,
    ) -> Result<Option<ReportedTopic>, LogError> {
        let metadata = self.queries.metadata(Some(name)).await?;
        if metadata.brokers.is_empty() {
            // A broker that has just started has no metadata: its answer is not the cluster's.
            return Err(LogError::Unavailable(
                "the broker returned no cluster metadata; it may still be starting".to_owned(),
            ));
        }
        let is_it = |topic: &&MetadataResponseTopic| topic.name.as_ref().is_some_and(|each| each.as_str() == name);
        let Some(topic) = metadata.topics.iter().find(is_it) else { return Ok(None) };
        match Code::try_from_code(topic.error_code) {
            Some(Code::LeaderNotAvailable) | None => {}
            Some(code) if outcome::is_unknown_partition(code) => return Ok(None),
            Some(code) => return Err(refused(&KafkaError::Code(code), name)),
        }
        let found = ReportedTopic::new(topic);
        Ok((!found.partitions.is_empty() && accepts(&found)).then_some(found))
    }

    /// Waits until the brokers report the topic and `accepts` returns true.
    async fn wait_for(&self, name: &str, accepts: impl Fn(&ReportedTopic) -> bool) -> Result<ReportedTopic, LogError> {
        let began = Instant::now();
        loop {
            if let Some(found) = self.look(name, &accepts).await? {
                return Ok(found);
            }
            if began.elapsed() > self.settings.request_timeout {
                return Err(LogError::Unavailable(format!(
                    "topic `{name}` has no leader or is not visible on the brokers yet"
                )));
            }
            tokio::time::sleep(METADATA_POLL_INTERVAL).await;
        }
    }

    /// The topic's own settings and its defaults.
    async fn configs(&self, name: &str) -> Result<BTreeMap<String, String>, LogError> {
        Ok(self.config_entries(name).await?.into_iter().map(|(key, (value, _))| (key, value)).collect())
    }

    async fn config_entries(&self, name: &str) -> Result<BTreeMap<String, (String, i8)>, LogError> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(TOPIC_RESOURCE)
            .with_resource_name(text(name))
            .with_configuration_keys(None);
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        // A broker may not have learned yet of a topic that another one reports.
        let deadline = Instant::now() + self.settings.request_timeout;
        let answer = loop {
            match self.administer(&request, |answer| Some(answer.results.first()?.error_code)).await {
                Ok(answer) => break answer,
                Err(error) if error.code().is_some_and(outcome::is_unknown_partition) && Instant::now() < deadline => {
                    tokio::time::sleep(METADATA_POLL_INTERVAL).await;
                }
                Err(error) => return Err(refused(&error, name)),
            }
        };
        let configs = answer.results.into_iter().flat_map(|result| result.configs);
        Ok(configs
            .filter_map(|config| Some((config.name.to_string(), (config.value?.to_string(), config.config_source))))
            .collect())
    }

    /// Sets the values that differ. Batches of `batch_bytes` must fit afterwards; a topic that another application created with a larger
    /// limit keeps it.
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
        let is_set = |key: &str, value: &String| {
            entries.get(key).is_some_and(|(set, source)| set == value && *source == SET_ON_TOPIC)
        };
        changes.retain(|(key, value)| !is_set(key, value));
        if changes.is_empty() {
            return Ok(());
        }
        let change = |(key, value): &(&'static str, String)| {
            AlterableConfig::default()
                .with_name(StrBytes::from_static_str(key))
                .with_config_operation(SET_CONFIG)
                .with_value(Some(text(value)))
        };
        let resource = AlterConfigsResource::default()
            .with_resource_type(TOPIC_RESOURCE)
            .with_resource_name(text(name))
            .with_configs(changes.iter().map(change).collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        self.administer(&request, |answer| Some(answer.responses.first()?.error_code))
            .await
            .map(drop)
            .map_err(|error| refused(&error, name))
    }

    /// Repeats a request until the controller gives a definite answer, within `request_timeout`. Only for requests that may be executed
    /// twice.
    async fn administer<R: Request>(
        &self,
        request: &R,
        code_of: impl Fn(&R::Response) -> Option<i16>,
    ) -> Result<R::Response, KafkaError> {
        let deadline = Instant::now() + self.settings.request_timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match self.cluster.ask_controller(request, left).await {
                Ok(answer) => match outcome::check(code_of(&answer).unwrap_or(UNKNOWN_ERROR)) {
                    Ok(()) => return Ok(answer),
                    Err(code) => KafkaError::Code(code),
                },
                Err(error) => KafkaError::Call(error),
            };
            if !error.is_passing() || Instant::now() + METADATA_POLL_INTERVAL >= deadline {
                return Err(error);
            }
            tokio::time::sleep(METADATA_POLL_INTERVAL).await;
            // The controller may be another broker by now.
            let _ = self.cluster.metadata(Some(&[]), left).await;
        }
    }

    fn warn_if_not_durable(&self, name: &str, found: &ReportedTopic, min_insync: u32) {
        let replicas = found.partitions.iter().map(|partition| partition.replicas.len()).max().unwrap_or(0);
        if is_weaker_than_it_looks(replicas, min_insync) {
            let detail = format!(
                "topic `{name}` has {replicas} replicas and min.insync.replicas={min_insync}: a message is acknowledged when one broker \
                 has it, and is lost with that broker; set min.insync.replicas to 2 or more"
            );
            tracing::warn!("{detail}");
            let event = Event::warning("acknowledged_not_durable", detail);
            (self.events)(event.with("topic", name).with("replicas", replicas).with("min_insync", min_insync));
        }
    }

    fn timeout_ms(&self) -> i32 {
        i32::try_from(self.settings.request_timeout.as_millis()).unwrap_or(i32::MAX)
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

struct ReportedTopic {
    partitions: Vec<PartitionStatus>,
}

impl ReportedTopic {
    fn new(topic: &MetadataResponseTopic) -> Self {
        let numbers = |brokers: &[BrokerId]| brokers.iter().map(|broker| broker.0).collect();
        let mut partitions: Vec<PartitionStatus> = topic
            .partitions
            .iter()
            .map(|partition| PartitionStatus {
                index: partition.partition_index.max(0) as u32,
                leader: (partition.leader_id.0 >= 0).then_some(partition.leader_id.0),
                replicas: numbers(&partition.replica_nodes),
                in_sync: numbers(&partition.isr_nodes),
                bytes: None,
            })
            .collect();
        partitions.sort_by_key(|partition| partition.index);
        Self { partitions }
    }
}

/// The settings of a topic that the engine depends on.
#[derive(Debug, PartialEq, Eq)]
struct EffectiveConfigs {
    batch_bytes_max: usize,
    min_insync: u32,
}

impl EffectiveConfigs {
    /// A broker that has not received new settings yet answers with its defaults, so `just_set` takes precedence.
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

/// Whether the topic's acknowledgements prove less than its replicas suggest. `acks=all` waits only for replicas that are in sync; with
/// `min.insync.replicas=1` one replica is enough.
fn is_weaker_than_it_looks(replicas: usize, min_insync: u32) -> bool {
    replicas > 1 && min_insync < 2
}

fn new_configs(spec: &TopicSpec, batch_bytes_max: usize) -> Vec<(&'static str, String)> {
    let mut configs = retention_configs(spec.retention, NamedBounds::ALL);
    if let Some(min_insync) = spec.min_insync {
        configs.push(("min.insync.replicas", min_insync.to_string()));
    }
    configs.push(("max.message.bytes", batch_bytes_max.to_string()));
    configs.push(("message.timestamp.type", "CreateTime".to_owned()));
    configs
}

fn retention_configs(retention: Retention, named: NamedBounds) -> Vec<(&'static str, String)> {
    let bound = |bound: Option<String>| bound.unwrap_or_else(|| WITHOUT_BOUND.to_owned());
    let mut configs = Vec::new();
    if named.time {
        configs.push((RETENTION_MS, bound(retention.time.map(|time| time.as_millis().to_string()))));
    }
    if named.bytes {
        configs.push((RETENTION_BYTES, bound(retention.bytes.map(|bytes| bytes.to_string()))));
    }
    configs
}

/// The retention that a topic's settings define. A negative value is no bound.
fn retention_of(configs: &BTreeMap<String, String>) -> Retention {
    let bound = |key| configs.get(key).and_then(|value| value.parse::<u64>().ok());
    Retention { time: bound(RETENTION_MS).map(Duration::from_millis), bytes: bound(RETENTION_BYTES) }
}

fn refused(error: &KafkaError, name: &str) -> LogError {
    match error {
        KafkaError::Code(Code::InvalidReplicationFactor) => LogError::Unsupported(format!(
            "Kafka has fewer brokers than topic `{name}` has replicas: lower `replicas`, or add brokers"
        )),
        KafkaError::Code(
            code @ (Code::InvalidPartitions
            | Code::InvalidConfig
            | Code::InvalidTopicException
            | Code::InvalidRequest
            | Code::PolicyViolation
            | Code::TopicDeletionDisabled
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed),
        ) => LogError::Unsupported(format!("Kafka rejected the request for topic `{name}`: {code}")),
        error => LogError::Unavailable(format!("the request for topic `{name}` failed: {error}; try again")),
    }
}

fn unknown(number: TopicNumber) -> LogError {
    LogError::UnknownPartition(PartitionId::new(number, 0))
}

#[cfg(test)]
mod tests;
