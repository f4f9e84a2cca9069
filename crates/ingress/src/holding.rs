//! Holding: what a draft becomes that shall be in its topic later. A hold is made here and written elsewhere: appended as `held` where
//! its id was minted, given to its shard's owner where the publisher brought the id.
//!
//! What is accepted must be writable for as long as it is held, so sizes are judged with everything that a hold's later records have
//! more than its first one.

use std::sync::Arc;

use whimbrel_model::hold::MOVES_REMEMBERED;
use whimbrel_model::limits::IDEMPOTENCY_KEY_MAX_CHARS;
use whimbrel_model::ports::Entry;
use whimbrel_model::{HeldMessage, Hold, HoldId, HoldRecord, PartitionId, Timestamp};

use super::door::Door;
use super::problem::{Code, Problem};
use whimbrel_catalogue::topics::Topic;

/// What a hold carried forward has more than when it was accepted: its remembered moves, each a key with its length, a time, a version.
const CARRIED_BYTES_MORE: usize = MOVES_REMEMBERED * (2 + IDEMPOTENCY_KEY_MAX_CHARS + 16);
/// What a fired message has more than a held one: two headers with a time each, their lengths included.
const FIRED_BYTES_MORE: usize = 128;

/// A hold on its way to its shard.
pub(super) struct Holding {
    pub(super) hold: Hold,
    pub(super) shard: PartitionId,
}

impl Holding {
    /// `fresh`: the id was minted for this message and can never have been used before.
    pub(super) fn new(
        door: &Door,
        topic: &Topic,
        id: &str,
        fresh: bool,
        due: Timestamp,
        now: Timestamp,
        message: HeldMessage,
    ) -> Result<Self, Problem> {
        let shard = door.shard_of(id);
        check_behind(door, shard)?;
        check_sizes(door, topic, shard, &message)?;
        let hold = Hold {
            id: HoldId::new(id),
            topic: topic.number(),
            topic_name: Arc::clone(&topic.name),
            due,
            published_at: now,
            version: 0,
            fresh,
            moves: Vec::new(),
            message,
        };
        Ok(Self { hold, shard })
    }

    /// The `held` record and its way.
    pub(super) fn into_entry(self, now: Timestamp) -> Entry {
        Entry { partition: self.shard, record: HoldRecord::Held(self.hold).to_record(now) }
    }
}

/// Where batches come faster than the owner of the shard takes them in, it would be ever longer until it can answer for them.
fn check_behind(door: &Door, shard: PartitionId) -> Result<(), Problem> {
    let behind = door.holds.running.folding.behind(shard.index);
    if behind <= door.settings.holds_behind_max {
        return Ok(());
    }
    let detail = format!("the owner of the hold's shard is {behind} records behind; come again in a moment");
    Err(Problem::new(Code::Overloaded, detail))
}

fn check_sizes(door: &Door, topic: &Topic, shard: PartitionId, message: &HeldMessage) -> Result<(), Problem> {
    let log = &door.ports.log;
    let bytes = message.key.as_ref().map_or(0, |key| key.len()) + message.value.len() + message.headers.encoded().len();
    let carried_room = log.largest_record(shard.topic).saturating_sub(DESCRIPTION_BYTES_MAX + CARRIED_BYTES_MORE);
    let fired_room = log.largest_record(topic.number()).saturating_sub(FIRED_BYTES_MORE);
    let room = carried_room.min(fired_room);
    if bytes <= room {
        return Ok(());
    }
    let detail = format!("a message of {bytes} bytes with its key and headers is too large to be held: {room} at most");
    Err(Problem::new(Code::PayloadTooLarge, detail).with("limit", room))
}

/// What says of a `held` record what it is about, at most: the header's name and lengths, id, topic's name, times.
const DESCRIPTION_BYTES_MAX: usize = 64 + 255 + 255 + 64;
