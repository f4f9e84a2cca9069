//! The state that all endpoints share: ports, registries, keys and limits. It keeps nothing durable, only counters and caches.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use whimbrel_model::hold::shard_of;
use whimbrel_model::ports::{LogError, ReceiptsError};
use whimbrel_model::{EVENTS_TOPIC, HOLDS_TOPIC, IdMint, PartitionId};

use super::{Ports, StartError};
use crate::keys::KeyRing;
use crate::load::InFlightBytes;
use crate::metric_names::PublishMetrics;
use crate::settings::ReceiveSettings;
use whimbrel_catalogue::subscriptions::SubscriptionRegistry;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::system::retry_while_log_unavailable;
use whimbrel_catalogue::topics::{Registry, Topic, TopicError};

/// Timeout of `/readyz` for the log.
const READY_WITHIN: Duration = Duration::from_secs(1);

pub(crate) struct ApiState {
    pub(crate) ports: Ports,
    pub(crate) settings: ReceiveSettings,
    pub(crate) registry: Arc<Registry>,
    pub(crate) subscriptions: Arc<SubscriptionRegistry>,
    pub(crate) stats: Arc<TopicStats>,
    /// The topic of all holds. Its partitions are the shards, and never change.
    pub(crate) holds: Arc<Topic>,
    pub(crate) mint: Arc<IdMint>,
    pub(crate) keys: KeyRing,
    /// Bodies and payloads that the log has not stored yet.
    pub(crate) in_flight: Arc<InFlightBytes>,
    /// Answers with messages that clients have not received yet.
    pub(crate) answers: Arc<InFlightBytes>,
    pub(crate) tails: Arc<Semaphore>,
    pub(crate) metrics: PublishMetrics,
}

impl ApiState {
    pub(super) async fn open(
        ports: Ports,
        registry: Arc<Registry>,
        subscriptions: Arc<SubscriptionRegistry>,
        stats: Arc<TopicStats>,
        settings: ReceiveSettings,
    ) -> Result<Self, StartError> {
        let holds = registry.get(HOLDS_TOPIC).ok_or_else(|| TopicError::Unknown(HOLDS_TOPIC.to_owned()))?;
        // The log has its topics now, and no publish is accepted yet: receipts that a crash lost are restored from the log.
        let partitions: Vec<_> = registry.all().iter().flat_map(|topic| topic.all_partitions()).collect();
        let is_log_away = |error: &ReceiptsError| matches!(error, ReceiptsError::Log(LogError::Unavailable(_)));
        retry_while_log_unavailable("receipts", is_log_away, async || ports.receipts.recover(&partitions).await)
            .await?;
        // The random seed of a hasher is a good start for the id counter, and needs no dependency.
        let start = RandomState::new().hash_one(ports.clock.now()) as u32;
        Ok(Self {
            mint: Arc::new(IdMint::new(settings.node, start)),
            keys: KeyRing::new(&settings.keys),
            in_flight: InFlightBytes::new(settings.in_flight_bytes_max, "into the log"),
            answers: InFlightBytes::new(settings.answer_bytes_max, "to clients"),
            tails: Arc::new(Semaphore::new(settings.tails_max.min(Semaphore::MAX_PERMITS))),
            metrics: PublishMetrics::new(),
            ports,
            settings,
            registry,
            subscriptions,
            stats,
            holds,
        })
    }

    /// The partition to which all records of a hold are written.
    pub(crate) fn shard_of(&self, id: &str) -> PartitionId {
        self.holds.partition(shard_of(id, self.holds.partitions()))
    }

    /// Conditions that an operator should see, although this process serves requests.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.ports.store_health.warnings();
        if !self.registry.has_mapping_lease() {
            warnings.push(
                "this node has no session with the coordination service (etcd): it rejects publishes by key with 503 \
                 `no_session`. Check etcd and the network to it"
                    .to_owned(),
            );
        }
        warnings.extend(self.ports.reachability.iter().flat_map(|reachability| reachability.warnings()));
        warnings
    }

    /// Why this process should get no requests now. Empty if it should.
    pub(crate) async fn reasons_not_ready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.settings.shutdown.is_cancelled() {
            reasons.push("the server is shutting down".to_owned());
        }
        match self.ports.log.refusal() {
            // A full disk is temporary, and everything but publishing works.
            None | Some(LogError::DiskFull(_)) => {}
            Some(error) => reasons.push(error.to_string()),
        }
        let Some(events) = self.registry.get(EVENTS_TOPIC) else {
            reasons.push("the system topics are missing".to_owned());
            return reasons;
        };
        match tokio::time::timeout(READY_WITHIN, self.ports.log.bounds(events.partition(0))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => reasons.push(error.to_string()),
            Err(_) => reasons.push("the log did not answer within 1 s".to_owned()),
        }
        reasons.extend(self.ports.store_health.problems());
        if let Some(reachability) = &self.ports.reachability {
            reasons.extend(reachability.reasons_not_ready().await);
        }
        reasons
    }
}
