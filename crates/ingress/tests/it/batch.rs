//! Batches: both formats, invalid entries, limits, and the answer if only some messages are appended.

use axum::body::Body;
use http::Method;
use proptest::prelude::*;
use serde_json::{Value, json};
use whimbrel_api::messages::{Accepted, BatchAnswer};
use whimbrel_api::problem::Problem;
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::ports::LogError;

use crate::support::{Answer, TestApi, typed};

const NDJSON: (&str, &str) = ("content-type", "application/x-ndjson");

async fn lines(api: &TestApi, body: impl Into<Body>) -> Answer {
    api.call(Method::POST, "/v1/topics/orders/batch", &[NDJSON], body).await
}

#[tokio::test]
async fn an_array_and_ndjson_publish_the_same_batch() {
    let entries = [
        json!({ "payload": "a", "key": "k" }),
        json!({ "payload_base64": "Yg==", "key": "k" }),
        json!({ "json": { "c": 1 }, "key": "k", "headers": { "X-A": "1" } }),
    ];
    let array = Value::from(entries.to_vec()).to_string();
    let ndjson: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
    for (content_type, body) in [("application/json", array), (NDJSON.1, ndjson)] {
        let api = TestApi::new().await;
        let answer =
            api.call(Method::POST, "/v1/topics/orders/batch", &[("content-type", content_type)], body).await.ok(200);
        let answer: BatchAnswer = typed(answer);
        let placed = answer.messages.into_iter().map(|answer| match answer {
            Accepted::Published(place) => place,
            Accepted::Held(held) => panic!("{held:?} must not be held"),
        });
        let placed: Vec<_> = placed.collect();
        let offsets: Vec<u64> = placed.iter().map(|place| place.offset).collect();
        assert_eq!(offsets, [0, 1, 2]);
        let read = format!("/v1/topics/orders/messages?partition={}", placed[0].partition);
        let read = api.get(&read).await.ok(200);
        let payloads: Vec<&str> =
            read["messages"].as_array().unwrap().iter().map(|m| m["payload"].as_str().unwrap()).collect();
        assert_eq!(payloads, ["a", "b", "{\"c\":1}"]);
        assert_eq!(read["messages"][2]["content_type"], "application/json");
        assert_eq!(read["messages"][2]["headers"]["x-a"], "1");
        for (message, place) in read["messages"].as_array().unwrap().iter().zip(placed) {
            assert_eq!(message["id"], place.id);
        }
    }
}

#[tokio::test]
async fn an_empty_batch_gets_an_empty_answer() {
    let api = TestApi::new().await;
    assert_eq!(api.post("/v1/topics/orders/batch", "[]").await.ok(200), json!({ "messages": [] }));
    assert_eq!(lines(&api, "\n\n").await.ok(200), json!({ "messages": [] }));
}

#[tokio::test]
async fn a_bad_entry_rejects_the_whole_batch_with_its_index() {
    let api = TestApi::with_partitions(1).await;
    for (entry, code) in [
        ("{", "bad_json"),
        ("{\"payload\":1}", "bad_entry"),
        ("{\"paylaod\":\"x\"}", "bad_entry"),
        ("{\"payload\":\"x\",\"id\":\"a b\"}", "bad_id"),
        ("{\"payload\":\"x\",\"headers\":{\"host\":\"x\"}}", "reserved_header"),
        ("{\"payload\":\"x\",\"delay\":\"soon\"}", "bad_duration"),
    ] {
        let body = format!("{{\"payload\":\"good\"}}\n{entry}\n{{\"payload\":\"good\"}}");
        assert_eq!(lines(&api, body).await.problem(422, code)["index"], 1, "{entry}");
    }
    let array = "[{\"payload\":\"good\"},,{\"payload\":\"good\"}]";
    assert_eq!(api.post("/v1/topics/orders/batch", array).await.problem(422, "bad_json")["index"], 1);
    api.post("/v1/topics/orders/batch", "{\"payload\":\"x\"}").await.problem(422, "bad_json");
    assert_eq!(api.payloads("orders").await, [Vec::<String>::new()], "nothing was appended");
}

#[tokio::test]
async fn a_batch_has_limits() {
    let settings = ReceiveSettings {
        batch_messages_max: 2,
        batch_bytes_max: 100,
        payload_bytes_max: 10,
        ..ReceiveSettings::default()
    };
    let api = TestApi::with(settings).await;
    lines(&api, "{\"payload\":\"x\"}\n".repeat(3)).await.problem(413, "batch_too_large");
    lines(&api, " ".repeat(101)).await.problem(413, "batch_too_large");
    let announced = [NDJSON, ("content-length", "101")];
    let refused = api.call(Method::POST, "/v1/topics/orders/batch", &announced, "x").await;
    refused.problem(413, "batch_too_large");
    let refused = lines(&api, "{\"payload\":\"x\"}\n{\"payload\":\"12345678901\"}").await;
    assert_eq!(refused.problem(413, "payload_too_large")["index"], 1);
}

#[tokio::test]
async fn a_problem_of_the_topic_has_no_index() {
    let api = TestApi::with_topics(TopicDefaults { auto_create: false, ..TopicDefaults::default() }).await;
    let problem = lines(&api, "{\"payload\":\"x\"}").await.problem(404, "unknown_topic");
    assert_eq!(problem.get("index"), None);
}

#[tokio::test]
async fn one_key_for_a_whole_batch_is_refused() {
    let api = TestApi::new().await;
    let headers = [("idempotency-key", "a")];
    let answer = api.call(Method::POST, "/v1/topics/orders/batch", &headers, "[]").await;
    answer.problem(422, "bad_parameter");
}

#[tokio::test]
async fn a_partly_appended_batch_lists_the_result_of_each_message() {
    let api = TestApi::new().await;
    api.world.log.judge(|entry| match &entry.record.value[..] {
        b"bad" => Err(LogError::DiskFull("no room".into())),
        _ => Ok(()),
    });
    let body = "{\"payload\":\"good\"}\n{\"payload\":\"bad\"}\n";
    let problem = lines(&api, body).await.problem(503, "partly_appended");
    assert_eq!(problem["messages"][0]["offset"], 0);
    assert_eq!(problem["messages"][1]["error"]["code"], "disk_full");
    typed::<Problem>(problem);
}

#[tokio::test]
async fn if_nothing_is_appended_for_one_reason_that_reason_is_the_answer() {
    let api = TestApi::new().await;
    api.world.log.judge(|_| Err(LogError::DiskFull("no room".into())));
    lines(&api, "{\"payload\":\"a\"}\n{\"payload\":\"b\"}\n").await.problem(503, "disk_full");
    api.world.log.judge(|_| Err(LogError::Unknown("timed out".into())));
    lines(&api, "{\"payload\":\"a\"}\n").await.problem(504, "outcome_unknown");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_of_the_body_publishes_the_same(
        payloads in proptest::collection::vec(".{0,12}", 1..8),
        cuts in proptest::collection::vec(any::<usize>(), 0..6),
        as_array: bool,
    ) {
        let entries: Vec<Value> = payloads.iter().map(|payload| json!({ "payload": payload, "key": "k" })).collect();
        let (content_type, body) = if as_array {
            ("application/json", Value::from(entries).to_string())
        } else {
            (NDJSON.1, entries.iter().map(|entry| format!("{entry}\n")).collect())
        };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).chain([0, body.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts
            .windows(2)
            .map(|pair| Ok::<_, std::convert::Infallible>(body.as_bytes()[pair[0]..pair[1]].to_vec()))
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = runtime.block_on(async {
            let api = TestApi::new().await;
            let body = Body::from_stream(futures_util::stream::iter(pieces));
            api.call(Method::POST, "/v1/topics/orders/batch", &[("content-type", content_type)], body).await.ok(200);
            api.payloads("orders").await.concat()
        });
        prop_assert_eq!(read, payloads);
    }
}
