//! Publishing one message.

use std::pin::pin;

use http::Method;
use whimbrel_api::messages::Published;
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::PartitionId;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::LogError;

use crate::support::{TestApi, World, typed};

#[tokio::test]
async fn a_published_message_is_read_back_unchanged() {
    let api = TestApi::new().await;
    let headers = [("content-type", "text/plain"), ("Whimbrel-Header-X-Env", "prod"), ("ce-type", "order.paid")];
    let answer = api.call(Method::POST, "/v1/topics/orders/messages?key=k1", &headers, "hello").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let placed: Published = typed(answer.ok(201));
    assert_eq!(placed.partition, partition_of(b"k1", 4));
    let uri = format!("/v1/topics/orders/messages?partition={}", placed.partition);
    let read = api.get(&uri).await.ok(200);
    let message = &read["messages"][0];
    assert_eq!(message["id"], placed.id);
    assert_eq!(message["offset"], placed.offset);
    assert_eq!(message["key"], "k1");
    assert_eq!(message["payload"], "hello");
    assert_eq!(message["content_type"], "text/plain");
    assert_eq!(message["headers"], serde_json::json!({ "x-env": "prod", "ce-type": "order.paid" }));
    assert_eq!(message["published_at"], "2026-11-15T10:38:42.000Z");
}

#[tokio::test]
async fn an_empty_body_is_a_valid_message() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages?key=a", "").await.ok(201);
    let partition = partition_of(b"a", 4);
    let read = api.get(&format!("/v1/topics/orders/messages?partition={partition}")).await.ok(200);
    assert_eq!(read["messages"][0]["payload"], "");
}

#[tokio::test]
async fn messages_without_a_key_are_distributed_round_robin() {
    let api = TestApi::new().await;
    let mut partitions = Vec::new();
    for _ in 0..8 {
        partitions.push(api.post("/v1/topics/orders/messages", "x").await.ok(201)["partition"].as_u64().unwrap());
    }
    assert_eq!(partitions, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[tokio::test]
async fn invalid_names_keys_ids_and_attributes_have_different_codes() {
    let api = TestApi::new().await;
    for (uri, code) in [
        ("/v1/topics/a%20b/messages", "bad_name"),
        ("/v1/topics/%2e%2e/messages", "bad_name"),
        ("/v1/topics/_events/messages", "reserved_name"),
        ("/v1/topics/%ff/messages", "bad_parameter"),
        ("/v1/topics/orders/messages?key=", "bad_key"),
        ("/v1/topics/orders/messages?id=a.b", "bad_id"),
        ("/v1/topics/orders/messages?dealy=5s", "bad_parameter"),
        ("/v1/topics/orders/messages?delay=soon", "bad_duration"),
        ("/v1/topics/orders/messages?delay=3000d", "bad_duration"),
        ("/v1/topics/orders/messages?deliver_at=tomorrow", "bad_time"),
        ("/v1/topics/orders/messages?delay=5s&deliver_at=2026-11-15T00:00:00Z", "bad_parameter"),
    ] {
        api.post(uri, "x").await.problem(422, code);
    }
    let long = format!("/v1/topics/{}/messages", "a".repeat(201));
    api.post(&long, "x").await.problem(422, "bad_name");
    for (name, code) in [("whimbrel-header-host", "reserved_header"), ("whimbrel-nothing", "bad_parameter")] {
        api.call(Method::POST, "/v1/topics/orders/messages", &[(name, "x")], "x").await.problem(422, code);
    }
    api.get("/v1/topics/orders").await.problem(404, "unknown_topic");
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_whether_announced_or_not() {
    let api = TestApi::with(ReceiveSettings { payload_bytes_max: 4, ..ReceiveSettings::default() }).await;
    api.post("/v1/topics/orders/messages", "1234").await.ok(201);
    let announced = [("content-length", "5")];
    let refused = api.call(Method::POST, "/v1/topics/orders/messages", &announced, "12345").await;
    assert_eq!(refused.problem(413, "payload_too_large")["limit"], 4);
    api.post("/v1/topics/orders/messages", "12345").await.problem(413, "payload_too_large");
}

#[tokio::test]
async fn a_body_in_many_pieces_is_one_payload() {
    let api = TestApi::new().await;
    let pieces = ["ab", "", "cd", "e"].map(Ok::<_, std::convert::Infallible>);
    let body = axum::body::Body::from_stream(futures_util::stream::iter(pieces));
    api.post("/v1/topics/orders/messages?key=a", body).await.ok(201);
    assert_eq!(api.payloads("orders").await.concat(), ["abcde"]);
}

#[tokio::test]
async fn without_auto_creation_an_unknown_topic_is_unknown() {
    let api = TestApi::with_topics(TopicDefaults { auto_create: false, ..TopicDefaults::default() }).await;
    api.post("/v1/topics/orders/messages", "x").await.problem(404, "unknown_topic");
    api.put("/v1/topics/orders", serde_json::json!({})).await.ok(201);
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
}

#[tokio::test]
async fn each_error_of_the_log_has_its_problem_code() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    for (error, status, code) in [
        (LogError::DiskFull("no room".into()), 503, "disk_full"),
        (LogError::Overloaded("queue".into()), 429, "overloaded"),
        (LogError::Unavailable("broker".into()), 503, "unavailable"),
        (LogError::Unknown("timed out".into()), 504, "outcome_unknown"),
        (LogError::TooLarge { size: 9, limit: 5 }, 413, "payload_too_large"),
        (LogError::Poisoned("sync failed".into()), 503, "log_closed"),
    ] {
        api.world.log.judge(move |_| Err(error.clone()));
        api.post("/v1/topics/orders/messages", "x").await.problem(status, code);
    }
}

#[tokio::test]
async fn bytes_in_flight_into_the_log_are_bounded() {
    let world = World::new();
    let settings = ReceiveSettings { in_flight_bytes_max: 10, ..ReceiveSettings::default() };
    let api = world.try_open(settings).await.unwrap();
    api.put("/v1/topics/orders", serde_json::json!({})).await.ok(201);
    let mut first = pin!(api.post("/v1/topics/orders/messages", "12345678"));
    world.log.hold_up_append_of(first.as_mut()).await;
    api.post("/v1/topics/orders/messages", "12345678").await.problem(429, "overloaded");
    world.log.hold_up(false);
    first.await.ok(201);
    api.post("/v1/topics/orders/messages", "12345678").await.ok(201);
}

#[tokio::test]
async fn a_publish_of_a_disconnected_client_is_finished() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", serde_json::json!({ "partitions": 1 })).await.ok(201);
    api.world.log.hold_up_append_of(pin!(api.post("/v1/topics/orders/messages", "kept"))).await;
    api.world.log.hold_up(false);
    let read = api.get("/v1/topics/orders/messages?wait=10s").await.ok(200);
    assert_eq!(read["messages"][0]["payload"], "kept");
}

#[tokio::test]
async fn a_record_carries_the_id_and_the_content_type_as_headers() {
    let api = TestApi::new().await;
    let headers = [("content-type", "application/json")];
    let answer = api.call(Method::POST, "/v1/topics/orders/messages", &headers, "{}").await.ok(201);
    let number = api.world.log.number_of("orders").unwrap();
    let records = api.world.log.records(PartitionId::new(number, 0));
    assert_eq!(records[0].headers.get_str("whimbrel-id"), answer["id"].as_str());
    assert_eq!(records[0].headers.get_str("content-type"), Some("application/json"));
}
