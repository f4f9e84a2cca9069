//! Tails of a topic over server-sent events.

use std::pin::Pin;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::PartitionId;

use crate::support::{TestApi, soon};

struct Tail {
    stream: Pin<Box<BodyDataStream>>,
    text: String,
    /// The `Last-Event-ID` with which a client would resume.
    last_event_id: String,
}

/// One event: its fields by name. A comment has none.
type SseEvent = Vec<(String, String)>;

impl Tail {
    async fn open(api: &TestApi, query: &str, last_event_id: &str) -> Self {
        let mut request = Request::get(format!("/v1/topics/orders/tail?{query}"));
        if !last_event_id.is_empty() {
            request = request.header("last-event-id", last_event_id);
        }
        let response = api.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            stream: Box::pin(response.into_body().into_data_stream()),
            text: String::new(),
            last_event_id: String::new(),
        }
    }

    /// The next event with data; `None` at the end of the stream.
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let lines = event.lines().filter(|line| !line.starts_with(':'));
                let fields: SseEvent = lines
                    .map(|line| line.split_once(": ").unwrap())
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect();
                self.text = rest.to_owned();
                if let Some((_, id)) = fields.iter().find(|(name, _)| name == "id") {
                    self.last_event_id = id.clone();
                }
                if fields.iter().any(|(name, _)| name == "data") {
                    return Some(fields);
                }
            }
            let piece = self.stream.next().await?.unwrap();
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// The next message: the id of its event, and its payload.
    async fn message(&mut self) -> (String, String) {
        // Keep-alives never end, so the timeout covers the next message and not the next bytes.
        let event = soon(self.next()).await.unwrap();
        let field = |name: &str| event.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
        assert_eq!(field("event").as_deref(), Some("message"));
        let data: Value = serde_json::from_str(&field("data").unwrap()).unwrap();
        (field("id").unwrap_or_default(), data["payload"].as_str().unwrap().to_owned())
    }
}

async fn publish(api: &TestApi, payload: &str) {
    api.post("/v1/topics/orders/messages", payload.to_owned()).await.ok(201);
}

#[tokio::test]
async fn a_tail_begins_with_the_next_message() {
    let api = TestApi::with_partitions(2).await;
    publish(&api, "old").await;
    let mut tail = Tail::open(&api, "", "").await;
    publish(&api, "new").await;
    assert_eq!(tail.message().await.1, "new");
}

#[tokio::test]
async fn a_tail_can_begin_earlier() {
    let api = TestApi::with_partitions(2).await;
    for payload in ["a", "b", "c"] {
        publish(&api, payload).await;
        api.world.clock.forward(1000);
    }
    let mut tail = Tail::open(&api, "offset=earliest&partition=0", "").await;
    assert_eq!(tail.message().await, ("0:0".to_owned(), "a".to_owned()));
    assert_eq!(tail.message().await, ("0:1".to_owned(), "c".to_owned()));
    let mut tail = Tail::open(&api, "partition=0&offset=1", "").await;
    assert_eq!(tail.message().await.1, "c");
    let mut tail = Tail::open(&api, "since=2026-11-15T10:38:43Z", "").await;
    let mut both = [tail.message().await.1, tail.message().await.1];
    both.sort();
    assert_eq!(both, ["b", "c"]);
}

#[tokio::test]
async fn a_tail_resumes_every_partition_after_its_last_event() {
    let api = TestApi::with_partitions(2).await;
    for number in 0..6 {
        publish(&api, &format!("m{number}")).await;
    }
    let mut all = Vec::new();
    let mut last_id = String::new();
    // A new connection for each message: nothing is missed, nothing is repeated.
    for round in 0..6 {
        let query = if round == 0 { "offset=earliest" } else { "" };
        let (id, payload) = Tail::open(&api, query, &last_id).await.message().await;
        all.push(payload);
        last_id = id;
    }
    all.sort();
    assert_eq!(all, ["m0", "m1", "m2", "m3", "m4", "m5"]);
}

#[tokio::test(start_paused = true)]
async fn a_tail_that_disconnects_before_its_first_message_misses_nothing() {
    let api = TestApi::with_partitions(2).await;
    publish(&api, "old").await;
    let mut tail = Tail::open(&api, "", "").await;
    let nothing = tokio::time::timeout(std::time::Duration::from_secs(1), tail.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    let last_event_id = tail.last_event_id.clone();
    drop(tail);
    for payload in ["a", "b"] {
        publish(&api, payload).await;
    }
    let mut tail = Tail::open(&api, "", &last_event_id).await;
    let mut both = [tail.message().await.1, tail.message().await.1];
    both.sort();
    assert_eq!(both, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_tail_is_kept_alive() {
    let api = TestApi::with_partitions(2).await;
    let mut tail = Tail::open(&api, "", "").await;
    assert_eq!(tail.stream.next().await.unwrap().unwrap(), "id: ,0:0,1:0\n: tail\n\n");
    let begun = tokio::time::Instant::now();
    assert_eq!(tail.stream.next().await.unwrap().unwrap(), ": still here\n\n");
    assert!(begun.elapsed() <= std::time::Duration::from_secs(20));
}

#[tokio::test]
async fn a_tail_ends_at_shutdown() {
    let api = TestApi::with_partitions(2).await;
    let mut tail = Tail::open(&api, "", "").await;
    api.settings.shutdown.cancel();
    assert_eq!(tail.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_tail_follows_a_topic_that_grows() {
    let api = TestApi::with_partitions(2).await;
    let mut tail = Tail::open(&api, "", "").await;
    api.put("/v1/topics/orders", json!({ "partitions": 3 })).await.ok(200);
    for payload in ["a", "b", "c"] {
        publish(&api, payload).await;
    }
    let mut all = [tail.message().await.1, tail.message().await.1, tail.message().await.1];
    all.sort();
    assert_eq!(all, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_tail_of_a_deleted_topic_ends_with_a_problem() {
    let api = TestApi::with_partitions(2).await;
    let mut tail = Tail::open(&api, "", "").await;
    api.delete("/v1/topics/orders").await;
    let event = tail.next().await.unwrap();
    assert_eq!(event[0], ("event".to_owned(), "problem".to_owned()));
    while let Some(event) = tail.next().await {
        assert_eq!(event[0].1, "problem");
    }
}

#[tokio::test]
async fn damage_is_reported_and_skipped() {
    let api = TestApi::with_partitions(2).await;
    for number in 0..8 {
        publish(&api, &format!("m{number}")).await;
    }
    api.world.log.damage(PartitionId::new(api.world.log.number_of("orders").unwrap(), 0), 1, 3);
    let mut tail = Tail::open(&api, "partition=0&offset=earliest", "").await;
    assert_eq!(tail.message().await.1, "m0");
    let problem = tail.next().await.unwrap();
    assert!(problem[1].1.contains("\"code\":\"damaged\""), "{problem:?}");
    assert_eq!(tail.message().await.1, "m6");
}

#[tokio::test]
async fn invalid_tails_are_rejected_and_open_tails_are_bounded() {
    let api = TestApi::with(ReceiveSettings { tails_max: 1, ..ReceiveSettings::default() }).await;
    api.put("/v1/topics/orders", json!({})).await.ok(201);
    api.get("/v1/topics/nothing/tail").await.problem(404, "unknown_topic");
    api.get("/v1/topics/orders/tail?partition=9").await.problem(404, "unknown_partition");
    api.get("/v1/topics/orders/tail?offset=3").await.problem(422, "bad_parameter");
    api.get("/v1/topics/orders/tail?offset=x").await.problem(422, "bad_parameter");
    let resumed = api.call(http::Method::GET, "/v1/topics/orders/tail", &[("last-event-id", "x")], "").await;
    resumed.problem(422, "bad_parameter");
    let first = Tail::open(&api, "", "").await;
    api.get("/v1/topics/orders/tail").await.problem(429, "overloaded");
    drop(first);
    Tail::open(&api, "", "").await;
}
