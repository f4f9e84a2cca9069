//! `whimbrel tail`: prints a topic's messages as they arrive, until Ctrl-C.

use std::process::ExitCode;

use futures_util::StreamExt as _;
use whimbrel_client::{Position, TailFrom};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{print_json, print_line, shown_payload};
use super::read::position;

/// Maximum length of a payload in a line, in characters.
const PAYLOAD_SHOWN_CHARS: usize = 1000;

#[derive(Debug, clap::Args)]
pub struct TailArgs {
    /// The topic
    topic: String,
    /// Only this partition
    #[arg(short, long)]
    partition: Option<u32>,
    /// Start position: earliest, latest, an offset, or a time [default: latest]
    #[arg(short, long, value_name = "PLACE", value_parser = position)]
    from: Option<Position>,
    /// End after this number of messages
    #[arg(short, long, value_name = "COUNT")]
    limit: Option<u64>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub fn run(args: TailArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    let from = TailFrom { partition: args.partition, position: args.from, last_event_id: None };
    converse(async {
        let mut tail = client.tail(&args.topic, &from).await?;
        let mut left = args.limit.unwrap_or(u64::MAX);
        while left > 0 {
            let next = tokio::select! {
                next = tail.next() => next,
                _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            };
            let Some(message) = next else {
                eprintln!("the server ended the stream");
                break;
            };
            let message = message?;
            left -= 1;
            if args.connect.json {
                print_json(&message)?;
                continue;
            }
            let key = message.key.as_deref().map_or(String::new(), |key| format!(" [{key}]"));
            print_line(&format!(
                "{} {}/{}{key} {}",
                message.published_at,
                message.partition,
                message.offset,
                shown_payload(&message, PAYLOAD_SHOWN_CHARS)
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
