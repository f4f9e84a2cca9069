//! Topics as the server shows them and as they are asked for.

use serde::{Deserialize, Serialize};

/// What a topic shall be. What is left out stays as it is, or takes the server's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TopicSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_insync: Option<u32>,
    /// A duration such as `7d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
}

/// A topic as the server shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicInfo {
    pub topic: String,
    pub partitions: u32,
    /// A duration such as `7d`; nothing: kept until `retention_bytes` drops it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    #[serde(default)]
    pub messages: u64,
    #[serde(default)]
    pub rates: Rates,
    /// Each partition, where one topic was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partition_list: Vec<PartitionInfo>,
    /// Whatever else the server says of it: when it was made, how it grew, what a change did.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// How much is published to a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    #[serde(default)]
    pub published_per_s_10s: f64,
    #[serde(default)]
    pub published_per_s_60s: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartitionInfo {
    pub partition: u32,
    pub first_offset: u64,
    pub next_offset: u64,
    #[serde(default)]
    pub messages: u64,
    #[serde(default)]
    pub leader: Option<i32>,
    #[serde(default)]
    pub replicas: Vec<i32>,
    #[serde(default)]
    pub in_sync: Vec<i32>,
    /// Bytes on disk, where the engine knows.
    #[serde(default)]
    pub bytes: Option<u64>,
}
