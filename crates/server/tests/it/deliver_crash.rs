//! The crash test of deliveries: SIGKILL stops the real binary at random moments while it delivers, and it restarts. No message is lost,
//! keys keep their order among first successes, and only messages delivered shortly before a kill are delivered again.
//!
//! One seed, which is printed, determines the random choices. `WHIMBREL_DELIVER_SEED` replays it; `WHIMBREL_DELIVER_KILLS` sets the kills.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;
use whimbrel_client::{NewMessage, SubscriptionSettings, TopicSettings};

use super::deliver::retrying;
use super::deliver_legacy_apis::post;
use super::hold_crash::number;
use super::kafka_cluster::kafka_with_redis;
use super::random::Random;
use super::receiver::{Got, Receiver, Reply, reply};
use super::server::{Server, converse, eventually, set};

const KILLS_DEFAULT: u64 = 5;
/// Messages published before each kill.
const MESSAGES_PER_KILL: usize = 600;
const KEYS: usize = 12;
const RUN_MS_MIN: u64 = 300;
const RUN_MS_MAX: u64 = 2500;
/// Progress is saved every 1 s; the rest is for a busy machine.
const AGAIN_WITHIN: Duration = Duration::from_secs(4);

#[test]
fn deliveries_survive_kills() {
    kill_at_random("embedded", &[]);
}

#[test]
fn deliveries_on_kafka_with_redis_survive_kills() {
    let Some((_kafka, _redis, settings)) = kafka_with_redis() else { return };
    kill_at_random("Kafka with Redis", &settings);
}

#[test]
fn a_normal_shutdown_causes_no_duplicates() {
    let receiver = Receiver::answering(|_| Reply { after: Duration::from_millis(2), ..reply(200) });
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &[]);
    for (name, ordering) in [("by-key", "key"), ("unordered", "none")] {
        let subscription = SubscriptionSettings {
            ordering: Some(ordering.into()),
            ..SubscriptionSettings::push([name], receiver.url(&format!("/{name}")))
        };
        converse(server.client().put_subscription(name, &subscription)).unwrap();
    }
    let mut published = 0;
    for _ in 0..3 {
        publish(&server, &mut published);
        let enough = receiver.count() + MESSAGES_PER_KILL / 3;
        receiver.wait_for(enough);
        assert!(server.end().success());
        server = Server::start(folder.path(), &[]);
    }
    receiver.wait_for(2 * published);
    for name in ["by-key", "unordered"] {
        eventually(&format!("{name} to deliver everything"), || {
            converse(server.client().subscription(name)).unwrap().status.lag == Some(0)
        });
    }
    assert_eq!(receiver.count(), 2 * published);
}

#[test]
fn an_answered_redrive_is_not_repeated_after_a_kill() {
    let receiver = Receiver::answering(|_| reply(422));
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let settings = retrying(SubscriptionSettings::push(["dying"], receiver.url("/")), 0, "1s");
    converse(server.client().put_subscription("dying", &settings)).unwrap();
    let messages: Vec<NewMessage> = (0..20).map(|number| NewMessage::text(number.to_string())).collect();
    converse(server.client().publish_batch("dying", &messages)).unwrap();
    let letters = |server: &Server| converse(server.client().dead_letters("dying", None, None)).unwrap().dead_letters;
    eventually("all to be dead letters", || letters(&server).len() == messages.len());
    receiver.answer_with(|_| reply(200));
    assert_eq!(converse(server.client().redrive("dying", None)).unwrap().redriven, 20);
    server.kill();
    let server = Server::start(folder.path(), &[]);
    assert!(letters(&server).is_empty(), "the dead letters are gone");
    assert_eq!(converse(server.client().redrive("dying", None)).unwrap().redriven, 0);
}

#[test]
fn the_retry_interval_of_a_message_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let start = || Server::start(folder.path(), &["--set", "subscriptions.save_interval=50ms"]);
    let server = start();
    let receiver = Receiver::answering(|_| reply(500));
    let settings = SubscriptionSettings::push(["send_mail"], receiver.url("/"));
    let settings = SubscriptionSettings { ordering: Some("partition".to_owned()), ..retrying(settings, 50, "1s") };
    converse(server.client().put_subscription("mails", &settings)).unwrap();
    let task = json!({
        "taskId": "task-1", "functionName": "send_mail", "params": {}, "retryCount": 3, "retryInterval": 604_800,
        "delayTime": 0, "executeTimeout": 3, "nonceStr": "n-1",
    });
    let answer = post(&server, "/dq/acceptMsg", &task);
    assert_eq!(answer["code"], "0", "{answer}");
    let planned = next_try(&server, "mails");
    assert!(server.end().success());
    let server = start();
    assert_eq!(next_try(&server, "mails"), planned, "its own interval is 7 days");
    assert_eq!(receiver.count(), 1);
}

/// The time of the next retry of the subscription's failed message.
fn next_try(server: &Server, subscription: &str) -> String {
    let client = server.client();
    let mut shown = None;
    eventually("a retry is planned", || {
        shown = converse(client.subscription(subscription)).unwrap().status.next_try;
        shown.is_some()
    });
    shown.unwrap()
}

fn kill_at_random(engines: &str, settings: &[String]) {
    let kills = number("WHIMBREL_DELIVER_KILLS", KILLS_DEFAULT);
    let seed = number("WHIMBREL_DELIVER_SEED", u64::from(std::process::id()));
    println!("{engines}: seed {seed}, {kills} kills");
    let mut random = Random(seed);
    // One of ten callbacks fails now and then, so that retries are in progress at every moment.
    let receiver = Receiver::answering(|got| {
        let is_unlucky = got.attempt() == 1 && got.body.len() % 3 == 0 && got.text().ends_with('7');
        Reply { after: Duration::from_millis(2), ..reply(if is_unlucky { 500 } else { 200 }) }
    });
    let folder = tempfile::tempdir().unwrap();
    let arguments = set(settings);
    let mut server = Server::start(folder.path(), &arguments);
    for (name, ordering) in [("by-key", "key"), ("unordered", "none")] {
        let topic = TopicSettings { partitions: Some(3), ..TopicSettings::default() };
        converse(server.client().put_topic(name, &topic)).unwrap();
        let subscription = SubscriptionSettings {
            ordering: Some(ordering.into()),
            ..SubscriptionSettings::push([name], receiver.url(&format!("/{name}")))
        };
        converse(server.client().put_subscription(name, &retrying(subscription, 1000, "100ms"))).unwrap();
    }
    let (mut published, mut killed) = (0, Vec::new());
    for _ in 0..kills {
        publish(&server, &mut published);
        std::thread::sleep(Duration::from_millis(RUN_MS_MIN + random.below(RUN_MS_MAX - RUN_MS_MIN)));
        server.kill();
        killed.push(Instant::now());
        server = Server::start(folder.path(), &arguments);
    }
    publish(&server, &mut published);
    for name in ["by-key", "unordered"] {
        eventually(&format!("{name} to deliver everything"), || {
            let shown = converse(server.client().subscription(name)).unwrap();
            shown.status.lag == Some(0) && shown.status.in_flight == Some(0)
        });
        let got: Vec<Got> = receiver.all().into_iter().filter(|one| one.path == format!("/{name}")).collect();
        judge(name, &got, published, &killed);
    }
}

fn publish(server: &Server, published: &mut usize) {
    for topic in ["by-key", "unordered"] {
        let numbers = *published..*published + MESSAGES_PER_KILL;
        let messages: Vec<NewMessage> =
            numbers.map(|number| NewMessage::text(number.to_string()).key(format!("k{}", number % KEYS))).collect();
        converse(server.client().publish_batch(topic, &messages)).unwrap();
    }
    *published += MESSAGES_PER_KILL;
}

fn judge(name: &str, got: &[Got], published: usize, killed: &[Instant]) {
    let mut last_came: HashMap<usize, (Instant, u32)> = HashMap::new();
    let mut by_key: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut again = 0;
    for one in got {
        let number: usize = one.text().parse().unwrap();
        let fails = one.attempt() == 1 && one.body.len() % 3 == 0 && one.text().ends_with('7');
        if fails {
            continue;
        }
        match last_came.insert(number, (one.at, one.attempt())) {
            Some((before, _)) => {
                again += 1;
                let is_of_a_kill =
                    killed.iter().any(|kill| before <= *kill && *kill <= one.at && *kill - before < AGAIN_WITHIN);
                assert!(is_of_a_kill, "{name}: {number} was delivered again, {:?} after its delivery", one.at - before);
            }
            None => by_key.entry(one.key()).or_default().push(number),
        }
    }
    let missing: Vec<usize> = (0..published).filter(|number| !last_came.contains_key(number)).collect();
    assert!(missing.is_empty(), "{name}: {missing:?} were never delivered");
    if name == "by-key" {
        for (key, numbers) in by_key {
            assert!(numbers.is_sorted(), "{key} was delivered out of order: {numbers:?}");
        }
    }
    println!("{name}: {published} published, {again} delivered again after {} kills", killed.len());
}
