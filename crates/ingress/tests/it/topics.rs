//! Topics: making, changing, growing, deleting, and what a crash or others leave behind.

use std::time::Duration;

use serde_json::json;
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::{CatalogueError, LogError};
use whimbrel_model::{NamedBounds, PartitionId, TopicNumber};

use crate::support::cluster::ClusterNode;
use crate::support::log::RETENTION_OF_OTHERS;
use crate::support::{House, SHARDS, World, soon};

#[tokio::test]
async fn a_topic_is_made_changed_looked_at_and_deleted() {
    let house = House::new().await;
    let made = house.put("/v1/topics/orders", json!({ "partitions": 2, "retention": "3d", "retention_bytes": 1000 }));
    let made = made.await.ok(201);
    assert_eq!((&made["topic"], &made["partitions"], &made["retention"]), (&json!("orders"), &json!(2), &json!("3d")));
    let same = house.put("/v1/topics/orders", json!({ "partitions": 2 })).await.ok(200);
    assert_eq!((&same["retention_bytes"], &same["number"]), (&json!(1000), &made["number"]));
    let changed = house.put("/v1/topics/orders", json!({ "retention": null, "retention_bytes": 5 })).await.ok(200);
    assert_eq!((changed.get("retention"), &changed["retention_bytes"]), (None, &json!(5)));
    house.post("/v1/topics/orders/messages", "x").await.ok(201);
    let one = house.get("/v1/topics/orders").await.ok(200);
    assert_eq!(one["messages"], 1);
    assert_eq!(
        one["partition_list"][0],
        json!({
            "partition": 0, "first_offset": 0, "next_offset": 1, "messages": 1,
            "leader": 0, "replicas": [0], "in_sync": [0], "bytes": 0,
        })
    );
    let all = house.get("/v1/topics").await.ok(200);
    let names: Vec<&str> = all["topics"].as_array().unwrap().iter().map(|t| t["topic"].as_str().unwrap()).collect();
    assert_eq!(names, ["_dead._push", "_events", "_holds", "_notices", "_presence", "_push", "orders"]);
    assert_eq!(house.delete("/v1/topics/orders").await.status, 204);
    house.get("/v1/topics/orders").await.problem(404, "unknown_topic");
    house.delete("/v1/topics/orders").await.problem(404, "unknown_topic");
}

/// The test ends only if the wait for the log does.
#[tokio::test]
async fn topics_are_listed_without_counts_while_the_log_does_not_answer() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 40 })).await.ok(201);
    house.world.log.hide_bounds();
    let all = house.get("/v1/topics").await.ok(200);
    let topics = all["topics"].as_array().unwrap();
    let orders = topics.iter().find(|topic| topic["topic"] == "orders").unwrap();
    assert_eq!((&orders["partitions"], orders.get("messages")), (&json!(40), None));
    assert_eq!(topics.len(), 7);
}

#[tokio::test]
async fn rates_are_of_the_last_seconds() {
    let house = House::new().await;
    for _ in 0..20 {
        house.post("/v1/topics/orders/messages", "x").await.ok(201);
    }
    house.world.clock.forward(1000);
    let topic = house.get("/v1/topics/orders").await.ok(200);
    assert_eq!(topic["rates"]["published_per_s_10s"], 2.0);
    house.world.clock.forward(100_000);
    assert_eq!(house.get("/v1/topics/orders").await.ok(200)["rates"]["published_per_s_60s"], 0.0);
}

#[tokio::test]
async fn a_topic_made_again_inherits_nothing() {
    let house = House::new().await;
    house.post("/v1/topics/orders/messages", "old").await.ok(201);
    let old = house.get("/v1/topics/orders").await.ok(200)["number"].clone();
    house.delete("/v1/topics/orders?holds=withdraw").await;
    house.post("/v1/topics/orders/messages", "new").await.ok(201);
    assert_ne!(house.get("/v1/topics/orders").await.ok(200)["number"], old);
    assert_eq!(house.payloads("orders").await.concat(), ["new"]);
}

#[tokio::test]
async fn what_cannot_be_is_told() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 4 })).await.ok(201);
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
        house.put("/v1/topics/orders", body).await.problem(422, code);
    }
    house.put("/v1/topics/orders", json!({ "replicas": 1 })).await.ok(200);
    house.put("/v1/topics/other", json!({ "replicas": 3 })).await.problem(422, "unsupported");
    assert_eq!(house.world.catalogue.value("topics/other"), None, "what was never made is not kept");
    house.put("/v1/topics/_mine", json!({})).await.problem(422, "reserved_name");
    house.delete("/v1/topics/_events").await.problem(422, "reserved_name");
    house.delete("/v1/topics/orders?holds=keep").await.problem(422, "bad_parameter");
}

#[tokio::test]
async fn topics_are_bounded() {
    let house = House::with_topics(TopicDefaults { topics_max: 7, ..TopicDefaults::default() }).await;
    house.post("/v1/topics/first/messages", "x").await.ok(201);
    house.post("/v1/topics/second/messages", "x").await.problem(422, "too_many_topics");
}

#[tokio::test]
async fn growing_keeps_barriers_and_says_that_keys_moved() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    for _ in 0..3 {
        house.post("/v1/topics/orders/messages?key=k", "old").await.ok(201);
    }
    let grown = house.put("/v1/topics/orders", json!({ "partitions": 8 })).await.ok(200);
    assert_eq!(grown["growths"][0]["barriers"], json!([3]));
    assert_eq!((&grown["growths"][0]["from"], &grown["growths"][0]["to"]), (&json!(1), &json!(8)));
    assert!(grown["note"].as_str().unwrap().contains("keys moved"));
    let placed = house.post("/v1/topics/orders/messages?key=k", "new").await.ok(201);
    assert_eq!(placed["partition"], partition_of(b"k", 8));
    let events = house.get("/v1/topics/_events/messages?wait=10s").await.ok(200);
    let event: serde_json::Value = serde_json::from_str(events["messages"][0]["payload"].as_str().unwrap()).unwrap();
    assert_eq!(event["kind"], "topic_grown");
    assert_eq!(event["fields"]["barriers"], "3");
    let world = house.close().await;
    let house = world.open().await;
    let after = house.get("/v1/topics/orders").await.ok(200);
    assert_eq!(after["growths"], grown["growths"], "barriers outlive a restart");
}

#[tokio::test]
async fn growing_waits_for_publishes_by_the_old_mapping() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    house.world.log.hold_up(true);
    let publish = house.post("/v1/topics/orders/messages?key=k", "old");
    tokio::pin!(publish);
    while house.world.log.waiting_appends() == 0 {
        assert!(futures_util::poll!(publish.as_mut()).is_pending());
    }
    let grow = house.put("/v1/topics/orders", json!({ "partitions": 2 }));
    tokio::pin!(grow);
    let later = house.post("/v1/topics/orders/messages?key=k", "new");
    tokio::pin!(later);
    for _ in 0..100 {
        assert!(futures_util::poll!(grow.as_mut()).is_pending(), "one by the old mapping is still under way");
        assert!(futures_util::poll!(later.as_mut()).is_pending(), "nothing new while it grows");
        tokio::task::yield_now().await;
    }
    house.world.log.hold_up(false);
    assert_eq!(publish.await.ok(201)["partition"], 0);
    assert_eq!(grow.await.ok(200)["growths"][0]["barriers"], json!([1]));
    assert_eq!(later.await.ok(201)["partition"], partition_of(b"k", 2));
}

#[tokio::test]
async fn deleting_waits_for_publishes_under_way() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    house.world.log.hold_up(true);
    let publish = house.post("/v1/topics/orders/messages", "old");
    tokio::pin!(publish);
    while house.world.log.waiting_appends() == 0 {
        assert!(futures_util::poll!(publish.as_mut()).is_pending());
    }
    let delete = house.delete("/v1/topics/orders");
    tokio::pin!(delete);
    for _ in 0..100 {
        assert!(futures_util::poll!(delete.as_mut()).is_pending(), "a publish is still under way");
        tokio::task::yield_now().await;
    }
    assert!(house.world.log.number_of("orders").is_some(), "its partition is there until the publish has ended");
    house.world.log.hold_up(false);
    publish.await.ok(201);
    assert_eq!(delete.await.status, 204);
    house.post("/v1/topics/orders/messages", "new").await.ok(201);
    assert_eq!(house.payloads("orders").await.concat(), ["new"]);
}

#[tokio::test]
async fn a_publish_whose_caller_hung_up_is_below_the_barrier() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    house.world.log.hold_up(true);
    {
        let publish = house.post("/v1/topics/orders/messages?key=k", "old");
        tokio::pin!(publish);
        while house.world.log.waiting_appends() == 0 {
            assert!(futures_util::poll!(publish.as_mut()).is_pending());
        }
    }
    let grow = house.put("/v1/topics/orders", json!({ "partitions": 2 }));
    tokio::pin!(grow);
    assert!(futures_util::poll!(grow.as_mut()).is_pending());
    house.world.log.hold_up(false);
    assert_eq!(grow.await.ok(200)["growths"][0]["barriers"], json!([1]));
}

#[tokio::test]
async fn a_growth_that_fails_leaves_the_old_mapping_in_use() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    house.world.catalogue.refuse_writes(Some(CatalogueError::Unavailable("away".into())));
    house.put("/v1/topics/orders", json!({ "partitions": 2 })).await.problem(503, "unavailable");
    assert_eq!(house.post("/v1/topics/orders/messages?key=k", "x").await.ok(201)["partition"], 0);
    assert_eq!(house.get("/v1/topics/orders").await.ok(200)["partitions"], 1);
    house.world.catalogue.refuse_writes(None);
    let world = house.close().await;
    let house = world.open().await;
    let finished = house.get("/v1/topics/orders").await.ok(200);
    assert_eq!(finished["partitions"], 2, "the next start finishes what the log already has");
    assert_eq!(finished["growths"][0]["barriers"], json!([1]));
}

#[tokio::test]
async fn topics_and_their_numbers_outlive_a_restart() {
    let house = House::new().await;
    house.post("/v1/topics/orders/messages?key=a", "x").await.ok(201);
    let before = house.get("/v1/topics/orders").await.ok(200)["number"].clone();
    let house = house.close().await.open().await;
    assert_eq!(house.get("/v1/topics/orders").await.ok(200)["number"], before);
    assert_eq!(house.payloads("orders").await.concat(), ["x"]);
}

#[tokio::test]
async fn a_topic_that_the_log_could_not_make_yet_is_made_by_the_next_publish() {
    let house = House::new().await;
    house.world.log.refuse(Some(LogError::DiskFull("no room".into())));
    house.post("/v1/topics/orders/messages", "x").await.problem(503, "disk_full");
    assert!(house.world.catalogue.value("topics/orders").is_some(), "it is half made");
    house.world.log.refuse(None);
    house.post("/v1/topics/orders/messages", "x").await.ok(201);
}

#[tokio::test]
async fn a_half_made_topic_is_finished_at_start() {
    let house = House::new().await;
    house.world.log.refuse(Some(LogError::DiskFull("no room".into())));
    house.post("/v1/topics/orders/messages", "x").await.problem(503, "disk_full");
    house.world.log.refuse(None);
    let house = house.close().await.open().await;
    assert_eq!(house.get("/v1/topics/orders").await.ok(200)["partitions"], 4);
}

#[tokio::test]
async fn a_half_deleted_topic_is_gone_after_the_next_start() {
    let house = House::new().await;
    house.post("/v1/topics/orders/messages", "x").await.ok(201);
    let number = house.world.log.number_of("orders").unwrap();
    let mut entry = house.world.catalogue.value("topics/orders").unwrap();
    let world = house.close().await;
    entry["deleting"] = json!(true);
    world.catalogue.force("topics/orders", &entry.to_string());
    let house = world.open().await;
    house.get("/v1/topics/orders").await.problem(404, "unknown_topic");
    assert_eq!(world.catalogue.value("topics/orders"), None);
    assert_ne!(world.log.number_of("orders"), Some(number));
}

#[tokio::test]
async fn topics_that_others_made_are_taken_in() {
    let world = World::new();
    world.log.has_topics_of_others(&[("theirs", 3), ("__consumer_offsets", 50), ("bad name", 1)]);
    let house = world.open().await;
    let theirs = house.get("/v1/topics/theirs").await.ok(200);
    assert_eq!((&theirs["partitions"], &theirs["adopted"]), (&json!(3), &json!(true)));
    assert_eq!(house.get("/v1/topics").await.ok(200)["topics"].as_array().unwrap().len(), 7);
    world.log.has_topics_of_others(&[("theirs", 3), ("later", 2)]);
    world.clock.forward(1000);
    assert_eq!(house.get("/v1/topics/later/messages").await.ok(200)["next_offset"], 0);
}

#[tokio::test]
async fn an_adopted_topic_keeps_its_retention_until_a_change_names_it() {
    let world = World::new();
    world.log.has_topics_of_others(&[("theirs", 3)]);
    let house = world.open().await;
    assert_eq!(house.get("/v1/topics/theirs").await.ok(200)["retention"], "1h");
    house.put("/v1/topics/theirs", json!({ "partitions": 4 })).await.ok(200);
    assert_eq!(house.world.log.named_bounds(), Some(NamedBounds::NONE), "growing does not name the retention");
    assert_eq!(house.world.log.retention_of("theirs").time, Some(RETENTION_OF_OTHERS));
    house.put("/v1/topics/theirs", json!({ "retention_bytes": 5000 })).await.ok(200);
    assert_eq!(house.world.log.named_bounds(), Some(NamedBounds { time: false, bytes: true }));
    let changed = house.get("/v1/topics/theirs").await.ok(200);
    assert_eq!((&changed["retention"], &changed["retention_bytes"]), (&json!("1h"), &json!(5000)));
}

#[tokio::test]
async fn a_start_reads_the_retention_of_topics_that_an_earlier_version_adopted() {
    let world = World::new();
    world.log.has_topics_of_others(&[("theirs", 3)]);
    let world = world.open().await.close().await;
    let mut entry = world.catalogue.value("topics/theirs").unwrap();
    entry.as_object_mut().unwrap().remove("retention_ms");
    world.catalogue.force("topics/theirs", &entry.to_string());
    let house = world.open().await;
    assert_eq!(house.get("/v1/topics/theirs").await.ok(200)["retention"], "1h");
    assert_eq!(house.world.catalogue.value("topics/theirs").unwrap()["retention_ms"], json!(3_600_000));
}

#[tokio::test]
async fn a_deletion_by_another_process_is_announced_to_the_log() {
    let house = House::new().await;
    house.post("/v1/topics/orders/messages", "x").await.ok(201);
    let number = house.world.log.number_of("orders").unwrap();
    assert!(!house.world.log.expects_deletion(number));
    let mut entry = house.world.catalogue.value("topics/orders").unwrap();
    entry["deleting"] = json!(true);
    house.world.catalogue.force("topics/orders", &entry.to_string());
    soon(async {
        while house.registry.get("orders").is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(async {
        while !house.world.log.expects_deletion(number) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_another_process_writes_to_the_catalogue_is_followed() {
    let house = House::new().await;
    let mut entry = {
        house.post("/v1/topics/orders/messages", "x").await.ok(201);
        house.world.catalogue.value("topics/orders").unwrap()
    };
    entry["number"] = json!(900);
    house.world.catalogue.force("topics/theirs", &entry.to_string());
    soon(async {
        while house.get("/v1/topics/theirs").await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(house.world.log.partitions_of(whimbrel_model::TopicNumber(900)), 4);
    let offset = house.world.log.records(PartitionId::new(whimbrel_model::TopicNumber(900), 0)).len();
    assert_eq!(offset, 0);
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_does_not_stop_the_others() {
    let world = World::new();
    world.catalogue.force("topics/broken", "not json");
    let house = world.open().await;
    house.get("/v1/topics/broken").await.problem(404, "unknown_topic");
    house.post("/v1/topics/orders/messages", "x").await.ok(201);
    house.post("/v1/topics/broken/messages", "x").await.problem(503, "unavailable");
}

#[tokio::test]
async fn a_log_that_cannot_be_reached_stops_the_start() {
    let world = World::new();
    world.log.refuse(Some(LogError::Unavailable("no broker".into())));
    let error = world.try_open(ReceiveSettings::default()).await.err().unwrap();
    assert!(error.to_string().contains("no broker"), "{error}");
}

#[tokio::test]
async fn a_retention_that_the_catalogue_refused_does_not_reach_the_log() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    house.world.catalogue.refuse_writes(Some(CatalogueError::DiskFull));
    house.put("/v1/topics/orders", json!({ "retention": "1s" })).await.problem(503, "disk_full");
    assert_eq!(house.world.log.retention_of("orders").time, Some(Duration::from_secs(7 * 86_400)));
    house.world.catalogue.refuse_writes(None);
    house.put("/v1/topics/orders", json!({ "retention": "1s" })).await.ok(200);
    assert_eq!(house.world.log.retention_of("orders").time, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn a_number_that_the_log_knows_and_the_catalogue_forgot_is_not_given_again() {
    let house = House::new().await;
    house.post("/v1/topics/orders/messages", "old").await.ok(201);
    let number = house.get("/v1/topics/orders").await.ok(200)["number"].clone();
    let world = house.close().await;
    world.catalogue.forget();
    let house = world.open().await;
    house.post("/v1/topics/others/messages", "new").await.ok(201);
    assert_ne!(house.get("/v1/topics/others").await.ok(200)["number"], number);
    assert_eq!(house.payloads("others").await.concat(), ["new"]);
}

#[tokio::test]
async fn the_shards_of_holds_are_made_once_and_never_change() {
    let house = House::new().await;
    let holds = house.get("/v1/topics/_holds").await.ok(200);
    assert_eq!(holds["partitions"], SHARDS);
    assert_eq!((holds.get("retention"), holds.get("retention_bytes")), (None, None), "only its owners trim it");
    house.put("/v1/topics/_holds", json!({ "partitions": 64 })).await.problem(422, "reserved_name");
    let world = house.close().await;
    let number = world.log.number_of("_holds").unwrap();
    world.log.grow_around_the_door(number, SHARDS as usize + 3);
    let house = world.open().await;
    assert_eq!(house.get("/v1/topics/_holds").await.ok(200)["partitions"], SHARDS, "what others add is not used");
}

#[tokio::test]
async fn a_topic_that_another_process_has_just_made_is_not_gone() {
    let house = House::new().await;
    house.post("/v1/topics/orders/messages", "x").await.ok(201);
    let orders = house.world.log.number_of("orders").unwrap();
    let mut entry = house.world.catalogue.value("topics/orders").unwrap();
    entry["number"] = json!(900);
    house.world.catalogue.force("topics/theirs", &entry.to_string());
    let is_gone = async |name: &str, number: u32| house.registry.is_gone(name, TopicNumber(number)).await.unwrap();
    assert!(!is_gone("theirs", 900).await, "the watch has not even begun to look");
    assert!(is_gone("theirs", 901).await, "that number was another topic's");
    assert!(!is_gone("orders", orders.0).await);
    entry["deleting"] = json!(true);
    house.world.catalogue.force("topics/leaving", &entry.to_string());
    assert!(is_gone("leaving", 900).await);
    house.delete("/v1/topics/orders").await;
    assert!(is_gone("orders", orders.0).await);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_does_not_answer_at_first_is_asked_again_for_the_systems_topics() {
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
    assert!(deaf.try_open(ReceiveSettings::default()).await.is_err(), "it is not asked for ever");
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
    node.house.get("/v1/topics/gone").await.problem(404, "unknown_topic");
    assert_eq!(world.catalogue.value("topics/gone"), None, "the deletion is finished");
    assert_eq!(world.log.number_of("gone"), None);
}

#[tokio::test]
async fn a_topic_that_was_deleted_since_the_log_listed_it_is_not_adopted() {
    let world = World::new();
    let house = world.open().await;
    world.log.has_topics_of_others(&[("gone", 1)]);
    world.log.delete_others_after_next_listing();
    world.clock.forward(1000);
    house.get("/v1/topics/gone").await.problem(404, "unknown_topic");
    assert_eq!(world.catalogue.value("topics/gone"), None);
}

#[tokio::test]
async fn a_retention_that_the_log_did_not_get_before_a_crash_is_set_by_a_repeat() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    let world = house.close().await;
    let mut entry = world.catalogue.value("topics/orders").unwrap();
    entry["retention_ms"] = json!(1000);
    world.catalogue.force("topics/orders", &entry.to_string());
    let house = world.open().await;
    house.put("/v1/topics/orders", json!({ "retention": "1s" })).await.ok(200);
    assert_eq!(house.world.log.retention_of("orders").time, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn a_retention_whose_change_timed_out_stays_in_the_catalogue() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    for lost in [LogError::Unavailable("timed out".into()), LogError::Unknown("timed out".into())] {
        house.world.log.lose_next_alteration(lost);
        let answer = house.put("/v1/topics/orders", json!({ "retention": "1h" })).await;
        answer.problem(504, "outcome_unknown");
        assert_eq!(house.world.catalogue.value("topics/orders").unwrap()["retention_ms"], json!(3_600_000));
        assert_eq!(house.get("/v1/topics/orders").await.ok(200)["retention"], "1h");
    }
    house.put("/v1/topics/orders", json!({ "retention": "1h" })).await.ok(200);
    assert_eq!(house.world.log.retention_of("orders").time, Some(Duration::from_secs(3600)));
}

#[tokio::test]
async fn a_retention_that_the_log_refuses_is_not_kept() {
    let house = House::new().await;
    house.put("/v1/topics/orders", json!({ "retention": "7d" })).await.ok(201);
    house.world.log.lose_next_alteration(LogError::Unsupported("no".into()));
    house.put("/v1/topics/orders", json!({ "retention": "1h" })).await.problem(422, "unsupported");
    assert_eq!(house.get("/v1/topics/orders").await.ok(200)["retention"], "7d");
}
