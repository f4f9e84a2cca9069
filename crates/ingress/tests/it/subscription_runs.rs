//! Pausing, resuming, disabling, seeking and replaying subscriptions.

use serde_json::json;
use whimbrel_model::ports::{DispatchError, DispatchReply, DispatchRequest, PartitionDelivery, SubscriptionStatus};
use whimbrel_model::subscription::RunState;
use whimbrel_model::{PartitionId, SubscriptionNumber};

use crate::subscriptions::{event, push, stored};
use crate::support::TestApi;

/// A subscription of one partition with three messages, one second apart.
async fn api() -> TestApi {
    let api = TestApi::with_partitions(1).await;
    api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    for payload in ["a", "b", "c"] {
        api.post("/v1/topics/orders/messages", payload).await.ok(201);
        api.world.clock.forward(1000);
    }
    api
}

/// Removes the messages before that offset, like retention.
fn drop_before(api: &TestApi, first: u64) {
    let orders = api.registry.get("orders").unwrap();
    api.world.log.drop_before(PartitionId::new(orders.number(), 0), first);
}

fn stand_at(api: &TestApi, places: &'static [(&'static str, u32, u64)]) {
    api.world.dispatch.say(move |ask| {
        let standing = |(topic, partition, watermark): &(&str, u32, u64)| PartitionDelivery {
            topic: (*topic).to_owned(),
            partition: *partition,
            watermark: *watermark,
            read_to: 0,
            end: 0,
            unfinished: 0,
        };
        let status =
            SubscriptionStatus { partitions: places.iter().map(standing).collect(), ..SubscriptionStatus::default() };
        matches!(ask, DispatchRequest::Status).then(|| Ok(DispatchReply::Status(Box::new(status))))
    });
}

#[tokio::test]
async fn a_subscription_can_be_paused_and_resumed() {
    let api = api().await;
    assert_eq!(api.post("/v1/subscriptions/billing/pause", "").await.ok(200)["state"], "paused");
    assert_eq!(api.post("/v1/subscriptions/billing/pause", "").await.ok(200)["state"], "paused");
    event(&api, "subscription_paused").await;
    assert_eq!(api.post("/v1/subscriptions/billing/resume", "").await.ok(200)["state"], "active");
    event(&api, "subscription_resumed").await;
    api.post("/v1/subscriptions/none/pause", "").await.problem(404, "unknown_subscription");
    api.post("/v1/subscriptions/billing/pause", r#"{"why":1}"#).await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn a_pause_that_the_owner_has_not_confirmed_has_a_note() {
    let api = api().await;
    assert_eq!(api.post("/v1/subscriptions/billing/pause", "").await.ok(200)["note"], json!(null));
    api.post("/v1/subscriptions/billing/resume", "").await.ok(200);
    api.world
        .dispatch
        .say(|ask| matches!(ask, DispatchRequest::CaughtUp { .. }).then_some(Err(DispatchError::NoOwner)));
    let paused = api.post("/v1/subscriptions/billing/pause", "").await.ok(200);
    assert_eq!(paused["state"], "paused");
    assert!(paused["note"].as_str().is_some_and(|note| note.contains("owner")), "{paused}");
}

#[tokio::test]
async fn a_disabled_subscription_runs_again_only_on_request() {
    let api = api().await;
    api.subscriptions.disable(SubscriptionNumber(1), "410").await.unwrap();
    let shown = api.get("/v1/subscriptions/billing").await.ok(200);
    assert_eq!((&shown["state"], &shown["disabled"]["reason"]), (&json!("disabled"), &json!("410")));
    assert_eq!(event(&api, "subscription_disabled").await["fields"]["reason"], "410");
    let paused = api.post("/v1/subscriptions/billing/pause", "").await.ok(200);
    assert_eq!(paused["state"], "disabled", "a pause does not hide why it is disabled");
    api.post("/v1/subscriptions/billing/resume", "").await.ok(200);
    assert_eq!(stored(&api, "billing").state, RunState::Active);
}

#[tokio::test]
async fn a_seek_is_a_new_run_with_new_starts_in_one_write() {
    let api = api().await;
    let sought = api.post("/v1/subscriptions/billing/seek", r#"{"to":"earliest"}"#).await.ok(200);
    assert_eq!(sought, json!({ "run": 2, "offsets": { "orders/0": 0 }, "truncated": [] }));
    let entry = stored(&api, "billing");
    assert_eq!((entry.run, entry.last_run, &entry.starts[0].offsets), (2, 2, &vec![0]));
    let time = json!({ "to": "2026-11-15T10:38:43.000Z" }).to_string();
    let sought = api.post("/v1/subscriptions/billing/seek", time).await.ok(200);
    assert_eq!((&sought["run"], &sought["offsets"]["orders/0"]), (&json!(3), &json!(1)));
    let sought = api.post("/v1/subscriptions/billing/seek", r#"{"to":"latest"}"#).await.ok(200);
    assert_eq!(sought["offsets"]["orders/0"], 3);
    event(&api, "subscription_seeked").await;
}

#[tokio::test]
async fn a_seek_before_the_retained_range_goes_to_the_oldest_with_an_event() {
    let api = api().await;
    drop_before(&api, 2);
    let sought = api.post("/v1/subscriptions/billing/seek", r#"{"offsets":{"orders/0":0}}"#).await.ok(200);
    assert_eq!((&sought["offsets"]["orders/0"], &sought["truncated"]), (&json!(2), &json!(["orders/0"])));
    let told = event(&api, "seek_truncated").await;
    assert_eq!(told["fields"]["first_offset"], "2");
    let time = json!({ "to": "2020-01-01T00:00:00Z" }).to_string();
    let sought = api.post("/v1/subscriptions/billing/seek", time).await.ok(200);
    assert_eq!((&sought["offsets"]["orders/0"], &sought["truncated"]), (&json!(2), &json!(["orders/0"])));
}

#[tokio::test]
async fn a_seek_beyond_the_end_or_into_the_future_is_rejected_and_changes_nothing() {
    let api = api().await;
    let seek = |body: &'static str| api.post("/v1/subscriptions/billing/seek", body);
    let refused = seek(r#"{"offsets":{"orders/0":4}}"#).await.problem(422, "offset_beyond_end");
    assert_eq!(refused["next_offset"], 3);
    seek(r#"{"to":"2099-01-01T00:00:00Z"}"#).await.problem(422, "bad_time");
    seek(r#"{"to":"tomorrow"}"#).await.problem(422, "bad_time");
    seek(r#"{"offsets":{"orders/1":0}}"#).await.problem(422, "bad_parameter");
    seek(r#"{"offsets":{"payments/0":0}}"#).await.problem(422, "bad_parameter");
    seek(r#"{}"#).await.problem(422, "bad_parameter");
    seek(r#"{"to":"latest","form":1}"#).await.problem(422, "bad_parameter");
    assert_eq!(stored(&api, "billing").run, 1);
}

#[tokio::test]
async fn partitions_that_a_seek_does_not_name_keep_their_watermarks() {
    let api = TestApi::with_partitions(2).await;
    api.put("/v1/subscriptions/billing", push(json!({}))).await.ok(201);
    for _ in 0..8 {
        api.post("/v1/topics/orders/messages", "x").await.ok(201);
    }
    stand_at(&api, &[("orders", 0, 2), ("orders", 1, 3), ("_retry.billing", 0, 9)]);
    let sought = api.post("/v1/subscriptions/billing/seek", r#"{"offsets":{"orders/0":1}}"#).await.ok(200);
    assert_eq!(sought["offsets"], json!({ "orders/0": 1, "orders/1": 3 }));
    let starts = stored(&api, "billing").starts;
    let retries = starts.iter().find(|start| start.topic == "_retry.billing").unwrap();
    assert_eq!(retries.offsets, [9], "delivered retries are not delivered again");
    api.world.dispatch.nobody();
    api.post("/v1/subscriptions/billing/seek", r#"{"offsets":{"orders/0":1}}"#).await.problem(503, "no_owner");
    api.post("/v1/subscriptions/billing/seek", r#"{"offsets":{"orders/0":1,"orders/1":1}}"#).await.ok(200);
    let starts = stored(&api, "billing").starts;
    let retries = starts.iter().find(|start| start.topic == "_retry.billing").unwrap();
    assert_eq!(retries.offsets, [9], "without the owner's status nothing is skipped");
}

#[tokio::test]
async fn a_replay_is_a_run_beside_the_cursor() {
    let api = api().await;
    let body = json!({ "from": "earliest", "to": "2026-11-15T10:38:44.000Z", "key": "k" }).to_string();
    let begun = api.post("/v1/subscriptions/billing/replay", body).await.ok(200);
    assert_eq!((&begun["run"], &begun["offsets"]["orders/0"]), (&json!(2), &json!(0)));
    let entry = stored(&api, "billing");
    assert_eq!((entry.run, entry.last_run), (1, 2), "the cursor's run stays");
    let replay = &entry.replays[0];
    assert_eq!((&replay.from[0].offsets, &replay.until[0].offsets), (&vec![0], &vec![2]));
    let shown = api.get("/v1/subscriptions/billing").await.ok(200);
    assert_eq!((&shown["replays"][0]["run"], &shown["replays"][0]["key"]), (&json!(2), &json!("k")));
    api.subscriptions.end_replay(SubscriptionNumber(1), 2).await.unwrap();
    assert!(stored(&api, "billing").replays.is_empty());
    event(&api, "replay_ended").await;
    assert_eq!(api.subscriptions.raise_run(SubscriptionNumber(1)).await.unwrap(), 3);
}

#[tokio::test]
async fn empty_and_too_many_replays_are_rejected() {
    let api = api().await;
    let replay = |body: &'static str| api.post("/v1/subscriptions/billing/replay", body);
    replay("{}").await.problem(422, "bad_parameter");
    replay(r#"{"from":"latest"}"#).await.problem(422, "bad_parameter");
    replay(r#"{"from":"2099-01-01T00:00:00Z"}"#).await.problem(422, "bad_time");
    replay(r#"{"from":"earliest","to":"2020-01-01T00:00:00Z"}"#).await.problem(422, "bad_parameter");
    for _ in 0..8 {
        replay(r#"{"from":"earliest"}"#).await.ok(200);
    }
    replay(r#"{"from":"earliest"}"#).await.problem(409, "too_many_replays");
}
