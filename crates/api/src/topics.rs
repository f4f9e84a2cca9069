//! Topics: their settings, partitions, rates and growths.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::subscriptions::WorkersInfo;

/// The settings of a topic. Absent fields keep their value, or get the server's default for a new topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, expecting = "struct TopicSettingsDocument")]
pub struct TopicSettings {
    /// The number of partitions. It can only grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
    /// Copies of each partition, set on creation. The embedded log has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// The number of copies that must have a message before it is acknowledged, set on creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_insync: Option<u32>,
    /// How long messages are retained, such as `7d`. `null` removes this limit.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub retention: Option<Option<DurationForm>>,
    /// The number of bytes that each partition retains. `null` removes this limit.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>))]
    pub retention_bytes: Option<Option<u64>>,
    /// The workers that make the callbacks of its subscriptions, unless a subscription has its own choice. `null` means all workers.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<WorkersInfo>))]
    pub workers: Option<Option<Map<String, Value>>>,
}

/// A duration: a number of milliseconds, or a text such as `7d`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a duration such as `7d`, or a number of milliseconds")]
pub enum DurationForm {
    Millis(u64),
    Text(String),
}

/// Distinguishes `null` from an absent field.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Topic))]
pub struct TopicInfo {
    pub topic: String,
    /// Unique: a topic created again under an old name has another number.
    pub number: u32,
    pub partitions: u32,
    /// Absent if there is no time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    /// The limit of each partition. Absent if there is no size limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_insync: Option<u32>,
    pub created_at: String,
    /// The topic was created by another system in the engine, and adopted.
    pub adopted: bool,
    /// The maximum number of retained messages: offsets are counted, and on Kafka transaction markers have offsets too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<u64>,
    pub rates: Rates,
    /// The workers that make the callbacks of its subscriptions. Absent means all workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersInfo>,
    pub growths: Vec<GrowthInfo>,
    /// Present in the answer for a single topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_list: Option<Vec<PartitionInfo>>,
    /// A note about the effect of the change, for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Messages published per second through this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Rates {
    pub published_per_s_10s: f64,
    pub published_per_s_60s: f64,
}

/// A growth of the topic. Messages of a moved key lie below `barriers` in its old partition, then in its new one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Growth))]
pub struct GrowthInfo {
    pub at: String,
    pub from: u32,
    pub to: u32,
    /// The next offset of each old partition at that time.
    pub barriers: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Partition))]
pub struct PartitionInfo {
    pub partition: u32,
    pub first_offset: u64,
    pub next_offset: u64,
    /// The maximum number, as for the topic.
    pub messages: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<i32>,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
    /// Bytes on disk, if the engine reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicList {
    pub topics: Vec<TopicInfo>,
}
