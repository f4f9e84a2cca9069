//! The figures of the holds: what comes due, what fired and how late, what is in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use whimbrel_model::{Ending, HoldRecord, Timestamp};

use super::shard::{Decision, ShardFigures, Written};
use whimbrel_catalogue::topic_stats::TopicStats;

/// Holds that are pending.
pub const PENDING: &str = "whimbrel_holds_pending";
/// Holds whose message is in its topic.
pub const FIRED: &str = "whimbrel_holds_fired_total";
/// Holds that were taken back.
pub const WITHDRAWN: &str = "whimbrel_holds_withdrawn_total";
/// Holds that were moved to another time.
pub const MOVED: &str = "whimbrel_holds_moved_total";
/// Holds that could never be written.
pub const DEAD: &str = "whimbrel_holds_dead_total";
/// From a hold's due time until its message is durable in its topic, in seconds.
pub const LATENESS: &str = "whimbrel_holds_lateness_seconds";
/// Holds that are in memory because they come due soon.
pub const WINDOW_HOLDS: &str = "whimbrel_holds_window";
/// Their bytes.
pub const WINDOW_BYTES: &str = "whimbrel_holds_window_bytes";
/// Bytes of changes that are in the log and not in the store yet.
pub const UNSAVED_BYTES: &str = "whimbrel_holds_unsaved_bytes";
/// Commands that wait for an answer.
pub const COMMANDS: &str = "whimbrel_holds_commands_waiting";
/// Commits of the owners.
pub const COMMITS: &str = "whimbrel_holds_commits_total";
/// Decisions in each commit.
pub const COMMIT_HOLDS: &str = "whimbrel_holds_per_commit";
/// How long a commit took, in seconds.
pub const COMMIT_SECONDS: &str = "whimbrel_holds_commit_seconds";
/// Changes in each checkpoint.
pub const CHECKPOINT_CHANGES: &str = "whimbrel_holds_per_checkpoint";
/// Shards that are owned here.
pub const SHARDS_OWNED: &str = "whimbrel_holds_shards_owned";

/// Every name above with what it means.
pub const NAMES: &[(&str, &str)] = &[
    (PENDING, "Holds that are pending in the shards owned here"),
    (FIRED, "Holds whose message was written to its topic"),
    (WITHDRAWN, "Holds that were withdrawn"),
    (MOVED, "Holds that were moved to another time"),
    (DEAD, "Holds that could never be written"),
    (LATENESS, "Seconds from a hold's due time until its message is durable in its topic"),
    (WINDOW_HOLDS, "Holds in memory because they come due soon"),
    (WINDOW_BYTES, "Bytes of the holds in memory"),
    (UNSAVED_BYTES, "Bytes of changes that the log has and the store of holds has not yet"),
    (COMMANDS, "Commands and questions about holds that wait for an answer"),
    (COMMITS, "Commits by the owners of holds"),
    (COMMIT_HOLDS, "Decisions in each commit"),
    (COMMIT_SECONDS, "Seconds that a commit of decisions took"),
    (CHECKPOINT_CHANGES, "Changes in each checkpoint of the store of holds"),
    (SHARDS_OWNED, "Shards of the holds that are owned here"),
];

pub(crate) struct HoldFigures {
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
    /// By topic and minute.
    stats: Arc<TopicStats>,
    shards: Mutex<HashMap<u32, ShardFigures>>,
}

impl HoldFigures {
    pub(crate) fn new(stats: Arc<TopicStats>) -> Self {
        Self {
            pending: gauge!(PENDING),
            fired: counter!(FIRED),
            withdrawn: counter!(WITHDRAWN),
            moved: counter!(MOVED),
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
        written: &[Option<Written>],
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
                    Ending::Withdrawn => self.withdrawn.increment(1),
                    Ending::Dead { .. } => self.dead.increment(1),
                    Ending::Fired { .. } => {}
                },
                Decision::Write(_) => {}
            }
        }
    }

    pub(crate) fn checkpoint(&self, changes: usize) {
        self.checkpoint_changes.record(changes as f64);
    }

    pub(crate) fn of_shard(&self, shard: u32, figures: ShardFigures) {
        if let Ok(mut shards) = self.shards.try_lock() {
            shards.insert(shard, figures);
        }
    }

    pub(crate) fn forget_shard(&self, shard: u32) {
        if let Ok(mut shards) = self.shards.lock() {
            shards.remove(&shard);
        }
    }

    /// Sums up the shards: called from time to time.
    pub(crate) fn sum_up(&self) {
        let Ok(shards) = self.shards.lock() else { return };
        let sum = |of: fn(&ShardFigures) -> usize| shards.values().map(of).sum::<usize>() as f64;
        self.window_holds.set(sum(|figures| figures.window_holds));
        self.window_bytes.set(sum(|figures| figures.window_bytes));
        self.unsaved_bytes.set(sum(|figures| figures.unsaved_bytes));
        self.commands.set(sum(|figures| figures.commands));
        self.shards_owned.set(shards.len() as f64);
    }
}
