//! Finding messages by their id, and by search.

use serde_json::{Value, json};
use whimbrel_api::messages::{HeldMessageState, MessageState, SearchAnswer};
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::PartitionId;

use crate::support::{TestApi, World, typed};

#[tokio::test]
async fn a_minted_id_finds_its_message() {
    let api = TestApi::new().await;
    let mut placed = Vec::new();
    for number in 0..40 {
        placed.push(api.post("/v1/topics/orders/messages", format!("m{number}")).await.ok(201));
        api.world.clock.forward(7_000);
    }
    for (number, answer) in placed.iter().enumerate() {
        let found = api.get(&format!("/v1/messages/{}", answer["id"].as_str().unwrap())).await.ok(200);
        assert_eq!(found["payload"], format!("m{number}"));
        assert_eq!((&found["partition"], &found["offset"]), (&answer["partition"], &answer["offset"]));
        assert_eq!((&found["state"], &found["subscriptions"]), (&json!("published"), &json!([])));
        typed::<MessageState>(found);
    }
}

#[tokio::test]
async fn a_publishers_id_finds_its_message_in_each_topic() {
    let api = TestApi::new().await;
    for topic in ["first", "second"] {
        api.post(&format!("/v1/topics/{topic}/messages?id=order-1"), topic).await.ok(201);
        api.world.clock.forward(1);
    }
    assert_eq!(api.get("/v1/messages/order-1").await.ok(200)["payload"], "first", "the oldest one");
    assert_eq!(api.get("/v1/messages/order-1?topic=second").await.ok(200)["payload"], "second");
    api.delete("/v1/topics/first").await;
    assert_eq!(api.get("/v1/messages/order-1").await.ok(200)["payload"], "second");
}

#[tokio::test]
async fn an_id_without_a_message_is_unknown() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    for id in [
        "nothing",
        "at-1-0-0",
        "at-2-0-99",
        "at-2-99-0",
        "at-999-0-0",
        "01a1c9d5-0000-8000-8000-000000000000",
        "00000000-0000-0000-0000-000000000000",
        "%20",
        "at-2-0-18446744073709551615",
    ] {
        api.get(&format!("/v1/messages/{id}")).await.problem(404, "unknown_message");
    }
    api.get("/v1/messages/x?topc=a").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn a_position_with_a_message_of_another_id_is_no_match() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let number = api.world.log.number_of("orders").unwrap().0;
    api.get(&format!("/v1/messages/at-{number}-0-0")).await.problem(404, "unknown_message");
}

#[tokio::test]
async fn an_id_finds_its_hold_and_after_the_fire_its_message() {
    let api = TestApi::new().await;
    for query in ["delay=1m&key=k1", "delay=1m&key=k1&id=order-1"] {
        let held = api.post(&format!("/v1/topics/orders/messages?{query}"), "body").await.ok(202);
        let uri = format!("/v1/messages/{}", held["id"].as_str().unwrap());
        let found = api.get(&uri).await.ok(200);
        assert_eq!((&found["state"], &found["due"], &found["key"]), (&json!("held"), &held["due"], &json!("k1")));
        typed::<HeldMessageState>(found);
        api.get(&format!("{uri}?topic=other")).await.problem(404, "unknown_message");
        api.world.clock.forward(61_000);
        api.world.holds.fire_due();
        api.world.clock.forward(600_000);
        let fired = api.get(&uri).await.ok(200);
        assert_eq!(
            (&fired["state"], &fired["payload"], &fired["due"]),
            (&json!("fired"), &json!("body"), &held["due"])
        );
        assert_eq!(fired["headers"], json!({}), "Whimbrel metadata is not an own header");
        typed::<MessageState>(fired);
    }
}

#[tokio::test]
async fn an_ended_hold_without_a_message_shows_its_state() {
    let api = TestApi::new().await;
    let hold = async |id: &str| api.post(&format!("/v1/topics/orders/messages?delay=1h&id={id}"), "x").await.ok(202);
    for id in ["gone", "dead", "old"] {
        hold(id).await;
    }
    api.delete("/v1/holds/gone").await.ok(200);
    api.world.holds.kill("dead", "too large");
    let place = api.post("/v1/holds/old/fire", "").await.ok(200);
    let number = api.world.log.number_of("orders").unwrap();
    api.world.log.drop_before(PartitionId::new(number, place["partition"].as_u64().unwrap() as u32), 1);
    for (id, state, member) in
        [("gone", "withdrawn", "withdrawn_at"), ("dead", "dead", "reason"), ("old", "fired", "fired_at")]
    {
        let found = api.get(&format!("/v1/messages/{id}")).await.ok(200);
        assert_eq!(found["state"], state);
        assert!(found[member].is_string() && found.get("payload").is_none(), "{found}");
    }
}

#[tokio::test]
async fn a_search_can_select_held_or_immediate_messages() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "now").await.ok(201);
    api.post("/v1/topics/orders/messages?delay=1s", "later").await.ok(202);
    api.world.clock.forward(1_000);
    api.world.holds.fire_due();
    for (query, expected) in [("state=fired", vec!["later"]), ("state=published", vec!["now"])] {
        let found = search(&api, query).await;
        let payloads: Vec<String> = found.messages.into_iter().map(|message| message.payload.unwrap()).collect();
        assert_eq!(payloads, expected);
    }
    assert_eq!(search(&api, "").await.messages.len(), 2);
}

async fn api_to_search() -> TestApi {
    let api = TestApi::with_partitions(3).await;
    for number in 0..30 {
        let uri = format!("/v1/topics/orders/messages?key=k{}", number % 5);
        api.post(&uri, format!("m{number}")).await.ok(201);
        api.world.clock.forward(100_000);
    }
    api
}

async fn search(api: &TestApi, query: &str) -> SearchAnswer {
    typed(api.get(&format!("/v1/messages?topic=orders&{query}")).await.ok(200))
}

#[tokio::test]
async fn a_search_finds_by_key_and_by_time() {
    let api = api_to_search().await;
    let all = search(&api, "").await;
    assert_eq!((all.messages.len(), all.scanned, all.complete), (30, 30, true));
    let of_key = search(&api, "key=k2").await;
    let payloads: Vec<String> = of_key.messages.into_iter().map(|message| message.payload.unwrap()).collect();
    assert_eq!(payloads, ["m2", "m7", "m12", "m17", "m22", "m27"]);
    assert!(of_key.scanned < 30, "only the partition of the key is scanned");
    // Message number n was published n × 100 s after 10:38:42.
    let between = search(&api, "from=2026-11-15T10:45:22Z&to=2026-11-15T10:48:42Z").await;
    let mut payloads: Vec<String> = between.messages.into_iter().map(|message| message.payload.unwrap()).collect();
    payloads.sort();
    assert_eq!(payloads, ["m4", "m5"]);
    assert!(between.scanned < 10, "the time index bounds the scan: {}", between.scanned);
}

#[tokio::test]
async fn a_search_continues_from_its_cursor_until_it_is_complete() {
    for settings in [
        ReceiveSettings { search_scan_max_records: 4, ..ReceiveSettings::default() },
        ReceiveSettings { read_bytes_max: 600, ..ReceiveSettings::default() },
    ] {
        let world: std::sync::Arc<World> = api_to_search().await.close().await;
        let api = world.try_open(settings).await.unwrap();
        let (mut cursor, mut found, mut steps) = (String::new(), Vec::new(), 0);
        loop {
            let step = search(&api, &format!("limit=3&cursor={cursor}")).await;
            found.extend(step.messages.into_iter().map(|message| message.payload.unwrap()));
            steps += 1;
            match step.cursor {
                Some(next) => cursor = next,
                None => break assert!(step.complete),
            }
            assert!(!step.complete && steps < 100);
        }
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 30);
    }
}

#[tokio::test]
async fn a_moved_key_is_found_in_its_old_partition_too() {
    let api = TestApi::with_partitions(1).await;
    api.post("/v1/topics/orders/messages?key=abc", "old").await.ok(201);
    api.put("/v1/topics/orders", json!({ "partitions": 16 })).await.ok(200);
    api.post("/v1/topics/orders/messages?key=abc", "new").await.ok(201);
    let found = search(&api, "key=abc").await;
    let payloads: Vec<String> = found.messages.into_iter().map(|message| message.payload.unwrap()).collect();
    assert_eq!(payloads, ["old", "new"]);
}

#[tokio::test]
async fn a_search_skips_damaged_records() {
    let api = TestApi::with_partitions(1).await;
    for number in 0..5 {
        api.post("/v1/topics/orders/messages", format!("m{number}")).await.ok(201);
    }
    let partition = PartitionId::new(api.world.log.number_of("orders").unwrap(), 0);
    api.world.log.damage(partition, 1, 3);
    assert_eq!(search(&api, "").await.messages.len(), 3);
}

#[tokio::test]
async fn invalid_searches_are_rejected() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let bad = |query: &'static str| api.get(query);
    bad("/v1/messages").await.problem(422, "bad_parameter");
    bad("/v1/messages?topic=nothing").await.problem(404, "unknown_topic");
    bad("/v1/messages?topic=orders&from=x").await.problem(422, "bad_time");
    bad("/v1/messages?topic=orders&state=lost").await.problem(422, "bad_parameter");
    bad("/v1/messages?topic=orders&state=held").await.problem(422, "bad_parameter");
    bad("/v1/messages?topic=orders&state=delivered").await.problem(501, "not_implemented");
    bad("/v1/messages?topic=orders&cursor=x").await.problem(422, "bad_parameter");
    bad("/v1/messages?topic=orders&limit=0").await.problem(422, "bad_parameter");
    let _: Value = bad("/v1/messages?topic=orders&cursor=99:0&state=published").await.ok(200);
}
