//! `whimbrel sub`: create, show, pause, seek and pull from subscriptions.

mod settings;
mod tables;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use whimbrel_client::{Client, Redriven, ReplayRange, SeekTo, SubscriptionInfo};
use whimbrel_model::parse_duration;

use self::settings::SubscriptionSettingsArgs;
use super::CliError;
use super::connect::{ConnectArgs, converse, exists};
use super::output::{confirm_deletion, print_answer};

#[derive(Debug, clap::Args)]
pub struct SubArgs {
    #[command(subcommand)]
    action: SubAction,
}

#[derive(Debug, clap::Subcommand)]
enum SubAction {
    /// Create a subscription
    Create {
        name: String,
        #[command(flatten)]
        settings: Box<SubscriptionSettingsArgs>,
        /// Change it if it exists; it keeps its progress
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// List the subscriptions with their state
    List {
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Show a subscription with its partitions
    Show {
        name: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Pause deliveries
    Pause {
        name: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Resume after a pause, or after it was disabled
    Resume {
        name: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Move the cursor: earliest, latest, a time, or offsets as orders/0=17
    Seek {
        name: String,
        #[arg(required = true, value_name = "PLACE")]
        to: Vec<String>,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Deliver a range of messages again, beside the normal delivery
    Replay {
        name: String,
        /// Start: earliest or a time
        #[arg(long, value_name = "PLACE", default_value = "earliest")]
        from: String,
        /// End: latest or a time
        #[arg(long, value_name = "PLACE", default_value = "latest")]
        to: String,
        /// Only messages with this key
        #[arg(short = 'k', long, value_name = "KEY")]
        partition_key: Option<String>,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// List the dead letters
    Dead {
        name: String,
        #[arg(short, long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,
        /// Continue from this cursor
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Deliver dead letters again
    #[command(
        group = clap::ArgGroup::new("which").required(true).args(["ids", "all"]),
        override_usage = "whimbrel sub redrive [OPTIONS] <NAME> <IDS>...\n       whimbrel sub redrive [OPTIONS] <NAME> --all",
    )]
    Redrive {
        name: String,
        /// The message ids of the dead letters
        ids: Vec<String>,
        /// All dead letters
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Delete a subscription, with its retries, dead letters and progress
    Delete {
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Pull messages of a subscription
    Pull {
        name: String,
        #[arg(short, long, value_name = "COUNT", default_value_t = 10)]
        max: usize,
        /// How long to wait for the first message
        #[arg(short, long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
        wait: Duration,
        /// Acknowledge the messages after they are printed; otherwise they are delivered again after their lease
        #[arg(long)]
        ack: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

pub fn run(args: SubArgs) -> Result<ExitCode, CliError> {
    match args.action {
        SubAction::Create { name, settings, replace, connect } => {
            let settings = settings.settings()?;
            let create = async |client: &Client| {
                if !replace && exists(client.subscription(&name).await, "unknown_subscription")? {
                    return Err(CliError::new(format!("the subscription `{name}` already exists"))
                        .with_hint("pass --replace to change it; it keeps its progress"));
                }
                Ok(client.put_subscription(&name, &settings).await?)
            };
            connect.show(create, tables::one)
        }
        SubAction::List { connect } => {
            connect.show(async |client| client.subscriptions().await, |subscriptions| tables::list(subscriptions))
        }
        SubAction::Show { name, connect } => connect.show(async |client| client.subscription(&name).await, tables::one),
        SubAction::Pause { name, connect } => {
            connect.show(async |client| client.pause(&name).await, |now| changed(now, &format!("{name}: paused")))
        }
        SubAction::Resume { name, connect } => {
            connect.show(async |client| client.resume(&name).await, |now| changed(now, &format!("{name}: resumed")))
        }
        SubAction::Seek { name, to, connect } => {
            let to = seek_to(&to)?;
            connect.show(
                async |client| client.seek(&name, &to).await,
                |answer| tables::sought(answer, &format!("{name}: moved")),
            )
        }
        SubAction::Replay { name, from, to, partition_key, connect } => {
            let range = ReplayRange { from, to: Some(to), key: partition_key };
            connect.show(
                async |client| client.replay(&name, &range).await,
                |answer| tables::sought(answer, &format!("{name}: replaying")),
            )
        }
        SubAction::Dead { name, limit, cursor, connect } => {
            connect.show(async |client| client.dead_letters(&name, Some(limit), cursor.as_deref()).await, tables::dead)
        }
        SubAction::Redrive { name, ids, all, connect } => {
            let client = connect.client()?;
            let ids = (!all).then_some(&ids[..]);
            converse(async { redriven(client.redrive(&name, ids).await?, &name, connect.json) })
        }
        SubAction::Delete { name, yes, connect } => {
            let delete = async |client: &Client| {
                confirm_deletion(&name, "its retries, dead letters and progress", yes)?;
                client.delete_subscription(&name).await?;
                Ok::<_, CliError>(json!({ "deleted": name }))
            };
            connect.show(delete, |_| format!("deleted {name}"))
        }
        SubAction::Pull { name, max, wait, ack, connect } => {
            let client = connect.client()?;
            converse(pull(&client, &name, max, wait, ack, connect.json))
        }
    }
}

async fn pull(
    client: &Client,
    name: &str,
    max: usize,
    wait: Duration,
    ack: bool,
    json: bool,
) -> Result<ExitCode, CliError> {
    let messages = client.pull(name, max, wait).await?;
    print_answer(&messages, json, |messages| tables::pulled(messages))?;
    if ack && !messages.is_empty() {
        let ack_ids: Vec<String> = messages.into_iter().map(|message| message.ack_id).collect();
        let settled = client.ack(name, &ack_ids).await?;
        if !settled.unknown.is_empty() {
            let late = settled.unknown.len();
            return Err(CliError::new(format!("{late} leases expired before they were acknowledged"))
                .with_hint("those messages are delivered again"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One position for all partitions, or offsets of some.
fn seek_to(places: &[String]) -> Result<SeekTo, CliError> {
    if let [place] = places
        && !place.contains('=')
    {
        return Ok(SeekTo::place(place));
    }
    let mut offsets = BTreeMap::new();
    for place in places {
        let pair = place.split_once('=').and_then(|(partition, offset)| Some((partition, offset.parse().ok()?)));
        let Some((partition, offset)) = pair.filter(|(partition, _)| partition.contains('/')) else {
            return Err(CliError::new(format!("`{place}` is not a position")).with_hint(
                "expected earliest, latest, a time such as 2026-01-31T09:30:00Z, or offsets as orders/0=17",
            ));
        };
        offsets.insert(partition.to_owned(), offset);
    }
    Ok(SeekTo::offsets(offsets))
}

/// The sentence about a changed subscription, with the note of the change.
fn changed(subscription: &SubscriptionInfo, sentence: &str) -> String {
    let note = subscription.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
    format!("{sentence}{note}")
}

/// Prints the number of redriven dead letters. An id without a dead letter makes the command fail; the others are redriven.
fn redriven(answer: Redriven, name: &str, json: bool) -> Result<ExitCode, CliError> {
    print_answer(&answer, json, |answer| format!("{name}: redriven {}", answer.redriven))?;
    let unknown = answer.unknown;
    if unknown.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let failure = CliError::new(format!("`{name}` has no dead letters with these ids, or they were already redriven:"));
    Err(failure.with_details(unknown).with_hint(format!("`whimbrel sub dead {name}` lists the ids")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_takes_a_position_or_offsets() {
        let places = |places: &[&str]| seek_to(&places.iter().map(|place| (*place).to_owned()).collect::<Vec<_>>());
        assert_eq!(places(&["earliest"]).unwrap(), SeekTo::place("earliest"));
        let offsets = SeekTo::offsets([("a/0".to_owned(), 1), ("a/1".to_owned(), 2)].into());
        assert_eq!(places(&["a/0=1", "a/1=2"]).unwrap(), offsets);
        assert!(places(&["a=1"]).is_err() && places(&["earliest", "latest"]).is_err() && places(&["a/0=x"]).is_err());
    }
}
