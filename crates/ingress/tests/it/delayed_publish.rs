//! Publishing with a delay or a time: acceptance, records, and repeats.

use http::Method;
use serde_json::{Value, json};
use whimbrel_api::messages::{BatchAnswer, Held};
use whimbrel_model::ports::{HoldsError, LogError};
use whimbrel_model::{Hold, HoldRecord, PartitionId};

use crate::support::{SHARDS, TestApi, typed};

const URI: &str = "/v1/topics/orders/messages";

/// All accepted holds as in their `held` records, shard by shard.
fn held(api: &TestApi) -> Vec<Hold> {
    let number = api.world.log.number_of("_holds").unwrap();
    let mut holds = Vec::new();
    for shard in 0..SHARDS {
        for (offset, record) in api.world.log.records(PartitionId::new(number, shard)).iter().enumerate() {
            if let HoldRecord::Held(hold) = HoldRecord::of(record, offset as u64).unwrap() {
                assert_eq!(hold.id.shard(SHARDS), shard, "all records of a hold are in its shard");
                holds.push(hold);
            }
        }
    }
    holds
}

async fn with_key(api: &TestApi, uri: &str, key: &str, body: &'static str) -> crate::support::Answer {
    api.call(Method::POST, uri, &[("idempotency-key", key)], body).await
}

#[tokio::test]
async fn a_held_message_has_the_form_of_its_topic_record() {
    let api = TestApi::new().await;
    let headers = [("content-type", "text/plain"), ("Whimbrel-Header-X-Env", "prod"), ("Whimbrel-Delay", "90s")];
    let answer = api.call(Method::POST, &format!("{URI}?key=k1"), &headers, "hello").await.ok(202);
    let answer: Held = typed(answer);
    assert_eq!((&*answer.topic, &*answer.state, &*answer.due), ("orders", "held", "2026-11-15T10:40:12.000Z"));
    let holds = held(&api);
    let [hold] = &holds[..] else { panic!("{holds:?}") };
    assert_eq!((hold.id.as_str(), &*hold.topic_name, hold.fresh), (&*answer.id, "orders", true));
    assert_eq!(hold.due.to_string(), answer.due);
    assert_eq!(hold.published_at.to_string(), "2026-11-15T10:38:42.000Z");
    let message = hold.fire(hold.due);
    assert_eq!((message.key.as_deref(), &message.value[..]), (Some(&b"k1"[..]), &b"hello"[..]));
    let headers: Vec<(&str, &[u8])> = message.headers.iter().collect();
    let first = [("whimbrel-id", answer.id.as_bytes()), ("content-type", b"text/plain"), ("x-env", b"prod")];
    assert_eq!(headers[..3], first);
    assert!(api.payloads("orders").await.concat().is_empty(), "it is not in its topic yet");
}

#[tokio::test]
async fn a_message_that_is_already_due_is_held_too() {
    let api = TestApi::new().await;
    let now = api.post(&format!("{URI}?delay=0"), "x").await.ok(202);
    assert_eq!(now["due"], "2026-11-15T10:38:42.000Z");
    let past = api.post(&format!("{URI}?deliver_at=2020-01-01T00:00:00Z"), "y").await.ok(202);
    assert_eq!(past["due"], "2020-01-01T00:00:00.000Z");
    api.world.holds.fire_due();
    let mut payloads = api.payloads("orders").await.concat();
    payloads.sort();
    assert_eq!(payloads, ["x", "y"]);
}

#[tokio::test]
async fn a_batch_may_contain_delayed_and_immediate_messages() {
    let api = TestApi::new().await;
    let entries = [
        json!({ "payload": "now" }),
        json!({ "payload": "soon", "delay": 5000 }),
        json!({ "payload": "later", "deliver_at": "2026-11-16T00:00:00Z", "key": "k" }),
    ];
    let lines = entries.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let ndjson = [("content-type", "application/x-ndjson")];
    for answer in [
        api.post("/v1/topics/orders/batch", json!(entries).to_string()).await,
        api.call(Method::POST, "/v1/topics/orders/batch", &ndjson, lines).await,
    ] {
        let answer = answer.ok(200);
        typed::<BatchAnswer>(answer.clone());
        assert_eq!(answer["messages"][0]["offset"], answer["messages"][0]["offset"].as_u64().unwrap());
        assert_eq!(answer["messages"][1]["due"], "2026-11-15T10:38:47.000Z");
        assert_eq!(answer["messages"][2]["due"], "2026-11-16T00:00:00.000Z");
    }
    assert_eq!(held(&api).len(), 4);
    assert_eq!(api.payloads("orders").await.concat(), ["now", "now"]);
}

#[tokio::test]
async fn invalid_times_are_rejected_and_nothing_is_held() {
    let api = TestApi::new().await;
    for (query, code) in [
        ("delay=soon", "bad_duration"),
        ("delay=-5s", "bad_duration"),
        ("delay=800d", "bad_duration"),
        ("delay=99999999999999999999", "bad_duration"),
        ("deliver_at=tomorrow", "bad_time"),
        ("deliver_at=2029-11-15T00:00:00Z", "bad_time"),
        ("delay=5s&deliver_at=2026-11-16T00:00:00Z", "bad_parameter"),
    ] {
        api.post(&format!("{URI}?{query}"), "x").await.problem(422, code);
    }
    let bad = json!([{ "payload": "a", "delay": "1s" }, { "payload": "b", "delay": -1 }]);
    assert_eq!(api.post("/v1/topics/orders/batch", bad.to_string()).await.problem(422, "bad_duration")["index"], 1);
    assert!(held(&api).is_empty());
    api.post(&format!("{URI}?delay=730d"), "x").await.ok(202);
}

#[tokio::test]
async fn a_message_that_would_be_too_large_when_it_fires_is_rejected() {
    let api = TestApi::new().await;
    api.world.log.largest_record(4000);
    let (fits, large) = ("x".repeat(1000), "x".repeat(2000));
    api.post(URI, large.clone()).await.ok(201);
    let refused = api.post(&format!("{URI}?delay=1h"), large).await.problem(413, "payload_too_large");
    assert!(refused["limit"].as_u64().unwrap() < 2000, "{refused}");
    api.post(&format!("{URI}?delay=1h"), fits).await.ok(202);
}

#[tokio::test]
async fn a_repeat_under_a_key_gets_the_first_answer_whatever_its_delay() {
    let api = TestApi::new().await;
    let first = with_key(&api, &format!("{URI}?delay=10s"), "k1", "hello").await.ok(202);
    api.world.clock.forward(3_000);
    assert_eq!(with_key(&api, &format!("{URI}?delay=10s"), "k1", "hello").await.ok(202), first);
    assert_eq!(with_key(&api, URI, "k1", "hello").await.ok(202), first, "also a repeat without a delay");
    with_key(&api, &format!("{URI}?delay=10s"), "k1", "other").await.problem(422, "different_body");
    assert_eq!(held(&api).len(), 1);
    let now = with_key(&api, URI, "k2", "hello").await.ok(201);
    assert_eq!(with_key(&api, &format!("{URI}?delay=10s"), "k2", "hello").await.ok(201), now);
    assert_eq!(api.world.receipts.under_way(), 0);
}

#[tokio::test]
async fn a_held_message_whose_answer_was_lost_is_found_in_its_shard() {
    let api = TestApi::new().await;
    let uri = format!("{URI}?delay=10s");
    api.world.log.lose_answers(true);
    with_key(&api, &uri, "k1", "hello").await.problem(504, "outcome_unknown");
    with_key(&api, "/v1/topics/other/messages?delay=10s", "k1", "hello").await.problem(504, "outcome_unknown");
    api.world.log.lose_answers(false);
    api.world.receipts.lapse_all();
    let found = with_key(&api, &uri, "k1", "hello").await.ok(202);
    let elsewhere = with_key(&api, "/v1/topics/other/messages?delay=10s", "k1", "hello").await.ok(202);
    assert_ne!(found["id"], elsewhere["id"], "a key belongs to its topic, also in a shard that both share");
    let holds = held(&api);
    assert_eq!(holds.len(), 2, "nothing was held twice");
    let of_orders = holds.iter().find(|hold| &*hold.topic_name == "orders").unwrap();
    assert_eq!(found["id"], of_orders.id.as_str());
}

#[tokio::test]
async fn an_append_that_is_certain_not_to_have_happened_leaves_the_key_free() {
    let api = TestApi::new().await;
    api.world.log.judge(|_| Err(LogError::DiskFull("no room".into())));
    with_key(&api, &format!("{URI}?delay=10s"), "k1", "hello").await.problem(503, "disk_full");
    api.world.log.judge_nothing();
    assert_eq!(api.world.receipts.under_way(), 0);
    with_key(&api, &format!("{URI}?delay=10s"), "k1", "anything").await.ok(202);
}

#[tokio::test]
async fn a_hold_with_a_publishers_id_is_accepted_by_the_owner() {
    let api = TestApi::new().await;
    let first = api.post(&format!("{URI}?id=order-1&delay=10s"), "x").await.ok(202);
    assert_eq!((&first["id"], &first["state"]), (&json!("order-1"), &json!("held")));
    api.world.clock.forward(500);
    assert_eq!(api.post(&format!("{URI}?id=order-1&delay=10s"), "x").await.ok(202), first);
    api.post(&format!("{URI}?id=order-1&delay=10s"), "y").await.problem(422, "different_body");
    let other = api.post("/v1/topics/payments/messages?id=order-1&delay=10s", "x").await;
    other.problem(409, "id_taken");
    assert_eq!(api.world.receipts.under_way(), 0, "a refused id is free in that topic");
    api.post("/v1/topics/payments/messages?id=order-1", "x").await.ok(201);
    let holds = held(&api);
    assert_eq!((holds.len(), holds[0].fresh), (1, false));
    assert!(holds[0].fingerprint().is_some(), "the owner recognizes a repeat by it");
}

#[tokio::test]
async fn each_id_that_an_owner_rejects_is_reported() {
    let api = TestApi::new().await;
    api.post("/v1/topics/payments/messages?id=taken&delay=1h", "x").await.ok(202);
    let entry = |id: &str| json!({ "payload": id, "id": id, "delay": "1h" });
    let batch = json!([entry("a"), entry("taken"), { "payload": "now" }, entry("a")]);
    let partly = api.post("/v1/topics/orders/batch", batch.to_string()).await.problem(503, "partly_appended");
    let messages = partly["messages"].as_array().unwrap();
    assert_eq!(messages[1]["error"]["code"], "id_taken");
    assert_eq!((&messages[0]["state"], &messages[3]), (&json!("held"), &messages[0]));
    assert!(messages[2]["offset"].is_u64());
    let alone = api.post("/v1/topics/orders/batch", json!([entry("taken")]).to_string()).await;
    alone.problem(409, "id_taken");
}

#[tokio::test]
async fn an_unavailable_owner_accepts_nothing_and_a_repeat_is_safe() {
    let api = TestApi::new().await;
    let uri = format!("{URI}?id=order-1&delay=10s");
    for (error, status, code) in [
        (HoldsError::NoOwner(3), 503, "no_owner"),
        (HoldsError::Unavailable("no store".into()), 503, "unavailable"),
        (HoldsError::Overloaded(3), 429, "overloaded"),
    ] {
        api.world.holds.refuse(Some(error));
        api.post(&uri, "x").await.problem(status, code);
        assert_eq!(api.world.receipts.under_way(), 0, "{code}");
    }
    api.world.holds.refuse(None);
    api.post(&uri, "x").await.ok(202);
}

#[tokio::test]
async fn a_repeat_after_a_lost_reply_of_the_owner_holds_once() {
    let api = TestApi::new().await;
    let uri = format!("{URI}?id=order-1&delay=10s");
    api.world.holds.lose_answers(true);
    api.post(&uri, "x").await.problem(504, "outcome_unknown");
    api.world.holds.lose_answers(false);
    api.post(&uri, "x").await.problem(409, "in_progress");
    api.world.receipts.lapse_all();
    api.world.clock.forward(500);
    let answer = api.post(&uri, "x").await.ok(202);
    assert_eq!(answer["due"], "2026-11-15T10:38:52.000Z", "the due time of the first");
    assert_eq!(held(&api).len(), 1);
}
