//! `GET /v1/messages/{id}`: where a message is, by its id alone.
//!
//! Ids that publishers brought are in an index. A minted id knows its place: topic, partition and time are in it, so the partition is
//! looked through from that moment on, bounded. An id made from a place (`at-…`) leads there. Any other may be a hold's: its owner knows
//! what became of it, and where its message fired to. Whatever is found in a topic must carry the id.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use whimbrel_model::id::place_from_id;
use whimbrel_model::record::HEADER_ID;
use whimbrel_model::{Ending, MessageId, PartitionId, StoredRecord, Timestamp};

use super::answer::bounded_json_response;
use super::attributes::path_part;
use super::deliveries::{DeliveryDocument, deliveries_of};
use super::documents::{FoundMessage, HeldMessageState, HoldDocument};
use super::door::Door;
use super::hold_calls::{self, hold_id};
use super::holds::{ended_document, pending_document};
use super::keys::{Caller, Scope};
use super::message_json::{Held, id_of, write_members};
use super::problem::{Code, Problem};
use super::query::{Query, shown};
use super::scan::{Go, look_through};
use whimbrel_catalogue::topics::Topic;

/// Records that are looked at from the moment a minted id names, or a hold fired at.
const LOOK_RECORDS_MAX: usize = 1_000_000;
/// A record is stamped with the very moment that its id was minted at. Neighbours of other doors, and of other threads of this one, may
/// lie before it with a later time: the look begins a little earlier, and gives up a while after.
const LOOK_BEHIND: Duration = Duration::from_secs(1);
const LOOK_AHEAD: Duration = Duration::from_secs(10);

/// Find a message by its id
#[utoipa::path(
    get, path = "/v1/messages/{id}", tag = "messages", operation_id = "get_message",
    params(
        ("id" = String, Path, description = "The message's id"),
        ("topic" = Option<String>, Query, description = "Only in this topic: publishers may bring the same id to several"),
    ),
    responses(
        (status = 200, description = "The message and what became of it: in its topic, or as a hold", body = FoundMessage, content_type = "application/json"),
        (status = "4XX", description = "`unknown_message`, `bad_parameter`, `overloaded`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `no_owner`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_message(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let id = path_part(request.uri().path(), "/v1/messages/")?;
    let caller = door.keys.caller(request.headers())?;
    caller.require(Scope::Consume)?;
    let mut query = Query::parse(request.uri().query())?;
    let within = query.take("topic")?;
    query.end()?;
    let look = Look { door: &door, caller: &caller, within: within.as_deref(), id: &id };
    let json = match look.find().await? {
        Some(Found::InTopic(found)) => {
            let (topic, partition, stored) = &found;
            let place = topic.partition(*partition);
            published_json(&found, &deliveries_of(&door, &caller, topic, place, stored.offset).await)
        }
        Some(Found::Hold(hold)) => {
            let state = HeldMessageState { hold, subscriptions: Vec::new() };
            serde_json::to_vec(&state).expect("a document is plain data")
        }
        None => {
            let detail = format!("no message that is kept has the id `{}`", shown(&id));
            return Err(Problem::new(Code::UnknownMessage, detail));
        }
    };
    bounded_json_response(door.answers.begin(), json)
}

fn published_json((topic, partition, stored): &InTopic, deliveries: &[DeliveryDocument]) -> Vec<u8> {
    let mut json = Vec::with_capacity(stored.record.size() * 2 + 256);
    let state: &[u8] = if Held::of(&stored.record).is_some() { b"fired" } else { b"published" };
    json.extend_from_slice(b"{\"state\":\"");
    json.extend_from_slice(state);
    json.extend_from_slice(b"\",");
    write_members(&mut json, topic, *partition, stored);
    json.extend_from_slice(b",\"subscriptions\":");
    serde_json::to_writer(&mut json, deliveries).expect("a buffer takes all");
    json.push(b'}');
    json
}

type InTopic = (Arc<Topic>, u32, StoredRecord);

enum Found {
    InTopic(InTopic),
    Hold(HoldDocument),
}

struct Look<'a> {
    door: &'a Door,
    caller: &'a Caller,
    within: Option<&'a str>,
    id: &'a str,
}

impl Look<'_> {
    async fn find(&self) -> Result<Option<Found>, Problem> {
        for answer in self.door.ports.receipts.find(self.id).await? {
            // The answer to a held message has the place of its hold; what became of that is the owner's to say.
            if answer.due.is_none()
                && let Some(found) = self.at(answer.partition, answer.offset).await?
            {
                return Ok(Some(Found::InTopic(found)));
            }
        }
        if let Some(place) = self.id.parse::<MessageId>().ok().and_then(MessageId::place)
            && let Some(index) = place.partition
        {
            let found = self.from(PartitionId::new(place.topic, index), place.minted_at).await?;
            return Ok(found.map(Found::InTopic));
        }
        match place_from_id(self.id) {
            Some((partition, offset)) => Ok(self.at(partition, offset).await?.map(Found::InTopic)),
            None => self.held().await,
        }
    }

    /// The hold of that id, or its message in the topic where it has fired.
    async fn held(&self) -> Result<Option<Found>, Problem> {
        let Ok(id) = hold_id(self.id) else { return Ok(None) };
        let found = match hold_calls::look(self.door, self.caller, &id).await {
            Ok(found) => found,
            Err(problem) if problem.code() == Code::UnknownHold => return Ok(None),
            Err(problem) => return Err(problem),
        };
        let document = match found {
            hold_calls::Found::Pending(view) => pending_document(&view),
            hold_calls::Found::Ended(end) => {
                if let Ending::Fired { partition } = end.how
                    && let Some(found) = self.from(PartitionId::new(end.topic, partition), end.at).await?
                {
                    return Ok(Some(Found::InTopic(found)));
                }
                ended_document(self.door, &id, &end)
            }
        };
        let is_within = self.within.is_none_or(|within| within == document.topic);
        Ok(is_within.then_some(Found::Hold(document)))
    }

    /// The topic of that number, where it is there and this caller may see it.
    fn topic(&self, partition: PartitionId) -> Option<Arc<Topic>> {
        self.door.registry.by_number(partition.topic).filter(|topic| {
            partition.index < topic.partitions()
                && self.caller.sees(&topic.name)
                && self.within.is_none_or(|within| within == &*topic.name)
        })
    }

    /// The message at that very place, if it carries the id.
    async fn at(&self, partition: PartitionId, offset: u64) -> Result<Option<InTopic>, Problem> {
        let Some(topic) = self.topic(partition) else { return Ok(None) };
        let mut found = None;
        look_through(self.door, partition, offset, offset.saturating_add(1), 1, |stored| {
            if stored.offset == offset && id_of(&topic, partition.index, stored) == self.id {
                found = Some(stored.clone());
            }
            Go::Stop
        })
        .await?;
        Ok(found.map(|stored| (topic, partition.index, stored)))
    }

    /// The message somewhere after that time, as far as one may look.
    async fn from(&self, partition: PartitionId, moment: Timestamp) -> Result<Option<InTopic>, Problem> {
        let Some(topic) = self.topic(partition) else { return Ok(None) };
        let from = self.door.ports.log.offset_at(partition, moment.saturating_sub(LOOK_BEHIND)).await?;
        let mut found = None;
        look_through(self.door, partition, from, u64::MAX, LOOK_RECORDS_MAX, |stored| {
            if stored.record.headers.get(HEADER_ID) == Some(self.id.as_bytes()) {
                found = Some(stored.clone());
            }
            let past = stored.record.timestamp.saturating_sub(LOOK_AHEAD) > moment;
            if found.is_some() || past { Go::Stop } else { Go::On }
        })
        .await?;
        Ok(found.map(|stored| (topic, partition.index, stored)))
    }
}
