//! Starting: what is said when Kafka is not there or an option is wrong, and what is said loudly when it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_engines::kafka::{KafkaLog, KafkaSettings, KafkaStartError};
use whimbrel_model::TopicSpec;
use whimbrel_model::ports::{LogError, LogTopics};

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
async fn a_topic_of_others_with_a_smaller_limit_keeps_it() {
    needs_kafka!();
    let small = KafkaSettings { record_bytes_max: 10_000, ..settings() };
    let spec = new_spec(1);
    connect(small).await.create(&spec).await.expect("the topic can be made");
    let log = connect(settings()).await;
    log.create(&spec).await.expect("the topic is there");
    let partition = whimbrel_model::PartitionId::new(spec.number, 0);
    let entry = |size: usize| whimbrel_model::ports::Entry {
        partition,
        record: whimbrel_model::Record {
            key: None,
            value: vec![b'x'; size].into(),
            headers: whimbrel_model::Headers::EMPTY,
            timestamp: whimbrel_model::Timestamp::from_millis(1_700_000_000_000),
        },
    };
    let outcome = whimbrel_model::ports::Log::append(&*log, vec![entry(10_000), entry(10_001)]).await;
    assert_eq!(outcome[0], Ok(0));
    assert_eq!(outcome[1], Err(LogError::TooLarge { size: 10_001, limit: 10_000 }));
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
