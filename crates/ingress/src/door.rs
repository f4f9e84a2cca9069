//! What all endpoints share: the ports, the registry, the keys, the bounds. Stateless but for counters and caches.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use whimbrel_model::hold::shard_of;
use whimbrel_model::ports::{LogError, ReceiptsError};
use whimbrel_model::{EVENTS_TOPIC, HOLDS_TOPIC, IdMint, PartitionId};

use super::keys::KeyRing;
use super::load::InFlight;
use super::settings::ReceiveSettings;
use super::{Ports, StartError};
use crate::metric_names::PublishMetrics;
use whimbrel_catalogue::subscriptions::Subscriptions;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::system::patiently;
use whimbrel_catalogue::topics::{Registry, Topic, TopicError};

/// How long `/readyz` waits for the log.
const READY_WITHIN: Duration = Duration::from_secs(1);

pub(crate) struct Door {
    pub(crate) ports: Ports,
    pub(crate) settings: ReceiveSettings,
    pub(crate) registry: Arc<Registry>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) stats: Arc<TopicStats>,
    /// The topic of all holds: its partitions are the shards, and never change.
    pub(crate) holds: Arc<Topic>,
    pub(crate) mint: Arc<IdMint>,
    pub(crate) keys: KeyRing,
    /// Bodies and payloads that the log has not yet answered for.
    pub(crate) in_flight: Arc<InFlight>,
    /// Answers with messages that clients have not yet taken.
    pub(crate) answers: Arc<InFlight>,
    pub(crate) tails: Arc<Semaphore>,
    pub(crate) figures: PublishMetrics,
}

impl Door {
    pub(super) async fn open(
        ports: Ports,
        registry: Arc<Registry>,
        subscriptions: Arc<Subscriptions>,
        stats: Arc<TopicStats>,
        settings: ReceiveSettings,
    ) -> Result<Self, StartError> {
        let holds = registry.get(HOLDS_TOPIC).ok_or_else(|| TopicError::Unknown(HOLDS_TOPIC.to_owned()))?;
        // The log knows its topics now, and nothing is accepted yet: what a crash cut off from the receipts is made good from it.
        let partitions: Vec<_> = registry.all().iter().flat_map(|topic| topic.all_partitions()).collect();
        let is_log_away = |error: &ReceiptsError| matches!(error, ReceiptsError::Log(LogError::Unavailable(_)));
        patiently("receipts", is_log_away, async || ports.receipts.recover(&partitions).await).await?;
        // A hasher's random seed is as good a beginning for the counter of ids as any, and costs no dependency.
        let start = RandomState::new().hash_one(ports.clock.now()) as u32;
        Ok(Self {
            mint: Arc::new(IdMint::new(settings.node, start)),
            keys: KeyRing::new(&settings.keys),
            in_flight: InFlight::new(settings.in_flight_bytes_max, "into the log"),
            answers: InFlight::new(settings.answer_bytes_max, "to clients"),
            tails: Arc::new(Semaphore::new(settings.tails_max.min(Semaphore::MAX_PERMITS))),
            figures: PublishMetrics::new(),
            ports,
            settings,
            registry,
            subscriptions,
            stats,
            holds,
        })
    }

    /// The partition that everything about a hold is written to.
    pub(crate) fn shard_of(&self, id: &str) -> PartitionId {
        self.holds.partition(shard_of(id, self.holds.partitions()))
    }

    /// What an operator should know of a process that should get requests.
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

    /// Why this process should get no requests now: nothing, where it should.
    pub(crate) async fn reasons_not_ready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.settings.shutdown.is_cancelled() {
            reasons.push("the server is ending".to_owned());
        }
        match self.ports.log.refusal() {
            // It passes, and meanwhile everything but publishing works.
            None | Some(LogError::DiskFull(_)) => {}
            Some(error) => reasons.push(error.to_string()),
        }
        let Some(events) = self.registry.get(EVENTS_TOPIC) else {
            reasons.push("the system's topics are not there".to_owned());
            return reasons;
        };
        match tokio::time::timeout(READY_WITHIN, self.ports.log.bounds(events.partition(0))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => reasons.push(error.to_string()),
            Err(_) => reasons.push("the log does not answer".to_owned()),
        }
        reasons.extend(self.ports.store_health.problems());
        if let Some(reachability) = &self.ports.reachability {
            reasons.extend(reachability.reasons_not_ready().await);
        }
        reasons
    }
}
