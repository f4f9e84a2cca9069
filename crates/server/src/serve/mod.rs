//! The server: engines are opened, handed to the roles as ports, and listened for; ended in the reverse order.
//!
//! The main thread has a small runtime of its own for signals, accepting, and the roles' background tasks. Requests are served by the
//! workers of `listen.rs`. Nothing here blocks a worker.

mod banner;
mod cluster;
mod deliveries;
mod listen;
mod people;
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
use whimbrel_engines::resolve::Engines;
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_model::{Clock, EVENTS_TOPIC, HOLDS_TOPIC, IdMint, SystemClock};
use whimbrel_roles::center::{Center, CenterPorts};
use whimbrel_roles::events::Events;
use whimbrel_roles::owners::{Desk, DispatchDesk, Duties, Together, resignations};
use whimbrel_roles::platforms::Platforms;
use whimbrel_roles::receive::{Ports, Receive};
use whimbrel_roles::topics::{PUSH_PARTITIONS_DEFAULT, Registry, RegistryPorts, SystemTopics, open_topics};

use self::cluster::{Cluster, NoCenter};
use self::deliveries::Deliveries;
use self::listen::ListenSettings;
use self::people::NoPeople;
use crate::cli::Failure;
use crate::config::{Config, CoordinationEngineName};

pub use self::wiring::engine_settings;

/// What the process ends with when it was told twice to end.
const EXIT_INTERRUPTED: i32 = 130;

/// Runs until Ctrl-C or SIGTERM.
pub fn run(config: Config) -> Result<ExitCode, Failure> {
    telemetry::start_lines(&config);
    // The recorder must be there before any role or engine touches a figure.
    let figures = telemetry::start_figures()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        end_on_signals(shutdown.clone())?;
        // The addresses come first: where one is taken, nothing has been opened or made yet.
        let listener = bind(config.listen)?;
        let internal = match config.coordination {
            CoordinationEngineName::Process => None,
            CoordinationEngineName::Etcd => Some(bind(config.internal_listen)?),
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let events = Events::new(Arc::clone(&clock));
        let engines = wiring::open_engines(&config, events.sink()).await?;
        let server = Server { config: &config, engines: &engines, clock, events, shutdown };
        let outcome = server.run(listener, internal, figures).await;
        engines.close().await;
        outcome.map(|()| ExitCode::SUCCESS)
    })
}

/// What is there once the engines are open.
struct Server<'a> {
    config: &'a Config,
    engines: &'a Engines,
    clock: Arc<dyn Clock>,
    events: Arc<Events>,
    shutdown: CancellationToken,
}

impl Server<'_> {
    /// Starts the roles, serves, and ends them in the reverse order.
    async fn run(
        self,
        listener: TcpListener,
        internal: Option<TcpListener>,
        figures: PrometheusHandle,
    ) -> Result<(), Failure> {
        let address = listener.local_addr()?;
        let registry = self.open_registry().await?;
        let folding = banner::folding(self.engines, &registry).await;
        let (resign, resignations) = resignations();
        let mut deliveries =
            Deliveries::open(self.config, self.engines, &registry, &self.clock, self.events.sink()).await?;
        let center = if self.config.roles.center {
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
        let Owners { duties, desk, dispatch_desk } = Owners::of(center.as_ref(), &deliveries);
        let parts = cluster::Parts {
            coordination: Arc::clone(&self.engines.coordination),
            duties,
            desk,
            dispatch_desk,
            worker: deliveries.worker.clone(),
            resignations,
            clock: Arc::clone(&self.clock),
            events: self.events.sink(),
            shards: registry.get(HOLDS_TOPIC).map_or(self.config.holds.shards, |topic| topic.partitions()),
            internal,
            listen: address,
        };
        let joined = Cluster::join(self.config, parts).await;
        let served = match joined {
            Ok(cluster) => {
                deliveries.begin(&cluster);
                let served = self.serve(listener, &registry, &cluster, &deliveries, figures, folding).await;
                cluster.leave().await;
                served
            }
            Err(failure) => Err(failure),
        };
        deliveries.close().await;
        if let Some(center) = center {
            center.close().await;
        }
        served
    }

    /// Serves until the end is asked for; the owners of holds answer until every request under way has ended.
    async fn serve(
        &self,
        listener: TcpListener,
        registry: &Arc<Registry>,
        cluster: &Cluster,
        deliveries: &Deliveries,
        figures: PrometheusHandle,
        folding: Option<String>,
    ) -> Result<(), Failure> {
        let address = listener.local_addr()?;
        let mut described = wiring::describe(self.config, self.engines);
        described.extend(folding);
        let door = self.open_door(registry, cluster, deliveries, address, &described).await?;
        let (watched, watch_ends) = (Arc::clone(registry), self.shutdown.clone());
        let watch = tokio::spawn(async move { watched.watch(watch_ends).await });
        let upkeep = tokio::spawn(telemetry::keep_figures(figures.clone()));
        let router = door.router().route("/metrics", get(move || async move { figures.render() }));

        banner::print(&banner::render(self.config, address, cluster.internal_address, &described));
        let served = listen::serve(listener, router, listen_settings(self.config), self.shutdown.clone()).await;
        tracing::info!("no more requests; closing the engines");
        self.shutdown.cancel();
        upkeep.abort();
        door.close().await;
        if let Err(error) = watch.await {
            tracing::error!(%error, "the watch on the catalogue ended badly");
        }
        Ok(served?)
    }

    async fn open_registry(&self) -> Result<Arc<Registry>, Failure> {
        let ports = RegistryPorts {
            log: Arc::clone(&self.engines.log),
            log_topics: Arc::clone(&self.engines.log_topics),
            catalogue: Arc::clone(&self.engines.catalogue),
            clock: Arc::clone(&self.clock),
            events: self.events.sink(),
        };
        let wanted = self.config.holds.shards;
        let system = SystemTopics { shards: wanted, ..SystemTopics::default() };
        let registry = open_topics(ports, wiring::topic_defaults(self.config), system).await.map_err(cannot_start)?;
        let present = registry.get(HOLDS_TOPIC).map_or(wanted, |topic| topic.partitions());
        if present != wanted {
            tracing::warn!(present, wanted, "`holds.shards` was set at the first start and stays as it is");
        }
        Ok(registry)
    }

    async fn open_door(
        &self,
        registry: &Arc<Registry>,
        cluster: &Cluster,
        deliveries: &Deliveries,
        address: SocketAddr,
        described: &[String],
    ) -> Result<OpenDoor, Failure> {
        if !self.config.roles.receive {
            return Ok(self.open_small_door(registry, cluster.node));
        }
        let partitions = registry.get(PUSH_TOPIC).map_or(PUSH_PARTITIONS_DEFAULT, |topic| topic.partitions());
        let nobody = Arc::new(NoPeople { partitions });
        let platforms = Platforms::open(Arc::clone(&self.engines.catalogue)).await.map_err(cannot_start)?;
        let platforms = Arc::new(platforms);
        let ports = Ports {
            log: Arc::clone(&self.engines.log),
            log_topics: Arc::clone(&self.engines.log_topics),
            receipts: Arc::clone(&self.engines.receipts),
            holds: Arc::clone(&cluster.holds),
            dispatch: Arc::clone(&cluster.dispatch),
            progress: Arc::clone(&self.engines.progress),
            carriers: nobody.clone(),
            presence: nobody.clone(),
            devices: nobody,
            platforms: Arc::clone(&platforms),
            clock: Arc::clone(&self.clock),
        };
        let ends = self.shutdown.clone();
        tokio::spawn(async move { platforms.watch(ends).await });
        let settings = wiring::receive_settings(
            self.config,
            cluster.node,
            banner::local_url(address),
            described.to_vec(),
            wiring::address_guard(self.config)?,
            &self.shutdown,
        );
        let (subscriptions, stats) = (Arc::clone(&deliveries.subscriptions), Arc::clone(&deliveries.stats));
        let (registry, events) = (Arc::clone(registry), Arc::clone(&self.events));
        let receive = Receive::start(ports, registry, subscriptions, stats, settings, events).await;
        Ok(OpenDoor::Whole(Box::new(receive.map_err(cannot_start)?)))
    }

    /// A process without the role `receive` answers whether it lives, and writes its own events.
    fn open_small_door(&self, registry: &Registry, node: u16) -> OpenDoor {
        let events_topic = registry.get(EVENTS_TOPIC);
        let writer = events_topic.map(|topic| {
            let (log, events, ends) = (Arc::clone(&self.engines.log), Arc::clone(&self.events), self.shutdown.clone());
            // Where the counter begins tells the ids of two runs apart, as far as the time of their start does.
            let start = self.clock.now().as_millis() as u32;
            let mint = Arc::new(IdMint::new(node, start));
            tokio::spawn(async move { events.run(log, mint, topic.partition(0), ends).await })
        });
        OpenDoor::Small { writer }
    }
}

/// Who owns shards here, as the others see it.
struct Owners {
    duties: Arc<dyn Duties>,
    desk: Arc<dyn Desk>,
    dispatch_desk: Arc<dyn DispatchDesk>,
}

impl Owners {
    /// The holds of a shard and its subscriptions are owned together.
    fn of(center: Option<&Arc<Center>>, deliveries: &Deliveries) -> Self {
        match (center, &deliveries.dispatcher) {
            (Some(center), Some(dispatcher)) => Self {
                duties: Arc::new(Together(vec![center.clone(), dispatcher.clone()])),
                desk: center.clone(),
                dispatch_desk: dispatcher.clone(),
            },
            _ => {
                let nobody = Arc::new(NoCenter { stats: Arc::clone(&deliveries.stats) });
                Self { duties: nobody.clone(), desk: nobody.clone(), dispatch_desk: nobody }
            }
        }
    }
}

/// What clients find at the public port.
enum OpenDoor {
    Whole(Box<Receive>),
    Small { writer: Option<JoinHandle<()>> },
}

impl OpenDoor {
    fn router(&self) -> Router {
        match self {
            Self::Whole(receive) => receive.router(),
            Self::Small { .. } => {
                Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(|| async { "ok" }))
            }
        }
    }

    async fn close(self) {
        match self {
            Self::Whole(receive) => receive.close().await,
            Self::Small { writer } => {
                if let Some(Err(error)) = futures_util::future::OptionFuture::from(writer).await {
                    tracing::error!(%error, "the writer of events ended badly");
                }
            }
        }
    }
}

fn cannot_start(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("the server cannot start: {error}"))
}

fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    listen::bind(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::new(format!("{address} is in use by another process"))
            .with_hint("end that one, or listen elsewhere: whimbrel serve --listen 127.0.0.1:7610"),
        std::io::ErrorKind::PermissionDenied => Failure::new(format!("listening on {address} is not allowed: {error}"))
            .with_hint("ports below 1024 need privileges; take a higher one with --listen"),
        std::io::ErrorKind::AddrNotAvailable => Failure::new(format!("{address} is not an address of this machine"))
            .with_hint("listen on 127.0.0.1, or on 0.0.0.0 with API keys"),
        _ => Failure::new(format!("{address} cannot be listened on: {error}")),
    })
}

fn listen_settings(config: &Config) -> ListenSettings {
    ListenSettings {
        workers: config.workers,
        connections_max: config.connections_max,
        header_wait: config.header_wait,
        shutdown_wait: config.shutdown_wait,
    }
}

/// The first Ctrl-C or SIGTERM asks everything to end; the second ends the process where it stands, which loses nothing that was
/// acknowledged.
fn end_on_signals(shutdown: CancellationToken) -> Result<(), Failure> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {}
        }
        tracing::info!("ending: requests under way are finished first; once more ends at once");
        shutdown.cancel();
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {}
        }
        std::process::exit(EXIT_INTERRUPTED);
    });
    Ok(())
}
