//! Tests that the messages of the model survive the transfer to another node, and that invalid ones are rejected.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::hold::HOLD_ID_MAX_BYTES;
use whimbrel_model::people::{Platform, UID_MAX_BYTES, Uid};
use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, CallFailure, CallOutcome, CallReport, CountQuery, DeadLetter,
    DeliveryState, DispatchError, DispatchReply, DispatchRequest, DueCursor, DurationHistogram, HoldQuery, HoldReply,
    HoldRequest, HoldView, HoldsError, InboxMessage, InboxView, LastError, LeasedMessage, MessageDelivery, MinuteRow,
    NewDueTime, OutMessage, PartitionDelivery, PeopleError, PeopleQuery, PeopleReply, ReplayProgress, RetryAdvice,
    SeatView, SubscriptionStatus,
};
use whimbrel_model::subscription::MessageOrigin;
use whimbrel_model::{
    Headers, Hold, HoldEndKind, HoldId, MessageBody, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber,
};

use super::{Wire, transferred};
use crate::{LocalDispatchError, LocalHoldsError};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn assert_transferred<T: Wire + PartialEq + Debug>(messages: &[T]) {
    for message in messages {
        assert_eq!(transferred(message).as_ref(), Ok(message));
    }
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

fn every_hold_request() -> Vec<HoldRequest> {
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
        HoldRequest::Count(CountQuery { topic: None, from: Some(at(1)), to: None, bucket: Duration::from_secs(60) }),
        HoldRequest::WithdrawTopic { topic: TopicNumber(0) },
    ]
}

fn every_hold_reply() -> Vec<Result<HoldReply, LocalHoldsError>> {
    let end = hold().ended(HoldEndKind::Dead { reason: "too large".into() }, at(5));
    let view = HoldView::of(&hold());
    let refused = |error: HoldsError| Err(LocalHoldsError::Owner(error));
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

fn ids() -> Vec<String> {
    vec!["a".to_owned(), String::new()]
}

fn every_subscription_request() -> Vec<DispatchRequest> {
    let partition = PartitionId::new(TopicNumber(7), 3);
    vec![
        DispatchRequest::Status,
        DispatchRequest::CaughtUp { version: 0 },
        DispatchRequest::Pull { max: 10, wait_ms: 0 },
        DispatchRequest::Ack { ack_ids: ids() },
        DispatchRequest::Nack { ack_ids: ids(), delay_ms: None },
        DispatchRequest::Nack { ack_ids: Vec::new(), delay_ms: Some(0) },
        DispatchRequest::Extend { ack_ids: ids(), lease_ms: 5 },
        DispatchRequest::Message { partition, offset: 9 },
        DispatchRequest::DeadLetters { from: 0, limit: 50 },
        DispatchRequest::Redrive { ids: None },
        DispatchRequest::Redrive { ids: Some(Vec::new()) },
        DispatchRequest::Redrive { ids: Some(ids()) },
    ]
}

fn status() -> SubscriptionStatus {
    SubscriptionStatus {
        lag: 12,
        delivered_rate: 0.25,
        breaker: "open".to_owned(),
        stalled: Some("parked_full".to_owned()),
        last_error: Some(LastError { at_ms: -1, status: None, reason: "connect".to_owned() }),
        partitions: vec![PartitionDelivery {
            topic: "orders".to_owned(),
            partition: 1,
            watermark: 2,
            read_to: 3,
            end: 4,
            unfinished: 1,
        }],
        replays: vec![ReplayProgress { run: 2, done: 3, left: 4 }],
        ..SubscriptionStatus::default()
    }
}

fn pulled() -> LeasedMessage {
    let mut headers = Headers::builder();
    headers.push("a", b"\xff").push("a", b"");
    LeasedMessage {
        ack_id: "ack".to_owned(),
        lease_until: at(-1),
        attempt: 2,
        topic: "orders".to_owned(),
        partition: 1,
        offset: u64::MAX,
        id: "m".to_owned(),
        published_at: at(5),
        record: Record {
            key: Some(Bytes::new()),
            value: Bytes::from_static(b"\0body"),
            headers: headers.take(),
            timestamp: at(6),
        },
    }
}

fn note(outcome: AttemptOutcome) -> AttemptRecord {
    AttemptRecord {
        subscription: SubscriptionNumber(4),
        run: 1,
        partition: PartitionId::new(TopicNumber(7), 3),
        offset: 9,
        attempt: 2,
        at: at(1000),
        took_ms: 12,
        outcome,
    }
}

fn attempts() -> Vec<AttemptRecord> {
    let failed = |status, next| {
        note(AttemptOutcome::Failed { status, reason: "timeout".into(), answer: Bytes::from_static(b"no"), next })
    };
    vec![
        failed(None, AfterFailure::RetryAt(at(0))),
        failed(Some(503), AfterFailure::DeadLetter),
        failed(Some(400), AfterFailure::Dropped),
        note(AttemptOutcome::Delivered { status: 204 }),
    ]
}

fn letter(key: Option<Vec<u8>>) -> DeadLetter {
    let origin = MessageOrigin {
        subscription: "billing".to_owned(),
        run: 1,
        topic: "orders".to_owned(),
        topic_number: TopicNumber(7),
        partition: 3,
        offset: 9,
        attempts: 6,
        published_at_ms: 5,
        headers: 2,
        reason: Some("exhausted".to_owned()),
        last_status: Some(500),
        last_answer: None,
        died_at_ms: Some(8),
    };
    DeadLetter { id: "m".to_owned(), at: 0, key, origin }
}

fn every_subscription_reply() -> Vec<Result<DispatchReply, LocalDispatchError>> {
    let refused = |error: DispatchError| Err(LocalDispatchError::Owner(error));
    let why = || "why".to_owned();
    let standings = [
        DeliveryState::NotForIt,
        DeliveryState::Waiting,
        DeliveryState::InFlight,
        DeliveryState::Retrying,
        DeliveryState::Delivered,
        DeliveryState::Dead,
        DeliveryState::Dropped,
    ];
    let mut answers = vec![
        Ok(DispatchReply::Status(Box::new(status()))),
        Ok(DispatchReply::Status(Box::default())),
        Ok(DispatchReply::CaughtUp),
        Ok(DispatchReply::Pulled(Vec::new())),
        Ok(DispatchReply::Pulled(vec![
            pulled(),
            LeasedMessage { record: Record { key: None, headers: Headers::EMPTY, ..pulled().record }, ..pulled() },
        ])),
        Ok(DispatchReply::Settled { known: 0, unknown: ids() }),
        Ok(DispatchReply::DeadLetters { letters: vec![letter(None), letter(Some(vec![0xff]))], next: Some(0) }),
        Ok(DispatchReply::DeadLetters { letters: Vec::new(), next: None }),
        Ok(DispatchReply::Redriven { count: 3, unknown: ids() }),
        Err(LocalDispatchError::NotHere),
        refused(DispatchError::NoOwner),
        refused(DispatchError::Unknown),
        refused(DispatchError::WrongMode(why())),
        refused(DispatchError::Unavailable(why())),
        refused(DispatchError::OutcomeUnknown(why())),
    ];
    answers.extend(standings.map(|is| Ok(DispatchReply::Message(MessageDelivery { is, attempts: attempts() }))));
    answers
}

fn inbox() -> InboxView {
    let message = OutMessage {
        id: "m1".into(),
        payload: Bytes::from_static(b"hello"),
        content_type: Some("text/plain".into()),
        ..OutMessage::default()
    };
    InboxView {
        epoch: "e1".into(),
        messages: vec![InboxMessage { seq: 4, expires_at: at(9), message: Arc::new(message) }],
        seats: vec![SeatView {
            platform: Platform::new("ios").unwrap(),
            device: "".into(),
            cursor: 3,
            waiting: 1,
            online: true,
            seen_at: at(2),
        }],
        stored: 1,
        next_after: Some(4),
    }
}

#[test]
fn messages_about_holds_are_decoded_as_they_were_encoded() {
    assert_transferred(&every_hold_request());
    assert_transferred(&every_hold_reply());
}

#[test]
fn messages_about_subscriptions_are_decoded_as_they_were_encoded() {
    assert_transferred(&every_subscription_request());
    assert_transferred(&every_subscription_reply());
}

#[test]
fn minutes_are_decoded_as_they_were_encoded() {
    let mut spread = DurationHistogram::default();
    [0, 1_000, 1_000, u64::MAX].into_iter().for_each(|us| spread.note(us));
    let row = MinuteRow {
        published: 1,
        fired: 2,
        delivered: 3,
        failed: 4,
        publish_to_delivery: spread.clone(),
        callback: DurationHistogram::default(),
        lateness: spread,
    };
    assert_transferred(&[vec![(at(-60_000), MinuteRow::default()), (at(0), row)]]);
}

#[test]
fn every_outcome_of_a_callback_is_decoded_as_it_was_encoded() {
    use CallFailure::{BadTarget, Broken, Connect, Forbidden, NoWorker, Timeout, Tls};
    let answered = |retry_after| CallOutcome::Answered { status: 599, retry_after, answer: "no".into() };
    let failed = [Connect, Timeout, Forbidden, Tls, Broken, BadTarget, NoWorker]
        .map(|why| CallOutcome::Failed { why, detail: "because".to_owned() });
    let waits = [
        RetryAdvice::Never,
        RetryAdvice::Later(None),
        RetryAdvice::Later(Some(Duration::from_secs(3))),
        RetryAdvice::LaterForAll,
    ];
    let not_taken = waits.map(|again| CallOutcome::NotTaken { reason: "because".to_owned(), again });
    let answered = [answered(None), answered(Some(Duration::from_secs(3)))];
    let outcomes = failed.into_iter().chain(answered).chain(not_taken);
    let reports: Vec<_> = outcomes.map(|outcome| CallReport { outcome, took: Duration::from_micros(1_234) }).collect();
    assert_transferred(&reports);
}

#[test]
fn messages_about_inboxes_are_decoded_as_they_were_encoded() {
    let uid = Uid::new("eva").unwrap();
    let platform = Some(Platform::new("web").unwrap());
    assert_transferred(&[PeopleQuery::Inbox { uid, platform, after: 3, limit: 50 }]);
    assert_transferred(&[
        None,
        Some(Ok(PeopleReply::Inbox(inbox()))),
        Some(Err(PeopleError::NoOwner(5))),
        Some(Err(PeopleError::Unavailable("why".to_owned()))),
        Some(Err(PeopleError::Overloaded(5))),
    ]);
}

#[test]
fn values_that_no_node_sends_are_rejected() {
    let id = HoldId::new(&"x".repeat(HOLD_ID_MAX_BYTES + 1));
    assert!(transferred(&HoldRequest::Look { id }).is_err());
    let mut histogram = DurationHistogram { sum_us: 5_000, buckets: vec![(60_000, 1)] };
    assert!(transferred(&histogram).is_err(), "a bucket that no duration has");
    histogram.buckets = vec![(2, 1), (1, 1)];
    assert!(transferred(&histogram).is_err(), "unordered buckets");
    let mut bytes = Vec::new();
    "x".repeat(UID_MAX_BYTES + 1).encode(&mut bytes);
    assert!(Uid::decode(&mut bytes.into()).is_err());
    assert!(HoldRequest::decode(&mut Bytes::from_static(&[0])).is_err(), "an unknown variant");
    assert!(<Hold as Wire>::decode(&mut Bytes::from_static(b"\x01\0\0\0?")).is_err());
}
