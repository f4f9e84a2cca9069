//! The system's own subscription: made at the start, seen by operators, and changed by nobody else.

use serde_json::json;
use whimbrel_catalogue::subscriptions::ensure_notices_subscription;
use whimbrel_model::subscription::{Ordering, RunState, Start};

use crate::subscriptions::{push, stored};
use crate::support::House;

#[tokio::test]
async fn notices_are_read_from_their_beginning_by_a_subscription_that_operators_see() {
    let house = House::new().await;
    ensure_notices_subscription(&house.subscriptions).await.unwrap();
    let listed = house.get("/v1/subscriptions").await.ok(200);
    assert_eq!(listed["subscriptions"][0]["name"], "_notices");
    let shown = house.get("/v1/subscriptions/_notices").await.ok(200);
    assert_eq!((&shown["topics"], &shown["endpoint"]["url"]), (&json!(["_notices"]), &json!("whimbrel:horn")));
    for topic in ["_notices", "_retry._notices", "_dead._notices"] {
        house.get(&format!("/v1/topics/{topic}")).await.ok(200);
    }
    let spec = stored(&house, "_notices").spec;
    assert_eq!((spec.start, spec.concurrency, spec.disable_after_ms), (Start::Earliest, 64, 0));
    assert_eq!(spec.ordering, Ordering::None, "what comes back later is a hold and stands in nobody's way");
    assert_eq!(spec.retry.schedule_ms, [5_000, 30_000, 300_000, 1_800_000]);
}

#[tokio::test]
async fn another_start_changes_nothing_and_keeps_what_an_operator_did() {
    let house = House::new().await;
    ensure_notices_subscription(&house.subscriptions).await.unwrap();
    house.subscriptions.pause("_notices").await.unwrap();
    let before = stored(&house, "_notices");
    ensure_notices_subscription(&house.subscriptions).await.unwrap();
    assert_eq!(stored(&house, "_notices"), before);
    assert_eq!(before.state, RunState::Paused);
}

#[tokio::test]
async fn nobody_else_makes_changes_or_deletes_it() {
    let house = House::new().await;
    house.put("/v1/subscriptions/_notices", push(json!({}))).await.problem(422, "reserved_name");
    house.delete("/v1/subscriptions/_notices").await.problem(422, "reserved_name");
    ensure_notices_subscription(&house.subscriptions).await.unwrap();
    house.put("/v1/subscriptions/_notices", push(json!({}))).await.problem(422, "reserved_name");
    house.delete("/v1/subscriptions/_notices").await.problem(422, "reserved_name");
    assert!(!stored(&house, "_notices").deleting);
}

#[tokio::test]
async fn nobody_subscribes_to_notices_or_has_them_called_elsewhere() {
    let house = House::new().await;
    let reading = push(json!({ "topics": ["_notices"] }));
    let refused = house.put("/v1/subscriptions/spy", reading).await;
    assert!(refused.status.is_client_error(), "{refused:?}");
    let calling = push(json!({ "endpoint": { "url": "whimbrel:horn" } }));
    house.put("/v1/subscriptions/horn", calling).await.problem(422, "bad_url");
}
