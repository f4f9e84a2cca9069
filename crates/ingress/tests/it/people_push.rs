//! Pushes to users: records in `_push`, repeats, holds, and errors.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde_json::{Value, json};
use whimbrel_ingress::{BacklogLimits, ReceiveSettings, Scope};
use whimbrel_model::Record;
use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::LogError;
use whimbrel_model::push::{Notify, PUSH_TOPIC, PushMessage, PushOrigin, PushTask};

use crate::support::{Answer, TestApi, changed, key};

pub fn records(api: &TestApi) -> Vec<(u32, Record)> {
    let topic = api.registry.get(PUSH_TOPIC).unwrap();
    let of = |partition: whimbrel_model::PartitionId| {
        api.world.log.records(partition).into_iter().map(move |record| (partition.index, record))
    };
    topic.all_partitions().flat_map(of).collect()
}

fn messages(api: &TestApi) -> Vec<(u32, PushMessage, Record)> {
    let message = |(partition, record): (u32, Record)| match PushTask::of(&record.headers).unwrap() {
        PushTask::Message(message) => (partition, message, record),
        other => panic!("{other:?}"),
    };
    records(api).into_iter().map(message).collect()
}

async fn push(api: &TestApi, uid: &str, body: Value) -> Answer {
    api.post(&format!("/v1/users/{uid}/messages"), body.to_string()).await
}

async fn push_many(api: &TestApi, body: Value) -> Answer {
    api.post("/v1/users/messages", body.to_string()).await
}

#[tokio::test]
async fn a_push_is_one_record_in_its_users_partition() {
    let api = TestApi::new().await;
    let body = json!({
        "json": { "a": 1 }, "platforms": ["ios", "web"], "except_platforms": ["web"], "store": false, "ttl": "1h",
        "collapse_key": "k\"1", "notify": { "title": "T", "body": "B", "data": { "x": [1] } }, "notify_after": "10s",
        "origin": { "server": "shop \"1\"", "seq": 7 }, "id": "m-1",
    });
    assert_eq!(push(&api, "u%2F1", body).await.ok(202), json!({ "id": "m-1" }));
    let (partition, message, record) = messages(&api).remove(0);
    assert_eq!(partition, Uid::new("u/1").unwrap().partition(api.registry.get(PUSH_TOPIC).unwrap().partitions()));
    let platform = |name| Platform::new(name).unwrap();
    assert_eq!(
        message,
        PushMessage {
            id: "m-1".into(),
            brought: true,
            uids: vec!["u/1".into()],
            platforms: Some(vec![platform("ios"), platform("web")]),
            except_platforms: vec![platform("web")],
            store: false,
            ttl_ms: Some(3_600_000),
            collapse_key: Some("k\"1".into()),
            notify: Some(Notify { title: Some("T".into()), body: Some("B".into()), data: Some("{\"x\":[1]}".into()) }),
            notify_after_ms: Some(10_000),
            origin: Some(PushOrigin { server: "shop \"1\"".into(), seq: 7 }),
            also: message.also.clone(),
        }
    );
    let of_origin = message.also.as_deref().unwrap();
    assert!(of_origin.starts_with("origin-"), "{of_origin}");
    assert_eq!(record.headers.get("whimbrel-also-id"), Some(of_origin.as_bytes()));
    assert_eq!((&record.value[..], record.key.as_deref()), (&b"{\"a\":1}"[..], Some(&b"u/1"[..])));
    assert_eq!(record.headers.get("content-type"), Some(&b"application/json"[..]));
    assert_eq!(record.headers.get("whimbrel-id"), Some(&b"m-1"[..]));
}

#[tokio::test]
async fn payloads_are_text_or_bytes_and_ids_are_minted() {
    let api = TestApi::new().await;
    let text = push(&api, "u1", json!({ "payload": "hi" })).await.ok(202);
    let bytes = push(&api, "u1", json!({ "payload_base64": "/w==" })).await.ok(202);
    let found = messages(&api);
    assert_eq!(found.iter().map(|(_, _, record)| &record.value[..]).collect::<Vec<_>>(), [&b"hi"[..], &[0xff]]);
    assert_eq!(
        found.iter().map(|(_, each, _)| each.id.as_str()).collect::<Vec<_>>(),
        [text["id"].as_str().unwrap(), bytes["id"].as_str().unwrap()]
    );
    assert!(found.iter().all(|(_, message, _)| !message.brought && message.store && message.platforms.is_none()));
}

#[tokio::test]
async fn a_push_to_many_is_one_record_for_each_partition_with_all_of_its_users() {
    let api = TestApi::new().await;
    let uids: Vec<String> = (0..500).map(|number| format!("u{number}")).collect();
    let twice: Vec<&String> = uids.iter().chain(&uids[..9]).collect();
    let id = push_many(&api, json!({ "uids": twice, "payload": "hello" })).await.ok(202)["id"].clone();
    let found = messages(&api);
    let partitions = api.registry.get(PUSH_TOPIC).unwrap().partitions();
    let mut seen = BTreeMap::new();
    for (partition, message, record) in &found {
        assert_eq!((&record.value[..], message.id.as_str()), (&b"hello"[..], id.as_str().unwrap()));
        assert_eq!(record.key.as_deref(), Some(message.uids[0].as_bytes()));
        assert!(seen.insert(*partition, ()).is_none(), "one record for each partition");
        for uid in &message.uids {
            assert_eq!(Uid::new(uid).unwrap().partition(partitions), *partition);
        }
    }
    let all: Vec<&String> = found.iter().flat_map(|(_, message, _)| &message.uids).collect();
    assert_eq!(all.len(), 500, "each user once");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), uids.iter().collect());
}

#[tokio::test]
async fn a_repeat_returns_the_first_answer_and_appends_nothing() {
    let api = TestApi::new().await;
    let uids: Vec<String> = (0..50).map(|number| format!("u{number}")).collect();
    let many = json!({ "uids": uids, "payload": "x", "id": "m-2" });
    for body in
        [json!({ "payload": "x", "id": "m-1" }), json!({ "payload": "x", "origin": { "server": "a", "seq": 1 } })]
    {
        let first = push(&api, "u1", body.clone()).await.ok(202);
        assert_eq!(push(&api, "u1", body).await.ok(202), first);
    }
    let first = push_many(&api, many.clone()).await.ok(202);
    let count = records(&api).len();
    assert_eq!(push_many(&api, many.clone()).await.ok(202), first);
    assert_eq!(first["id"], "m-2");
    assert_eq!(records(&api).len(), count);
    assert_eq!(api.world.receipts.under_way(), 0);
}

#[tokio::test]
async fn a_push_keeps_the_content_type_of_its_sender() {
    let api = TestApi::new().await;
    push(&api, "u1", json!({ "payload": "# hello", "content_type": "text/markdown" })).await.ok(202);
    push(&api, "u1", json!({ "json": { "a": 1 }, "content_type": "application/cloudevents+json" })).await.ok(202);
    let found = messages(&api);
    let types: Vec<_> = found.iter().map(|(_, _, record)| record.headers.get("content-type")).collect();
    assert_eq!(types, [Some(&b"text/markdown"[..]), Some(&b"application/cloudevents+json"[..])]);
    let refused = push(&api, "u1", json!({ "payload": "x", "content_type": "a\nb" })).await;
    assert_eq!(refused.problem(422, "bad_header")["field"], "content_type");
}

#[tokio::test]
async fn another_push_under_the_same_id_is_refused() {
    let api = TestApi::new().await;
    push(&api, "u1", json!({ "payload": "x", "id": "m-1" })).await.ok(202);
    push(&api, "u1", json!({ "payload": "y", "id": "m-1" })).await.problem(422, "different_body");
    push(&api, "u1", json!({ "payload": "x", "id": "m-1", "ttl": "1s" })).await.problem(422, "different_body");
    push(&api, "u2", json!({ "payload": "x", "id": "m-1" })).await.problem(422, "different_body");
    let uids: Vec<String> = (0..50).map(|number| format!("u{number}")).collect();
    push_many(&api, json!({ "uids": uids, "payload": "x", "id": "m-2" })).await.ok(202);
    push_many(&api, json!({ "uids": uids[1..], "payload": "x", "id": "m-2" })).await.problem(422, "different_body");
    push_many(&api, json!({ "uids": uids, "payload": "x", "id": "m-1" })).await.problem(422, "different_body");
}

#[tokio::test]
async fn equal_origins_have_the_same_id_in_every_data_centre() {
    let body = json!({ "payload": "x", "origin": { "server": "a", "seq": 1 } });
    let here = push(&TestApi::new().await, "u1", body.clone()).await.ok(202);
    let there = push(&TestApi::new().await, "u1", body).await.ok(202);
    assert_eq!(here["id"], there["id"]);
}

/// One push with a subset of its names.
fn by_names(names: &[&str]) -> Value {
    let mut body = json!({ "payload": "x" });
    for name in names {
        match *name {
            "origin" => body["origin"] = json!({ "server": "a", "seq": 1 }),
            id => body["id"] = json!(id),
        }
    }
    body
}

#[tokio::test]
async fn a_push_with_an_id_and_an_origin_is_repeated_under_either_of_them() {
    for order in [[&["m-1", "origin"][..], &["m-1"], &["origin"]], [&["origin"], &["m-1", "origin"], &["m-1"]]] {
        let api = TestApi::new().await;
        let first = push(&api, "u1", by_names(order[0])).await.ok(202);
        for names in &order[1..] {
            assert_eq!(push(&api, "u1", by_names(names)).await.ok(202), first, "{names:?} of {order:?}");
        }
        assert_eq!(records(&api).len(), 1, "{order:?}");
        assert_eq!(api.world.receipts.under_way(), 0, "{order:?}");
    }
}

#[tokio::test]
async fn a_push_to_many_with_an_id_and_an_origin_is_repeated_under_either_of_them() {
    let api = TestApi::new().await;
    let uids: Vec<String> = (0..50).map(|number| format!("u{number}")).collect();
    let to_all = |names: &[&str]| changed(by_names(names), json!({ "uids": uids }));
    let first = push_many(&api, to_all(&["m-1", "origin"])).await.ok(202);
    let count = records(&api).len();
    for names in [&["origin"][..], &["m-1"]] {
        assert_eq!(push_many(&api, to_all(names)).await.ok(202), first, "{names:?}");
    }
    assert_eq!(records(&api).len(), count);
}

#[tokio::test]
async fn a_held_push_with_an_id_and_an_origin_is_repeated_under_either_of_them() {
    let api = TestApi::new().await;
    let later = |names: &[&str]| changed(by_names(names), json!({ "delay": "1h" }));
    let first = push(&api, "u1", later(&["m-1", "origin"])).await.ok(202);
    for names in [&["origin"][..], &["m-1"]] {
        assert_eq!(push(&api, "u1", later(names)).await.ok(202), first, "{names:?}");
    }
}

#[tokio::test]
async fn a_push_whose_answer_was_lost_is_found_in_the_log_under_either_of_its_names() {
    for name in ["m-1", "origin"] {
        let api = TestApi::new().await;
        api.world.log.lose_answers(true);
        push(&api, "u1", by_names(&["m-1", "origin"])).await.problem(504, "outcome_unknown");
        api.world.log.lose_answers(false);
        push(&api, "u1", by_names(&[name])).await.problem(409, "in_progress");
        api.world.receipts.lapse_all();
        assert_eq!(push(&api, "u1", by_names(&[name])).await.ok(202)["id"], "m-1", "{name}");
        assert_eq!(records(&api).len(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_push_that_is_rejected_for_one_of_its_names_leaves_the_other_free() {
    let api = TestApi::new().await;
    push(&api, "u1", json!({ "payload": "other", "origin": { "server": "a", "seq": 1 } })).await.ok(202);
    push(&api, "u1", by_names(&["m-1", "origin"])).await.problem(422, "different_body");
    assert_eq!(api.world.receipts.under_way(), 0);
    push(&api, "u1", json!({ "payload": "anything", "id": "m-1" })).await.ok(202);
}

#[tokio::test]
async fn a_name_from_a_repeat_in_the_same_batch_belongs_to_the_first() {
    let api = TestApi::new().await;
    let of = |names: &[&str]| changed(by_names(names), json!({ "uid": "u1" }));
    let batch = json!([of(&["m-1"]), of(&["m-1", "origin"])]);
    let answer = api.post("/v1/users/batch", batch.to_string()).await.ok(202);
    assert_eq!(answer["messages"][0], answer["messages"][1]);
    assert_eq!(push(&api, "u1", by_names(&["origin"])).await.ok(202), answer["messages"][0]);
    assert_eq!((records(&api).len(), api.world.receipts.under_way()), (1, 0));
}

#[tokio::test]
async fn a_repeat_of_a_partly_appended_push_reaches_the_other_partitions() {
    let api = TestApi::new().await;
    let uids: Vec<String> = (0..100).map(|number| format!("u{number}")).collect();
    let body = json!({ "uids": uids, "payload": "x", "id": "m-1" });
    let push_number = api.registry.get(PUSH_TOPIC).unwrap().number();
    api.world.log.judge(move |entry| match entry.partition.topic == push_number && entry.partition.index == 3 {
        true => Err(LogError::Unavailable("away".to_owned())),
        false => Ok(()),
    });
    let problem = push_many(&api, body.clone()).await.problem(503, "partly_appended");
    let failed = problem["messages"].as_array().unwrap().iter().filter(|each| each.get("error").is_some()).count();
    assert_eq!(failed, 1);
    api.world.log.judge_nothing();
    push_many(&api, body).await.ok(202);
    let mut seen: Vec<String> = messages(&api).into_iter().flat_map(|(_, message, _)| message.uids).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), messages(&api).iter().map(|(_, each, _)| each.uids.len()).sum::<usize>()), (100, 100));
}

#[tokio::test]
async fn a_delayed_push_is_held_and_goes_to_its_users_when_it_is_due() {
    let api = TestApi::new().await;
    let held = push(&api, "u1", json!({ "payload": "later", "delay": "10s" })).await.ok(202);
    assert_eq!((&held["state"], held.get("holds")), (&json!("held"), None));
    let hold = api.get(&format!("/v1/holds/{}", held["id"].as_str().unwrap())).await.ok(200);
    assert_eq!((&hold["topic"], &hold["due"]), (&json!("_push"), &held["due"]));
    let uids: Vec<String> = (0..50).map(|number| format!("u{number}")).collect();
    let many = json!({ "uids": uids, "payload": "x", "delay": "10s", "id": "m-1" });
    let first = push_many(&api, many.clone()).await.ok(202);
    assert_eq!(push_many(&api, many).await.ok(202), first);
    assert_eq!(first["id"], "m-1");
    assert!(first["holds"].as_array().unwrap().len() > 1);
    assert_eq!(records(&api).len(), 0);
    api.world.clock.forward(10_000);
    api.world.holds.fire_due();
    let found = messages(&api);
    let partitions = api.registry.get(PUSH_TOPIC).unwrap().partitions();
    for (partition, message, _) in &found {
        assert!(message.uids.iter().all(|uid| Uid::new(uid).unwrap().partition(partitions) == *partition));
    }
    let of_many = found.iter().filter(|(_, message, _)| message.id == "m-1");
    assert_eq!(of_many.map(|(_, message, _)| message.uids.len()).sum::<usize>(), 50);
}

#[tokio::test]
async fn a_batch_answers_push_by_push() {
    let api = TestApi::new().await;
    let lines = [
        json!({ "uid": "u1", "payload": "a" }),
        json!({ "uids": ["u1", "u2", "u3", "u4", "u5", "u6"], "json": 1, "id": "m-1" }),
        json!({ "uid": "u2", "payload": "b", "delay": 1000 }),
        json!({ "uids": ["u1", "u2", "u3", "u4", "u5", "u6"], "json": 1, "id": "m-1" }),
    ];
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    let ndjson = [("content-type", "application/x-ndjson")];
    let answer = api.call(Method::POST, "/v1/users/batch", &ndjson, lines.join("\n")).await.ok(202);
    let answers = answer["messages"].as_array().unwrap();
    assert_eq!(answers.len(), 4);
    assert_eq!(
        (&answers[1], &answers[3], &answers[2]["state"]),
        (&json!({ "id": "m-1" }), &json!({ "id": "m-1" }), &json!("held"))
    );
    let users: usize = messages(&api).iter().map(|(_, message, _)| message.uids.len()).sum();
    assert_eq!(users, 7);
    let array = format!("[{}]", lines[0]);
    assert_eq!(api.post("/v1/users/batch", array).await.ok(202)["messages"].as_array().unwrap().len(), 1);
    assert_eq!(api.post("/v1/users/batch", "[]").await.ok(202), json!({ "messages": [] }));
}

#[tokio::test]
async fn a_bad_entry_rejects_the_whole_batch_with_its_index() {
    let api = TestApi::new().await;
    for (entry, status, code) in [
        (r#"{"payload":"x"}"#, 422, "bad_entry"),
        (r#"{"uid":"a","uids":["b"],"payload":"x"}"#, 422, "bad_entry"),
        (r#"{"uid":"a","paylod":"x"}"#, 422, "bad_entry"),
        (r#"{"uid":"","payload":"x"}"#, 422, "bad_uid"),
        (r#"{"uid":"#, 422, "bad_json"),
    ] {
        let body = format!("{{\"uid\":\"u1\",\"payload\":\"x\"}}\n{entry}");
        let refused =
            api.call(Method::POST, "/v1/users/batch", &[("content-type", "application/x-ndjson")], body).await;
        assert_eq!(refused.problem(status, code)["index"], 1, "{entry}");
    }
    assert_eq!(records(&api).len(), 0);
    let settings = ReceiveSettings { batch_messages_max: 1, batch_bytes_max: 200, ..ReceiveSettings::default() };
    let api = TestApi::with(settings).await;
    let two = r#"[{"uid":"u1","payload":"x"},{"uid":"u1","payload":"x"}]"#;
    api.post("/v1/users/batch", two).await.problem(413, "batch_too_large");
    api.post("/v1/users/batch", format!("[{}]", " ".repeat(300))).await.problem(413, "batch_too_large");
}

#[tokio::test]
async fn invalid_pushes_are_rejected_with_the_field() {
    let api = TestApi::new().await;
    let long = "x".repeat(3_000);
    for (body, code, field) in [
        (json!({}), "bad_parameter", None),
        (json!({ "payload": "x", "json": 1 }), "bad_parameter", None),
        (json!({ "payload_base64": "*" }), "bad_parameter", None),
        (json!({ "payload": "x", "colapse_key": "k" }), "bad_parameter", Some("colapse_key")),
        (json!({ "payload": "x", "uid": "u1" }), "bad_parameter", Some("uid")),
        (json!({ "payload": "x", "uids": ["u1"] }), "bad_parameter", Some("uids")),
        (json!({ "payload": "x", "platforms": [] }), "bad_parameter", Some("platforms")),
        (
            json!({ "payload": "x", "platforms": ["web"], "except_platforms": ["web"] }),
            "bad_parameter",
            Some("platforms"),
        ),
        (json!({ "payload": "x", "platforms": ["iOS"] }), "bad_platform", Some("platforms")),
        (json!({ "payload": "x", "except_platforms": [""] }), "bad_platform", Some("except_platforms")),
        (json!({ "payload": "x", "platforms": vec!["web"; 33] }), "bad_parameter", Some("platforms")),
        (json!({ "payload": "x", "store": "yes" }), "bad_parameter", None),
        (json!({ "payload": "x", "ttl": "8d" }), "bad_duration", Some("ttl")),
        (json!({ "payload": "x", "ttl": 0 }), "bad_duration", Some("ttl")),
        (json!({ "payload": "x", "ttl": "soon" }), "bad_duration", Some("ttl")),
        (json!({ "payload": "x", "delay": "3y" }), "bad_duration", Some("delay")),
        (json!({ "payload": "x", "delay": "1000w" }), "bad_duration", Some("delay")),
        (json!({ "payload": "x", "collapse_key": "" }), "bad_parameter", Some("collapse_key")),
        (json!({ "payload": "x", "collapse_key": "k".repeat(129) }), "bad_parameter", Some("collapse_key")),
        (json!({ "payload": "x", "notify": {} }), "bad_parameter", Some("notify")),
        (json!({ "payload": "x", "notify": { "title": long, "body": long } }), "bad_parameter", Some("notify")),
        (json!({ "payload": "x", "notify": { "titel": "T" } }), "bad_parameter", Some("titel")),
        (json!({ "payload": "x", "notify_after": "10s" }), "bad_parameter", Some("notify_after")),
        (
            json!({ "payload": "x", "notify": { "title": "T" }, "notify_after": "9d" }),
            "bad_duration",
            Some("notify_after"),
        ),
        (json!({ "payload": "x", "id": "a b" }), "bad_id", None),
        (json!({ "payload": "x", "origin": { "server": "", "seq": 1 } }), "bad_parameter", Some("origin.server")),
        (json!({ "payload": "x", "origin": { "server": "a", "seq": -1 } }), "bad_parameter", None),
        (json!({ "payload": "x", "origin": { "server": "a" } }), "bad_parameter", None),
    ] {
        let problem = push(&api, "u1", body.clone()).await.problem(422, code);
        assert_eq!(problem.get("field").and_then(Value::as_str), field, "{body}: {problem}");
    }
    push(&api, "%01", json!({ "payload": "x" })).await.problem(422, "bad_uid");
    api.post("/v1/users/u1/messages", "{").await.problem(422, "bad_json");
    api.post("/v1/users/u1/messages?ttl=1s", "{}").await.problem(422, "bad_parameter");
    let keyed = api.call(Method::POST, "/v1/users/u1/messages", &[("idempotency-key", "k")], "{}").await;
    keyed.problem(422, "bad_parameter");
    for uids in [json!([]), Value::Null, json!(vec!["u"; 10_001]), json!("u1"), json!([1])] {
        push_many(&api, json!({ "uids": uids, "payload": "x" })).await.problem(422, "bad_parameter");
    }
    push_many(&api, json!({ "uids": ["a", "b\n"], "payload": "x" })).await.problem(422, "bad_uid");
    assert_eq!(records(&api).len(), 0);
}

#[tokio::test]
async fn too_large_pushes_are_rejected_before_anything_is_appended() {
    let api = TestApi::with(ReceiveSettings { payload_bytes_max: 8, ..ReceiveSettings::default() }).await;
    push(&api, "u1", json!({ "payload": "123456789" })).await.problem(413, "payload_too_large");
    api.world.log.largest_record(4_000);
    let uids: Vec<String> = (0..5_000).map(|number| format!("user-{number}")).collect();
    push_many(&api, json!({ "uids": uids, "payload": "x" })).await.problem(413, "payload_too_large");
    assert_eq!(records(&api).len(), 0);
}

#[tokio::test]
async fn pushing_needs_the_scope_and_a_writable_log() {
    let api = TestApi::with_keys([key("p", &[Scope::Push], &[]), key("q", &[Scope::Publish], &[])]).await;
    let push_as = async |key| api.call_as(key, Method::POST, "/v1/users/u1/messages", r#"{"payload":"x"}"#).await;
    push_as("q").await.problem(403, "forbidden");
    push_as("p").await.ok(202);
    push(&api, "u1", json!({ "payload": "x" })).await.problem(401, "key_missing");
    api.world.log.judge(|_| Err(LogError::DiskFull("/".into())));
    push_as("p").await.problem(503, "disk_full");
    api.call_as("q", Method::POST, "/v1/topics/_push/messages", "x").await.problem(422, "reserved_name");
}

#[tokio::test(start_paused = true)]
async fn pushes_are_rejected_until_a_carrier_with_a_large_backlog_has_caught_up() {
    let api =
        TestApi::with(ReceiveSettings { backlog: BacklogLimits { holds: 10, push: 10 }, ..ReceiveSettings::default() })
            .await;
    let saved = |upto| api.world.inboxes.applied.store(upto, std::sync::atomic::Ordering::Relaxed);
    let body = json!({ "payload": "x" });
    let looked = || tokio::time::sleep(std::time::Duration::from_secs(2));
    saved(0);
    for _ in 0..10 {
        push(&api, "u1", body.clone()).await.ok(202);
    }
    looked().await;
    push(&api, "u1", body.clone()).await.ok(202);
    let refused = push(&api, "u1", body.clone()).await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.problem(429, "overloaded");
    push(&api, "u1", json!({ "payload": "x", "delay": "1h" })).await.ok(202);
    let elsewhere = (2..).map(|number| format!("u{number}"));
    let partition = |uid: &str| Uid::new(uid).unwrap().partition(api.registry.get(PUSH_TOPIC).unwrap().partitions());
    let other = elsewhere.into_iter().find(|uid| partition(uid) != partition("u1")).unwrap();
    push(&api, &other, body.clone()).await.ok(202);
    saved(11);
    looked().await;
    push(&api, "u1", body).await.ok(202);
}
