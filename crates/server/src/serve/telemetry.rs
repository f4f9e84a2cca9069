//! Telemetry of the server: log lines on standard error, and metrics for Prometheus.

use std::io::IsTerminal as _;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::CliError;
use crate::config::{Config, TelemetryFormat};

/// Interval at which histograms fold their samples into buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Bucket bounds of times, in seconds: from below a device's sync to a publisher's timeout.
const SECONDS_BUCKETS: [f64; 14] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
const LATENESS: &str = "whimbrel_holds_lateness_seconds";
/// Bucket bounds of lateness in seconds: multiples of 1 ms around the goals, because due times are in whole milliseconds.
const LATENESS_BUCKETS: [f64; 18] =
    [0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.007_5, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];
/// Bucket bounds of counts, such as the messages of a batch.
const COUNT_BUCKETS: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0];

pub fn start_lines(config: &Config) {
    // Validation has accepted the level. If it fails here, the default is better than no log.
    let filter = config.telemetry.level.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let registry = tracing_subscriber::registry().with(quieted(filter, &config.telemetry.level));
    let outcome = match config.telemetry.format {
        TelemetryFormat::Text => {
            let is_terminal = std::io::stderr().is_terminal();
            let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(is_terminal);
            registry.with(lines).try_init()
        }
        TelemetryFormat::Json => {
            registry.with(tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr)).try_init()
        }
    };
    if let Err(error) = outcome {
        eprintln!("warning: logging is disabled: {error}");
    }
}

/// The filter, with chatty libraries limited to `warn` unless the level names them.
fn quieted(filter: Targets, level: &str) -> Targets {
    let chatty = ["fjall", "lsm_tree"].into_iter().filter(|name| !level.contains(name));
    let levels = filter.default_level();
    if levels.is_none_or(|level| level < tracing::level_filters::LevelFilter::INFO) {
        return filter;
    }
    filter.with_targets(chatty.map(|name| (name, tracing::Level::WARN)))
}

/// Starts metrics. Must run before the first metric is recorded.
pub fn start_figures() -> Result<PrometheusHandle, CliError> {
    let refused =
        |error: metrics_exporter_prometheus::BuildError| CliError::new(format!("cannot start metrics: {error}"));
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("seconds".into()), &SECONDS_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full(LATENESS.into()), &LATENESS_BUCKETS))
        .and_then(|builder| builder.set_buckets(&COUNT_BUCKETS))
        .map_err(refused)?
        .install_recorder()
        .map_err(refused)
}

/// Folds the histograms periodically until it is dropped.
pub async fn keep_figures(figures: PrometheusHandle) {
    let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        interval.tick().await;
        figures.run_upkeep();
    }
}
