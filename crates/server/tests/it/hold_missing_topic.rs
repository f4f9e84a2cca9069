//! Another application deletes a topic on Kafka while holds for it and for another topic are due in the same shard.

use std::time::Duration;

use futures_util::future::join_all;
use whimbrel_client::{Client, Extension, HoldInfo, NewMessage, TopicSettings};
use whimbrel_model::Timestamp;

use super::hold_answer::millis_of;
use super::hold_work::now_ms;
use super::kafka_cluster::KafkaCluster;
use super::server::{Server, converse, eventually, read_all, set};
use super::services::skip;

/// Holds for each of the two topics.
const HOLDS: usize = 60;
/// The deleted topic has several partitions. The server must find all of them missing at once, not one after the other.
const PARTITIONS: u32 = 12;
/// After the deletion of the topic, the test moves the holds so that they come due spread over this time.
const DUE_AFTER_MS: i64 = 3_000;
const SPREAD_MS: i64 = 4_000;
/// A partition counts as missing after it was unknown for 1 s. The rest is a margin for a busy machine. One timeout per hold would take
/// minutes.
const LATE_MS_MAX: i64 = 10_000;

#[test]
fn a_topic_that_another_application_deletes_delays_no_other_hold_and_its_holds_become_dead_letters() {
    if skip(&["WHIMBREL_TEST_KAFKA_LIBS"]) {
        return;
    }
    let (kafka, folder) = (KafkaCluster::single(), tempfile::tempdir().unwrap());
    let mut settings = kafka.settings();
    settings.push("holds.shards=1".to_owned());
    let server = Server::start(folder.path(), &set(&settings));
    let client = server.client();
    for (topic, partitions) in [("deleted", PARTITIONS), ("kept", 1)] {
        let settings = TopicSettings { partitions: Some(partitions), ..TopicSettings::default() };
        converse(client.put_topic(topic, &settings)).unwrap();
    }
    let all = || (0..HOLDS).flat_map(|number| ["deleted", "kept"].map(|topic| (topic, number)));
    let held = all().map(|(topic, number)| {
        let message = NewMessage::text("x").key(format!("key-{number}")).id(id_of(topic, number)).delay("1h");
        let client = &client;
        async move { client.hold(topic, &message).await.unwrap() }
    });
    converse(async { join_all(held).await });
    kafka.delete_topic("deleted");
    let from_ms = now_ms() + DUE_AFTER_MS;
    let moved = all().map(|(topic, number)| {
        let due = Timestamp::from_millis(from_ms + number as i64 * SPREAD_MS / HOLDS as i64);
        let client = &client;
        async move { client.extend(&id_of(topic, number), &Extension::until(due.to_string())).await.unwrap() }
    });
    converse(async { join_all(moved).await });

    wait_until_all(&client, "kept", "fired");
    for hold in look(&client, "kept") {
        let late_ms = millis_of(hold.fired_at.as_deref().unwrap()) - millis_of(&hold.due);
        assert!((0..LATE_MS_MAX).contains(&late_ms), "{} fired {late_ms} ms after its due time", hold.id);
    }
    wait_until_all(&client, "deleted", "dead");
    for hold in look(&client, "deleted") {
        let reason = hold.reason.as_deref().unwrap();
        assert_eq!(reason, "the log has no topic `deleted`: it was deleted outside Whimbrel", "{}", hold.id);
    }
    eventually("the event topic_missing", || {
        let events = converse(read_all(&client, "_events", 0, 0)).0;
        let mut texts = events.iter().map(|event| String::from_utf8(event.bytes().unwrap()).unwrap());
        texts.any(|text| text.contains("\"topic_missing\"") && text.contains("`deleted`"))
    });
}

fn id_of(topic: &str, number: usize) -> String {
    format!("{topic}-{number}")
}

fn look(client: &Client, topic: &str) -> Vec<HoldInfo> {
    let looks = (0..HOLDS).map(|number| async move { client.look(&id_of(topic, number)).await.unwrap() });
    converse(async { join_all(looks).await })
}

fn wait_until_all(client: &Client, topic: &str, state: &str) {
    eventually(&format!("all holds of `{topic}` are {state}"), || {
        std::thread::sleep(Duration::from_millis(100));
        look(client, topic).iter().all(|hold| hold.state == state)
    });
}
