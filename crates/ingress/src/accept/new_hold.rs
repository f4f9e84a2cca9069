//! Creates the hold of a draft with a delivery time. A hold with a minted id is appended as a `held` record. A hold with a publisher's id
//! goes to the owner of its shard.
//!
//! An accepted hold must stay writable until it ends. The size check therefore includes everything that later records of the hold add.

use std::sync::Arc;

use whimbrel_model::hold::MOVES_REMEMBERED;
use whimbrel_model::limits::IDEMPOTENCY_KEY_MAX_CHARS;
use whimbrel_model::ports::Entry;
use whimbrel_model::{Hold, HoldId, HoldRecord, MessageBody, PartitionId, Timestamp};

use crate::api_state::ApiState;
use crate::problem::{ApiProblem, Code};
use whimbrel_catalogue::topics::Topic;

/// The bytes that a carried hold adds to an accepted one: its remembered extensions, each with key, length, time and version.
const CARRIED_BYTES_MORE: usize = MOVES_REMEMBERED * (2 + IDEMPOTENCY_KEY_MAX_CHARS + 16);
/// The bytes that a fired message adds to a held one: two headers with a time each, including their lengths.
const FIRED_BYTES_MORE: usize = 128;

/// A hold and the shard that stores it.
pub(crate) struct NewHold {
    pub(crate) hold: Hold,
    pub(crate) shard: PartitionId,
}

impl NewHold {
    /// `fresh`: the id was minted for this message, so no other hold can have it.
    pub(crate) fn new(
        api: &ApiState,
        topic: &Topic,
        id: &str,
        fresh: bool,
        due: Timestamp,
        now: Timestamp,
        message: MessageBody,
    ) -> Result<Self, ApiProblem> {
        let shard = api.shard_of(id);
        check_backlog(api, shard)?;
        check_sizes(api, topic, shard, &message)?;
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

    pub(crate) fn into_entry(self, now: Timestamp) -> Entry {
        Entry { partition: self.shard, record: HoldRecord::Held(self.hold).to_record(now) }
    }
}

/// Rejects holds while the backlog of the shard's owner is too large, so that its reply time stays bounded.
fn check_backlog(api: &ApiState, shard: PartitionId) -> Result<(), ApiProblem> {
    let behind = api.holds.counters.fold_backlog.behind(shard.index);
    if behind <= api.settings.backlog.holds {
        return Ok(());
    }
    let detail = format!("the owner of the hold's shard has a backlog of {behind} records; retry later");
    Err(ApiProblem::new(Code::Overloaded, detail))
}

fn check_sizes(api: &ApiState, topic: &Topic, shard: PartitionId, message: &MessageBody) -> Result<(), ApiProblem> {
    let log = &api.ports.log;
    let bytes = message.key.as_ref().map_or(0, |key| key.len()) + message.value.len() + message.headers.encoded().len();
    let carried_room = log.largest_record(shard.topic).saturating_sub(DESCRIPTION_BYTES_MAX + CARRIED_BYTES_MORE);
    let fired_room = log.largest_record(topic.number()).saturating_sub(FIRED_BYTES_MORE);
    let room = carried_room.min(fired_room);
    if bytes <= room {
        return Ok(());
    }
    let detail = format!("the message has {bytes} bytes with its key and headers; a held message can have {room}");
    Err(ApiProblem::new(Code::PayloadTooLarge, detail).with("limit", room))
}

/// The maximum bytes that describe a hold in a `held` record: header name and lengths, id, topic name, times.
const DESCRIPTION_BYTES_MAX: usize = 64 + 255 + 255 + 64;
