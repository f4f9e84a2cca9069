//! Counts the retries that wait as holds of `_retry.<name>`, and corrects due times that are too late.
//!
//! If the clock was ahead when a hold was made, the hold is due too late after the clock is corrected. The owner of the subscription checks
//! the due times after each takeover and after each backward step of its clock. The latest valid due time follows from the retry schedule
//! and from the maximum `Retry-After` of an endpoint. A hold with a later due time is rescheduled: it waits the interval of its step from
//! now. A hold is not rescheduled if its message, and so the message's own retry rule, cannot be read.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use whimbrel_model::ports::{
    CountQuery, DueCursor, HoldQuery, HoldReply, HoldRequest, HoldView, Holds, HoldsError, Log, LogError, NewDueTime,
    ReadLimits,
};
use whimbrel_model::subscription::{DerivedId, MessageOrigin, RETRY_AFTER_MAX, RetryPolicy};
use whimbrel_model::{Clock, PartitionId, Timestamp, TopicNumber};

use crate::delivery_line::LineRules;
use crate::outbound_message::{RETRY_PURPOSE, RetryData};
use crate::runner_clock::later;

/// The width of a count's buckets: so wide that an answer has one bucket or a few.
const ONE_BUCKET: Duration = Duration::from_secs(366 * 86_400);
/// The maximum number of holds that one step checks and reschedules.
const CHECKED_AT_ONCE: usize = 256;
/// The limits of one read of the messages of such holds.
const READ: ReadLimits = ReadLimits { max_records: 256, max_bytes: 256 << 10, wait: Duration::ZERO };

/// Counts the holds of a retry topic. `None` if an owner does not answer.
pub(super) async fn count_retry_holds(holds: &dyn Holds, topic: TopicNumber) -> Option<u64> {
    let mut total = 0;
    for shard in 0..holds.shards() {
        total += count(holds, shard, topic, None).await.ok()?;
    }
    Some(total)
}

/// Reschedules retries that are due too late because the clock was ahead when they were made.
pub(super) struct RetryHoldCheck<'a> {
    pub holds: &'a dyn Holds,
    pub log: &'a dyn Log,
    pub clock: &'a dyn Clock,
    pub rules: &'a LineRules,
    pub topic: TopicNumber,
}

impl RetryHoldCheck<'_> {
    /// Returns the number of holds that were rescheduled.
    pub async fn run(&self) -> Result<usize, String> {
        let mut moved = 0;
        for shard in 0..self.holds.shards() {
            moved += self.check_shard(shard).await?;
        }
        Ok(moved)
    }

    async fn check_shard(&self, shard: u32) -> Result<usize, String> {
        // A hold that is due before this time is valid under every retry rule.
        let from = later(self.clock.now(), RETRY_AFTER_MAX);
        // A count is cheap. A list of one topic has to skip the holds of all other topics.
        if count(self.holds, shard, self.topic, Some(from)).await.map_err(|error| error.to_string())? == 0 {
            return Ok(0);
        }
        let (mut moved, mut after) = (0, None);
        loop {
            let query =
                HoldQuery { topic: Some(self.topic), from: Some(from), to: None, after, limit: CHECKED_AT_ONCE };
            let views = match self.holds.ask(shard, HoldRequest::List(query)).await {
                Ok(HoldReply::Listed(views)) => views,
                Ok(other) => return Err(format!("unexpected reply to a list request: {other:?}")),
                Err(error) => return Err(error.to_string()),
            };
            moved += self.move_late(shard, &views).await?;
            match views.last() {
                Some(last) if views.len() == CHECKED_AT_ONCE => {
                    after = Some(DueCursor { due: last.due, id: last.id.clone() });
                }
                _ => return Ok(moved),
            }
        }
    }

    async fn move_late(&self, shard: u32, views: &[HoldView]) -> Result<usize, String> {
        let now = self.clock.now();
        let made = views
            .iter()
            .filter_map(|view| Some((view, MessageOrigin::parse_made_id(view.id.as_str(), RETRY_PURPOSE)?)));
        let is_late = |(view, made): &(&HoldView, DerivedId)| self.judged(view, *made, None, now) != view.due;
        let suspects: Vec<(&HoldView, DerivedId)> = made.filter(is_late).collect();
        let places = suspects.iter().map(|(_, made)| (made.partition, made.offset)).collect();
        let own = own_policies(self.log, places).await?;
        let moves = suspects.iter().filter_map(|(view, made)| {
            let own = own.get(&(made.partition, made.offset))?;
            let due = self.judged(view, *made, own.as_ref(), now);
            let to = NewDueTime::Until(due);
            let ask = HoldRequest::Extend { id: view.id.clone(), to, if_version: Some(view.version), key: None };
            (due != view.due).then(|| self.holds.ask(shard, ask))
        });
        let told: Result<Vec<HoldReply>, HoldsError> = join_all(moves).await.into_iter().collect();
        let told = told.map_err(|error| error.to_string())?;
        Ok(told.iter().filter(|told| matches!(told, HoldReply::Rescheduled { .. })).count())
    }

    fn judged(&self, view: &HoldView, made: DerivedId, own: Option<&RetryPolicy>, now: Timestamp) -> Timestamp {
        self.rules.retry_schedule(own).resume(made.attempts, view.due, now)
    }
}

async fn count(holds: &dyn Holds, shard: u32, topic: TopicNumber, from: Option<Timestamp>) -> Result<u64, HoldsError> {
    let query = CountQuery { topic: Some(topic), from, to: None, bucket: ONE_BUCKET };
    match holds.ask(shard, HoldRequest::Count(query)).await? {
        HoldReply::Counted(buckets) => Ok(buckets.iter().map(|(_, count)| count).sum()),
        other => Err(HoldsError::Unavailable(format!("unexpected reply to a count: {other:?}"))),
    }
}

/// The own retry policies of messages. A message that the log no longer has is left out.
async fn own_policies(
    log: &dyn Log,
    mut wanted: BTreeSet<(PartitionId, u64)>,
) -> Result<HashMap<(PartitionId, u64), Option<RetryPolicy>>, String> {
    let mut found = HashMap::new();
    while let Some((partition, from)) = wanted.pop_first() {
        match log.read(partition, from, READ).await {
            Ok(batch) => {
                for stored in batch.records {
                    let place = (partition, stored.offset);
                    if stored.offset == from || wanted.remove(&place) {
                        found.insert(place, RetryData::of(&stored.record).own);
                    }
                }
            }
            Err(error @ (LogError::Unavailable(_) | LogError::Poisoned(_) | LogError::Overloaded(_))) => {
                return Err(error.to_string());
            }
            Err(_) => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
