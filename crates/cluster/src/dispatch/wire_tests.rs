//! Tests that requests and answers survive the conversion to the protocol and back.

use bytes::Bytes;
use prost::Message as _;
use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, DeadLetter, DeliveryState, DispatchError, DispatchReply,
    DispatchRequest, DurationHistogram, LastError, LeasedMessage, MessageDelivery, MinuteRow, PartitionDelivery,
    ReplayProgress, SubscriptionStatus,
};
use whimbrel_model::subscription::MessageOrigin;
use whimbrel_model::{Headers, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber};

use super::super::LocalDispatchError;
use super::super::wire::protocol::{self, DispatchResponse, MinutesResponse};
use super::wire::{from_minutes, from_request, from_response, to_minutes, to_request, to_response};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn ids() -> Vec<String> {
    vec!["a".to_owned(), String::new()]
}

fn every_ask() -> Vec<DispatchRequest> {
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

fn every_answer() -> Vec<Result<DispatchReply, LocalDispatchError>> {
    let refused = |error: DispatchError| Err(LocalDispatchError::Dispatch(error));
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

#[test]
fn every_request_is_decoded_as_it_was_encoded() {
    for ask in every_ask() {
        let bytes = to_request(SubscriptionNumber(4), &ask).encode_to_vec();
        let request = protocol::DispatchRequest::decode(&bytes[..]).unwrap();
        assert_eq!(from_request(request), Ok((SubscriptionNumber(4), ask)));
    }
}

#[test]
fn every_answer_is_decoded_as_it_was_encoded() {
    for answer in every_answer() {
        let bytes = to_response(answer.clone()).encode_to_vec();
        let response = DispatchResponse::decode(&bytes[..]).unwrap();
        assert_eq!(from_response(response), Ok(answer));
    }
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
    let minutes = vec![(at(-60_000), MinuteRow::default()), (at(0), row)];
    let bytes = to_minutes(minutes.clone()).encode_to_vec();
    assert_eq!(from_minutes(MinutesResponse::decode(&bytes[..]).unwrap()), Ok(minutes));
}

#[test]
fn malformed_requests_and_answers_are_rejected() {
    assert!(from_request(protocol::DispatchRequest { subscription: 0, ask: None }).is_err());
    assert!(from_response(DispatchResponse { told: None }).is_err());
    let mut spread = DurationHistogram::default();
    spread.note(5_000);
    let minutes = vec![(at(0), MinuteRow { callback: spread, ..MinuteRow::default() })];
    let mut response = to_minutes(minutes);
    let callback = response.minutes[0].callback.as_mut().unwrap();
    callback.buckets[0] = 60_000;
    assert!(from_minutes(response.clone()).is_err(), "a bucket that no duration has");
    response.minutes[0].callback.as_mut().unwrap().counts.clear();
    assert!(from_minutes(response).is_err(), "a bucket without its count");
}
