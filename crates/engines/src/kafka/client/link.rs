//! Connections that are opened when they are first needed, and again after they were closed.
//!
//! A link has at most one dial in progress, which all its callers share. The dial continues when a caller stops waiting: the next caller
//! gets its connection. So a broker that is slower than its callers' timeouts is reached nevertheless.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;

use super::cluster::{ANSWER_MAX, KafkaCluster};
use super::connection::{BrokerConnection, CallError};
use super::dial::{BrokerDialer, Dial};

/// The timeout of a caller that waits for a connection. After it, the caller can try another broker.
const CONNECTION_WAIT_MAX: Duration = ANSWER_MAX;

#[derive(Default)]
pub(crate) struct BrokerLink(Mutex<Option<Dial>>);

impl BrokerLink {
    /// The open connection, or a new one. The error names the address and the step that failed.
    pub async fn connection(&self, dialer: &BrokerDialer, address: &str) -> Result<Arc<BrokerConnection>, CallError> {
        match tokio::time::timeout(CONNECTION_WAIT_MAX, self.dial(dialer, address)).await {
            Ok(opened) => opened.map_err(CallError::NotSent),
            Err(_) => {
                let why = format!("{address}: no connection within {} ms", CONNECTION_WAIT_MAX.as_millis());
                Err(CallError::NotSent(why))
            }
        }
    }

    /// The dial that is in progress or has opened the connection; a new one if there is none, or if the connection is closed.
    fn dial(&self, dialer: &BrokerDialer, address: &str) -> Dial {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = current.as_ref().filter(|dial| match (*dial).clone().now_or_never() {
            None => true,
            Some(opened) => opened.is_ok_and(|connection| !connection.is_closed()),
        });
        usable.cloned().unwrap_or_else(|| current.insert(dialer.open(address)).clone())
    }

    /// Whether the connection is open.
    pub fn is_open(&self) -> bool {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = current.as_ref().and_then(|dial| dial.clone().now_or_never());
        opened.is_some_and(|opened| opened.is_ok_and(|connection| !connection.is_closed()))
    }
}

/// Links of one owner, one to each broker. Brokers answer the requests of a connection one after the other, so owners that must not wait
/// for each other have links of their own.
#[derive(Default)]
pub(crate) struct BrokerLinks(Mutex<HashMap<i32, Arc<BrokerLink>>>);

impl BrokerLinks {
    /// The owner's connection to the broker, opened if there is none.
    pub async fn to(&self, cluster: &KafkaCluster, broker: i32) -> Result<Arc<BrokerConnection>, CallError> {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(broker).or_default().clone();
        cluster.connection(&link, broker).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::client::dial::DIALS_PER_BROKER_MAX;
    use crate::kafka::stub_cluster::{Respond, StubCluster};
    use futures_util::future::join_all;

    /// A broker without CPU time: it takes `handshake` for each handshake, one after the other.
    struct Starved {
        handshake: Duration,
    }

    impl Respond for Starved {
        fn opening_delay(&self, _broker: i32) -> Duration {
            self.handshake
        }

        fn is_starved(&self) -> bool {
            true
        }
    }

    async fn cluster_of(brokers: &StubCluster) -> Arc<KafkaCluster> {
        let cluster = brokers.connect();
        while cluster.metadata(Some(&[]), Duration::from_secs(10)).await.is_err() {}
        cluster
    }

    #[tokio::test]
    async fn a_starved_broker_has_few_handshakes_at_once_and_is_reached_by_all() {
        let brokers = StubCluster::start_with(1, Starved { handshake: Duration::from_millis(60) }).await;
        let cluster = cluster_of(&brokers).await;
        let all: Vec<BrokerLinks> = (0..80).map(|_| BrokerLinks::default()).collect();
        // Some callers stop waiting before their turn, and ask again.
        let reached = all.iter().map(|links| async { while links.to(&cluster, 0).await.is_err() {} });
        join_all(reached).await;
        let handshakes = brokers.handshakes();
        assert!(handshakes.at_once <= DIALS_PER_BROKER_MAX, "{handshakes:?}");
        assert_eq!(handshakes.begun, all.len() + 1, "a handshake was given up: {handshakes:?}");
    }

    #[tokio::test]
    async fn a_dial_without_waiting_callers_serves_the_next_caller() {
        let brokers = StubCluster::start_with(1, Starved { handshake: Duration::from_millis(500) }).await;
        let cluster = cluster_of(&brokers).await;
        let links = BrokerLinks::default();
        let mut attempts = 0;
        while tokio::time::timeout(Duration::from_millis(50), links.to(&cluster, 0)).await.is_err() {
            attempts += 1;
        }
        assert!(attempts > 0, "the broker was not slower than its callers");
        assert_eq!(brokers.handshakes().begun, 2, "one for metadata, one for the link");
    }

    #[tokio::test]
    async fn a_link_that_is_dropped_ends_its_dial() {
        let brokers = StubCluster::start_with(1, Starved { handshake: Duration::from_millis(20) }).await;
        let cluster = cluster_of(&brokers).await;
        for _ in 0..DIALS_PER_BROKER_MAX * 3 {
            let links = BrokerLinks::default();
            let _ = tokio::time::timeout(Duration::from_millis(1), links.to(&cluster, 0)).await;
        }
        assert!(BrokerLinks::default().to(&cluster, 0).await.is_ok(), "dials that were dropped have kept their turns");
    }
}
