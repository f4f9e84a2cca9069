//! Tests of one connection, whose broker is the other end of a pipe in memory.

use super::*;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};
use tokio::io::DuplexStream;

const SOON: Duration = Duration::from_millis(200);
const OVERALL: Duration = Duration::from_secs(60);

fn connection() -> (BrokerConnection, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let mut connection = BrokerConnection::start(ours, "test");
    connection.versions.insert(MetadataRequest::KEY, (0, 12));
    (connection, theirs)
}

async fn request_of(broker: &mut DuplexStream) -> Vec<u8> {
    read_frame(broker, || {}).await.unwrap().to_vec()
}

#[tokio::test]
async fn a_call_without_an_answer_is_over_in_time_and_closes_the_connection() {
    let (connection, mut broker) = connection();
    let request = MetadataRequest::default();
    let (answer, _) = tokio::join!(connection.call(&request, SOON), request_of(&mut broker));
    assert!(matches!(answer, Err(CallError::NoAnswer(_))), "{answer:?}");
    assert!(connection.is_closed());
    let next = connection.call(&MetadataRequest::default(), SOON).await;
    assert!(matches!(next, Err(CallError::NotSent(_))), "{next:?}");
}

/// An answer to the first request of a connection, with its length.
fn an_answer() -> Bytes {
    let mut body = BytesMut::new();
    ResponseHeader::default().with_correlation_id(0).encode(&mut body, 1).unwrap();
    MetadataResponse::default().encode(&mut body, 12).unwrap();
    let mut frame = BytesMut::from(&(body.len() as i32).to_be_bytes()[..]);
    frame.extend_from_slice(&body);
    frame.freeze()
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_keeps_arriving_may_take_longer_than_the_timeout() {
    let (connection, mut broker) = connection();
    let request = MetadataRequest::default();
    let (answer, began) = tokio::join!(connection.call_within(&request, SOON, OVERALL), async {
        request_of(&mut broker).await;
        let began = tokio::time::Instant::now();
        let mut answer = an_answer();
        broker.write_all(&answer.split_to(4)).await.unwrap();
        for byte in answer {
            tokio::time::sleep(SOON / 2).await;
            broker.write_all(&[byte]).await.unwrap();
        }
        began
    });
    assert!(answer.is_ok(), "{answer:?}");
    assert!(began.elapsed() > SOON * 4);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_keeps_being_written_may_take_longer_than_the_timeout() {
    let (ours, mut broker) = tokio::io::duplex(16);
    let mut connection = BrokerConnection::start(ours, "test");
    connection.versions.insert(MetadataRequest::KEY, (0, 12));
    let topic = |_| MetadataRequestTopic::default().with_name(Some(TopicName("orders".into())));
    let request = MetadataRequest::default().with_topics(Some((0..20).map(topic).collect()));
    let (answer, ()) = tokio::join!(connection.call_within(&request, SOON, OVERALL), async {
        let mut left = broker.read_i32().await.unwrap() as usize;
        while left > 0 {
            tokio::time::sleep(SOON / 2).await;
            let mut piece = vec![0; left.min(16)];
            broker.read_exact(&mut piece).await.unwrap();
            left -= piece.len();
        }
        broker.write_all(&an_answer()).await.unwrap();
    });
    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn later_requests_do_not_extend_the_timeout_of_a_frozen_broker() {
    let (connection, _broker) = connection();
    let request = MetadataRequest::default();
    let began = tokio::time::Instant::now();
    let (answer, _, _) =
        tokio::join!(connection.call_within(&request, SOON, OVERALL), connection.call(&request, SOON * 2), async {
            tokio::time::sleep(SOON / 2).await;
            connection.call(&request, SOON).await
        });
    assert!(matches!(answer, Err(CallError::NoAnswer(_))), "{answer:?}");
    assert_eq!(began.elapsed(), SOON);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_arrives_too_slowly_ends_at_the_overall_bound() {
    let (connection, mut broker) = connection();
    let request = MetadataRequest::default();
    let began = tokio::time::Instant::now();
    let trickle = async {
        request_of(&mut broker).await;
        broker.write_all(&[0, 1, 0, 0]).await.unwrap();
        while broker.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(SOON / 2).await;
        }
    };
    let (answer, ()) = tokio::join!(connection.call_within(&request, SOON, OVERALL), trickle);
    assert!(matches!(answer, Err(CallError::NoAnswer(_))), "{answer:?}");
    assert_eq!(began.elapsed().as_secs(), OVERALL.as_secs());
}

#[test]
fn the_rest_of_a_timeout_is_not_named_as_a_timeout() {
    assert_eq!(late_answer(ANSWER_MAX), "the broker has not answered within 3000 ms");
    assert!(!late_answer(Duration::ZERO).contains("0 ms"));
}

#[tokio::test]
async fn a_broker_that_hangs_up_ends_the_calls_under_way() {
    let (connection, mut broker) = connection();
    let request = MetadataRequest::default();
    let call = connection.call(&request, SOON * 50);
    let (answer, ()) = tokio::join!(call, async {
        request_of(&mut broker).await;
        drop(broker);
    });
    assert!(matches!(answer, Err(CallError::NoAnswer(_))), "{answer:?}");
}

#[tokio::test]
async fn an_answer_of_another_request_or_with_an_invalid_length_closes_the_connection() {
    for answered in [&[0, 0, 0, 5, 0, 0, 0, 9, 0][..], &[0x7f, 0xff, 0xff, 0xff]] {
        let (connection, mut broker) = connection();
        let request = MetadataRequest::default();
        let call = connection.call(&request, SOON * 50);
        let (answer, ()) = tokio::join!(call, async {
            request_of(&mut broker).await;
            broker.write_all(answered).await.unwrap();
        });
        assert!(matches!(answer, Err(CallError::NoAnswer(_))), "{answered:?}: {answer:?}");
        assert!(connection.is_closed(), "{answered:?}");
    }
}

#[tokio::test]
async fn a_request_that_the_broker_does_not_know_is_not_sent() {
    let (mut connection, _broker) = connection();
    connection.versions.clear();
    let answer = connection.call(&MetadataRequest::default(), SOON).await;
    assert!(matches!(answer, Err(CallError::NotSent(_))), "{answer:?}");
}

#[tokio::test]
async fn an_unsupported_request_is_named_in_the_error() {
    let (mut connection, _broker) = connection();
    connection.versions.clear();
    let missing = connection.call(&MetadataRequest::default(), SOON).await.unwrap_err();
    assert_eq!(missing.to_string(), "the broker does not support Metadata (API key 3)");
    connection.versions.insert(MetadataRequest::KEY, (13, 14));
    let newer = connection.call(&MetadataRequest::default(), SOON).await.unwrap_err();
    let expected = "the broker supports Metadata from version 13; Whimbrel supports up to version 12";
    assert_eq!(newer.to_string(), expected);
}
