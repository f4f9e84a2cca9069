//! `whimbrel topic`: list, show, create, alter and delete topics.

use std::process::ExitCode;

use whimbrel_client::{Client, DurationForm, PartitionInfo, TopicInfo, TopicSettings};

use super::CliError;
use super::connect::{ConnectArgs, exists};
use super::output::{confirm_deletion, table};
use crate::config::{format_bytes, parse_bytes};

#[derive(Debug, clap::Args)]
pub struct TopicArgs {
    #[command(subcommand)]
    action: TopicAction,
}

#[derive(Debug, clap::Subcommand)]
enum TopicAction {
    /// List the topics
    List {
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Show a topic with its partitions
    Show {
        topic: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Create a topic
    Create {
        topic: String,
        #[command(flatten)]
        settings: TopicSettingsArgs,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Change a topic; the number of partitions can grow, not shrink
    Alter {
        topic: String,
        #[command(flatten)]
        settings: TopicSettingsArgs,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Delete a topic and all its messages
    Delete {
        topic: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
}

#[derive(Debug, clap::Args)]
struct TopicSettingsArgs {
    /// Number of partitions; messages of one key are in one partition
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u32>,
    /// Copies of each partition
    #[arg(long, value_name = "COUNT")]
    replicas: Option<u32>,
    /// Copies that must have a message before it is acknowledged
    #[arg(long, value_name = "COUNT")]
    min_insync: Option<u32>,
    /// How long messages are kept: 7d
    #[arg(long, value_name = "DURATION")]
    retention: Option<String>,
    /// Size to which each partition is kept: 10GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    retention_bytes: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "expected a size such as 64KiB, 10GiB or a number of bytes".to_owned())
}

impl TopicSettingsArgs {
    fn settings(&self) -> TopicSettings {
        TopicSettings {
            partitions: self.partitions,
            replicas: self.replicas,
            min_insync: self.min_insync,
            retention: self.retention.clone().map(|text| Some(DurationForm::Text(text))),
            retention_bytes: self.retention_bytes.map(Some),
            workers: None,
        }
    }
}

pub fn run(args: TopicArgs) -> Result<ExitCode, CliError> {
    match args.action {
        TopicAction::List { connect } => connect.show(async |client| client.topics().await, |topics| list(topics)),
        TopicAction::Show { topic, connect } => connect.show(async |client| client.topic(&topic).await, show),
        TopicAction::Create { topic, settings, connect } => {
            let create = async |client: &Client| {
                if exists(client.topic(&topic).await, "unknown_topic")? {
                    return Err(CliError::new(format!("the topic `{topic}` already exists"))
                        .with_hint(format!("change it with `whimbrel topic alter {topic}`")));
                }
                Ok(client.put_topic(&topic, &settings.settings()).await?)
            };
            connect.show(create, show)
        }
        TopicAction::Alter { topic, settings, connect } => {
            let alter = async |client: &Client| {
                // An alter of an unknown topic would create it; this read returns the server's 404 instead.
                client.topic(&topic).await?;
                client.put_topic(&topic, &settings.settings()).await
            };
            connect.show(alter, show)
        }
        TopicAction::Delete { topic, yes, connect } => {
            let delete = async |client: &Client| {
                confirm_deletion(&topic, "all its messages", yes)?;
                client.delete_topic(&topic).await?;
                Ok::<_, CliError>(serde_json::json!({ "deleted": topic }))
            };
            connect.show(delete, |_| format!("deleted {topic}"))
        }
    }
}

fn list(topics: &[TopicInfo]) -> String {
    if topics.is_empty() {
        return "no topics yet; the first publish creates one".to_owned();
    }
    let mut shown = table(["topic", "partitions", "retention", "messages (at most)", "per second"]);
    for topic in own_first(topics) {
        shown.add_row([
            topic.topic.clone(),
            topic.partitions.to_string(),
            retention(topic),
            topic.messages.unwrap_or_default().to_string(),
            format!("{:.1}", topic.rates.published_per_s_10s),
        ]);
    }
    shown.to_string()
}

/// Lists system topics after all others.
fn own_first(topics: &[TopicInfo]) -> Vec<&TopicInfo> {
    let mut ordered: Vec<&TopicInfo> = topics.iter().collect();
    ordered.sort_by_key(|topic| topic.topic.starts_with('_'));
    ordered
}

fn show(topic: &TopicInfo) -> String {
    let mut lines = vec![
        format!(
            "{}: {} partitions, retention {}, at most {} messages, {:.1} per second",
            topic.topic,
            topic.partitions,
            retention(topic),
            topic.messages.unwrap_or_default(),
            topic.rates.published_per_s_10s
        ),
        format!("created_at: {}", topic.created_at),
    ];
    lines.extend(topic.note.iter().map(|note| format!("note: {note}")));
    lines.extend(topic.partition_list.as_deref().filter(|partitions| !partitions.is_empty()).map(partition_table));
    lines.join("\n")
}

fn partition_table(partitions: &[PartitionInfo]) -> String {
    let mut shown =
        table(["partition", "first", "next", "messages (at most)", "leader", "replicas", "in sync", "bytes"]);
    for partition in partitions {
        shown.add_row([
            partition.partition.to_string(),
            partition.first_offset.to_string(),
            partition.next_offset.to_string(),
            partition.messages.to_string(),
            partition.leader.map_or(String::new(), |leader| leader.to_string()),
            numbers(&partition.replicas),
            numbers(&partition.in_sync),
            partition.bytes.map_or(String::new(), |bytes| bytes.to_string()),
        ]);
    }
    shown.to_string()
}

fn retention(topic: &TopicInfo) -> String {
    let bytes = topic.retention_bytes.map(|bytes| format!("{} per partition", format_bytes(bytes)));
    match (&topic.retention, bytes) {
        (Some(time), Some(bytes)) => format!("{time}, {bytes}"),
        (Some(time), None) => time.clone(),
        (None, Some(bytes)) => bytes,
        (None, None) => "forever".to_owned(),
    }
}

fn numbers(numbers: &[i32]) -> String {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_topics_come_last() {
        let topic = |name: &str| TopicInfo { topic: name.to_owned(), partitions: 1, ..TopicInfo::default() };
        let topics = ["_dead.a", "_events", "invoices", "orders"].map(topic);
        let names: Vec<&str> = own_first(&topics).iter().map(|topic| topic.topic.as_str()).collect();
        assert_eq!(names, ["invoices", "orders", "_dead.a", "_events"]);
    }
}
