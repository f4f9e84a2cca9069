//! Two nodes on Kafka, Redis and etcd grow a topic that both publish to, while one of them is paused and resumed. Readers that respect
//! the barriers must find the acknowledged messages of a key in their order, and subscriptions must deliver them in that order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use whimbrel_client::{Accepted, Client, GrowthInfo, NewMessage, SubscriptionSettings, TopicInfo, TopicSettings};
use whimbrel_model::partitioner::partition_of;

use super::deliver::retrying;
use super::hold_nodes::Shared;
use super::receiver::Receiver;
use super::server::{Server, converse, eventually, may_pass};

const TOPIC: &str = "grown";
const KEYS: usize = 6;
/// Timeout of a publisher for a node that may be paused.
const ANSWER_WAIT: Duration = Duration::from_secs(4);
/// Pauses that are shorter and longer than a session.
const STANDSTILLS: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(3500)];

/// An acknowledged message of a key.
#[derive(Debug, Clone, Copy)]
struct Place {
    number: usize,
    partition: u32,
    offset: u64,
}

fn key_of(key: usize) -> String {
    format!("key-{key}")
}

/// Publishes the messages of one key in sequence, through both nodes in turn, until it is stopped. Returns the acknowledged messages.
async fn publish_in_order(clients: Vec<Client>, key: usize, ends: Arc<AtomicBool>) -> Vec<Place> {
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        let message = NewMessage::text(number.to_string()).key(key_of(key));
        match clients[(number + key) % clients.len()].publish(TOPIC, &message).await {
            Ok(Accepted::Published(at)) => {
                acknowledged.push(Place { number, partition: at.partition, offset: at.offset })
            }
            Ok(other) => panic!("{other:?}"),
            // The outcome may be unknown: the publisher continues with the next message.
            Err(error) => assert!(may_pass(&error) || error.code() == Some("outcome_unknown"), "{error}"),
        }
        number += 1;
    }
    acknowledged
}

/// Compares the acknowledged messages of a key with the barriers.
fn check_order(key: usize, places: &[Place], topic: &TopicInfo, first: u32) {
    let growths = &topic.growths;
    let end_of = |growth: &GrowthInfo, partition: u32| growth.barriers.get(partition as usize).copied();
    let mut last = (0, 0);
    for place in places {
        let is_behind = |growth: &&GrowthInfo| end_of(growth, place.partition).is_none_or(|end| place.offset >= end);
        let passed = growths.iter().filter(is_behind).count();
        let count = passed.checked_sub(1).map_or(first, |at| growths[at].to);
        let wanted = partition_of(key_of(key).as_bytes(), count);
        assert_eq!(place.partition, wanted, "{place:?} of key {key} follows {passed} growths: {growths:?}");
        let now = (passed, place.offset + 1);
        assert!(now > last, "{place:?} of key {key} is out of order");
        last = now;
    }
}

fn grow(node: &Server, to: u32) -> TopicInfo {
    let settings = TopicSettings { partitions: Some(to), ..TopicSettings::default() };
    converse(node.client().put_topic(TOPIC, &settings)).unwrap()
}

#[test]
fn keys_keep_their_order_while_a_topic_grows_and_a_node_stands_still() {
    let Some(shared) = Shared::start() else { return };
    let nodes = [0, 1].map(|node| shared.node(node, &[format!("name=grows-{node}")]));
    grow(&nodes[0], 1);
    let receiver = Receiver::willing();
    let settings = SubscriptionSettings::push([TOPIC], receiver.url("/"));
    converse(nodes[0].client().put_subscription(TOPIC, &retrying(settings, 1000, "100ms"))).unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let publishers: Vec<_> = (0..KEYS)
        .map(|key| {
            let clients = nodes.iter().map(|node| node.client().with_answer_wait(ANSWER_WAIT)).collect();
            runtime.spawn(publish_in_order(clients, key, Arc::clone(&ends)))
        })
        .collect();
    let mut partitions = 1;
    for standstill in STANDSTILLS {
        for growing in [0, 1] {
            partitions += 2;
            let other = &nodes[1 - growing];
            std::thread::scope(|scope| {
                other.freeze();
                let growth = scope.spawn(|| grow(&nodes[growing], partitions));
                std::thread::sleep(standstill);
                other.go_on();
                assert_eq!(growth.join().unwrap().partitions, partitions);
            });
            eventually("the other node to apply the growth", || {
                converse(other.client().topic(TOPIC)).is_ok_and(|topic| topic.partitions == partitions)
            });
        }
    }
    ends.store(true, Ordering::Relaxed);
    let acknowledged: Vec<Vec<Place>> =
        publishers.into_iter().map(|publisher| runtime.block_on(publisher).unwrap()).collect();

    let topic = converse(nodes[0].client().topic(TOPIC)).unwrap();
    assert_eq!(topic.growths.len(), 2 * STANDSTILLS.len());
    for (key, places) in acknowledged.iter().enumerate() {
        check_order(key, places, &topic, 1);
        println!("key {key}: {} acknowledged", places.len());
    }
    let delivered = |key: usize| -> Vec<usize> {
        let mut first_at: HashMap<usize, usize> = HashMap::new();
        let of_key = receiver.all().into_iter().filter(|one| one.key() == key_of(key));
        for (at, one) in of_key.enumerate() {
            first_at.entry(one.text().parse().unwrap()).or_insert(at);
        }
        let mut numbers: Vec<usize> =
            acknowledged[key].iter().map(|place| place.number).filter(|number| first_at.contains_key(number)).collect();
        numbers.sort_by_key(|number| first_at[number]);
        numbers
    };
    for (key, places) in acknowledged.iter().enumerate() {
        eventually("everything to be delivered", || delivered(key).len() == places.len());
        assert!(delivered(key).is_sorted(), "key {key} was delivered out of order: {:?}", delivered(key));
    }
}

#[test]
fn a_node_without_etcd_rejects_publishes_with_keys_and_accepts_others() {
    let Some(mut shared) = Shared::start() else { return };
    let node = shared.node(0, &[]);
    grow(&node, 2);
    let client = node.client();
    let by_key = || converse(client.publish(TOPIC, &NewMessage::text("x").key("k")));
    by_key().unwrap();
    shared.stop_etcd();
    eventually("publishes with keys to be rejected", || {
        by_key().is_err_and(|error| error.code() == Some("no_session"))
    });
    converse(client.publish(TOPIC, &NewMessage::text("x"))).unwrap();
    converse(client.hold(TOPIC, &NewMessage::text("x").key("k").delay("1h"))).unwrap();
    shared.start_etcd_again();
    eventually("publishes with keys to be accepted again", || by_key().is_ok());
}
