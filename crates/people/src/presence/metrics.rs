//! Metrics of presence: names and handles.

use metrics::{Counter, Gauge, counter, gauge};
use whimbrel_model::people::GatewayId;

pub const PACKETS_SENT: &str = "whimbrel_presence_packets_sent_total";
pub const UPDATES_SENT: &str = "whimbrel_presence_updates_sent_total";
pub const SEND_FAILURES: &str = "whimbrel_presence_send_failures_total";
pub const PACKETS_DROPPED: &str = "whimbrel_presence_packets_dropped_total";
pub const PACKETS_RECEIVED: &str = "whimbrel_presence_packets_received_total";
pub const PACKETS_REPEATED: &str = "whimbrel_presence_packets_repeated_total";
pub const PACKETS_REFUSED: &str = "whimbrel_presence_packets_refused_total";
pub const GAPS: &str = "whimbrel_presence_gaps_total";
pub const REQUESTS: &str = "whimbrel_presence_requests_total";
pub const SNAPSHOTS: &str = "whimbrel_presence_snapshots_total";
pub const REQUEST_FAILURES: &str = "whimbrel_presence_request_failures_total";
pub const FAILED_GATEWAYS: &str = "whimbrel_presence_failed_gateways_total";
pub const REMOVED_USERS: &str = "whimbrel_presence_removed_users_total";
pub const STORE_FAILURES: &str = "whimbrel_presence_store_failures_total";
pub const EVENTS: &str = "whimbrel_presence_events_total";
pub const EVENTS_LOST: &str = "whimbrel_presence_events_lost_total";
pub const COMPLETE_SHARDS: &str = "whimbrel_presence_complete_shards";
pub const STALE_SHARDS: &str = "whimbrel_presence_stale_shards";
pub const READS_REFUSED: &str = "whimbrel_presence_reads_refused_total";

/// Every metric above with its description, for the reference and the server.
pub const NAMES: &[(&str, &str)] = &[
    (PACKETS_SENT, "Presence packets that this process's gateway sent"),
    (UPDATES_SENT, "Arrivals and departures in those packets"),
    (SEND_FAILURES, "Presence packets that could not be sent to other nodes; writers request them again"),
    (PACKETS_DROPPED, "Presence packets dropped because a writer's queue was full; writers request them again"),
    (PACKETS_RECEIVED, "Presence packets that writers received, on both paths"),
    (PACKETS_REPEATED, "Duplicate presence packets"),
    (PACKETS_REFUSED, "Rejected presence packets of failed gateways"),
    (GAPS, "Gaps in the packets of a gateway for which a writer sent a query"),
    (REQUESTS, "Queries of writers to gateways, retries included"),
    (SNAPSHOTS, "Snapshots that writers received from gateways"),
    (REQUEST_FAILURES, "Queries to gateways without an answer after all attempts"),
    (FAILED_GATEWAYS, "Gateways that failed, so that their sessions are removed; counted for each shard"),
    (REMOVED_USERS, "Users of failed gateways that were removed"),
    (STORE_FAILURES, "Failed calls of writers to the session store"),
    (EVENTS, "Events written to _presence"),
    (EVENTS_LOST, "Events for _presence that were given up because the log failed for too long"),
    (COMPLETE_SHARDS, "Presence shards of this process with a snapshot of every live gateway"),
    (STALE_SHARDS, "Presence shards of this process that are stale because of the gateway on that node"),
    (READS_REFUSED, "Rejected presence queries: stale or unavailable"),
];

/// Labelled by the node only; the log has the incarnation.
pub(super) fn stale_gauge(gateway: GatewayId) -> Gauge {
    gauge!(STALE_SHARDS, "node" => gateway.node.to_string())
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
            news_sent: counter!(UPDATES_SENT),
            posts_lost: counter!(SEND_FAILURES),
            packets_lost: counter!(PACKETS_DROPPED),
            packets_taken: counter!(PACKETS_RECEIVED),
            packets_repeated: counter!(PACKETS_REPEATED),
            packets_refused: counter!(PACKETS_REFUSED),
            gaps: counter!(GAPS),
            asks: counter!(REQUESTS),
            snapshots: counter!(SNAPSHOTS),
            unanswered: counter!(REQUEST_FAILURES),
            voided: counter!(FAILED_GATEWAYS),
            swept: counter!(REMOVED_USERS),
            store_failures: counter!(STORE_FAILURES),
            events: counter!(EVENTS),
            events_lost: counter!(EVENTS_LOST),
            shards_drawn: gauge!(COMPLETE_SHARDS),
            reads_refused: counter!(READS_REFUSED),
        }
    }
}
