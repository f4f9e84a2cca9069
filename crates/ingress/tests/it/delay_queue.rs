//! The compatible API of c-delay-queue.

use serde_json::{Value, json};
use whimbrel_model::ports::HoldsError;
use whimbrel_model::subscription::{DeliveryRule, HEADER_DELIVERY, RetryPolicy};

use crate::support::{TestApi, changed};

async fn accept(api: &TestApi, task: Value) -> (String, String) {
    let answer = api.post("/dq/acceptMsg", task.to_string()).await.ok(200);
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
    changed(task(), changes)
}

#[tokio::test]
async fn a_task_becomes_a_hold_with_its_retry_rule() {
    let api = TestApi::new().await;
    assert_eq!(accept(&api, task()).await, ("0".to_owned(), "OK".to_owned()));
    let held = api.get("/v1/holds/task-1").await.ok(200);
    assert_eq!((&held["topic"], &held["due"]), (&json!("audit"), &json!("2026-11-15T10:39:42.000Z")));
    api.world.clock.forward(60_000);
    api.world.holds.fire_due();
    let fired = api.get("/v1/messages/task-1").await.ok(200);
    assert_eq!((&fired["state"], &fired["payload"]), (&json!("fired"), &json!("{\"order\":7}")));
    assert_eq!(fired["headers"], json!({}), "the retry rule is not an own header");
    let rule: DeliveryRule = serde_json::from_slice(&api.header_of("audit", HEADER_DELIVERY)).unwrap();
    assert_eq!(rule.retry, Some(RetryPolicy { times: 3, schedule_ms: vec![5_000] }));
    assert_eq!((rule.timeout_ms, rule.callback), (Some(10_000), None));
}

#[tokio::test]
async fn a_repeat_is_safe_and_another_task_with_the_same_id_is_rejected() {
    let api = TestApi::new().await;
    assert_eq!(accept(&api, task()).await.0, "0");
    assert_eq!(accept(&api, task()).await.0, "0", "the same nonce");
    assert_eq!(accept(&api, with(json!({ "nonceStr": "nonce-2" }))).await.0, "-103");
    assert_eq!(accept(&api, with(json!({ "nonceStr": "nonce-3", "params": "x" }))).await.0, "-103");
    assert_eq!(accept(&api, with(json!({ "taskId": "task-2", "nonceStr": null }))).await.0, "0");
    assert_eq!(api.get("/v1/holds").await.ok(200)["holds"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn errors_have_the_codes_of_c_delay_queue() {
    let api = TestApi::new().await;
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
        let (code, msg) = accept(&api, with(changes.clone())).await;
        assert_eq!(code, "-100", "{changes}: {msg}");
    }
    assert_eq!(accept(&api, json!([])).await.0, "-100");
    api.world.holds.refuse(Some(HoldsError::NoOwner(1)));
    assert_eq!(accept(&api, task()).await.0, "-102");
    api.world.holds.refuse(Some(HoldsError::OutcomeUnknown("gone".into())));
    assert_eq!(accept(&api, task()).await.0, "-1");
    api.world.holds.refuse(None);
    assert!(api.get("/v1/holds").await.ok(200)["holds"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn numbers_may_be_strings_and_parameters_any_json() {
    let api = TestApi::new().await;
    let odd = with(json!({ "delayTime": "0", "retryCount": "1", "params": { "a": [1] }, "extra": true }));
    assert_eq!(accept(&api, odd).await.0, "0");
    api.world.holds.fire_due();
    let fired = api.get("/v1/messages/task-1").await.ok(200);
    assert_eq!((&fired["payload"], &fired["content_type"]), (&json!("{\"a\":[1]}"), &json!("application/json")));
}
