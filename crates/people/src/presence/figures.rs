//! The names of the metrics that presence writes, and its handles.

use metrics::{Counter, Gauge, counter, gauge};
use whimbrel_model::people::GatewayId;

/// Packets that this process's gateway sent, and the news therein.
pub const PACKETS_SENT: &str = "whimbrel_presence_packets_sent_total";
pub const NEWS_SENT: &str = "whimbrel_presence_news_sent_total";
/// Posts to other nodes that were lost: no room, or no answer.
pub const POSTS_LOST: &str = "whimbrel_presence_posts_lost_total";
/// Packets that a writer's shard had no room for.
pub const PACKETS_LOST: &str = "whimbrel_presence_packets_lost_total";
/// Packets that a writer got, that it had before, and that were of void incarnations.
pub const PACKETS_TAKEN: &str = "whimbrel_presence_packets_taken_total";
pub const PACKETS_REPEATED: &str = "whimbrel_presence_packets_repeated_total";
pub const PACKETS_REFUSED: &str = "whimbrel_presence_packets_refused_total";
/// Gaps that a writer asked about, its questions, the whole pictures that it took, and questions that nobody answered.
pub const GAPS: &str = "whimbrel_presence_gaps_total";
pub const ASKS: &str = "whimbrel_presence_asks_total";
pub const PICTURES: &str = "whimbrel_presence_pictures_total";
pub const UNANSWERED: &str = "whimbrel_presence_unanswered_total";
/// Gateways that became void, and their sessions that were cleared away.
pub const VOIDED: &str = "whimbrel_presence_voided_gateways_total";
pub const SWEPT: &str = "whimbrel_presence_swept_users_total";
/// Times that a store failed a writer.
pub const STORE_FAILURES: &str = "whimbrel_presence_store_failures_total";
/// Events written to `_presence`, and those that were given up.
pub const EVENTS: &str = "whimbrel_presence_events_total";
pub const EVENTS_LOST: &str = "whimbrel_presence_events_lost_total";
/// Shards of this process whose picture is drawn.
pub const SHARDS_DRAWN: &str = "whimbrel_presence_shards_drawn";
/// Shards of this process that do not hear a gateway which has its lease, by its node's number.
pub const UNHEARD: &str = "whimbrel_presence_unheard_shards";
/// Questions to the reader that were refused: not fresh, or not available.
pub const READS_REFUSED: &str = "whimbrel_presence_reads_refused_total";

/// Every name above with what it means: the reference lists them, a server describes them.
pub const NAMES: &[(&str, &str)] = &[
    (PACKETS_SENT, "Packets of presence that this process's gateway sent"),
    (NEWS_SENT, "Comings and goings in those packets"),
    (POSTS_LOST, "Packets of presence for other nodes that were lost and will be asked for"),
    (PACKETS_LOST, "Packets of presence that a writer had no room for and will ask for"),
    (PACKETS_TAKEN, "Packets of presence that writers got, on both paths"),
    (PACKETS_REPEATED, "Packets of presence that writers had before"),
    (PACKETS_REFUSED, "Packets of presence of gateways that are void"),
    (GAPS, "Gaps in the packets of a gateway that a writer asked about"),
    (ASKS, "Questions of writers to gateways, repeats included"),
    (PICTURES, "Whole pictures that writers took from gateways"),
    (UNANSWERED, "Questions to gateways that nobody answered after all tries"),
    (VOIDED, "Gateways that became void, for each shard"),
    (SWEPT, "Users of void gateways that were cleared away"),
    (STORE_FAILURES, "Times that the store of sessions failed a writer"),
    (EVENTS, "Events written to _presence"),
    (EVENTS_LOST, "Events for _presence that were given up: the log refused for too long"),
    (SHARDS_DRAWN, "Shards of presence that this process has the picture of"),
    (
        UNHEARD,
        "Shards of presence of this process that are not fresh because they do not hear the gateway of that node",
    ),
    (READS_REFUSED, "Questions about presence that were refused: not fresh or not available"),
];

/// Labelled by the node, of which there are few; its incarnation is in the log.
pub(super) fn unheard_gauge(gateway: GatewayId) -> Gauge {
    gauge!(UNHEARD, "node" => gateway.node.to_string())
}

pub struct Figures {
    pub(super) packets_sent: Counter,
    pub(super) news_sent: Counter,
    pub(super) posts_lost: Counter,
    pub(super) packets_lost: Counter,
    pub(super) packets_taken: Counter,
    pub(super) packets_repeated: Counter,
    pub(super) packets_refused: Counter,
    pub(super) gaps: Counter,
    pub(super) asks: Counter,
    pub(super) pictures: Counter,
    pub(super) unanswered: Counter,
    pub(super) voided: Counter,
    pub(super) swept: Counter,
    pub(super) store_failures: Counter,
    pub(super) events: Counter,
    pub(super) events_lost: Counter,
    pub(super) shards_drawn: Gauge,
    pub(super) reads_refused: Counter,
}

impl Figures {
    /// A recorder must be installed before, or they count nothing.
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
            pictures: counter!(PICTURES),
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
