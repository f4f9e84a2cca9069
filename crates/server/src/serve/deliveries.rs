//! The parts of this node that deliver to subscriptions: the registry, the statistics by the minute, the worker, and the dispatcher of the
//! owned shards. Opened before the node joins the cluster, closed after it has left.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_catalogue::subscriptions::{SubscriptionPorts, SubscriptionRegistry, ensure_notices_subscription};
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Registry;
use whimbrel_dispatch::{DispatchPorts, Dispatcher};
use whimbrel_egress::worker::{PoolParts, WORKER_ROLE, Worker, WorkerPool};
use whimbrel_engines::resolve::Engines;
use whimbrel_ingress::LiveWorkers;
use whimbrel_model::ports::Callbacks;
use whimbrel_model::{Clock, EventSink};

use super::cluster::ClusterNode;
use super::{cannot_start, wiring};
use crate::cli::CliError;
use crate::config::Config;

pub struct Deliveries {
    pub subscriptions: Arc<SubscriptionRegistry>,
    pub stats: Arc<TopicStats>,
    /// `None` without the role `worker`.
    pub worker: Option<Worker>,
    /// `None` without the role `center`.
    pub dispatcher: Option<Arc<Dispatcher>>,
    background: Vec<JoinHandle<()>>,
    ends: CancellationToken,
}

impl Deliveries {
    pub async fn open(
        config: &Config,
        engines: &Engines,
        registry: &Arc<Registry>,
        clock: &Arc<dyn Clock>,
        events: EventSink,
    ) -> Result<Self, CliError> {
        let ports = SubscriptionPorts {
            catalogue: Arc::clone(&engines.catalogue),
            log: Arc::clone(&engines.log),
            registry: Arc::clone(registry),
            clock: Arc::clone(clock),
            events: events.clone(),
        };
        let subscriptions = Arc::new(SubscriptionRegistry::open(ports).await.map_err(cannot_start)?);
        if config.process.roles.center {
            ensure_notices_subscription(&subscriptions).await.map_err(cannot_start)?;
        }
        let stats = TopicStats::new(Arc::clone(clock), Arc::clone(&engines.notebook));
        let worker = if config.process.roles.worker {
            Some(Worker::new(wiring::worker_settings(config, clock)?).map_err(cannot_start)?)
        } else {
            None
        };
        let dispatcher = if config.process.roles.center {
            let ports = DispatchPorts {
                log: Arc::clone(&engines.log),
                registry: Arc::clone(registry),
                subscriptions: Arc::clone(&subscriptions),
                progress: Arc::clone(&engines.progress),
                notebook: Arc::clone(&engines.notebook),
                clock: Arc::clone(clock),
                events,
                stats: Arc::clone(&stats),
            };
            Some(Dispatcher::start(ports, wiring::dispatch_settings(config)).map_err(cannot_start)?)
        } else {
            None
        };
        let ends = CancellationToken::new();
        let (watched, watch_ends) = (Arc::clone(&subscriptions), ends.clone());
        let (counted, count_ends) = (Arc::clone(&stats), ends.clone());
        let background = vec![
            tokio::spawn(async move { watched.watch(watch_ends).await }),
            tokio::spawn(async move { counted.run(count_ends).await }),
        ];
        Ok(Self { subscriptions, stats, worker, dispatcher, background, ends })
    }

    /// Starts deliveries after the node has joined. `in_front` wraps the workers with a handler of other calls.
    pub fn begin(&mut self, cluster: &ClusterNode, in_front: impl FnOnce(Arc<dyn Callbacks>) -> Arc<dyn Callbacks>) {
        let Some(dispatcher) = &self.dispatcher else { return };
        let parts =
            PoolParts { local: self.worker.clone(), name: cluster.name.clone(), peers: Arc::clone(&cluster.peers) };
        let pool = Arc::new(WorkerPool::new(parts));
        let (seeing, sight, ends) = (Arc::clone(&pool), cluster.sight.clone(), self.ends.clone());
        self.background.push(tokio::spawn(async move { seeing.run(sight, ends).await }));
        dispatcher.connect(Arc::clone(&cluster.holds), in_front(pool));
    }

    /// The live workers of all nodes, by name.
    pub fn live_workers(&self, cluster: &ClusterNode) -> LiveWorkers {
        let (sight, own) = (cluster.sight.clone(), self.worker.as_ref().map(|_| cluster.name.clone()));
        Arc::new(move || {
            let view = sight.view();
            let others = view.with_role(WORKER_ROLE).map(|node| node.member.name.clone());
            let others = others.filter(|name| Some(name) != own.as_ref());
            own.iter().cloned().chain(others).collect()
        })
    }

    /// Closes everything after the node has left. Each subscription was released after its last progress.
    pub async fn close(self) {
        if let Some(dispatcher) = self.dispatcher {
            dispatcher.close().await;
        }
        self.ends.cancel();
        for task in self.background {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the deliveries did not end cleanly");
            }
        }
    }
}
