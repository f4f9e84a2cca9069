//! Looking at holds, moving them, taking them back, firing them, listing and counting them.

use http::Method;
use serde_json::{Value, json};
use whimbrel_ingress::documents::{HoldCountDocument, HoldDocument, HoldListDocument, HoldOutcomeDocument};
use whimbrel_ingress::{ApiKey, ReceiveSettings, Scope, Secret};
use whimbrel_model::ports::{Ask, HoldsError};

use crate::support::{Answer, House};

async fn hold(house: &House, topic: &str, query: &str) -> String {
    let held = house.post(&format!("/v1/topics/{topic}/messages?{query}"), "body").await.ok(202);
    held["id"].as_str().unwrap().to_owned()
}

async fn extend(house: &House, id: &str, body: Value) -> Answer {
    house.post(&format!("/v1/holds/{id}/extend"), body.to_string()).await
}

async fn fire(house: &House, id: &str) -> Answer {
    house.post(&format!("/v1/holds/{id}/fire"), "").await
}

async fn look(house: &House, id: &str) -> HoldDocument {
    serde_json::from_value(house.get(&format!("/v1/holds/{id}")).await.ok(200)).unwrap()
}

#[tokio::test]
async fn a_pending_hold_is_shown_with_its_version() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1m&key=k1").await;
    let shown = house.get(&format!("/v1/holds/{id}")).await.ok(200);
    let expected = json!({
        "id": id, "topic": "orders", "key": "k1", "state": "held", "due": "2026-11-15T10:39:42.000Z",
        "published_at": "2026-11-15T10:38:42.000Z", "version": 0,
    });
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn a_hold_is_moved_in_both_directions_and_until_a_time() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1h").await;
    for (body, due) in [
        (json!({ "by": "10m" }), "2026-11-15T11:48:42.000Z"),
        (json!({ "by": "-20m" }), "2026-11-15T11:28:42.000Z"),
        (json!({ "by": -1000 }), "2026-11-15T11:28:41.000Z"),
        (json!({ "until": "2026-11-16T00:00:00Z" }), "2026-11-16T00:00:00.000Z"),
        (json!({ "until": "2020-01-01T00:00:00Z" }), "2020-01-01T00:00:00.000Z"),
    ] {
        let moved: HoldOutcomeDocument = serde_json::from_value(extend(&house, &id, body).await.ok(200)).unwrap();
        assert_eq!((&*moved.outcome, moved.due.as_deref()), ("rescheduled", Some(due)));
        let shown = look(&house, &id).await;
        assert_eq!((&*shown.due, shown.version), (due, moved.version));
    }
}

#[tokio::test]
async fn a_repeated_move_under_a_key_moves_once() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1h").await;
    let uri = format!("/v1/holds/{id}/extend");
    let by = async |key| house.call(Method::POST, &uri, &[("idempotency-key", key)], r#"{"by":"10m"}"#).await;
    let first = by("m1").await.ok(200);
    assert_eq!(by("m1").await.ok(200), first);
    assert_ne!(by("m2").await.ok(200), first);
    assert_eq!(look(&house, &id).await.due, "2026-11-15T11:58:42.000Z");
}

#[tokio::test]
async fn a_move_under_another_version_is_refused_with_what_is() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1h").await;
    let version = look(&house, &id).await.version.unwrap();
    let moved = extend(&house, &id, json!({ "by": "1m", "if_version": version })).await.ok(200);
    let refused = extend(&house, &id, json!({ "by": "1m", "if_version": version })).await;
    let refused = refused.problem(412, "version_differs");
    assert_eq!((&refused["version"], &refused["due"]), (&moved["version"], &moved["due"]));
}

#[tokio::test]
async fn impossible_moves_are_told() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=700d").await;
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
        extend(&house, &id, body).await.problem(422, code);
    }
    house.post(&format!("/v1/holds/{id}/extend"), "").await.problem(422, "bad_json");
    house.post(&format!("/v1/holds/{id}/fire?now=1"), "").await.problem(422, "bad_parameter");
    assert_eq!(look(&house, &id).await.version, Some(0), "nothing was moved");
}

#[tokio::test]
async fn a_withdrawn_hold_stays_withdrawn() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1s").await;
    assert_eq!(house.delete(&format!("/v1/holds/{id}")).await.ok(200), json!({ "outcome": "withdrawn" }));
    house.world.clock.forward(5_000);
    house.world.holds.fire_due();
    assert!(house.payloads("orders").await.concat().is_empty());
    for answer in [
        house.delete(&format!("/v1/holds/{id}")).await,
        extend(&house, &id, json!({ "by": "1m" })).await,
        fire(&house, &id).await,
    ] {
        assert_eq!(answer.problem(409, "already_withdrawn")["withdrawn_at"], "2026-11-15T10:38:42.000Z");
    }
    let shown = look(&house, &id).await;
    assert_eq!((&*shown.state, &*shown.topic, shown.version), ("withdrawn", "orders", None));
}

#[tokio::test]
async fn a_fired_hold_is_in_its_topic_and_cannot_be_taken_back() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1h&key=k1").await;
    let fired: HoldOutcomeDocument = serde_json::from_value(fire(&house, &id).await.ok(200)).unwrap();
    assert_eq!((&*fired.outcome, fired.offset), ("fired", Some(0)));
    assert_eq!(house.payloads("orders").await[fired.partition.unwrap() as usize], ["body"]);
    for answer in [house.delete(&format!("/v1/holds/{id}")).await, fire(&house, &id).await] {
        let over = answer.problem(409, "already_fired");
        assert_eq!(
            (over["fired_at"].as_str(), over["partition"].as_u64()),
            (fired.fired_at.as_deref(), fired.partition.map(u64::from))
        );
    }
    let shown = look(&house, &id).await;
    assert_eq!((&*shown.state, shown.fired_at, shown.partition), ("fired", fired.fired_at, fired.partition));
}

#[tokio::test]
async fn a_dead_hold_says_why_and_is_listed_among_the_dead() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1h").await;
    hold(&house, "orders", "delay=1h").await;
    house.world.holds.kill(&id, "too large");
    let over = fire(&house, &id).await.problem(409, "already_dead");
    assert_eq!(over["reason"], "too large");
    let dead: HoldListDocument = serde_json::from_value(house.get("/v1/holds?state=dead").await.ok(200)).unwrap();
    let [hold] = &dead.holds[..] else { panic!("{dead:?}") };
    assert_eq!((&*hold.id, &*hold.state, hold.reason.as_deref()), (&*id, "dead", Some("too large")));
    assert_eq!(house.get("/v1/holds").await.ok(200)["holds"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn unknown_and_impossible_ids_are_told_apart() {
    let house = House::new().await;
    let long = "a".repeat(256);
    for (id, status, code) in [
        ("nothing", 404, "unknown_hold"),
        ("01a1c9d5-0000-8000-8000-000000000000", 404, "unknown_hold"),
        ("%20", 422, "bad_id"),
        ("%c3%a4", 422, "bad_id"),
        ("%ff", 422, "bad_parameter"),
        (&long, 422, "bad_id"),
    ] {
        house.get(&format!("/v1/holds/{id}")).await.problem(status, code);
        house.delete(&format!("/v1/holds/{id}")).await.problem(status, code);
        extend(&house, id, json!({ "by": "1m" })).await.problem(status, code);
        fire(&house, id).await.problem(status, code);
    }
}

#[tokio::test]
async fn an_owner_that_cannot_answer_is_told_of() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1h").await;
    for (error, status, code) in [
        (HoldsError::NoOwner(1), 503, "no_owner"),
        (HoldsError::OutcomeUnknown("timed out".into()), 504, "outcome_unknown"),
        (HoldsError::Unavailable("no store".into()), 503, "unavailable"),
        (HoldsError::Overloaded(1), 429, "overloaded"),
    ] {
        house.world.holds.refuse(Some(error));
        house.get(&format!("/v1/holds/{id}")).await.problem(status, code);
        house.delete(&format!("/v1/holds/{id}")).await.problem(status, code);
        house.get("/v1/holds").await.problem(status, code);
        house.get("/v1/holds/count").await.problem(status, code);
        house.delete("/v1/topics/orders?holds=withdraw").await.problem(status, code);
    }
    house.world.holds.refuse(None);
    assert_eq!(look(&house, &id).await.state, "held");
}

/// Every page of a list, with how many pages there were.
async fn pages(house: &House, query: &str) -> (Vec<HoldDocument>, usize) {
    let (mut holds, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = house.get(&format!("/v1/holds?{query}&cursor={cursor}")).await.ok(200);
        let page: HoldListDocument = serde_json::from_value(page).unwrap();
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
async fn a_list_of_all_shards_is_in_due_order_whatever_its_pages() {
    let house = House::new().await;
    // Many are due at the same moment: the order among those is by id.
    for number in 0..40 {
        hold(
            &house,
            if number % 4 == 0 { "payments" } else { "orders" },
            &format!("id=h{number}&delay={}m", 1 + number % 5),
        )
        .await;
    }
    let (all, _) = pages(&house, "limit=1000").await;
    let mut sorted: Vec<(String, String)> = all.iter().map(|hold| (hold.due.clone(), hold.id.clone())).collect();
    sorted.sort();
    assert_eq!(all.len(), 40);
    let ids = |holds: &[HoldDocument]| holds.iter().map(|hold| hold.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&all), sorted.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
    let (in_pages, count) = pages(&house, "limit=7").await;
    assert_eq!(ids(&in_pages), ids(&all));
    assert_eq!(count, 6);
    let (payments, _) = pages(&house, "topic=payments&limit=3").await;
    assert_eq!(payments.len(), 10);
    let (between, _) = pages(&house, "from=2026-11-15T10:40:42Z&to=2026-11-15T10:42:42Z").await;
    assert_eq!(between.len(), 16, "those of two and three minutes");
}

#[tokio::test]
async fn bad_lists_and_counts_are_told() {
    let house = House::new().await;
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
        house.get(&format!("/v1/holds?{query}")).await.problem(status, code);
    }
    for (query, status, code) in [
        ("topic=nothing", 404, "unknown_topic"),
        ("to=x", 422, "bad_time"),
        ("bucket=90s", 422, "bad_duration"),
        ("bucket=0", 422, "bad_duration"),
        ("limit=5", 422, "bad_parameter"),
    ] {
        house.get(&format!("/v1/holds/count?{query}")).await.problem(status, code);
    }
}

async fn count(house: &House, query: &str) -> HoldCountDocument {
    serde_json::from_value(house.get(&format!("/v1/holds/count?{query}")).await.ok(200)).unwrap()
}

#[tokio::test]
async fn counts_are_of_all_shards_in_buckets_that_suit() {
    let house = House::new().await;
    assert_eq!(count(&house, "").await.count, 0);
    for number in 0..30 {
        hold(&house, if number % 3 == 0 { "payments" } else { "orders" }, &format!("delay={}m", 10 * number)).await;
    }
    let all = count(&house, "").await;
    assert_eq!((all.count, all.buckets.iter().map(|bucket| bucket.count).sum()), (30, 30));
    assert!(all.buckets.len() <= 100);
    assert_eq!((&*all.buckets[0].from, &*all.buckets[0].to), ("2026-11-15T10:30:00.000Z", "2026-11-15T10:45:00.000Z"));
    let by_hour = count(&house, "topic=payments&bucket=1h").await;
    assert_eq!((by_hour.count, by_hour.buckets.len()), (10, 6));
    let range = "from=2026-11-15T11:00:00Z&to=2026-11-15T12:00:00Z&bucket=1h";
    assert_eq!(count(&house, range).await.buckets[0].count, 6);
    hold(&house, "orders", "delay=700d").await;
    assert!(count(&house, "").await.buckets.len() <= 100);
    house.get("/v1/holds/count?bucket=1m").await.problem(422, "bad_parameter");
    assert_eq!(count(&house, &format!("bucket=1m&{}", "to=2026-11-16T00:00:00Z")).await.count, 30);
}

fn key(name: &str, scopes: &[Scope], topics: &[&str]) -> ApiKey {
    let topics = topics.iter().map(|pattern| (*pattern).to_owned()).collect();
    ApiKey { name: name.into(), secret: Secret::Plain(name.into()), scopes: scopes.to_vec(), topics }
}

#[tokio::test]
async fn keys_see_and_move_what_they_are_for() {
    let keys = vec![
        key("all", &[Scope::Publish, Scope::Consume, Scope::Admin], &[]),
        key("shop", &[Scope::Publish], &["orders*"]),
        key("reader", &[Scope::Consume], &[]),
        key("push", &[Scope::Push], &[]),
    ];
    let house = House::with(ReceiveSettings { keys, ..ReceiveSettings::default() }).await;
    let call = |method: Method, uri: String, bearer: &str, body: &'static str| {
        let bearer = format!("Bearer {bearer}");
        let house = &house;
        async move { house.call(method, &uri, &[("authorization", &bearer)], body).await }
    };
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
    let acted = house
        .world
        .holds
        .asked()
        .into_iter()
        .any(|ask| matches!(ask, Ask::Withdraw { .. } | Ask::Fire { .. } | Ask::Extend { .. }));
    assert!(!acted, "the owner was only looked at");
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
async fn a_topic_with_pending_holds_is_not_deleted_unless_they_go_too() {
    let house = House::new().await;
    let id = hold(&house, "orders", "delay=1h").await;
    hold(&house, "orders", "delay=2h").await;
    let other = hold(&house, "payments", "delay=1h").await;
    assert_eq!(house.delete("/v1/topics/orders").await.problem(409, "holds_pending")["count"], 2);
    house.post("/v1/topics/orders/messages", "still open").await.ok(201);
    house.delete("/v1/topics/orders?holds=drop").await.problem(422, "bad_parameter");
    assert_eq!(house.delete("/v1/topics/orders?holds=withdraw").await.status, 204);
    let shown = look(&house, &id).await;
    assert_eq!((&*shown.state, &*shown.topic), ("withdrawn", ""));
    assert_eq!(look(&house, &other).await.state, "held");
    assert_eq!(house.delete("/v1/topics/orders").await.problem(404, "unknown_topic")["status"], 404);
    house.delete(&format!("/v1/holds/{other}")).await.ok(200);
    assert_eq!(house.delete("/v1/topics/payments").await.status, 204);
}

#[tokio::test]
async fn a_hold_that_comes_while_its_topic_is_deleted_is_withdrawn_or_refused() {
    let house = House::new().await;
    house.post("/v1/topics/orders/messages", "x").await.ok(201);
    house.world.log.hold_up(true);
    let holding = house.post("/v1/topics/orders/messages?delay=1h", "late");
    tokio::pin!(holding);
    while house.world.log.waiting_appends() == 0 {
        assert!(futures_util::poll!(holding.as_mut()).is_pending());
    }
    let deleting = house.delete("/v1/topics/orders?holds=withdraw");
    tokio::pin!(deleting);
    assert!(futures_util::poll!(deleting.as_mut()).is_pending(), "the hold under way is inside the gate");
    house.world.log.hold_up(false);
    let id = holding.await.ok(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(deleting.await.status, 204);
    assert_eq!(look(&house, &id).await.state, "withdrawn");
}
