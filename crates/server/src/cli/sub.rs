//! `whimbrel sub`: subscriptions made, looked at, stopped, moved and pulled from.

mod settings;
mod shown;

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use whimbrel_client::{Client, ClientError, ReplayRange, SeekTo};
use whimbrel_model::parse_duration;

use self::settings::SettingsArgs;
use super::Failure;
use super::connect::{ConnectArgs, converse};
use super::output::{print_json, print_line};

#[derive(Debug, clap::Args)]
pub struct SubArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Make a subscription
    Create {
        name: String,
        #[command(flatten)]
        settings: Box<SettingsArgs>,
        /// Change it where it is there already: its progress stays
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// List the subscriptions with how they stand
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
    /// Stop deliveries until it is resumed
    Pause {
        name: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Go on where it was paused, or was disabled
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
    /// Deliver a stretch once more, beside the cursor
    Replay {
        name: String,
        /// Where it begins: earliest or a time
        #[arg(long, value_name = "PLACE", default_value = "earliest")]
        from: String,
        /// Where it ends: latest or a time
        #[arg(long, value_name = "PLACE", default_value = "latest")]
        to: String,
        /// Only messages with this key
        #[arg(short = 'k', long, value_name = "KEY")]
        partition_key: Option<String>,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// List what could not be delivered
    Dead {
        name: String,
        #[arg(short, long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,
        /// Go on where an earlier list ended
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Deliver dead letters anew
    #[command(
        group = clap::ArgGroup::new("which").required(true).args(["ids", "all"]),
        override_usage = "whimbrel sub redrive [OPTIONS] <NAME> <IDS>...\n       whimbrel sub redrive [OPTIONS] <NAME> --all",
    )]
    Redrive {
        name: String,
        /// The ids of their messages
        ids: Vec<String>,
        /// All of them
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// End a subscription, with its retries, dead letters and progress
    Delete {
        name: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Take messages of a subscription that is pulled from
    Pull {
        name: String,
        #[arg(short, long, value_name = "COUNT", default_value_t = 10)]
        max: usize,
        /// How long to wait for the first
        #[arg(short, long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
        wait: Duration,
        /// Acknowledge what was taken once it is printed; otherwise it comes again when its lease is over
        #[arg(long)]
        ack: bool,
        #[command(flatten)]
        connect: ConnectArgs,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

pub fn run(args: SubArgs) -> Result<ExitCode, Failure> {
    match args.action {
        Action::Create { name, settings, replace, connect } => create(&name, *settings, replace, &connect),
        Action::List { connect } => {
            let client = connect.client()?;
            converse(async { shown::list(&client.subscriptions().await?, connect.json) })
        }
        Action::Show { name, connect } => {
            let client = connect.client()?;
            converse(async { shown::one(&client.subscription(&name).await?, connect.json) })
        }
        Action::Pause { name, connect } => {
            let client = connect.client()?;
            converse(async { said(&client.pause(&name).await?, &format!("{name}: paused"), connect.json) })
        }
        Action::Resume { name, connect } => {
            let client = connect.client()?;
            converse(async { said(&client.resume(&name).await?, &format!("{name}: resumed"), connect.json) })
        }
        Action::Seek { name, to, connect } => {
            let client = connect.client()?;
            let to = seek_to(&to)?;
            converse(async { shown::sought(&client.seek(&name, &to).await?, &format!("{name}: moved"), connect.json) })
        }
        Action::Replay { name, from, to, partition_key, connect } => {
            let client = connect.client()?;
            let range = ReplayRange { from, to, key: partition_key };
            converse(async {
                shown::sought(&client.replay(&name, &range).await?, &format!("{name}: replaying"), connect.json)
            })
        }
        Action::Dead { name, limit, cursor, connect } => {
            let client = connect.client()?;
            converse(async {
                shown::dead(&client.dead_letters(&name, Some(limit), cursor.as_deref()).await?, connect.json)
            })
        }
        Action::Redrive { name, ids, all, connect } => {
            let client = connect.client()?;
            let ids = (!all).then_some(&ids[..]);
            converse(async { redriven(&client.redrive(&name, ids).await?, &name, connect.json) })
        }
        Action::Delete { name, yes, connect } => delete(&name, yes, &connect),
        Action::Pull { name, max, wait, ack, connect } => {
            let client = connect.client()?;
            converse(pull(&client, &name, max, wait, ack, connect.json))
        }
    }
}

fn create(name: &str, settings: SettingsArgs, replace: bool, connect: &ConnectArgs) -> Result<ExitCode, Failure> {
    let settings = settings.settings()?;
    let client = connect.client()?;
    converse(async {
        if !replace && exists(&client, name).await? {
            return Err(Failure::new(format!("the subscription `{name}` is there already"))
                .with_hint("pass --replace to change it; its progress stays"));
        }
        shown::one(&client.put_subscription(name, &settings).await?, connect.json)
    })
}

async fn exists(client: &Client, name: &str) -> Result<bool, ClientError> {
    match client.subscription(name).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("unknown_subscription") => Ok(false),
        Err(error) => Err(error),
    }
}

fn delete(name: &str, yes: bool, connect: &ConnectArgs) -> Result<ExitCode, Failure> {
    let client = connect.client()?;
    if !yes && !confirmed(name)? {
        return Err(Failure::new("nothing was deleted").with_hint("pass --yes to delete without being asked"));
    }
    converse(async {
        client.delete_subscription(name).await?;
        said(&json!({ "deleted": name }), &format!("deleted {name}"), connect.json)
    })
}

fn confirmed(name: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("Delete `{name}`, its retries, dead letters and progress? Type its name: ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == name)
}

async fn pull(
    client: &Client,
    name: &str,
    max: usize,
    wait: Duration,
    ack: bool,
    json: bool,
) -> Result<ExitCode, Failure> {
    let messages = client.pull(name, max, wait).await?;
    shown::pulled(&messages, json)?;
    if ack && !messages.is_empty() {
        let ack_ids: Vec<String> = messages.into_iter().map(|message| message.ack_id).collect();
        let settled = client.ack(name, &ack_ids).await?;
        if !settled.unknown.is_empty() {
            let late = settled.unknown.len();
            return Err(Failure::new(format!("{late} leases were over before they were acknowledged"))
                .with_hint("those messages come again"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One place for all partitions, or offsets of some.
fn seek_to(places: &[String]) -> Result<SeekTo, Failure> {
    if let [place] = places
        && !place.contains('=')
    {
        return Ok(SeekTo::To(place.clone()));
    }
    let mut offsets = BTreeMap::new();
    for place in places {
        let pair = place.split_once('=').and_then(|(partition, offset)| Some((partition, offset.parse().ok()?)));
        let Some((partition, offset)) = pair.filter(|(partition, _)| partition.contains('/')) else {
            return Err(Failure::new(format!("`{place}` is not a place"))
                .with_hint("write earliest, latest, a time such as 2026-01-31T09:30:00Z, or offsets as orders/0=17"));
        };
        offsets.insert(partition.to_owned(), offset);
    }
    Ok(SeekTo::Offsets(offsets))
}

/// A command's outcome: the server's answer for programs, a sentence for people, with what the server remarks.
fn said(answer: &Value, sentence: &str, json: bool) -> Result<ExitCode, Failure> {
    if json {
        print_json(answer)?;
    } else {
        let note = answer.get("note").and_then(Value::as_str).map_or(String::new(), |note| format!(" ({note})"));
        print_line(&format!("{sentence}{note}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How many dead letters are delivered anew. Ids that no dead letter has are a failure, whatever became of the others.
fn redriven(answer: &Value, name: &str, json: bool) -> Result<ExitCode, Failure> {
    let count = answer.get("redriven").and_then(Value::as_u64).unwrap_or_default();
    let unknown: Vec<String> = match answer.get("unknown") {
        Some(Value::Array(ids)) => ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    said(answer, &format!("{name}: redriven {count}"), json)?;
    if unknown.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let failure =
        Failure::new(format!("`{name}` has no dead letter of these messages, or they were redriven already:"));
    Err(failure.with_details(unknown).with_hint(format!("`whimbrel sub dead {name}` shows the ids there are")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_takes_a_place_or_offsets() {
        let places = |places: &[&str]| seek_to(&places.iter().map(|place| (*place).to_owned()).collect::<Vec<_>>());
        assert_eq!(places(&["earliest"]).unwrap(), SeekTo::To("earliest".into()));
        let offsets = SeekTo::Offsets([("a/0".to_owned(), 1), ("a/1".to_owned(), 2)].into());
        assert_eq!(places(&["a/0=1", "a/1=2"]).unwrap(), offsets);
        assert!(places(&["a=1"]).is_err() && places(&["earliest", "latest"]).is_err() && places(&["a/0=x"]).is_err());
    }
}
