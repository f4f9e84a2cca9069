//! Publishing with a delay or a time: what is accepted, what is written, what a repeat gets.

use http::Method;
use serde_json::{Value, json};
use whimbrel_ingress::documents::{BatchAnswer, HeldAnswer};
use whimbrel_model::ports::{HoldsError, LogError};
use whimbrel_model::{Hold, HoldRecord, PartitionId};

use crate::support::{House, SHARDS};

const URI: &str = "/v1/topics/orders/messages";

/// Every hold that was accepted, as its `held` record has it, shard by shard.
fn held(house: &House) -> Vec<Hold> {
    let number = house.world.log.number_of("_holds").unwrap();
    let mut holds = Vec::new();
    for shard in 0..SHARDS {
        for (offset, record) in house.world.log.records(PartitionId::new(number, shard)).iter().enumerate() {
            if let HoldRecord::Held(hold) = HoldRecord::of(record, offset as u64).unwrap() {
                assert_eq!(hold.id.shard(SHARDS), shard, "everything about a hold is in its shard");
                holds.push(hold);
            }
        }
    }
    holds
}

async fn with_key(house: &House, uri: &str, key: &str, body: &'static str) -> crate::support::Answer {
    house.call(Method::POST, uri, &[("idempotency-key", key)], body).await
}

#[tokio::test]
async fn a_message_with_a_delay_is_held_as_it_will_stand_in_its_topic() {
    let house = House::new().await;
    let headers = [("content-type", "text/plain"), ("Whimbrel-Header-X-Env", "prod"), ("Whimbrel-Delay", "90s")];
    let answer = house.call(Method::POST, &format!("{URI}?key=k1"), &headers, "hello").await.ok(202);
    let answer: HeldAnswer = serde_json::from_value(answer).unwrap();
    assert_eq!((&*answer.topic, &*answer.state, &*answer.due), ("orders", "held", "2026-11-15T10:40:12.000Z"));
    let holds = held(&house);
    let [hold] = &holds[..] else { panic!("{holds:?}") };
    assert_eq!((hold.id.as_str(), &*hold.topic_name, hold.fresh), (&*answer.id, "orders", true));
    assert_eq!(hold.due.to_string(), answer.due);
    assert_eq!(hold.published_at.to_string(), "2026-11-15T10:38:42.000Z");
    let message = hold.fire(hold.due);
    assert_eq!((message.key.as_deref(), &message.value[..]), (Some(&b"k1"[..]), &b"hello"[..]));
    let headers: Vec<(&str, &[u8])> = message.headers.iter().collect();
    let first = [("whimbrel-id", answer.id.as_bytes()), ("content-type", b"text/plain"), ("x-env", b"prod")];
    assert_eq!(headers[..3], first);
    assert!(house.payloads("orders").await.concat().is_empty(), "it is not in its topic yet");
}

#[tokio::test]
async fn what_is_due_already_is_held_too() {
    let house = House::new().await;
    let now = house.post(&format!("{URI}?delay=0"), "x").await.ok(202);
    assert_eq!(now["due"], "2026-11-15T10:38:42.000Z");
    let past = house.post(&format!("{URI}?deliver_at=2020-01-01T00:00:00Z"), "y").await.ok(202);
    assert_eq!(past["due"], "2020-01-01T00:00:00.000Z");
    house.world.holds.fire_due();
    let mut payloads = house.payloads("orders").await.concat();
    payloads.sort();
    assert_eq!(payloads, ["x", "y"]);
}

#[tokio::test]
async fn a_batch_mixes_now_and_later_in_both_forms() {
    let house = House::new().await;
    let entries = [
        json!({ "payload": "now" }),
        json!({ "payload": "soon", "delay": 5000 }),
        json!({ "payload": "later", "deliver_at": "2026-11-16T00:00:00Z", "key": "k" }),
    ];
    let lines = entries.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let ndjson = [("content-type", "application/x-ndjson")];
    for answer in [
        house.post("/v1/topics/orders/batch", json!(entries).to_string()).await,
        house.call(Method::POST, "/v1/topics/orders/batch", &ndjson, lines).await,
    ] {
        let answer = answer.ok(200);
        serde_json::from_value::<BatchAnswer>(answer.clone()).unwrap();
        assert_eq!(answer["messages"][0]["offset"], answer["messages"][0]["offset"].as_u64().unwrap());
        assert_eq!(answer["messages"][1]["due"], "2026-11-15T10:38:47.000Z");
        assert_eq!(answer["messages"][2]["due"], "2026-11-16T00:00:00.000Z");
    }
    assert_eq!(held(&house).len(), 4);
    assert_eq!(house.payloads("orders").await.concat(), ["now", "now"]);
}

#[tokio::test]
async fn impossible_times_are_told_and_nothing_is_held() {
    let house = House::new().await;
    for (query, code) in [
        ("delay=soon", "bad_duration"),
        ("delay=-5s", "bad_duration"),
        ("delay=800d", "bad_duration"),
        ("delay=99999999999999999999", "bad_duration"),
        ("deliver_at=tomorrow", "bad_time"),
        ("deliver_at=2029-11-15T00:00:00Z", "bad_time"),
        ("delay=5s&deliver_at=2026-11-16T00:00:00Z", "bad_parameter"),
    ] {
        house.post(&format!("{URI}?{query}"), "x").await.problem(422, code);
    }
    let bad = json!([{ "payload": "a", "delay": "1s" }, { "payload": "b", "delay": -1 }]);
    assert_eq!(house.post("/v1/topics/orders/batch", bad.to_string()).await.problem(422, "bad_duration")["index"], 1);
    assert!(held(&house).is_empty());
    house.post(&format!("{URI}?delay=730d"), "x").await.ok(202);
}

#[tokio::test]
async fn what_would_not_fit_when_it_fires_is_refused_now() {
    let house = House::new().await;
    house.world.log.largest_record(4000);
    let (fits, large) = ("x".repeat(1000), "x".repeat(2000));
    house.post(URI, large.clone()).await.ok(201);
    let refused = house.post(&format!("{URI}?delay=1h"), large).await.problem(413, "payload_too_large");
    assert!(refused["limit"].as_u64().unwrap() < 2000, "{refused}");
    house.post(&format!("{URI}?delay=1h"), fits).await.ok(202);
}

#[tokio::test]
async fn a_repeat_under_a_key_gets_the_first_answer_whatever_its_delay() {
    let house = House::new().await;
    let first = with_key(&house, &format!("{URI}?delay=10s"), "k1", "hello").await.ok(202);
    house.world.clock.forward(3_000);
    assert_eq!(with_key(&house, &format!("{URI}?delay=10s"), "k1", "hello").await.ok(202), first);
    assert_eq!(with_key(&house, URI, "k1", "hello").await.ok(202), first, "also one that asks for now");
    with_key(&house, &format!("{URI}?delay=10s"), "k1", "other").await.problem(422, "different_body");
    assert_eq!(held(&house).len(), 1);
    let now = with_key(&house, URI, "k2", "hello").await.ok(201);
    assert_eq!(with_key(&house, &format!("{URI}?delay=10s"), "k2", "hello").await.ok(201), now);
    assert_eq!(house.world.receipts.under_way(), 0);
}

#[tokio::test]
async fn a_held_message_whose_answer_was_lost_is_found_in_its_shard() {
    let house = House::new().await;
    let uri = format!("{URI}?delay=10s");
    house.world.log.lose_answers(true);
    with_key(&house, &uri, "k1", "hello").await.problem(504, "outcome_unknown");
    with_key(&house, "/v1/topics/other/messages?delay=10s", "k1", "hello").await.problem(504, "outcome_unknown");
    house.world.log.lose_answers(false);
    house.world.receipts.lapse_all();
    let found = with_key(&house, &uri, "k1", "hello").await.ok(202);
    let elsewhere = with_key(&house, "/v1/topics/other/messages?delay=10s", "k1", "hello").await.ok(202);
    assert_ne!(found["id"], elsewhere["id"], "a key belongs to its topic, also in a shard that both share");
    let holds = held(&house);
    assert_eq!(holds.len(), 2, "nothing was held twice");
    let of_orders = holds.iter().find(|hold| &*hold.topic_name == "orders").unwrap();
    assert_eq!(found["id"], of_orders.id.as_str());
}

#[tokio::test]
async fn an_append_that_is_certain_not_to_have_happened_leaves_the_key_free() {
    let house = House::new().await;
    house.world.log.judge(|_| Err(LogError::DiskFull("no room".into())));
    with_key(&house, &format!("{URI}?delay=10s"), "k1", "hello").await.problem(503, "disk_full");
    house.world.log.judge_nothing();
    assert_eq!(house.world.receipts.under_way(), 0);
    with_key(&house, &format!("{URI}?delay=10s"), "k1", "anything").await.ok(202);
}

#[tokio::test]
async fn an_id_of_the_publishers_own_is_accepted_by_the_owner() {
    let house = House::new().await;
    let first = house.post(&format!("{URI}?id=order-1&delay=10s"), "x").await.ok(202);
    assert_eq!((&first["id"], &first["state"]), (&json!("order-1"), &json!("held")));
    house.world.clock.forward(500);
    assert_eq!(house.post(&format!("{URI}?id=order-1&delay=10s"), "x").await.ok(202), first);
    house.post(&format!("{URI}?id=order-1&delay=10s"), "y").await.problem(422, "different_body");
    let other = house.post("/v1/topics/payments/messages?id=order-1&delay=10s", "x").await;
    other.problem(409, "id_taken");
    assert_eq!(house.world.receipts.under_way(), 0, "a refused id is free in that topic");
    house.post("/v1/topics/payments/messages?id=order-1", "x").await.ok(201);
    let holds = held(&house);
    assert_eq!((holds.len(), holds[0].fresh), (1, false));
    assert!(holds[0].fingerprint().is_some(), "so that the owner knows a repeat");
}

#[tokio::test]
async fn ids_of_a_batch_that_the_owners_refuse_are_told_each() {
    let house = House::new().await;
    house.post("/v1/topics/payments/messages?id=taken&delay=1h", "x").await.ok(202);
    let entry = |id: &str| json!({ "payload": id, "id": id, "delay": "1h" });
    let batch = json!([entry("a"), entry("taken"), { "payload": "now" }, entry("a")]);
    let partly = house.post("/v1/topics/orders/batch", batch.to_string()).await.problem(503, "partly_appended");
    let messages = partly["messages"].as_array().unwrap();
    assert_eq!(messages[1]["error"]["code"], "id_taken");
    assert_eq!((&messages[0]["state"], &messages[3]), (&json!("held"), &messages[0]));
    assert!(messages[2]["offset"].is_u64());
    let alone = house.post("/v1/topics/orders/batch", json!([entry("taken")]).to_string()).await;
    alone.problem(409, "id_taken");
}

#[tokio::test]
async fn an_owner_who_is_away_takes_nothing_and_a_repeat_is_safe() {
    let house = House::new().await;
    let uri = format!("{URI}?id=order-1&delay=10s");
    for (error, status, code) in [
        (HoldsError::NoOwner(3), 503, "no_owner"),
        (HoldsError::Unavailable("no store".into()), 503, "unavailable"),
        (HoldsError::Overloaded(3), 429, "overloaded"),
    ] {
        house.world.holds.refuse(Some(error));
        house.post(&uri, "x").await.problem(status, code);
        assert_eq!(house.world.receipts.under_way(), 0, "{code}");
    }
    house.world.holds.refuse(None);
    house.post(&uri, "x").await.ok(202);
}

#[tokio::test]
async fn an_owner_whose_answer_was_lost_is_asked_again_and_holds_once() {
    let house = House::new().await;
    let uri = format!("{URI}?id=order-1&delay=10s");
    house.world.holds.lose_answers(true);
    house.post(&uri, "x").await.problem(504, "outcome_unknown");
    house.world.holds.lose_answers(false);
    house.post(&uri, "x").await.problem(409, "in_progress");
    house.world.receipts.lapse_all();
    house.world.clock.forward(500);
    let answer = house.post(&uri, "x").await.ok(202);
    assert_eq!(answer["due"], "2026-11-15T10:38:52.000Z", "the first one's");
    assert_eq!(held(&house).len(), 1);
}
