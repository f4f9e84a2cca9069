//! Pushes that could not be handled, with the real binary: they are listed, they block no other push, and they can be pushed again.
//!
//! A push dies if its record cannot be decoded, for example after a downgrade. The test writes both sides of that into the log of a
//! stopped server: a record that this version cannot decode, and the dead letter that another version made of a record that this version
//! can.
//!
//! A push also dies if its device does not acknowledge it in all attempts, and its TTL has expired.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use whimbrel_catalogue::topics::{Registry, RegistryPorts, TopicDefaults};
use whimbrel_client::{NewPush, PeopleLetters, PlatformBody};
use whimbrel_engines::embedded::{LogSettings, NotebookSettings};
use whimbrel_engines::resolve::{CoordinationEngine, EngineSettings, LogEngine, StateEngine, resolve};
use whimbrel_engines::stores::{ReceiptSettings, TimerSettings};
use whimbrel_model::ports::Entry;
use whimbrel_model::push::{HEADER_PUSH, PUSH_DEAD_TOPIC, PushFailure, PushMessage, PushTask};
use whimbrel_model::record::HEADER_ID;
use whimbrel_model::{Headers, HeadersBuilder, PUSH_TOPIC, Record, SystemClock, Timestamp};

use super::deliver::Site;
use super::device::{ConnectFrame, Device};
use super::server::{Server, converse, eventually};

/// Writes a record into a topic of a stopped server's data folder, into the partition of that key.
fn write(folder: &Path, topic: &str, record: Record) {
    let data = folder.join("whimbrel-data");
    converse(async move {
        let settings = EngineSettings {
            data,
            log: LogEngine::Embedded(LogSettings::default()),
            coordination: CoordinationEngine::InProcess,
            receipts: ReceiptSettings::default(),
            receipts_engine: StateEngine::Embedded,
            timers: TimerSettings::default(),
            timers_engine: StateEngine::Embedded,
            progress_engine: StateEngine::Embedded,
            inbox_engine: StateEngine::Embedded,
            sessions_engine: StateEngine::Embedded,
            devices_engine: StateEngine::Embedded,
            notebook: NotebookSettings::default(),
        };
        let engines = resolve(settings, Arc::new(SystemClock), Arc::new(|_| {})).await.unwrap();
        let ports = RegistryPorts {
            log: Arc::clone(&engines.log),
            log_topics: Arc::clone(&engines.log_topics),
            catalogue: Arc::clone(&engines.catalogue),
            coordination: None,
            clock: Arc::new(SystemClock),
            events: Arc::new(|_| {}),
        };
        let registry = Registry::open(ports, TopicDefaults::default()).await.unwrap();
        let partition = registry.get(topic).unwrap().place(record.key.as_deref());
        for outcome in engines.log.append(vec![Entry { partition, record }]).await {
            outcome.unwrap();
        }
        engines.close().await;
    });
}

/// A server whose log has that record in that topic.
fn site_with(topic: &str, record: Record) -> Site {
    let folder = tempfile::tempdir().unwrap();
    assert!(Server::start(folder.path(), &[]).end().success());
    write(folder.path(), topic, record);
    Site { server: Server::start_own(folder, &[]) }
}

fn push_of(uid: &str, mut headers: HeadersBuilder, id: &str, text: &'static str) -> Record {
    let headers = headers.push(HEADER_ID, id.as_bytes()).push("content-type", b"text/plain").take();
    let key = Some(Bytes::copy_from_slice(uid.as_bytes()));
    Record { key, value: Bytes::from_static(text.as_bytes()), headers, timestamp: Timestamp::from_millis(1) }
}

#[test]
fn a_push_that_cannot_be_handled_is_listed_once_and_blocks_no_other() {
    let mut later = Headers::builder();
    later.push(HEADER_PUSH, br#"{"v":9,"task":"sing","uids":["u1"]}"#);
    let site = site_with(PUSH_TOPIC, push_of("u1", later, "m1", "la"));
    let mut device = Device::connect(&site.server, &ConnectFrame::of("u1", "web"));
    site.push_texts("u1", ["next"]);
    assert_eq!(device.take(1), ["next"]);

    let letter = site.dies(PeopleLetters::Push, "m1");
    assert!(letter.reason.contains("version 9"), "{letter:?}");
    assert_eq!(letter.more["uids"], json!(["u1"]));
    let died_at = Some(letter.dead_offset);
    site.redrives(PeopleLetters::Push, "m1");
    let again = || site.dead(PeopleLetters::Push, "m1").map(|letter| letter.dead_offset);
    eventually("it died again, because this version still cannot decode it", || again() > died_at);
    let letters = converse(site.client().people_dead_letters(PeopleLetters::Push, None)).unwrap().dead_letters;
    assert_eq!(letters.len(), 1, "{letters:?}");
}

#[test]
fn a_dead_push_reaches_its_device_when_it_is_redriven() {
    let message = PushMessage { id: "m1".into(), uids: vec!["u1".into()], store: true, ..PushMessage::default() };
    let push = push_of("u1", PushTask::Message(message).headers(), "m1", "at last");
    let dead = PushFailure { reason: "no room".into(), died_at_ms: 2, partition: 0, offset: 0 };
    let site = site_with(PUSH_DEAD_TOPIC, dead.to_record(&push));
    let letter = site.dies(PeopleLetters::Push, "m1");
    assert_eq!((letter.reason.as_str(), letter.partition, letter.offset), ("no room", 0, 0));

    let mut device = Device::connect(&site.server, &ConnectFrame::of("u1", "web"));
    site.redrives(PeopleLetters::Push, "m1");
    let message = device.message();
    assert_eq!(
        (&message["payload"], &message["id"], &message["stored"]),
        (&json!("at last"), &json!("m1"), &json!(true))
    );
    assert!(site.dead(PeopleLetters::Push, "m1").is_none(), "it is no longer listed");
    let again = converse(site.client().redrive_people(PeopleLetters::Push, &["m1".to_owned()])).unwrap();
    assert_eq!((again.redriven, again.unknown), (0, vec!["m1".to_owned()]));
}

#[test]
fn a_push_that_expires_after_its_last_retry_is_a_dead_letter_with_an_event() {
    let site = Site::start(&[]);
    let quick = PlatformBody { ack_timeout: Some("1s".into()), ..PlatformBody::default() };
    site.platform("mute", &quick);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("mute", "mute"));
    let id = site.push("mute", &NewPush::text("hello?"));
    assert_eq!(device.message()["payload"], "hello?");
    assert_eq!(device.closed().0, 4100, "it never acknowledged");
    assert!(site.dead(PeopleLetters::Push, &id).is_none(), "the device may return as long as the push has not expired");

    site.platform("mute", &PlatformBody { ttl: Some("1s".into()), ..quick.clone() });
    eventually("the push is a dead letter", || {
        // Each query of the user removes expired messages.
        site.stored("mute");
        site.dead(PeopleLetters::Push, &id).is_some()
    });
    let letter = site.dead(PeopleLetters::Push, &id).unwrap();
    assert_eq!(letter.reason, "not acknowledged by mute after 2 attempts, and expired");
    assert_eq!(letter.more["uids"], json!(["mute"]));
    eventually("an event reports it", || site.events().contains("push_dead_letter"));

    site.platform("mute", &quick);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("mute", "mute"));
    device.frame("truncated");
    site.redrives(PeopleLetters::Push, &id);
    assert_eq!(device.take(1), ["hello?"]);
}
