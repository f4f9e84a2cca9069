//! Conversions of requests about holds, and of their answers, between the model and the node-to-node protocol.
//!
//! Messages of other nodes are validated as any input from a network: a message that cannot be decoded is rejected, never guessed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::hold::HOLD_ID_MAX_BYTES;
use whimbrel_model::limits::IDEMPOTENCY_KEY_MAX_CHARS;
use whimbrel_model::ports::{
    CountQuery, DueCursor, HoldQuery, HoldReply, HoldRequest, HoldView, HoldsError, NewDueTime,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

use super::LocalHoldsError;
use protocol::ask_request::Ask as WireAsk;
use protocol::ask_response::Told as WireTold;
use protocol::refusal::Kind;
use protocol::{AskRequest, AskResponse, Nothing, Refusal};

pub mod protocol {
    tonic::include_proto!("whimbrel.internal.v1");
}

/// The most bytes of an idempotency key, in UTF-8.
const KEY_MAX_BYTES: usize = IDEMPOTENCY_KEY_MAX_CHARS * 4;

/// A message of another node cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("another node sent an invalid message: {0}")]
pub struct Malformed(pub &'static str);

pub fn to_request(shard: u32, ask: &HoldRequest) -> AskRequest {
    let ask = match ask {
        HoldRequest::Accept(hold) => WireAsk::Accept(hold.encode().into()),
        HoldRequest::Extend { id, to, if_version, key } => WireAsk::Extend(protocol::Extend {
            id: text(id),
            to: Some(match to {
                NewDueTime::By(ms) => protocol::extend::To::ByMs(*ms),
                NewDueTime::Until(time) => protocol::extend::To::UntilMs(time.as_millis()),
            }),
            if_version: *if_version,
            key: key.as_ref().map(|key| key.to_string()),
        }),
        HoldRequest::Withdraw { id } => WireAsk::Withdraw(text(id)),
        HoldRequest::Fire { id } => WireAsk::Fire(text(id)),
        HoldRequest::Look { id } => WireAsk::Look(text(id)),
        HoldRequest::List(query) => WireAsk::List(to_query(query)),
        HoldRequest::Dead(query) => WireAsk::Dead(to_query(query)),
        HoldRequest::Count(query) => WireAsk::Count(protocol::CountQuery {
            topic: query.topic.map(|topic| topic.0),
            from_ms: query.from.map(Timestamp::as_millis),
            to_ms: query.to.map(Timestamp::as_millis),
            bucket_ms: u64::try_from(query.bucket.as_millis()).unwrap_or(u64::MAX),
        }),
        HoldRequest::WithdrawTopic { topic } => WireAsk::WithdrawTopic(topic.0),
    };
    AskRequest { shard, ask: Some(ask) }
}

pub fn from_request(request: AskRequest) -> Result<(u32, HoldRequest), Malformed> {
    let ask = match request.ask.ok_or(Malformed("a request without contents"))? {
        WireAsk::Accept(hold) => {
            HoldRequest::Accept(Arc::new(Hold::decode(hold).map_err(|_| Malformed("an invalid hold"))?.compact()))
        }
        WireAsk::Extend(extend) => {
            let to = match extend.to.ok_or(Malformed("a move without a due time"))? {
                protocol::extend::To::ByMs(ms) => NewDueTime::By(ms),
                protocol::extend::To::UntilMs(ms) => NewDueTime::Until(Timestamp::from_millis(ms)),
            };
            if extend.key.as_ref().is_some_and(|key| key.len() > KEY_MAX_BYTES) {
                return Err(Malformed("a key that is too long"));
            }
            let key = extend.key.map(Into::into);
            HoldRequest::Extend { id: from_text(&extend.id)?, to, if_version: extend.if_version, key }
        }
        WireAsk::Withdraw(id) => HoldRequest::Withdraw { id: from_text(&id)? },
        WireAsk::Fire(id) => HoldRequest::Fire { id: from_text(&id)? },
        WireAsk::Look(id) => HoldRequest::Look { id: from_text(&id)? },
        WireAsk::List(query) => HoldRequest::List(from_query(query)?),
        WireAsk::Dead(query) => HoldRequest::Dead(from_query(query)?),
        WireAsk::Count(query) => HoldRequest::Count(CountQuery {
            topic: query.topic.map(TopicNumber),
            from: query.from_ms.map(Timestamp::from_millis),
            to: query.to_ms.map(Timestamp::from_millis),
            bucket: Duration::from_millis(query.bucket_ms),
        }),
        WireAsk::WithdrawTopic(topic) => HoldRequest::WithdrawTopic { topic: TopicNumber(topic) },
    };
    Ok((request.shard, ask))
}

pub fn to_response(answer: Result<HoldReply, LocalHoldsError>) -> AskResponse {
    let told = match answer {
        Ok(told) => to_told(told),
        Err(LocalHoldsError::NotHere) => WireTold::NotHere(Nothing {}),
        Err(LocalHoldsError::Holds(error)) => {
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

fn to_told(told: HoldReply) -> WireTold {
    match told {
        HoldReply::Held { due } => WireTold::HeldDueMs(due.as_millis()),
        HoldReply::Taken => WireTold::Taken(Nothing {}),
        HoldReply::Rescheduled { due, version } => WireTold::Rescheduled(to_due(due, version)),
        HoldReply::Withdrawn => WireTold::Withdrawn(Nothing {}),
        HoldReply::Fired { at, partition, offset } => {
            WireTold::Fired(protocol::Fired { at_ms: at.as_millis(), partition, offset })
        }
        HoldReply::Pending(view) => WireTold::Pending(to_view(view)),
        HoldReply::Ended(end) => WireTold::Ended(end.encode().into()),
        HoldReply::Unknown => WireTold::Unknown(Nothing {}),
        HoldReply::OtherVersion { version, due } => WireTold::OtherVersion(to_due(due, version)),
        HoldReply::TooFar => WireTold::TooFar(Nothing {}),
        HoldReply::Listed(views) => {
            WireTold::Listed(protocol::HoldViews { holds: views.into_iter().map(to_view).collect() })
        }
        HoldReply::ListedDead(ends) => {
            let ends = ends.into_iter().map(|(id, end)| protocol::End { id: text(&id), end: end.encode().into() });
            WireTold::ListedDead(protocol::Ends { ends: ends.collect() })
        }
        HoldReply::Counted(counts) => {
            let counts = counts.into_iter();
            let counts = counts.map(|(from, count)| protocol::Count { from_ms: from.as_millis(), count }).collect();
            WireTold::Counted(protocol::Counts { counts })
        }
        HoldReply::WithdrawnMany(count) => WireTold::WithdrawnMany(count),
    }
}

/// Decodes the answer of an owner on another node about `shard`.
pub fn from_response(shard: u32, response: AskResponse) -> Result<Result<HoldReply, LocalHoldsError>, Malformed> {
    Ok(Ok(match response.told.ok_or(Malformed("an answer without contents"))? {
        WireTold::NotHere(_) => return Ok(Err(LocalHoldsError::NotHere)),
        WireTold::Refusal(refusal) => {
            let error = match refusal.kind() {
                Kind::NoOwner => HoldsError::NoOwner(shard),
                Kind::OutcomeUnknown => HoldsError::OutcomeUnknown(refusal.reason),
                Kind::Unavailable => HoldsError::Unavailable(refusal.reason),
                Kind::Overloaded => HoldsError::Overloaded(shard),
                Kind::Unspecified => return Err(Malformed("an error of unknown kind")),
            };
            return Ok(Err(error.into()));
        }
        WireTold::HeldDueMs(due) => HoldReply::Held { due: Timestamp::from_millis(due) },
        WireTold::Taken(_) => HoldReply::Taken,
        WireTold::Rescheduled(due) => {
            HoldReply::Rescheduled { due: Timestamp::from_millis(due.due_ms), version: due.version }
        }
        WireTold::Withdrawn(_) => HoldReply::Withdrawn,
        WireTold::Fired(fired) => HoldReply::Fired {
            at: Timestamp::from_millis(fired.at_ms),
            partition: fired.partition,
            offset: fired.offset,
        },
        WireTold::Pending(view) => HoldReply::Pending(from_view(view)?),
        WireTold::Ended(end) => HoldReply::Ended(from_end(end)?),
        WireTold::Unknown(_) => HoldReply::Unknown,
        WireTold::OtherVersion(due) => {
            HoldReply::OtherVersion { version: due.version, due: Timestamp::from_millis(due.due_ms) }
        }
        WireTold::TooFar(_) => HoldReply::TooFar,
        WireTold::Listed(views) => HoldReply::Listed(views.holds.into_iter().map(from_view).collect::<Result<_, _>>()?),
        WireTold::ListedDead(ends) => {
            let ends = ends.ends.into_iter().map(|each| Ok((from_text(&each.id)?, from_end(each.end)?)));
            HoldReply::ListedDead(ends.collect::<Result<_, Malformed>>()?)
        }
        WireTold::Counted(counts) => {
            let counts = counts.counts.into_iter();
            HoldReply::Counted(counts.map(|each| (Timestamp::from_millis(each.from_ms), each.count)).collect())
        }
        WireTold::WithdrawnMany(count) => HoldReply::WithdrawnMany(count),
    }))
}

fn text(id: &HoldId) -> String {
    id.as_str().to_owned()
}

fn from_text(id: &str) -> Result<HoldId, Malformed> {
    if id.len() > HOLD_ID_MAX_BYTES { Err(Malformed("an id that is too long")) } else { Ok(HoldId::new(id)) }
}

fn from_end(end: Bytes) -> Result<HoldEnd, Malformed> {
    HoldEnd::decode(end).map_err(|_| Malformed("an invalid end of a hold"))
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

fn from_query(query: protocol::HoldQuery) -> Result<HoldQuery, Malformed> {
    let after = match query.after {
        None => None,
        Some(after) => Some(DueCursor { due: Timestamp::from_millis(after.due_ms), id: from_text(&after.id)? }),
    };
    Ok(HoldQuery {
        topic: query.topic.map(TopicNumber),
        from: query.from_ms.map(Timestamp::from_millis),
        to: query.to_ms.map(Timestamp::from_millis),
        after,
        limit: usize::try_from(query.limit).map_err(|_| Malformed("a limit that is too large"))?,
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

fn from_view(view: protocol::HoldView) -> Result<HoldView, Malformed> {
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
    use whimbrel_model::{Headers, HoldEndKind, MessageBody};

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
            message: MessageBody {
                key: Some(Bytes::from_static(b"eva")),
                value: Bytes::from_static(b"body"),
                headers: Headers::EMPTY,
            },
        }
    }

    fn every_ask() -> Vec<HoldRequest> {
        let id = HoldId::new("order-1");
        let query = |after| HoldQuery { topic: Some(TopicNumber(0)), from: None, to: Some(at(-5)), after, limit: 9 };
        vec![
            HoldRequest::Accept(Arc::new(hold())),
            HoldRequest::Extend { id: id.clone(), to: NewDueTime::By(-3), if_version: Some(0), key: Some("".into()) },
            HoldRequest::Extend { id: id.clone(), to: NewDueTime::Until(at(0)), if_version: None, key: None },
            HoldRequest::Withdraw { id: id.clone() },
            HoldRequest::Fire { id: id.clone() },
            HoldRequest::Look { id: id.clone() },
            HoldRequest::List(query(None)),
            HoldRequest::Dead(query(Some(DueCursor { due: at(8), id }))),
            HoldRequest::Count(CountQuery {
                topic: None,
                from: Some(at(1)),
                to: None,
                bucket: Duration::from_secs(60),
            }),
            HoldRequest::WithdrawTopic { topic: TopicNumber(0) },
        ]
    }

    fn every_answer() -> Vec<Result<HoldReply, LocalHoldsError>> {
        let end = hold().ended(HoldEndKind::Dead { reason: "too large".into() }, at(5));
        let view = HoldView::of(&hold());
        let refused = |error: HoldsError| Err(LocalHoldsError::Holds(error));
        vec![
            Ok(HoldReply::Held { due: at(0) }),
            Ok(HoldReply::Taken),
            Ok(HoldReply::Rescheduled { due: at(-1), version: 0 }),
            Ok(HoldReply::Withdrawn),
            Ok(HoldReply::Fired { at: at(1), partition: 0, offset: Some(0) }),
            Ok(HoldReply::Fired { at: at(1), partition: 2, offset: None }),
            Ok(HoldReply::Pending(HoldView { key: None, ..view.clone() })),
            Ok(HoldReply::Ended(end.clone())),
            Ok(HoldReply::Unknown),
            Ok(HoldReply::OtherVersion { version: 9, due: at(1) }),
            Ok(HoldReply::TooFar),
            Ok(HoldReply::Listed(vec![view])),
            Ok(HoldReply::Listed(Vec::new())),
            Ok(HoldReply::ListedDead(vec![(HoldId::new("x"), end)])),
            Ok(HoldReply::Counted(vec![(at(60_000), 2)])),
            Ok(HoldReply::WithdrawnMany(0)),
            Err(LocalHoldsError::NotHere),
            refused(HoldsError::NoOwner(4)),
            refused(HoldsError::OutcomeUnknown("why".to_owned())),
            refused(HoldsError::Unavailable("why".to_owned())),
            refused(HoldsError::Overloaded(4)),
        ]
    }

    #[test]
    fn every_request_is_decoded_as_it_was_encoded() {
        for ask in every_ask() {
            let bytes = to_request(4, &ask).encode_to_vec();
            let request = AskRequest::decode(&bytes[..]).unwrap();
            assert_eq!(from_request(request), Ok((4, ask)));
        }
    }

    #[test]
    fn every_answer_is_decoded_as_it_was_encoded() {
        for answer in every_answer() {
            let bytes = to_response(answer.clone()).encode_to_vec();
            let response = AskResponse::decode(&bytes[..]).unwrap();
            assert_eq!(from_response(4, response), Ok(answer));
        }
    }

    #[test]
    fn malformed_requests_and_answers_are_rejected() {
        assert!(from_request(AskRequest { shard: 0, ask: None }).is_err());
        assert!(from_request(AskRequest { shard: 0, ask: Some(WireAsk::Accept(Bytes::from_static(b"?"))) }).is_err());
        let long = "x".repeat(HOLD_ID_MAX_BYTES + 1);
        assert!(from_request(AskRequest { shard: 0, ask: Some(WireAsk::Look(long)) }).is_err());
        assert!(from_response(0, AskResponse { told: None }).is_err());
    }
}
