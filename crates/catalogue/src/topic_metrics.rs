//! Metrics of topics: their names, and handles that a topic looks up once instead of at every message.
//!
//! The label `topic` is bounded by the topics in the catalogue.

use metrics::{Counter, counter};

pub const PUBLISHED_MESSAGES: &str = "whimbrel_published_messages_total";
pub const HELD_MESSAGES: &str = "whimbrel_held_messages_total";
pub const PUBLISHED_BYTES: &str = "whimbrel_published_bytes_total";
pub const READ_MESSAGES: &str = "whimbrel_read_messages_total";

pub const NAMES: &[(&str, &str)] = &[
    (PUBLISHED_MESSAGES, "Messages accepted, by topic"),
    (HELD_MESSAGES, "Messages accepted as holds, by topic"),
    (PUBLISHED_BYTES, "Payload bytes accepted, by topic"),
    (READ_MESSAGES, "Messages returned to readers, by topic"),
];

/// The handles of one topic. Install the metrics recorder before creating them, or they count nothing.
pub struct TopicMetrics {
    pub published_messages: Counter,
    pub held_messages: Counter,
    pub published_bytes: Counter,
    pub read_messages: Counter,
}

impl TopicMetrics {
    pub(crate) fn of(topic: &str) -> Self {
        let topic = topic.to_owned();
        Self {
            published_messages: counter!(PUBLISHED_MESSAGES, "topic" => topic.clone()),
            held_messages: counter!(HELD_MESSAGES, "topic" => topic.clone()),
            published_bytes: counter!(PUBLISHED_BYTES, "topic" => topic.clone()),
            read_messages: counter!(READ_MESSAGES, "topic" => topic),
        }
    }
}
