//! Metrics of the role `receive`: their names, and cached handles.
//!
//! The label `code` is bounded by the list of problem codes. A value that a caller invents never becomes a label.

use metrics::{Histogram, histogram};

/// Seconds from the complete request body to the answer.
pub const PUBLISH_SECONDS: &str = "whimbrel_publish_seconds";
/// The number of messages in each batch.
pub const BATCH_MESSAGES: &str = "whimbrel_batch_messages";
/// Error answers, by problem code.
pub const REFUSALS: &str = "whimbrel_refusals_total";

/// The names above with their descriptions, for the reference and the server.
pub const NAMES: &[(&str, &str)] = &[
    (PUBLISH_SECONDS, "Seconds from the complete request body to the answer"),
    (BATCH_MESSAGES, "Messages in each batch"),
    (REFUSALS, "Error answers, by problem code"),
];

/// The metric handles that do not belong to a topic.
pub(crate) struct PublishMetrics {
    pub(crate) publish_seconds: Histogram,
    pub(crate) batch_messages: Histogram,
}

impl PublishMetrics {
    pub(crate) fn new() -> Self {
        Self { publish_seconds: histogram!(PUBLISH_SECONDS), batch_messages: histogram!(BATCH_MESSAGES) }
    }
}
