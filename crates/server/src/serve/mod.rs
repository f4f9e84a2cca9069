//! The server: engines are opened, handed to the roles as ports, and listened for; ended in the reverse order.
//!
//! The main thread has a small runtime of its own for signals, accepting, and the roles' background tasks. Requests are served by the
//! workers of `listen.rs`. Nothing here blocks a worker.

mod banner;
mod listen;
mod telemetry;
mod wiring;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::routing::get;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Ask, Holds, HoldsError, PortFuture, Told};
use whimbrel_model::{Clock, SystemClock};
use whimbrel_roles::events::Events;
use whimbrel_roles::receive::{Ports, Receive};
use whimbrel_roles::topics::{RegistryPorts, SHARDS_DEFAULT, open_topics};

use self::listen::ListenSettings;
use crate::cli::Failure;
use crate::config::Config;

/// The holds of a process that knows no center: nothing owns a shard, and only what needs no owner is accepted.
struct NoCenter;

impl Holds for NoCenter {
    fn shards(&self) -> u32 {
        SHARDS_DEFAULT
    }

    fn ask(&self, shard: u32, _: Ask) -> PortFuture<'_, Result<Told, HoldsError>> {
        Box::pin(async move { Err(HoldsError::NoOwner(shard)) })
    }
}

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
        // The address comes first: where it is taken, nothing has been opened or made yet.
        let listener = bind(config.listen)?;
        let address = listener.local_addr()?;

        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let events = Events::new(Arc::clone(&clock));
        let engines = wiring::open_engines(&config, events.sink()).await?;
        let described = vec![format!("log: {}", engines.description), "catalogue, receipts: embedded".to_owned()];
        let ports = Ports {
            log: Arc::clone(&engines.log),
            log_topics: Arc::clone(&engines.log_topics),
            receipts: Arc::clone(&engines.receipts),
            holds: Arc::new(NoCenter),
            clock: Arc::clone(&clock),
        };
        let registry_ports = RegistryPorts {
            log: Arc::clone(&engines.log),
            log_topics: Arc::clone(&engines.log_topics),
            catalogue: Arc::clone(&engines.catalogue),
            clock,
            events: events.sink(),
        };
        let registry = match open_topics(registry_ports, wiring::topic_defaults(&config), SHARDS_DEFAULT).await {
            Ok(registry) => registry,
            Err(error) => {
                engines.close().await;
                return Err(Failure::new(format!("the server cannot start: {error}")));
            }
        };
        let settings = wiring::receive_settings(&config, banner::local_url(address), described.clone(), &shutdown);
        let receive = match Receive::start(ports, Arc::clone(&registry), settings, events).await {
            Ok(receive) => receive,
            Err(error) => {
                engines.close().await;
                return Err(Failure::new(format!("the server cannot start: {error}")));
            }
        };
        let watch_ends = shutdown.clone();
        let watch = tokio::spawn(async move { registry.watch(watch_ends).await });
        let rendered = figures.clone();
        let router = receive.router().route("/metrics", get(move || async move { rendered.render() }));
        let upkeep = tokio::spawn(telemetry::keep_figures(figures));

        banner::print(&banner::render(&config, address, &described));
        let served = listen::serve(listener, router, listen_settings(&config), shutdown.clone()).await;
        tracing::info!("no more requests; closing the engines");
        shutdown.cancel();
        upkeep.abort();
        receive.close().await;
        if let Err(error) = watch.await {
            tracing::error!(%error, "the watch on the catalogue ended badly");
        }
        engines.close().await;
        served?;
        Ok(ExitCode::SUCCESS)
    })
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
