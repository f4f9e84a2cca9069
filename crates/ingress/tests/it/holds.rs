//! Showing, extending, withdrawing, firing, listing and counting holds.

use std::pin::pin;

use http::Method;
use serde_json::{Value, json};
use whimbrel_api::holds::{HoldCounts, HoldInfo, HoldOutcome, HoldPage};
use whimbrel_ingress::Scope;
use whimbrel_model::ports::{HoldRequest, HoldsError};

use crate::support::{Answer, TestApi, key, typed};

async fn hold(api: &TestApi, topic: &str, query: &str) -> String {
    let held = api.post(&format!("/v1/topics/{topic}/messages?{query}"), "body").await.ok(202);
    held["id"].as_str().unwrap().to_owned()
}

async fn extend(api: &TestApi, id: &str, body: Value) -> Answer {
    api.post(&format!("/v1/holds/{id}/extend"), body.to_string()).await
}

async fn fire(api: &TestApi, id: &str) -> Answer {
    api.post(&format!("/v1/holds/{id}/fire"), "").await
}

async fn look(api: &TestApi, id: &str) -> HoldInfo {
    typed(api.get(&format!("/v1/holds/{id}")).await.ok(200))
}

#[tokio::test]
async fn a_pending_hold_is_shown_with_its_version() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1m&key=k1").await;
    let shown = api.get(&format!("/v1/holds/{id}")).await.ok(200);
    let expected = json!({
        "id": id, "topic": "orders", "key": "k1", "state": "held", "due": "2026-11-15T10:39:42.000Z",
        "published_at": "2026-11-15T10:38:42.000Z", "version": 0,
    });
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn a_due_time_can_change_in_both_directions_and_to_a_time() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1h").await;
    for (body, due) in [
        (json!({ "by": "10m" }), "2026-11-15T11:48:42.000Z"),
        (json!({ "by": "-20m" }), "2026-11-15T11:28:42.000Z"),
        (json!({ "by": -1000 }), "2026-11-15T11:28:41.000Z"),
        (json!({ "until": "2026-11-16T00:00:00Z" }), "2026-11-16T00:00:00.000Z"),
        (json!({ "until": "2020-01-01T00:00:00Z" }), "2020-01-01T00:00:00.000Z"),
    ] {
        let moved: HoldOutcome = typed(extend(&api, &id, body).await.ok(200));
        assert_eq!((&*moved.outcome, moved.due.as_deref()), ("rescheduled", Some(due)));
        let shown = look(&api, &id).await;
        assert_eq!((&*shown.due, shown.version), (due, moved.version));
    }
}

#[tokio::test]
async fn a_repeated_extension_with_a_key_takes_effect_once() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1h").await;
    let uri = format!("/v1/holds/{id}/extend");
    let by = async |key| api.call(Method::POST, &uri, &[("idempotency-key", key)], r#"{"by":"10m"}"#).await;
    let first = by("m1").await.ok(200);
    assert_eq!(by("m1").await.ok(200), first);
    assert_ne!(by("m2").await.ok(200), first);
    assert_eq!(look(&api, &id).await.due, "2026-11-15T11:58:42.000Z");
}

#[tokio::test]
async fn an_extension_with_another_version_is_rejected_with_the_current_one() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1h").await;
    let version = look(&api, &id).await.version.unwrap();
    let moved = extend(&api, &id, json!({ "by": "1m", "if_version": version })).await.ok(200);
    let refused = extend(&api, &id, json!({ "by": "1m", "if_version": version })).await;
    let refused = refused.problem(412, "version_differs");
    assert_eq!((&refused["version"], &refused["due"]), (&moved["version"], &moved["due"]));
}

#[tokio::test]
async fn invalid_extensions_are_rejected() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=700d").await;
    for (body, code) in [
        (json!({}), "bad_parameter"),
        (json!({ "by": "1m", "until": "2026-11-16T00:00:00Z" }), "bad_parameter"),
        (json!({ "by": "soon" }), "bad_duration"),
        (json!({ "by": "100d" }), "bad_duration"),
        (json!({ "by": "9999w" }), "bad_duration"),
        (json!({ "until": "tomorrow" }), "bad_time"),
        (json!({ "until": "2029-11-16T00:00:00Z" }), "bad_time"),
        (json!({ "bye": "1m" }), "bad_json"),
        (json!({ "by": "1m", "if_version": -1 }), "bad_json"),
        (json!([]), "bad_json"),
    ] {
        extend(&api, &id, body).await.problem(422, code);
    }
    api.post(&format!("/v1/holds/{id}/extend"), "").await.problem(422, "bad_json");
    api.post(&format!("/v1/holds/{id}/fire?now=1"), "").await.problem(422, "bad_parameter");
    assert_eq!(look(&api, &id).await.version, Some(0), "nothing was changed");
}

#[tokio::test]
async fn a_withdrawn_hold_stays_withdrawn() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1s").await;
    assert_eq!(api.delete(&format!("/v1/holds/{id}")).await.ok(200), json!({ "outcome": "withdrawn" }));
    api.world.clock.forward(5_000);
    api.world.holds.fire_due();
    assert!(api.payloads("orders").await.concat().is_empty());
    for answer in [
        api.delete(&format!("/v1/holds/{id}")).await,
        extend(&api, &id, json!({ "by": "1m" })).await,
        fire(&api, &id).await,
    ] {
        assert_eq!(answer.problem(409, "already_withdrawn")["withdrawn_at"], "2026-11-15T10:38:42.000Z");
    }
    let shown = look(&api, &id).await;
    assert_eq!((&*shown.state, &*shown.topic, shown.version), ("withdrawn", "orders", None));
}

#[tokio::test]
async fn a_fired_hold_is_in_its_topic_and_cannot_be_withdrawn() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1h&key=k1").await;
    let fired: HoldOutcome = typed(fire(&api, &id).await.ok(200));
    assert_eq!((&*fired.outcome, fired.offset), ("fired", Some(0)));
    assert_eq!(api.payloads("orders").await[fired.partition.unwrap() as usize], ["body"]);
    for answer in [api.delete(&format!("/v1/holds/{id}")).await, fire(&api, &id).await] {
        let over = answer.problem(409, "already_fired");
        assert_eq!(
            (over["fired_at"].as_str(), over["partition"].as_u64()),
            (fired.fired_at.as_deref(), fired.partition.map(u64::from))
        );
    }
    let shown = look(&api, &id).await;
    assert_eq!((&*shown.state, shown.fired_at, shown.partition), ("fired", fired.fired_at, fired.partition));
}

#[tokio::test]
async fn a_dead_hold_has_its_reason_and_is_listed_as_dead() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1h").await;
    hold(&api, "orders", "delay=1h").await;
    api.world.holds.kill(&id, "too large");
    let over = fire(&api, &id).await.problem(409, "already_dead");
    assert_eq!(over["reason"], "too large");
    let dead: HoldPage = typed(api.get("/v1/holds?state=dead").await.ok(200));
    let [hold] = &dead.holds[..] else { panic!("{dead:?}") };
    assert_eq!((&*hold.id, &*hold.state, hold.reason.as_deref()), (&*id, "dead", Some("too large")));
    assert_eq!(api.get("/v1/holds").await.ok(200)["holds"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn unknown_and_invalid_ids_have_different_codes() {
    let api = TestApi::new().await;
    let long = "a".repeat(256);
    for (id, status, code) in [
        ("nothing", 404, "unknown_hold"),
        ("01a1c9d5-0000-8000-8000-000000000000", 404, "unknown_hold"),
        ("%20", 422, "bad_id"),
        ("%c3%a4", 422, "bad_id"),
        ("%ff", 422, "bad_parameter"),
        (&long, 422, "bad_id"),
    ] {
        api.get(&format!("/v1/holds/{id}")).await.problem(status, code);
        api.delete(&format!("/v1/holds/{id}")).await.problem(status, code);
        extend(&api, id, json!({ "by": "1m" })).await.problem(status, code);
        fire(&api, id).await.problem(status, code);
    }
}

#[tokio::test]
async fn errors_of_the_owner_have_their_codes() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1h").await;
    for (error, status, code) in [
        (HoldsError::NoOwner(1), 503, "no_owner"),
        (HoldsError::OutcomeUnknown("timed out".into()), 504, "outcome_unknown"),
        (HoldsError::Unavailable("no store".into()), 503, "unavailable"),
        (HoldsError::Overloaded(1), 429, "overloaded"),
    ] {
        api.world.holds.refuse(Some(error));
        api.get(&format!("/v1/holds/{id}")).await.problem(status, code);
        api.delete(&format!("/v1/holds/{id}")).await.problem(status, code);
        api.get("/v1/holds").await.problem(status, code);
        api.get("/v1/holds/count").await.problem(status, code);
        api.delete("/v1/topics/orders?holds=withdraw").await.problem(status, code);
    }
    api.world.holds.refuse(None);
    assert_eq!(look(&api, &id).await.state, "held");
}

/// All pages of a list, and their number.
async fn pages(api: &TestApi, query: &str) -> (Vec<HoldInfo>, usize) {
    let (mut holds, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = api.get(&format!("/v1/holds?{query}&cursor={cursor}")).await.ok(200);
        let page: HoldPage = typed(page);
        holds.extend(page.holds);
        pages += 1;
        match page.cursor {
            Some(next) => cursor = next,
            None => return (holds, pages),
        }
        assert!(pages < 100);
    }
}

#[tokio::test]
async fn a_list_of_all_shards_is_in_due_order_for_any_page_size() {
    let api = TestApi::new().await;
    // Many have the same due time. These are ordered by id.
    for number in 0..40 {
        hold(
            &api,
            if number % 4 == 0 { "payments" } else { "orders" },
            &format!("id=h{number}&delay={}m", 1 + number % 5),
        )
        .await;
    }
    let (all, _) = pages(&api, "limit=1000").await;
    let mut sorted: Vec<(String, String)> = all.iter().map(|hold| (hold.due.clone(), hold.id.clone())).collect();
    sorted.sort();
    assert_eq!(all.len(), 40);
    let ids = |holds: &[HoldInfo]| holds.iter().map(|hold| hold.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&all), sorted.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
    let (in_pages, count) = pages(&api, "limit=7").await;
    assert_eq!(ids(&in_pages), ids(&all));
    assert_eq!(count, 6);
    let (payments, _) = pages(&api, "topic=payments&limit=3").await;
    assert_eq!(payments.len(), 10);
    let (between, _) = pages(&api, "from=2026-11-15T10:40:42Z&to=2026-11-15T10:42:42Z").await;
    assert_eq!(between.len(), 16, "the holds at two and three minutes");
}

#[tokio::test]
async fn invalid_lists_and_counts_are_rejected() {
    let api = TestApi::new().await;
    for (query, status, code) in [
        ("topic=nothing", 404, "unknown_topic"),
        ("from=x", 422, "bad_time"),
        ("limit=0", 422, "bad_parameter"),
        ("limit=1001", 422, "bad_parameter"),
        ("cursor=x", 422, "bad_parameter"),
        ("cursor=eDp4", 422, "bad_parameter"),
        ("state=fired", 422, "bad_parameter"),
        ("sate=dead", 422, "bad_parameter"),
    ] {
        api.get(&format!("/v1/holds?{query}")).await.problem(status, code);
    }
    for (query, status, code) in [
        ("topic=nothing", 404, "unknown_topic"),
        ("to=x", 422, "bad_time"),
        ("bucket=90s", 422, "bad_duration"),
        ("bucket=0", 422, "bad_duration"),
        ("limit=5", 422, "bad_parameter"),
    ] {
        api.get(&format!("/v1/holds/count?{query}")).await.problem(status, code);
    }
}

async fn count(api: &TestApi, query: &str) -> HoldCounts {
    typed(api.get(&format!("/v1/holds/count?{query}")).await.ok(200))
}

#[tokio::test]
async fn counts_cover_all_shards_in_suitable_buckets() {
    let api = TestApi::new().await;
    assert_eq!(count(&api, "").await.count, 0);
    for number in 0..30 {
        hold(&api, if number % 3 == 0 { "payments" } else { "orders" }, &format!("delay={}m", 10 * number)).await;
    }
    let all = count(&api, "").await;
    assert_eq!((all.count, all.buckets.iter().map(|bucket| bucket.count).sum()), (30, 30));
    assert!(all.buckets.len() <= 100);
    assert_eq!((&*all.buckets[0].from, &*all.buckets[0].to), ("2026-11-15T10:30:00.000Z", "2026-11-15T10:45:00.000Z"));
    let by_hour = count(&api, "topic=payments&bucket=1h").await;
    assert_eq!((by_hour.count, by_hour.buckets.len()), (10, 6));
    let range = "from=2026-11-15T11:00:00Z&to=2026-11-15T12:00:00Z&bucket=1h";
    assert_eq!(count(&api, range).await.buckets[0].count, 6);
    hold(&api, "orders", "delay=700d").await;
    assert!(count(&api, "").await.buckets.len() <= 100);
    api.get("/v1/holds/count?bucket=1m").await.problem(422, "bad_parameter");
    assert_eq!(count(&api, &format!("bucket=1m&{}", "to=2026-11-16T00:00:00Z")).await.count, 30);
}

#[tokio::test]
async fn keys_see_and_extend_holds_of_their_topics_only() {
    let api = TestApi::with_keys([
        key("all", &[Scope::Publish, Scope::Consume, Scope::Admin], &[]),
        key("shop", &[Scope::Publish], &["orders*"]),
        key("reader", &[Scope::Consume], &[]),
        key("push", &[Scope::Push], &[]),
    ])
    .await;
    let call = async |method, uri: String, key: &str, body: &'static str| api.call_as(key, method, &uri, body).await;
    for (topic, id) in [("orders", "mine"), ("payments", "theirs")] {
        let uri = format!("/v1/topics/{topic}/messages?delay=1h&id={id}");
        call(Method::POST, uri, "all", "x").await.ok(202);
    }
    let on = |id: &str, action: &str| format!("/v1/holds/{id}{action}");
    call(Method::GET, on("mine", ""), "shop", "").await.ok(200);
    call(Method::GET, on("mine", ""), "reader", "").await.ok(200);
    call(Method::GET, on("mine", ""), "push", "").await.problem(403, "forbidden");
    call(Method::DELETE, on("mine", ""), "reader", "").await.problem(403, "forbidden");
    for (method, action, body) in [
        (Method::GET, "", ""),
        (Method::DELETE, "", ""),
        (Method::POST, "/fire", ""),
        (Method::POST, "/extend", r#"{"by":1}"#),
    ] {
        call(method, on("theirs", action), "shop", body).await.problem(404, "unknown_hold");
    }
    let acted =
        api.world.holds.asked().into_iter().any(|ask| {
            matches!(ask, HoldRequest::Withdraw { .. } | HoldRequest::Fire { .. } | HoldRequest::Extend { .. })
        });
    assert!(!acted, "the owner was only asked for lookups");
    call(Method::GET, "/v1/holds".into(), "shop", "").await.problem(403, "forbidden");
    let list = call(Method::GET, "/v1/holds?topic=orders".into(), "shop", "").await.ok(200);
    assert_eq!(list["holds"].as_array().unwrap().len(), 1);
    call(Method::GET, "/v1/holds?topic=payments".into(), "shop", "").await.problem(403, "forbidden");
    call(Method::GET, "/v1/holds/count".into(), "shop", "").await.problem(403, "forbidden");
    assert_eq!(call(Method::GET, "/v1/holds/count?topic=orders".into(), "shop", "").await.ok(200)["count"], 1);
    call(Method::DELETE, on("mine", ""), "shop", "").await.ok(200);
    call(Method::GET, on("mine", ""), "shop", "").await.ok(200);
}

#[tokio::test]
async fn a_topic_with_pending_holds_is_deleted_only_together_with_them() {
    let api = TestApi::new().await;
    let id = hold(&api, "orders", "delay=1h").await;
    hold(&api, "orders", "delay=2h").await;
    let other = hold(&api, "payments", "delay=1h").await;
    assert_eq!(api.delete("/v1/topics/orders").await.problem(409, "holds_pending")["count"], 2);
    api.post("/v1/topics/orders/messages", "still open").await.ok(201);
    api.delete("/v1/topics/orders?holds=drop").await.problem(422, "bad_parameter");
    assert_eq!(api.delete("/v1/topics/orders?holds=withdraw").await.status, 204);
    let shown = look(&api, &id).await;
    assert_eq!((&*shown.state, &*shown.topic), ("withdrawn", ""));
    assert_eq!(look(&api, &other).await.state, "held");
    assert_eq!(api.delete("/v1/topics/orders").await.problem(404, "unknown_topic")["status"], 404);
    api.delete(&format!("/v1/holds/{other}")).await.ok(200);
    assert_eq!(api.delete("/v1/topics/payments").await.status, 204);
}

#[tokio::test]
async fn a_hold_accepted_during_the_deletion_of_its_topic_is_withdrawn_or_rejected() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let mut holding = pin!(api.post("/v1/topics/orders/messages?delay=1h", "late"));
    api.world.log.hold_up_append_of(holding.as_mut()).await;
    let mut deleting = pin!(api.delete("/v1/topics/orders?holds=withdraw"));
    assert!(futures_util::poll!(deleting.as_mut()).is_pending(), "the hold in progress is inside the gate");
    api.world.log.hold_up(false);
    let id = holding.await.ok(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(deleting.await.status, 204);
    assert_eq!(look(&api, &id).await.state, "withdrawn");
}
