//! Stream messages decode to what was encoded, each payload once, and malformed ones are rejected.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, GatewayId, Platform, UID_MAX_BYTES, Uid};
use whimbrel_model::ports::{
    Admitted, AnnouncedSession, Arrival, CarrierMessages, Delivery, DeliveryPosition, OutMessage, Resume, ToCarrier,
    ToGateway,
};

use super::limits::{BATCH_BYTES, LINK_VERSION, TOGETHER_MAX};
use super::wire::{
    GatewayBatch, from_batch, from_hello, from_serving, from_told, from_welcome, to_hello, to_serving, to_told,
    to_welcome,
};
use whimbrel_cluster::protocol::{
    LinkAck, LinkBatch, LinkDown, LinkHello, LinkMessage, LinkServing, LinkTold, LinkUp, link_down, link_message,
    link_up,
};

fn uid() -> Uid {
    Uid::new("eva").unwrap()
}

fn arrival(resume: Option<Resume>) -> Arrival {
    let platform = Platform::new("ios").unwrap();
    Arrival { session: 7, uid: uid(), platform, device: "phone".into(), resume, at: Timestamp::from_millis(5) }
}

fn body(payload: &'static [u8]) -> Arc<OutMessage> {
    let (payload, content_type) = (Bytes::from_static(payload), Some("text/plain".into()));
    Arc::new(OutMessage { id: "m1".into(), payload, content_type, ..OutMessage::default() })
}

fn deliver(session: u64, message: &Arc<OutMessage>) -> ToGateway {
    let place = DeliveryPosition::Stored { seq: session + 1, prev: session };
    ToGateway::Deliver(Delivery { session, place, again: false, message: message.clone() })
}

fn to_batches(news: CarrierMessages) -> Vec<LinkDown> {
    let mut batch = GatewayBatch::new(news.partition, news.epoch);
    let mut batches: Vec<LinkDown> = news.news.iter().filter_map(|one| batch.add(one)).collect();
    batches.extend(batch.take());
    batches
}

fn batch_of(down: &LinkDown) -> &LinkBatch {
    match &down.says {
        Some(link_down::Says::Batch(batch)) => batch,
        other => panic!("not a batch: {other:?}"),
    }
}

fn over_the_wire(down: &LinkDown) -> CarrierMessages {
    let down = LinkDown::decode(&down.encode_to_vec()[..]).unwrap();
    from_batch(batch_of(&down).clone()).unwrap()
}

#[test]
fn every_message_of_a_gateway_decodes_to_what_was_encoded() {
    let resume = Resume { epoch: "e1".into(), cursor: 4 };
    let announced = AnnouncedSession { arrival: arrival(None), epoch: "e1".into(), sent: 9, acked: 8 };
    let messages = vec![
        ToCarrier::Arrive(Box::new(arrival(Some(resume)))),
        ToCarrier::Announce(Box::new(announced)),
        ToCarrier::Ack { session: 7, uid: uid(), upto: 9 },
        ToCarrier::Gone { session: 7, uid: uid() },
    ];
    let told = to_told(3, messages.clone());
    assert_eq!(told.len(), 1);
    let up = LinkUp::decode(&told[0].encode_to_vec()[..]).unwrap();
    assert_eq!(from_told(up), Ok((3, messages)));
}

#[test]
fn every_message_of_a_carrier_decodes_to_what_was_encoded() {
    let message = body(b"hello");
    let admitted = |why: Option<&'static str>| Admitted {
        session: 1,
        epoch: "e1".into(),
        head: 4,
        cursor: 2,
        resumed: why.is_none(),
        why,
    };
    let place = DeliveryPosition::Ephemeral { place: 11 };
    let news = vec![
        ToGateway::Admitted(Box::new(admitted(None))),
        ToGateway::Admitted(Box::new(admitted(Some("other_epoch")))),
        ToGateway::Rejected { session: 2, code: CloseCode::Rejected, reason: "one is there".into() },
        deliver(3, &message),
        ToGateway::Deliver(Delivery { session: 4, place, again: true, message }),
        ToGateway::Truncated { session: 5, from: 1, to: 9, prev: 0 },
        ToGateway::Lost { session: 8, count: 1 << 40 },
        ToGateway::Kick { session: 6, code: CloseCode::NoAck, reason: "".into() },
    ];
    let news = CarrierMessages { partition: 2, epoch: 8, news };
    let batches = to_batches(news.clone());
    assert_eq!(batches.len(), 1);
    assert_eq!(over_the_wire(&batches[0]), news);
}

#[test]
fn a_payload_for_many_sessions_is_in_a_batch_once_and_shared_after_decoding() {
    let (one, other) = (body(b"one"), body(b"other"));
    let news = (0..100).map(|session| deliver(session, if session % 2 == 0 { &one } else { &other })).collect();
    let batches = to_batches(CarrierMessages { partition: 0, epoch: 1, news });
    assert_eq!(batches.len(), 1);
    assert_eq!(batch_of(&batches[0]).bodies.len(), 2);
    let arrived = over_the_wire(&batches[0]);
    let bodies: Vec<*const OutMessage> = arrived
        .news
        .iter()
        .map(|news| match news {
            ToGateway::Deliver(delivery) => Arc::as_ptr(&delivery.message),
            other => panic!("not a delivery: {other:?}"),
        })
        .collect();
    assert!(bodies.iter().step_by(2).all(|body| *body == bodies[0]));
    assert!(bodies.iter().skip(1).step_by(2).all(|body| *body == bodies[1]));
}

#[test]
fn more_than_one_batch_is_split_in_order() {
    static LARGE: [u8; BATCH_BYTES / 2] = [0; BATCH_BYTES / 2];
    let bodies: Vec<Arc<OutMessage>> = (0..5).map(|_| body(&LARGE)).collect();
    let news: Vec<ToGateway> = (0..).zip(&bodies).map(|(session, body)| deliver(session, body)).collect();
    let batches = to_batches(CarrierMessages { partition: 0, epoch: 1, news: news.clone() });
    assert_eq!(batches.len(), 3);
    assert_eq!(batches.iter().flat_map(|batch| over_the_wire(batch).news).collect::<Vec<_>>(), news);
    let acks: Vec<ToCarrier> =
        (0..TOGETHER_MAX as u64 + 1).map(|upto| ToCarrier::Ack { session: 1, uid: uid(), upto }).collect();
    let told = to_told(0, acks.clone());
    assert_eq!(told.len(), 2);
    assert_eq!(told.into_iter().flat_map(|told| from_told(told).unwrap().1).collect::<Vec<_>>(), acks);
}

#[test]
fn a_stream_must_start_with_a_hello_of_this_version() {
    let gateway = GatewayId { node: 4, incarnation: 9 };
    assert_eq!(from_hello(Some(to_hello(gateway))), Ok(gateway));
    let hello =
        |version, node| LinkUp { says: Some(link_up::Says::Hello(LinkHello { version, node, incarnation: 1 })) };
    assert!(from_hello(Some(hello(LINK_VERSION + 1, 4))).is_err());
    assert!(from_hello(Some(hello(LINK_VERSION, 70_000))).is_err());
    assert!(from_hello(None).is_err());
    assert!(from_told(to_hello(gateway)).is_err(), "a second hello");
    assert_eq!(from_welcome(Some(to_welcome())), Ok(()));
    assert!(from_welcome(Some(to_serving(&[]))).is_err());
}

#[test]
fn served_partitions_decode_to_what_was_encoded() {
    let down = to_serving(&[None, Some(4), None, Some(9), None]);
    let Some(link_down::Says::Serving(serving)) = down.says else { panic!("not a report of served partitions") };
    assert_eq!(from_serving(serving), Ok(vec![None, Some(4), None, Some(9)]));
    assert_eq!(from_serving(LinkServing::default()), Ok(Vec::new()));
}

#[test]
fn malformed_messages_are_rejected() {
    let told = |says| {
        let messages = vec![LinkMessage { says }];
        LinkUp { says: Some(link_up::Says::Told(LinkTold { partition: 0, messages })) }
    };
    assert!(from_told(told(None)).is_err());
    let ack = |uid: String| Some(link_message::Says::Ack(LinkAck { session: 1, uid, upto: 1 }));
    assert!(from_told(told(ack(String::new()))).is_err());
    assert!(from_told(told(ack("x".repeat(UID_MAX_BYTES + 1)))).is_err());
    let mut batch =
        batch_of(&to_batches(CarrierMessages { partition: 0, epoch: 1, news: vec![deliver(1, &body(b"x"))] })[0])
            .clone();
    batch.bodies.clear();
    assert!(from_batch(batch).is_err(), "a delivery without a payload");
}
