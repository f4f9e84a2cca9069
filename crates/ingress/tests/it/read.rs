//! Reading by offset and by time, waiting, and what is answered where nothing is.

use http::Method;
use serde_json::json;
use whimbrel_ingress::documents::{ProblemDocument, ReadAnswer};
use whimbrel_model::{Headers, PartitionId, Record, Timestamp};

use crate::support::House;

async fn house_with(messages: usize) -> House {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 2 })).await.ok(201);
    for number in 0..messages {
        // Both land in the first partition: the key is the same.
        house.post("/v1/topics/orders/messages?key=b", format!("m{number}")).await.ok(201);
        house.world.clock.forward(1000);
    }
    house
}

fn partition(house: &House) -> PartitionId {
    let index = whimbrel_model::partitioner::partition_of(b"b", 2);
    PartitionId::new(house.world.log.number_of("orders").unwrap(), index)
}

async fn read(house: &House, query: &str) -> (Vec<String>, u64) {
    let uri = format!("/v1/topics/orders/messages?partition={}&{query}", partition(house).index);
    let answer: ReadAnswer = serde_json::from_value(house.get(&uri).await.ok(200)).unwrap();
    (answer.messages.into_iter().map(|message| message.payload.unwrap()).collect(), answer.next_offset)
}

#[tokio::test]
async fn reading_begins_where_it_is_asked_to() {
    let house = house_with(4).await;
    assert_eq!(read(&house, "").await.1, 4);
    assert_eq!(read(&house, "offset=earliest&limit=2").await, (vec!["m0".into(), "m1".into()], 2));
    assert_eq!(read(&house, "offset=3").await, (vec!["m3".into()], 4));
    assert_eq!(read(&house, "offset=latest").await, (vec![], 4));
    assert_eq!(read(&house, "since=2026-11-15T10:38:43.500Z").await.0, ["m2", "m3"]);
    assert_eq!(read(&house, "since=2030-01-01T00:00:00Z").await, (vec![], 4));
}

#[tokio::test]
async fn a_read_waits_for_what_comes() {
    let house = house_with(1).await;
    let waiting = read(&house, "offset=1&wait=30s");
    tokio::pin!(waiting);
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    house.post("/v1/topics/orders/messages?key=b", "later").await.ok(201);
    assert_eq!(waiting.await.0, ["later"]);
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_no_longer_than_asked() {
    let house = house_with(1).await;
    assert_eq!(read(&house, "offset=latest&wait=5s").await, (vec![], 1));
}

#[tokio::test]
async fn a_waiting_read_ends_with_the_server() {
    let house = house_with(1).await;
    let waiting = read(&house, "offset=1&wait=60s");
    tokio::pin!(waiting);
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    house.settings.shutdown.cancel();
    assert_eq!(waiting.await, (vec![], 1));
}

#[tokio::test]
async fn what_is_not_there_is_told_with_what_is() {
    let house = house_with(4).await;
    let uri = format!("/v1/topics/orders/messages?partition={}", partition(&house).index);
    house.get("/v1/topics/nothing/messages").await.problem(404, "unknown_topic");
    house.get("/v1/topics/a%20b/messages").await.problem(404, "unknown_topic");
    house.get("/v1/topics/orders/messages?partition=2").await.problem(404, "unknown_partition");
    let beyond = house.get(&format!("{uri}&offset=5")).await.problem(416, "offset_out_of_range");
    assert_eq!((&beyond["first_offset"], &beyond["next_offset"]), (&json!(0), &json!(4)));
    house.world.log.drop_before(partition(&house), 2);
    let trimmed = house.get(&format!("{uri}&offset=1")).await.problem(416, "offset_out_of_range");
    assert_eq!((&trimmed["first_offset"], &trimmed["next_offset"]), (&json!(2), &json!(4)));
    assert_eq!(read(&house, "").await.0, ["m2", "m3"], "earliest is the first that is kept");
}

#[tokio::test]
async fn earliest_is_found_also_while_retention_takes_it_away() {
    let house = house_with(4).await;
    house.world.log.drop_after_next_bounds(partition(&house), 2);
    assert_eq!(read(&house, "offset=earliest").await.0, ["m2", "m3"]);
}

#[tokio::test]
async fn damage_is_told_with_where_to_go_on() {
    let house = house_with(5).await;
    house.world.log.damage(partition(&house), 1, 3);
    assert_eq!(read(&house, "").await, (vec!["m0".into()], 1));
    let uri = format!("/v1/topics/orders/messages?partition={}&offset=1", partition(&house).index);
    let problem = house.get(&uri).await.problem(410, "damaged");
    assert_eq!(problem["resume_at"], 3);
    serde_json::from_value::<ProblemDocument>(problem).unwrap();
    assert_eq!(read(&house, "offset=3").await.0, ["m3", "m4"]);
}

#[tokio::test]
async fn bad_parameters_are_told() {
    let house = house_with(1).await;
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
        house.get(&format!("/v1/topics/orders/messages?{query}")).await.problem(422, code);
    }
}

#[tokio::test]
async fn what_others_wrote_is_read() {
    let house = house_with(0).await;
    let record = Record {
        key: Some(vec![0xff, 0].into()),
        value: vec![0xfe].into(),
        headers: Headers::builder().push("theirs", b"1").take(),
        timestamp: Timestamp::from_millis(0),
    };
    house.world.log.put(partition(&house), record);
    let uri = format!("/v1/topics/orders/messages?partition={}", partition(&house).index);
    let message = house.get(&uri).await.ok(200)["messages"][0].clone();
    assert_eq!(message["payload_base64"], "/g==");
    assert_eq!(message["key_base64"], "/wA=");
    assert_eq!(message["headers"], json!({ "theirs": "1" }));
    let by_id = format!("/v1/messages/{}", message["id"].as_str().unwrap());
    assert_eq!(house.get(&by_id).await.ok(200)["offset"], 0);
}

#[tokio::test]
async fn the_head_of_a_read_is_answered_without_its_body() {
    let house = house_with(1).await;
    let answer = house.call(Method::HEAD, "/v1/topics/orders/messages", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
}
