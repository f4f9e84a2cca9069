//! The encoding of the model's types between nodes: one list for each type.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use whimbrel_model::hold::HOLD_ID_MAX_BYTES;
use whimbrel_model::limits::IDEMPOTENCY_KEY_MAX_CHARS;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid, check_device};
use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, CallFailure, CallOutcome, CallReport, Confirmed, CountQuery,
    DeadLetter, DeliveryState, DispatchError, DispatchReply, DispatchRequest, DueCursor, DurationHistogram, HoldQuery,
    HoldReply, HoldRequest, HoldView, HoldsError, InboxMessage, InboxView, LeasedMessage, MessageDelivery, MinuteRow,
    NewDueTime, OutMessage, PeopleError, PeopleQuery, PeopleReply, RetryAdvice, SeatView, SubscriptionStatus,
    UserSessions,
};
use whimbrel_model::subscription::{DeliveryRule, MessageOrigin};
use whimbrel_model::{Headers, Hold, HoldEnd, HoldId, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber};

use super::Malformed;
use crate::{LocalDispatchError, LocalHoldsError, wire};

/// The most bytes of an idempotency key, in UTF-8.
const KEY_MAX_BYTES: usize = IDEMPOTENCY_KEY_MAX_CHARS * 4;

wire!(Timestamp as i64, |time| time.as_millis(), |ms| Ok(Timestamp::from_millis(ms)));
wire!(TopicNumber as u32, |topic| topic.0, |number| Ok(TopicNumber(number)));
wire!(SubscriptionNumber as u32, |subscription| subscription.0, |number| Ok(SubscriptionNumber(number)));
wire!(struct PartitionId { topic, index });
wire!(Headers as Bytes, |headers| headers.encoded().clone(), |bytes| {
    Headers::from_encoded(bytes).map_err(|_| Malformed("invalid headers"))
});
wire!(struct Record { key, value, headers, timestamp });

wire!(HoldId as String, |id| id.as_str().to_owned(), |id| {
    if id.len() > HOLD_ID_MAX_BYTES { Err(Malformed("an id is too long")) } else { Ok(HoldId::new(&id)) }
});
wire!(Hold as Bytes, |hold| hold.encode().into(), |bytes| {
    Hold::decode(bytes).map(Hold::compact).map_err(|_| Malformed("an invalid hold"))
});
wire!(HoldEnd as Bytes, |end| end.encode().into(), |bytes| {
    HoldEnd::decode(bytes).map_err(|_| Malformed("an invalid end of a hold"))
});
wire!(enum NewDueTime { 1 By(ms), 2 Until(time) });
wire!(struct DueCursor { due, id });
wire!(struct HoldQuery { topic, from, to, after, limit });
wire!(struct CountQuery { topic, from, to, bucket });
wire!(struct HoldView { id, topic, topic_name, key, due, published_at, version });
wire!(enum HoldRequest {
    1 Accept(hold),
    2 Extend { id, to, if_version, key },
    3 Withdraw { id },
    4 Fire { id },
    5 Look { id },
    6 List(query),
    7 Dead(query),
    8 Count(query),
    9 WithdrawTopic { topic },
} if |request| match request {
    HoldRequest::Extend { key: Some(key), .. } => key.len() <= KEY_MAX_BYTES,
    _ => true,
});
wire!(enum HoldReply {
    1 Held { due },
    2 Taken,
    3 Rescheduled { due, version },
    4 Withdrawn,
    5 Fired { at, partition, offset },
    6 Pending(view),
    7 Ended(end),
    8 Unknown,
    9 OtherVersion { version, due },
    10 TooFar,
    11 Listed(views),
    12 ListedDead(ends),
    13 Counted(counts),
    14 WithdrawnMany(count),
});
wire!(enum HoldsError { 1 NoOwner(shard), 2 OutcomeUnknown(reason), 3 Unavailable(reason), 4 Overloaded(shard) });
wire!(enum LocalHoldsError { 1 NotHere, 2 Owner(error) });

wire!(enum DispatchRequest {
    1 Status,
    2 CaughtUp { version },
    3 Pull { max, wait_ms },
    4 Ack { ack_ids },
    5 Nack { ack_ids, delay_ms },
    6 Extend { ack_ids, lease_ms },
    7 Message { partition, offset },
    8 DeadLetters { from, limit },
    9 Redrive { ids },
});
wire!(enum DispatchReply {
    1 Status(status),
    2 CaughtUp,
    3 Pulled(messages),
    4 Settled { known, unknown },
    5 Message(delivery),
    6 DeadLetters { letters, next },
    7 Redriven { count, unknown },
});
wire!(struct LeasedMessage { ack_id, lease_until, attempt, topic, partition, offset, id, published_at, record });
wire!(struct DeadLetter { id, at, key, origin });
wire!(struct MessageDelivery { is, attempts });
wire!(enum DeliveryState { 1 NotForIt, 2 Waiting, 3 InFlight, 4 Retrying, 5 Delivered, 6 Dead, 7 Dropped });
wire!(struct AttemptRecord { subscription, run, partition, offset, attempt, at, took_ms, outcome });
wire!(enum AttemptOutcome { 1 Delivered { status }, 2 Failed { status, reason, answer, next } });
wire!(enum AfterFailure { 1 RetryAt(time), 2 DeadLetter, 3 Dropped });
wire!(enum DispatchError { 1 NoOwner, 2 Unknown, 3 WrongMode(reason), 4 Unavailable(reason), 5 OutcomeUnknown(reason) });
wire!(enum LocalDispatchError { 1 NotHere, 2 Owner(error) });
wire!(struct MinuteRow { published, fired, delivered, failed, publish_to_delivery, callback, lateness });
// Greater bucket values have no duration of 64 bits.
wire!(struct DurationHistogram { sum_us, buckets } if |histogram| {
    let is_known = |(bucket, _): &(u16, u32)| *bucket <= DurationHistogram::bucket_of(u64::MAX);
    histogram.buckets.is_sorted_by(|(one, _), (next, _)| one < next) && histogram.buckets.iter().all(is_known)
});

wire!(struct CallReport { outcome, took });
wire!(enum CallOutcome { 1 Answered { status, retry_after, answer }, 2 Failed { why, detail }, 3 NotTaken { reason, again } });
wire!(enum CallFailure { 1 Connect, 2 Timeout, 3 Forbidden, 4 Tls, 5 Broken, 6 BadTarget, 7 NoWorker });
wire!(enum RetryAdvice { 1 Never, 2 Later(delay), 3 LaterForAll });

// Types that the model stores as JSON.
wire!(SubscriptionStatus as Bytes, to_json, from_json);
wire!(MessageOrigin as Bytes, to_json, from_json);
wire!(DeliveryRule as Bytes, to_json, from_json);

wire!(Uid as String, |uid| uid.to_string(), |text| Uid::new(&text).map_err(|_| Malformed("invalid user id")));
wire!(Platform as String, |platform| platform.to_string(), |text| {
    Platform::new(&text).map_err(|_| Malformed("invalid platform name"))
});
wire!(struct GatewayId { node, incarnation });
wire!(struct SessionId { gateway, number });
wire!(struct OnlineSession { session, platform, device, since } if |session| check_device(&session.device).is_ok());
wire!(struct UserSessions { sessions, last_seen });
wire!(struct Confirmed<Vec<UserSessions>> { ago_ms, found });
wire!(enum PeopleQuery { 1 Inbox { uid, platform, after, limit } });
wire!(enum PeopleReply { 1 Inbox(view) });
wire!(enum PeopleError { 1 NoOwner(partition), 2 Unavailable(reason), 3 Overloaded(partition) });
wire!(struct InboxView { epoch, messages, seats, stored, next_after });
wire!(struct InboxMessage { seq, expires_at, message });
wire!(struct SeatView { platform, device, cursor, waiting, online, seen_at } if |seat| check_device(&seat.device).is_ok());

type OutMessageParts = ((Box<str>, Bytes), (Option<Box<str>>, Timestamp));

wire!(
    OutMessage as OutMessageParts,
    |message| ((message.id.clone(), message.payload.clone()), (message.content_type.clone(), message.sent_at)),
    |((id, payload), (content_type, sent_at))| {
        Ok(OutMessage { id, payload, content_type, sent_at, ..OutMessage::default() })
    }
);

/// A value that cannot be encoded becomes a message that the other node rejects.
fn to_json<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

fn from_json<T: DeserializeOwned>(bytes: Bytes) -> Result<T, Malformed> {
    serde_json::from_slice(&bytes).map_err(|_| Malformed("invalid JSON"))
}
