//! Creating, changing, growing and deleting topics, also after a crash or changes by other systems.

use std::pin::pin;
use std::time::Duration;

use serde_json::json;
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::{CatalogueError, LogError};
use whimbrel_model::{NamedBounds, PartitionId, TopicNumber};

use crate::support::cluster::ClusterNode;
use crate::support::log::RETENTION_OF_OTHERS;
use crate::support::{SHARDS, TestApi, World, soon, until};

#[tokio::test]
async fn a_topic_is_created_changed_shown_and_deleted() {
    let api = TestApi::new().await;
    let made = api.put("/v1/topics/orders", json!({ "partitions": 2, "retention": "3d", "retention_bytes": 1000 }));
    let made = made.await.ok(201);
    assert_eq!((&made["topic"], &made["partitions"], &made["retention"]), (&json!("orders"), &json!(2), &json!("3d")));
    let same = api.put("/v1/topics/orders", json!({ "partitions": 2 })).await.ok(200);
    assert_eq!((&same["retention_bytes"], &same["number"]), (&json!(1000), &made["number"]));
    let changed = api.put("/v1/topics/orders", json!({ "retention": null, "retention_bytes": 5 })).await.ok(200);
    assert_eq!((changed.get("retention"), &changed["retention_bytes"]), (None, &json!(5)));
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let one = api.get("/v1/topics/orders").await.ok(200);
    assert_eq!(one["messages"], 1);
    assert_eq!(
        one["partition_list"][0],
        json!({
            "partition": 0, "first_offset": 0, "next_offset": 1, "messages": 1,
            "leader": 0, "replicas": [0], "in_sync": [0], "bytes": 0,
        })
    );
    let all = api.get("/v1/topics").await.ok(200);
    let names: Vec<&str> = all["topics"].as_array().unwrap().iter().map(|t| t["topic"].as_str().unwrap()).collect();
    assert_eq!(names, ["_dead._push", "_events", "_holds", "_notices", "_presence", "_push", "orders"]);
    assert_eq!(api.delete("/v1/topics/orders").await.status, 204);
    api.get("/v1/topics/orders").await.problem(404, "unknown_topic");
    api.delete("/v1/topics/orders").await.problem(404, "unknown_topic");
}

/// This test ends only if the wait for the log is bounded.
#[tokio::test]
async fn topics_are_listed_without_counts_while_the_log_does_not_answer() {
    let api = TestApi::with_partitions(40).await;
    api.world.log.hide_bounds();
    let all = api.get("/v1/topics").await.ok(200);
    let topics = all["topics"].as_array().unwrap();
    let orders = topics.iter().find(|topic| topic["topic"] == "orders").unwrap();
    assert_eq!((&orders["partitions"], orders.get("messages")), (&json!(40), None));
    assert_eq!(topics.len(), 7);
}

#[tokio::test]
async fn rates_cover_the_last_seconds() {
    let api = TestApi::new().await;
    for _ in 0..20 {
        api.post("/v1/topics/orders/messages", "x").await.ok(201);
    }
    api.world.clock.forward(1000);
    let topic = api.get("/v1/topics/orders").await.ok(200);
    assert_eq!(topic["rates"]["published_per_s_10s"], 2.0);
    api.world.clock.forward(100_000);
    assert_eq!(api.get("/v1/topics/orders").await.ok(200)["rates"]["published_per_s_60s"], 0.0);
}

#[tokio::test]
async fn a_topic_created_again_inherits_nothing() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "old").await.ok(201);
    let old = api.get("/v1/topics/orders").await.ok(200)["number"].clone();
    api.delete("/v1/topics/orders?holds=withdraw").await;
    api.post("/v1/topics/orders/messages", "new").await.ok(201);
    assert_ne!(api.get("/v1/topics/orders").await.ok(200)["number"], old);
    assert_eq!(api.payloads("orders").await.concat(), ["new"]);
}

#[tokio::test]
async fn invalid_topics_are_rejected() {
    let api = TestApi::with_partitions(4).await;
    for (body, code) in [
        (json!({ "partitions": 3 }), "cannot_shrink"),
        (json!({ "partitions": 0 }), "bad_parameter"),
        (json!({ "partitions": 20000 }), "bad_parameter"),
        (json!({ "partitions": -1 }), "bad_json"),
        (json!({ "retension": "1d" }), "bad_json"),
        (json!({ "retention": "soon" }), "bad_duration"),
        (json!({ "retention": "0s" }), "bad_duration"),
        (json!({ "retention_bytes": 0 }), "bad_parameter"),
        (json!({ "replicas": 0 }), "bad_parameter"),
        (json!({ "replicas": 3 }), "unsupported"),
        (json!([]), "bad_json"),
    ] {
        api.put("/v1/topics/orders", body).await.problem(422, code);
    }
    api.put("/v1/topics/orders", json!({ "replicas": 1 })).await.ok(200);
    api.put("/v1/topics/other", json!({ "replicas": 3 })).await.problem(422, "unsupported");
    assert_eq!(api.world.catalogue.value("topics/other"), None, "a topic that was not created has no entry");
    api.put("/v1/topics/_mine", json!({})).await.problem(422, "reserved_name");
    api.delete("/v1/topics/_events").await.problem(422, "reserved_name");
    api.delete("/v1/topics/orders?holds=keep").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn the_number_of_topics_is_bounded() {
    let api = TestApi::with_topics(TopicDefaults { topics_max: 7, ..TopicDefaults::default() }).await;
    api.post("/v1/topics/first/messages", "x").await.ok(201);
    api.post("/v1/topics/second/messages", "x").await.problem(422, "too_many_topics");
}

#[tokio::test]
async fn a_growth_records_barriers_and_notes_that_keys_moved() {
    let api = TestApi::with_partitions(1).await;
    for _ in 0..3 {
        api.post("/v1/topics/orders/messages?key=k", "old").await.ok(201);
    }
    let grown = api.put("/v1/topics/orders", json!({ "partitions": 8 })).await.ok(200);
    assert_eq!(grown["growths"][0]["barriers"], json!([3]));
    assert_eq!((&grown["growths"][0]["from"], &grown["growths"][0]["to"]), (&json!(1), &json!(8)));
    assert!(grown["note"].as_str().unwrap().contains("keys moved"));
    let placed = api.post("/v1/topics/orders/messages?key=k", "new").await.ok(201);
    assert_eq!(placed["partition"], partition_of(b"k", 8));
    let events = api.get("/v1/topics/_events/messages?wait=10s").await.ok(200);
    let event: serde_json::Value = serde_json::from_str(events["messages"][0]["payload"].as_str().unwrap()).unwrap();
    assert_eq!(event["kind"], "topic_grown");
    assert_eq!(event["fields"]["barriers"], "3");
    let world = api.close().await;
    let api = world.open().await;
    let after = api.get("/v1/topics/orders").await.ok(200);
    assert_eq!(after["growths"], grown["growths"], "barriers survive a restart");
}

#[tokio::test]
async fn a_growth_waits_for_publishes_by_the_old_mapping() {
    let api = TestApi::with_partitions(1).await;
    let mut publish = pin!(api.post("/v1/topics/orders/messages?key=k", "old"));
    api.world.log.hold_up_append_of(publish.as_mut()).await;
    let mut grow = pin!(api.put("/v1/topics/orders", json!({ "partitions": 2 })));
    let mut later = pin!(api.post("/v1/topics/orders/messages?key=k", "new"));
    for _ in 0..100 {
        assert!(futures_util::poll!(grow.as_mut()).is_pending(), "a publish by the old mapping is still in progress");
        assert!(futures_util::poll!(later.as_mut()).is_pending(), "no new publish during the growth");
        tokio::task::yield_now().await;
    }
    api.world.log.hold_up(false);
    assert_eq!(publish.await.ok(201)["partition"], 0);
    assert_eq!(grow.await.ok(200)["growths"][0]["barriers"], json!([1]));
    assert_eq!(later.await.ok(201)["partition"], partition_of(b"k", 2));
}

#[tokio::test]
async fn a_deletion_waits_for_publishes_in_progress() {
    let api = TestApi::with_partitions(1).await;
    let mut publish = pin!(api.post("/v1/topics/orders/messages", "old"));
    api.world.log.hold_up_append_of(publish.as_mut()).await;
    let mut delete = pin!(api.delete("/v1/topics/orders"));
    for _ in 0..100 {
        assert!(futures_util::poll!(delete.as_mut()).is_pending(), "a publish is still in progress");
        tokio::task::yield_now().await;
    }
    assert!(api.world.log.number_of("orders").is_some(), "its partition exists until the publish has ended");
    api.world.log.hold_up(false);
    publish.await.ok(201);
    assert_eq!(delete.await.status, 204);
    api.post("/v1/topics/orders/messages", "new").await.ok(201);
    assert_eq!(api.payloads("orders").await.concat(), ["new"]);
}

#[tokio::test]
async fn a_publish_of_a_disconnected_client_is_below_the_barrier() {
    let api = TestApi::with_partitions(1).await;
    api.world.log.hold_up_append_of(pin!(api.post("/v1/topics/orders/messages?key=k", "old"))).await;
    let mut grow = pin!(api.put("/v1/topics/orders", json!({ "partitions": 2 })));
    assert!(futures_util::poll!(grow.as_mut()).is_pending());
    api.world.log.hold_up(false);
    assert_eq!(grow.await.ok(200)["growths"][0]["barriers"], json!([1]));
}

#[tokio::test]
async fn a_growth_that_fails_leaves_the_old_mapping_in_use() {
    let api = TestApi::with_partitions(1).await;
    api.world.catalogue.refuse_writes(Some(CatalogueError::Unavailable("away".into())));
    api.put("/v1/topics/orders", json!({ "partitions": 2 })).await.problem(503, "unavailable");
    assert_eq!(api.post("/v1/topics/orders/messages?key=k", "x").await.ok(201)["partition"], 0);
    assert_eq!(api.get("/v1/topics/orders").await.ok(200)["partitions"], 1);
    api.world.catalogue.refuse_writes(None);
    let world = api.close().await;
    let api = world.open().await;
    let finished = api.get("/v1/topics/orders").await.ok(200);
    assert_eq!(finished["partitions"], 2, "the next start finishes the growth that the log has");
    assert_eq!(finished["growths"][0]["barriers"], json!([1]));
}

#[tokio::test]
async fn topics_and_their_numbers_survive_a_restart() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages?key=a", "x").await.ok(201);
    let before = api.get("/v1/topics/orders").await.ok(200)["number"].clone();
    let api = api.close().await.open().await;
    assert_eq!(api.get("/v1/topics/orders").await.ok(200)["number"], before);
    assert_eq!(api.payloads("orders").await.concat(), ["x"]);
}

#[tokio::test]
async fn a_topic_that_the_log_could_not_create_is_created_by_the_next_publish() {
    let api = TestApi::new().await;
    api.world.log.refuse(Some(LogError::DiskFull("no room".into())));
    api.post("/v1/topics/orders/messages", "x").await.problem(503, "disk_full");
    assert!(api.world.catalogue.value("topics/orders").is_some(), "it is half created");
    api.world.log.refuse(None);
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
}

#[tokio::test]
async fn a_half_created_topic_is_finished_at_start() {
    let api = TestApi::new().await;
    api.world.log.refuse(Some(LogError::DiskFull("no room".into())));
    api.post("/v1/topics/orders/messages", "x").await.problem(503, "disk_full");
    api.world.log.refuse(None);
    let api = api.close().await.open().await;
    assert_eq!(api.get("/v1/topics/orders").await.ok(200)["partitions"], 4);
}

#[tokio::test]
async fn a_half_deleted_topic_is_gone_after_the_next_start() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let number = api.world.log.number_of("orders").unwrap();
    let world = api.close().await;
    world.catalogue.edit("topics/orders", |entry| entry["deleting"] = json!(true));
    let api = world.open().await;
    api.get("/v1/topics/orders").await.problem(404, "unknown_topic");
    assert_eq!(world.catalogue.value("topics/orders"), None);
    assert_ne!(world.log.number_of("orders"), Some(number));
}

#[tokio::test]
async fn topics_of_other_systems_are_adopted() {
    let world = World::new();
    world.log.has_topics_of_others(&[("theirs", 3), ("__consumer_offsets", 50), ("bad name", 1)]);
    let api = world.open().await;
    let theirs = api.get("/v1/topics/theirs").await.ok(200);
    assert_eq!((&theirs["partitions"], &theirs["adopted"]), (&json!(3), &json!(true)));
    assert_eq!(api.get("/v1/topics").await.ok(200)["topics"].as_array().unwrap().len(), 7);
    world.log.has_topics_of_others(&[("theirs", 3), ("later", 2)]);
    world.clock.forward(1000);
    assert_eq!(api.get("/v1/topics/later/messages").await.ok(200)["next_offset"], 0);
}

#[tokio::test]
async fn an_adopted_topic_keeps_its_retention_until_a_change_names_it() {
    let world = World::new();
    world.log.has_topics_of_others(&[("theirs", 3)]);
    let api = world.open().await;
    assert_eq!(api.get("/v1/topics/theirs").await.ok(200)["retention"], "1h");
    api.put("/v1/topics/theirs", json!({ "partitions": 4 })).await.ok(200);
    assert_eq!(api.world.log.named_bounds(), Some(NamedBounds::NONE), "growing does not name the retention");
    assert_eq!(api.world.log.retention_of("theirs").time, Some(RETENTION_OF_OTHERS));
    api.put("/v1/topics/theirs", json!({ "retention_bytes": 5000 })).await.ok(200);
    assert_eq!(api.world.log.named_bounds(), Some(NamedBounds { time: false, bytes: true }));
    let changed = api.get("/v1/topics/theirs").await.ok(200);
    assert_eq!((&changed["retention"], &changed["retention_bytes"]), (&json!("1h"), &json!(5000)));
}

#[tokio::test]
async fn a_start_reads_the_retention_of_topics_that_an_earlier_version_adopted() {
    let world = World::new();
    world.log.has_topics_of_others(&[("theirs", 3)]);
    let world = world.open().await.close().await;
    world.catalogue.edit("topics/theirs", |entry| drop(entry.as_object_mut().unwrap().remove("retention_ms")));
    let api = world.open().await;
    assert_eq!(api.get("/v1/topics/theirs").await.ok(200)["retention"], "1h");
    assert_eq!(api.world.catalogue.value("topics/theirs").unwrap()["retention_ms"], json!(3_600_000));
}

#[tokio::test]
async fn a_deletion_by_another_process_is_announced_to_the_log() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let number = api.world.log.number_of("orders").unwrap();
    assert!(!api.world.log.expects_deletion(number));
    api.world.catalogue.edit("topics/orders", |entry| entry["deleting"] = json!(true));
    until(|| api.registry.get("orders").is_none()).await;
    until(|| api.world.log.expects_deletion(number)).await;
}

#[tokio::test]
async fn what_another_process_writes_to_the_catalogue_is_followed() {
    let api = TestApi::new().await;
    let mut entry = {
        api.post("/v1/topics/orders/messages", "x").await.ok(201);
        api.world.catalogue.value("topics/orders").unwrap()
    };
    entry["number"] = json!(900);
    api.world.catalogue.force("topics/theirs", &entry.to_string());
    soon(async {
        while api.get("/v1/topics/theirs").await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(api.world.log.partitions_of(whimbrel_model::TopicNumber(900)), 4);
    let offset = api.world.log.records(PartitionId::new(whimbrel_model::TopicNumber(900), 0)).len();
    assert_eq!(offset, 0);
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_does_not_stop_the_others() {
    let world = World::new();
    world.catalogue.force("topics/broken", "not json");
    let api = world.open().await;
    api.get("/v1/topics/broken").await.problem(404, "unknown_topic");
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    api.post("/v1/topics/broken/messages", "x").await.problem(503, "unavailable");
}

#[tokio::test]
async fn an_unreachable_log_stops_the_start() {
    let world = World::new();
    world.log.refuse(Some(LogError::Unavailable("no broker".into())));
    let error = world.try_open(ReceiveSettings::default()).await.err().unwrap();
    assert!(error.to_string().contains("no broker"), "{error}");
}

#[tokio::test]
async fn a_retention_that_the_catalogue_rejects_does_not_reach_the_log() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    api.world.catalogue.refuse_writes(Some(CatalogueError::DiskFull));
    api.put("/v1/topics/orders", json!({ "retention": "1s" })).await.problem(503, "disk_full");
    assert_eq!(api.world.log.retention_of("orders").time, Some(Duration::from_secs(7 * 86_400)));
    api.world.catalogue.refuse_writes(None);
    api.put("/v1/topics/orders", json!({ "retention": "1s" })).await.ok(200);
    assert_eq!(api.world.log.retention_of("orders").time, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn a_number_that_the_log_has_and_the_catalogue_lost_is_not_used_again() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "old").await.ok(201);
    let number = api.get("/v1/topics/orders").await.ok(200)["number"].clone();
    let world = api.close().await;
    world.catalogue.forget();
    let api = world.open().await;
    api.post("/v1/topics/others/messages", "new").await.ok(201);
    assert_ne!(api.get("/v1/topics/others").await.ok(200)["number"], number);
    assert_eq!(api.payloads("others").await.concat(), ["new"]);
}

#[tokio::test]
async fn the_shards_of_holds_are_created_once_and_never_change() {
    let api = TestApi::new().await;
    let holds = api.get("/v1/topics/_holds").await.ok(200);
    assert_eq!(holds["partitions"], SHARDS);
    assert_eq!((holds.get("retention"), holds.get("retention_bytes")), (None, None), "its owners trim it");
    api.put("/v1/topics/_holds", json!({ "partitions": 64 })).await.problem(422, "reserved_name");
    let world = api.close().await;
    let number = world.log.number_of("_holds").unwrap();
    world.log.add_partitions(number, SHARDS as usize + 3);
    let api = world.open().await;
    assert_eq!(api.get("/v1/topics/_holds").await.ok(200)["partitions"], SHARDS, "added partitions are not used");
}

#[tokio::test]
async fn a_topic_that_another_process_has_just_created_does_not_count_as_deleted() {
    let api = TestApi::new().await;
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    let orders = api.world.log.number_of("orders").unwrap();
    let mut entry = api.world.catalogue.value("topics/orders").unwrap();
    entry["number"] = json!(900);
    api.world.catalogue.force("topics/theirs", &entry.to_string());
    let is_gone = async |name: &str, number: u32| api.registry.is_gone(name, TopicNumber(number)).await.unwrap();
    assert!(!is_gone("theirs", 900).await, "the watch has not begun yet");
    assert!(is_gone("theirs", 901).await, "that number belongs to another topic");
    assert!(!is_gone("orders", orders.0).await);
    entry["deleting"] = json!(true);
    api.world.catalogue.force("topics/leaving", &entry.to_string());
    assert!(is_gone("leaving", 900).await);
    api.delete("/v1/topics/orders").await;
    assert!(is_gone("orders", orders.0).await);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_does_not_answer_is_asked_again_for_the_system_topics() {
    let world = World::new();
    world.log.refuse(Some(LogError::Unavailable("timed out".into())));
    let mends = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.log.refuse(None);
    };
    let (opened, ()) = tokio::join!(world.try_open(ReceiveSettings::default()), mends);
    opened.unwrap().get("/v1/topics/_holds").await.ok(200);

    let deaf = World::new();
    deaf.log.refuse(Some(LogError::Unavailable("timed out".into())));
    assert!(deaf.try_open(ReceiveSettings::default()).await.is_err(), "retries are bounded");
}

#[tokio::test]
async fn a_read_of_a_topic_that_is_being_deleted_does_not_create_it_again() {
    let world = World::new();
    let node = ClusterNode::open_alone(&world).await;
    node.catalogue.set_stale(true);
    let entry = json!({ "number": 77, "partitions": 1, "created_at_ms": 0, "deleting": true });
    world.catalogue.force("topics/gone", &entry.to_string());
    world.log.has_topics_of_others(&[("gone", 1)]);
    world.clock.forward(1000);
    node.api.get("/v1/topics/gone").await.problem(404, "unknown_topic");
    assert_eq!(world.catalogue.value("topics/gone"), None, "the deletion is finished");
    assert_eq!(world.log.number_of("gone"), None);
}

#[tokio::test]
async fn a_topic_that_was_deleted_since_the_log_listed_it_is_not_adopted() {
    let world = World::new();
    let api = world.open().await;
    world.log.has_topics_of_others(&[("gone", 1)]);
    world.log.delete_others_after_next_listing();
    world.clock.forward(1000);
    api.get("/v1/topics/gone").await.problem(404, "unknown_topic");
    assert_eq!(world.catalogue.value("topics/gone"), None);
}

#[tokio::test]
async fn a_retention_that_a_crash_kept_from_the_log_is_set_by_a_repeat() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    let world = api.close().await;
    world.catalogue.edit("topics/orders", |entry| entry["retention_ms"] = json!(1000));
    let api = world.open().await;
    api.put("/v1/topics/orders", json!({ "retention": "1s" })).await.ok(200);
    assert_eq!(api.world.log.retention_of("orders").time, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn a_retention_whose_change_timed_out_stays_in_the_catalogue() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    for lost in [LogError::Unavailable("timed out".into()), LogError::Unknown("timed out".into())] {
        api.world.log.lose_next_alteration(lost);
        let answer = api.put("/v1/topics/orders", json!({ "retention": "1h" })).await;
        answer.problem(504, "outcome_unknown");
        assert_eq!(api.world.catalogue.value("topics/orders").unwrap()["retention_ms"], json!(3_600_000));
        assert_eq!(api.get("/v1/topics/orders").await.ok(200)["retention"], "1h");
    }
    api.put("/v1/topics/orders", json!({ "retention": "1h" })).await.ok(200);
    assert_eq!(api.world.log.retention_of("orders").time, Some(Duration::from_secs(3600)));
}

#[tokio::test]
async fn a_retention_that_the_log_rejects_is_not_kept() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    api.world.log.lose_next_alteration(LogError::Unsupported("no".into()));
    api.put("/v1/topics/orders", json!({ "retention": "1h" })).await.problem(422, "unsupported");
    assert_eq!(api.get("/v1/topics/orders").await.ok(200)["retention"], "7d");
}
