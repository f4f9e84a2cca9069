//! Several nodes on Kafka, Redis and etcd: roles on separate nodes deliver together, and another node takes over the deliveries of a node
//! that stands still or dies.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_client::{Client, NewMessage, SubscriptionSettings, TopicSettings};

use super::deliver::retrying;
use super::hold_nodes::Shared;
use super::receiver::{Receiver, Reply, reply};
use super::server::{converse, eventually};

/// Enough that each of two nodes owns some.
const SUBSCRIPTIONS: usize = 6;
const KEYS: usize = 5;
const MESSAGES: usize = 100;

fn make(client: &Client, topic: &str, partitions: u32) {
    let settings = TopicSettings { partitions: Some(partitions), ..TopicSettings::default() };
    converse(client.put_topic(topic, &settings)).unwrap();
}

fn publish(client: &Client, topic: &str, numbers: std::ops::Range<usize>) {
    let messages: Vec<NewMessage> =
        numbers.map(|number| NewMessage::text(number.to_string()).key(format!("k{}", number % KEYS))).collect();
    converse(client.publish_batch(topic, &messages)).unwrap();
}

/// The deliveries at a path: every number, and the numbers of each key in the order of their first delivery.
fn came(receiver: &Receiver, path: &str) -> HashMap<String, Vec<usize>> {
    let mut by_key: HashMap<String, Vec<usize>> = HashMap::new();
    for one in receiver.all().iter().filter(|one| one.path == path) {
        let numbers = by_key.entry(one.key().to_owned()).or_default();
        let number = one.text().parse().unwrap();
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    by_key
}

#[test]
fn roles_on_separate_nodes_deliver_together() {
    let Some(shared) = Shared::start() else { return };
    let node =
        |index: usize, role: &str| shared.node(index, &[format!("roles={role}"), format!("name={role}-{index}")]);
    let door = node(0, "receive");
    let _center = node(1, "center");
    let worker = node(2, "worker");
    let client = door.client();
    let receiver = Receiver::willing();
    make(&client, "apart", 2);
    let settings = SubscriptionSettings::push(["apart"], receiver.url("/"));
    converse(client.put_subscription("apart", &retrying(settings, 1000, "100ms"))).unwrap();
    publish(&client, "apart", 0..MESSAGES);
    receiver.wait_for(MESSAGES);
    worker.kill();
    publish(&client, "apart", MESSAGES..2 * MESSAGES);
    let _other = node(3, "worker");
    eventually("all deliveries through the other worker", || {
        came(&receiver, "/").values().map(Vec::len).sum::<usize>() == 2 * MESSAGES
    });
    for (key, numbers) in came(&receiver, "/") {
        assert!(numbers.is_sorted(), "{key} was delivered out of order: {numbers:?}");
    }
    let figures = converse(client.topic_figures("apart", None, None)).unwrap();
    let published: u64 = figures.minutes.iter().map(|minute| minute.published).sum();
    assert_eq!(published, 2 * MESSAGES as u64, "{figures:?}");
}

#[test]
fn another_node_takes_over_when_a_node_stands_still_or_dies() {
    let Some(shared) = Shared::start() else { return };
    let [first, second] = [0, 1].map(|index| shared.node(index, &[]));
    let client = first.client();
    let receiver = Receiver::answering(|_| Reply { after: Duration::from_millis(5), ..reply(200) });
    make(&client, "shared", 3);
    let name = |number: usize| format!("shared-{number}");
    for number in 0..SUBSCRIPTIONS {
        let settings = SubscriptionSettings::push(["shared"], receiver.url(&format!("/{}", name(number))));
        converse(client.put_subscription(&name(number), &retrying(settings, 1000, "100ms"))).unwrap();
    }
    publish(&client, "shared", 0..MESSAGES);
    second.freeze();
    publish(&client, "shared", MESSAGES..2 * MESSAGES);
    let has_all = |count: usize| {
        (0..SUBSCRIPTIONS)
            .all(|number| came(&receiver, &format!("/{}", name(number))).values().map(Vec::len).sum::<usize>() == count)
    };
    eventually("the other to deliver everything", || has_all(2 * MESSAGES));
    second.go_on();
    publish(&client, "shared", 2 * MESSAGES..3 * MESSAGES);
    eventually("both to deliver everything", || has_all(3 * MESSAGES));
    second.kill();
    publish(&client, "shared", 3 * MESSAGES..4 * MESSAGES);
    eventually("the last node to deliver everything", || has_all(4 * MESSAGES));
    for number in 0..SUBSCRIPTIONS {
        for (key, numbers) in came(&receiver, &format!("/{}", name(number))) {
            assert!(numbers.is_sorted(), "{}: {key} was delivered out of order: {numbers:?}", name(number));
        }
    }
}
