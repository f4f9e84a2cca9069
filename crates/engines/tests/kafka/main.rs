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
#[path = "../services/mod.rs"]
mod services;
mod start;

use std::sync::{Arc, Mutex};

use whimbrel_engines::conformance::log::{LogFactory, LogPorts, LogTraits};
use whimbrel_engines::conformance::{Engine, Opens, Place, missing_servers};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_model::ports::PortFuture;
use whimbrel_model::{Event, EventSink};

whimbrel_engines::conformance_suite!([log], Kafka);

const ADDRESS: &str = "WHIMBREL_TEST_KAFKA";

/// The shared broker. All instances have the same place.
struct Kafka;

impl Engine for Kafka {
    fn new_place(&self) -> Place {
        Arc::new(())
    }

    fn skip(&self) -> Option<String> {
        missing_servers(&[ADDRESS])
    }
}

impl Opens<LogPorts> for Kafka {
    fn open_at(&self, _: Place) -> PortFuture<'_, Arc<LogPorts>> {
        Box::pin(async {
            let log = connect(settings()).await;
            Arc::new(LogPorts { log: log.clone(), topics: log })
        })
    }
}

impl LogFactory for Kafka {
    fn traits(&self) -> LogTraits {
        LogTraits { record_bytes_max: settings().record_bytes_max, is_shared: true }
    }
}

fn bootstrap() -> String {
    std::env::var(ADDRESS).expect("the broker's address")
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
