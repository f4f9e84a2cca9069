//! `whimbrel publish`: payloads from arguments or standard input, or batches from a file of entries.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use whimbrel_client::{Accepted, Client, ClientError, NewMessage};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{print_answer, print_answers, table};

/// Bytes of one batch of a file, well below the server's default limit.
const BATCH_BYTES: usize = 4 << 20;

#[derive(Debug, clap::Args)]
pub struct PublishArgs {
    /// The topic; by default the first message creates it
    topic: String,
    #[command(flatten)]
    message: MessageArgs,
    /// Publish a file of entries, one JSON object per line ({"payload":…,"key":…}), in batches; `-` is standard input
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["payloads", "partition_key", "header", "id", "content_type", "delay", "deliver_at"]
    )]
    file: Option<PathBuf>,
    /// Maximum number of messages in one batch of --file
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,
    /// Deliver later, after this delay: 10m, 1h30m
    #[arg(long, value_name = "DURATION", conflicts_with = "deliver_at")]
    delay: Option<String>,
    /// Deliver later, at this time: 2026-01-31T09:30:00Z
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The message arguments of `publish` and `hold`.
#[derive(Debug, clap::Args)]
pub struct MessageArgs {
    /// The payloads, one message each; `-`, or none, reads one from standard input
    #[arg(value_name = "PAYLOAD")]
    payloads: Vec<String>,
    /// The partition key; messages of one key keep their order
    #[arg(short = 'k', long, value_name = "KEY")]
    partition_key: Option<String>,
    /// A header of the messages, as often as needed
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = name_and_value)]
    header: Vec<(String, String)>,
    /// Your id of the message; publishing it again returns the first answer
    #[arg(long)]
    id: Option<String>,
    /// The payload's media type
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once([':', '=']).ok_or("expected NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub fn run(args: PublishArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    if let Some(file) = &args.file {
        return publish_file(&args, &client, file);
    }
    let messages = args.message.messages(args.delay.clone(), args.deliver_at.clone())?;
    converse(send(&client, &args.topic, &messages, args.connect.json))
}

/// Publishes the messages and shows the answers.
pub async fn send(client: &Client, topic: &str, messages: &[NewMessage], json: bool) -> Result<ExitCode, CliError> {
    let accepted = match messages {
        [one] => vec![client.publish(topic, one).await?],
        many => client.publish_batch(topic, many).await?,
    };
    print_answers(&accepted, json, accepted_table)
}

/// The payloads of the arguments: `-`, and no argument, reads one from standard input. `None` if there is no argument, and standard input
/// is a terminal or empty.
pub fn read_payloads(arguments: &[String]) -> Result<Option<Vec<Vec<u8>>>, CliError> {
    if arguments.is_empty() && std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let stdin_only = ["-".to_owned()];
    let mut payloads = Vec::new();
    for payload in if arguments.is_empty() { &stdin_only } else { arguments } {
        let mut bytes = payload.clone().into_bytes();
        if payload == "-" {
            bytes.clear();
            std::io::stdin().read_to_end(&mut bytes)?;
        }
        payloads.push(bytes);
    }
    let is_missing = arguments.is_empty() && payloads == [b""];
    Ok((!is_missing).then_some(payloads))
}

impl MessageArgs {
    /// The messages, each with its due time if there is one.
    pub fn messages(&self, delay: Option<String>, deliver_at: Option<String>) -> Result<Vec<NewMessage>, CliError> {
        let payloads = read_payloads(&self.payloads)?.ok_or_else(|| {
            CliError::new("nothing to publish").with_hint("write the payload after the topic, or `-` to type it")
        })?;
        if payloads.len() > 1 && self.id.is_some() {
            return Err(CliError::new("--id cannot be used with several messages"));
        }
        let template = NewMessage {
            payload: Default::default(),
            content_type: self.content_type.clone(),
            key: self.partition_key.clone(),
            id: self.id.clone(),
            delay,
            deliver_at,
            headers: self.header.clone(),
            idempotency_key: None,
        };
        Ok(payloads.into_iter().map(|payload| NewMessage { payload: payload.into(), ..template.clone() }).collect())
    }
}

fn accepted_table(accepted: &[Accepted]) -> String {
    let mut shown = table(["topic", "partition", "offset", "id"]);
    for one in accepted {
        match one {
            Accepted::Published(place) => {
                shown.add_row([&place.topic, &place.partition.to_string(), &place.offset.to_string(), &place.id])
            }
            Accepted::Held(held) => shown.add_row([&held.topic, &held.state, &format!("due {}", held.due), &held.id]),
        };
    }
    shown.to_string()
}

/// Sends a file's lines in batches, one after the other, so that messages keep the file's order.
fn publish_file(args: &PublishArgs, client: &Client, path: &Path) -> Result<ExitCode, CliError> {
    let cannot_read = |error| CliError::new(format!("{} cannot be read: {error}", path.display()));
    let (reader, bytes): (Box<dyn BufRead>, Option<u64>) = if path == Path::new("-") {
        (Box::new(BufReader::new(std::io::stdin())), None)
    } else {
        let file = File::open(path).map_err(cannot_read)?;
        let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        (Box::new(BufReader::new(file)), bytes)
    };
    let progress = progress_bar(bytes);
    let mut batches = LineBatches { reader, line: 0 };
    let mut published = 0u64;
    let outcome = converse(async {
        while let Some(batch) = batches.next(args.batch).map_err(cannot_read)? {
            let size = batch.lines.len() as u64;
            let accepted = client
                .publish_ndjson(&args.topic, batch.lines.into())
                .await
                .map_err(|error| at_line(error, path, batch.first_line, published))?;
            published += accepted.len() as u64;
            progress.inc(size);
            progress.set_message(format!("{published} messages"));
        }
        Ok(ExitCode::SUCCESS)
    });
    progress.finish_and_clear();
    outcome?;
    print_answer(&serde_json::json!({ "published": published }), args.connect.json, |_| {
        format!("{published} messages published to {}", args.topic)
    })
}

fn at_line(error: ClientError, path: &Path, first_line: u64, published: u64) -> CliError {
    let index = match &error {
        ClientError::Problem(problem) => problem.members.index,
        _ => None,
    };
    let place = match index {
        Some(index) => format!("line {}", first_line + index),
        None => format!("the batch that begins at line {first_line}"),
    };
    let what = format!("{}: {place}: {error}", path.display());
    CliError::new(what).with_hint(format!("the {published} messages before that batch were published"))
}

struct LineBatches<R> {
    reader: R,
    line: u64,
}

struct LineBatch {
    lines: Vec<u8>,
    first_line: u64,
}

impl<R: BufRead> LineBatches<R> {
    fn next(&mut self, messages_max: u64) -> std::io::Result<Option<LineBatch>> {
        let mut batch = LineBatch { lines: Vec::new(), first_line: self.line + 1 };
        let mut messages = 0;
        while messages < messages_max && batch.lines.len() < BATCH_BYTES {
            if self.reader.read_until(b'\n', &mut batch.lines)? == 0 {
                break;
            }
            self.line += 1;
            messages += 1;
        }
        Ok((messages > 0).then_some(batch))
    }
}

fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let Some(bytes) = bytes else { return ProgressBar::new_spinner() };
    let template = "{bar:40} {bytes}/{total_bytes} {msg} {elapsed} left {eta}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(bytes).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_their_first_line_and_lose_no_line() {
        let mut batches = LineBatches { reader: &b"1\n2\n3\n4\n5"[..], line: 0 };
        let mut seen = Vec::new();
        while let Some(batch) = batches.next(2).unwrap() {
            seen.push((batch.first_line, String::from_utf8(batch.lines).unwrap()));
        }
        assert_eq!(seen, [(1, "1\n2\n".into()), (3, "3\n4\n".into()), (5, "5".into())]);
    }
}
