//! Failed deliveries, and changes to a subscription: pausing, seeking, replaying, redriving, deleting.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use whimbrel_client::{MinuteFigures, NewMessage, ReplayRange, SeekTo, SubscriptionSettings, TopicSettings};

use super::deliver::{A_WHILE, Site, retrying};
use super::receiver::{Got, Receiver, Reply, reply};
use super::server::{converse, eventually};

/// Fails this many callbacks, then none.
fn failing_first(times: usize, status: u16) -> impl Fn(&Got) -> Reply + Send + Sync {
    let failed = AtomicUsize::new(0);
    move |_| reply(if failed.fetch_add(1, Ordering::SeqCst) < times { status } else { 200 })
}

fn texts(got: &[Got]) -> Vec<String> {
    got.iter().map(|one| one.text().to_owned()).collect()
}

fn attempts(got: &[Got]) -> Vec<u32> {
    got.iter().map(Got::attempt).collect()
}

fn unordered(topic: &str, url: String) -> SubscriptionSettings {
    SubscriptionSettings { ordering: Some("none".into()), ..SubscriptionSettings::push([topic], url) }
}

pub fn a_retry_in_place_keeps_the_order_and_counts_attempts(site: &Site) {
    let receiver = Receiver::answering(failing_first(2, 500));
    site.topic("in-place", 1);
    let settings = SubscriptionSettings::push(["in-place"], receiver.url("/"));
    site.subscribe("in-place", &retrying(settings, 5, "20ms"));
    site.publish_numbers("in-place", 3, &["k"]);
    let got = receiver.wait_for(5);
    assert_eq!(texts(&got), ["0", "0", "0", "1", "2"]);
    assert_eq!(attempts(&got), [1, 2, 3, 1, 1]);
    assert_eq!(got[0].header("webhook-id"), got[2].header("webhook-id"));
    site.caught_up("in-place");
}

pub fn a_retry_without_order_delivers_the_same_message(site: &Site) {
    let receiver = Receiver::answering(failing_first(2, 500));
    site.topic("as-holds", 1);
    site.subscribe("as-holds", &retrying(unordered("as-holds", receiver.url("/")), 5, "50ms"));
    let place = site.publish("as-holds", &NewMessage::text("x").key("k").header("color", "blue"));
    let got = receiver.wait_for(3);
    assert_eq!(attempts(&got), [1, 2, 3]);
    for one in &got {
        assert_eq!((one.text(), one.key(), one.header("color")), ("x", "k", "blue"));
        assert_eq!((one.header("webhook-id"), one.header("whimbrel-topic")), (place.id.as_str(), "as-holds"));
        assert_eq!(one.header("whimbrel-offset"), place.offset.to_string());
        assert_eq!(one.header("whimbrel-origin"), "", "an internal field was delivered");
    }
    site.caught_up("as-holds");
}

pub fn retry_after_is_obeyed(site: &Site) {
    let first = AtomicUsize::new(0);
    let receiver = Receiver::answering(move |_| match first.fetch_add(1, Ordering::SeqCst) {
        0 => Reply { headers: vec![("retry-after", "1".to_owned())], ..reply(429) },
        _ => reply(200),
    });
    site.topic("later", 1);
    let settings = SubscriptionSettings::push(["later"], receiver.url("/"));
    site.subscribe("later", &retrying(settings, 5, "10ms"));
    site.publish("later", &NewMessage::text("x"));
    let got = receiver.wait_for(2);
    let waited = got[1].at - got[0].at;
    assert!(waited >= Duration::from_millis(950), "retried after {waited:?}");
}

pub fn a_dead_letter_has_its_reason_and_can_be_redriven(site: &Site) {
    site.topic("dead", 1);
    let receiver = Receiver::answering(|_| Reply { body: "no such order", ..reply(422) });
    let settings = SubscriptionSettings::push(["dead"], receiver.url("/"));
    redriven(site, "dead", &receiver, retrying(settings, 1, "20ms"));
}

pub fn a_dead_letter_of_an_unordered_subscription_can_be_redriven(site: &Site) {
    site.topic("dead-unordered", 1);
    let receiver = Receiver::answering(|_| Reply { body: "no such order", ..reply(422) });
    redriven(site, "dead-unordered", &receiver, retrying(unordered("dead-unordered", receiver.url("/")), 1, "20ms"));
}

fn redriven(site: &Site, name: &str, receiver: &Receiver, settings: SubscriptionSettings) {
    site.subscribe(name, &settings);
    let places: Vec<_> =
        (0..3).map(|number| site.publish(name, &NewMessage::text(number.to_string()).key("k"))).collect();
    let client = site.client();
    let letters = || converse(client.dead_letters(name, None, None)).unwrap().dead_letters;
    eventually("three dead letters", || letters().len() == 3);
    let letter = letters().into_iter().find(|letter| letter.id == places[0].id).unwrap();
    assert_eq!((letter.topic.as_str(), letter.partition, letter.offset), (name, 0, places[0].offset));
    assert_eq!((letter.attempts, letter.last_status, letter.key.as_deref()), (2, Some(422), Some("k")));
    assert!(letter.died_at.is_some() && !letter.reason.is_empty(), "{letter:?}");

    receiver.forget();
    receiver.answer_with(|_| reply(200));
    let told = converse(client.redrive(name, Some(&[places[1].id.clone(), "nobody".to_owned()]))).unwrap();
    assert_eq!((told.redriven, told.unknown), (1, vec!["nobody".to_owned()]));
    let got = receiver.wait_for(1).remove(0);
    assert_eq!((got.text(), got.attempt(), got.header("webhook-id")), ("1", 1, places[1].id.as_str()));
    assert_eq!(got.header("whimbrel-offset"), places[1].offset.to_string());
    eventually("two dead letters to be left", || letters().len() == 2);

    converse(client.redrive(name, None)).unwrap();
    let mut rest = texts(&receiver.wait_for(3)[1..]);
    rest.sort();
    assert_eq!(rest, ["0", "2"]);
    eventually("no dead letter to be left", || letters().is_empty());
    site.caught_up(name);
}

pub fn a_dropped_message_does_not_block_others(site: &Site) {
    let receiver = Receiver::answering(|got| reply(if got.text() == "1" { 500 } else { 200 }));
    site.topic("dropped", 1);
    let settings = SubscriptionSettings {
        on_exhausted: Some("drop".into()),
        ..SubscriptionSettings::push(["dropped"], receiver.url("/"))
    };
    site.subscribe("dropped", &retrying(settings, 1, "10ms"));
    site.publish_numbers("dropped", 3, &["k"]);
    site.caught_up("dropped");
    assert_eq!(texts(&receiver.all()), ["0", "1", "1", "2"]);
    assert!(converse(site.client().dead_letters("dropped", None, None)).unwrap().dead_letters.is_empty());
}

pub fn a_blocking_message_is_retried_until_it_succeeds(site: &Site) {
    let receiver = Receiver::answering(failing_first(4, 500));
    site.topic("blocked", 1);
    let settings = SubscriptionSettings {
        on_exhausted: Some("block".into()),
        blocked_sleep: Some("30ms".into()),
        ordering: Some("partition".into()),
        ..SubscriptionSettings::push(["blocked"], receiver.url("/"))
    };
    site.subscribe("blocked", &retrying(settings, 0, "10ms"));
    site.publish_numbers("blocked", 2, &["k"]);
    assert_eq!(texts(&receiver.wait_for(6)), ["0", "0", "0", "0", "0", "1"]);
    site.caught_up("blocked");
}

pub fn a_paused_subscription_delivers_after_it_is_resumed(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("paused", 2);
    site.subscribe("paused", &SubscriptionSettings::push(["paused"], receiver.url("/")));
    site.publish_numbers("paused", 5, &["a", "b"]);
    site.caught_up("paused");
    converse(site.client().pause("paused")).unwrap();
    assert_eq!(site.show("paused").state, "paused");
    site.publish_numbers("paused", 5, &["a", "b"]);
    std::thread::sleep(A_WHILE);
    assert_eq!(receiver.count(), 5, "a paused subscription was delivered");
    converse(site.client().resume("paused")).unwrap();
    site.caught_up("paused");
    assert_eq!(receiver.count(), 10);
}

pub fn a_seek_repeats_or_skips_messages(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("sought", 1);
    site.subscribe("sought", &SubscriptionSettings::push(["sought"], receiver.url("/")));
    site.publish_numbers("sought", 5, &["k"]);
    site.caught_up("sought");
    let client = site.client();
    converse(client.seek("sought", &SeekTo::place("earliest"))).unwrap();
    assert_eq!(texts(&receiver.wait_for(10)[5..]), ["0", "1", "2", "3", "4"]);
    site.caught_up("sought");
    converse(client.pause("sought")).unwrap();
    site.publish_numbers("sought", 3, &["k"]);
    converse(client.seek("sought", &SeekTo::place("latest"))).unwrap();
    converse(client.resume("sought")).unwrap();
    site.publish("sought", &NewMessage::text("new").key("k"));
    assert_eq!(receiver.wait_for(11)[10].text(), "new");
    site.caught_up("sought");
    assert_eq!(receiver.count(), 11);
}

pub fn a_seek_by_offset_starts_at_the_offset(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("offsets", 1);
    site.subscribe("offsets", &SubscriptionSettings::push(["offsets"], receiver.url("/")));
    let places: Vec<_> =
        (0..5).map(|number| site.publish("offsets", &NewMessage::text(number.to_string()).key("k"))).collect();
    site.caught_up("offsets");
    receiver.forget();
    let client = site.client();
    let to = |offset| SeekTo::offsets([("offsets/0".to_owned(), offset)].into());
    converse(client.seek("offsets", &to(places[3].offset))).unwrap();
    assert_eq!(texts(&receiver.wait_for(2)), ["3", "4"]);
    site.caught_up("offsets");
    let beyond = converse(client.seek("offsets", &to(places[4].offset + 1000))).unwrap_err();
    assert!(matches!(&beyond, whimbrel_client::ClientError::Problem(problem) if problem.status == 422), "{beyond}");
}

pub fn a_replay_runs_beside_the_cursor(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("replayed", 1);
    site.subscribe("replayed", &SubscriptionSettings::push(["replayed"], receiver.url("/")));
    site.publish_numbers("replayed", 6, &["a", "b"]);
    site.caught_up("replayed");
    receiver.forget();
    let range = ReplayRange { from: "earliest".into(), to: Some("latest".into()), key: Some("b".into()) };
    converse(site.client().replay("replayed", &range)).unwrap();
    assert_eq!(texts(&receiver.wait_for(3)), ["1", "3", "5"]);
    site.publish("replayed", &NewMessage::text("new").key("a"));
    assert_eq!(receiver.wait_for(4)[3].text(), "new");
    eventually("the replay to end", || {
        let shown = site.show("replayed");
        shown.replays.is_empty()
    });
    assert_eq!(receiver.count(), 4);
}

pub fn a_key_keeps_its_order_when_its_topic_grows(site: &Site) {
    let receiver = Receiver::answering(|_| Reply { after: Duration::from_millis(2), ..reply(200) });
    site.topic("growing", 1);
    site.subscribe("growing", &SubscriptionSettings::push(["growing"], receiver.url("/")));
    let keys: Vec<String> = (0..8).map(|key| format!("key-{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    converse(site.client().pause("growing")).unwrap();
    site.publish_numbers("growing", 80, &keys);
    let grown = TopicSettings { partitions: Some(6), ..TopicSettings::default() };
    converse(site.client().put_topic("growing", &grown)).unwrap();
    let later: Vec<NewMessage> =
        (80..160).map(|number| NewMessage::text(number.to_string()).key(keys[number % keys.len()])).collect();
    converse(site.client().publish_batch("growing", &later)).unwrap();
    converse(site.client().resume("growing")).unwrap();
    let got = receiver.wait_for(160);
    for (place, key) in keys.iter().enumerate() {
        let numbers: Vec<usize> =
            got.iter().filter(|one| one.key() == *key).map(|one| one.text().parse().unwrap()).collect();
        assert_eq!(numbers, (place..160).step_by(keys.len()).collect::<Vec<_>>(), "{key}");
    }
}

pub fn a_deleted_subscription_is_gone(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("deleted", 1);
    let settings = SubscriptionSettings {
        start: Some("earliest".into()),
        ..SubscriptionSettings::push(["deleted"], receiver.url("/"))
    };
    site.subscribe("deleted", &settings);
    site.publish("deleted", &NewMessage::text("x"));
    site.caught_up("deleted");
    let client = site.client();
    converse(client.delete_subscription("deleted")).unwrap();
    let gone = converse(client.subscription("deleted")).unwrap_err();
    assert_eq!(gone.code(), Some("unknown_subscription"));
    site.publish("deleted", &NewMessage::text("y"));
    std::thread::sleep(A_WHILE);
    assert_eq!(receiver.count(), 1, "a deleted subscription was delivered");
    // A subscription created again under the name inherits no state.
    site.subscribe("deleted", &settings);
    assert_eq!(texts(&receiver.wait_for(3)[1..]), ["x", "y"]);
}

pub fn a_message_has_its_delivery_attempts(site: &Site) {
    let receiver = Receiver::answering(failing_first(1, 500));
    site.topic("told", 1);
    let settings = SubscriptionSettings::push(["told"], receiver.url("/"));
    site.subscribe("told", &retrying(settings, 5, "20ms"));
    let place = site.publish("told", &NewMessage::text("x"));
    receiver.wait_for(2);
    eventually("the message to be known as delivered", || {
        let message = converse(site.client().message(&place.id)).unwrap();
        let Some(of) = message.subscriptions.first() else { return false };
        of.name == "told" && of.state == "delivered" && of.attempts.len() == 2
    });
}

pub fn statistics_by_the_minute_count_deliveries(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("figures", 1);
    site.subscribe("figures", &SubscriptionSettings::push(["figures"], receiver.url("/")));
    site.publish_numbers("figures", 7, &["k"]);
    site.caught_up("figures");
    eventually("seven deliveries to be counted", || {
        let figures = converse(site.client().topic_figures("figures", None, None)).unwrap();
        let sum = |count: fn(&MinuteFigures) -> u64| figures.minutes.iter().map(count).sum::<u64>();
        sum(|minute| minute.published) == 7 && sum(|minute| minute.delivered) == 7
    });
}
