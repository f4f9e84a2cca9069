//! Reading by offset and by time, waiting, and answers without messages.

use std::pin::pin;

use http::Method;
use serde_json::json;
use whimbrel_api::messages::ReadPage;
use whimbrel_api::problem::Problem;
use whimbrel_model::{Headers, PartitionId, Record, Timestamp};

use crate::support::{TestApi, typed};

async fn api_with(messages: usize) -> TestApi {
    let api = TestApi::with_partitions(2).await;
    for number in 0..messages {
        // Both have the same key, so both are in the first partition.
        api.post("/v1/topics/orders/messages?key=b", format!("m{number}")).await.ok(201);
        api.world.clock.forward(1000);
    }
    api
}

fn partition(api: &TestApi) -> PartitionId {
    let index = whimbrel_model::partitioner::partition_of(b"b", 2);
    PartitionId::new(api.world.log.number_of("orders").unwrap(), index)
}

async fn read(api: &TestApi, query: &str) -> (Vec<String>, u64) {
    let uri = format!("/v1/topics/orders/messages?partition={}&{query}", partition(api).index);
    let answer: ReadPage = typed(api.get(&uri).await.ok(200));
    (answer.messages.into_iter().map(|message| message.payload.unwrap()).collect(), answer.next_offset)
}

#[tokio::test]
async fn a_read_begins_at_the_requested_position() {
    let api = api_with(4).await;
    assert_eq!(read(&api, "").await.1, 4);
    assert_eq!(read(&api, "offset=earliest&limit=2").await, (vec!["m0".into(), "m1".into()], 2));
    assert_eq!(read(&api, "offset=3").await, (vec!["m3".into()], 4));
    assert_eq!(read(&api, "offset=latest").await, (vec![], 4));
    assert_eq!(read(&api, "since=2026-11-15T10:38:43.500Z").await.0, ["m2", "m3"]);
    assert_eq!(read(&api, "since=2030-01-01T00:00:00Z").await, (vec![], 4));
}

#[tokio::test]
async fn a_read_waits_for_new_messages() {
    let api = api_with(1).await;
    let mut waiting = pin!(read(&api, "offset=1&wait=30s"));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    api.post("/v1/topics/orders/messages?key=b", "later").await.ok(201);
    assert_eq!(waiting.await.0, ["later"]);
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_no_longer_than_asked() {
    let api = api_with(1).await;
    assert_eq!(read(&api, "offset=latest&wait=5s").await, (vec![], 1));
}

#[tokio::test]
async fn a_waiting_read_ends_at_shutdown() {
    let api = api_with(1).await;
    let mut waiting = pin!(read(&api, "offset=1&wait=60s"));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    api.settings.shutdown.cancel();
    assert_eq!(waiting.await, (vec![], 1));
}

#[tokio::test]
async fn an_offset_out_of_range_is_reported_with_the_range() {
    let api = api_with(4).await;
    let uri = format!("/v1/topics/orders/messages?partition={}", partition(&api).index);
    api.get("/v1/topics/nothing/messages").await.problem(404, "unknown_topic");
    api.get("/v1/topics/a%20b/messages").await.problem(404, "unknown_topic");
    api.get("/v1/topics/orders/messages?partition=2").await.problem(404, "unknown_partition");
    let beyond = api.get(&format!("{uri}&offset=5")).await.problem(416, "offset_out_of_range");
    assert_eq!((&beyond["first_offset"], &beyond["next_offset"]), (&json!(0), &json!(4)));
    api.world.log.drop_before(partition(&api), 2);
    let trimmed = api.get(&format!("{uri}&offset=1")).await.problem(416, "offset_out_of_range");
    assert_eq!((&trimmed["first_offset"], &trimmed["next_offset"]), (&json!(2), &json!(4)));
    assert_eq!(read(&api, "").await.0, ["m2", "m3"], "earliest is the first retained message");
}

#[tokio::test]
async fn earliest_is_found_while_retention_removes_it() {
    let api = api_with(4).await;
    api.world.log.drop_after_next_bounds(partition(&api), 2);
    assert_eq!(read(&api, "offset=earliest").await.0, ["m2", "m3"]);
}

#[tokio::test]
async fn damage_is_reported_with_the_offset_to_continue_at() {
    let api = api_with(5).await;
    api.world.log.damage(partition(&api), 1, 3);
    assert_eq!(read(&api, "").await, (vec!["m0".into()], 1));
    let uri = format!("/v1/topics/orders/messages?partition={}&offset=1", partition(&api).index);
    let problem = api.get(&uri).await.problem(410, "damaged");
    assert_eq!(problem["resume_at"], 3);
    typed::<Problem>(problem);
    assert_eq!(read(&api, "offset=3").await.0, ["m3", "m4"]);
}

#[tokio::test]
async fn invalid_parameters_are_rejected() {
    let api = api_with(1).await;
    for (query, code) in [
        ("partition=x", "bad_parameter"),
        ("offset=-1", "bad_parameter"),
        ("offset=first", "bad_parameter"),
        ("since=yesterday", "bad_time"),
        ("offset=1&since=2026-11-15T10:38:43Z", "bad_parameter"),
        ("limit=0", "bad_parameter"),
        ("limit=10001", "bad_parameter"),
        ("wait=61s", "bad_duration"),
        ("wait=long", "bad_duration"),
        ("ofset=1", "bad_parameter"),
        ("limit=1&limit=2", "bad_parameter"),
    ] {
        api.get(&format!("/v1/topics/orders/messages?{query}")).await.problem(422, code);
    }
}

#[tokio::test]
async fn records_of_other_systems_can_be_read() {
    let api = api_with(0).await;
    let record = Record {
        key: Some(vec![0xff, 0].into()),
        value: vec![0xfe].into(),
        headers: Headers::builder().push("theirs", b"1").take(),
        timestamp: Timestamp::from_millis(0),
    };
    api.world.log.put(partition(&api), record);
    let uri = format!("/v1/topics/orders/messages?partition={}", partition(&api).index);
    let message = api.get(&uri).await.ok(200)["messages"][0].clone();
    assert_eq!(message["payload_base64"], "/g==");
    assert_eq!(message["key_base64"], "/wA=");
    assert_eq!(message["headers"], json!({ "theirs": "1" }));
    let by_id = format!("/v1/messages/{}", message["id"].as_str().unwrap());
    assert_eq!(api.get(&by_id).await.ok(200)["offset"], 0);
}

#[tokio::test]
async fn the_head_of_a_read_is_answered_without_its_body() {
    let api = api_with(1).await;
    let answer = api.call(Method::HEAD, "/v1/topics/orders/messages", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
}
