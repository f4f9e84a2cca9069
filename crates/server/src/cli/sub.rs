//! `whimbrel sub`: create, show, pause, seek and pull from subscriptions.

mod settings;
mod tables;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use whimbrel_client::{Client, ClientError, Redriven, ReplayRange, SeekTo, SubscriptionInfo};
use whimbrel_model::parse_duration;

use self::settings::SubscriptionSettingsArgs;
use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{confirm_deletion, print_json, print_line};

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
        SubAction::Create { name, settings, replace, connect } => create(&name, *settings, replace, &connect),
        SubAction::List { connect } => {
            let client = connect.client()?;
            converse(async { tables::list(&client.subscriptions().await?, connect.json) })
        }
        SubAction::Show { name, connect } => {
            let client = connect.client()?;
            converse(async { tables::one(&client.subscription(&name).await?, connect.json) })
        }
        SubAction::Pause { name, connect } => {
            let client = connect.client()?;
            converse(async { changed(&client.pause(&name).await?, &format!("{name}: paused"), connect.json) })
        }
        SubAction::Resume { name, connect } => {
            let client = connect.client()?;
            converse(async { changed(&client.resume(&name).await?, &format!("{name}: resumed"), connect.json) })
        }
        SubAction::Seek { name, to, connect } => {
            let client = connect.client()?;
            let to = seek_to(&to)?;
            converse(async { tables::sought(&client.seek(&name, &to).await?, &format!("{name}: moved"), connect.json) })
        }
        SubAction::Replay { name, from, to, partition_key, connect } => {
            let client = connect.client()?;
            let range = ReplayRange { from, to: Some(to), key: partition_key };
            converse(async {
                tables::sought(&client.replay(&name, &range).await?, &format!("{name}: replaying"), connect.json)
            })
        }
        SubAction::Dead { name, limit, cursor, connect } => {
            let client = connect.client()?;
            converse(async {
                tables::dead(&client.dead_letters(&name, Some(limit), cursor.as_deref()).await?, connect.json)
            })
        }
        SubAction::Redrive { name, ids, all, connect } => {
            let client = connect.client()?;
            let ids = (!all).then_some(&ids[..]);
            converse(async { redriven(client.redrive(&name, ids).await?, &name, connect.json) })
        }
        SubAction::Delete { name, yes, connect } => delete(&name, yes, &connect),
        SubAction::Pull { name, max, wait, ack, connect } => {
            let client = connect.client()?;
            converse(pull(&client, &name, max, wait, ack, connect.json))
        }
    }
}

fn create(
    name: &str,
    settings: SubscriptionSettingsArgs,
    replace: bool,
    connect: &ConnectArgs,
) -> Result<ExitCode, CliError> {
    let settings = settings.settings()?;
    let client = connect.client()?;
    converse(async {
        if !replace && exists(&client, name).await? {
            return Err(CliError::new(format!("the subscription `{name}` already exists"))
                .with_hint("pass --replace to change it; it keeps its progress"));
        }
        tables::one(&client.put_subscription(name, &settings).await?, connect.json)
    })
}

async fn exists(client: &Client, name: &str) -> Result<bool, ClientError> {
    match client.subscription(name).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("unknown_subscription") => Ok(false),
        Err(error) => Err(error),
    }
}

fn delete(name: &str, yes: bool, connect: &ConnectArgs) -> Result<ExitCode, CliError> {
    let client = connect.client()?;
    confirm_deletion(name, "its retries, dead letters and progress", yes)?;
    converse(async {
        client.delete_subscription(name).await?;
        print_outcome(&json!({ "deleted": name }), &format!("deleted {name}"), connect.json)
    })
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
    tables::pulled(&messages, json)?;
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

/// Prints the server's answer as JSON, or a sentence.
fn print_outcome(answer: &impl Serialize, sentence: &str, json: bool) -> Result<ExitCode, CliError> {
    if json {
        print_json(answer)?;
    } else {
        print_line(sentence)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a changed subscription as JSON, or a sentence with the note of the change.
fn changed(subscription: &SubscriptionInfo, sentence: &str, json: bool) -> Result<ExitCode, CliError> {
    let note = subscription.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
    print_outcome(subscription, &format!("{sentence}{note}"), json)
}

/// Prints the number of redriven dead letters. An id without a dead letter makes the command fail; the others are redriven.
fn redriven(answer: Redriven, name: &str, json: bool) -> Result<ExitCode, CliError> {
    print_outcome(&answer, &format!("{name}: redriven {}", answer.redriven), json)?;
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
