//! The encoding of inbox queries and their answers between nodes. Messages of other nodes are validated.

use whimbrel_model::Timestamp;
use whimbrel_model::ports::{InboxMessage, InboxView, PeopleError, PeopleQuery, PeopleReply, SeatView};

use super::limits::SHOWN_MAX;
use super::wire::{from_body, from_device, from_epoch, from_platform, from_uid, to_body};
use whimbrel_cluster::wire::Malformed;
use whimbrel_cluster::wire::protocol::people_refusal::Why;
use whimbrel_cluster::wire::protocol::{
    InboxAsk, InboxShown, InboxShownMessage, InboxShownSeat, PeopleNothing, PeopleRefusal, PeopleRequest,
    PeopleResponse, people_request, people_response,
};

/// The answer of a local carrier. `None`: it does not own the partition.
pub(super) type DeskAnswer = Option<Result<PeopleReply, PeopleError>>;

pub(super) fn to_request(partition: u32, ask: &PeopleQuery) -> PeopleRequest {
    let PeopleQuery::Inbox { uid, platform, after, limit } = ask;
    let ask = people_request::Ask::Inbox(InboxAsk {
        uid: uid.to_string(),
        platform: platform.as_ref().map(ToString::to_string),
        after: *after,
        limit: u64::try_from(*limit).unwrap_or(u64::MAX),
    });
    PeopleRequest { partition, ask: Some(ask) }
}

pub(super) fn from_request(request: PeopleRequest) -> Result<(u32, PeopleQuery), Malformed> {
    let people_request::Ask::Inbox(inbox) = request.ask.ok_or(Malformed("the request is empty"))?;
    let ask = PeopleQuery::Inbox {
        uid: from_uid(&inbox.uid)?,
        platform: inbox.platform.as_deref().map(from_platform).transpose()?,
        after: inbox.after,
        limit: usize::try_from(inbox.limit.min(SHOWN_MAX)).map_err(|_| Malformed("the limit is too high"))?,
    };
    Ok((request.partition, ask))
}

pub(super) fn to_response(answer: DeskAnswer) -> PeopleResponse {
    use people_response::Told;
    let refused = |why: Why, reason: String| Told::Refusal(PeopleRefusal { why: why.into(), reason });
    let told = match answer {
        None => Told::NotHere(PeopleNothing {}),
        Some(Ok(PeopleReply::Inbox(view))) => Told::Inbox(to_shown(&view)),
        Some(Err(PeopleError::NoOwner(_))) => refused(Why::NoOwner, String::new()),
        Some(Err(PeopleError::Unavailable(reason))) => refused(Why::Unavailable, reason),
        Some(Err(PeopleError::Overloaded(_))) => refused(Why::Overloaded, String::new()),
    };
    PeopleResponse { told: Some(told) }
}

/// Decodes the answer of an owner on another node.
pub(super) fn from_response(partition: u32, response: PeopleResponse) -> Result<DeskAnswer, Malformed> {
    use people_response::Told;
    Ok(match response.told.ok_or(Malformed("the answer is empty"))? {
        Told::NotHere(_) => None,
        Told::Inbox(shown) => Some(Ok(PeopleReply::Inbox(from_shown(shown)?))),
        Told::Refusal(refusal) => Some(Err(match refusal.why() {
            Why::NoOwner => PeopleError::NoOwner(partition),
            Why::Unavailable => PeopleError::Unavailable(refusal.reason),
            Why::Overloaded => PeopleError::Overloaded(partition),
            Why::Unspecified => return Err(Malformed("the reason of a refusal is unknown")),
        })),
    })
}

fn to_shown(view: &InboxView) -> InboxShown {
    let message = |each: &InboxMessage| InboxShownMessage {
        seq: each.seq,
        expires_at_ms: each.expires_at.as_millis(),
        message: Some(to_body(&each.message)),
    };
    let seat = |each: &SeatView| InboxShownSeat {
        platform: each.platform.to_string(),
        device: each.device.to_string(),
        cursor: each.cursor,
        waiting: each.waiting,
        online: each.online,
        seen_at_ms: each.seen_at.as_millis(),
    };
    InboxShown {
        epoch: view.epoch.to_string(),
        messages: view.messages.iter().map(message).collect(),
        seats: view.seats.iter().map(seat).collect(),
        stored: view.stored,
        next_after: view.next_after,
    }
}

fn from_shown(shown: InboxShown) -> Result<InboxView, Malformed> {
    let message = |each: InboxShownMessage| -> Result<InboxMessage, Malformed> {
        Ok(InboxMessage {
            seq: each.seq,
            expires_at: Timestamp::from_millis(each.expires_at_ms),
            message: from_body(each.message.ok_or(Malformed("a message has no payload"))?)?,
        })
    };
    let seat = |each: InboxShownSeat| -> Result<SeatView, Malformed> {
        Ok(SeatView {
            platform: from_platform(&each.platform)?,
            device: from_device(&each.device)?,
            cursor: each.cursor,
            waiting: each.waiting,
            online: each.online,
            seen_at: Timestamp::from_millis(each.seen_at_ms),
        })
    };
    Ok(InboxView {
        epoch: from_epoch(&shown.epoch)?.into(),
        messages: shown.messages.into_iter().map(message).collect::<Result<_, _>>()?,
        seats: shown.seats.into_iter().map(seat).collect::<Result<_, _>>()?,
        stored: shown.stored,
        next_after: shown.next_after,
    })
}
