//! Topics: their settings and their status.

use serde::{Deserialize, Serialize};

/// The settings of a topic. A missing member stays unchanged, or gets the server's default.
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicInfo {
    pub topic: String,
    pub partitions: u32,
    /// A duration such as `7d`. `None`: messages are retained until `retention_bytes` is exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    #[serde(default)]
    pub messages: u64,
    #[serde(default)]
    pub rates: Rates,
    /// The partitions, if one topic was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partition_list: Vec<PartitionInfo>,
    /// Other members of the response: when it was created, how it grew, the result of a change.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// The publish rates of a topic, in messages per second.
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
    /// Bytes on disk, if the engine reports them.
    #[serde(default)]
    pub bytes: Option<u64>,
}
