//! Access control: a user with exactly the documented rights, and with too few of them.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_engines::conformance::log::{entry, new_spec};
use whimbrel_engines::kafka::settings::{Sasl, SaslMechanism};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{CommitOutcome, ExactTopic, Log as _, LogError, LogTopics as _, ReadLimits};
use whimbrel_model::{NamedBounds, PartitionId, Retention, TopicSpec};

use crate::broker::{Extras, Listener, OwnBroker};
use crate::hanging_transactions::ended;
use crate::programs::Peer;
use crate::services::free_address;
use crate::{ADDRESS, kept_events};

const USER: &str = "eva";
const PASSWORD: &str = "secret";
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/kafka.md");
const TABLE_HEAD: &str = "| resource | operations |";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_suffice_for_every_operation() {
    needs_servers!(ADDRESS);
    let (mut broker, address) = start_broker();
    let spec = new_spec(1);
    let mut peer = Peer::start(&broker.address);
    for (resource, operations) in documented_rights() {
        let (kind, name, is_prefix) = resource_of(&resource, &spec.name);
        peer.allow(USER, (kind, &name, is_prefix), &operations);
    }
    let (events, kept) = kept_events();
    let log = connect(&address, events).await;
    log.create(&spec).await.expect("a topic can be created");

    // A transaction of this fence is left open by Kafka: closing it reads the coordinator's log.
    let id = format!("whimbrel/{}", spec.name);
    peer.begin(&id);
    peer.write(&spec.name, "aborted");
    peer.abort();
    peer.wait_until_complete(&id);
    drop(peer);
    tokio::task::block_in_place(|| {
        broker.kill();
        broker.remove_last_transaction_marker(&spec.name, 0);
        broker.start_again();
    });

    let partition = PartitionId::new(spec.number, 0);
    let fence = log.fence(&spec.name, 1).await.expect("a fence can be opened");
    let committed = log.commit(&fence, vec![entry(partition, "committed")]).await;
    let CommitOutcome::Done(offsets) = committed else { panic!("{committed:?}") };
    assert_eq!(ended(&kept.lock().unwrap()), ["aborted by empty_transaction"], "the rights do not include markers");
    let appended = log.append(vec![entry(partition, "appended")]).await;
    assert!(appended[0].is_ok(), "{appended:?}");
    let limits = ReadLimits { max_records: 1, max_bytes: 1 << 20, wait: Duration::from_secs(10) };
    let read = log.read(partition, offsets[0], limits).await.expect("records can be read");
    assert_eq!(&read.records[0].record.value[..], b"committed");
    log.trim(partition, offsets[0]).await.expect("records can be deleted");
    let retention = Retention { time: Some(Duration::from_secs(3600)), ..Retention::default() };
    let changed = TopicSpec { partitions: 2, retention, ..spec.clone() };
    log.alter(&changed, NamedBounds::ALL).await.expect("a topic can be changed");
    assert_eq!(log.describe(spec.number).await.expect("a topic can be described").partitions.len(), 2);
    assert!(log.found(&|_| false).await.expect("topics can be listed").iter().any(|topic| topic.name == spec.name));
    let identity = log.identity(spec.number, &spec.name).await.expect("a topic can be identified");
    let topic = ExactTopic { number: spec.number, name: &spec.name, identity: identity.as_deref() };
    log.delete(topic).await.expect("a topic can be deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_with_the_entry_that_lacks_it() {
    needs_servers!(ADDRESS);
    let (broker, address) = start_broker();
    let (readable, unreadable) = (new_spec(1), new_spec(1));
    let mut peer = Peer::start(&broker.address);
    for (resource, operations) in documented_rights() {
        for spec in [&readable, &unreadable] {
            let (kind, name, is_prefix) = resource_of(&resource, &spec.name);
            let mut operations = operations.clone();
            operations.retain(|operation| operation != "Read" || spec.name == readable.name);
            if !operations.is_empty() {
                peer.allow(USER, (kind, &name, is_prefix), &operations);
            }
        }
    }
    let log = connect(&address, Arc::new(|_| {})).await;
    let [first, second] = [&readable, &unreadable].map(|spec| PartitionId::new(spec.number, 0));
    log.create(&readable).await.expect("a topic can be created");
    log.create(&unreadable).await.expect("a topic can be created");
    let fence = log.fence(&readable.name, 1).await.expect("a fence can be opened");
    let done = log.commit(&fence, vec![entry(first, "committed")]).await;
    assert!(matches!(done, CommitOutcome::Done(_)), "{done:?}");
    match log.commit(&fence, vec![entry(first, "allowed"), entry(second, "not allowed")]).await {
        CommitOutcome::Refused { index: 1, error: LogError::Unsupported(why) } => {
            assert!(why.contains("TopicAuthorizationFailed"), "{why}");
        }
        outcome => panic!("{outcome:?}"),
    }
}

async fn connect(address: &str, events: whimbrel_model::EventSink) -> Arc<KafkaLog> {
    let sasl = Sasl { mechanism: SaslMechanism::Plain, username: USER.to_owned(), password: PASSWORD.to_owned() };
    let settings = KafkaSettings {
        sasl: Some(sasl),
        message_timeout: Duration::from_secs(5),
        transaction_timeout: Duration::from_secs(5),
        ..KafkaSettings::new(address)
    };
    KafkaLog::connect(settings, events).await.expect("Kafka can be reached")
}

/// A broker with access control, and the address of its listener with SASL. Users of the plain listener may do everything.
fn start_broker() -> (OwnBroker, String) {
    let address = free_address();
    let listener = Listener { name: "SASL", protocol: "SASL_PLAINTEXT", address: address.clone() };
    let module = "org.apache.kafka.common.security.plain.PlainLoginModule";
    let properties = vec![
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned(),
        "super.users=User:ANONYMOUS".to_owned(),
        "listener.name.sasl.sasl.enabled.mechanisms=PLAIN".to_owned(),
        format!("listener.name.sasl.plain.sasl.jaas.config={module} required user_{USER}=\"{PASSWORD}\";"),
    ];
    let extras = Extras { listeners: vec![listener], properties, ..Extras::default() };
    (tokio::task::block_in_place(|| OwnBroker::start_with(extras)), address)
}

/// The rows of the documentation's table: a resource, and the operations on it.
fn documented_rights() -> Vec<(String, Vec<String>)> {
    let document = std::fs::read_to_string(DOCUMENT).expect("the document can be read");
    let table = document.split_once(TABLE_HEAD).expect("the document has the table").1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let operations = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let rows = rows.filter_map(|row| row.trim_matches('|').split_once('|'));
    rows.map(|(resource, cell)| (resource.trim().to_owned(), operations(cell))).collect()
}

/// Kafka's kind and name of a resource, and whether the name is a prefix.
fn resource_of(resource: &str, topic: &str) -> (&'static str, String, bool) {
    match resource {
        "every topic that Whimbrel reads or writes" | "topics that Whimbrel creates, changes or deletes" => {
            ("TOPIC", topic.to_owned(), false)
        }
        "transactional ids with the prefix `kafka.transactional_prefix`" => {
            ("TRANSACTIONAL_ID", "whimbrel/".to_owned(), true)
        }
        "the cluster" => ("BROKER", "kafka-cluster".to_owned(), false),
        "the topic `__transaction_state`" => ("TOPIC", "__transaction_state".to_owned(), false),
        other => panic!("the documentation lists `{other}`, which this test does not know"),
    }
}
