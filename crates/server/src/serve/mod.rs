//! The server: opens the engines, passes them to the roles as ports, and serves. It closes everything in the reverse order.
//!
//! The main thread has a small runtime for signals, accepting, and the roles' background tasks. The workers of `listen.rs` serve requests.
//! Code of this module must not block a worker.

mod banner;
mod clock;
mod cluster;
mod deliveries;
mod descriptors;
mod guard;
mod listen;
mod origins;
mod people;
mod people_wiring;
mod request_check;
mod telemetry;
mod wiring;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_catalogue::topics::{Registry, RegistryPorts, SystemTopics, open_topics};
use whimbrel_cluster::reachability::Reachability;
use whimbrel_cluster::{LocalDispatch, LocalHolds, ShardOwner, ShardOwners, resignations};
use whimbrel_engines::resolve::Engines;
use whimbrel_holds::{Center, CenterPorts};
use whimbrel_ingress::events::EventWriter;
use whimbrel_ingress::{Ports, Receive, readiness};
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_model::{Clock, EVENTS_TOPIC, HOLDS_TOPIC, IdMint, StoreHealth};
use whimbrel_people::linger::LingerLimits;

use self::clock::ProcessClock;
use self::cluster::{ClusterNode, NoCenter, NoOwner, NodeIdentity};
use self::deliveries::Deliveries;
use self::descriptors::Descriptors;
use self::guard::Guard;
use self::listen::ListenSettings;
use self::people::{People, PeopleParts, PeopleServices};
use crate::cli::CliError;
use crate::config::{Config, CoordinationEngineName, StateEngineName};

pub use self::clock::check_note as check_clock_note;
pub use self::people_wiring::key_problems;
pub use self::wiring::{engine_settings, kafka_file_problem};

const EXIT_INTERRUPTED: i32 = 130;

pub fn run(config: Config) -> Result<ExitCode, CliError> {
    telemetry::start_lines(&config);
    // The recorder must exist before any role or engine records a metric.
    let figures = telemetry::start_figures()?;
    keep_to_small_pages();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        end_on_signals(shutdown.clone())?;
        // The addresses come first: if one is in use, nothing has been opened or created yet.
        let listener = bind(config.process.listen)?;
        let internal = match config.coordination.engine {
            CoordinationEngineName::Process => None,
            CoordinationEngineName::Etcd => Some(bind(config.process.internal_listen)?),
        };
        let process_clock = ProcessClock::start(&config);
        let clock = process_clock.clock();
        let events = EventWriter::new(Arc::clone(&clock));
        let descriptors = Arc::new(Descriptors::raise_limit(config.process.connections_max, events.sink()));
        let engines = wiring::open_engines(&config, Arc::clone(&clock), events.sink()).await?;
        let closed = CancellationToken::new();
        let watch = process_clock.watch(events.sink(), closed.clone());
        let server = ServerRun { config: &config, engines: &engines, clock, events, descriptors, shutdown };
        let outcome = server.run(listener, internal, figures).await;
        engines.close().await;
        closed.cancel();
        watch.await.ok();
        outcome.map(|()| ExitCode::SUCCESS)
    })
}

/// Asks the kernel not to use huge pages for this process.
///
/// The allocator requests huge pages; then a few live bytes keep 2 MiB each. That increased the memory of many idle connections by more
/// than half. If the kernel refuses, only memory is wasted.
fn keep_to_small_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable huge pages");
    }
}

/// The server with its open engines.
struct ServerRun<'a> {
    config: &'a Config,
    engines: &'a Engines,
    clock: Arc<dyn Clock>,
    events: Arc<EventWriter>,
    descriptors: Arc<Descriptors>,
    shutdown: CancellationToken,
}

impl ServerRun<'_> {
    /// Starts the roles, serves, and closes them in the reverse order.
    async fn run(
        self,
        listener: TcpListener,
        internal: Option<TcpListener>,
        figures: PrometheusHandle,
    ) -> Result<(), CliError> {
        let address = listener.local_addr()?;
        let registry = self.open_registry().await?;
        let folding = banner::folding(self.engines, &registry).await;
        let (resign, resignations) = resignations();
        let mut deliveries =
            Deliveries::open(self.config, self.engines, &registry, &self.clock, self.events.sink()).await?;
        let center = if self.config.process.roles.center {
            let ports = CenterPorts {
                log: Arc::clone(&self.engines.log),
                timers: Arc::clone(&self.engines.timers),
                registry: Arc::clone(&registry),
                clock: Arc::clone(&self.clock),
                events: self.events.sink(),
                stats: Arc::clone(&deliveries.stats),
                resign,
            };
            Some(Center::start(ports, wiring::holds_settings(self.config)).map_err(cannot_start)?)
        } else {
            None
        };
        let identity = NodeIdentity::of(self.config, internal, address)?;
        let people_parts = self.people_parts(&registry);
        let mut people = People::open(&people_parts, &identity).await?;
        let LocalOwners { duties, desk, dispatch_desk } = LocalOwners::of(center.as_ref(), &deliveries);
        let parts = cluster::ClusterParts {
            coordination: Arc::clone(&self.engines.coordination),
            duties,
            desk,
            dispatch_desk,
            call_desks: people.call_desks(deliveries.worker.clone()),
            resignations,
            push: people.family(),
            clock: Arc::clone(&self.clock),
            events: self.events.sink(),
            descriptors: Arc::clone(&self.descriptors),
            shards: registry.get(HOLDS_TOPIC).map_or(self.config.holds.shards, |topic| topic.partitions()),
            add_services: people.services(),
        };
        let joined = ClusterNode::join(self.config, identity, parts).await;
        let served = match joined {
            Ok(cluster) => {
                let reach = people.begin(&people_parts, &cluster);
                deliveries.begin(&cluster, |workers| people.callbacks(&cluster, workers));
                let joined = JoinedNode {
                    registry: &registry,
                    cluster: &cluster,
                    deliveries: &deliveries,
                    people: &people,
                    reach,
                };
                let served = self.serve(listener, joined, figures, folding).await;
                cluster.leave().await;
                served
            }
            Err(failure) => Err(failure),
        };
        deliveries.close().await;
        people.close().await;
        if let Some(center) = center {
            center.close().await;
        }
        served
    }

    /// Serves until a shutdown. Then devices disconnect first, and requests in progress end; the owners of holds and inboxes answer until
    /// then.
    async fn serve(
        &self,
        listener: TcpListener,
        joined: JoinedNode<'_>,
        figures: PrometheusHandle,
        folding: Option<String>,
    ) -> Result<(), CliError> {
        let address = listener.local_addr()?;
        let mut described = wiring::describe(self.config, self.engines);
        described.extend(folding);
        let port = self.open_public_port(&joined, address, &described).await?;
        // The watch stops after the last request: until then other nodes wait for this one to confirm growths.
        let (watched, watch_ends) = (Arc::clone(joined.registry), CancellationToken::new());
        let no_more_requests = watch_ends.clone();
        let memberships = joined.cluster.memberships.clone();
        let watch = tokio::spawn(async move { watched.watch(memberships, watch_ends).await });
        let upkeep = tokio::spawn(telemetry::keep_figures(figures.clone()));
        let router = port.router().route("/metrics", get(move || async move { figures.render() }));
        let (router, guard) = (joined.reach.mount(router), Guard::of(self.config));

        banner::print(&banner::render(self.config, address, joined.cluster.internal_address, &described));
        let (reach, wait) = (joined.reach, self.config.process.shutdown_timeout);
        let (asked, ends) = (self.shutdown.clone(), CancellationToken::new());
        let devices_gone = ends.clone();
        let leaving = tokio::spawn(async move {
            asked.cancelled().await;
            reach.go_away(wait).await;
            devices_gone.cancel();
        });
        let (settings, descriptors) = (listen_settings(self.config), Arc::clone(&self.descriptors));
        let served = listen::serve(listener, router, guard, settings, descriptors, ends).await;
        tracing::info!("no more requests; closing the engines");
        self.shutdown.cancel();
        leaving.abort();
        upkeep.abort();
        port.close().await;
        no_more_requests.cancel();
        if let Err(error) = watch.await {
            tracing::error!(%error, "the watch on the catalogue did not end cleanly");
        }
        Ok(served?)
    }

    async fn open_registry(&self) -> Result<Arc<Registry>, CliError> {
        let ports = RegistryPorts {
            log: Arc::clone(&self.engines.log),
            log_topics: Arc::clone(&self.engines.log_topics),
            catalogue: Arc::clone(&self.engines.catalogue),
            coordination: match self.config.coordination.engine {
                CoordinationEngineName::Process => None,
                CoordinationEngineName::Etcd => Some(Arc::clone(&self.engines.coordination)),
            },
            clock: Arc::clone(&self.clock),
            events: self.events.sink(),
        };
        let (shards, push_partitions) = (self.config.holds.shards, self.config.push.partitions);
        let system = SystemTopics { shards, push_partitions };
        let registry = open_topics(ports, wiring::topic_defaults(self.config), system).await.map_err(cannot_start)?;
        for (topic, wanted, setting) in
            [(HOLDS_TOPIC, shards, "holds.shards"), (PUSH_TOPIC, push_partitions, "push.partitions")]
        {
            let present = registry.get(topic).map_or(wanted, |topic| topic.partitions());
            if present != wanted {
                tracing::warn!(
                    present,
                    wanted,
                    "`{setting}` was fixed at the first start; the changed value is ignored"
                );
            }
        }
        Ok(registry)
    }

    fn people_parts<'a>(&'a self, registry: &'a Arc<Registry>) -> PeopleParts<'a> {
        let (config, engines, clock) = (self.config, self.engines, &self.clock);
        PeopleParts { config, engines, registry, clock, events: self.events.sink() }
    }

    async fn open_public_port(
        &self,
        joined: &JoinedNode<'_>,
        address: SocketAddr,
        described: &[String],
    ) -> Result<PublicPort, CliError> {
        let JoinedNode { registry, cluster, deliveries, people, reach } = joined;
        if !self.config.process.roles.receive {
            return Ok(self.open_health_port(registry, cluster.node, Arc::clone(&reach.reachability)));
        }
        let ports = Ports {
            log: Arc::clone(&self.engines.log),
            log_topics: Arc::clone(&self.engines.log_topics),
            receipts: Arc::clone(&self.engines.receipts),
            holds: Arc::clone(&cluster.holds),
            dispatch: Arc::clone(&cluster.dispatch),
            progress: Arc::clone(&self.engines.progress),
            carriers: Arc::clone(&reach.carriers),
            shared_inboxes: (self.config.push.engine == StateEngineName::Redis)
                .then(|| Arc::clone(&self.engines.inbox)),
            presence: Arc::clone(&reach.presence),
            devices: Arc::clone(&self.engines.devices),
            reachability: Some(Arc::clone(&reach.reachability)),
            store_health: Arc::clone(&self.engines.store_health),
            platforms: Arc::clone(&people.platforms),
            workers: deliveries.live_workers(cluster),
            clock: Arc::clone(&self.clock),
        };
        let settings = wiring::receive_settings(
            self.config,
            cluster.node,
            banner::local_url(address),
            described.to_vec(),
            wiring::destination_guards(self.config)?,
            &self.shutdown,
        );
        let (subscriptions, stats) = (Arc::clone(&deliveries.subscriptions), Arc::clone(&deliveries.stats));
        let (registry, events) = (Arc::clone(*registry), Arc::clone(&self.events));
        let receive = Receive::start(ports, registry, subscriptions, stats, settings, events).await;
        Ok(PublicPort::Whole(Box::new(receive.map_err(cannot_start)?)))
    }

    /// A node without the role `receive` serves health checks, and writes its own events.
    fn open_health_port(&self, registry: &Registry, node: u16, reachability: Arc<Reachability>) -> PublicPort {
        let events_topic = registry.get(EVENTS_TOPIC);
        let writer = events_topic.map(|topic| {
            let (log, events, ends) = (Arc::clone(&self.engines.log), Arc::clone(&self.events), self.shutdown.clone());
            // The start of the counter distinguishes the ids of two runs, unless both started in the same millisecond.
            let start = self.clock.now().as_millis() as u32;
            let mint = Arc::new(IdMint::new(node, start));
            tokio::spawn(async move { events.run(log, mint, topic.partition(0), ends).await })
        });
        PublicPort::Small { writer, reachability, store_health: Arc::clone(&self.engines.store_health) }
    }
}

/// The state after the node has joined.
struct JoinedNode<'a> {
    registry: &'a Arc<Registry>,
    cluster: &'a ClusterNode,
    deliveries: &'a Deliveries,
    people: &'a People,
    reach: PeopleServices,
}

/// The owners of shards on this node, as other nodes call them.
struct LocalOwners {
    duties: Arc<dyn ShardOwner>,
    desk: Arc<dyn LocalHolds>,
    dispatch_desk: Arc<dyn LocalDispatch>,
}

impl LocalOwners {
    /// One node owns both the holds and the subscriptions of a shard.
    fn of(center: Option<&Arc<Center>>, deliveries: &Deliveries) -> Self {
        match (center, &deliveries.dispatcher) {
            (Some(center), Some(dispatcher)) => Self {
                duties: Arc::new(ShardOwners(vec![center.clone(), dispatcher.clone()])),
                desk: center.clone(),
                dispatch_desk: dispatcher.clone(),
            },
            _ => {
                let nobody = Arc::new(NoCenter { stats: Arc::clone(&deliveries.stats) });
                Self { duties: Arc::new(NoOwner), desk: nobody.clone(), dispatch_desk: nobody }
            }
        }
    }
}

enum PublicPort {
    Whole(Box<Receive>),
    Small { writer: Option<JoinHandle<()>>, reachability: Arc<Reachability>, store_health: Arc<StoreHealth> },
}

impl PublicPort {
    fn router(&self) -> Router {
        match self {
            Self::Whole(receive) => receive.router(),
            Self::Small { reachability, store_health, .. } => {
                let (reachability, store_health) = (Arc::clone(reachability), Arc::clone(store_health));
                let readyz = async move || {
                    let mut reasons = store_health.problems();
                    reasons.extend(reachability.reasons_not_ready().await);
                    let mut warnings = store_health.warnings();
                    warnings.extend(reachability.warnings());
                    readiness(reasons, warnings)
                };
                Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(readyz))
            }
        }
    }

    async fn close(self) {
        match self {
            Self::Whole(receive) => receive.close().await,
            Self::Small { writer, .. } => {
                if let Some(Err(error)) = futures_util::future::OptionFuture::from(writer).await {
                    tracing::error!(%error, "the writer of events did not end cleanly");
                }
            }
        }
    }
}

fn cannot_start(error: impl std::fmt::Display) -> CliError {
    CliError::new(format!("the server cannot start: {error}"))
}

fn bind(address: SocketAddr) -> Result<TcpListener, CliError> {
    listen::bind(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => CliError::new(format!("{address} is in use by another process"))
            .with_hint("stop that process, or use another address: whimbrel serve --listen 127.0.0.1:7610"),
        std::io::ErrorKind::PermissionDenied => CliError::new(format!("cannot listen on {address}: {error}"))
            .with_hint("ports below 1024 need privileges; use a higher one with --listen"),
        std::io::ErrorKind::AddrNotAvailable => CliError::new(format!("{address} is not an address of this machine"))
            .with_hint("listen on 127.0.0.1, or on 0.0.0.0 with API keys"),
        _ => CliError::new(format!("cannot listen on {address}: {error}")),
    })
}

/// Headers of a request beside those of its message, from clients, proxies and browsers.
const HTTP_HEADERS_MAX: usize = 36;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn listen_settings(config: &Config) -> ListenSettings {
    ListenSettings {
        workers: config.process.workers.unwrap_or_else(cores),
        connections_max: config.process.connections_max,
        header_timeout: config.process.header_timeout,
        shutdown_timeout: config.process.shutdown_timeout,
        linger: LingerLimits { bytes: config.limits.linger_bytes, timeout: config.limits.linger_timeout },
        headers_max: config.limits.headers + HTTP_HEADERS_MAX,
    }
}

/// The first Ctrl-C or SIGTERM starts a shutdown. A second one exits at once, which loses no acknowledged message.
fn end_on_signals(shutdown: CancellationToken) -> Result<(), CliError> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {}
        }
        tracing::info!("shutting down after the requests in progress; a second signal exits at once");
        shutdown.cancel();
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {}
        }
        std::process::exit(EXIT_INTERRUPTED);
    });
    Ok(())
}
