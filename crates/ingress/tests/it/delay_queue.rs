//! The door of c-delay-queue.

use serde_json::{Value, json};
use whimbrel_model::ports::HoldsError;
use whimbrel_model::subscription::{DeliveryRule, HEADER_DELIVERY, RetryPolicy};

use crate::support::House;

async fn accept(house: &House, task: Value) -> (String, String) {
    let answer = house.post("/dq/acceptMsg", task.to_string()).await.ok(200);
    assert_eq!(answer["result"], Value::Null);
    (answer["code"].as_str().unwrap().to_owned(), answer["msg"].as_str().unwrap().to_owned())
}

fn task() -> Value {
    json!({
        "taskId": "task-1", "functionName": "audit", "params": "{\"order\":7}", "retryCount": 3, "retryInterval": 5,
        "delayTime": 60, "executeTimeout": 10, "nonceStr": "nonce-1",
    })
}

fn with(changes: Value) -> Value {
    let mut task = task();
    for (name, value) in changes.as_object().unwrap() {
        task[name] = value.clone();
    }
    task
}

#[tokio::test]
async fn a_task_is_a_hold_that_carries_how_it_is_tried() {
    let house = House::new().await;
    assert_eq!(accept(&house, task()).await, ("0".to_owned(), "OK".to_owned()));
    let held = house.get("/v1/holds/task-1").await.ok(200);
    assert_eq!((&held["topic"], &held["due"]), (&json!("audit"), &json!("2026-11-15T10:39:42.000Z")));
    house.world.clock.forward(60_000);
    house.world.holds.fire_due();
    let fired = house.get("/v1/messages/task-1").await.ok(200);
    assert_eq!((&fired["state"], &fired["payload"]), (&json!("fired"), &json!("{\"order\":7}")));
    assert_eq!(fired["headers"], json!({}), "how it is tried is nobody's header");
    let rule: DeliveryRule = serde_json::from_slice(&house.header_of("audit", HEADER_DELIVERY)).unwrap();
    assert_eq!(rule.retry, Some(RetryPolicy { times: 3, schedule_ms: vec![5_000] }));
    assert_eq!((rule.timeout_ms, rule.callback), (Some(10_000), None));
}

#[tokio::test]
async fn a_repeat_is_safe_and_another_task_under_the_same_id_is_refused() {
    let house = House::new().await;
    assert_eq!(accept(&house, task()).await.0, "0");
    assert_eq!(accept(&house, task()).await.0, "0", "the same nonce");
    assert_eq!(accept(&house, with(json!({ "nonceStr": "nonce-2" }))).await.0, "-103");
    assert_eq!(accept(&house, with(json!({ "nonceStr": "nonce-3", "params": "x" }))).await.0, "-103");
    assert_eq!(accept(&house, with(json!({ "taskId": "task-2", "nonceStr": null }))).await.0, "0");
    assert_eq!(house.get("/v1/holds").await.ok(200)["holds"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn bad_parameters_and_missing_owners_have_their_codes() {
    let house = House::new().await;
    for changes in [
        json!({ "taskId": null }),
        json!({ "taskId": "a b" }),
        json!({ "functionName": null }),
        json!({ "functionName": "_events" }),
        json!({ "delayTime": null }),
        json!({ "delayTime": -1 }),
        json!({ "delayTime": 99_999_999_999_u64 }),
        json!({ "retryCount": "many" }),
        json!({ "retryCount": 1001 }),
        json!({ "retryInterval": 604_801 }),
        json!({ "executeTimeout": 601 }),
        json!({ "nonceStr": "n\u{7}" }),
    ] {
        let (code, msg) = accept(&house, with(changes.clone())).await;
        assert_eq!(code, "-100", "{changes}: {msg}");
    }
    assert_eq!(accept(&house, json!([])).await.0, "-100");
    house.world.holds.refuse(Some(HoldsError::NoOwner(1)));
    assert_eq!(accept(&house, task()).await.0, "-102");
    house.world.holds.refuse(Some(HoldsError::OutcomeUnknown("gone".into())));
    assert_eq!(accept(&house, task()).await.0, "-1");
    house.world.holds.refuse(None);
    assert!(house.get("/v1/holds").await.ok(200)["holds"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn numbers_may_be_texts_and_parameters_any_json() {
    let house = House::new().await;
    let odd = with(json!({ "delayTime": "0", "retryCount": "1", "params": { "a": [1] }, "extra": true }));
    assert_eq!(accept(&house, odd).await.0, "0");
    house.world.holds.fire_due();
    let fired = house.get("/v1/messages/task-1").await.ok(200);
    assert_eq!((&fired["payload"], &fired["content_type"]), (&json!("{\"a\":[1]}"), &json!("application/json")));
}
