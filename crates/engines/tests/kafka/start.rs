//! Starts that fail without a broker, and the limits of the settings: the queue, the largest record, the replicas.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use whimbrel_engines::conformance::log::{entry_of_size, new_spec};
use whimbrel_engines::kafka::settings::Tls;
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings, KafkaStartError};
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{Entry, Log, LogError, LogTopics};
use whimbrel_model::{ExistingTopic, NamedBounds, PartitionId, Retention, TopicSpec};

use crate::interoperability::new_topic;
use crate::programs::Peer;
use crate::services::free_address;
use crate::{ADDRESS, connect, settings};

/// The interval and the timeout of waiting for a changed setting.
const SETTING_POLL: Duration = Duration::from_millis(50);
const SETTING_POLLS_MAX: usize = 600;

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_a_broker_fails_in_time_and_names_the_address() {
    let address = free_address();
    let timeout = Duration::from_millis(700);
    let settings = KafkaSettings { request_timeout: timeout, ..KafkaSettings::new(&address) };
    let began = Instant::now();
    let error = KafkaLog::connect(settings, Arc::new(|_| {})).await.err().expect("no broker listens");
    assert!(began.elapsed() < timeout + Duration::from_secs(3), "it took {:?}", began.elapsed());
    assert!(matches!(error, KafkaStartError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(error.to_string().contains("700ms (`kafka.request_timeout`)"), "the configured time is named: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_a_missing_ca_file_returns_an_error_that_names_the_setting() {
    let tls = Tls { ca_file: Some("/nonexistent/ca.pem".into()), identity: None };
    let settings = KafkaSettings { tls: Some(tls), ..KafkaSettings::new(free_address()) };
    // The engine's runtime is dropped in this async context, which must not panic.
    let error = KafkaLog::connect(settings, Arc::new(|_| {})).await.err().expect("the file is missing");
    assert!(matches!(error, KafkaStartError::BadFile { setting: "kafka.tls_ca_file", .. }), "{error:?}");
    assert!(error.to_string().starts_with("cannot load `kafka.tls_ca_file` (/nonexistent/ca.pem): "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_cancelled_does_not_panic() {
    let settings = KafkaSettings::new(free_address());
    // Polled once and dropped in this async context.
    let started = KafkaLog::connect(settings, Arc::new(|_| {})).now_or_never();
    assert!(started.is_none(), "no broker listens");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_beyond_the_queue_are_refused_as_overload() {
    needs_servers!(ADDRESS);
    // No record leaves the queue before the call has offered all of its records.
    let narrow = KafkaSettings { queue_records_max: 10, linger: Duration::from_secs(1), ..settings() };
    let log = connect(narrow).await;
    let spec = new_topic(&log, 1).await;
    let outcome = log.append((0..30).map(|_| entry(&spec, 10)).collect()).await;
    let taken = outcome.iter().filter(|each| each.is_ok()).count();
    let overloaded = outcome.iter().filter(|each| matches!(each, Err(LogError::Overloaded(_)))).count();
    assert_eq!((taken, overloaded), (10, 20), "{outcome:?}");
    assert!(outcome[..10].iter().all(Result::is_ok), "the first records are queued");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_of_others_with_a_smaller_limit_keeps_it() {
    needs_servers!(ADDRESS);
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
async fn an_altered_topic_takes_our_largest_record_and_keeps_the_settings_of_others() {
    needs_servers!(ADDRESS);
    let small = KafkaSettings { record_bytes_max: 10_000, ..settings() };
    let spec = new_spec(1);
    connect(small).await.create(&spec).await.expect("the topic can be made");
    let mut operator = Peer::start(&crate::bootstrap());
    operator.set_config(&spec.name, "cleanup.policy", "compact");
    let log = connect(settings()).await;
    log.create(&spec).await.expect("the topic is there");
    let retention = Retention { time: Some(Duration::from_secs(3600)), bytes: Some(12_345_678) };
    log.alter(&TopicSpec { retention, ..spec.clone() }, NamedBounds::ALL).await.expect("the topic can be altered");
    let set = operator.configs(&spec.name);
    assert_eq!(set["retention.ms"], "3600000");
    assert_eq!(set["retention.bytes"], "12345678");
    assert_eq!(set["cleanup.policy"], "compact", "the operator's setting stays");
    let keyed = |mut entry: Entry| {
        entry.record.key = Some("compacted topics want keys".into());
        entry
    };
    let outcome = log.append(vec![keyed(entry(&spec, settings().record_bytes_max - 100))]).await;
    assert_eq!(outcome, [Ok(0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_replicas_than_brokers_are_refused_for_good() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = TopicSpec { replicas: Some(3), ..new_spec(1) };
    let error = log.create(&spec).await.expect_err("the test's Kafka has one broker");
    assert!(matches!(&error, LogError::Unsupported(why) if why.contains("replicas")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_of_the_engine_are_found_by_name() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let retention = Retention { time: Some(Duration::from_secs(7200)), bytes: Some(1 << 30) };
    let spec = TopicSpec { retention, ..new_spec(3) };
    log.create(&spec).await.expect("the topic can be made");
    let found = log.found(&|_| false).await.expect("topics can be listed");
    assert!(found.contains(&ExistingTopic { name: spec.name.clone(), partitions: 3, retention }));
    assert!(found.iter().all(|topic| !topic.name.starts_with("__")), "Kafka's own topics are not listed");
    let others = log.found(&|name| name == spec.name).await.expect("topics can be listed");
    assert!(others.iter().all(|topic| topic.name != spec.name), "a skipped topic is not listed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_does_not_name_the_retention_leaves_it_as_the_brokers_have_it() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let mut operator = Peer::start(&crate::bootstrap());
    operator.set_config(&spec.name, "retention.ms", "7200000");
    operator.set_config(&spec.name, "retention.bytes", "1000000");
    let grown = TopicSpec { partitions: 2, retention: Retention::default(), ..spec.clone() };
    log.alter(&grown, NamedBounds::NONE).await.expect("the topic can grow");
    wait_for_retention(&mut operator, &spec.name, ["7200000", "1000000"]).await;
    log.alter(&grown, NamedBounds { time: true, bytes: false }).await.expect("the topic can be altered");
    wait_for_retention(&mut operator, &spec.name, ["-1", "1000000"]).await;
}

/// Waits: a broker shows a changed setting after it has received the change from the controllers.
async fn wait_for_retention(operator: &mut Peer, topic: &str, wanted: [&str; 2]) {
    let mut shown = [String::new(), String::new()];
    for _ in 0..SETTING_POLLS_MAX {
        let set = operator.configs(topic);
        shown = ["retention.ms", "retention.bytes"].map(|name| set[name].as_str().unwrap_or_default().to_owned());
        if shown == wanted {
            return;
        }
        tokio::time::sleep(SETTING_POLL).await;
    }
    panic!("the retention is {shown:?} instead of {wanted:?}");
}

/// An entry for the topic's first partition whose record has that size.
fn entry(spec: &TopicSpec, size: usize) -> Entry {
    entry_of_size(PartitionId::new(spec.number, 0), size)
}
