//! A topic as the catalogue stores it: JSON under `topics/<name>`. The last assigned number is under `topic_numbers`.
//!
//! Later versions only add fields, with a default, so that older entries stay readable.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_model::subscription::WorkerChoice;
use whimbrel_model::{Retention, Timestamp, TopicNumber, TopicSpec};

use super::Growth;
use super::agreement::PendingGrowth;

pub const TOPIC_PREFIX: &str = "topics/";
/// The key of the last assigned number, in decimal digits.
pub const LAST_NUMBER_KEY: &str = "topic_numbers";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTopic {
    pub number: TopicNumber,
    pub partitions: u32,
    /// `None`: without that bound. Earlier versions also stored it for every adopted topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_insync: Option<u32>,
    pub created_at_ms: i64,
    /// Whether another application created the topic in the engine.
    #[serde(default)]
    pub adopted: bool,
    /// Whether the topic is being deleted. The log may still have it. Any node that reads this entry finishes the deletion.
    #[serde(default)]
    pub deleting: bool,
    /// The identity in the log of a topic that is being deleted. Nodes delete exactly this topic, even if the entry they read is old.
    /// Earlier versions did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    #[serde(default)]
    pub growths: Vec<Growth>,
    /// A growth that not every node has confirmed yet: `partitions` is the old mapping, and no node publishes by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growing: Option<PendingGrowth>,
    /// The workers that make the callbacks of its subscriptions, unless those name others; `None`: all workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkerChoice>,
}

impl StoredTopic {
    /// A topic without any bound or further setting.
    pub fn new(number: TopicNumber, partitions: u32, created_at: Timestamp) -> Self {
        Self {
            number,
            partitions,
            retention_ms: None,
            retention_bytes: None,
            replicas: None,
            min_insync: None,
            created_at_ms: created_at.as_millis(),
            adopted: false,
            deleting: false,
            identity: None,
            growths: Vec::new(),
            growing: None,
            workers: None,
        }
    }

    pub fn spec(&self, name: &str) -> TopicSpec {
        TopicSpec {
            number: self.number,
            name: name.to_owned(),
            partitions: self.partitions,
            retention: self.retention(),
            replicas: self.replicas,
            min_insync: self.min_insync,
        }
    }

    pub fn retention(&self) -> Retention {
        Retention { time: self.retention_ms.map(Duration::from_millis), bytes: self.retention_bytes }
    }

    pub fn with_retention(self, retention: Retention) -> Self {
        let retention_ms = retention.time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        Self { retention_ms, retention_bytes: retention.bytes, ..self }
    }

    /// Whether the engine may have bounds that are not stored here: earlier versions adopted topics without reading their retention.
    pub fn has_unknown_retention(&self) -> bool {
        self.adopted && self.retention() == Retention::default()
    }

    pub fn created_at(&self) -> Timestamp {
        Timestamp::from_millis(self.created_at_ms)
    }
}

pub fn key_of(name: &str) -> String {
    format!("{TOPIC_PREFIX}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_an_earlier_version_is_not_growing() {
        let stored: StoredTopic = serde_json::from_str(r#"{"number":3,"partitions":4,"created_at_ms":7}"#).unwrap();
        assert_eq!((stored.growing, stored.growths.len()), (None, 0));
        let written = serde_json::to_string(&stored).unwrap();
        assert!(!written.contains("growing"), "an entry without a growth has the earlier encoding: {written}");
    }
}
