//! The freshness of the shards of presence, as one process sees it, and its reports about shards that other processes write.
//!
//! A stale shard of another process only causes a report: this process serves its own requests as before.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_model::Event;
use whimbrel_model::ports::PortFuture;

/// Checks the shards of presence of this data centre.
pub trait PresenceShards: Send + Sync {
    /// The state of every shard. The check of each shard has a timeout.
    fn look(&self) -> PortFuture<'_, Vec<ShardFreshness>>;
}

/// The state of one shard when it was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardFreshness {
    pub shard: u32,
    /// The internal address of the process that writes it; `None`: this process.
    pub writer: Option<String>,
    pub state: PresenceShardState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresenceShardState {
    Fresh,
    /// Its writer has not confirmed the shard for too long, or has never confirmed it.
    Stale {
        ago_ms: Option<u64>,
    },
    /// Its store, or the process that writes it, does not answer.
    Unreadable(String),
}

impl ShardFreshness {
    pub fn is_fresh(&self) -> bool {
        self.state == PresenceShardState::Fresh
    }

    pub fn is_remote(&self) -> bool {
        self.writer.is_some()
    }
}

/// Tracks which remote shards were reported as stale, so that one incident causes one event.
#[derive(Debug, Default)]
pub(crate) struct StaleReports {
    /// Shards that were stale at the last check. A shard is reported when it is stale twice in a row: after a start it may have no
    /// snapshot yet.
    before: BTreeSet<u32>,
    reported: BTreeSet<u32>,
}

impl StaleReports {
    /// Processes the result of a check, and returns the event to emit, if any.
    pub fn update(&mut self, found: &[ShardFreshness]) -> Option<Event> {
        let stale: BTreeMap<u32, &ShardFreshness> = found
            .iter()
            .filter(|shard| shard.is_remote() && !shard.is_fresh())
            .map(|shard| (shard.shard, shard))
            .collect();
        let now: BTreeSet<u32> = stale.keys().copied().collect();
        let lasting: BTreeSet<u32> = self.before.intersection(&now).copied().collect();
        self.before.clone_from(&now);
        if now.is_empty() && !self.reported.is_empty() {
            let shards = listed(&std::mem::take(&mut self.reported));
            let detail = format!("shards {shards} of presence, which other processes write, are fresh again");
            return Some(Event::new("presence_shards_fresh", detail).with("shards", shards));
        }
        if lasting.is_subset(&self.reported) {
            return None;
        }
        self.reported.extend(&lasting);
        let writers: BTreeSet<&str> = lasting.iter().filter_map(|shard| stale[shard].writer.as_deref()).collect();
        let writers = writers.into_iter().collect::<Vec<_>>().join(", ");
        let shards = listed(&lasting);
        let detail = format!(
            "shards {shards} of presence are stale or cannot be read; their writers are {writers}. Start those processes, or check the \
             network to them. This process continues; requests about users of these shards get 503"
        );
        Some(Event::warning("presence_shards_stale", detail).with("shards", shards).with("writers", writers))
    }
}

pub(crate) fn listed(shards: &BTreeSet<u32>) -> String {
    shards.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(shard: u32, writer: Option<&str>, is_fresh: bool) -> ShardFreshness {
        let state =
            if is_fresh { PresenceShardState::Fresh } else { PresenceShardState::Stale { ago_ms: Some(9_000) } };
        ShardFreshness { shard, writer: writer.map(str::to_owned), state }
    }

    #[test]
    fn a_remote_shard_is_reported_once_when_it_stays_stale_and_once_when_all_are_fresh() {
        let mut reports = StaleReports::default();
        let stale = [shard(0, None, true), shard(1, Some("b:7601"), false)];
        assert_eq!(reports.update(&stale), None, "it may have no snapshot yet");
        let event = reports.update(&stale).unwrap();
        assert_eq!(event.kind, "presence_shards_stale");
        assert!(event.detail.contains("shards 1 ") && event.detail.contains("b:7601"), "{}", event.detail);
        assert_eq!(reports.update(&stale), None);
        let fresh = [shard(0, None, true), shard(1, Some("b:7601"), true)];
        assert_eq!(reports.update(&fresh).unwrap().kind, "presence_shards_fresh");
        assert_eq!(reports.update(&fresh), None);
    }

    #[test]
    fn a_further_shard_is_reported_and_a_shard_of_this_process_is_not() {
        let mut reports = StaleReports::default();
        let one = [shard(0, None, false), shard(1, Some("b:1"), false), shard(2, Some("c:1"), true)];
        let two = [shard(0, None, false), shard(1, Some("b:1"), false), shard(2, Some("c:1"), false)];
        reports.update(&one);
        assert!(reports.update(&one).is_some());
        assert_eq!(reports.update(&two), None);
        let event = reports.update(&two).unwrap();
        assert_eq!(event.fields[0], ("shards", "1, 2".to_owned()));
        assert_eq!(event.fields[1], ("writers", "b:1, c:1".to_owned()));
    }
}
