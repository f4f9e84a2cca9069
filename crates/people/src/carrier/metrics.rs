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

/// A counter, and the count that it adds up.
type CountedPushes = (Counter, fn(&PushCounts) -> u64);

pub(super) struct CarrierMetrics {
    counters: [CountedPushes; 13],
    pub latency: Histogram,
    sessions: Gauge,
    users: Gauge,
    partitions: Gauge,
    /// Sessions and users of each partition owned here.
    present: Mutex<HashMap<u32, (usize, usize)>>,
}

impl CarrierMetrics {
    pub fn new() -> Self {
        Self {
            counters: [
                (counter!(RECEIVED), |counts| counts.taken),
                (counter!(STORED), |counts| counts.stored),
                (counter!(DELIVERED, "kind" => "stored"), |counts| counts.delivered_stored),
                (counter!(DELIVERED, "kind" => "ephemeral"), |counts| counts.delivered_ephemeral),
                (counter!(ACKNOWLEDGED), |counts| counts.acknowledged),
                (counter!(REPEATS), |counts| counts.repeats),
                (counter!(RETRIES), |counts| counts.retries),
                (counter!(ACK_TIMEOUTS), |counts| counts.no_acks),
                (counter!(DROPPED), |counts| counts.dropped),
                (counter!(EXPIRED), |counts| counts.expired),
                (counter!(LOST), |counts| counts.lost),
                (counter!(NOTICES), |counts| counts.notices),
                (counter!(DEAD_LETTERS), |counts| counts.dead),
            ],
            latency: histogram!(LATENCY),
            sessions: gauge!(SESSIONS),
            users: gauge!(USERS),
            partitions: gauge!(PARTITIONS),
            present: Mutex::default(),
        }
    }

    pub fn counted(&self, counts: PushCounts) {
        for (counter, more_of) in &self.counters {
            let more = more_of(&counts);
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
