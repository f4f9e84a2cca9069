//! Creating, changing, showing and deleting subscriptions, also after a crash.

use serde_json::{Value, json};
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_ingress::Scope;
use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{
    DispatchReply, DispatchRequest, HoldRequest, HoldsError, LastError, PartitionDelivery, SubscriptionStatus,
};
use whimbrel_model::subscription::StoredSubscription;

use crate::support::{TestApi, changed, key, soon};

pub fn push(changes: Value) -> Value {
    changed(json!({ "topics": ["orders"], "endpoint": { "url": "http://127.0.0.1:9000/hook" } }), changes)
}

pub fn stored(api: &TestApi, name: &str) -> StoredSubscription {
    let value = api.world.catalogue.value(&format!("subscriptions/{name}")).expect("the entry exists");
    serde_json::from_value(value).unwrap()
}

/// An API with the subscription `billing`.
async fn subscribed() -> TestApi {
    let api = TestApi::new().await;
    api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    api
}

/// Reads events until one of that kind arrives.
pub async fn event(api: &TestApi, kind: &str) -> Value {
    let mut offset = 0;
    soon(async {
        loop {
            let uri = format!("/v1/topics/_events/messages?offset={offset}&wait=30s");
            let read = api.get(&uri).await.ok(200);
            offset = read["next_offset"].as_u64().unwrap();
            let events = read["messages"].as_array().unwrap().iter();
            let mut events = events.map(|message| serde_json::from_str(message["payload"].as_str().unwrap()).unwrap());
            if let Some(event) = events.find(|event: &Value| event["kind"] == kind) {
                return event;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_subscription_is_created_with_its_topics_shown_and_deleted() {
    let api = TestApi::new().await;
    let made = api.put("/v1/subscriptions/billing", push(json!({ "concurrency": 4 }))).await.ok(201);
    assert_eq!((&made["name"], &made["state"], &made["concurrency"]), (&json!("billing"), &json!("active"), &json!(4)));
    assert_eq!(made["endpoint"], json!({ "url": "http://127.0.0.1:9000/hook", "timeout": "10s" }));
    for topic in ["orders", "_retry.billing", "_dead.billing"] {
        api.get(&format!("/v1/topics/{topic}")).await.ok(200);
    }
    assert_eq!(api.get("/v1/topics/_retry.billing").await.ok(200)["partitions"], 1);
    event(&api, "subscription_created").await;
    let all = api.get("/v1/subscriptions").await.ok(200);
    assert_eq!(all["subscriptions"][0]["name"], "billing");
    assert_eq!(api.delete("/v1/subscriptions/billing").await.status, 204);
    api.get("/v1/subscriptions/billing").await.problem(404, "unknown_subscription");
    api.delete("/v1/subscriptions/billing").await.problem(404, "unknown_subscription");
    api.get("/v1/topics/_retry.billing").await.problem(404, "unknown_topic");
    api.get("/v1/topics/_dead.billing").await.problem(404, "unknown_topic");
    api.get("/v1/topics/orders").await.ok(200);
    assert_eq!(*api.world.progress.forgotten.lock().unwrap(), [SubscriptionNumber(1)]);
    let again = api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    assert_eq!(again["number"], 2, "a new one inherits nothing");
}

#[tokio::test]
async fn the_start_position_is_durable() {
    let api = TestApi::with_partitions(1).await;
    api.post("/v1/topics/orders/messages", "a").await.ok(201);
    api.world.clock.forward(1000);
    let between = api.world.clock_text();
    api.world.clock.forward(1000);
    api.post("/v1/topics/orders/messages", "b").await.ok(201);
    for (name, start, offset) in [("e", "earliest", 0), ("l", "latest", 2), ("t", between.as_str(), 1)] {
        api.put(&format!("/v1/subscriptions/{name}"), push(json!({ "start": start }))).await.ok(201);
        assert_eq!(stored(&api, name).starts[0].offsets, [offset], "{start}");
    }
}

#[tokio::test]
async fn a_change_keeps_number_run_and_start_position() {
    let api = TestApi::with_partitions(1).await;
    api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    api.post("/v1/topics/orders/messages", "a").await.ok(201);
    api.post("/v1/topics/payments/messages?key=k", "a").await.ok(201);
    let before = stored(&api, "billing");
    let body = push(json!({
        "topics": ["orders", "payments"], "start": "earliest", "endpoint": { "url": "https://example.com/new" },
    }));
    let changed = api.put("/v1/subscriptions/billing", body).await.ok(200);
    assert!(changed["note"].as_str().unwrap().contains("`start`"), "{changed}");
    let after = stored(&api, "billing");
    assert_eq!((after.number, after.run, &after.starts[0]), (before.number, before.run, &before.starts[0]));
    assert_eq!(after.starts[1].offsets.iter().sum::<u64>(), 0, "an added topic begins at `start`");
    assert_eq!(after.spec.endpoint.unwrap().url.unwrap(), "https://example.com/new");
    assert_eq!(after.spec.start, before.spec.start);
}

#[tokio::test]
async fn owners_follow_every_change_before_it_is_answered() {
    let api = subscribed().await;
    api.post("/v1/subscriptions/billing/pause", "").await.ok(200);
    let version = api.subscriptions.get("billing").unwrap().version;
    let asked = api.world.dispatch.asked();
    assert_eq!(asked.last(), Some(&(SubscriptionNumber(1), DispatchRequest::CaughtUp { version })));
}

#[tokio::test(start_paused = true)]
async fn the_settings_are_shown_without_an_answer_of_the_owner() {
    let api = subscribed().await;
    api.world.dispatch.silence();
    let paused = api.post("/v1/subscriptions/billing/pause", "").await.ok(200);
    assert_eq!(paused["state"], "paused");
    let one = api.get("/v1/subscriptions/billing").await.ok(200);
    assert_eq!((&one["owner"], &one["state"], one.get("lag")), (&json!("unreachable"), &json!("paused"), None));
    let all = api.get("/v1/subscriptions").await.ok(200);
    assert_eq!(all["subscriptions"][0]["owner"], "unreachable");
}

#[tokio::test]
async fn the_status_is_the_reply_of_the_owner() {
    let api = subscribed().await;
    api.world.dispatch.say(|ask| {
        matches!(ask, DispatchRequest::Status).then(|| {
            Ok(DispatchReply::Status(Box::new(SubscriptionStatus {
                lag: 7,
                in_flight: 2,
                parked_keys: 1,
                parked_messages: 5,
                next_try_ms: Some(1_000),
                concurrency: 8,
                breaker: "closed".into(),
                last_error: Some(LastError { at_ms: 0, status: Some(500), reason: "status".into() }),
                partitions: vec![PartitionDelivery {
                    topic: "orders".into(),
                    partition: 0,
                    watermark: 3,
                    read_to: 9,
                    end: 10,
                    unfinished: 4,
                }],
                ..SubscriptionStatus::default()
            })))
        })
    });
    let one = api.get("/v1/subscriptions/billing").await.ok(200);
    assert_eq!((&one["lag"], &one["in_flight"], &one["parked"]), (&json!(7), &json!(2), &json!(1)));
    assert_eq!((&one["concurrency"], &one["concurrency_now"]), (&json!(16), &json!(8)));
    assert_eq!(one["last_error"], json!({ "at": "1970-01-01T00:00:00.000Z", "status": 500, "reason": "status" }));
    assert_eq!((&one["partitions"][0]["watermark"], &one["next_try"]), (&json!(3), &json!("1970-01-01T00:00:01.000Z")));
    let all = api.get("/v1/subscriptions?topic=orders").await.ok(200);
    assert_eq!((&all["subscriptions"][0]["lag"], all["subscriptions"][0].get("partitions")), (&json!(7), None));
    assert_eq!(api.get("/v1/subscriptions?topic=none").await.ok(200)["subscriptions"], json!([]));
}

#[tokio::test]
async fn a_generated_secret_is_shown_once() {
    let api = TestApi::new().await;
    let made = api.put("/v1/subscriptions/billing", push(json!({ "secret": "generate" }))).await.ok(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() > 40, "{secret}");
    assert_eq!(stored(&api, "billing").spec.secrets[0].secret, secret);
    let masked = format!("whsec_…{}", &secret[secret.len() - 4..]);
    for shown in [
        api.get("/v1/subscriptions/billing").await.ok(200),
        api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(200),
        api.post("/v1/subscriptions/billing/pause", "").await.ok(200),
    ] {
        assert_eq!(shown["secret"], masked, "a change without it keeps it");
    }
    api.put("/v1/subscriptions/billing", push(json!({ "secret": "generate" }))).await.ok(200);
    let secrets = stored(&api, "billing").spec.secrets;
    assert_eq!((secrets.len(), &secrets[1].secret), (2, &secret), "the old secret still signs for a day");
    api.put("/v1/subscriptions/billing", push(json!({ "secret": null }))).await.ok(200);
    assert!(stored(&api, "billing").spec.secrets.is_empty());
}

#[tokio::test]
async fn invalid_subscriptions_are_rejected_and_leave_nothing() {
    let api = TestApi::new().await;
    for (name, body, code) in [
        ("billing", push(json!({ "topics": ["_holds"] })), "reserved_name"),
        ("billing", push(json!({ "topics": ["_dead.nobody"] })), "unknown_topic"),
        ("billing", push(json!({ "conurrency": 1 })), "bad_parameter"),
        ("billing", push(json!({ "endpoint": { "url": "http://169.254.169.254/" } })), "forbidden_address"),
        ("_billing", push(json!({})), "reserved_name"),
        ("bill%20ing", push(json!({})), "bad_name"),
    ] {
        let status = if code == "unknown_topic" { 404 } else { 422 };
        api.put(&format!("/v1/subscriptions/{name}"), body).await.problem(status, code);
    }
    api.put("/v1/subscriptions/billing", json!([])).await.problem(422, "bad_json");
    assert_eq!(api.get("/v1/subscriptions").await.ok(200)["subscriptions"], json!([]));
    api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    let own = push(json!({ "topics": ["orders", "_dead.billing"] }));
    api.put("/v1/subscriptions/billing", own).await.problem(422, "reserved_name");
    let others = push(json!({ "topics": ["_dead.billing", "_events"] }));
    api.put("/v1/subscriptions/morgue", others).await.ok(201);
    let refused = api.delete("/v1/subscriptions/billing").await.problem(409, "topic_subscribed");
    assert_eq!(refused["subscriptions"], json!(["morgue"]));
}

#[tokio::test]
async fn a_topic_is_not_created_if_publishes_do_not_create_it() {
    let api = TestApi::with_topics(TopicDefaults { auto_create: false, ..TopicDefaults::default() }).await;
    api.put("/v1/subscriptions/billing", push(json!({}))).await.problem(404, "unknown_topic");
    assert!(api.subscriptions.all().is_empty());
}

#[tokio::test]
async fn a_subscribed_topic_is_deleted_only_on_request() {
    let api = subscribed().await;
    let refused = api.delete("/v1/topics/orders").await.problem(409, "topic_subscribed");
    assert_eq!(refused["subscriptions"], json!(["billing"]));
    api.delete("/v1/topics/orders?subscriptions=drop").await.problem(422, "bad_parameter");
    assert_eq!(api.delete("/v1/topics/orders?subscriptions=keep").await.status, 204);
    api.get("/v1/subscriptions/billing").await.ok(200);
}

#[tokio::test]
async fn a_deletion_withdraws_waiting_retries() {
    let api = subscribed().await;
    let retries = api.registry.get("_retry.billing").unwrap().number();
    assert_eq!(api.delete("/v1/subscriptions/billing").await.status, 204);
    let asked = api.world.holds.asked();
    assert!(asked.contains(&HoldRequest::WithdrawTopic { topic: retries }));
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_deletion_is_finished_at_the_next_start() {
    let api = subscribed().await;
    api.world.holds.refuse(Some(HoldsError::NoOwner(0)));
    api.delete("/v1/subscriptions/billing").await.problem(503, "no_owner");
    api.get("/v1/subscriptions/billing").await.problem(404, "unknown_subscription");
    api.put("/v1/subscriptions/billing", push(json!({}))).await.problem(409, "subscription_deleting");
    assert!(stored(&api, "billing").deleting);
    let api = api.close().await.open().await;
    api.world.holds.refuse(None);
    let mut changes = api.subscriptions.changes();
    soon(async {
        while api.subscriptions.get("billing").is_some() {
            changes.changed().await.unwrap();
        }
    })
    .await;
    assert_eq!(api.world.catalogue.value("subscriptions/billing"), None);
    assert_eq!(api.world.progress.forgotten.lock().unwrap().len(), 1);
    api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
}

#[tokio::test]
async fn an_interrupted_deletion_is_finished_by_a_repeat() {
    let api = subscribed().await;
    api.world.progress.refuse(true);
    api.delete("/v1/subscriptions/billing").await.problem(503, "unavailable");
    api.world.progress.refuse(false);
    assert_eq!(api.delete("/v1/subscriptions/billing").await.status, 204);
    assert_eq!(api.world.catalogue.value("subscriptions/billing"), None);
}

#[tokio::test]
async fn subscriptions_survive_a_restart_and_follow_changes_of_other_processes() {
    let api = subscribed().await;
    let api = api.close().await.open().await;
    assert_eq!(api.get("/v1/subscriptions/billing").await.ok(200)["number"], 1);
    let mut changes = api.subscriptions.changes();
    changes.mark_unchanged();
    api.world.catalogue.edit("subscriptions/billing", |entry| entry["state"] = json!({ "is": "paused" }));
    soon(changes.changed()).await.unwrap();
    assert_eq!(api.get("/v1/subscriptions/billing").await.ok(200)["state"], "paused");
}

#[tokio::test]
async fn keys_see_the_subscriptions_of_their_topics_only() {
    let api = TestApi::with_keys([
        key("ops", &[Scope::Admin], &[]),
        key("eu", &[Scope::Admin], &["eu.*"]),
        key("reader", &[Scope::Consume], &["eu.*"]),
    ])
    .await;
    let call = async |key: &str, method: &str, uri: &str, body: Value| {
        api.call_as(key, method.parse().unwrap(), uri, body.to_string()).await
    };
    let eu = json!({ "topics": ["eu.orders"], "mode": "pull" });
    let both = json!({ "topics": ["eu.orders", "us.orders"], "mode": "pull" });
    call("eu", "PUT", "/v1/subscriptions/a", eu.clone()).await.ok(201);
    call("eu", "PUT", "/v1/subscriptions/b", both.clone()).await.problem(403, "forbidden");
    call("reader", "PUT", "/v1/subscriptions/a", eu.clone()).await.problem(403, "forbidden");
    call("ops", "PUT", "/v1/subscriptions/b", both).await.ok(201);
    call("eu", "PUT", "/v1/subscriptions/b", eu).await.problem(403, "forbidden");
    call("eu", "DELETE", "/v1/subscriptions/b", json!({})).await.problem(404, "unknown_subscription");
    call("reader", "GET", "/v1/subscriptions/b", json!({})).await.problem(404, "unknown_subscription");
    call("reader", "GET", "/v1/subscriptions/a", json!({})).await.ok(200);
    call("reader", "POST", "/v1/subscriptions/a/pull", json!({})).await.ok(200);
    call("reader", "POST", "/v1/subscriptions/a/pause", json!({})).await.problem(403, "forbidden");
    let seen = call("reader", "GET", "/v1/subscriptions", json!({})).await.ok(200);
    assert_eq!(seen["subscriptions"].as_array().unwrap().len(), 1);
}
