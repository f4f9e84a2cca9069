//! `whimbrel read`: messages of one partition.

use std::process::ExitCode;

use whimbrel_client::{Position, ReadFrom};
use whimbrel_model::parse_duration;

use super::Failure;
use super::connect::{ConnectArgs, converse};
use super::output::{print_json, print_line, shown_payload, table};

/// Characters of a payload that a table shows.
const PAYLOAD_SHOWN_CHARS: usize = 200;

#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    /// The topic
    topic: String,
    /// The partition
    #[arg(short, long, default_value_t = 0)]
    partition: u32,
    /// Where to begin: earliest, latest, an offset, or a time such as 2026-01-31T09:30:00Z
    #[arg(short, long, value_name = "PLACE", default_value = "earliest", value_parser = position)]
    from: Position,
    /// At most so many messages
    #[arg(short, long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// How long to wait for messages where there are none: 5s
    #[arg(short, long, value_name = "DURATION", value_parser = |text: &str| parse_duration(text))]
    wait: Option<std::time::Duration>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Reads where to begin, as `read` and `tail` take it.
pub fn position(text: &str) -> Result<Position, String> {
    match text {
        "earliest" => Ok(Position::Earliest),
        "latest" => Ok(Position::Latest),
        _ => match text.parse() {
            Ok(offset) => Ok(Position::Offset(offset)),
            Err(_) => whimbrel_model::Timestamp::parse(text)
                .map(|time| Position::Since(time.to_string()))
                .map_err(|_| "write earliest, latest, an offset, or a time such as 2026-01-31T09:30:00Z".to_owned()),
        },
    }
}

pub fn run(args: ReadArgs) -> Result<ExitCode, Failure> {
    let client = args.connect.client()?;
    let from = ReadFrom { partition: args.partition, position: args.from, limit: Some(args.limit), wait: args.wait };
    converse(async {
        let page = client.read(&args.topic, &from).await?;
        if args.connect.json {
            print_json(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut shown = table(["offset", "published", "key", "payload"]);
        for message in &page.messages {
            shown.add_row([
                &message.offset.to_string(),
                &message.published_at,
                message.key.as_deref().unwrap_or_default(),
                &shown_payload(message, PAYLOAD_SHOWN_CHARS),
            ]);
        }
        if !page.messages.is_empty() {
            print_line(&shown.to_string())?;
        }
        let count = page.messages.len();
        print_line(&format!(
            "{count} messages of {}/{}; read on with --from {}",
            args.topic, args.partition, page.next_offset
        ))?;
        Ok(ExitCode::SUCCESS)
    })
}
