//! Runs: seeks, replays and redrives. Each starts a new run, so that late work of an earlier run is ignored.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::subscription::{Replay, StoredSubscription, TopicStart, retry_topic};
use whimbrel_model::{Event, PartitionId, SubscriptionNumber, Timestamp};

use super::change::{TruncatedBy, conflict};
use super::error::SubscriptionError;
use super::registry::{CONFLICT_TRIES, Subscription, SubscriptionRegistry};
use super::starts::{StartPosition, Truncation, start_at};
use crate::topics::Topic;

/// The most concurrent replays of one subscription.
pub const REPLAYS_MAX: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeekRequest {
    To(StartPosition),
    /// By topic and partition. Partitions that are not named continue from their watermarks.
    Offsets(BTreeMap<(String, u32), u64>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayRequest {
    pub from: StartPosition,
    pub to: StartPosition,
    pub key: Option<String>,
}

#[derive(Debug)]
pub struct RunOutcome {
    pub subscription: Arc<Subscription>,
    pub run: u32,
    /// Partitions in which the log no longer has the requested messages.
    pub truncated: Vec<Truncation>,
}

impl SubscriptionRegistry {
    /// Moves the cursor, as a new run. `watermarks` are those of the owner, if it answered. Partitions that are not named continue from
    /// them, and retries in the retry topic are neither lost nor repeated.
    pub async fn seek(
        &self,
        name: &str,
        ask: &SeekRequest,
        watermarks: Option<&BTreeMap<(String, u32), u64>>,
    ) -> Result<RunOutcome, SubscriptionError> {
        self.check_not_in_future(match ask {
            SeekRequest::To(position) => *position,
            SeekRequest::Offsets(_) => StartPosition::Earliest,
        })?;
        let changing = self.changing().await;
        for _ in 0..CONFLICT_TRIES {
            let (mut stored, version) = self.live_entry(name).await?;
            let topics = self.topics_of(&stored);
            let (mut starts, truncated) = match ask {
                SeekRequest::To(position) => self.starts_to(&topics, *position).await?,
                SeekRequest::Offsets(offsets) => self.starts_by(&topics, offsets, watermarks).await?,
            };
            starts.extend(self.retry_start(name, &stored, watermarks));
            stored.last_run += 1;
            stored.run = stored.last_run;
            stored.starts = starts;
            let run = stored.run;
            if let Some(subscription) = self.write(name, stored, Some(version), &changing).await? {
                let detail = format!("the cursor of `{name}` was moved by a seek");
                self.report(Event::new("subscription_seeked", detail).with("run", run), name);
                self.report_truncated(TruncatedBy::Seek, name, &truncated);
                return Ok(RunOutcome { subscription, run, truncated });
            }
        }
        Err(conflict(name))
    }

    /// Delivers a range of messages again, beside the cursor.
    pub async fn replay(&self, name: &str, ask: &ReplayRequest) -> Result<RunOutcome, SubscriptionError> {
        self.check_not_in_future(ask.from)?;
        let changing = self.changing().await;
        for _ in 0..CONFLICT_TRIES {
            let (mut stored, version) = self.live_entry(name).await?;
            if stored.replays.len() >= REPLAYS_MAX {
                return Err(SubscriptionError::TooManyReplays { name: name.to_owned() });
            }
            let topics = self.topics_of(&stored);
            let (from, truncated) = self.starts_to(&topics, ask.from).await?;
            let (until, _) = self.starts_to(&topics, ask.to).await?;
            if !has_something(&from, &until) {
                return Err(SubscriptionError::EmptyStretch);
            }
            stored.last_run += 1;
            let run = stored.last_run;
            let asked_at_ms = self.ports.clock.now().as_millis();
            stored.replays.push(Replay { run, from, until, key: ask.key.clone(), asked_at_ms });
            if let Some(subscription) = self.write(name, stored, Some(version), &changing).await? {
                let detail = format!("a range is replayed to `{name}`, as run {run}");
                self.report(Event::new("replay_started", detail).with("run", run), name);
                self.report_truncated(TruncatedBy::Seek, name, &truncated);
                return Ok(RunOutcome { subscription, run, truncated });
            }
        }
        Err(conflict(name))
    }

    /// Allocates a run for a redrive: a number that no other run of the subscription has.
    pub async fn raise_run(&self, number: SubscriptionNumber) -> Result<u32, SubscriptionError> {
        let name = self.name_of(number)?;
        let raise = |stored: &mut StoredSubscription| {
            stored.last_run += 1;
            Ok(true)
        };
        let (subscription, _) = self.update(&name, raise).await?;
        Ok(subscription.stored.last_run)
    }

    /// Ends a replay. An unknown replay has ended already.
    pub async fn end_replay(&self, number: SubscriptionNumber, run: u32) -> Result<(), SubscriptionError> {
        let name = self.name_of(number)?;
        let end = |stored: &mut StoredSubscription| {
            let before = stored.replays.len();
            stored.replays.retain(|replay| replay.run != run);
            Ok(stored.replays.len() < before)
        };
        let (_, changed) = self.update(&name, end).await?;
        if changed {
            let detail = format!("the replay of `{name}` with run {run} is complete");
            self.report(Event::new("replay_ended", detail).with("run", run), &name);
        }
        Ok(())
    }

    /// The topics of an entry that exist: a deleted topic has no offsets.
    fn topics_of(&self, stored: &StoredSubscription) -> Vec<Arc<Topic>> {
        stored.spec.topics.iter().filter_map(|topic| self.ports.registry.get(topic)).collect()
    }

    async fn starts_to(
        &self,
        topics: &[Arc<Topic>],
        position: StartPosition,
    ) -> Result<(Vec<TopicStart>, Vec<Truncation>), SubscriptionError> {
        let (mut starts, mut truncated) = (Vec::new(), Vec::new());
        for topic in topics {
            let (start, gone) = start_at(&*self.ports.log, topic, position).await?;
            starts.push(start);
            truncated.extend(gone);
        }
        Ok((starts, truncated))
    }

    async fn starts_by(
        &self,
        topics: &[Arc<Topic>],
        offsets: &BTreeMap<(String, u32), u64>,
        watermarks: Option<&BTreeMap<(String, u32), u64>>,
    ) -> Result<(Vec<TopicStart>, Vec<Truncation>), SubscriptionError> {
        let has = |(topic, partition): &(String, u32)| {
            topics.iter().any(|known| *known.name == **topic && *partition < known.partitions())
        };
        if let Some((topic, partition)) = offsets.keys().find(|place| !has(place)) {
            return Err(SubscriptionError::NoPartition { place: format!("{topic}/{partition}") });
        }
        let (mut starts, mut truncated) = (Vec::new(), Vec::new());
        for topic in topics {
            let name = topic.name.to_string();
            let mut start = TopicStart { topic: name.clone(), number: topic.number(), offsets: Vec::new() };
            for partition in topic.all_partitions() {
                let place = (name.clone(), partition.index);
                let offset = match (offsets.get(&place), watermarks) {
                    (Some(offset), _) => self.within(&name, partition, *offset, &mut truncated).await?,
                    (None, Some(watermarks)) => watermarks.get(&place).copied().unwrap_or(0),
                    (None, None) => return Err(SubscriptionError::OwnerNeeded),
                };
                start.offsets.push(offset);
            }
            starts.push(start);
        }
        Ok((starts, truncated))
    }

    /// The offset, or the oldest kept one if that is later.
    async fn within(
        &self,
        topic: &str,
        partition: PartitionId,
        asked: u64,
        truncated: &mut Vec<Truncation>,
    ) -> Result<u64, SubscriptionError> {
        let bounds = self.ports.log.bounds(partition).await?;
        if asked > bounds.next {
            let place = format!("{topic}/{}", partition.index);
            return Err(SubscriptionError::BeyondEnd { place, asked, next: bounds.next });
        }
        if asked < bounds.first {
            truncated.push(Truncation { topic: topic.to_owned(), partition: partition.index, first: bounds.first });
        }
        Ok(asked.max(bounds.first))
    }

    /// The start of the new run in the subscription's own retry topic: messages that were delivered from it are not repeated. Without the
    /// owner's watermark it is the start of the previous run, since a repeat is better than a loss.
    fn retry_start(
        &self,
        name: &str,
        stored: &StoredSubscription,
        watermarks: Option<&BTreeMap<(String, u32), u64>>,
    ) -> Option<TopicStart> {
        let topic = retry_topic(name);
        let number = self.ports.registry.get(&topic)?.number();
        let told = watermarks.and_then(|watermarks| watermarks.get(&(topic.clone(), 0)).copied());
        let offset = told.unwrap_or_else(|| stored.start_of(&topic, number, 0));
        Some(TopicStart { topic, number, offsets: vec![offset] })
    }

    fn check_not_in_future(&self, position: StartPosition) -> Result<(), SubscriptionError> {
        match position {
            StartPosition::At(time) if time > self.ports.clock.now() => Err(in_future(time)),
            _ => Ok(()),
        }
    }
}

fn in_future(time: Timestamp) -> SubscriptionError {
    SubscriptionError::InFuture(time.to_string())
}

fn has_something(from: &[TopicStart], until: &[TopicStart]) -> bool {
    let stretches = from.iter().zip(until).flat_map(|(from, until)| from.offsets.iter().zip(&until.offsets));
    stretches.into_iter().any(|(from, until)| from < until)
}
