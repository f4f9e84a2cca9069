//! Questions and answers as they travel between nodes.
//!
//! What comes from another node is checked as anything from a network is: what cannot be understood is refused, never guessed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::hold::HOLD_ID_MAX_BYTES;
use whimbrel_model::limits::IDEMPOTENCY_KEY_MAX_CHARS;
use whimbrel_model::ports::{Ask, CountQuery, DueCursor, HoldQuery, HoldView, HoldsError, NewDue, Told};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

use super::DeskError;
use protocol::ask_request::Ask as WireAsk;
use protocol::ask_response::Told as WireTold;
use protocol::refusal::Kind;
use protocol::{AskRequest, AskResponse, Nothing, Refusal};

/// The generated types, client and service.
pub mod protocol {
    tonic::include_proto!("whimbrel.internal.v1");
}

/// Bytes of a key in UTF-8.
const KEY_MAX_BYTES: usize = IDEMPOTENCY_KEY_MAX_CHARS * 4;

/// What another node sent cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("another node sent what cannot be understood: {0}")]
pub struct Garbled(pub &'static str);

pub fn to_request(shard: u32, ask: &Ask) -> AskRequest {
    let ask = match ask {
        Ask::Accept(hold) => WireAsk::Accept(hold.encode().into()),
        Ask::Extend { id, to, if_version, key } => WireAsk::Extend(protocol::Extend {
            id: text(id),
            to: Some(match to {
                NewDue::By(ms) => protocol::extend::To::ByMs(*ms),
                NewDue::Until(time) => protocol::extend::To::UntilMs(time.as_millis()),
            }),
            if_version: *if_version,
            key: key.as_ref().map(|key| key.to_string()),
        }),
        Ask::Withdraw { id } => WireAsk::Withdraw(text(id)),
        Ask::Fire { id } => WireAsk::Fire(text(id)),
        Ask::Look { id } => WireAsk::Look(text(id)),
        Ask::List(query) => WireAsk::List(to_query(query)),
        Ask::Dead(query) => WireAsk::Dead(to_query(query)),
        Ask::Count(query) => WireAsk::Count(protocol::CountQuery {
            topic: query.topic.map(|topic| topic.0),
            from_ms: query.from.map(Timestamp::as_millis),
            to_ms: query.to.map(Timestamp::as_millis),
            bucket_ms: u64::try_from(query.bucket.as_millis()).unwrap_or(u64::MAX),
        }),
        Ask::WithdrawTopic { topic } => WireAsk::WithdrawTopic(topic.0),
    };
    AskRequest { shard, ask: Some(ask) }
}

pub fn from_request(request: AskRequest) -> Result<(u32, Ask), Garbled> {
    let ask = match request.ask.ok_or(Garbled("a request that asks nothing"))? {
        WireAsk::Accept(hold) => Ask::Accept(Arc::new(Hold::decode(hold).map_err(|_| Garbled("no hold"))?.compact())),
        WireAsk::Extend(extend) => {
            let to = match extend.to.ok_or(Garbled("a move to nowhere"))? {
                protocol::extend::To::ByMs(ms) => NewDue::By(ms),
                protocol::extend::To::UntilMs(ms) => NewDue::Until(Timestamp::from_millis(ms)),
            };
            if extend.key.as_ref().is_some_and(|key| key.len() > KEY_MAX_BYTES) {
                return Err(Garbled("a key that is too long"));
            }
            let key = extend.key.map(Into::into);
            Ask::Extend { id: from_text(&extend.id)?, to, if_version: extend.if_version, key }
        }
        WireAsk::Withdraw(id) => Ask::Withdraw { id: from_text(&id)? },
        WireAsk::Fire(id) => Ask::Fire { id: from_text(&id)? },
        WireAsk::Look(id) => Ask::Look { id: from_text(&id)? },
        WireAsk::List(query) => Ask::List(from_query(query)?),
        WireAsk::Dead(query) => Ask::Dead(from_query(query)?),
        WireAsk::Count(query) => Ask::Count(CountQuery {
            topic: query.topic.map(TopicNumber),
            from: query.from_ms.map(Timestamp::from_millis),
            to: query.to_ms.map(Timestamp::from_millis),
            bucket: Duration::from_millis(query.bucket_ms),
        }),
        WireAsk::WithdrawTopic(topic) => Ask::WithdrawTopic { topic: TopicNumber(topic) },
    };
    Ok((request.shard, ask))
}

pub fn to_response(answer: Result<Told, DeskError>) -> AskResponse {
    let told = match answer {
        Ok(told) => to_told(told),
        Err(DeskError::NotHere) => WireTold::NotHere(Nothing {}),
        Err(DeskError::Holds(error)) => {
            let (kind, reason) = match error {
                HoldsError::NoOwner(_) => (Kind::NoOwner, String::new()),
                HoldsError::OutcomeUnknown(reason) => (Kind::OutcomeUnknown, reason),
                HoldsError::Unavailable(reason) => (Kind::Unavailable, reason),
                HoldsError::Overloaded(_) => (Kind::Overloaded, String::new()),
            };
            WireTold::Refusal(Refusal { kind: kind.into(), reason })
        }
    };
    AskResponse { told: Some(told) }
}

fn to_told(told: Told) -> WireTold {
    match told {
        Told::Held { due } => WireTold::HeldDueMs(due.as_millis()),
        Told::Taken => WireTold::Taken(Nothing {}),
        Told::Rescheduled { due, version } => WireTold::Rescheduled(to_due(due, version)),
        Told::Withdrawn => WireTold::Withdrawn(Nothing {}),
        Told::Fired { at, partition, offset } => {
            WireTold::Fired(protocol::Fired { at_ms: at.as_millis(), partition, offset })
        }
        Told::Pending(view) => WireTold::Pending(to_view(view)),
        Told::Ended(end) => WireTold::Ended(end.encode().into()),
        Told::Unknown => WireTold::Unknown(Nothing {}),
        Told::OtherVersion { version, due } => WireTold::OtherVersion(to_due(due, version)),
        Told::TooFar => WireTold::TooFar(Nothing {}),
        Told::Listed(views) => {
            WireTold::Listed(protocol::HoldViews { holds: views.into_iter().map(to_view).collect() })
        }
        Told::ListedDead(ends) => {
            let ends = ends.into_iter().map(|(id, end)| protocol::End { id: text(&id), end: end.encode().into() });
            WireTold::ListedDead(protocol::Ends { ends: ends.collect() })
        }
        Told::Counted(counts) => {
            let counts = counts.into_iter();
            let counts = counts.map(|(from, count)| protocol::Count { from_ms: from.as_millis(), count }).collect();
            WireTold::Counted(protocol::Counts { counts })
        }
        Told::WithdrawnMany(count) => WireTold::WithdrawnMany(count),
    }
}

/// What the owner on another node answered about that shard.
pub fn from_response(shard: u32, response: AskResponse) -> Result<Result<Told, DeskError>, Garbled> {
    Ok(Ok(match response.told.ok_or(Garbled("an answer that tells nothing"))? {
        WireTold::NotHere(_) => return Ok(Err(DeskError::NotHere)),
        WireTold::Refusal(refusal) => {
            let error = match refusal.kind() {
                Kind::NoOwner => HoldsError::NoOwner(shard),
                Kind::OutcomeUnknown => HoldsError::OutcomeUnknown(refusal.reason),
                Kind::Unavailable => HoldsError::Unavailable(refusal.reason),
                Kind::Overloaded => HoldsError::Overloaded(shard),
                Kind::Unspecified => return Err(Garbled("a refusal for no known reason")),
            };
            return Ok(Err(error.into()));
        }
        WireTold::HeldDueMs(due) => Told::Held { due: Timestamp::from_millis(due) },
        WireTold::Taken(_) => Told::Taken,
        WireTold::Rescheduled(due) => {
            Told::Rescheduled { due: Timestamp::from_millis(due.due_ms), version: due.version }
        }
        WireTold::Withdrawn(_) => Told::Withdrawn,
        WireTold::Fired(fired) => {
            Told::Fired { at: Timestamp::from_millis(fired.at_ms), partition: fired.partition, offset: fired.offset }
        }
        WireTold::Pending(view) => Told::Pending(from_view(view)?),
        WireTold::Ended(end) => Told::Ended(from_end(end)?),
        WireTold::Unknown(_) => Told::Unknown,
        WireTold::OtherVersion(due) => {
            Told::OtherVersion { version: due.version, due: Timestamp::from_millis(due.due_ms) }
        }
        WireTold::TooFar(_) => Told::TooFar,
        WireTold::Listed(views) => Told::Listed(views.holds.into_iter().map(from_view).collect::<Result<_, _>>()?),
        WireTold::ListedDead(ends) => {
            let ends = ends.ends.into_iter().map(|each| Ok((from_text(&each.id)?, from_end(each.end)?)));
            Told::ListedDead(ends.collect::<Result<_, Garbled>>()?)
        }
        WireTold::Counted(counts) => {
            let counts = counts.counts.into_iter();
            Told::Counted(counts.map(|each| (Timestamp::from_millis(each.from_ms), each.count)).collect())
        }
        WireTold::WithdrawnMany(count) => Told::WithdrawnMany(count),
    }))
}

fn text(id: &HoldId) -> String {
    id.as_str().to_owned()
}

fn from_text(id: &str) -> Result<HoldId, Garbled> {
    if id.len() > HOLD_ID_MAX_BYTES { Err(Garbled("an id that is too long")) } else { Ok(HoldId::new(id)) }
}

fn from_end(end: Bytes) -> Result<HoldEnd, Garbled> {
    HoldEnd::decode(end).map_err(|_| Garbled("no end of a hold"))
}

fn to_due(due: Timestamp, version: u64) -> protocol::Due {
    protocol::Due { due_ms: due.as_millis(), version }
}

fn to_query(query: &HoldQuery) -> protocol::HoldQuery {
    protocol::HoldQuery {
        topic: query.topic.map(|topic| topic.0),
        from_ms: query.from.map(Timestamp::as_millis),
        to_ms: query.to.map(Timestamp::as_millis),
        after: query
            .after
            .as_ref()
            .map(|after| protocol::Cursor { due_ms: after.due.as_millis(), id: text(&after.id) }),
        limit: query.limit as u64,
    }
}

fn from_query(query: protocol::HoldQuery) -> Result<HoldQuery, Garbled> {
    let after = match query.after {
        None => None,
        Some(after) => Some(DueCursor { due: Timestamp::from_millis(after.due_ms), id: from_text(&after.id)? }),
    };
    Ok(HoldQuery {
        topic: query.topic.map(TopicNumber),
        from: query.from_ms.map(Timestamp::from_millis),
        to: query.to_ms.map(Timestamp::from_millis),
        after,
        limit: usize::try_from(query.limit).map_err(|_| Garbled("a limit that is too high"))?,
    })
}

fn to_view(view: HoldView) -> protocol::HoldView {
    protocol::HoldView {
        id: text(&view.id),
        topic: view.topic.0,
        topic_name: view.topic_name.to_string(),
        key: view.key,
        due_ms: view.due.as_millis(),
        published_at_ms: view.published_at.as_millis(),
        version: view.version,
    }
}

fn from_view(view: protocol::HoldView) -> Result<HoldView, Garbled> {
    Ok(HoldView {
        id: from_text(&view.id)?,
        topic: TopicNumber(view.topic),
        topic_name: view.topic_name.into(),
        key: view.key,
        due: Timestamp::from_millis(view.due_ms),
        published_at: Timestamp::from_millis(view.published_at_ms),
        version: view.version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use whimbrel_model::{Ending, Headers, HeldMessage};

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn hold() -> Hold {
        Hold {
            id: HoldId::new("order-1"),
            topic: TopicNumber(7),
            topic_name: "orders".into(),
            due: at(2000),
            published_at: at(1000),
            version: 3,
            fresh: false,
            moves: Vec::new(),
            message: HeldMessage {
                key: Some(Bytes::from_static(b"eva")),
                value: Bytes::from_static(b"body"),
                headers: Headers::EMPTY,
            },
        }
    }

    fn every_ask() -> Vec<Ask> {
        let id = HoldId::new("order-1");
        let query = |after| HoldQuery { topic: Some(TopicNumber(0)), from: None, to: Some(at(-5)), after, limit: 9 };
        vec![
            Ask::Accept(Arc::new(hold())),
            Ask::Extend { id: id.clone(), to: NewDue::By(-3), if_version: Some(0), key: Some("".into()) },
            Ask::Extend { id: id.clone(), to: NewDue::Until(at(0)), if_version: None, key: None },
            Ask::Withdraw { id: id.clone() },
            Ask::Fire { id: id.clone() },
            Ask::Look { id: id.clone() },
            Ask::List(query(None)),
            Ask::Dead(query(Some(DueCursor { due: at(8), id }))),
            Ask::Count(CountQuery { topic: None, from: Some(at(1)), to: None, bucket: Duration::from_secs(60) }),
            Ask::WithdrawTopic { topic: TopicNumber(0) },
        ]
    }

    fn every_answer() -> Vec<Result<Told, DeskError>> {
        let end = hold().ended(Ending::Dead { reason: "too large".into() }, at(5));
        let view = HoldView::of(&hold());
        let refused = |error: HoldsError| Err(DeskError::Holds(error));
        vec![
            Ok(Told::Held { due: at(0) }),
            Ok(Told::Taken),
            Ok(Told::Rescheduled { due: at(-1), version: 0 }),
            Ok(Told::Withdrawn),
            Ok(Told::Fired { at: at(1), partition: 0, offset: Some(0) }),
            Ok(Told::Fired { at: at(1), partition: 2, offset: None }),
            Ok(Told::Pending(HoldView { key: None, ..view.clone() })),
            Ok(Told::Ended(end.clone())),
            Ok(Told::Unknown),
            Ok(Told::OtherVersion { version: 9, due: at(1) }),
            Ok(Told::TooFar),
            Ok(Told::Listed(vec![view])),
            Ok(Told::Listed(Vec::new())),
            Ok(Told::ListedDead(vec![(HoldId::new("x"), end)])),
            Ok(Told::Counted(vec![(at(60_000), 2)])),
            Ok(Told::WithdrawnMany(0)),
            Err(DeskError::NotHere),
            refused(HoldsError::NoOwner(4)),
            refused(HoldsError::OutcomeUnknown("why".to_owned())),
            refused(HoldsError::Unavailable("why".to_owned())),
            refused(HoldsError::Overloaded(4)),
        ]
    }

    #[test]
    fn every_question_arrives_as_it_was_asked() {
        for ask in every_ask() {
            let bytes = to_request(4, &ask).encode_to_vec();
            let request = AskRequest::decode(&bytes[..]).unwrap();
            assert_eq!(from_request(request), Ok((4, ask)));
        }
    }

    #[test]
    fn every_answer_arrives_as_it_was_told() {
        for answer in every_answer() {
            let bytes = to_response(answer.clone()).encode_to_vec();
            let response = AskResponse::decode(&bytes[..]).unwrap();
            assert_eq!(from_response(4, response), Ok(answer));
        }
    }

    #[test]
    fn what_is_no_question_is_refused() {
        assert!(from_request(AskRequest { shard: 0, ask: None }).is_err());
        assert!(from_request(AskRequest { shard: 0, ask: Some(WireAsk::Accept(Bytes::from_static(b"?"))) }).is_err());
        let long = "x".repeat(HOLD_ID_MAX_BYTES + 1);
        assert!(from_request(AskRequest { shard: 0, ask: Some(WireAsk::Look(long)) }).is_err());
        assert!(from_response(0, AskResponse { told: None }).is_err());
    }
}
