//! Which workers make the callbacks of a topic.

use serde_json::json;

use crate::support::House;

#[tokio::test]
async fn a_topic_names_its_workers_and_shows_them() {
    let house = House::new().await;
    let workers = json!({ "pool": ["w1", "w2"], "strategy": "round_robin" });
    let made = house.put("/v1/topics/orders", json!({ "workers": workers })).await.ok(201);
    assert_eq!(made["workers"], workers);
    house.put("/v1/topics/orders", json!({ "retention": "3d" })).await.ok(200);
    assert_eq!(house.get("/v1/topics/orders").await.ok(200)["workers"], workers, "what is left out stays");
    let counted = json!({ "count": 3, "assign": "random", "strategy": "least_loaded" });
    let changed =
        house.put("/v1/topics/orders", json!({ "workers": { "count": 3, "assign": "random" } })).await.ok(200);
    assert_eq!(changed["workers"], counted);
    let house = house.close().await.open().await;
    assert_eq!(house.get("/v1/topics/orders").await.ok(200)["workers"], counted);
    let none = house.put("/v1/topics/orders", json!({ "workers": null })).await.ok(200);
    assert_eq!(none.get("workers"), None);
    for (workers, field) in [
        (json!({ "pool": [] }), "workers.pool"),
        (json!({ "pool": ["a b"] }), "workers.pool"),
        (json!({ "strategy": "best" }), "workers.strategy"),
        (json!({ "polo": ["a"] }), "workers.polo"),
    ] {
        let refused = house.put("/v1/topics/orders", json!({ "workers": workers })).await.problem(422, "bad_parameter");
        assert_eq!(refused["field"], field);
    }
}

#[tokio::test]
async fn workers_come_and_go_one_by_one() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({})).await.ok(201);
    let one = house.post("/v1/topics/orders/workers/w1", "").await.ok(200);
    assert_eq!(one["pool"], json!(["w1"]));
    let two = house.post("/v1/topics/orders/workers/w2", "").await.ok(200);
    assert_eq!(two["pool"], json!(["w1", "w2"]));
    assert_eq!(house.delete("/v1/topics/orders/workers/w1").await.ok(200)["pool"], json!(["w2"]));
    house.delete("/v1/topics/orders/workers/w1").await.problem(404, "unknown_worker");
    house.delete("/v1/topics/orders/workers/w2").await.problem(422, "bad_parameter");
    house.post("/v1/topics/orders/workers/*", "").await.problem(422, "bad_name");
    house.post("/v1/topics/none/workers/w1", "").await.problem(404, "unknown_topic");
    house.put("/v1/topics/orders", json!({ "workers": { "count": 2 } })).await.ok(200);
    house.post("/v1/topics/orders/workers/w1", "").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn a_worker_that_is_not_alive_cannot_be_chosen_by_mistake() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({})).await.ok(201);
    let refused = house.post("/v1/topics/orders/workers/no-such-worker", "").await.problem(404, "unknown_worker");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("`no-such-worker`") && detail.contains("`w1`, `w2`"), "{detail}");
    assert_eq!(house.get("/v1/topics/orders").await.ok(200).get("workers"), None, "every worker, as before");
    let unknown = json!({ "workers": { "pool": ["no-such-worker"] } });
    let refused = house.put("/v1/topics/orders", unknown).await.problem(422, "bad_parameter");
    assert_eq!(refused["field"], "workers.pool");
    let pull = json!({ "topics": ["orders"], "mode": "pull", "workers": { "pool": ["no-such-worker"] } });
    let refused = house.put("/v1/subscriptions/billing", pull).await.problem(422, "bad_parameter");
    assert_eq!(refused["field"], "workers.pool");
    let one_of_them = json!({ "workers": { "pool": ["no-such-worker", "w2"] } });
    house.put("/v1/topics/orders", one_of_them).await.ok(200);
}
