//! `whimbrel read`: messages of a topic, of all its partitions or of one.

mod merged;

use std::process::ExitCode;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use whimbrel_client::{Client, ClientError, Message, Position, ReadFrom, ReadPage, TailFrom};
use whimbrel_model::parse_duration;

use self::merged::{Merged, PartitionPage, merge};
use super::Failure;
use super::connect::{ConnectArgs, converse};
use super::output::{print_json, print_line, shown_payload, table};

/// Characters of a payload that a table shows.
const PAYLOAD_SHOWN_CHARS: usize = 200;
/// Partitions that are asked at one time.
const PARTITIONS_AT_ONCE: usize = 16;

#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    /// The topic
    topic: String,
    /// One partition only; without it all of them, merged by when messages were published
    #[arg(short, long)]
    partition: Option<u32>,
    /// Where to begin: earliest, latest, an offset, or a time such as 2026-01-31T09:30:00Z
    #[arg(short, long, value_name = "PLACE", default_value = "earliest", value_parser = position)]
    from: Position,
    /// At most so many messages
    #[arg(short, long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// How long to wait for messages where there are none: 5s
    #[arg(short, long, value_name = "DURATION", value_parser = |text: &str| parse_duration(text))]
    wait: Option<Duration>,
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
    converse(async {
        match args.partition {
            Some(partition) => show_one(&client.read(&args.topic, &args.read_from(partition)).await?, partition, &args),
            None => show_all(&read_all(&client, &args).await?, &args),
        }
    })
}

impl ReadArgs {
    fn read_from(&self, partition: u32) -> ReadFrom {
        ReadFrom { partition, position: self.from.clone(), limit: Some(self.limit), wait: self.wait }
    }
}

/// Every partition from the same place on. Where nothing is there, the topic is followed until something comes.
async fn read_all(client: &Client, args: &ReadArgs) -> Result<Merged, ClientError> {
    let topic = client.topic(&args.topic).await?;
    let starts = topic.partition_list.iter().map(|known| {
        // An offset means something in each partition: the oldest that is kept, or the end, where it lies outside.
        let position = match &args.from {
            Position::Offset(offset) => Position::Offset((*offset).clamp(known.first_offset, known.next_offset)),
            other => other.clone(),
        };
        (known.partition, position)
    });
    let first = read_each(client, args, starts.collect()).await?;
    let Some(wait) = args.wait.filter(|_| first.messages.is_empty()) else { return Ok(first) };
    // Followed before it is read again: what comes between the two is in one of them.
    let latest = TailFrom { partition: None, position: Some(Position::Latest), last_event_id: None };
    let mut tail = client.tail(&args.topic, &latest).await?;
    let second = read_on(client, args, &first).await?;
    if !second.messages.is_empty() {
        return Ok(second);
    }
    match tokio::time::timeout(wait, tail.next()).await {
        Ok(Some(Err(error))) => Err(error),
        Ok(_) | Err(_) => read_on(client, args, &second).await,
    }
}

async fn read_on(client: &Client, args: &ReadArgs, earlier: &Merged) -> Result<Merged, ClientError> {
    let starts = earlier.next_offsets.iter().map(|(partition, next)| (*partition, Position::Offset(*next)));
    read_each(client, args, starts.collect()).await
}

async fn read_each(client: &Client, args: &ReadArgs, starts: Vec<(u32, Position)>) -> Result<Merged, ClientError> {
    let reads = stream::iter(starts).map(|(partition, position)| async move {
        let from = ReadFrom { partition, position, limit: Some(args.limit), wait: None };
        let page = client.read(&args.topic, &from).await?;
        // A page that is not full may end because the server gives only so many bytes at once.
        let is_full = page.messages.len() >= args.limit;
        let is_whole = page.messages.is_empty() || !is_full && is_end(client, &args.topic, &page, partition).await?;
        Ok(PartitionPage { partition, page, is_whole })
    });
    let pages: Vec<PartitionPage> = reads.buffered(PARTITIONS_AT_ONCE).try_collect().await?;
    Ok(merge(pages, args.limit))
}

/// Whether nothing lies behind a page.
async fn is_end(client: &Client, topic: &str, page: &ReadPage, partition: u32) -> Result<bool, ClientError> {
    let next = ReadFrom { partition, position: Position::Offset(page.next_offset), limit: Some(1), wait: None };
    Ok(client.read(topic, &next).await?.messages.is_empty())
}

fn show_one(page: &ReadPage, partition: u32, args: &ReadArgs) -> Result<ExitCode, Failure> {
    if args.connect.json {
        print_json(page)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_messages(&page.messages)?;
    print_line(&format!(
        "{} of {}/{partition}; read on with --from {}",
        counted(page.messages.len()),
        args.topic,
        page.next_offset
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn show_all(merged: &Merged, args: &ReadArgs) -> Result<ExitCode, Failure> {
    if args.connect.json {
        print_json(merged)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_messages(&merged.messages)?;
    let read_on = match (merged.next_offsets.first_key_value(), merged.next_offsets.len()) {
        (Some((_, next)), 1) => format!("; read on with --from {next}"),
        _ if merged.has_more => "; there are more: raise --limit, or read on in one with --partition".to_owned(),
        _ => String::new(),
    };
    print_line(&format!("{} of {}{read_on}", counted(merged.messages.len()), args.topic))?;
    Ok(ExitCode::SUCCESS)
}

fn counted(messages: usize) -> String {
    if messages == 1 { "1 message".to_owned() } else { format!("{messages} messages") }
}

fn print_messages(messages: &[Message]) -> Result<(), Failure> {
    if messages.is_empty() {
        return Ok(());
    }
    let mut shown = table(["partition", "offset", "published", "key", "payload"]);
    for message in messages {
        shown.add_row([
            &message.partition.to_string(),
            &message.offset.to_string(),
            &message.published_at,
            message.key.as_deref().unwrap_or_default(),
            &shown_payload(message, PAYLOAD_SHOWN_CHARS),
        ]);
    }
    print_line(&shown.to_string())
}
