//! What the server says about itself: lines on standard error, and figures for Prometheus.

use std::io::IsTerminal as _;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::Failure;
use crate::config::{Config, TelemetryFormat};

/// How often figures are tidied: what histograms gathered is folded into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Bounds of the buckets of times, in seconds: from below a device's sync to a publisher's patience.
const SECONDS_BUCKETS: [f64; 14] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// The histogram of how late holds fire.
const LATENESS: &str = "whimbrel_holds_lateness_seconds";
/// Bounds of the buckets of lateness: whole milliseconds where promises are made, since due times are of whole milliseconds.
const LATENESS_BUCKETS: [f64; 18] =
    [0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.007_5, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];
/// Bounds of the buckets of counts, such as the messages of a batch.
const COUNT_BUCKETS: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0];

/// Lines on standard error, from here on.
pub fn start_lines(config: &Config) {
    // The configuration was checked; where it changed its mind, silence is worse than the default.
    let filter = config.telemetry_level.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let registry = tracing_subscriber::registry().with(quieted(filter, &config.telemetry_level));
    let outcome = match config.telemetry_format {
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
        eprintln!("warning: nothing is logged: {error}");
    }
}

/// The filter, with libraries that tell of their own inner life at `info` heard from `warn` on, unless they are named.
fn quieted(filter: Targets, level: &str) -> Targets {
    let chatty = ["fjall", "lsm_tree"].into_iter().filter(|name| !level.contains(name));
    let levels = filter.default_level();
    if levels.is_none_or(|level| level < tracing::level_filters::LevelFilter::INFO) {
        return filter;
    }
    filter.with_targets(chatty.map(|name| (name, tracing::Level::WARN)))
}

/// Figures, from here on; must come before the first of them is touched.
pub fn start_figures() -> Result<PrometheusHandle, Failure> {
    let refused = |error: metrics_exporter_prometheus::BuildError| Failure::new(format!("no figures: {error}"));
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("seconds".into()), &SECONDS_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full(LATENESS.into()), &LATENESS_BUCKETS))
        .and_then(|builder| builder.set_buckets(&COUNT_BUCKETS))
        .map_err(refused)?
        .install_recorder()
        .map_err(refused)
}

/// Tidies the figures until it is dropped.
pub async fn keep_figures(figures: PrometheusHandle) {
    let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        interval.tick().await;
        figures.run_upkeep();
    }
}
