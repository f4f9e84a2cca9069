//! Subscriptions: making, changing, looking at, and deleting them, and what a crash leaves behind.

use serde_json::{Value, json};
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_ingress::{ApiKey, ReceiveSettings, Scope, Secret};
use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{
    Ask, DispatchAsk, DispatchTold, HoldsError, LastError, PartitionStanding, SubscriptionStatus,
};
use whimbrel_model::subscription::StoredSubscription;

use crate::support::{House, soon};

pub fn push(changes: Value) -> Value {
    let mut body = json!({ "topics": ["orders"], "endpoint": { "url": "http://127.0.0.1:9000/hook" } });
    for (name, value) in changes.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub fn stored(house: &House, name: &str) -> StoredSubscription {
    let value = house.world.catalogue.value(&format!("subscriptions/{name}")).expect("the entry is there");
    serde_json::from_value(value).unwrap()
}

/// Reads events until there is one of that kind.
pub async fn event(house: &House, kind: &str) -> Value {
    let mut offset = 0;
    soon(async {
        loop {
            let uri = format!("/v1/topics/_events/messages?offset={offset}&wait=30s");
            let read = house.get(&uri).await.ok(200);
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
async fn a_subscription_is_made_with_its_topics_shown_and_deleted() {
    let house = House::new().await;
    let made = house.put("/v1/subscriptions/billing", push(json!({ "concurrency": 4 }))).await.ok(201);
    assert_eq!((&made["name"], &made["state"], &made["concurrency"]), (&json!("billing"), &json!("active"), &json!(4)));
    assert_eq!(made["endpoint"], json!({ "url": "http://127.0.0.1:9000/hook", "timeout": "10s" }));
    for topic in ["orders", "_retry.billing", "_dead.billing"] {
        house.get(&format!("/v1/topics/{topic}")).await.ok(200);
    }
    assert_eq!(house.get("/v1/topics/_retry.billing").await.ok(200)["partitions"], 1);
    event(&house, "subscription_created").await;
    let all = house.get("/v1/subscriptions").await.ok(200);
    assert_eq!(all["subscriptions"][0]["name"], "billing");
    assert_eq!(house.delete("/v1/subscriptions/billing").await.status, 204);
    house.get("/v1/subscriptions/billing").await.problem(404, "unknown_subscription");
    house.delete("/v1/subscriptions/billing").await.problem(404, "unknown_subscription");
    house.get("/v1/topics/_retry.billing").await.problem(404, "unknown_topic");
    house.get("/v1/topics/_dead.billing").await.problem(404, "unknown_topic");
    house.get("/v1/topics/orders").await.ok(200);
    assert_eq!(*house.world.progress.forgotten.lock().unwrap(), [SubscriptionNumber(1)]);
    let again = house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    assert_eq!(again["number"], 2, "one made again inherits nothing");
}

#[tokio::test]
async fn it_begins_where_it_says_durably() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    house.post("/v1/topics/orders/messages", "a").await.ok(201);
    house.world.clock.forward(1000);
    let between = house.world.clock_text();
    house.world.clock.forward(1000);
    house.post("/v1/topics/orders/messages", "b").await.ok(201);
    for (name, start, offset) in [("e", "earliest", 0), ("l", "latest", 2), ("t", between.as_str(), 1)] {
        house.put(&format!("/v1/subscriptions/{name}"), push(json!({ "start": start }))).await.ok(201);
        assert_eq!(stored(&house, name).starts[0].offsets, [offset], "{start}");
    }
}

#[tokio::test]
async fn changing_it_keeps_its_number_its_run_and_where_it_began() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    house.post("/v1/topics/orders/messages", "a").await.ok(201);
    house.post("/v1/topics/payments/messages?key=k", "a").await.ok(201);
    let before = stored(&house, "billing");
    let body = push(json!({
        "topics": ["orders", "payments"], "start": "earliest", "endpoint": { "url": "https://example.com/new" },
    }));
    let changed = house.put("/v1/subscriptions/billing", body).await.ok(200);
    assert!(changed["note"].as_str().unwrap().contains("`start`"), "{changed}");
    let after = stored(&house, "billing");
    assert_eq!((after.number, after.run, &after.starts[0]), (before.number, before.run, &before.starts[0]));
    assert_eq!(after.starts[1].offsets.iter().sum::<u64>(), 0, "a topic that is added begins as `start` says");
    assert_eq!(after.spec.endpoint.unwrap().url.unwrap(), "https://example.com/new");
    assert_eq!(after.spec.start, before.spec.start);
}

#[tokio::test]
async fn owners_are_told_of_every_change_before_it_is_answered() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    house.post("/v1/subscriptions/billing/pause", "").await.ok(200);
    let version = house.subscriptions.get("billing").unwrap().version;
    let asked = house.world.dispatch.asked();
    assert_eq!(asked.last(), Some(&(SubscriptionNumber(1), DispatchAsk::CaughtUp { version })));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_does_not_answer_hides_nothing_that_people_decided() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    house.world.dispatch.silence();
    let paused = house.post("/v1/subscriptions/billing/pause", "").await.ok(200);
    assert_eq!(paused["state"], "paused");
    let one = house.get("/v1/subscriptions/billing").await.ok(200);
    assert_eq!((&one["owner"], &one["state"], one.get("lag")), (&json!("unreachable"), &json!("paused"), None));
    let all = house.get("/v1/subscriptions").await.ok(200);
    assert_eq!(all["subscriptions"][0]["owner"], "unreachable");
}

#[tokio::test]
async fn how_it_stands_is_its_owners_word() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    house.world.dispatch.say(|ask| {
        matches!(ask, DispatchAsk::Status).then(|| {
            Ok(DispatchTold::Status(Box::new(SubscriptionStatus {
                lag: 7,
                in_flight: 2,
                parked_keys: 1,
                parked_messages: 5,
                next_try_ms: Some(1_000),
                concurrency: 8,
                breaker: "closed".into(),
                last_error: Some(LastError { at_ms: 0, status: Some(500), reason: "status".into() }),
                partitions: vec![PartitionStanding {
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
    let one = house.get("/v1/subscriptions/billing").await.ok(200);
    assert_eq!((&one["lag"], &one["in_flight"], &one["parked"]), (&json!(7), &json!(2), &json!(1)));
    assert_eq!((&one["concurrency"], &one["concurrency_now"]), (&json!(16), &json!(8)));
    assert_eq!(one["last_error"], json!({ "at": "1970-01-01T00:00:00.000Z", "status": 500, "reason": "status" }));
    assert_eq!((&one["partitions"][0]["watermark"], &one["next_try"]), (&json!(3), &json!("1970-01-01T00:00:01.000Z")));
    let all = house.get("/v1/subscriptions?topic=orders").await.ok(200);
    assert_eq!((&all["subscriptions"][0]["lag"], all["subscriptions"][0].get("partitions")), (&json!(7), None));
    assert_eq!(house.get("/v1/subscriptions?topic=none").await.ok(200)["subscriptions"], json!([]));
}

#[tokio::test]
async fn a_secret_is_shown_once_when_it_is_generated_and_never_again() {
    let house = House::new().await;
    let made = house.put("/v1/subscriptions/billing", push(json!({ "secret": "generate" }))).await.ok(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() > 40, "{secret}");
    assert_eq!(stored(&house, "billing").spec.secrets[0].secret, secret);
    let masked = format!("whsec_…{}", &secret[secret.len() - 4..]);
    for shown in [
        house.get("/v1/subscriptions/billing").await.ok(200),
        house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(200),
        house.post("/v1/subscriptions/billing/pause", "").await.ok(200),
    ] {
        assert_eq!(shown["secret"], masked, "left out of a change it stays");
    }
    house.put("/v1/subscriptions/billing", push(json!({ "secret": "generate" }))).await.ok(200);
    let secrets = stored(&house, "billing").spec.secrets;
    assert_eq!((secrets.len(), &secrets[1].secret), (2, &secret), "the old one signs on for a day");
    house.put("/v1/subscriptions/billing", push(json!({ "secret": null }))).await.ok(200);
    assert!(stored(&house, "billing").spec.secrets.is_empty());
}

#[tokio::test]
async fn what_cannot_be_is_told_and_leaves_nothing() {
    let house = House::new().await;
    for (name, body, code) in [
        ("billing", push(json!({ "topics": ["_holds"] })), "reserved_name"),
        ("billing", push(json!({ "topics": ["_dead.nobody"] })), "unknown_topic"),
        ("billing", push(json!({ "conurrency": 1 })), "bad_parameter"),
        ("billing", push(json!({ "endpoint": { "url": "http://169.254.169.254/" } })), "forbidden_address"),
        ("_billing", push(json!({})), "reserved_name"),
        ("bill%20ing", push(json!({})), "bad_name"),
    ] {
        let status = if code == "unknown_topic" { 404 } else { 422 };
        house.put(&format!("/v1/subscriptions/{name}"), body).await.problem(status, code);
    }
    house.put("/v1/subscriptions/billing", json!([])).await.problem(422, "bad_json");
    assert_eq!(house.get("/v1/subscriptions").await.ok(200)["subscriptions"], json!([]));
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    let own = push(json!({ "topics": ["orders", "_dead.billing"] }));
    house.put("/v1/subscriptions/billing", own).await.problem(422, "reserved_name");
    let others = push(json!({ "topics": ["_dead.billing", "_events"] }));
    house.put("/v1/subscriptions/morgue", others).await.ok(201);
    let refused = house.delete("/v1/subscriptions/billing").await.problem(409, "topic_subscribed");
    assert_eq!(refused["subscriptions"], json!(["morgue"]));
}

#[tokio::test]
async fn a_topic_is_not_made_where_publishes_do_not_make_it() {
    let house = House::with_topics(TopicDefaults { auto_create: false, ..TopicDefaults::default() }).await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.problem(404, "unknown_topic");
    assert!(house.subscriptions.all().is_empty());
}

#[tokio::test]
async fn a_topic_that_is_read_is_deleted_only_on_purpose() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    let refused = house.delete("/v1/topics/orders").await.problem(409, "topic_subscribed");
    assert_eq!(refused["subscriptions"], json!(["billing"]));
    house.delete("/v1/topics/orders?subscriptions=drop").await.problem(422, "bad_parameter");
    assert_eq!(house.delete("/v1/topics/orders?subscriptions=keep").await.status, 204);
    house.get("/v1/subscriptions/billing").await.ok(200);
}

#[tokio::test]
async fn deleting_withdraws_the_retries_that_wait() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    let retries = house.registry.get("_retry.billing").unwrap().number();
    assert_eq!(house.delete("/v1/subscriptions/billing").await.status, 204);
    let asked = house.world.holds.asked();
    assert!(asked.contains(&Ask::WithdrawTopic { topic: retries }));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_was_cut_short_is_finished_by_the_next_start() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    house.world.holds.refuse(Some(HoldsError::NoOwner(0)));
    house.delete("/v1/subscriptions/billing").await.problem(503, "no_owner");
    house.get("/v1/subscriptions/billing").await.problem(404, "unknown_subscription");
    house.put("/v1/subscriptions/billing", push(json!({}))).await.problem(409, "subscription_deleting");
    assert!(stored(&house, "billing").deleting);
    let house = house.close().await.open().await;
    house.world.holds.refuse(None);
    let mut changes = house.subscriptions.changes();
    soon(async {
        while house.subscriptions.get("billing").is_some() {
            changes.changed().await.unwrap();
        }
    })
    .await;
    assert_eq!(house.world.catalogue.value("subscriptions/billing"), None);
    assert_eq!(house.world.progress.forgotten.lock().unwrap().len(), 1);
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
}

#[tokio::test]
async fn a_deletion_that_was_cut_short_is_finished_by_asking_again() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    house.world.progress.refuse(true);
    house.delete("/v1/subscriptions/billing").await.problem(503, "unavailable");
    house.world.progress.refuse(false);
    assert_eq!(house.delete("/v1/subscriptions/billing").await.status, 204);
    assert_eq!(house.world.catalogue.value("subscriptions/billing"), None);
}

#[tokio::test]
async fn subscriptions_survive_a_restart_and_what_another_process_decides_is_followed() {
    let house = House::new().await;
    house.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    let house = house.close().await.open().await;
    assert_eq!(house.get("/v1/subscriptions/billing").await.ok(200)["number"], 1);
    let mut changes = house.subscriptions.changes();
    changes.mark_unchanged();
    let mut entry = house.world.catalogue.value("subscriptions/billing").unwrap();
    entry["state"] = json!({ "is": "paused" });
    house.world.catalogue.force("subscriptions/billing", &entry.to_string());
    soon(changes.changed()).await.unwrap();
    assert_eq!(house.get("/v1/subscriptions/billing").await.ok(200)["state"], "paused");
}

#[tokio::test]
async fn keys_see_the_subscriptions_of_their_topics_only() {
    let key = |name: &str, scopes: &[Scope], topics: &[&str]| ApiKey {
        name: name.into(),
        secret: Secret::Plain(name.into()),
        scopes: scopes.to_vec(),
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
    };
    let keys = vec![
        key("ops", &[Scope::Admin], &[]),
        key("eu", &[Scope::Admin], &["eu.*"]),
        key("reader", &[Scope::Consume], &["eu.*"]),
    ];
    let house = House::with(ReceiveSettings { keys, ..ReceiveSettings::default() }).await;
    let call = |key: &'static str, method: &'static str, uri: &'static str, body: Value| {
        let (house, bearer) = (&house, format!("Bearer {key}"));
        async move { house.call(method.parse().unwrap(), uri, &[("authorization", &bearer)], body.to_string()).await }
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
