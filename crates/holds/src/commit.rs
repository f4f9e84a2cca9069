//! From decisions to one commit: each message that fires is placed in its topic now, by the mapping of now.
//!
//! Messages for partitions that cannot be written now are left out, and the commit is repeated without them. A topic or partition that
//! does not exist refuses all its messages at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_model::ports::{CommitOutcome, Entry, Fence, Log, LogError};
use whimbrel_model::{Ending, Hold, HoldRecord, PartitionId, Timestamp, TopicNumber};

use super::blocked::BlockedPartitions;
use super::shard::{Committed, Decision, Written};
use whimbrel_catalogue::topics::{Pass, Registry};

/// How often one commit is tried with fewer messages. Each try leaves out the partitions that blocked the one before.
const TRIES_MAX: usize = 4;
/// How long a commit waits for the shard's own partition.
const OWN_PARTITION_WAIT_MAX: Duration = Duration::from_secs(8);
const OWN_PARTITION_PAUSE: Duration = Duration::from_millis(100);

/// Where a decision goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    /// Its record goes to the shard.
    Shard,
    /// Its message goes to this partition, its record to the shard.
    Topic(PartitionId),
    /// Its topic takes nothing at this moment.
    Closed,
}

/// Where the entries of one decision are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its topic takes nothing at this moment.
    LeftOut,
    Record(usize),
    /// The message's entry and partition; the record that it fired follows.
    Message(usize, PartitionId),
}

/// A way into a topic for the messages of one commit.
enum Way {
    Open(Pass),
    Closed,
    Gone(String),
}

/// What a commit writes to.
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
) -> Committed {
    // Held until the log has answered: a topic that grows or goes waits for what is on its way into it.
    let mut ways: HashMap<TopicNumber, Way> = HashMap::new();
    let mut destinations = Vec::with_capacity(decisions.len());
    for decision in decisions {
        let Decision::Fire(hold) = decision else {
            destinations.push(Destination::Shard);
            continue;
        };
        destinations.push(match way_of(&mut ways, registry, hold).await {
            Way::Open(pass) => Destination::Topic(pass.place(hold.message.key.as_deref())),
            Way::Closed => Destination::Closed,
            Way::Gone(why) => {
                let is_of_it =
                    |decision: &Decision| matches!(decision, Decision::Fire(other) if other.topic == hold.topic);
                let indexes = (0..decisions.len()).filter(|index| is_of_it(&decisions[*index])).collect();
                return Committed::Refused { indexes, why: why.clone() };
            }
        });
    }
    commit_to(target, decisions, &destinations, at).await
}

async fn commit_to(
    target: CommitTarget<'_>,
    decisions: &[Decision],
    destinations: &[Destination],
    at: Timestamp,
) -> Committed {
    let (began, mut tries) = (Instant::now(), 0);
    loop {
        let (entries, places) = target.plan(decisions, destinations, at);
        if entries.is_empty() {
            return Committed::Done(vec![None; places.len()]);
        }
        match target.log.commit(target.fence, entries).await {
            CommitOutcome::Done(offsets) => return target.done(&places, &offsets),
            CommitOutcome::Fenced => return Committed::Fenced,
            CommitOutcome::Refused { index, error } => return target.refused(&places, decisions, index, error),
            CommitOutcome::NotNow(error) => return Committed::NotNow(error),
            CommitOutcome::Unknown(why) => return Committed::Unknown(why),
            CommitOutcome::Blocked { partitions, error } => {
                tries += 1;
                if partitions.contains(&target.shard) && began.elapsed() < OWN_PARTITION_WAIT_MAX {
                    tokio::time::sleep(OWN_PARTITION_PAUSE).await;
                } else if partitions.contains(&target.shard) || partitions.is_empty() || tries >= TRIES_MAX {
                    return Committed::NotNow(error);
                } else {
                    let mut blocked = target.blocked();
                    partitions.into_iter().for_each(|partition| blocked.block(partition, Instant::now()));
                }
            }
        }
    }
}

impl CommitTarget<'_> {
    /// The entries of a commit, without messages for partitions that are blocked.
    fn plan(&self, decisions: &[Decision], destinations: &[Destination], at: Timestamp) -> (Vec<Entry>, Vec<Place>) {
        let (blocked, now) = (self.blocked(), Instant::now());
        let (mut entries, mut places) = (Vec::with_capacity(decisions.len() * 2), Vec::with_capacity(decisions.len()));
        for (decision, destination) in decisions.iter().zip(destinations) {
            match (decision, destination) {
                (Decision::Write(record), _) => {
                    places.push(Place::Record(entries.len()));
                    entries.push(Entry { partition: self.shard, record: record.to_record(at) });
                }
                (Decision::Fire(hold), Destination::Topic(partition)) if !blocked.contains(*partition, now) => {
                    places.push(Place::Message(entries.len(), *partition));
                    entries.push(Entry { partition: *partition, record: hold.fire(at) });
                    let end = hold.ended(Ending::Fired { partition: partition.index }, at);
                    let fired = HoldRecord::Ended { id: hold.id.clone(), end };
                    entries.push(Entry { partition: self.shard, record: fired.to_record(at) });
                }
                (Decision::Fire(_), _) => places.push(Place::LeftOut),
            }
        }
        (entries, places)
    }

    fn done(&self, places: &[Place], offsets: &[u64]) -> Committed {
        let mut blocked = self.blocked();
        let offset = |entry: usize| offsets.get(entry).copied().unwrap_or_default();
        let written = places.iter().map(|place| match *place {
            Place::LeftOut => None,
            Place::Record(entry) => Some(Written { offset: offset(entry), message: None }),
            Place::Message(entry, partition) => {
                blocked.forget(partition);
                Some(Written { offset: offset(entry + 1), message: Some((partition.index, offset(entry))) })
            }
        });
        Committed::Done(written.collect())
    }

    fn refused(&self, places: &[Place], decisions: &[Decision], refused: usize, error: LogError) -> Committed {
        let Some(of) = refused_decision(places, decisions, refused) else { return Committed::NotNow(error) };
        match (&decisions[of], places[of], &error) {
            (Decision::Fire(hold), Place::Message(_, partition), LogError::UnknownPartition(missing)) => {
                self.blocked().forget(partition);
                // Every topic has partition 0, so without it the whole topic is missing.
                let is_whole_topic = missing.index == 0;
                let goes_there = |place: &Place| match place {
                    Place::Message(_, other) if is_whole_topic => other.topic == partition.topic,
                    Place::Message(_, other) => *other == partition,
                    Place::LeftOut | Place::Record(_) => false,
                };
                let indexes = (0..places.len()).filter(|index| goes_there(&places[*index])).collect();
                let (index, topic) = (partition.index, &hold.topic_name);
                let what = if is_whole_topic { String::new() } else { format!("partition {index} of ") };
                let why = format!("the log has no {what}topic `{topic}`: it was deleted outside Whimbrel");
                Committed::Refused { indexes, why }
            }
            _ => Committed::Refused { indexes: vec![of], why: error.to_string() },
        }
    }

    fn blocked(&self) -> MutexGuard<'_, BlockedPartitions> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The decision that can never be written: one that puts a message into its topic, or takes one in. Where the log refuses what the
/// shard itself has to say, that is no hold's fault and none dies of it: it is said again later.
fn refused_decision(places: &[Place], decisions: &[Decision], refused: usize) -> Option<usize> {
    let is_refused = |(place, decision): (&Place, &Decision)| match place {
        Place::LeftOut => false,
        Place::Record(entry) => *entry == refused && matches!(decision, Decision::Write(HoldRecord::Held(_))),
        Place::Message(entry, _) => *entry == refused,
    };
    places.iter().zip(decisions).position(is_refused)
}

/// The way into the hold's topic, looked for once in a commit.
async fn way_of<'a>(ways: &'a mut HashMap<TopicNumber, Way>, registry: &Registry, hold: &Hold) -> &'a Way {
    match ways.entry(hold.topic) {
        Slot::Occupied(known) => known.into_mut(),
        Slot::Vacant(unknown) => unknown.insert(way_into(registry, hold).await),
    }
}

async fn way_into(registry: &Registry, hold: &Hold) -> Way {
    let Some(topic) = registry.by_number(hold.topic).filter(|topic| topic.name == hold.topic_name) else {
        // Another node may have made it a moment ago. While nobody can say that it is gone, the hold waits.
        return match registry.is_gone(&hold.topic_name, hold.topic).await {
            Ok(true) => Way::Gone(format!("topic `{}` is gone", hold.topic_name)),
            Ok(false) | Err(_) => Way::Closed,
        };
    };
    registry.try_enter(topic).map_or(Way::Closed, Way::Open)
}

#[cfg(test)]
mod tests;
