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

/// A topic. `partition_list` is there where one topic was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicInfo {
    #[serde(alias = "name")]
    pub topic: String,
    /// Whatever the server says of it.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartitionInfo {
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}
