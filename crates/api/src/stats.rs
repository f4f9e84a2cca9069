//! Statistics of a topic by minute.

use serde::{Deserialize, Serialize};

/// Statistics of a topic by minute. Minutes without activity are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TopicStatsDocument))]
pub struct TopicFigures {
    pub topic: String,
    pub from: String,
    pub to: String,
    pub minutes: Vec<MinuteFigures>,
    /// The number of nodes that did not answer. Their statistics are missing.
    pub silent_nodes: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Minute))]
pub struct MinuteFigures {
    /// The start of the minute.
    pub minute: String,
    /// Accepted messages, including held ones.
    pub published: u64,
    pub fired: u64,
    /// Deliveries of all subscriptions.
    pub delivered: u64,
    /// Failed callbacks.
    pub failed: u64,
    /// The time from the publish, or from the due time of a held message, to the delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_to_delivery: Option<DurationFigures>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<DurationFigures>,
    /// The lateness of holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<DurationFigures>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DurationHistogram))]
pub struct DurationFigures {
    pub average_ms: f64,
    /// Accurate to an eighth of the value.
    pub p99_ms: f64,
}
