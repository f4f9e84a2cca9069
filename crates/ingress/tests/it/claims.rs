//! Idempotent publishes by key or by the publisher's id: crashes, repeats and disconnecting clients.

use std::pin::pin;

use http::Method;
use serde_json::{Value, json};
use whimbrel_ingress::{ReceiveSettings, Scope};
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{LogError, ReceiptsError};

use crate::support::{Answer, TestApi, World, key, until};

const URI: &str = "/v1/topics/orders/messages";

async fn with_key(api: &TestApi, key: &str, body: &'static str) -> Answer {
    api.call(Method::POST, URI, &[("idempotency-key", key)], body).await
}

fn count(api: &TestApi) -> usize {
    let number = api.world.log.number_of("orders").unwrap();
    (0..4).map(|index| api.world.log.records(PartitionId::new(number, index)).len()).sum()
}

#[tokio::test]
async fn a_repeat_returns_the_first_answer_and_publishes_nothing() {
    let api = TestApi::new().await;
    let first = with_key(&api, "k1", "hello").await.ok(201);
    assert_eq!(with_key(&api, "k1", "hello").await.ok(201), first);
    let brought = api.post(&format!("{URI}?id=order-1"), "x").await.ok(201);
    assert_eq!(brought["id"], "order-1");
    assert_eq!(api.post(&format!("{URI}?id=order-1"), "x").await.ok(201), brought);
    assert_eq!(count(&api), 2);
    assert_eq!(api.world.receipts.under_way(), 0);
}

#[tokio::test]
async fn another_message_under_the_same_key_is_refused() {
    let api = TestApi::new().await;
    with_key(&api, "k1", "hello").await.ok(201);
    with_key(&api, "k1", "bye").await.problem(422, "different_body");
    let other = [("idempotency-key", "k1"), ("content-type", "text/plain")];
    api.call(Method::POST, URI, &other, "hello").await.problem(422, "different_body");
    with_key(&api, "k2", "bye").await.ok(201);
}

#[tokio::test]
async fn the_same_key_in_another_topic_or_of_another_owner_is_independent() {
    let api = TestApi::with_keys(["one", "two"].map(|name| key(name, &[Scope::Publish], &[]))).await;
    for (bearer, topic) in
        [("Bearer one-secret", "orders"), ("Bearer two-secret", "orders"), ("Bearer one-secret", "payments")]
    {
        let headers = [("idempotency-key", "k"), ("authorization", bearer)];
        let uri = format!("/v1/topics/{topic}/messages");
        api.call(Method::POST, &uri, &headers, bearer).await.ok(201);
    }
    assert_eq!(count(&api), 2);
}

#[tokio::test]
async fn a_repeat_while_the_first_is_in_progress_is_rejected_with_retry_after() {
    let api = TestApi::new().await;
    with_key(&api, "k0", "x").await.ok(201);
    let mut first = pin!(with_key(&api, "k1", "hello"));
    api.world.log.hold_up_append_of(first.as_mut()).await;
    let second = with_key(&api, "k1", "hello").await;
    assert!(second.headers.contains_key("retry-after"));
    second.problem(409, "in_progress");
    api.world.log.hold_up(false);
    let first = first.await.ok(201);
    assert_eq!(with_key(&api, "k1", "hello").await.ok(201), first);
}

#[tokio::test]
async fn a_repeat_after_a_disconnect_returns_the_answer() {
    let api = TestApi::new().await;
    with_key(&api, "k0", "x").await.ok(201);
    api.world.log.hold_up_append_of(pin!(with_key(&api, "k1", "hello"))).await;
    api.world.log.hold_up(false);
    until(|| api.world.receipts.under_way() == 0).await;
    with_key(&api, "k1", "hello").await.ok(201);
    assert_eq!(count(&api), 2);
}

#[tokio::test]
async fn a_key_is_free_again_after_a_certain_failure() {
    let api = TestApi::new().await;
    api.world.log.judge(|_| Err(LogError::DiskFull("no room".into())));
    with_key(&api, "k1", "hello").await.problem(503, "disk_full");
    api.world.log.judge_nothing();
    with_key(&api, "k1", "hello").await.ok(201);
    assert_eq!(count(&api), 1);
}

#[tokio::test]
async fn after_an_unknown_outcome_a_repeat_searches_the_log_before_it_writes() {
    for landed in [true, false] {
        let api = TestApi::new().await;
        with_key(&api, "k0", "x").await.ok(201);
        api.world.log.judge(|_| Err(LogError::Unknown("timed out".into())));
        with_key(&api, "k1", "hello").await.problem(504, "outcome_unknown");
        api.world.log.judge_nothing();
        with_key(&api, "k1", "hello").await.problem(409, "in_progress");
        api.world.receipts.lapse_all();
        if landed {
            land(&api, "k1");
        }
        let answer = with_key(&api, "k1", "hello").await.ok(201);
        assert_eq!(count(&api), 2, "landed: {landed}");
        assert_eq!(answer["id"] == "landed-id", landed);
        assert_eq!(with_key(&api, "k1", "hello").await.ok(201), answer);
    }
}

#[tokio::test]
async fn a_message_that_may_have_been_written_and_dropped_is_not_written_again() {
    let api = TestApi::new().await;
    with_key(&api, "k0", "x").await.ok(201);
    api.world.log.judge(|_| Err(LogError::Unknown("timed out".into())));
    with_key(&api, "k1", "hello").await.problem(504, "outcome_unknown");
    api.world.log.judge_nothing();
    api.world.receipts.lapse_all();
    land(&api, "k1");
    let partition = PartitionId::new(api.world.log.number_of("orders").unwrap(), 1);
    api.world.log.drop_before(partition, 1);
    for _ in 0..2 {
        let refused = with_key(&api, "k1", "hello").await.problem(504, "outcome_unknown");
        assert!(refused["detail"].as_str().unwrap().contains("dropped from the log"), "{refused}");
    }
    assert_eq!(count(&api), 2, "only the first and the landed record were written");
    with_key(&api, "k2", "hello").await.ok(201);
}

/// Puts the record of a claim into the log, like an append whose answer was lost.
fn land(api: &TestApi, key: &str) {
    use whimbrel_model::record::{HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, idempotency_header};
    let mut headers = whimbrel_model::Headers::builder();
    headers.push(HEADER_ID, b"landed-id");
    headers.push(HEADER_IDEMPOTENCY_KEY, &idempotency_header("", key));
    headers.push(HEADER_FINGERPRINT, b"0000000000000000");
    let record = whimbrel_model::Record {
        key: None,
        value: "hello".into(),
        headers: headers.take(),
        timestamp: whimbrel_model::Timestamp::from_millis(0),
    };
    let number = api.world.log.number_of("orders").unwrap();
    api.world.log.put(PartitionId::new(number, 1), record);
}

#[tokio::test]
async fn an_id_with_a_different_key_is_rejected() {
    let api = TestApi::new().await;
    let headers = [("idempotency-key", "k")];
    api.call(Method::POST, &format!("{URI}?id=a"), &headers, "x").await.problem(422, "bad_parameter");
    let both = api.call(Method::POST, &format!("{URI}?id=k"), &headers, "x").await.ok(201);
    assert_eq!(both["id"], "k");
}

#[tokio::test]
async fn each_id_in_a_batch_is_claimed() {
    let api = TestApi::new().await;
    let batch = |entries: Value| api.post("/v1/topics/orders/batch", entries.to_string());
    let (a, b) = (json!({ "payload": "1", "id": "a" }), json!({ "payload": "2", "id": "b" }));
    let first = batch(json!([a, { "payload": "free" }, a])).await.ok(200);
    assert_eq!(first["messages"][0], first["messages"][2], "a repeat within the batch gets the answer of the first");
    assert_eq!(count(&api), 2);
    let second = batch(json!([b, a])).await.ok(200);
    assert_eq!(second["messages"][1], first["messages"][0]);
    assert_eq!(count(&api), 3);
}

#[tokio::test]
async fn a_batch_that_is_refused_leaves_its_ids_free() {
    let api = TestApi::new().await;
    let batch = |entries: Value| api.post("/v1/topics/orders/batch", entries.to_string());
    batch(json!([{ "payload": "1", "id": "taken" }])).await.ok(200);
    let refused = batch(json!([{ "payload": "1", "id": "fresh" }, { "payload": "other", "id": "taken" }])).await;
    assert_eq!(refused.problem(422, "different_body")["index"], 1);
    let within = batch(json!([{ "payload": "1", "id": "fresh" }, { "payload": "2", "id": "fresh" }])).await;
    assert_eq!(within.problem(422, "different_body")["index"], 1);
    assert_eq!(api.world.receipts.under_way(), 0);
    assert_eq!(count(&api), 1);
    batch(json!([{ "payload": "anything", "id": "fresh" }])).await.ok(200);
}

#[tokio::test]
async fn a_start_retries_a_slow_log_and_then_reports_the_log() {
    let world = World::new();
    world.receipts.fail_log(1);
    let api = world.open().await;
    assert!(!world.receipts.recovered().is_empty());
    let world = api.close().await;
    world.receipts.fail_log(u32::MAX);
    let error = world.try_open(ReceiveSettings::default()).await.err().expect("the log does not answer").to_string();
    assert!(error.contains("cannot read the log") && error.contains("the broker is slow"), "{error}");
    assert!(!error.contains("receipts are not available"), "{error}");
}

#[tokio::test]
async fn receipts_follow_every_partition_before_the_start() {
    let api = TestApi::new().await;
    api.post(URI, "x").await.ok(201);
    let world = api.close().await;
    let api = world.open().await;
    let number = world.log.number_of("orders").unwrap();
    let followed = api.world.receipts.recovered();
    assert!((0..4).all(|index| followed.contains(&PartitionId::new(number, index))), "{followed:?}");
    let world = api.close().await;
    world.receipts.refuse(true);
    assert!(world.try_open(ReceiveSettings::default()).await.is_err(), "a repeat could publish twice");
}

#[tokio::test]
async fn unavailable_receipts_reject_claims_only() {
    let api = TestApi::new().await;
    api.world.receipts.refuse(true);
    with_key(&api, "k", "x").await.problem(503, "unavailable");
    api.post(URI, "x").await.ok(201);
    assert_eq!(count(&api), 1);
}

#[tokio::test]
async fn a_publisher_that_lost_its_claim_before_it_writes_writes_nothing() {
    let api = TestApi::new().await;
    with_key(&api, "k0", "x").await.ok(201);
    api.world.receipts.answer_holders(Ok(false));
    let refused = with_key(&api, "k1", "hello").await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.problem(409, "in_progress");
    let batch = json!([{ "payload": "free" }, { "payload": "1", "id": "a" }]).to_string();
    assert_eq!(api.post("/v1/topics/orders/batch", batch).await.problem(409, "in_progress")["index"], 1);
    api.post("/v1/topics/orders/messages?delay=1h&id=held", "x").await.problem(409, "in_progress");
    let away = ReceiptsError::Unavailable("Redis is away".to_owned());
    api.world.receipts.answer_holders(Err(away));
    with_key(&api, "k1", "hello").await.problem(503, "unavailable");
    assert_eq!(count(&api), 1);
    api.world.receipts.answer_holders(Ok(true));
    with_key(&api, "k1", "hello").await.ok(201);
    assert_eq!(count(&api), 2);
}
