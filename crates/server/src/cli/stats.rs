//! `whimbrel stats`: the statistics of a topic, by minute.

use std::process::ExitCode;

use serde_json::Value;
use whimbrel_client::TopicFigures;

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{print_json, print_line, table};

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
    let client = args.connect.client()?;
    converse(async {
        let figures = client.topic_figures(&args.topic, args.from.as_deref(), args.to.as_deref()).await?;
        if args.connect.json {
            print_json(&figures)?;
        } else {
            print_line(&shown(&figures))?;
        }
        Ok(ExitCode::SUCCESS)
    })
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
        let of = |name: &str| minute.get(name).map_or(String::new(), plain);
        rows.add_row([
            of("minute"),
            of("published"),
            of("fired"),
            of("delivered"),
            of("failed"),
            spread(minute, "publish_to_delivery"),
            spread(minute, "callback"),
            spread(minute, "lateness"),
        ]);
    }
    rows.to_string()
}

/// The average and the p99 of a minute; empty without measurements.
fn spread(minute: &Value, name: &str) -> String {
    let of = |quantity: &str| minute.get(name)?.get(quantity)?.as_f64();
    match (of("average_ms"), of("p99_ms")) {
        (Some(average), Some(p99)) => format!("{average:.1} ms, {p99:.1} ms"),
        _ => String::new(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
