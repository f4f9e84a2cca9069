//! Growing a topic that several nodes share: no node publishes by the old mapping behind the barriers, even if it misses changes, loses
//! its session or crashes during the growth.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::json;
use whimbrel_catalogue::topics::TopicChange;
use whimbrel_engines::embedded::InProcessCoordination;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::Coordination as _;

use super::support::cluster::{ClusterNode, empty_cluster};
use super::support::log::Hanging;
use super::support::{Answer, World, pending_until, soon, until};

const PARTITIONS: u32 = 8;

struct Nodes {
    world: Arc<World>,
    cluster: Arc<InProcessCoordination>,
    first: ClusterNode,
    second: ClusterNode,
}

/// Two nodes that have read the topic `orders` with one partition.
async fn two_nodes() -> Nodes {
    let (world, cluster) = (World::new(), empty_cluster());
    let first = ClusterNode::open(&world, &cluster, 1).await;
    first.api.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    let second = ClusterNode::open(&world, &cluster, 2).await;
    // Both have read the catalogue under their sessions.
    for node in [&first, &second] {
        node.api.post("/v1/topics/ready/messages?key=k", "x").await.ok(201);
    }
    Nodes { world, cluster, first, second }
}

async fn publish(node: &ClusterNode, payload: &str) -> Answer {
    node.api.post(&format!("/v1/topics/orders/messages?key={}", key()), payload.to_owned()).await
}

async fn grow(node: &ClusterNode) -> Answer {
    node.api.put("/v1/topics/orders", json!({ "partitions": PARTITIONS })).await
}

/// A key that moves when the topic grows.
fn key() -> String {
    let keys = (0..).map(|number| format!("k{number}"));
    keys.into_iter().find(|key| partition_of(key.as_bytes(), PARTITIONS) != 0).expect("most keys move")
}

impl Nodes {
    /// The partition of the key by the new mapping.
    fn moved() -> u32 {
        partition_of(key().as_bytes(), PARTITIONS)
    }

    async fn until_entry(&self, is_so: impl Fn(&serde_json::Value) -> bool) {
        until(|| self.world.catalogue.value("topics/orders").is_some_and(|entry| is_so(&entry))).await;
    }

    async fn until_growing(&self) {
        self.until_entry(|entry| entry.get("growing").is_some()).await;
    }

    /// Creates a topic that the log cannot open.
    async fn create_unavailable(&self, name: &str) {
        self.world.log.set_unavailable(name, true);
        self.first.api.put(&format!("/v1/topics/{name}"), json!({})).await.problem(503, "unavailable");
    }
}

async fn until_known(node: &ClusterNode, name: &str) {
    until(|| node.api.registry.get(name).is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn a_growth_is_confirmed_by_every_node_and_then_used_by_every_node() {
    let nodes = two_nodes().await;
    publish(&nodes.second, "old").await.ok(201);
    let grown = soon(grow(&nodes.first)).await.ok(200);
    assert_eq!(grown["growths"][0]["barriers"], json!([1]));
    for node in [&nodes.first, &nodes.second] {
        assert_eq!(soon(publish(node, "new")).await.ok(201)["partition"], Nodes::moved());
    }
    until(|| nodes.cluster.snapshot(0).now_or_never().unwrap().unwrap().owners.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_growth_waits_for_a_node_that_has_not_seen_it() {
    let nodes = two_nodes().await;
    publish(&nodes.second, "first").await.ok(201);
    nodes.second.catalogue.set_stale(true);
    let mut growth = pin!(grow(&nodes.first));
    pending_until(growth.as_mut(), nodes.until_growing()).await;
    assert_eq!(publish(&nodes.second, "by the old mapping").await.ok(201)["partition"], 0);
    assert!(futures_util::poll!(growth.as_mut()).is_pending());
    nodes.second.catalogue.set_stale(false);
    let grown = soon(growth).await.ok(200);
    assert_eq!(grown["growths"][0]["barriers"], json!([2]), "all messages of the stale node lie below the barrier");
    assert_eq!(soon(publish(&nodes.second, "new")).await.ok(201)["partition"], Nodes::moved());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_confirms_makes_the_growth_roll_back() {
    let nodes = two_nodes().await;
    nodes.second.catalogue.set_stale(true);
    soon(grow(&nodes.first)).await.problem(503, "unavailable");
    let entry = nodes.world.catalogue.value("topics/orders").unwrap();
    assert_eq!((&entry["partitions"], entry.get("growing")), (&json!(1), None));
    for node in [&nodes.first, &nodes.second] {
        assert_eq!(publish(node, "x").await.ok(201)["partition"], 0, "the old mapping stays in use");
    }
    assert_eq!(nodes.world.log.partitions_of(nodes.first.api.registry.get("orders").unwrap().number()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_session_refuses_keys_and_is_not_waited_for() {
    let mut nodes = two_nodes().await;
    nodes.second.membership.lose();
    let refused = publish(&nodes.second, "x").await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.problem(503, "no_session");
    nodes.second.api.post("/v1/topics/orders/messages", "without a key").await.ok(201);
    nodes.second.api.post("/v1/topics/orders/messages?key=k&delay=1h", "held").await.ok(202);
    nodes.second.membership.expire();
    soon(grow(&nodes.first)).await.ok(200);
    nodes.second.catalogue.set_stale(true);
    publish(&nodes.second, "x").await.problem(503, "no_session");
    nodes.second.join_again();
    let placed = soon(publish(&nodes.second, "new")).await.ok(201);
    assert_eq!(placed["partition"], Nodes::moved(), "a new session reads the catalogue first");
}

#[tokio::test(start_paused = true)]
async fn readiness_warns_of_a_missing_session() {
    let mut nodes = two_nodes().await;
    assert_eq!(nodes.second.api.get("/readyz").await.ok(200), json!({ "ready": true }));
    nodes.second.membership.lose();
    let ready = nodes.second.api.get("/readyz").await.ok(200);
    assert!(ready["warnings"][0].as_str().is_some_and(|warning| warning.contains("no_session")), "{ready}");
    nodes.second.join_again();
    soon(publish(&nodes.second, "x")).await.ok(201);
    assert_eq!(nodes.second.api.get("/readyz").await.ok(200), json!({ "ready": true }));
}

#[tokio::test(start_paused = true)]
async fn an_append_whose_session_ended_meanwhile_is_not_acknowledged() {
    for id in ["", "&id=mine"] {
        let nodes = two_nodes().await;
        let uri = format!("/v1/topics/orders/messages?key=k{id}");
        let mut late = pin!(nodes.second.api.post(&uri, "late"));
        nodes.world.log.hold_up_append_of(late.as_mut()).await;
        nodes.second.membership.lose();
        nodes.world.log.hold_up(false);
        late.await.problem(504, "outcome_unknown");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_does_not_acknowledge_a_message_behind_the_barrier() {
    let nodes = two_nodes().await;
    publish(&nodes.first, "first").await.ok(201);
    let uri = format!("/v1/topics/orders/messages?key={}&id=mine", key());
    let mut late = pin!(nodes.second.api.post(&uri, "late"));
    nodes.world.log.hold_up_append_of(late.as_mut()).await;
    nodes.second.membership.expire();
    soon(grow(&nodes.first)).await.ok(200);
    nodes.world.log.hold_up(false);
    late.await.problem(504, "outcome_unknown");
    nodes.world.receipts.lapse_all();
    for _ in 0..2 {
        let repeated = soon(nodes.first.api.post(&uri, "late")).await.problem(504, "outcome_unknown");
        assert!(repeated["detail"].as_str().unwrap().contains("offset 1"), "{repeated}");
    }
    let written: usize = nodes.first.api.payloads("orders").await.iter().map(Vec::len).sum();
    assert_eq!(written, 2, "nothing is written twice");
}

#[tokio::test(start_paused = true)]
async fn a_repeat_after_a_growth_gets_the_answer_from_before() {
    let nodes = two_nodes().await;
    let uri = format!("/v1/topics/orders/messages?key={}&id=mine", key());
    let first = nodes.first.api.post(&uri, "x").await.ok(201);
    soon(grow(&nodes.first)).await.ok(200);
    let repeated = soon(nodes.second.api.post(&uri, "x")).await.ok(201);
    assert_eq!((&repeated["partition"], &repeated["offset"]), (&first["partition"], &first["offset"]));
}

#[tokio::test(start_paused = true)]
async fn another_node_finishes_what_a_dead_one_began() {
    let nodes = two_nodes().await;
    publish(&nodes.first, "old").await.ok(201);
    nodes.second.catalogue.set_stale(true);
    pending_until(pin!(grow(&nodes.first)), nodes.until_growing()).await;
    nodes.first.api.settings.shutdown.cancel();
    nodes.first.membership.expire();
    nodes.second.catalogue.set_stale(false);
    nodes.until_entry(|entry| entry["partitions"] == PARTITIONS).await;
    assert_eq!(soon(publish(&nodes.second, "new")).await.ok(201)["partition"], Nodes::moved());
}

#[tokio::test(start_paused = true)]
async fn a_gate_stays_closed_while_the_outcome_of_the_write_is_unknown() {
    let nodes = two_nodes().await;
    publish(&nodes.first, "old").await.ok(201);
    nodes.second.catalogue.set_stale(true);
    let mut growth = pin!(grow(&nodes.first));
    pending_until(growth.as_mut(), nodes.until_growing()).await;
    // The write of the new mapping, which follows the second node's confirmation, has an unknown outcome here.
    nodes.first.catalogue.lose_next_answer();
    nodes.second.catalogue.set_stale(false);
    pending_until(growth.as_mut(), nodes.until_entry(|entry| entry["partitions"] == PARTITIONS)).await;
    assert!(nodes.first.catalogue.has_lost_the_answer());
    publish(&nodes.first, "by which mapping?").await.problem(503, "topic_growing");
    assert_eq!(soon(publish(&nodes.second, "new")).await.ok(201)["partition"], Nodes::moved());
    nodes.first.catalogue.set_away(false);
    soon(growth).await.ok(200);
    assert_eq!(soon(publish(&nodes.first, "new")).await.ok(201)["partition"], Nodes::moved());
}

#[tokio::test(start_paused = true)]
async fn partitions_that_others_added_are_used_after_all_nodes_agreed() {
    let nodes = two_nodes().await;
    publish(&nodes.first, "old").await.ok(201);
    let number = nodes.first.api.registry.get("orders").unwrap().number();
    nodes.world.log.add_partitions(number, PARTITIONS as usize);
    let third = ClusterNode::open(&nodes.world, &nodes.cluster, 0).await;
    nodes.until_entry(|entry| entry["partitions"] == PARTITIONS).await;
    for node in [&nodes.first, &nodes.second, &third] {
        assert_eq!(soon(publish(node, "new")).await.ok(201)["partition"], Nodes::moved());
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_alone_waits_too_for_the_outcome_of_its_write() {
    let node = ClusterNode::open_alone(&World::new()).await;
    node.api.put("/v1/topics/orders", json!({ "partitions": 1 })).await.ok(201);
    publish(&node, "old").await.ok(201);
    node.catalogue.lose_next_answer();
    grow(&node).await.problem(503, "unavailable");
    publish(&node, "by which mapping?").await.problem(503, "topic_growing");
    node.api.post("/v1/topics/orders/messages", "without a key").await.ok(201);
    node.catalogue.set_away(false);
    assert_eq!(soon(publish(&node, "new")).await.ok(201)["partition"], Nodes::moved());
}

#[tokio::test(start_paused = true)]
async fn a_reader_waits_until_its_node_has_read_the_catalogue_under_its_session() {
    let mut nodes = two_nodes().await;
    publish(&nodes.first, "old").await.ok(201);
    let number = nodes.first.api.registry.get("orders").unwrap().number();
    let registry = Arc::clone(&nodes.second.api.registry);
    soon(registry.wait_for_barriers(number)).await;
    nodes.second.catalogue.set_stale(true);
    nodes.second.membership.expire();
    soon(grow(&nodes.first)).await.ok(200);
    nodes.second.catalogue.set_away(true);
    nodes.second.join_again();
    let mut reader = pin!(registry.wait_for_barriers(number));
    let waits = tokio::time::timeout(Duration::from_secs(1), reader.as_mut()).await;
    assert!(waits.is_err(), "the node does not know the barriers");
    nodes.second.catalogue.set_away(false);
    soon(reader).await;
    assert_eq!(registry.get("orders").unwrap().stored.growths.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_the_log_cannot_open_does_not_stop_the_others() {
    let mut nodes = two_nodes().await;
    for name in ["a1", "a2", "a3"] {
        nodes.create_unavailable(name).await;
    }
    nodes.first.api.put("/v1/topics/z", json!({ "partitions": 1 })).await.ok(201);
    until_known(&nodes.second, "z").await;
    nodes.second.membership.expire();
    nodes.second.join_again();
    assert_eq!(soon(publish(&nodes.second, "new")).await.ok(201)["partition"], 0, "the new session gives a lease");
    nodes.world.log.set_unavailable("a2", false);
    until_known(&nodes.second, "a2").await;
}

#[tokio::test(start_paused = true)]
async fn a_grown_topic_that_the_log_cannot_open_is_not_published_to_by_its_old_mapping() {
    let mut nodes = two_nodes().await;
    nodes.second.membership.expire();
    nodes.second.catalogue.set_stale(true);
    soon(grow(&nodes.first)).await.ok(200);
    nodes.world.log.set_unavailable("orders", true);
    nodes.second.join_again();
    soon(nodes.second.api.post("/v1/topics/ready/messages?key=k", "x")).await.ok(201);
    publish(&nodes.second, "by the old mapping").await.problem(503, "topic_growing");
    nodes.world.log.set_unavailable("orders", false);
    nodes.second.catalogue.set_stale(false);
    until(|| nodes.second.api.registry.get("orders").is_none_or(|topic| topic.partitions() == PARTITIONS)).await;
    assert_eq!(soon(publish(&nodes.second, "new")).await.ok(201)["partition"], Nodes::moved());
}

#[tokio::test(start_paused = true)]
async fn many_topics_that_the_log_cannot_open_are_tried_in_turn_and_stop_no_others() {
    let nodes = two_nodes().await;
    let failing = ["a1", "a2", "a3", "a4", "a5"];
    for name in failing {
        nodes.create_unavailable(name).await;
    }
    nodes.first.api.put("/v1/topics/z", json!({ "partitions": 1 })).await.ok(201);
    until_known(&nodes.second, "z").await;
    for name in failing.into_iter().rev() {
        nodes.world.log.set_unavailable(name, false);
        until_known(&nodes.second, name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn topics_that_the_log_opens_slowly_do_not_delay_the_lease() {
    let mut nodes = two_nodes().await;
    for name in ["a1", "a2"] {
        nodes.create_unavailable(name).await;
        nodes.world.log.set_hanging(name, Some(Hanging::All));
    }
    nodes.second.membership.expire();
    nodes.second.join_again();
    assert_eq!(publish(&nodes.second, "new").await.ok(201)["partition"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_log_does_not_delay_the_lease() {
    let mut nodes = two_nodes().await;
    nodes.world.log.set_hanging("slow", Some(Hanging::All));
    let registry = Arc::clone(&nodes.second.api.registry);
    let made = tokio::spawn(async move { registry.put("slow", TopicChange::default()).await.map(drop) });
    soon(nodes.world.log.until_call_hangs()).await;
    nodes.second.membership.expire();
    soon(grow(&nodes.first)).await.ok(200);
    nodes.second.join_again();
    nodes.second.api.post("/v1/topics/ready/messages?key=k", "x").await.ok(201);
    let mut placed = pin!(publish(&nodes.second, "new"));
    assert!(futures_util::poll!(placed.as_mut()).is_pending(), "the node does not know the new mapping yet");
    nodes.world.log.set_hanging("slow", None);
    assert_eq!(soon(placed).await.ok(201)["partition"], Nodes::moved());
    soon(made).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_change_that_waited_for_the_log_does_not_bring_an_old_mapping_back() {
    let mut nodes = two_nodes().await;
    // It never confirms, so the growth below stays in its first phase.
    let third = ClusterNode::open(&nodes.world, &nodes.cluster, 0).await;
    third.api.post("/v1/topics/ready/messages?key=k", "x").await.ok(201);
    third.catalogue.set_stale(true);
    nodes.second.catalogue.set_stale(true);
    nodes.first.api.put("/v1/topics/orders", json!({ "retention": "1d" })).await.ok(200);
    nodes.world.log.set_hanging("orders", Some(Hanging::All));
    nodes.second.catalogue.set_stale(false);
    // The second node applies the entry from before the growth.
    soon(nodes.world.log.until_call_hangs()).await;
    nodes.second.membership.expire();
    pending_until(pin!(grow(&nodes.first)), nodes.until_growing()).await;
    nodes.second.catalogue.set_stale(true);
    nodes.second.join_again();
    nodes.second.api.post("/v1/topics/ready/messages?key=k", "x").await.ok(201);
    let mut late = pin!(publish(&nodes.second, "by the old mapping"));
    assert!(futures_util::poll!(late.as_mut()).is_pending(), "the topic grows");
    nodes.world.log.set_hanging("orders", None);
    late.await.problem(503, "topic_growing");
}

#[tokio::test(start_paused = true)]
async fn a_growth_that_the_log_does_not_answer_delays_no_other_growth() {
    let nodes = two_nodes().await;
    nodes.first.api.put("/v1/topics/slow", json!({ "partitions": 1 })).await.ok(201);
    until_known(&nodes.second, "slow").await;
    nodes.world.log.set_hanging("slow", Some(Hanging::Alterations));
    let mut slow = pin!(nodes.first.api.put("/v1/topics/slow", json!({ "partitions": PARTITIONS })));
    pending_until(slow.as_mut(), nodes.world.log.until_call_hangs()).await;
    let began = tokio::time::Instant::now();
    soon(grow(&nodes.second)).await.ok(200);
    assert!(began.elapsed() < Duration::from_secs(2), "the first node confirms: {:?}", began.elapsed());
    nodes.world.log.set_hanging("slow", None);
    soon(slow).await.ok(200);
}
