//! Worker pools of topics.

use serde_json::json;

use crate::support::TestApi;

#[tokio::test]
async fn a_topic_shows_its_workers() {
    let api = TestApi::new().await;
    let workers = json!({ "pool": ["w1", "w2"], "strategy": "round_robin" });
    let made = api.put("/v1/topics/orders", json!({ "workers": workers })).await.ok(201);
    assert_eq!(made["workers"], workers);
    api.put("/v1/topics/orders", json!({ "retention": "3d" })).await.ok(200);
    assert_eq!(api.get("/v1/topics/orders").await.ok(200)["workers"], workers, "absent fields keep their value");
    let counted = json!({ "count": 3, "assign": "random", "strategy": "least_loaded" });
    let changed = api.put("/v1/topics/orders", json!({ "workers": { "count": 3, "assign": "random" } })).await.ok(200);
    assert_eq!(changed["workers"], counted);
    let api = api.close().await.open().await;
    assert_eq!(api.get("/v1/topics/orders").await.ok(200)["workers"], counted);
    let none = api.put("/v1/topics/orders", json!({ "workers": null })).await.ok(200);
    assert_eq!(none.get("workers"), None);
    for (workers, field) in [
        (json!({ "pool": [] }), "workers.pool"),
        (json!({ "pool": ["a b"] }), "workers.pool"),
        (json!({ "strategy": "best" }), "workers.strategy"),
        (json!({ "polo": ["a"] }), "workers.polo"),
    ] {
        let refused = api.put("/v1/topics/orders", json!({ "workers": workers })).await.problem(422, "bad_parameter");
        assert_eq!(refused["field"], field);
    }
}

#[tokio::test]
async fn workers_are_added_and_removed_one_by_one() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", json!({})).await.ok(201);
    let one = api.post("/v1/topics/orders/workers/w1", "").await.ok(200);
    assert_eq!(one["pool"], json!(["w1"]));
    let two = api.post("/v1/topics/orders/workers/w2", "").await.ok(200);
    assert_eq!(two["pool"], json!(["w1", "w2"]));
    assert_eq!(api.delete("/v1/topics/orders/workers/w1").await.ok(200)["pool"], json!(["w2"]));
    api.delete("/v1/topics/orders/workers/w1").await.problem(404, "unknown_worker");
    api.delete("/v1/topics/orders/workers/w2").await.problem(422, "bad_parameter");
    api.post("/v1/topics/orders/workers/*", "").await.problem(422, "bad_name");
    api.post("/v1/topics/none/workers/w1", "").await.problem(404, "unknown_topic");
    api.put("/v1/topics/orders", json!({ "workers": { "count": 2 } })).await.ok(200);
    api.post("/v1/topics/orders/workers/w1", "").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn a_pool_without_a_live_worker_is_rejected() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", json!({})).await.ok(201);
    let refused = api.post("/v1/topics/orders/workers/no-such-worker", "").await.problem(404, "unknown_worker");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("`no-such-worker`") && detail.contains("`w1`, `w2`"), "{detail}");
    assert_eq!(api.get("/v1/topics/orders").await.ok(200).get("workers"), None, "all workers, as before");
    let unknown = json!({ "workers": { "pool": ["no-such-worker"] } });
    let refused = api.put("/v1/topics/orders", unknown).await.problem(422, "bad_parameter");
    assert_eq!(refused["field"], "workers.pool");
    let pull = json!({ "topics": ["orders"], "mode": "pull", "workers": { "pool": ["no-such-worker"] } });
    let refused = api.put("/v1/subscriptions/billing", pull).await.problem(422, "bad_parameter");
    assert_eq!(refused["field"], "workers.pool");
    let one_of_them = json!({ "workers": { "pool": ["no-such-worker", "w2"] } });
    api.put("/v1/topics/orders", one_of_them).await.ok(200);
}
