//! The names of the metrics that `receive` writes, and handles that are looked up once instead of at every message.
//!
//! Labels are bounded: topics by the catalogue, codes by the list of problems. Nothing that a caller invents becomes a label.

use metrics::{Counter, Histogram, counter, histogram};

/// Messages accepted, by topic.
pub const PUBLISHED_MESSAGES: &str = "whimbrel_published_messages_total";
/// Messages accepted to be held, by topic.
pub const HELD_MESSAGES: &str = "whimbrel_held_messages_total";
/// Payload bytes accepted, by topic.
pub const PUBLISHED_BYTES: &str = "whimbrel_published_bytes_total";
/// Messages handed to readers, by topic.
pub const READ_MESSAGES: &str = "whimbrel_read_messages_total";
/// From the whole body received until its answer, in seconds.
pub const PUBLISH_SECONDS: &str = "whimbrel_publish_seconds";
/// Messages of each batch.
pub const BATCH_MESSAGES: &str = "whimbrel_batch_messages";
/// Refusals, by the problem's code.
pub const REFUSALS: &str = "whimbrel_refusals_total";

/// Every name above with what it means: the reference lists them, a server describes them.
pub const NAMES: &[(&str, &str)] = &[
    (PUBLISHED_MESSAGES, "Messages accepted, by topic"),
    (HELD_MESSAGES, "Messages accepted to be held, by topic"),
    (PUBLISHED_BYTES, "Payload bytes accepted, by topic"),
    (READ_MESSAGES, "Messages handed to readers, by topic"),
    (PUBLISH_SECONDS, "Seconds from the whole body received until its answer"),
    (BATCH_MESSAGES, "Messages of each batch"),
    (REFUSALS, "Refusals, by the problem's code"),
];

/// The handles of one topic. A recorder must be installed before they are made, or they count nothing.
pub(crate) struct TopicFigures {
    pub(crate) published_messages: Counter,
    pub(crate) held_messages: Counter,
    pub(crate) published_bytes: Counter,
    pub(crate) read_messages: Counter,
}

impl TopicFigures {
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

/// The handles of the door itself.
pub(crate) struct DoorFigures {
    pub(crate) publish_seconds: Histogram,
    pub(crate) batch_messages: Histogram,
}

impl DoorFigures {
    pub(crate) fn new() -> Self {
        Self { publish_seconds: histogram!(PUBLISH_SECONDS), batch_messages: histogram!(BATCH_MESSAGES) }
    }
}
