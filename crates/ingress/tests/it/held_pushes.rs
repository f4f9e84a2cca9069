//! Held pushes and system holds: which keys see them, and which commands are refused.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use whimbrel_ingress::Scope;
use whimbrel_model::push::{PUSH_TOPIC, PushRetry, PushTask};
use whimbrel_model::{
    Clock as _, HOLDS_TOPIC, Hold, HoldId, HoldRecord, MessageBody, PartitionId, Platform, Timestamp,
};

use crate::support::{Answer, SHARDS, TestApi, key};

/// The id of a retry, in the form of a carrier.
const RETRY: &str = "push-00000000000000ff-web-0123456789abcdef-1-1-1-1f-18c2-19a";

/// A server with keys that cover all topics, one of them without the scope `push`.
async fn api() -> TestApi {
    TestApi::with_keys([
        key("shop", &[Scope::Publish, Scope::Consume], &[]),
        key("chat", &[Scope::Publish, Scope::Consume, Scope::Push], &[]),
    ])
    .await
}

async fn call(api: &TestApi, key: &str, method: Method, uri: &str, body: Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    api.call_as(key, method, uri, body).await
}

async fn hold_push(api: &TestApi) -> String {
    let push = json!({ "payload": "later", "delay": "1h" });
    let held = call(api, "chat", Method::POST, "/v1/users/u1/messages", push).await.ok(202);
    held["id"].as_str().unwrap().to_owned()
}

/// A carrier's own hold, for a retry to a seat.
fn hold_retry(api: &TestApi) {
    let id = HoldId::new(RETRY);
    let push = api.registry.get(PUSH_TOPIC).unwrap();
    let now = api.world.clock.now();
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
        message: MessageBody {
            key: Some(Bytes::from_static(b"u1")),
            value: Bytes::new(),
            headers: PushTask::Retry(retry).headers().take(),
        },
    };
    let shard = PartitionId::new(api.world.log.number_of(HOLDS_TOPIC).unwrap(), id.shard(SHARDS));
    api.world.log.put(shard, HoldRecord::Held(hold).to_record(now));
}

fn actions() -> [(Method, &'static str, Value); 3] {
    [
        (Method::DELETE, "", Value::Null),
        (Method::POST, "/fire", Value::Null),
        (Method::POST, "/extend", json!({ "by": "1m" })),
    ]
}

#[tokio::test]
async fn a_key_without_the_scope_push_does_not_see_held_pushes() {
    let api = api().await;
    let id = hold_push(&api).await;
    call(&api, "shop", Method::POST, "/v1/topics/orders/messages?delay=1h&id=o1", json!({})).await.ok(202);
    call(&api, "shop", Method::GET, &format!("/v1/holds/{id}"), Value::Null).await.problem(404, "unknown_hold");
    call(&api, "shop", Method::GET, &format!("/v1/messages/{id}"), Value::Null).await.problem(404, "unknown_message");
    for uri in ["/v1/holds?topic=_push", "/v1/holds?topic=_push&state=dead", "/v1/holds/count?topic=_push"] {
        call(&api, "shop", Method::GET, uri, Value::Null).await.problem(403, "forbidden");
        call(&api, "chat", Method::GET, uri, Value::Null).await.ok(200);
    }
    for uri in ["/v1/holds", "/v1/holds/count"] {
        call(&api, "shop", Method::GET, uri, Value::Null).await.problem(403, "forbidden");
        call(&api, "chat", Method::GET, uri, Value::Null).await.ok(200);
    }
    let own = call(&api, "shop", Method::GET, "/v1/holds?topic=orders", Value::Null).await.ok(200);
    assert_eq!(own["holds"][0]["id"], "o1");
}

#[tokio::test]
async fn a_key_without_the_scope_push_cannot_change_held_pushes() {
    let api = api().await;
    let id = hold_push(&api).await;
    for (method, action, body) in actions() {
        let uri = format!("/v1/holds/{id}{action}");
        call(&api, "shop", method, &uri, body).await.problem(404, "unknown_hold");
    }
    let shown = call(&api, "chat", Method::GET, &format!("/v1/holds/{id}"), Value::Null).await.ok(200);
    assert_eq!((&shown["state"], &shown["version"]), (&json!("held"), &json!(0)));
    call(&api, "chat", Method::DELETE, &format!("/v1/holds/{id}"), Value::Null).await.ok(200);
}

#[tokio::test]
async fn no_key_extends_fires_or_withdraws_system_holds() {
    let api = api().await;
    hold_retry(&api);
    for key in ["chat", "shop"] {
        for (method, action, body) in actions() {
            let uri = format!("/v1/holds/{RETRY}{action}");
            call(&api, key, method, &uri, body).await.problem(403, "forbidden");
        }
    }
    let shown = call(&api, "chat", Method::GET, &format!("/v1/holds/{RETRY}"), Value::Null).await.ok(200);
    assert_eq!((&shown["state"], &shown["version"]), (&json!("held"), &json!(0)));
}

/// A client that claims such an id first would prevent the retry, or the notification, from being held.
#[tokio::test]
async fn no_client_can_use_an_id_of_a_system_hold() {
    let api = api().await;
    let uri = format!("/v1/topics/orders/messages?delay=1h&id={RETRY}");
    call(&api, "shop", Method::POST, &uri, json!({})).await.problem(422, "bad_id");
    let push = json!({ "payload": "x", "id": "notice-3-18c2f-5-41-0123456789abcdef" });
    call(&api, "chat", Method::POST, "/v1/users/u1/messages", push).await.problem(422, "bad_id");
    let push = json!({ "payload": "x", "id": "push-1" });
    call(&api, "chat", Method::POST, "/v1/users/u1/messages", push).await.ok(202);
}
