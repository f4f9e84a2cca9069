//! Turns decisions into one commit. The current mapping of the topic selects the partition of each fired message.
//!
//! A commit leaves out messages for partitions that cannot be written now, and is repeated without them. If a topic or partition does not
//! exist, all its messages are rejected at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_model::ports::{CommitOutcome, Entry, Fence, Log, LogError};
use whimbrel_model::{Hold, HoldEndKind, HoldRecord, PartitionId, Timestamp, TopicNumber};

use super::blocked::BlockedPartitions;
use super::shard::{CommitResult, Decision, WrittenDecision};
use whimbrel_catalogue::topics::{Pass, Registry};

/// Attempts at one commit. Each attempt leaves out the partitions that blocked the one before.
const TRIES_MAX: usize = 4;
/// How long a commit waits until the shard's own partition can be written.
const OWN_PARTITION_WAIT_MAX: Duration = Duration::from_secs(8);
const OWN_PARTITION_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecisionTarget {
    /// The record goes to the shard.
    Shard,
    /// The message goes to this partition, its record to the shard.
    Topic(PartitionId),
    /// The topic cannot accept messages now.
    Closed,
}

/// The positions of a decision's entries in the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryIndex {
    /// The topic or partition cannot accept messages now.
    LeftOut,
    Record(usize),
    /// The message's entry and partition. The entry of the `fired` record follows it.
    Message(usize, PartitionId),
}

/// Access to a topic for the messages of one commit.
enum TopicAccess {
    Open(Pass),
    Closed,
    Gone(String),
}

/// The log, fence and partitions that a commit writes to.
pub(super) struct CommitTarget<'a> {
    pub log: &'a dyn Log,
    pub fence: &'a Fence,
    pub shard: PartitionId,
    pub blocked: &'a Mutex<BlockedPartitions>,
}

pub(super) async fn commit(
    target: CommitTarget<'_>,
    registry: &Registry,
    decisions: &[Decision],
    at: Timestamp,
) -> CommitResult {
    // The passes are kept until the log has answered: a growth or deletion of a topic waits for messages that are being appended to it.
    let mut accesses: HashMap<TopicNumber, TopicAccess> = HashMap::new();
    let mut destinations = Vec::with_capacity(decisions.len());
    for decision in decisions {
        let Decision::Fire(hold) = decision else {
            destinations.push(DecisionTarget::Shard);
            continue;
        };
        destinations.push(match access_of(&mut accesses, registry, hold).await {
            TopicAccess::Open(pass) => DecisionTarget::Topic(pass.place(hold.message.key.as_deref())),
            TopicAccess::Closed => DecisionTarget::Closed,
            TopicAccess::Gone(why) => {
                let is_of_it =
                    |decision: &Decision| matches!(decision, Decision::Fire(other) if other.topic == hold.topic);
                let indexes = (0..decisions.len()).filter(|index| is_of_it(&decisions[*index])).collect();
                return CommitResult::Refused { indexes, why: why.clone() };
            }
        });
    }
    commit_to(target, decisions, &destinations, at).await
}

async fn commit_to(
    target: CommitTarget<'_>,
    decisions: &[Decision],
    destinations: &[DecisionTarget],
    at: Timestamp,
) -> CommitResult {
    let (began, mut tries) = (Instant::now(), 0);
    loop {
        let (entries, places) = target.plan(decisions, destinations, at);
        if entries.is_empty() {
            return CommitResult::Done(vec![None; places.len()]);
        }
        match target.log.commit(target.fence, entries).await {
            CommitOutcome::Done(offsets) => return target.done(&places, &offsets),
            CommitOutcome::Fenced => return CommitResult::Fenced,
            CommitOutcome::Refused { index, error } => return target.refused(&places, decisions, index, error),
            CommitOutcome::NotNow(error) => return CommitResult::NotNow(error),
            CommitOutcome::Unknown(why) => return CommitResult::Unknown(why),
            CommitOutcome::Blocked { partitions, error } => {
                tries += 1;
                if partitions.contains(&target.shard) && began.elapsed() < OWN_PARTITION_WAIT_MAX {
                    tokio::time::sleep(OWN_PARTITION_PAUSE).await;
                } else if partitions.contains(&target.shard) || partitions.is_empty() || tries >= TRIES_MAX {
                    return CommitResult::NotNow(error);
                } else {
                    let mut blocked = target.blocked();
                    partitions.into_iter().for_each(|partition| blocked.block(partition, Instant::now()));
                }
            }
        }
    }
}

impl CommitTarget<'_> {
    /// The entries of a commit, without messages for blocked partitions.
    fn plan(
        &self,
        decisions: &[Decision],
        destinations: &[DecisionTarget],
        at: Timestamp,
    ) -> (Vec<Entry>, Vec<EntryIndex>) {
        let (blocked, now) = (self.blocked(), Instant::now());
        let (mut entries, mut places) = (Vec::with_capacity(decisions.len() * 2), Vec::with_capacity(decisions.len()));
        for (decision, destination) in decisions.iter().zip(destinations) {
            match (decision, destination) {
                (Decision::Write(record), _) => {
                    places.push(EntryIndex::Record(entries.len()));
                    entries.push(Entry { partition: self.shard, record: record.to_record(at) });
                }
                (Decision::Fire(hold), DecisionTarget::Topic(partition)) if !blocked.contains(*partition, now) => {
                    places.push(EntryIndex::Message(entries.len(), *partition));
                    entries.push(Entry { partition: *partition, record: hold.fire(at) });
                    let end = hold.ended(HoldEndKind::Fired { partition: partition.index }, at);
                    let fired = HoldRecord::Ended { id: hold.id.clone(), end };
                    entries.push(Entry { partition: self.shard, record: fired.to_record(at) });
                }
                (Decision::Fire(_), _) => places.push(EntryIndex::LeftOut),
            }
        }
        (entries, places)
    }

    fn done(&self, places: &[EntryIndex], offsets: &[u64]) -> CommitResult {
        let mut blocked = self.blocked();
        let offset = |entry: usize| offsets.get(entry).copied().unwrap_or_default();
        let written = places.iter().map(|place| match *place {
            EntryIndex::LeftOut => None,
            EntryIndex::Record(entry) => Some(WrittenDecision { offset: offset(entry), message: None }),
            EntryIndex::Message(entry, partition) => {
                blocked.unblock(partition);
                Some(WrittenDecision { offset: offset(entry + 1), message: Some((partition.index, offset(entry))) })
            }
        });
        CommitResult::Done(written.collect())
    }

    fn refused(&self, places: &[EntryIndex], decisions: &[Decision], refused: usize, error: LogError) -> CommitResult {
        let Some(of) = refused_decision(places, decisions, refused) else { return CommitResult::NotNow(error) };
        match (&decisions[of], places[of], &error) {
            (Decision::Fire(hold), EntryIndex::Message(_, partition), LogError::UnknownPartition(missing)) => {
                self.blocked().unblock(partition);
                // Every topic has partition 0, so without it the whole topic is missing.
                let is_whole_topic = missing.index == 0;
                let goes_there = |place: &EntryIndex| match place {
                    EntryIndex::Message(_, other) if is_whole_topic => other.topic == partition.topic,
                    EntryIndex::Message(_, other) => *other == partition,
                    EntryIndex::LeftOut | EntryIndex::Record(_) => false,
                };
                let indexes = (0..places.len()).filter(|index| goes_there(&places[*index])).collect();
                let (index, topic) = (partition.index, &hold.topic_name);
                let part_text = if is_whole_topic { String::new() } else { format!("partition {index} of ") };
                let why = format!("the log has no {part_text}topic `{topic}`: it was deleted outside Whimbrel");
                CommitResult::Refused { indexes, why }
            }
            _ => CommitResult::Refused { indexes: vec![of], why: error.to_string() },
        }
    }

    fn blocked(&self) -> MutexGuard<'_, BlockedPartitions> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The decision that can never be written: a fired message, or a new hold. If the log rejects one of the shard's own records, the reason
/// is not in any hold. So no hold dies, and the record is written again later.
fn refused_decision(places: &[EntryIndex], decisions: &[Decision], refused: usize) -> Option<usize> {
    let is_refused = |(place, decision): (&EntryIndex, &Decision)| match place {
        EntryIndex::LeftOut => false,
        EntryIndex::Record(entry) => *entry == refused && matches!(decision, Decision::Write(HoldRecord::Held(_))),
        EntryIndex::Message(entry, _) => *entry == refused,
    };
    places.iter().zip(decisions).position(is_refused)
}

/// Access to the hold's topic. A commit looks it up once per topic.
async fn access_of<'a>(
    accesses: &'a mut HashMap<TopicNumber, TopicAccess>,
    registry: &Registry,
    hold: &Hold,
) -> &'a TopicAccess {
    match accesses.entry(hold.topic) {
        Slot::Occupied(known) => known.into_mut(),
        Slot::Vacant(unknown) => unknown.insert(access_to(registry, hold).await),
    }
}

async fn access_to(registry: &Registry, hold: &Hold) -> TopicAccess {
    let Some(topic) = registry.by_number(hold.topic).filter(|topic| topic.name == hold.topic_name) else {
        // Another node may have created the topic a moment ago. The hold waits while the catalogue cannot confirm that the topic was
        // deleted.
        return match registry.is_gone(&hold.topic_name, hold.topic).await {
            Ok(true) => TopicAccess::Gone(format!("topic `{}` was deleted", hold.topic_name)),
            Ok(false) | Err(_) => TopicAccess::Closed,
        };
    };
    registry.try_enter(topic).map_or(TopicAccess::Closed, TopicAccess::Open)
}

#[cfg(test)]
mod tests;
