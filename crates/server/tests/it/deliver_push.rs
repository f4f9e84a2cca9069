//! Callbacks: the three envelopes with their signatures, the order, filters and rate of messages, and the handling of a failing
//! endpoint.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use whimbrel_client::{Accepted, NewMessage, SubscriptionSettings};

use super::deliver::{A_WHILE, Site, retrying};
use super::receiver::{Got, Receiver, Reply, reply};
use super::server::{converse, eventually};

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const SECOND_SECRET: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

/// The signature by Standard Webhooks, computed by this test.
fn signature(secret: &str, got: &Got) -> String {
    let key = BASE64.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.{}.", got.header("webhook-id"), got.header("webhook-timestamp")).as_bytes());
    mac.update(&got.body);
    format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
}

/// The numbers delivered with each key, in the order of delivery.
fn numbers_by_key(got: &[Got]) -> HashMap<String, Vec<usize>> {
    let mut numbers: HashMap<String, Vec<usize>> = HashMap::new();
    for one in got {
        numbers.entry(one.key().to_owned()).or_default().push(one.text().parse().unwrap());
    }
    numbers
}

pub fn a_binary_callback_has_the_payload_its_metadata_and_a_valid_signature(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("binary", 1);
    let settings = SubscriptionSettings {
        secret: Some(SECRET.into()),
        ..SubscriptionSettings::push(["binary"], receiver.url("/hook?x=1"))
    };
    site.subscribe("binary", &settings);
    let message =
        NewMessage::new("{\"a\":1}").content_type("application/json").key("customer-7").header("color", "blue");
    let place = site.publish("binary", &message);
    let got = receiver.wait_for(1).remove(0);
    assert_eq!((got.method.as_str(), got.path.as_str(), got.text()), ("POST", "/hook?x=1", "{\"a\":1}"));
    let offset = place.offset.to_string();
    for (name, expected) in [
        ("content-type", "application/json"),
        ("color", "blue"),
        ("webhook-id", &place.id),
        ("ce-specversion", "1.0"),
        ("ce-id", &place.id),
        ("ce-partitionkey", "customer-7"),
        ("whimbrel-subscription", "binary"),
        ("whimbrel-topic", "binary"),
        ("whimbrel-partition", "0"),
        ("whimbrel-offset", &offset),
        ("whimbrel-attempt", "1"),
    ] {
        assert_eq!(got.header(name), expected, "{name}");
    }
    for name in ["ce-source", "ce-type", "ce-time", "whimbrel-published-at"] {
        assert!(!got.header(name).is_empty(), "{name}");
    }
    assert_eq!(got.header("webhook-signature"), signature(SECRET, &got));
    site.caught_up("binary");
}

pub fn a_structured_callback_is_a_cloud_event_in_json(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("structured", 1);
    let settings = SubscriptionSettings {
        envelope: Some("structured".into()),
        secret: Some(SECRET.into()),
        ..SubscriptionSettings::push(["structured"], receiver.url("/"))
    };
    site.subscribe("structured", &settings);
    let json = site.publish("structured", &NewMessage::new("{\"a\":1}").content_type("application/json").key("k"));
    site.publish("structured", &NewMessage::new(vec![0, 255]));
    let got = receiver.wait_for(2);
    let events: Vec<Value> = got.iter().map(|one| serde_json::from_slice(&one.body).unwrap()).collect();
    let of = |id: &str| events.iter().position(|event| event["id"] == id).unwrap();
    let (first, second) = (of(&json.id), 1 - of(&json.id));
    assert!(got[first].header("content-type").starts_with("application/cloudevents+json"));
    assert_eq!((&events[first]["specversion"], &events[first]["data"]), (&json!("1.0"), &json!({ "a": 1 })));
    assert_eq!((&events[first]["partitionkey"], &events[second]["data_base64"]), (&json!("k"), &json!("AP8=")));
    assert_eq!(got[first].header("webhook-signature"), signature(SECRET, &got[first]));
}

pub fn a_cloud_event_keeps_its_id_and_its_attributes_in_both_envelopes(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("events", 1);
    for envelope in ["binary", "structured"] {
        let settings = SubscriptionSettings {
            envelope: Some(envelope.into()),
            ..SubscriptionSettings::push(["events"], receiver.url(&format!("/{envelope}")))
        };
        site.subscribe(&format!("events-{envelope}"), &settings);
    }
    // A publisher sends a CloudEvent in binary mode like this.
    let head = "POST /v1/topics/events/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let event =
        "ce-specversion: 1.0\r\nce-id: order-7\r\nce-source: /shop\r\nce-type: paid\r\nce-subject: ord%C3%A9r\r\n";
    let answer = site.server.exchange(&format!("{head}{event}content-length: 7\r\n\r\n{{\"a\":1}}"));
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");

    let got = receiver.wait_for(2);
    let binary = got.iter().find(|one| one.path == "/binary").unwrap();
    for (name, expected) in
        [("ce-id", "order-7"), ("ce-source", "/shop"), ("ce-type", "paid"), ("ce-subject", "ord%C3%A9r")]
    {
        assert_eq!(binary.header(name), expected, "{name}");
    }
    let structured = got.iter().find(|one| one.path == "/structured").unwrap();
    let event: Value = serde_json::from_slice(&structured.body).unwrap();
    for (name, expected) in [("id", "order-7"), ("source", "/shop"), ("type", "paid"), ("subject", "ordér")] {
        assert_eq!(event[name], expected, "{name}");
    }
    let id = binary.header("webhook-id");
    assert_ne!(id, "order-7", "the message id differs from the event id");
    assert_eq!((structured.header("webhook-id"), event["whimbrelid"].as_str()), (id, Some(id)));
}

pub fn a_kmq_callback_has_the_headers_of_a_pusher(site: &Site) {
    let first = AtomicUsize::new(0);
    let receiver =
        Receiver::answering(move |_| reply(if first.fetch_add(1, Ordering::SeqCst) == 0 { 500 } else { 200 }));
    site.topic("kmq", 1);
    let settings =
        SubscriptionSettings { envelope: Some("kmq".into()), ..SubscriptionSettings::push(["kmq"], receiver.url("/")) };
    site.subscribe("kmq", &retrying(settings, 5, "10ms"));
    let place = site.publish("kmq", &NewMessage::text("x").key("k"));
    let got = receiver.wait_for(2);
    let offset = place.offset.to_string();
    for (name, expected) in [
        ("x-kmq-topic", "kmq"),
        ("x-kmq-partition", "0"),
        ("x-kmq-partition-key", "k"),
        ("x-kmq-offset", &offset),
        ("x-retry-times", "1"),
    ] {
        assert_eq!(got[1].header(name), expected, "{name}");
    }
    assert_eq!((got[0].header("x-retry-times"), got[0].text()), ("0", "x"));
    assert!(!got[0].header("x-kmq-timestamp").is_empty());
}

pub fn during_a_rotation_both_secrets_sign(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("rotated", 1);
    let with = |secret: &str| SubscriptionSettings {
        secret: Some(secret.into()),
        ..SubscriptionSettings::push(["rotated"], receiver.url("/"))
    };
    site.subscribe("rotated", &with(SECRET));
    let shown = site.subscribe("rotated", &with(SECOND_SECRET));
    assert!(!serde_json::to_string(&shown).unwrap().contains(&SECOND_SECRET[6..20]), "a secret was printed");
    site.publish("rotated", &NewMessage::text("x"));
    let got = receiver.wait_for(1).remove(0);
    let expected = format!("{} {}", signature(SECOND_SECRET, &got), signature(SECRET, &got));
    assert_eq!(got.header("webhook-signature"), expected);
}

pub fn a_signed_payload_that_common_libraries_cannot_verify_is_reported(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("raw", 1);
    let settings =
        SubscriptionSettings { secret: Some(SECRET.into()), ..SubscriptionSettings::push(["raw"], receiver.url("/")) };
    site.subscribe("raw", &settings);
    site.publish("raw", &NewMessage::new("text"));
    receiver.wait_for(1);
    assert_eq!(site.show("raw").status.unverifiable, None);
    site.publish("raw", &NewMessage::new(vec![0xff, 0]));
    receiver.wait_for(2);
    assert_eq!(site.show("raw").status.unverifiable, Some(1));
    let shown = site.command(&["sub", "show", "raw"]);
    assert!(shown.contains("not UTF-8"), "{shown}");
}

pub fn messages_of_a_key_are_delivered_in_order_and_keys_in_parallel(site: &Site) {
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let receiver = Receiver::answering(move |got| {
        // Every key waits at another moment, so that keys overtake each other.
        let number: usize = got.text().parse().unwrap();
        let busy = at_once.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(busy, Ordering::SeqCst);
        let answered = Arc::clone(&at_once);
        let after = Duration::from_millis((number % 7) as u64);
        std::thread::spawn(move || {
            std::thread::sleep(after);
            answered.fetch_sub(1, Ordering::SeqCst);
        });
        Reply { after, ..reply(200) }
    });
    site.topic("by-key", 3);
    site.subscribe("by-key", &SubscriptionSettings::push(["by-key"], receiver.url("/")));
    let keys = ["a", "b", "c", "d", "e"];
    site.publish_numbers("by-key", 200, &keys);
    let numbers = numbers_by_key(&receiver.wait_for(200));
    for (place, key) in keys.iter().enumerate() {
        assert_eq!(numbers[*key], (place..200).step_by(keys.len()).collect::<Vec<_>>(), "{key}");
    }
    assert!(seen.load(Ordering::SeqCst) > 1, "keys waited for each other");
    site.caught_up("by-key");
}

pub fn messages_of_a_partition_are_delivered_in_sequence(site: &Site) {
    let receiver = Receiver::answering(|_| Reply { after: Duration::from_millis(1), ..reply(200) });
    site.topic("by-partition", 1);
    let settings = SubscriptionSettings {
        ordering: Some("partition".into()),
        ..SubscriptionSettings::push(["by-partition"], receiver.url("/"))
    };
    site.subscribe("by-partition", &settings);
    site.publish_numbers("by-partition", 50, &["a", "b", "c"]);
    let numbers: Vec<usize> = receiver.wait_for(50).iter().map(|one| one.text().parse().unwrap()).collect();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
}

pub fn a_failing_key_does_not_block_other_keys(site: &Site) {
    let receiver = Receiver::answering(|got| reply(if got.key() == "bad" { 500 } else { 200 }));
    site.topic("bad-key", 1);
    let settings = SubscriptionSettings::push(["bad-key"], receiver.url("/"));
    site.subscribe("bad-key", &retrying(settings, 1000, "50ms"));
    let keys = ["a", "bad", "b", "c", "d"];
    site.publish_numbers("bad-key", 500, &keys);
    let of_others = |receiver: &Receiver| receiver.all().iter().filter(|one| one.key() != "bad").count();
    eventually("the four other keys to be delivered", || of_others(&receiver) >= 400);
    let shown = site.show("bad-key");
    assert_eq!(shown.state, "active", "{shown:?}");
    receiver.answer_with(|_| reply(200));
    site.caught_up("bad-key");
    let numbers = numbers_by_key(&receiver.all());
    for (place, key) in keys.iter().enumerate() {
        let mut successes = numbers[*key].clone();
        // Failed callbacks are retried; the order applies to first successes.
        successes.dedup();
        assert_eq!(successes, (place..500).step_by(keys.len()).collect::<Vec<_>>(), "{key}");
    }
}

pub fn a_filter_excludes_other_messages(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("filtered", 1);
    let settings = SubscriptionSettings {
        filter: json!({ "headers.type": "order.paid" }).as_object().unwrap().clone(),
        ..SubscriptionSettings::push(["filtered"], receiver.url("/"))
    };
    site.subscribe("filtered", &settings);
    for kind in ["order.made", "order.paid", "order.sent", "order.paid"] {
        site.publish("filtered", &NewMessage::text(kind).header("type", kind));
    }
    site.caught_up("filtered");
    let texts: Vec<String> = receiver.all().iter().map(|one| one.text().to_owned()).collect();
    assert_eq!(texts, ["order.paid", "order.paid"]);
}

pub fn a_rate_is_kept(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("paced", 1);
    let settings = SubscriptionSettings {
        rate: Some("20/s".into()),
        ordering: Some("none".into()),
        ..SubscriptionSettings::push(["paced"], receiver.url("/"))
    };
    site.subscribe("paced", &settings);
    site.publish_numbers("paced", 50, &["k"]);
    let got = receiver.wait_for(50);
    let took = got[49].at - got[0].at;
    assert!(took >= Duration::from_millis(1400), "50 at 20/s took {took:?}");
}

pub fn an_endpoint_that_answers_410_disables_the_subscription(site: &Site) {
    let receiver = Receiver::answering(|_| reply(410));
    site.topic("gone", 1);
    site.subscribe("gone", &SubscriptionSettings::push(["gone"], receiver.url("/")));
    site.publish("gone", &NewMessage::text("x"));
    eventually("a 410 to disable", || site.show("gone").state == "disabled");
    let before = receiver.count();
    receiver.answer_with(|_| reply(200));
    std::thread::sleep(A_WHILE);
    assert_eq!(receiver.count(), before, "a disabled subscription was delivered");
    converse(site.client().resume("gone")).unwrap();
    site.caught_up("gone");
    assert_eq!(receiver.count(), before + 1);
}

pub fn repeated_failures_open_the_circuit_breaker(site: &Site) {
    let receiver = Receiver::answering(|_| reply(503));
    site.topic("broken", 1);
    let settings = SubscriptionSettings {
        ordering: Some("none".into()),
        ..SubscriptionSettings::push(["broken"], receiver.url("/"))
    };
    site.subscribe("broken", &retrying(settings, 1000, "10ms"));
    site.publish_numbers("broken", 100, &["k"]);
    let breaker = |site: &Site| site.show("broken").status.breaker.unwrap_or_default();
    eventually("the breaker to open", || breaker(site) != "closed");
    receiver.answer_with(|_| reply(200));
    site.caught_up("broken");
    eventually("the breaker to close", || breaker(site) == "closed");
}

pub fn a_forbidden_address_is_rejected(site: &Site) {
    site.topic("forbidden", 1);
    for url in ["http://169.254.169.254/latest/meta-data", "http://metadata.google.internal/", "ftp://example.com/"] {
        let settings = SubscriptionSettings::push(["forbidden"], url);
        let refused = converse(site.client().put_subscription("forbidden", &settings)).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("endpoint.url"), "{url}: {said}");
    }
}

pub fn a_held_message_is_delivered_when_it_has_fired(site: &Site) {
    let receiver = Receiver::willing();
    site.topic("held", 1);
    site.subscribe("held", &SubscriptionSettings::push(["held"], receiver.url("/")));
    let accepted = converse(site.client().publish("held", &NewMessage::text("later").delay("300ms"))).unwrap();
    let Accepted::Held(held) = accepted else { panic!("{accepted:?}") };
    let got = receiver.wait_for(1).remove(0);
    assert_eq!((got.header("webhook-id"), got.text()), (held.id.as_str(), "later"));
}
