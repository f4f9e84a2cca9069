//! From decisions to one commit: each message that fires is placed in its topic now, by the mapping of now.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use whimbrel_model::ports::{CommitOutcome, Entry, Fence, Log};
use whimbrel_model::{Ending, Hold, HoldRecord, PartitionId, Timestamp, TopicNumber};

use super::shard::{Committed, Decision, Written};
use crate::topics::{Pass, Registry};

/// Where the entries of one decision are.
#[derive(Clone, Copy)]
enum Place {
    /// Its topic takes nothing at this moment.
    LeftOut,
    Record(usize),
    /// The message's entry and partition; the record that it fired follows.
    Message(usize, u32),
}

/// A way into a topic for the messages of one commit.
enum Way {
    Open(Pass),
    Closed,
    Gone(String),
}

pub(super) async fn commit(
    log: &dyn Log,
    registry: &Registry,
    fence: &Fence,
    shard: PartitionId,
    decisions: &[Decision],
    at: Timestamp,
) -> Committed {
    // Held until the log has answered: a topic that grows or goes waits for what is on its way into it.
    let mut ways: HashMap<TopicNumber, Way> = HashMap::new();
    let mut entries = Vec::with_capacity(decisions.len() * 2);
    let mut places = Vec::with_capacity(decisions.len());
    for (index, decision) in decisions.iter().enumerate() {
        match decision {
            Decision::Write(record) => {
                places.push(Place::Record(entries.len()));
                entries.push(Entry { partition: shard, record: record.to_record(at) });
            }
            Decision::Fire(hold) => match way_of(&mut ways, registry, hold).await {
                Way::Open(pass) => {
                    let partition = pass.place(hold.message.key.as_deref());
                    places.push(Place::Message(entries.len(), partition.index));
                    entries.push(Entry { partition, record: hold.fire(at) });
                    let end = hold.ended(Ending::Fired { partition: partition.index }, at);
                    let fired = HoldRecord::Ended { id: hold.id.clone(), end };
                    entries.push(Entry { partition: shard, record: fired.to_record(at) });
                }
                Way::Closed => places.push(Place::LeftOut),
                Way::Gone(why) => return Committed::Refused { index, why: why.clone() },
            },
        }
    }
    if entries.is_empty() {
        return Committed::Done(vec![None; places.len()]);
    }
    match log.commit(fence, entries).await {
        CommitOutcome::Done(offsets) => {
            let offset = |entry: usize| offsets.get(entry).copied().unwrap_or_default();
            let written = places.into_iter().map(|place| match place {
                Place::LeftOut => None,
                Place::Record(entry) => Some(Written { offset: offset(entry), message: None }),
                Place::Message(entry, partition) => {
                    Some(Written { offset: offset(entry + 1), message: Some((partition, offset(entry))) })
                }
            });
            Committed::Done(written.collect())
        }
        CommitOutcome::Fenced => Committed::Fenced,
        CommitOutcome::Refused { index, error } => match refused_decision(&places, decisions, index) {
            Some(of) => Committed::Refused { index: of, why: error.to_string() },
            None => Committed::NotNow(error),
        },
        CommitOutcome::NotNow(error) => Committed::NotNow(error),
        CommitOutcome::Unknown(why) => Committed::Unknown(why),
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
mod tests {
    use super::super::testing::{end, hold};
    use super::*;

    #[test]
    fn only_a_message_or_what_is_taken_in_can_be_refused_for_good() {
        let one = hold("a", 5);
        let ended = HoldRecord::Ended { id: one.id.clone(), end: end(&one) };
        let decisions = [
            Decision::Write(ended),
            Decision::Write(HoldRecord::Held(Hold::clone(&one))),
            Decision::Fire(hold("b", 6)),
            Decision::Fire(hold("c", 7)),
        ];
        let places = [Place::Record(0), Place::Record(1), Place::LeftOut, Place::Message(2, 0)];
        let refused = |entry| refused_decision(&places, &decisions, entry);
        assert_eq!((refused(1), refused(2)), (Some(1), Some(3)));
        assert_eq!((refused(0), refused(3)), (None, None), "the shard's own records, that one fired among them");
    }
}
