//! The system subscription: created at the start, visible to operators, and protected from changes.

use serde_json::json;
use whimbrel_catalogue::subscriptions::ensure_notices_subscription;
use whimbrel_model::subscription::{Ordering, RunState, Start};

use crate::subscriptions::{push, stored};
use crate::support::TestApi;

#[tokio::test]
async fn a_visible_system_subscription_reads_notices_from_the_beginning() {
    let api = TestApi::new().await;
    ensure_notices_subscription(&api.subscriptions).await.unwrap();
    let listed = api.get("/v1/subscriptions").await.ok(200);
    assert_eq!(listed["subscriptions"][0]["name"], "_notices");
    let shown = api.get("/v1/subscriptions/_notices").await.ok(200);
    assert_eq!((&shown["topics"], &shown["endpoint"]["url"]), (&json!(["_notices"]), &json!("whimbrel:horn")));
    for topic in ["_notices", "_retry._notices", "_dead._notices"] {
        api.get(&format!("/v1/topics/{topic}")).await.ok(200);
    }
    let spec = stored(&api, "_notices").spec;
    assert_eq!((spec.start, spec.concurrency, spec.disable_after_ms), (Start::Earliest, 64, 0));
    assert_eq!(spec.ordering, Ordering::None, "a retry is a hold and blocks no other notice");
    assert_eq!(spec.retry.schedule_ms, [5_000, 30_000, 300_000, 1_800_000]);
}

#[tokio::test]
async fn a_restart_keeps_changes_of_an_operator() {
    let api = TestApi::new().await;
    ensure_notices_subscription(&api.subscriptions).await.unwrap();
    api.subscriptions.pause("_notices").await.unwrap();
    let before = stored(&api, "_notices");
    ensure_notices_subscription(&api.subscriptions).await.unwrap();
    assert_eq!(stored(&api, "_notices"), before);
    assert_eq!(before.state, RunState::Paused);
}

#[tokio::test]
async fn no_request_changes_or_deletes_it() {
    let api = TestApi::new().await;
    api.put("/v1/subscriptions/_notices", push(json!({}))).await.problem(422, "reserved_name");
    api.delete("/v1/subscriptions/_notices").await.problem(422, "reserved_name");
    ensure_notices_subscription(&api.subscriptions).await.unwrap();
    api.put("/v1/subscriptions/_notices", push(json!({}))).await.problem(422, "reserved_name");
    api.delete("/v1/subscriptions/_notices").await.problem(422, "reserved_name");
    assert!(!stored(&api, "_notices").deleting);
}

#[tokio::test]
async fn no_request_subscribes_to_notices_or_redirects_them() {
    let api = TestApi::new().await;
    let reading = push(json!({ "topics": ["_notices"] }));
    let refused = api.put("/v1/subscriptions/spy", reading).await;
    assert!(refused.status.is_client_error(), "{refused:?}");
    let calling = push(json!({ "endpoint": { "url": "whimbrel:horn" } }));
    api.put("/v1/subscriptions/horn", calling).await.problem(422, "bad_url");
}
