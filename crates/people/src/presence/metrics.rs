//! Metrics of presence: names and handles.

use metrics::{Counter, Gauge, counter, gauge};
use whimbrel_model::people::GatewayId;

pub const PACKETS_SENT: &str = "whimbrel_presence_packets_sent_total";
pub const NEWS_SENT: &str = "whimbrel_presence_news_sent_total";
pub const POSTS_LOST: &str = "whimbrel_presence_posts_lost_total";
pub const PACKETS_LOST: &str = "whimbrel_presence_packets_lost_total";
pub const PACKETS_TAKEN: &str = "whimbrel_presence_packets_taken_total";
pub const PACKETS_REPEATED: &str = "whimbrel_presence_packets_repeated_total";
pub const PACKETS_REFUSED: &str = "whimbrel_presence_packets_refused_total";
pub const GAPS: &str = "whimbrel_presence_gaps_total";
pub const ASKS: &str = "whimbrel_presence_asks_total";
pub const SNAPSHOTS: &str = "whimbrel_presence_pictures_total";
pub const UNANSWERED: &str = "whimbrel_presence_unanswered_total";
pub const VOIDED: &str = "whimbrel_presence_voided_gateways_total";
pub const SWEPT: &str = "whimbrel_presence_swept_users_total";
pub const STORE_FAILURES: &str = "whimbrel_presence_store_failures_total";
pub const EVENTS: &str = "whimbrel_presence_events_total";
pub const EVENTS_LOST: &str = "whimbrel_presence_events_lost_total";
pub const SHARDS_DRAWN: &str = "whimbrel_presence_shards_drawn";
pub const STALE_GATEWAYS: &str = "whimbrel_presence_unheard_shards";
pub const READS_REFUSED: &str = "whimbrel_presence_reads_refused_total";

/// Every metric above with its description, for the reference and the server.
pub const NAMES: &[(&str, &str)] = &[
    (PACKETS_SENT, "Presence packets that this process's gateway sent"),
    (NEWS_SENT, "Arrivals and departures in those packets"),
    (POSTS_LOST, "Presence packets to other nodes that were lost; writers request them again"),
    (PACKETS_LOST, "Presence packets dropped because a writer's queue was full; writers request them again"),
    (PACKETS_TAKEN, "Presence packets that writers received, on both paths"),
    (PACKETS_REPEATED, "Duplicate presence packets"),
    (PACKETS_REFUSED, "Presence packets of void gateways"),
    (GAPS, "Gaps in the packets of a gateway for which a writer sent a query"),
    (ASKS, "Queries of writers to gateways, retries included"),
    (SNAPSHOTS, "Snapshots that writers received from gateways"),
    (UNANSWERED, "Queries to gateways without an answer after all attempts"),
    (VOIDED, "Gateways that became void, counted for each shard"),
    (SWEPT, "Users of void gateways that were removed"),
    (STORE_FAILURES, "Failed calls of writers to the session store"),
    (EVENTS, "Events written to _presence"),
    (EVENTS_LOST, "Events for _presence that were given up because the log failed for too long"),
    (SHARDS_DRAWN, "Presence shards of this process with a snapshot of every live gateway"),
    (STALE_GATEWAYS, "Presence shards of this process that are stale because of the gateway on that node"),
    (READS_REFUSED, "Rejected presence queries: stale or unavailable"),
];

/// Labelled by the node only; the log has the incarnation.
pub(super) fn stale_gauge(gateway: GatewayId) -> Gauge {
    gauge!(STALE_GATEWAYS, "node" => gateway.node.to_string())
}

pub struct PresenceMetrics {
    pub(super) packets_sent: Counter,
    pub(super) news_sent: Counter,
    pub(super) posts_lost: Counter,
    pub(super) packets_lost: Counter,
    pub(super) packets_taken: Counter,
    pub(super) packets_repeated: Counter,
    pub(super) packets_refused: Counter,
    pub(super) gaps: Counter,
    pub(super) asks: Counter,
    pub(super) snapshots: Counter,
    pub(super) unanswered: Counter,
    pub(super) voided: Counter,
    pub(super) swept: Counter,
    pub(super) store_failures: Counter,
    pub(super) events: Counter,
    pub(super) events_lost: Counter,
    pub(super) shards_drawn: Gauge,
    pub(super) reads_refused: Counter,
}

impl PresenceMetrics {
    /// A metrics recorder must be installed before, otherwise nothing is counted.
    pub(super) fn new() -> Self {
        Self {
            packets_sent: counter!(PACKETS_SENT),
            news_sent: counter!(NEWS_SENT),
            posts_lost: counter!(POSTS_LOST),
            packets_lost: counter!(PACKETS_LOST),
            packets_taken: counter!(PACKETS_TAKEN),
            packets_repeated: counter!(PACKETS_REPEATED),
            packets_refused: counter!(PACKETS_REFUSED),
            gaps: counter!(GAPS),
            asks: counter!(ASKS),
            snapshots: counter!(SNAPSHOTS),
            unanswered: counter!(UNANSWERED),
            voided: counter!(VOIDED),
            swept: counter!(SWEPT),
            store_failures: counter!(STORE_FAILURES),
            events: counter!(EVENTS),
            events_lost: counter!(EVENTS_LOST),
            shards_drawn: gauge!(SHARDS_DRAWN),
            reads_refused: counter!(READS_REFUSED),
        }
    }
}
