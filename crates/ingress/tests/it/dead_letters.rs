//! Dead letters, redrives, pulls, and the deliveries of one message.

use bytes::Bytes;
use serde_json::{Value, json};
use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, DeadLetter, DeliveryState, DispatchError, DispatchReply,
    DispatchRequest, LeasedMessage, MessageDelivery,
};
use whimbrel_model::subscription::MessageOrigin;
use whimbrel_model::{Headers, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber};

use crate::subscriptions::push;
use crate::support::TestApi;

async fn api(mode: Value) -> TestApi {
    let api = TestApi::new().await;
    let mut body = push(json!({}));
    if mode == "pull" {
        body = json!({ "topics": ["orders"], "mode": "pull" });
    }
    api.put("/v1/subscriptions/billing", body).await.ok(201);
    api
}

fn origin() -> MessageOrigin {
    MessageOrigin {
        subscription: "billing".into(),
        run: 1,
        topic: "orders".into(),
        topic_number: TopicNumber(3),
        partition: 2,
        offset: 17,
        attempts: 6,
        headers: 0,
        published_at_ms: 0,
        reason: Some("status".into()),
        last_status: Some(500),
        last_answer: Some("oh no".into()),
        died_at_ms: Some(1000),
    }
}

#[tokio::test]
async fn dead_letters_are_shown_page_by_page() {
    let api = api(json!("push")).await;
    api.world.dispatch.say(|ask| match ask {
        DispatchRequest::DeadLetters { from, limit } => {
            assert_eq!(*limit, 1);
            let letter = DeadLetter { id: format!("m{from}"), at: *from, key: Some(b"k".to_vec()), origin: origin() };
            Some(Ok(DispatchReply::DeadLetters { letters: vec![letter], next: (*from == 0).then_some(5) }))
        }
        _ => None,
    });
    let page = api.get("/v1/subscriptions/billing/dead-letters?limit=1").await.ok(200);
    assert_eq!(
        page["dead_letters"][0],
        json!({
            "id": "m0", "topic": "orders", "partition": 2, "offset": 17, "key": "k", "reason": "status", "attempts": 6,
            "last_status": 500, "last_answer": "oh no", "died_at": "1970-01-01T00:00:01.000Z", "dead_offset": 0,
        })
    );
    let next = format!("/v1/subscriptions/billing/dead-letters?limit=1&cursor={}", page["cursor"].as_str().unwrap());
    let last = api.get(&next).await.ok(200);
    assert_eq!((&last["dead_letters"][0]["id"], last.get("cursor")), (&json!("m5"), None));
    api.get("/v1/subscriptions/billing/dead-letters?limit=0").await.problem(422, "bad_parameter");
    api.get("/v1/subscriptions/billing/dead-letters?cursor=x").await.problem(422, "bad_parameter");
    api.world.dispatch.nobody();
    api.get("/v1/subscriptions/billing/dead-letters").await.problem(503, "no_owner");
}

#[tokio::test]
async fn dead_letters_are_redriven_by_id_or_all_at_once() {
    let api = api(json!("push")).await;
    api.world.dispatch.say(|ask| match ask {
        DispatchRequest::Redrive { ids: None } => Some(Ok(DispatchReply::Redriven { count: 7, unknown: Vec::new() })),
        DispatchRequest::Redrive { ids: Some(ids) } => {
            Some(Ok(DispatchReply::Redriven { count: 1, unknown: ids[1..].to_vec() }))
        }
        _ => None,
    });
    let redrive = |body: &'static str| api.post("/v1/subscriptions/billing/redrive", body);
    assert_eq!(redrive(r#"{"all":true}"#).await.ok(200), json!({ "redriven": 7, "unknown": [] }));
    assert_eq!(redrive(r#"{"ids":["a","b"]}"#).await.ok(200), json!({ "redriven": 1, "unknown": ["b"] }));
    for wrong in ["{}", r#"{"all":false}"#, r#"{"ids":[]}"#, r#"{"ids":["a"],"all":true}"#, r#"{"id":"a"}"#] {
        redrive(wrong).await.problem(422, "bad_parameter");
    }
}

#[tokio::test]
async fn pulled_messages_have_leases() {
    let api = api(json!("pull")).await;
    api.world.dispatch.say(|ask| match ask {
        DispatchRequest::Pull { max: 2, wait_ms: 5_000 } => {
            let record = Record {
                key: Some(Bytes::from_static(b"k")),
                value: Bytes::from_static(b"hi"),
                headers: Headers::builder().push("whimbrel-id", b"m1").push("x", b"1").take(),
                timestamp: Timestamp::from_millis(0),
            };
            Some(Ok(DispatchReply::Pulled(vec![LeasedMessage {
                ack_id: "a-1".into(),
                lease_until: Timestamp::from_millis(30_000),
                attempt: 2,
                topic: "orders".into(),
                partition: 1,
                offset: 9,
                id: "m1".into(),
                published_at: Timestamp::from_millis(0),
                record,
            }])))
        }
        _ => None,
    });
    let pulled = api.post("/v1/subscriptions/billing/pull", r#"{"max":2,"wait":"5s"}"#).await.ok(200);
    assert_eq!(
        pulled["messages"],
        json!([{
            "ack_id": "a-1", "lease_until": "1970-01-01T00:00:30.000Z", "attempt": 2, "id": "m1", "topic": "orders",
            "partition": 1, "offset": 9, "key": "k", "headers": { "x": "1" },
            "published_at": "1970-01-01T00:00:00.000Z", "payload": "hi",
        }])
    );
    assert_eq!(api.post("/v1/subscriptions/billing/pull", "").await.ok(200), json!({ "messages": [] }));
    api.post("/v1/subscriptions/billing/pull", r#"{"max":0}"#).await.problem(422, "bad_parameter");
    api.post("/v1/subscriptions/billing/pull", r#"{"wait":"2m"}"#).await.problem(422, "bad_duration");
}

#[tokio::test]
async fn leases_are_acknowledged_nacked_and_extended() {
    let api = api(json!("pull")).await;
    api.world.dispatch.say(|ask| match ask {
        DispatchRequest::Ack { .. } => Some(Ok(DispatchReply::Settled { known: 1, unknown: vec!["b".into()] })),
        _ => None,
    });
    let settled = api.post("/v1/subscriptions/billing/ack", r#"{"ack_ids":["a","b"]}"#).await.ok(200);
    assert_eq!(settled, json!({ "known": 1, "unknown": ["b"] }));
    api.post("/v1/subscriptions/billing/nack", r#"{"ack_ids":["a"],"delay":"1s"}"#).await.ok(200);
    api.post("/v1/subscriptions/billing/nack", r#"{"ack_ids":["a"]}"#).await.ok(200);
    api.post("/v1/subscriptions/billing/extend", r#"{"ack_ids":["a"],"lease":"1m"}"#).await.ok(200);
    api.post("/v1/subscriptions/billing/extend", r#"{"ack_ids":["a"]}"#).await.ok(200);
    let ids = || vec!["a".to_owned()];
    let asked: Vec<_> = api.world.dispatch.asked().into_iter().map(|(_, ask)| ask).rev().take(4).collect();
    assert_eq!(
        asked,
        [
            DispatchRequest::Extend { ack_ids: ids(), lease_ms: 30_000 },
            DispatchRequest::Extend { ack_ids: ids(), lease_ms: 60_000 },
            DispatchRequest::Nack { ack_ids: ids(), delay_ms: None },
            DispatchRequest::Nack { ack_ids: ids(), delay_ms: Some(1_000) },
        ]
    );
    for action in ["ack", "nack", "extend"] {
        api.post(&format!("/v1/subscriptions/billing/{action}"), "{}").await.problem(422, "bad_parameter");
    }
}

#[tokio::test]
async fn a_push_subscription_rejects_pulls() {
    let api = api(json!("push")).await;
    for action in ["pull", "ack", "nack", "extend"] {
        let uri = format!("/v1/subscriptions/billing/{action}");
        api.post(&uri, r#"{"ack_ids":["a"]}"#).await.problem(409, "wrong_mode");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_lists_its_deliveries() {
    let api = api(json!("push")).await;
    let published = api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let uri = format!("/v1/messages/{}", published["id"].as_str().unwrap());
    let partition =
        PartitionId::new(api.registry.get("orders").unwrap().number(), published["partition"].as_u64().unwrap() as u32);
    api.world.dispatch.say(move |ask| {
        assert_eq!(*ask, DispatchRequest::Message { partition, offset: 0 });
        let note = |attempt, outcome| AttemptRecord {
            subscription: SubscriptionNumber(1),
            run: 1,
            partition,
            offset: 0,
            attempt,
            at: Timestamp::from_millis(0),
            took_ms: 12,
            outcome,
        };
        let failed = AttemptOutcome::Failed {
            status: Some(503),
            reason: "status".into(),
            answer: Bytes::from_static(b"busy"),
            next: AfterFailure::RetryAt(Timestamp::from_millis(1000)),
        };
        let attempts = vec![note(1, failed), note(2, AttemptOutcome::Delivered { status: 204 })];
        Some(Ok(DispatchReply::Message(MessageDelivery { is: DeliveryState::Delivered, attempts })))
    });
    let found = api.get(&uri).await.ok(200);
    assert_eq!(
        found["subscriptions"],
        json!([{ "name": "billing", "state": "delivered", "attempts": [
            { "attempt": 1, "at": "1970-01-01T00:00:00.000Z", "took_ms": 12, "run": 1, "outcome": "failed", "status": 503,
              "reason": "status", "answer": "busy", "next": "retry", "retry_at": "1970-01-01T00:00:01.000Z" },
            { "attempt": 2, "at": "1970-01-01T00:00:00.000Z", "took_ms": 12, "run": 1, "outcome": "delivered", "status": 204 },
        ] }])
    );
    api.world.dispatch.say(|_| Some(Err(DispatchError::NoOwner)));
    assert_eq!(api.get(&uri).await.ok(200)["subscriptions"][0]["state"], "unknown");
    api.world.dispatch.silence();
    let found = api.get(&uri).await.ok(200);
    assert_eq!(found["subscriptions"], json!([{ "name": "billing", "state": "unknown", "attempts": [] }]));
}
