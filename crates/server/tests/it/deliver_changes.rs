//! A subscription changes while its deliveries are in progress: no message is skipped or repeated, and no client waits for ever.

use std::time::Duration;

use serde_json::{Map, Value, json};
use whimbrel_client::{NewMessage, SubscriptionSettings};

use super::deliver::{A_WHILE, Site, retrying};
use super::receiver::{Receiver, Reply, reply};
use super::server::{converse, eventually};

/// Longer than any test, in seconds.
const AN_HOUR: &str = "3600";

fn of_type(wanted: &str) -> Map<String, Value> {
    [("headers.type".to_owned(), json!(wanted))].into_iter().collect()
}

fn asking_to_wait() -> Reply {
    Reply { headers: vec![("retry-after", AN_HOUR.to_owned())], ..reply(429) }
}

pub fn a_new_filter_that_excludes_a_parked_message_unblocks_its_key(site: &Site) {
    let receiver = Receiver::answering(|got| reply(if got.text() == "first" { 500 } else { 200 }));
    site.topic("filtered-anew", 1);
    let settings = SubscriptionSettings::push(["filtered-anew"], receiver.url("/"));
    let settings = retrying(SubscriptionSettings { filter: of_type("a"), ..settings }, 1000, "100ms");
    site.subscribe("filtered-anew", &settings);
    site.publish("filtered-anew", &NewMessage::text("first").key("k").header("type", "a"));
    receiver.wait_for(2);
    site.subscribe("filtered-anew", &SubscriptionSettings { filter: of_type("b"), ..settings });
    site.publish("filtered-anew", &NewMessage::text("second").key("k").header("type", "b"));
    eventually("the second one", || receiver.all().iter().any(|got| got.text() == "second"));
    site.caught_up("filtered-anew");
}

pub fn a_topic_that_is_removed_and_added_again_keeps_its_progress(site: &Site) {
    let receiver = Receiver::answering(|got| reply(if got.key() == "bad" { 500 } else { 200 }));
    site.topic("given-back", 1);
    site.topic("instead", 1);
    let with = |topics: &[&str]| {
        let settings = SubscriptionSettings::push(topics.iter().copied(), receiver.url("/"));
        site.subscribe("given-back", &retrying(settings, 1000, "100ms"));
    };
    with(&["given-back"]);
    site.publish_numbers("given-back", 9, &["good", "bad", "well"]);
    eventually("all but the bad ones", || site.show("given-back").status.lag == Some(3));
    with(&["instead"]);
    site.publish("given-back", &NewMessage::text("meanwhile").key("good"));
    receiver.forget();
    with(&["instead", "given-back"]);
    receiver.answer_with(|_| reply(200));
    site.caught_up("given-back");
    let mut texts: Vec<String> = receiver.all().iter().map(|got| got.text().to_owned()).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts, ["1", "4", "7", "meanwhile"], "each message is delivered once");
}

pub fn a_new_endpoint_does_not_inherit_the_retry_after_of_the_old_one(site: &Site) {
    let (first, second) = (Receiver::answering(|_| asking_to_wait()), Receiver::willing());
    site.topic("moved-on", 1);
    site.subscribe("moved-on", &retrying(SubscriptionSettings::push(["moved-on"], first.url("/")), 5, "10ms"));
    site.publish("moved-on", &NewMessage::text("a").key("a"));
    first.wait_for(1);
    site.subscribe("moved-on", &SubscriptionSettings::push(["moved-on"], second.url("/")));
    site.publish("moved-on", &NewMessage::text("b").key("b"));
    let texts: Vec<String> = second.wait_for(2).iter().map(|got| got.text().to_owned()).collect();
    assert!(texts.contains(&"a".to_owned()) && texts.contains(&"b".to_owned()), "{texts:?}");
}

pub fn leased_messages_are_delivered_after_a_change_to_push_mode(site: &Site) {
    site.topic("pushed-instead", 1);
    let mut settings = SubscriptionSettings::pull(["pushed-instead"]);
    settings.more.insert("lease".into(), json!("1h"));
    site.subscribe("pushed-instead", &settings);
    site.publish_numbers("pushed-instead", 40, &["a", "b"]);
    let pulled = converse(site.client().pull("pushed-instead", 2, Duration::from_secs(10))).unwrap();
    assert_eq!(pulled.len(), 2, "one of each key");
    let receiver = Receiver::willing();
    site.subscribe("pushed-instead", &SubscriptionSettings::push(["pushed-instead"], receiver.url("/")));
    assert_eq!(receiver.wait_for(40)[0].attempt(), 1, "no consumer reported a failure");
    site.caught_up("pushed-instead");
}

pub fn a_failed_delivery_of_an_event_causes_no_further_event(site: &Site) {
    let receiver = Receiver::answering(|_| reply(422));
    for (name, on_exhausted) in [("events-dropped", "drop"), ("events-buried", "dead_letter")] {
        let settings = SubscriptionSettings::push(["_events"], receiver.url("/"));
        let settings = SubscriptionSettings { on_exhausted: Some(on_exhausted.into()), ..settings };
        site.subscribe(name, &retrying(settings, 0, "10ms"));
    }
    // Both receive the events in flight; after that, neither does.
    eventually("silence", || {
        let before = receiver.count();
        std::thread::sleep(2 * A_WHILE);
        before > 0 && receiver.count() == before
    });
}
