//! Memory bounds against stalled clients: bodies that do not arrive, and answers that are not received.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use whimbrel_ingress::grpc::protocol::{NewMessage, PublishBatchRequest, PublishRequest, ReadRequest};
use whimbrel_ingress::{ReceiveSettings, Scope};

use crate::support::{TestApi, key, soon};

const MESSAGES: &str = "/v1/topics/orders/messages";
const GRPC_PUBLISH: &str = "/whimbrel.v1.Messages/Publish";
const GRPC_READ: &str = "/whimbrel.v1.Messages/Read";

async fn api(settings: ReceiveSettings) -> TestApi {
    let api = TestApi::with(settings).await;
    api.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    api
}

/// A body that stalls after these bytes.
fn stalled(bytes: impl Into<Bytes>) -> Body {
    let first = stream::iter([Ok::<_, std::convert::Infallible>(bytes.into())]);
    Body::from_stream(first.chain(stream::pending()))
}

fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message);
    frame
}

fn framed_publish(payload_bytes: usize) -> Vec<u8> {
    let message = NewMessage { payload: vec![b'x'; payload_bytes].into(), ..NewMessage::default() };
    framed(&PublishRequest { topic: "orders".into(), message: Some(message), idempotency_key: None })
}

fn grpc_request(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header("content-type", "application/grpc").body(body.into()).unwrap()
}

async fn respond(api: &TestApi, request: Request<Body>) -> Response {
    api.router.clone().oneshot(request).await.unwrap()
}

/// The status and the problem code of a rejected gRPC call.
#[track_caller]
fn grpc_refusal(headers: &HeaderMap) -> (&str, &str) {
    (headers["grpc-status"].to_str().unwrap(), headers["whimbrel-code"].to_str().unwrap())
}

#[tokio::test]
async fn announced_bytes_that_do_not_arrive_count_for_nothing() {
    let api = api(ReceiveSettings { in_flight_bytes_max: 10, ..ReceiveSettings::default() }).await;
    let stalled = api.call(Method::POST, MESSAGES, &[("content-length", "10")], stalled("1"));
    tokio::pin!(stalled);
    assert!(futures_util::poll!(stalled.as_mut()).is_pending());
    api.post(MESSAGES, "12345678").await.ok(201);
    api.post(MESSAGES, "1234567890").await.problem(429, "overloaded");
}

#[tokio::test(start_paused = true)]
async fn a_stalled_body_times_out() {
    let api = api(ReceiveSettings { body_timeout: Duration::from_secs(3), ..ReceiveSettings::default() }).await;
    for uri in [MESSAGES, "/v1/topics/orders/batch"] {
        let begun = tokio::time::Instant::now();
        soon(api.post(uri, stalled("["))).await.problem(408, "body_too_slow");
        assert!(begun.elapsed() < Duration::from_secs(4), "{uri}");
    }
    api.call(Method::PUT, "/v1/topics/orders", &[], stalled("{")).await.problem(408, "body_too_slow");
    let response = respond(&api, grpc_request(GRPC_PUBLISH, stalled("\0"))).await;
    assert_eq!(grpc_refusal(response.headers()), ("10", "body_too_slow"));
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_without_stalls_is_accepted() {
    let api = api(ReceiveSettings { body_timeout: Duration::from_secs(3), ..ReceiveSettings::default() }).await;
    let slowly = |bytes: Vec<u8>| {
        let pieces: Vec<Bytes> = bytes.chunks(bytes.len().div_ceil(5)).map(Bytes::copy_from_slice).collect();
        Body::from_stream(stream::iter(pieces).then(|piece| async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok::<_, std::convert::Infallible>(piece)
        }))
    };
    api.post(MESSAGES, slowly(b"12345".to_vec())).await.ok(201);
    let response = respond(&api, grpc_request(GRPC_PUBLISH, slowly(framed_publish(50)))).await;
    assert!(!response.headers().contains_key("grpc-status"), "{:?}", response.headers());
    assert_eq!(api.payloads("orders").await[0].len(), 2);
}

#[tokio::test]
async fn a_large_body_in_many_pieces_arrives_unchanged() {
    let api = api(ReceiveSettings::default()).await;
    let whole: String = (0..400_000).map(|number| char::from(b'a' + (number % 23) as u8)).collect();
    let pieces: Vec<Bytes> = whole.as_bytes().chunks(7_001).map(Bytes::copy_from_slice).collect();
    let body = || Body::from_stream(stream::iter(pieces.clone()).map(Ok::<_, std::convert::Infallible>));
    api.call(Method::POST, MESSAGES, &[("content-length", "400000")], body()).await.ok(201);
    api.post(MESSAGES, body()).await.ok(201);
    assert!(api.payloads("orders").await[0] == [whole.clone(), whole]);
}

#[tokio::test]
async fn the_body_of_a_call_without_a_key_is_not_read() {
    let api = TestApi::with_keys([key("shop", &[Scope::Publish, Scope::Admin], &[])]).await;
    let touched = Arc::new(AtomicBool::new(false));
    let touches = Arc::clone(&touched);
    let body = Body::from_stream(stream::poll_fn(move |_| {
        touches.store(true, Ordering::SeqCst);
        std::task::Poll::Ready(None::<Result<Bytes, std::convert::Infallible>>)
    }));
    let response = respond(&api, grpc_request(GRPC_PUBLISH, body)).await;
    assert_eq!(grpc_refusal(response.headers()), ("16", "key_missing"));
    assert!(!touched.load(Ordering::SeqCst));
}

#[tokio::test]
async fn calls_whose_bodies_do_not_end_are_bounded_together() {
    let api = api(ReceiveSettings { in_flight_bytes_max: 100, ..ReceiveSettings::default() }).await;
    let message = framed_publish(200);
    let first = respond(&api, grpc_request(GRPC_PUBLISH, stalled(message[..80].to_vec())));
    let mut first = Box::pin(first);
    assert!(futures_util::poll!(first.as_mut()).is_pending());
    let second = soon(respond(&api, grpc_request(GRPC_PUBLISH, stalled(message[..80].to_vec())))).await;
    assert_eq!(grpc_refusal(second.headers()), ("8", "overloaded"));
    assert!(second.headers().contains_key("retry-after"));
    api.post(MESSAGES, "x".repeat(50)).await.problem(429, "overloaded");
    drop(first);
    api.post(MESSAGES, "x".repeat(50)).await.ok(201);
}

#[tokio::test]
async fn a_call_counts_as_load_until_the_log_has_answered() {
    let api = api(ReceiveSettings { in_flight_bytes_max: 100, ..ReceiveSettings::default() }).await;
    let mut call = pin!(respond(&api, grpc_request(GRPC_PUBLISH, framed_publish(60))));
    api.world.log.hold_up_append_of(call.as_mut()).await;
    soon(api.post(MESSAGES, "x".repeat(60))).await.problem(429, "overloaded");
    api.world.log.hold_up(false);
    assert!(!call.await.headers().contains_key("grpc-status"));
    api.post(MESSAGES, "x".repeat(60)).await.ok(201);
}

#[tokio::test]
async fn answers_that_are_not_received_are_bounded_together() {
    let api = api(ReceiveSettings { answer_bytes_max: 5_000, ..ReceiveSettings::default() }).await;
    let id = api.post(MESSAGES, "x".repeat(3_000)).await.ok(201)["id"].as_str().unwrap().to_owned();
    let by_id = format!("/v1/messages/{id}");
    let read = ReadRequest { topic: "orders".into(), ..ReadRequest::default() };
    let http = |uri: &str| Request::get(uri).body(Body::empty()).unwrap();
    let requests =
        || [http(MESSAGES), http("/v1/messages?topic=orders"), http(&by_id), grpc_request(GRPC_READ, framed(&read))];
    for request in requests() {
        let uri = request.uri().clone();
        let response = respond(&api, request).await;
        assert_eq!(response.status(), 200, "{uri}");
        api.get(MESSAGES).await.problem(429, "overloaded");
        api.get("/v1/messages?topic=orders").await.problem(429, "overloaded");
        api.get(&by_id).await.problem(429, "overloaded");
        let call = respond(&api, grpc_request(GRPC_READ, framed(&read))).await;
        assert_eq!(grpc_refusal(call.headers()), ("8", "overloaded"), "{uri}");
        // The connection takes the bytes out of the body before it waits for the client.
        let mut body = response.into_body();
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        api.get(MESSAGES).await.problem(429, "overloaded");
        drop(bytes);
        api.get(MESSAGES).await.ok(200);
    }
}

#[tokio::test]
async fn a_single_answer_passes_whatever_its_size() {
    let api = api(ReceiveSettings { answer_bytes_max: 10, ..ReceiveSettings::default() }).await;
    api.post(MESSAGES, "x".repeat(3_000)).await.ok(201);
    api.get(MESSAGES).await.ok(200);
    api.get("/v1/messages?topic=orders").await.ok(200);
}

#[tokio::test]
async fn an_answer_is_bounded_by_its_encoded_size() {
    let api = api(ReceiveSettings { read_bytes_max: 10_000, ..ReceiveSettings::default() }).await;
    for _ in 0..5 {
        // JSON encodes each of these bytes as six.
        api.post(MESSAGES, "\u{1}".repeat(700)).await.ok(201);
    }
    let (mut offset, mut read) = (0, 0);
    while offset < 5 {
        let answer = api.get(&format!("{MESSAGES}?offset={offset}")).await;
        assert!(answer.body.len() <= 10_000 + 64, "{}", answer.body.len());
        let answer = answer.ok(200);
        let messages = answer["messages"].as_array().unwrap();
        assert!(!messages.is_empty());
        read += messages.len();
        assert_eq!(messages[0]["offset"], offset);
        offset = answer["next_offset"].as_u64().unwrap();
    }
    assert_eq!((offset, read), (5, 5));
}

#[tokio::test]
async fn a_tail_ends_if_too_many_bytes_are_not_received_and_can_resume() {
    let api = api(ReceiveSettings { answer_bytes_max: 5_000, ..ReceiveSettings::default() }).await;
    api.post(MESSAGES, "x".repeat(3_000)).await.ok(201);
    let tail = || Request::get("/v1/topics/orders/tail?offset=earliest").body(Body::empty()).unwrap();
    let untaken = respond(&api, Request::get(MESSAGES).body(Body::empty()).unwrap()).await;
    let refused = respond(&api, tail()).await.into_body().collect();
    let refused = soon(refused).await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&refused).contains("\"code\":\"overloaded\""), "{refused:?}");
    drop(untaken);
    let mut pieces = respond(&api, tail()).await.into_body().into_data_stream().skip(1);
    let piece = soon(pieces.next()).await.unwrap().unwrap();
    assert!(piece.len() > 3_000, "{piece:?}");
    api.get(MESSAGES).await.problem(429, "overloaded");
}

#[tokio::test]
async fn answers_that_are_not_received_reject_further_batches_before_the_append() {
    let api = api(ReceiveSettings { in_flight_bytes_max: 8_000, ..ReceiveSettings::default() }).await;
    let batch = || {
        let batch = Request::post("/v1/topics/orders/batch").header("content-type", "application/x-ndjson");
        batch.body(Body::from("{\"payload\":\"y\"}\n".repeat(40))).unwrap()
    };
    let untaken = respond(&api, batch()).await;
    assert_eq!(untaken.status(), 200);
    api.send(batch()).await.problem(429, "overloaded");
    let call = PublishBatchRequest { topic: "orders".into(), messages: vec![NewMessage::default(); 40] };
    let call = || grpc_request("/whimbrel.v1.Messages/PublishBatch", framed(&call));
    assert_eq!(grpc_refusal(respond(&api, call()).await.headers()), ("8", "overloaded"));
    drop(untaken);
    assert_eq!(api.payloads("orders").await[0].len(), 40, "nothing of the rejected calls was appended");
    let untaken = respond(&api, call()).await;
    api.send(batch()).await.problem(429, "overloaded");
    drop(untaken);
    api.send(batch()).await.ok(200);
}
