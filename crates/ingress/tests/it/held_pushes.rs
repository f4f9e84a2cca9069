//! What is held for people: who may look at it, and what nobody takes back.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use whimbrel_ingress::{ApiKey, ReceiveSettings, Scope, Secret};
use whimbrel_model::push::{PUSH_TOPIC, PushRetry, PushTask};
use whimbrel_model::{
    Clock as _, HOLDS_TOPIC, HeldMessage, Hold, HoldId, HoldRecord, PartitionId, Platform, Timestamp,
};

use crate::support::{Answer, House, SHARDS};

/// As a carrier makes it.
const RETRY: &str = "push-00000000000000ff-web-0123456789abcdef-1-1-1-1f-18c2-19a";

/// A house with keys that are for all topics, one of which does not push.
async fn house() -> House {
    let key = |name: &str, scopes: &[Scope]| ApiKey {
        name: name.into(),
        secret: Secret::Plain(name.into()),
        scopes: scopes.to_vec(),
        topics: Vec::new(),
    };
    let keys = vec![
        key("shop", &[Scope::Publish, Scope::Consume]),
        key("chat", &[Scope::Publish, Scope::Consume, Scope::Push]),
    ];
    House::with(ReceiveSettings { keys, ..ReceiveSettings::default() }).await
}

async fn call(house: &House, key: &str, method: Method, uri: &str, body: Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    house.call(method, uri, &[("authorization", &bearer)], body).await
}

async fn hold_push(house: &House) -> String {
    let push = json!({ "payload": "later", "delay": "1h" });
    let held = call(house, "chat", Method::POST, "/v1/users/u1/messages", push).await.ok(202);
    held["id"].as_str().unwrap().to_owned()
}

/// A carrier's own hold, for another try at a seat.
fn hold_retry(house: &House) {
    let id = HoldId::new(RETRY);
    let push = house.registry.get(PUSH_TOPIC).unwrap();
    let now = house.world.clock.now();
    let platform = Platform::new("web").unwrap();
    let retry = PushRetry { uid: "u1".into(), platform, device: String::new(), upto: 1, attempt: 1 };
    let hold = Hold {
        id: id.clone(),
        topic: push.number(),
        topic_name: Arc::clone(&push.name),
        due: Timestamp::from_millis(now.as_millis() + 1_000),
        published_at: now,
        version: 0,
        fresh: false,
        moves: Vec::new(),
        message: HeldMessage {
            key: Some(Bytes::from_static(b"u1")),
            value: Bytes::new(),
            headers: PushTask::Retry(retry).headers().take(),
        },
    };
    let shard = PartitionId::new(house.world.log.number_of(HOLDS_TOPIC).unwrap(), id.shard(SHARDS));
    house.world.log.put(shard, HoldRecord::Held(hold).to_record(now));
}

fn actions() -> [(Method, &'static str, Value); 3] {
    [
        (Method::DELETE, "", Value::Null),
        (Method::POST, "/fire", Value::Null),
        (Method::POST, "/extend", json!({ "by": "1m" })),
    ]
}

#[tokio::test]
async fn a_key_that_does_not_push_learns_nothing_of_held_pushes() {
    let house = house().await;
    let id = hold_push(&house).await;
    call(&house, "shop", Method::POST, "/v1/topics/orders/messages?delay=1h&id=o1", json!({})).await.ok(202);
    call(&house, "shop", Method::GET, &format!("/v1/holds/{id}"), Value::Null).await.problem(404, "unknown_hold");
    call(&house, "shop", Method::GET, &format!("/v1/messages/{id}"), Value::Null).await.problem(404, "unknown_message");
    for uri in ["/v1/holds?topic=_push", "/v1/holds?topic=_push&state=dead", "/v1/holds/count?topic=_push"] {
        call(&house, "shop", Method::GET, uri, Value::Null).await.problem(403, "forbidden");
        call(&house, "chat", Method::GET, uri, Value::Null).await.ok(200);
    }
    for uri in ["/v1/holds", "/v1/holds/count"] {
        call(&house, "shop", Method::GET, uri, Value::Null).await.problem(403, "forbidden");
        call(&house, "chat", Method::GET, uri, Value::Null).await.ok(200);
    }
    let own = call(&house, "shop", Method::GET, "/v1/holds?topic=orders", Value::Null).await.ok(200);
    assert_eq!(own["holds"][0]["id"], "o1");
}

#[tokio::test]
async fn a_key_that_does_not_push_does_nothing_to_held_pushes() {
    let house = house().await;
    let id = hold_push(&house).await;
    for (method, action, body) in actions() {
        let uri = format!("/v1/holds/{id}{action}");
        call(&house, "shop", method, &uri, body).await.problem(404, "unknown_hold");
    }
    let shown = call(&house, "chat", Method::GET, &format!("/v1/holds/{id}"), Value::Null).await.ok(200);
    assert_eq!((&shown["state"], &shown["version"]), (&json!("held"), &json!(0)));
    call(&house, "chat", Method::DELETE, &format!("/v1/holds/{id}"), Value::Null).await.ok(200);
}

#[tokio::test]
async fn nobody_moves_fires_or_takes_back_what_the_system_holds_for_itself() {
    let house = house().await;
    hold_retry(&house);
    for key in ["chat", "shop"] {
        for (method, action, body) in actions() {
            let uri = format!("/v1/holds/{RETRY}{action}");
            call(&house, key, method, &uri, body).await.problem(403, "forbidden");
        }
    }
    let shown = call(&house, "chat", Method::GET, &format!("/v1/holds/{RETRY}"), Value::Null).await.ok(200);
    assert_eq!((&shown["state"], &shown["version"]), (&json!("held"), &json!(0)));
}

/// Else whoever took it first would keep the try, or the notice, from being held.
#[tokio::test]
async fn nobody_brings_an_id_that_the_system_holds_something_under() {
    let house = house().await;
    let uri = format!("/v1/topics/orders/messages?delay=1h&id={RETRY}");
    call(&house, "shop", Method::POST, &uri, json!({})).await.problem(422, "bad_id");
    let push = json!({ "payload": "x", "id": "notice-3-18c2f-5-41-0123456789abcdef" });
    call(&house, "chat", Method::POST, "/v1/users/u1/messages", push).await.problem(422, "bad_id");
    let push = json!({ "payload": "x", "id": "push-1" });
    call(&house, "chat", Method::POST, "/v1/users/u1/messages", push).await.ok(202);
}
