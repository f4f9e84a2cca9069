//! Starting, and the limits that are set at the start: what is said when Kafka is not there, an option is wrong, a queue is full.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ConfigSource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings, KafkaStartError};
use whimbrel_model::ports::{Entry, Log, LogError, LogTopics};
use whimbrel_model::{Headers, PartitionId, Record, Retention, Timestamp, TopicSpec};

use crate::broker::{free_port, new_spec};
use crate::{connect, needs_kafka, settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_that_is_not_there_is_named_within_a_bounded_time() {
    let address = format!("127.0.0.1:{}", free_port());
    let timeout = Duration::from_millis(700);
    let settings = KafkaSettings { request_timeout: timeout, ..KafkaSettings::new(&address) };
    let began = Instant::now();
    let error = KafkaLog::connect(settings, Arc::new(|_| {})).await.err().expect("nobody is there");
    assert!(began.elapsed() < timeout + Duration::from_secs(3), "it took {:?}", began.elapsed());
    assert!(matches!(error, KafkaStartError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&address), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_that_librdkafka_does_not_know_is_named() {
    let mut settings = KafkaSettings::new("127.0.0.1:1");
    settings.client.insert("compresion.type".to_owned(), "lz4".to_owned());
    let error = KafkaLog::connect(settings, Arc::new(|_| {})).await.err().expect("the option is wrong");
    assert!(matches!(&error, KafkaStartError::BadOption { key, .. } if key == "compresion.type"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_beyond_the_queue_are_refused_as_overload() {
    needs_kafka!();
    let mut narrow = KafkaSettings { queue_records_max: 10, ..settings() };
    // Nothing leaves the queue before the whole call has tried to get in.
    narrow.client.insert("linger.ms".to_owned(), "1000".to_owned());
    let log = connect(narrow).await;
    let spec = new_spec(1);
    log.create(&spec).await.expect("the topic can be made");
    let outcome = log.append((0..30).map(|_| entry(&spec, 10)).collect()).await;
    let taken = outcome.iter().filter(|each| each.is_ok()).count();
    let overloaded = outcome.iter().filter(|each| matches!(each, Err(LogError::Overloaded(_)))).count();
    assert_eq!((taken, overloaded), (10, 20), "{outcome:?}");
    assert!(outcome[..10].iter().all(Result::is_ok), "those who came first are in");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_of_others_with_a_smaller_limit_keeps_it() {
    needs_kafka!();
    let small = KafkaSettings { record_bytes_max: 10_000, ..settings() };
    let spec = new_spec(1);
    connect(small).await.create(&spec).await.expect("the topic can be made");
    let log = connect(settings()).await;
    log.create(&spec).await.expect("the topic is there");
    let outcome = log.append(vec![entry(&spec, 10_000), entry(&spec, 10_001)]).await;
    assert_eq!(outcome[0], Ok(0));
    assert_eq!(outcome[1], Err(LogError::TooLarge { size: 10_001, limit: 10_000 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_altered_takes_our_largest_record_and_keeps_what_others_set() {
    needs_kafka!();
    let small = KafkaSettings { record_bytes_max: 10_000, ..settings() };
    let spec = new_spec(1);
    connect(small).await.create(&spec).await.expect("the topic can be made");
    set_by_others(&spec.name, "cleanup.policy", "compact").await;
    let log = connect(settings()).await;
    log.create(&spec).await.expect("the topic is there");
    let retention = Retention { time: Some(Duration::from_secs(3600)), bytes: Some(12_345_678) };
    log.alter(&TopicSpec { retention, ..spec.clone() }).await.expect("the topic can be altered");
    let set = configs_of(&spec.name).await;
    assert_eq!(set["retention.ms"], "3600000");
    assert_eq!(set["retention.bytes"], "12345678");
    assert_eq!(set["cleanup.policy"], "compact", "what others set stays");
    let keyed = |mut entry: Entry| {
        entry.record.key = Some("compacted topics want keys".into());
        entry
    };
    let outcome = log.append(vec![keyed(entry(&spec, settings().record_bytes_max - 100))]).await;
    assert_eq!(outcome, [Ok(0)]);
}

/// Sets one option of a topic beside those it has, as an operator would.
async fn set_by_others(topic: &str, key: &str, value: &str) {
    let mut set = configs_of(topic).await;
    set.insert(key.to_owned(), value.to_owned());
    let change = set.iter().fold(AlterConfig::new(ResourceSpecifier::Topic(topic)), |change, (k, v)| change.set(k, v));
    let changed = admin().alter_configs([&change], &AdminOptions::new()).await.expect("Kafka answers");
    assert!(changed.iter().all(Result::is_ok), "{changed:?}");
}

/// What is set on the topic itself.
async fn configs_of(topic: &str) -> BTreeMap<String, String> {
    let asked = admin().describe_configs([&ResourceSpecifier::Topic(topic)], &AdminOptions::new()).await;
    let resource = asked.expect("Kafka answers").remove(0).expect("the topic is there");
    let own = resource.entries.into_iter().filter(|entry| entry.source == ConfigSource::DynamicTopic);
    own.filter_map(|entry| Some((entry.name, entry.value?))).collect()
}

fn admin() -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", crate::bootstrap()).create().expect("an admin client can be made")
}

#[tokio::test(flavor = "multi_thread")]
async fn more_copies_than_brokers_are_refused_for_good() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = TopicSpec { replicas: Some(3), ..new_spec(1) };
    let error = log.create(&spec).await.expect_err("the test's Kafka has one broker");
    assert!(matches!(&error, LogError::Unsupported(why) if why.contains("copies")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_of_the_engine_are_found_by_name() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_spec(3);
    log.create(&spec).await.expect("the topic can be made");
    let found = log.found().await.expect("topics can be listed");
    assert!(found.contains(&(spec.name, 3)));
    assert!(found.iter().all(|(name, _)| !name.starts_with("__")), "Kafka's own topics are not listed");
}

/// An entry for the topic's first partition whose record has that size.
fn entry(spec: &TopicSpec, size: usize) -> Entry {
    let timestamp = Timestamp::from_millis(1_700_000_000_000);
    let record = Record { key: None, value: vec![b'x'; size].into(), headers: Headers::EMPTY, timestamp };
    Entry { partition: PartitionId::new(spec.number, 0), record }
}
