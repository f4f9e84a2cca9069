//! Metrics of the carrier.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::partition::PushCounts;

pub const RECEIVED: &str = "whimbrel_push_received_total";
pub const STORED: &str = "whimbrel_push_stored_total";
pub const DELIVERED: &str = "whimbrel_push_delivered_total";
pub const LATENCY: &str = "whimbrel_push_latency_seconds";
pub const ACKNOWLEDGED: &str = "whimbrel_push_acknowledged_total";
pub const REPEATS: &str = "whimbrel_push_repeats_total";
pub const RETRIES: &str = "whimbrel_push_retries_total";
pub const ACK_TIMEOUTS: &str = "whimbrel_push_ack_timeouts_total";
pub const DROPPED: &str = "whimbrel_push_dropped_total";
pub const EXPIRED: &str = "whimbrel_push_expired_total";
pub const LOST: &str = "whimbrel_push_truncated_total";
pub const NOTICES: &str = "whimbrel_push_notices_total";
pub const DEAD_LETTERS: &str = "whimbrel_push_dead_letters_total";
pub const SESSIONS: &str = "whimbrel_push_sessions";
pub const USERS: &str = "whimbrel_push_users_in_memory";
pub const PARTITIONS: &str = "whimbrel_push_partitions_owned";

pub const NAMES: &[(&str, &str)] = &[
    (RECEIVED, "Pushes processed, counted once per user"),
    (STORED, "Messages put into inboxes"),
    (DELIVERED, "Messages handed to sessions, stored or not"),
    (LATENCY, "Seconds from a push's acceptance to its delivery to a session's gateway"),
    (ACKNOWLEDGED, "Stored messages that a session acknowledged"),
    (REPEATS, "Pushes dropped because their id is a repeat"),
    (RETRIES, "Retries of unacknowledged messages, counted once per seat and attempt"),
    (ACK_TIMEOUTS, "Sessions closed because the device did not acknowledge after all retries"),
    (DROPPED, "Messages dropped: not stored, and no session connected"),
    (EXPIRED, "Messages removed because their TTL expired"),
    (LOST, "Messages removed by a bound or a collapse key"),
    (NOTICES, "Notices written"),
    (
        DEAD_LETTERS,
        "Pushes that became dead letters: malformed, or expired without an acknowledgement after all retries",
    ),
    (SESSIONS, "Sessions of the partitions owned here"),
    (USERS, "Users whose inboxes are in memory"),
    (PARTITIONS, "Push partitions that this node owns"),
];

pub(super) struct CarrierMetrics {
    taken: Counter,
    stored: Counter,
    delivered_stored: Counter,
    delivered_ephemeral: Counter,
    pub latency: Histogram,
    acknowledged: Counter,
    repeats: Counter,
    retries: Counter,
    no_acks: Counter,
    dropped: Counter,
    expired: Counter,
    lost: Counter,
    notices: Counter,
    dead: Counter,
    sessions: Gauge,
    users: Gauge,
    partitions: Gauge,
    /// Sessions and users of each partition owned here.
    present: Mutex<HashMap<u32, (usize, usize)>>,
}

impl CarrierMetrics {
    pub fn new() -> Self {
        Self {
            taken: counter!(RECEIVED),
            stored: counter!(STORED),
            delivered_stored: counter!(DELIVERED, "kind" => "stored"),
            delivered_ephemeral: counter!(DELIVERED, "kind" => "ephemeral"),
            latency: histogram!(LATENCY),
            acknowledged: counter!(ACKNOWLEDGED),
            repeats: counter!(REPEATS),
            retries: counter!(RETRIES),
            no_acks: counter!(ACK_TIMEOUTS),
            dropped: counter!(DROPPED),
            expired: counter!(EXPIRED),
            lost: counter!(LOST),
            notices: counter!(NOTICES),
            dead: counter!(DEAD_LETTERS),
            sessions: gauge!(SESSIONS),
            users: gauge!(USERS),
            partitions: gauge!(PARTITIONS),
            present: Mutex::default(),
        }
    }

    pub fn counted(&self, counts: PushCounts) {
        for (counter, more) in [
            (&self.taken, counts.taken),
            (&self.stored, counts.stored),
            (&self.delivered_stored, counts.delivered_stored),
            (&self.delivered_ephemeral, counts.delivered_ephemeral),
            (&self.acknowledged, counts.acknowledged),
            (&self.repeats, counts.repeats),
            (&self.retries, counts.retries),
            (&self.no_acks, counts.no_acks),
            (&self.dropped, counts.dropped),
            (&self.expired, counts.expired),
            (&self.lost, counts.lost),
            (&self.notices, counts.notices),
            (&self.dead, counts.dead),
        ] {
            if more > 0 {
                counter.increment(more);
            }
        }
    }

    pub fn present(&self, partition: u32, metrics: Option<(usize, usize)>) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        match metrics {
            Some(metrics) => present.insert(partition, metrics),
            None => present.remove(&partition),
        };
        let (sessions, users) = present.values().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
        self.sessions.set(sessions as f64);
        self.users.set(users as f64);
        self.partitions.set(present.len() as f64);
    }
}
