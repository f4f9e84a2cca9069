//! Publishing once: idempotency keys and ids of the publisher's own, over crashes, repeats and callers who hang up.

use http::Method;
use serde_json::{Value, json};
use whimbrel_ingress::{ApiKey, ReceiveSettings, Scope, Secret};
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{LogError, ReceiptsError};

use crate::support::{Answer, House, World, soon};

const URI: &str = "/v1/topics/orders/messages";

async fn with_key(house: &House, key: &str, body: &'static str) -> Answer {
    house.call(Method::POST, URI, &[("idempotency-key", key)], body).await
}

fn count(house: &House) -> usize {
    let number = house.world.log.number_of("orders").unwrap();
    (0..4).map(|index| house.world.log.records(PartitionId::new(number, index)).len()).sum()
}

#[tokio::test]
async fn a_repeat_returns_the_first_answer_and_publishes_nothing() {
    let house = House::new().await;
    let first = with_key(&house, "k1", "hello").await.ok(201);
    assert_eq!(with_key(&house, "k1", "hello").await.ok(201), first);
    let brought = house.post(&format!("{URI}?id=order-1"), "x").await.ok(201);
    assert_eq!(brought["id"], "order-1");
    assert_eq!(house.post(&format!("{URI}?id=order-1"), "x").await.ok(201), brought);
    assert_eq!(count(&house), 2);
    assert_eq!(house.world.receipts.under_way(), 0);
}

#[tokio::test]
async fn another_message_under_the_same_key_is_refused() {
    let house = House::new().await;
    with_key(&house, "k1", "hello").await.ok(201);
    with_key(&house, "k1", "bye").await.problem(422, "different_body");
    let other = [("idempotency-key", "k1"), ("content-type", "text/plain")];
    house.call(Method::POST, URI, &other, "hello").await.problem(422, "different_body");
    with_key(&house, "k2", "bye").await.ok(201);
}

#[tokio::test]
async fn the_same_key_in_another_topic_or_of_another_owner_is_another() {
    let key = |name: &str| ApiKey {
        name: name.into(),
        secret: Secret::Plain(name.into()),
        scopes: vec![Scope::Publish],
        topics: vec![],
    };
    let house = House::with(ReceiveSettings { keys: vec![key("one"), key("two")], ..ReceiveSettings::default() }).await;
    for (bearer, topic) in [("Bearer one", "orders"), ("Bearer two", "orders"), ("Bearer one", "payments")] {
        let headers = [("idempotency-key", "k"), ("authorization", bearer)];
        let uri = format!("/v1/topics/{topic}/messages");
        house.call(Method::POST, &uri, &headers, bearer).await.ok(201);
    }
    assert_eq!(count(&house), 2);
}

#[tokio::test]
async fn a_repeat_while_the_first_is_under_way_is_told_to_come_again() {
    let house = House::new().await;
    with_key(&house, "k0", "x").await.ok(201);
    house.world.log.hold_up(true);
    let first = with_key(&house, "k1", "hello");
    tokio::pin!(first);
    while house.world.log.waiting_appends() == 0 {
        assert!(futures_util::poll!(first.as_mut()).is_pending());
    }
    let second = with_key(&house, "k1", "hello").await;
    assert!(second.headers.contains_key("retry-after"));
    second.problem(409, "in_progress");
    house.world.log.hold_up(false);
    let first = first.await.ok(201);
    assert_eq!(with_key(&house, "k1", "hello").await.ok(201), first);
}

#[tokio::test]
async fn a_caller_who_hung_up_finds_its_answer_when_it_repeats() {
    let house = House::new().await;
    with_key(&house, "k0", "x").await.ok(201);
    house.world.log.hold_up(true);
    {
        let first = with_key(&house, "k1", "hello");
        tokio::pin!(first);
        while house.world.log.waiting_appends() == 0 {
            assert!(futures_util::poll!(first.as_mut()).is_pending());
        }
    }
    house.world.log.hold_up(false);
    soon(async {
        while house.world.receipts.under_way() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    with_key(&house, "k1", "hello").await.ok(201);
    assert_eq!(count(&house), 2);
}

#[tokio::test]
async fn a_key_is_free_again_after_a_certain_failure() {
    let house = House::new().await;
    house.world.log.judge(|_| Err(LogError::DiskFull("no room".into())));
    with_key(&house, "k1", "hello").await.problem(503, "disk_full");
    house.world.log.judge_nothing();
    with_key(&house, "k1", "hello").await.ok(201);
    assert_eq!(count(&house), 1);
}

#[tokio::test]
async fn after_an_unknown_outcome_the_log_is_looked_through_before_writing_again() {
    for landed in [true, false] {
        let house = House::new().await;
        with_key(&house, "k0", "x").await.ok(201);
        house.world.log.judge(|_| Err(LogError::Unknown("timed out".into())));
        with_key(&house, "k1", "hello").await.problem(504, "outcome_unknown");
        house.world.log.judge_nothing();
        with_key(&house, "k1", "hello").await.problem(409, "in_progress");
        house.world.receipts.lapse_all();
        if landed {
            land(&house, "k1");
        }
        let answer = with_key(&house, "k1", "hello").await.ok(201);
        assert_eq!(count(&house), 2, "landed: {landed}");
        assert_eq!(answer["id"] == "landed-id", landed);
        assert_eq!(with_key(&house, "k1", "hello").await.ok(201), answer);
    }
}

#[tokio::test]
async fn what_may_have_been_written_and_dropped_since_is_not_written_again() {
    let house = House::new().await;
    with_key(&house, "k0", "x").await.ok(201);
    house.world.log.judge(|_| Err(LogError::Unknown("timed out".into())));
    with_key(&house, "k1", "hello").await.problem(504, "outcome_unknown");
    house.world.log.judge_nothing();
    house.world.receipts.lapse_all();
    land(&house, "k1");
    let partition = PartitionId::new(house.world.log.number_of("orders").unwrap(), 1);
    house.world.log.drop_before(partition, 1);
    for _ in 0..2 {
        let refused = with_key(&house, "k1", "hello").await.problem(504, "outcome_unknown");
        assert!(refused["detail"].as_str().unwrap().contains("dropped from the log"), "{refused}");
    }
    assert_eq!(count(&house), 2, "nothing but the first and the one that landed was ever written");
    with_key(&house, "k2", "hello").await.ok(201);
}

/// Puts the record of a claim into the log, as an append whose answer was lost would have.
fn land(house: &House, key: &str) {
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
    let number = house.world.log.number_of("orders").unwrap();
    house.world.log.put(PartitionId::new(number, 1), record);
}

#[tokio::test]
async fn an_id_and_a_different_key_are_a_contradiction() {
    let house = House::new().await;
    let headers = [("idempotency-key", "k")];
    house.call(Method::POST, &format!("{URI}?id=a"), &headers, "x").await.problem(422, "bad_parameter");
    let both = house.call(Method::POST, &format!("{URI}?id=k"), &headers, "x").await.ok(201);
    assert_eq!(both["id"], "k");
}

#[tokio::test]
async fn ids_in_a_batch_are_claimed_each() {
    let house = House::new().await;
    let batch = |entries: Value| house.post("/v1/topics/orders/batch", entries.to_string());
    let (a, b) = (json!({ "payload": "1", "id": "a" }), json!({ "payload": "2", "id": "b" }));
    let first = batch(json!([a, { "payload": "free" }, a])).await.ok(200);
    assert_eq!(first["messages"][0], first["messages"][2], "a repeat within the batch has the first one's answer");
    assert_eq!(count(&house), 2);
    let second = batch(json!([b, a])).await.ok(200);
    assert_eq!(second["messages"][1], first["messages"][0]);
    assert_eq!(count(&house), 3);
}

#[tokio::test]
async fn a_batch_that_is_refused_leaves_its_ids_free() {
    let house = House::new().await;
    let batch = |entries: Value| house.post("/v1/topics/orders/batch", entries.to_string());
    batch(json!([{ "payload": "1", "id": "taken" }])).await.ok(200);
    let refused = batch(json!([{ "payload": "1", "id": "fresh" }, { "payload": "other", "id": "taken" }])).await;
    assert_eq!(refused.problem(422, "different_body")["index"], 1);
    let within = batch(json!([{ "payload": "1", "id": "fresh" }, { "payload": "2", "id": "fresh" }])).await;
    assert_eq!(within.problem(422, "different_body")["index"], 1);
    assert_eq!(house.world.receipts.under_way(), 0);
    assert_eq!(count(&house), 1);
    batch(json!([{ "payload": "anything", "id": "fresh" }])).await.ok(200);
}

#[tokio::test]
async fn a_start_asks_a_slow_log_again_and_then_blames_the_log() {
    let world = World::new();
    world.receipts.fail_log(1);
    let house = world.open().await;
    assert!(!world.receipts.recovered().is_empty());
    let world = house.close().await;
    world.receipts.fail_log(u32::MAX);
    let error = world.try_open(ReceiveSettings::default()).await.err().expect("the log never answers").to_string();
    assert!(error.contains("cannot read the log") && error.contains("the broker is slow"), "{error}");
    assert!(!error.contains("receipts are not available"), "{error}");
}

#[tokio::test]
async fn receipts_follow_every_partition_before_the_door_opens() {
    let house = House::new().await;
    house.post(URI, "x").await.ok(201);
    let world = house.close().await;
    let house = world.open().await;
    let number = world.log.number_of("orders").unwrap();
    let followed = house.world.receipts.recovered();
    assert!((0..4).all(|index| followed.contains(&PartitionId::new(number, index))), "{followed:?}");
    let world = house.close().await;
    world.receipts.refuse(true);
    assert!(world.try_open(ReceiveSettings::default()).await.is_err(), "a repeat could publish twice");
}

#[tokio::test]
async fn receipts_that_are_away_refuse_claims_and_nothing_else() {
    let house = House::new().await;
    house.world.receipts.refuse(true);
    with_key(&house, "k", "x").await.problem(503, "unavailable");
    house.post(URI, "x").await.ok(201);
    assert_eq!(count(&house), 1);
}

#[tokio::test]
async fn a_publisher_that_lost_its_claim_before_it_writes_writes_nothing() {
    let house = House::new().await;
    with_key(&house, "k0", "x").await.ok(201);
    house.world.receipts.answer_holders(Ok(false));
    let refused = with_key(&house, "k1", "hello").await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.problem(409, "in_progress");
    let batch = json!([{ "payload": "free" }, { "payload": "1", "id": "a" }]).to_string();
    assert_eq!(house.post("/v1/topics/orders/batch", batch).await.problem(409, "in_progress")["index"], 1);
    house.post("/v1/topics/orders/messages?delay=1h&id=held", "x").await.problem(409, "in_progress");
    let away = ReceiptsError::Unavailable("Redis is away".to_owned());
    house.world.receipts.answer_holders(Err(away));
    with_key(&house, "k1", "hello").await.problem(503, "unavailable");
    assert_eq!(count(&house), 1);
    house.world.receipts.answer_holders(Ok(true));
    with_key(&house, "k1", "hello").await.ok(201);
    assert_eq!(count(&house), 2);
}
