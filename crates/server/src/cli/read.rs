//! `whimbrel read`: messages of a topic, from all partitions or one.

mod page_merge;

use std::process::ExitCode;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use whimbrel_client::{Client, ClientError, Message, Position, ReadFrom, ReadPage, TailFrom};
use whimbrel_model::parse_duration;

use self::page_merge::{MergedPages, PartitionPage, merge};
use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{print_answer, shown_payload, table};

/// Maximum length of a payload in a table, in characters.
const PAYLOAD_SHOWN_CHARS: usize = 200;
/// Partitions that are read concurrently.
const PARTITIONS_AT_ONCE: usize = 16;

#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    /// The topic
    topic: String,
    /// Only this partition; without it all partitions, merged by publish time
    #[arg(short, long)]
    partition: Option<u32>,
    /// Start position: earliest, latest, an offset, or a time such as 2026-01-31T09:30:00Z
    #[arg(short, long, value_name = "PLACE", default_value = "earliest", value_parser = position)]
    from: Position,
    /// Maximum number of messages
    #[arg(short, long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// How long to wait for messages if there are none: 5s
    #[arg(short, long, value_name = "DURATION", value_parser = |text: &str| parse_duration(text))]
    wait: Option<Duration>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Parses the start position of `read` and `tail`.
pub fn position(text: &str) -> Result<Position, String> {
    match text {
        "earliest" => Ok(Position::Earliest),
        "latest" => Ok(Position::Latest),
        _ => match text.parse() {
            Ok(offset) => Ok(Position::Offset(offset)),
            Err(_) => whimbrel_model::Timestamp::parse(text)
                .map(|time| Position::Since(time.to_string()))
                .map_err(|_| "expected earliest, latest, an offset, or a time such as 2026-01-31T09:30:00Z".to_owned()),
        },
    }
}

pub fn run(args: ReadArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    converse(async {
        match args.partition {
            Some(partition) => {
                let page = client.read(&args.topic, &args.read_from(partition)).await?;
                print_answer(&page, args.connect.json, |page| page_text(page, &args.topic, partition))
            }
            None => {
                let merged = read_all(&client, &args).await?;
                print_answer(&merged, args.connect.json, |merged| merged_text(merged, &args.topic))
            }
        }
    })
}

impl ReadArgs {
    fn read_from(&self, partition: u32) -> ReadFrom {
        ReadFrom { partition, position: self.from.clone(), limit: Some(self.limit), wait: self.wait }
    }
}

/// Reads every partition from the same position. If there are no messages, it tails the topic until one arrives.
async fn read_all(client: &Client, args: &ReadArgs) -> Result<MergedPages, ClientError> {
    let topic = client.topic(&args.topic).await?;
    let starts = topic.partition_list.iter().flatten().map(|known| {
        // An offset applies to each partition; outside of a partition's range it becomes the oldest offset or the end.
        let position = match &args.from {
            Position::Offset(offset) => Position::Offset((*offset).clamp(known.first_offset, known.next_offset)),
            other => other.clone(),
        };
        (known.partition, position)
    });
    let first = read_each(client, args, starts.collect()).await?;
    let Some(wait) = args.wait.filter(|_| first.messages.is_empty()) else { return Ok(first) };
    // The tail starts before the second read, so that no message between the two is missed.
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

async fn read_on(client: &Client, args: &ReadArgs, earlier: &MergedPages) -> Result<MergedPages, ClientError> {
    let starts = earlier.next_offsets.iter().map(|(partition, next)| (*partition, Position::Offset(*next)));
    read_each(client, args, starts.collect()).await
}

async fn read_each(client: &Client, args: &ReadArgs, starts: Vec<(u32, Position)>) -> Result<MergedPages, ClientError> {
    let reads = stream::iter(starts).map(|(partition, position)| async move {
        let from = ReadFrom { partition, position, limit: Some(args.limit), wait: None };
        let page = client.read(&args.topic, &from).await?;
        // A page may be short because the server limits the bytes of one answer.
        let is_full = page.messages.len() >= args.limit;
        let is_whole = page.messages.is_empty() || !is_full && is_end(client, &args.topic, &page, partition).await?;
        Ok(PartitionPage { partition, page, is_whole })
    });
    let pages: Vec<PartitionPage> = reads.buffered(PARTITIONS_AT_ONCE).try_collect().await?;
    Ok(merge(pages, args.limit))
}

/// Whether no message follows a page.
async fn is_end(client: &Client, topic: &str, page: &ReadPage, partition: u32) -> Result<bool, ClientError> {
    let next = ReadFrom { partition, position: Position::Offset(page.next_offset), limit: Some(1), wait: None };
    Ok(client.read(topic, &next).await?.messages.is_empty())
}

fn page_text(page: &ReadPage, topic: &str, partition: u32) -> String {
    let (messages, next) = (counted(page.messages.len()), page.next_offset);
    format!("{}{messages} of {topic}/{partition}; continue with --from {next}", message_table(&page.messages))
}

fn merged_text(merged: &MergedPages, topic: &str) -> String {
    let read_on = match (merged.next_offsets.first_key_value(), merged.next_offsets.len()) {
        (Some((_, next)), 1) => format!("; continue with --from {next}"),
        _ if merged.has_more => "; there are more: raise --limit, or read one partition with --partition".to_owned(),
        _ => String::new(),
    };
    format!("{}{} of {topic}{read_on}", message_table(&merged.messages), counted(merged.messages.len()))
}

fn counted(messages: usize) -> String {
    if messages == 1 { "1 message".to_owned() } else { format!("{messages} messages") }
}

/// The messages with a line break at the end, or nothing if there are none.
fn message_table(messages: &[Message]) -> String {
    if messages.is_empty() {
        return String::new();
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
    format!("{shown}\n")
}
