//! Metrics of the role `receive`: their names, and handles that are looked up once.
//!
//! The label `code` is bounded by the list of problem codes. A value that a caller invents never becomes a label.

use metrics::{Histogram, histogram};

/// From the whole body received until its answer, in seconds.
pub const PUBLISH_SECONDS: &str = "whimbrel_publish_seconds";
/// Messages of each batch.
pub const BATCH_MESSAGES: &str = "whimbrel_batch_messages";
/// Refusals, by the problem's code.
pub const REFUSALS: &str = "whimbrel_refusals_total";

/// The names above with their meaning, for the reference and the server's descriptions.
pub const NAMES: &[(&str, &str)] = &[
    (PUBLISH_SECONDS, "Seconds from the whole body received until its answer"),
    (BATCH_MESSAGES, "Messages of each batch"),
    (REFUSALS, "Refusals, by the problem's code"),
];

/// The handles that do not belong to a topic.
pub(crate) struct PublishMetrics {
    pub(crate) publish_seconds: Histogram,
    pub(crate) batch_messages: Histogram,
}

impl PublishMetrics {
    pub(crate) fn new() -> Self {
        Self { publish_seconds: histogram!(PUBLISH_SECONDS), batch_messages: histogram!(BATCH_MESSAGES) }
    }
}
