//! Nodes that share a catalogue and write the same entry concurrently: one of them succeeds, and all use its entry.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::json;
use whimbrel_catalogue::subscriptions::ensure_notices_subscription;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::ports::CatalogueError;

use crate::support::{TestApi, World};

const NODES: usize = 3;

async fn start_together(world: &Arc<World>) -> Vec<TestApi> {
    world.catalogue.let_others_in();
    let starting = (0..NODES).map(|_| world.try_open(ReceiveSettings::default()));
    let started: Result<Vec<TestApi>, _> = join_all(starting).await.into_iter().collect();
    started.unwrap()
}

#[tokio::test]
async fn nodes_that_start_together_on_an_empty_catalogue_all_start() {
    let nodes = start_together(&World::new()).await;
    for name in ["_events", "_holds", "_push", "_dead._push", "_notices", "_presence"] {
        let numbers: Vec<_> = nodes.iter().map(|node| node.registry.get(name).unwrap().number()).collect();
        assert!(numbers.iter().all(|number| *number == numbers[0]), "{name}: {numbers:?}");
    }
    let made = join_all(nodes.iter().map(|node| ensure_notices_subscription(&node.subscriptions))).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
}

#[tokio::test]
async fn nodes_that_adopt_a_topic_concurrently_all_have_it() {
    let world = World::new();
    world.log.has_topics_of_others(&[("legacy", 3)]);
    let nodes = start_together(&world).await;
    let numbers: Vec<_> = nodes.iter().map(|node| node.registry.get("legacy").map(|topic| topic.number())).collect();
    assert!(numbers[0].is_some() && numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
}

#[tokio::test]
async fn the_first_publishes_at_several_nodes_make_one_topic() {
    let nodes = start_together(&World::new()).await;
    let published = join_all(nodes.iter().map(|node| node.post("/v1/topics/orders/messages", "x"))).await;
    for answer in published {
        answer.ok(201);
    }
    let numbers: Vec<_> = nodes.iter().map(|node| node.registry.get("orders").unwrap().number()).collect();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
    assert_eq!(nodes[0].payloads("orders").await.concat().len(), NODES);
}

#[tokio::test]
async fn a_change_that_loses_against_another_node_is_applied_to_what_that_node_wrote() {
    let nodes = start_together(&World::new()).await;
    nodes[0].put("/v1/topics/orders", json!({ "partitions": 2 })).await.ok(201);
    let (one, other) = futures_util::join!(
        nodes[0].put("/v1/topics/orders", json!({ "retention": "3d" })),
        nodes[1].put("/v1/topics/orders", json!({ "retention_bytes": 1000 })),
    );
    one.ok(200);
    other.ok(200);
    let entry = nodes[0].world.catalogue.value("topics/orders").unwrap();
    assert_eq!((&entry["retention_ms"], &entry["retention_bytes"]), (&json!(259_200_000), &json!(1000)), "{entry}");
}

#[tokio::test]
async fn a_first_publish_with_an_unknown_topic_creation_was_certainly_not_published() {
    let api = TestApi::new().await;
    let unknown = CatalogueError::OutcomeUnknown("no answer".to_owned());
    api.world.catalogue.refuse_writes(Some(unknown));
    api.post("/v1/topics/orders/messages", "x").await.problem(503, "unavailable");
    api.put("/v1/topics/orders", json!({})).await.problem(504, "outcome_unknown");
    api.world.catalogue.refuse_writes(None);
    api.post("/v1/topics/orders/messages", "x").await.ok(201);
    assert_eq!(api.payloads("orders").await.concat(), ["x"]);
}

#[tokio::test]
async fn a_write_that_always_conflicts_is_given_up() {
    let api = TestApi::new().await;
    api.put("/v1/topics/orders", json!({})).await.ok(201);
    let lost = CatalogueError::Conflict { key: "topics/orders".to_owned(), found: Some(7) };
    api.world.catalogue.refuse_writes(Some(lost));
    let refused = api.put("/v1/topics/orders", json!({ "retention": "3d" })).await.problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("version 7"), "{refused}");
}
