//! `GET /v1/messages/{id}`: finds a message by its id.
//!
//! The receipts have an index of publishers' ids. A minted id contains topic, partition and time: the partition is scanned from that time
//! on, bounded. An id made from a position (`at-…`) contains that position. Any other id may be the one of a hold: its owner knows its
//! state and where it fired. A record in a topic is returned only if it carries the id.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use whimbrel_api::holds::HoldInfo;
use whimbrel_api::messages::{DeliveryInfo, FoundMessage, HeldMessageState};
use whimbrel_api::problem::Problem;
use whimbrel_model::id::place_from_id;
use whimbrel_model::record::HEADER_ID;
use whimbrel_model::{HoldEndKind, MessageId, PartitionId, StoredRecord, Timestamp};

use crate::answer::{bounded_json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::path_part;
use crate::endpoints::deliveries::deliveries_of;
use crate::endpoints::hold_calls::{self, hold_id};
use crate::endpoints::holds::{ended_document, pending_document};
use crate::keys::{Caller, Scope};
use crate::message_json::{HoldTimes, id_of, write_members};
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, shown};
use crate::scan::{ScanControl, scan_records};
use whimbrel_catalogue::topics::Topic;

/// The maximum number of records to scan from the time of a minted id or of a hold's fire.
const SCAN_RECORDS_MAX: usize = 1_000_000;
/// A record has exactly the time at which its id was minted. Its neighbours, from other nodes or threads, may come before it with a later
/// time. The scan therefore begins a little earlier, and stops this much later.
const SCAN_BEHIND: Duration = Duration::from_secs(1);
const SCAN_AHEAD: Duration = Duration::from_secs(10);

/// Find a message by its id
#[utoipa::path(
    get, path = "/v1/messages/{id}", tag = "messages", operation_id = "get_message",
    params(
        ("id" = String, Path, description = "The message's id"),
        ("topic" = Option<String>, Query, description = "Only in this topic: publishers may use the same id in several topics"),
    ),
    responses(
        (status = 200, description = "The message with its state, in its topic or as a hold", body = FoundMessage, content_type = "application/json"),
        (status = "4XX", description = "`unknown_message`, `bad_parameter`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `no_owner`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_message(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let id = path_part(request.uri().path(), "/v1/messages/")?;
    let caller = api.keys.caller(request.headers())?;
    caller.require(Scope::Consume)?;
    let mut query = Query::parse(request.uri().query())?;
    let within = query.take("topic")?;
    query.end()?;
    let lookup = MessageLookup { api: &api, caller: &caller, within: within.as_deref(), id: &id };
    let json = match lookup.find().await? {
        Some(MessageMatch::InTopic(found)) => {
            let (topic, partition, stored) = &found;
            let place = topic.partition(*partition);
            published_json(&found, &deliveries_of(&api, &caller, topic, place, stored.offset).await)
        }
        Some(MessageMatch::Hold(hold)) => to_json(&HeldMessageState { hold, subscriptions: Vec::new() }),
        None => {
            let detail = format!("no retained message has the id `{}`", shown(&id));
            return Err(ApiProblem::new(Code::UnknownMessage, detail));
        }
    };
    bounded_json_response(api.answers.begin(), json)
}

fn published_json((topic, partition, stored): &InTopic, deliveries: &[DeliveryInfo]) -> Vec<u8> {
    let mut json = Vec::with_capacity(stored.record.size() * 2 + 256);
    let state: &[u8] = if HoldTimes::of(&stored.record).is_some() { b"fired" } else { b"published" };
    json.extend_from_slice(b"{\"state\":\"");
    json.extend_from_slice(state);
    json.extend_from_slice(b"\",");
    write_members(&mut json, topic, *partition, stored);
    json.extend_from_slice(b",\"subscriptions\":");
    serde_json::to_writer(&mut json, deliveries).expect("writing to a buffer cannot fail");
    json.push(b'}');
    json
}

type InTopic = (Arc<Topic>, u32, StoredRecord);

enum MessageMatch {
    InTopic(InTopic),
    Hold(HoldInfo),
}

struct MessageLookup<'a> {
    api: &'a ApiState,
    caller: &'a Caller,
    within: Option<&'a str>,
    id: &'a str,
}

impl MessageLookup<'_> {
    async fn find(&self) -> Result<Option<MessageMatch>, ApiProblem> {
        for answer in self.api.ports.receipts.find(self.id).await? {
            // The answer for a held message has the position of the hold's record. The state of the hold comes from its owner.
            if answer.due.is_none()
                && let Some(found) = self.at(answer.partition, answer.offset).await?
            {
                return Ok(Some(MessageMatch::InTopic(found)));
            }
        }
        if let Some(place) = self.id.parse::<MessageId>().ok().and_then(MessageId::place)
            && let Some(index) = place.partition
        {
            let found = self.from(PartitionId::new(place.topic, index), place.minted_at).await?;
            return Ok(found.map(MessageMatch::InTopic));
        }
        match place_from_id(self.id) {
            Some((partition, offset)) => Ok(self.at(partition, offset).await?.map(MessageMatch::InTopic)),
            None => self.held().await,
        }
    }

    /// The hold of this id, or its message in the topic if it has fired.
    async fn held(&self) -> Result<Option<MessageMatch>, ApiProblem> {
        let Ok(id) = hold_id(self.id) else { return Ok(None) };
        let found = match hold_calls::look_up(self.api, self.caller, &id).await {
            Ok(found) => found,
            Err(problem) if problem.code() == Code::UnknownHold => return Ok(None),
            Err(problem) => return Err(problem),
        };
        let document = match found {
            hold_calls::HoldLookup::Pending(view) => pending_document(&view),
            hold_calls::HoldLookup::Ended(end) => {
                if let HoldEndKind::Fired { partition } = end.how
                    && let Some(found) = self.from(PartitionId::new(end.topic, partition), end.at).await?
                {
                    return Ok(Some(MessageMatch::InTopic(found)));
                }
                ended_document(self.api, &id, &end)
            }
        };
        let is_within = self.within.is_none_or(|within| within == document.topic);
        Ok(is_within.then_some(MessageMatch::Hold(document)))
    }

    /// The topic of a partition, if it exists and this caller may see it.
    fn topic(&self, partition: PartitionId) -> Option<Arc<Topic>> {
        self.api.registry.by_number(partition.topic).filter(|topic| {
            partition.index < topic.partitions()
                && self.caller.covers(&topic.name)
                && self.within.is_none_or(|within| within == &*topic.name)
        })
    }

    /// The message at this position, if it carries the id.
    async fn at(&self, partition: PartitionId, offset: u64) -> Result<Option<InTopic>, ApiProblem> {
        let Some(topic) = self.topic(partition) else { return Ok(None) };
        let mut found = None;
        scan_records(self.api, partition, offset, offset.saturating_add(1), 1, |stored| {
            if stored.offset == offset && id_of(&topic, partition.index, stored) == self.id {
                found = Some(stored.clone());
            }
            ScanControl::Stop
        })
        .await?;
        Ok(found.map(|stored| (topic, partition.index, stored)))
    }

    /// The first message after this time that carries the id, within the scan limit.
    async fn from(&self, partition: PartitionId, moment: Timestamp) -> Result<Option<InTopic>, ApiProblem> {
        let Some(topic) = self.topic(partition) else { return Ok(None) };
        let from = self.api.ports.log.offset_at(partition, moment.saturating_sub(SCAN_BEHIND)).await?;
        let mut found = None;
        scan_records(self.api, partition, from, u64::MAX, SCAN_RECORDS_MAX, |stored| {
            if stored.record.headers.get(HEADER_ID) == Some(self.id.as_bytes()) {
                found = Some(stored.clone());
            }
            let past = stored.record.timestamp.saturating_sub(SCAN_AHEAD) > moment;
            if found.is_some() || past { ScanControl::Stop } else { ScanControl::Continue }
        })
        .await?;
        Ok(found.map(|stored| (topic, partition.index, stored)))
    }
}
