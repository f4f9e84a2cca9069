//! The compatible API of soraka.

use serde_json::{Value, json};
use whimbrel_model::ports::HoldsError;
use whimbrel_model::subscription::{DeliveryRule, GonePolicy, HEADER_DELIVERY, Ordering, OwnCallback};

use crate::subscriptions::stored;
use crate::support::TestApi;

fn message(changes: Value) -> String {
    let mut message = json!({
        "topic_name": "orders", "delay_time": 10_000, "ttr": 1_500,
        "callback": { "request_type": "POST", "url": "http://127.0.0.1:9000/hook", "params": "{\"id\":111}" },
    });
    for (name, value) in changes.as_object().unwrap() {
        match name.strip_prefix("callback.") {
            Some(name) => message["callback"][name] = value.clone(),
            None => message[name] = value.clone(),
        }
    }
    message.to_string()
}

async fn submit(api: &TestApi, changes: Value) -> Value {
    api.post("/sorakaq/msg/submit", message(changes)).await.ok(200)
}

#[tokio::test]
async fn a_message_becomes_a_hold_with_its_callback_and_its_topic_is_delivered() {
    let api = TestApi::new().await;
    let answer = submit(&api, json!({})).await;
    assert_eq!((&answer["ec"], &answer["em"]), (&json!(200), &json!("")));
    let id = answer["result"]["msgId"].as_str().unwrap();
    let held = api.get(&format!("/v1/holds/{id}")).await.ok(200);
    assert_eq!((&held["topic"], &held["due"]), (&json!("orders"), &json!("2026-11-15T10:38:52.000Z")));
    let entry = stored(&api, "soraka.orders");
    assert_eq!(
        (entry.spec.ordering, entry.spec.gone, &entry.spec.topics),
        (Ordering::None, GonePolicy::Fail, &vec!["orders".to_owned()])
    );
    assert_eq!(entry.spec.endpoint.unwrap().url, None);
    api.world.clock.forward(10_000);
    api.world.holds.fire_due();
    let rule: DeliveryRule = serde_json::from_slice(&api.header_of("orders", HEADER_DELIVERY)).unwrap();
    let callback = OwnCallback { method: "POST".into(), url: "http://127.0.0.1:9000/hook".into() };
    assert_eq!((rule.callback, rule.timeout_ms, rule.retry), (Some(callback), Some(1_500), None));
    let fired = api.get(&format!("/v1/messages/{id}")).await.ok(200);
    assert_eq!((&fired["payload"], &fired["headers"]), (&json!("{\"id\":111}"), &json!({})));
    assert_eq!(fired["content_type"], "application/json");
    assert_eq!(fired["subscriptions"][0]["name"], "soraka.orders");
}

#[tokio::test]
async fn its_subscription_is_created_once_and_keeps_changes() {
    let api = TestApi::new().await;
    submit(&api, json!({})).await;
    let changed = json!({ "topics": ["orders"], "ordering": "none", "concurrency": 3, "endpoint": {} });
    api.put("/v1/subscriptions/soraka.orders", changed).await.ok(200);
    api.post("/v1/subscriptions/soraka.orders/pause", "").await.ok(200);
    assert_eq!(submit(&api, json!({})).await["ec"], 200);
    let shown = api.get("/v1/subscriptions/soraka.orders").await.ok(200);
    assert_eq!((&shown["concurrency"], &shown["state"]), (&json!(3), &json!("paused")));
}

#[tokio::test]
async fn a_message_can_be_cancelled_and_delayed_further() {
    let api = TestApi::new().await;
    let answer = submit(&api, json!({})).await;
    let id = answer["result"]["msgId"].as_str().unwrap();
    let add = json!({ "topic_name": "orders", "msg_id": id, "add_time": 5_000 }).to_string();
    assert_eq!(api.post("/sorakaq/msg/addTime", add).await.ok(200), json!({ "ec": 200, "em": "", "result": true }));
    let held = api.get(&format!("/v1/holds/{id}")).await.ok(200);
    assert_eq!(held["due"], "2026-11-15T10:38:57.000Z");
    let elsewhere = json!({ "topic_name": "payments", "msg_id": id }).to_string();
    assert_eq!(api.post("/sorakaq/msg/cancel", elsewhere).await.ok(200)["ec"], 405);
    let cancel = json!({ "topic_name": "orders", "msg_id": id }).to_string();
    let cancelled = api.post("/sorakaq/msg/cancel", cancel.clone()).await.ok(200);
    assert_eq!(cancelled, json!({ "ec": 200, "em": "", "result": true }));
    let again = api.post("/sorakaq/msg/cancel", cancel).await.ok(200);
    assert_eq!((&again["ec"], &again["result"]), (&json!(405), &json!(false)));
    let unknown = json!({ "topic_name": "orders", "msg_id": "nobody" }).to_string();
    assert_eq!(api.post("/sorakaq/msg/cancel", unknown).await.ok(200)["ec"], 405);
}

#[tokio::test]
async fn errors_have_the_numbers_of_soraka() {
    let api = TestApi::new().await;
    for (changes, ec) in [
        (json!({ "topic_name": null }), 401),
        (json!({ "topic_name": "a b" }), 402),
        (json!({ "topic_name": "_holds" }), 402),
        (json!({ "topic_name": "x".repeat(200) }), 402),
        (json!({ "callback": null }), 401),
        (json!({ "callback.request_type": "PUT" }), 401),
        (json!({ "callback.url": "ftp://a/" }), 401),
        (json!({ "callback.url": "http://169.254.169.254/" }), 401),
        (json!({ "callback.request_type": "GET", "callback.params": "plain" }), 401),
        (json!({ "delay_time": 99_999_999_999_999_u64 }), 401),
        (json!({ "delay_time": -1 }), 401),
        (json!({ "ttr": 600_001 }), 401),
    ] {
        let answer = submit(&api, changes.clone()).await;
        assert_eq!((&answer["ec"], &answer["result"]), (&json!(ec), &json!(false)), "{changes}: {answer}");
        assert!(!answer["em"].as_str().unwrap().is_empty());
    }
    assert!(api.subscriptions.all().is_empty(), "a rejected request creates nothing");
    let answer = submit(&api, json!({})).await;
    let id = answer["result"]["msgId"].as_str().unwrap();
    let add = json!({ "topic_name": "orders", "msg_id": id, "add_time": 0 }).to_string();
    assert_eq!(api.post("/sorakaq/msg/addTime", add).await.ok(200)["ec"], 401);
    assert_eq!(api.post("/sorakaq/msg/cancel", "[]").await.ok(200)["ec"], 401);
    api.world.holds.refuse(Some(HoldsError::NoOwner(1)));
    let cancel = json!({ "topic_name": "orders", "msg_id": id }).to_string();
    assert_eq!(api.post("/sorakaq/msg/cancel", cancel).await.ok(200)["ec"], 500);
}
