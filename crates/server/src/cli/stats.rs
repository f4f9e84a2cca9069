//! `whimbrel stats`: the statistics of a topic, by minute.

use std::process::ExitCode;

use whimbrel_client::{DurationFigures, TopicFigures};

use super::CliError;
use super::connect::ConnectArgs;
use super::output::table;

#[derive(Debug, clap::Args)]
pub struct StatsArgs {
    /// The topic
    topic: String,
    /// Start time [default: an hour ago]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End time [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub fn run(args: StatsArgs) -> Result<ExitCode, CliError> {
    let StatsArgs { topic, from, to, connect } = args;
    connect.show(async |client| client.topic_figures(&topic, from.as_deref(), to.as_deref()).await, shown)
}

fn shown(figures: &TopicFigures) -> String {
    if figures.minutes.is_empty() {
        return "no activity in that time".to_owned();
    }
    let mut rows = table([
        "minute",
        "published",
        "fired",
        "delivered",
        "failed",
        "to delivery: average, p99",
        "callback: average, p99",
        "hold lateness: average, p99",
    ]);
    for minute in &figures.minutes {
        rows.add_row([
            minute.minute.clone(),
            minute.published.to_string(),
            minute.fired.to_string(),
            minute.delivered.to_string(),
            minute.failed.to_string(),
            spread(minute.publish_to_delivery.as_ref()),
            spread(minute.callback.as_ref()),
            spread(minute.lateness.as_ref()),
        ]);
    }
    rows.to_string()
}

fn spread(figures: Option<&DurationFigures>) -> String {
    figures.map_or(String::new(), |of| format!("{:.1} ms, {:.1} ms", of.average_ms, of.p99_ms))
}
