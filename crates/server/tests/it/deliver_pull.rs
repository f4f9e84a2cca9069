//! Pulling consumers: leases, acknowledgements, returned messages and expired leases.

use std::time::{Duration, Instant};

use serde_json::json;
use whimbrel_client::{NewMessage, PulledMessage, SubscriptionSettings};

use super::deliver::{Site, retrying};
use super::server::{PATIENCE, converse};

/// Short enough to wait for its end, long enough to act before it.
const LEASE: &str = "1s";
const WAIT: Duration = Duration::from_secs(10);

fn subscribe(site: &Site, name: &str) {
    site.topic(name, 1);
    let mut settings = retrying(SubscriptionSettings::pull([name]), 5, "50ms");
    settings.more.insert("lease".into(), json!(LEASE));
    site.subscribe(name, &settings);
}

fn pull(site: &Site, name: &str, max: usize, wait: Duration) -> Vec<PulledMessage> {
    converse(site.client().pull(name, max, wait)).unwrap()
}

/// Pulls until this many messages arrived.
fn pull_all(site: &Site, name: &str, count: usize) -> Vec<PulledMessage> {
    let began = Instant::now();
    let mut pulled = Vec::new();
    while pulled.len() < count {
        assert!(began.elapsed() < PATIENCE, "{} of {count} messages arrived", pulled.len());
        pulled.extend(pull(site, name, count - pulled.len(), WAIT));
    }
    pulled
}

fn ack(site: &Site, name: &str, pulled: &[PulledMessage]) -> Vec<String> {
    let ids: Vec<String> = pulled.iter().map(|one| one.ack_id.clone()).collect();
    converse(site.client().ack(name, &ids)).unwrap().unknown
}

pub fn an_acknowledged_message_is_not_delivered_again(site: &Site) {
    subscribe(site, "acked");
    let place = site.publish("acked", &NewMessage::text("x").key("k"));
    let pulled = pull_all(site, "acked", 1);
    let message = &pulled[0].message;
    assert_eq!((message.id.as_str(), message.offset, pulled[0].attempt), (place.id.as_str(), place.offset, 1));
    assert_eq!((message.payload.as_deref(), message.key.as_deref()), (Some("x"), Some("k")));
    assert!(ack(site, "acked", &pulled).is_empty());
    site.caught_up("acked");
    assert_eq!(ack(site, "acked", &pulled), [pulled[0].ack_id.clone()], "a settled lease has ended");
    assert!(pull(site, "acked", 10, Duration::from_millis(1500)).is_empty());
}

pub fn a_returned_message_is_delivered_again_with_its_attempt(site: &Site) {
    subscribe(site, "nacked");
    site.publish("nacked", &NewMessage::text("x"));
    let first = pull_all(site, "nacked", 1);
    converse(site.client().nack("nacked", &[first[0].ack_id.clone()], None)).unwrap();
    let second = pull_all(site, "nacked", 1);
    assert_eq!((second[0].attempt, &second[0].message.id), (2, &first[0].message.id));
    assert_ne!(second[0].ack_id, first[0].ack_id);
    assert!(ack(site, "nacked", &second).is_empty());
    site.caught_up("nacked");
}

pub fn an_expired_lease_makes_a_message_available_again(site: &Site) {
    subscribe(site, "expired");
    site.publish("expired", &NewMessage::text("x"));
    let first = pull_all(site, "expired", 1);
    let second = pull_all(site, "expired", 1);
    assert_eq!(second[0].message.id, first[0].message.id);
    assert_eq!(ack(site, "expired", &first), [first[0].ack_id.clone()], "the first lease has expired");
    assert!(ack(site, "expired", &second).is_empty());
    site.caught_up("expired");
}

pub fn an_extended_lease_keeps_its_message(site: &Site) {
    subscribe(site, "extended");
    site.publish("extended", &NewMessage::text("x"));
    let pulled = pull_all(site, "extended", 1);
    let ids = [pulled[0].ack_id.clone()];
    assert!(converse(site.client().extend_lease("extended", &ids, "1m")).unwrap().unknown.is_empty());
    assert!(pull(site, "extended", 10, Duration::from_millis(1500)).is_empty(), "it is still leased");
    assert!(ack(site, "extended", &pulled).is_empty());
    site.caught_up("extended");
}

pub fn a_pull_waits_for_the_next_message(site: &Site) {
    subscribe(site, "awaited");
    let client = site.client();
    let pulled = converse(async {
        let publish = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            site.client().publish("awaited", &NewMessage::text("x")).await.unwrap();
        };
        tokio::join!(client.pull("awaited", 1, WAIT), publish).0.unwrap()
    });
    assert_eq!(pulled.len(), 1);
    assert!(ack(site, "awaited", &pulled).is_empty());
}

pub fn keys_are_pulled_in_order(site: &Site) {
    subscribe(site, "ordered-pull");
    site.publish_numbers("ordered-pull", 6, &["a", "b"]);
    let first = pull_all(site, "ordered-pull", 2);
    let mut texts: Vec<_> = first.iter().map(|one| one.message.payload.clone().unwrap()).collect();
    texts.sort();
    assert_eq!(texts, ["0", "1"], "one of each key at a time");
    assert!(ack(site, "ordered-pull", &first).is_empty());
    let second = pull_all(site, "ordered-pull", 2);
    assert!(second.iter().all(|one| ["2", "3"].contains(&one.message.payload.as_deref().unwrap())), "{second:?}");
}
