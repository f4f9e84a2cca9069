//! The metrics of holds: pending holds, fired holds with their lateness, and memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use whimbrel_model::{HoldEndKind, HoldRecord, Timestamp};

use super::shard::{Decision, HoldShardMetrics, WrittenDecision};
use whimbrel_catalogue::topic_stats::TopicStats;

pub const PENDING: &str = "whimbrel_holds_pending";
pub const FIRED: &str = "whimbrel_holds_fired_total";
pub const WITHDRAWN: &str = "whimbrel_holds_withdrawn_total";
pub const EXTENDED: &str = "whimbrel_holds_extended_total";
pub const DEAD: &str = "whimbrel_holds_dead_total";
pub const LATENESS: &str = "whimbrel_holds_lateness_seconds";
pub const WINDOW_HOLDS: &str = "whimbrel_holds_window";
pub const WINDOW_BYTES: &str = "whimbrel_holds_window_bytes";
pub const UNSAVED_BYTES: &str = "whimbrel_holds_unsaved_bytes";
pub const COMMANDS: &str = "whimbrel_holds_commands_waiting";
pub const COMMITS: &str = "whimbrel_holds_commits_total";
pub const COMMIT_HOLDS: &str = "whimbrel_holds_per_commit";
pub const COMMIT_SECONDS: &str = "whimbrel_holds_commit_seconds";
pub const CHECKPOINT_CHANGES: &str = "whimbrel_holds_per_checkpoint";
pub const SHARDS_OWNED: &str = "whimbrel_holds_shards_owned";

pub const NAMES: &[(&str, &str)] = &[
    (PENDING, "Holds that are pending in the shards owned here"),
    (FIRED, "Holds whose message was written to its topic"),
    (WITHDRAWN, "Holds that were withdrawn"),
    (EXTENDED, "Holds whose due time was changed"),
    (DEAD, "Holds that became dead because their message can never be appended"),
    (LATENESS, "Seconds from a hold's due time until its message is durable in its topic"),
    (WINDOW_HOLDS, "Holds in memory because they come due soon"),
    (WINDOW_BYTES, "Bytes of the holds in memory"),
    (UNSAVED_BYTES, "Bytes of changes in the log that the store of holds does not have yet"),
    (COMMANDS, "Requests about holds that wait for an answer"),
    (COMMITS, "Commits of decisions about holds"),
    (COMMIT_HOLDS, "Decisions in each commit"),
    (COMMIT_SECONDS, "Duration of a commit of decisions, in seconds"),
    (CHECKPOINT_CHANGES, "Changes in each checkpoint of the store of holds"),
    (SHARDS_OWNED, "Shards of the holds that are owned here"),
];

pub(crate) struct HoldMetrics {
    pub(crate) pending: Gauge,
    fired: Counter,
    withdrawn: Counter,
    moved: Counter,
    dead: Counter,
    lateness: Histogram,
    window_holds: Gauge,
    window_bytes: Gauge,
    unsaved_bytes: Gauge,
    commands: Gauge,
    commits: Counter,
    commit_holds: Histogram,
    commit_seconds: Histogram,
    checkpoint_changes: Histogram,
    shards_owned: Gauge,
    stats: Arc<TopicStats>,
    shards: Mutex<HashMap<u32, HoldShardMetrics>>,
}

impl HoldMetrics {
    pub(crate) fn new(stats: Arc<TopicStats>) -> Self {
        Self {
            pending: gauge!(PENDING),
            fired: counter!(FIRED),
            withdrawn: counter!(WITHDRAWN),
            moved: counter!(EXTENDED),
            dead: counter!(DEAD),
            lateness: histogram!(LATENESS),
            window_holds: gauge!(WINDOW_HOLDS),
            window_bytes: gauge!(WINDOW_BYTES),
            unsaved_bytes: gauge!(UNSAVED_BYTES),
            commands: gauge!(COMMANDS),
            commits: counter!(COMMITS),
            commit_holds: histogram!(COMMIT_HOLDS),
            commit_seconds: histogram!(COMMIT_SECONDS),
            checkpoint_changes: histogram!(CHECKPOINT_CHANGES),
            shards_owned: gauge!(SHARDS_OWNED),
            stats,
            shards: Mutex::default(),
        }
    }

    pub(crate) fn committed(
        &self,
        decisions: &[Decision],
        written: &[Option<WrittenDecision>],
        took: Duration,
        now: Timestamp,
    ) {
        self.commits.increment(1);
        self.commit_holds.record(decisions.len() as f64);
        self.commit_seconds.record(took);
        for (decision, _) in decisions.iter().zip(written).filter(|(_, written)| written.is_some()) {
            match decision {
                Decision::Fire(hold) => {
                    self.fired.increment(1);
                    let late_ms = now.as_millis().saturating_sub(hold.due.as_millis()).max(0);
                    self.lateness.record(late_ms as f64 / 1000.0);
                    self.stats.fired(hold.topic, (late_ms as u64).saturating_mul(1000));
                }
                Decision::Write(HoldRecord::Moved { .. }) => self.moved.increment(1),
                Decision::Write(HoldRecord::Ended { end, .. }) => match end.how {
                    HoldEndKind::Withdrawn => self.withdrawn.increment(1),
                    HoldEndKind::Dead { .. } => self.dead.increment(1),
                    HoldEndKind::Fired { .. } => {}
                },
                Decision::Write(_) => {}
            }
        }
    }

    pub(crate) fn checkpoint(&self, changes: usize) {
        self.checkpoint_changes.record(changes as f64);
    }

    pub(crate) fn of_shard(&self, shard: u32, metrics: HoldShardMetrics) {
        if let Ok(mut shards) = self.shards.try_lock() {
            shards.insert(shard, metrics);
        }
    }

    pub(crate) fn forget_shard(&self, shard: u32) {
        if let Ok(mut shards) = self.shards.lock() {
            shards.remove(&shard);
        }
    }

    /// Sums the shards up; the center calls it every 10 s.
    pub(crate) fn sum_up(&self) {
        let Ok(shards) = self.shards.lock() else { return };
        let sum = |of: fn(&HoldShardMetrics) -> usize| shards.values().map(of).sum::<usize>() as f64;
        self.window_holds.set(sum(|metrics| metrics.window_holds));
        self.window_bytes.set(sum(|metrics| metrics.window_bytes));
        self.unsaved_bytes.set(sum(|metrics| metrics.unsaved_bytes));
        self.commands.set(sum(|metrics| metrics.commands));
        self.shards_owned.set(shards.len() as f64);
    }
}
