//! The Kafka engine against a real broker: the conformance suite of the ports, other Kafka programs, TLS and SASL, crashes.
//!
//! `WHIMBREL_TEST_KAFKA` names the broker, `WHIMBREL_TEST_KAFKA_LIBS` the folder of Kafka's jars and `WHIMBREL_TEST_KAFKA_PYTHON` a Python
//! with confluent-kafka; `scripts/services up` starts and installs them and writes the variables into `target/services/env`. Without
//! them these tests fail, unless `WHIMBREL_TEST_QUICK=1` allows to skip them.

#![cfg(feature = "kafka")]

mod access;
mod broker;
mod compression;
mod hanging_transactions;
mod interoperability;
mod outage;
mod programs;
mod reads;
mod rejected_commits;
mod security;
mod start;

use std::sync::{Arc, Mutex};

use whimbrel_engines::conformance::log::{LogFactory, LogTraits, OpenLog};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_model::ports::PortFuture;
use whimbrel_model::{Event, EventSink};

whimbrel_engines::conformance_suite!(log, Kafka);

/// The shared broker.
struct Kafka;

impl LogFactory for Kafka {
    fn open(&self) -> PortFuture<'_, OpenLog> {
        Box::pin(async {
            let log = connect(settings()).await;
            OpenLog { log: log.clone(), topics: log, store: Arc::new(()) }
        })
    }

    fn open_beside<'a>(&'a self, _first: &'a OpenLog) -> PortFuture<'a, Option<OpenLog>> {
        Box::pin(async { Some(self.open().await) })
    }

    fn reopen(&self, log: OpenLog) -> PortFuture<'_, OpenLog> {
        drop(log);
        self.open()
    }

    fn traits(&self) -> LogTraits {
        LogTraits { record_bytes_max: settings().record_bytes_max, trim_piece_bytes: 0 }
    }

    fn skip(&self) -> Option<String> {
        skip_reason()
    }
}

/// Why tests with the shared broker are skipped. Without a broker they fail, unless `WHIMBREL_TEST_QUICK=1`.
fn skip_reason() -> Option<String> {
    if std::env::var_os("WHIMBREL_TEST_KAFKA").is_some() {
        return None;
    }
    let quick = std::env::var("WHIMBREL_TEST_QUICK").is_ok_and(|value| value == "1");
    assert!(
        quick,
        "these tests need Kafka: run `scripts/services up` and `source target/services/env`, \
         or set WHIMBREL_TEST_QUICK=1 to skip them"
    );
    Some("the tests of the Kafka engine need Kafka, and WHIMBREL_TEST_KAFKA names none".to_owned())
}

/// Skips a test that needs the shared broker where there is none and a quick run allows that.
macro_rules! needs_kafka {
    () => {
        if let Some(why) = crate::skip_reason() {
            whimbrel_engines::conformance::say_skipped(&why);
            return;
        }
    };
}
pub(crate) use needs_kafka;

fn bootstrap() -> String {
    std::env::var("WHIMBREL_TEST_KAFKA").expect("the broker's address")
}

fn settings() -> KafkaSettings {
    KafkaSettings::new(bootstrap())
}

async fn connect(settings: KafkaSettings) -> Arc<KafkaLog> {
    KafkaLog::connect(settings, Arc::new(|_| {})).await.expect("Kafka can be reached")
}

fn kept_events() -> (EventSink, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = events.clone();
    (Arc::new(move |event| kept.lock().unwrap().push(event)), events)
}
