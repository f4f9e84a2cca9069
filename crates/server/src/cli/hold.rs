//! `whimbrel hold`, `extend`, `withdraw` and `holds`: create, extend, withdraw, list and fire holds.

use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;
use whimbrel_client::{Extension, HoldCounts, HoldFilter, HoldInfo, HoldOutcome, HoldPage, NewDue};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{members, more_after, table, text_of};
use super::publish::{MessageArgs, send};

/// The members of a hold that have columns of their own.
const HOLD_COLUMNS: [&str; 7] = ["id", "topic", "key", "state", "due", "published_at", "version"];

#[derive(Debug, clap::Args)]
pub struct HoldArgs {
    /// The topic of the message
    topic: String,
    #[command(flatten)]
    message: MessageArgs,
    /// The delay: 10m, 1h30m
    #[arg(short, long, value_name = "DURATION", required_unless_present = "at", conflicts_with = "at")]
    delay: Option<String>,
    /// The due time: 2026-01-31T09:30:00Z
    #[arg(short, long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Args)]
pub struct ExtendArgs {
    /// The hold's id
    id: String,
    /// Move the due time by this much, later or earlier: 10m, -10m
    #[arg(
        long,
        value_name = "DURATION",
        allow_hyphen_values = true,
        required_unless_present = "until",
        conflicts_with = "until"
    )]
    by: Option<String>,
    /// The new due time; a time in the past fires it now: 2026-01-31T09:30:00Z
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only if the hold still has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Makes a repeat of this command safe: the same key moves the hold once
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Args)]
pub struct WithdrawArgs {
    /// The hold's id
    id: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Args)]
pub struct HoldsArgs {
    #[command(subcommand)]
    action: HoldsAction,
}

#[derive(Debug, clap::Subcommand)]
enum HoldsAction {
    /// List pending holds, in due order
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// List the dead holds instead, which could not be written, with the reason
        #[arg(long)]
        dead: bool,
        /// The maximum number of holds
        #[arg(short, long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,
        /// Continue from this cursor
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Count pending holds, and show when they come due
    Count {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Show a hold, or its outcome
    Show {
        id: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Fire a hold now
    Fire {
        id: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
}

#[derive(Debug, clap::Args)]
struct FilterArgs {
    /// Only this topic
    #[arg(short, long)]
    topic: Option<String>,
    /// Due at this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Due before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

impl FilterArgs {
    fn filter(self) -> HoldFilter {
        HoldFilter { topic: self.topic, from: self.from, to: self.to, ..HoldFilter::default() }
    }
}

pub fn hold(args: HoldArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    let messages = args.message.messages(args.delay, args.at)?;
    converse(send(&client, &args.topic, &messages, args.connect.json))
}

pub fn extend(args: ExtendArgs) -> Result<ExitCode, CliError> {
    let to = match (args.by, args.until) {
        (Some(by), _) => NewDue::By(by),
        (None, Some(until)) => NewDue::Until(until),
        (None, None) => {
            return Err(CliError::new("the new due time is missing: give a delay with --by, or a time with --until"));
        }
    };
    let extension = Extension {
        to,
        if_version: args.if_version,
        idempotency_key: args.idempotency_key.filter(|key| !key.is_empty()),
    };
    let id = &args.id;
    args.connect.show(async |client| client.extend(id, &extension).await, |outcome| outcome_line(id, outcome))
}

pub fn withdraw(args: WithdrawArgs) -> Result<ExitCode, CliError> {
    let id = &args.id;
    args.connect.show(async |client| client.withdraw(id).await, |outcome| outcome_line(id, outcome))
}

pub fn holds(args: HoldsArgs) -> Result<ExitCode, CliError> {
    match args.action {
        HoldsAction::List { filter, dead, limit, cursor, connect } => {
            let state = dead.then(|| "dead".to_owned());
            let filter = HoldFilter { state, limit: Some(limit), cursor, ..filter.filter() };
            connect.show(async |client| client.holds(&filter).await, page_text)
        }
        HoldsAction::Count { filter, connect } => {
            connect.show(async |client| client.count_holds(&filter.filter()).await, counts_text)
        }
        HoldsAction::Show { id, connect } => {
            connect.show(async |client| client.look(&id).await, |hold| hold_table(std::slice::from_ref(hold)))
        }
        HoldsAction::Fire { id, connect } => {
            connect.show(async |client| client.fire(&id).await, |outcome| outcome_line(&id, outcome))
        }
    }
}

fn outcome_line(id: &str, outcome: &HoldOutcome) -> String {
    let due = outcome.due.as_ref().map_or(String::new(), |due| format!(", due {due}"));
    let version = outcome.version.map_or(String::new(), |version| format!(", version {version}"));
    let further = further_members(outcome, &["outcome", "due", "version"]);
    format!("{}: {id}{due}{version}{further}", outcome.outcome)
}

fn page_text(page: &HoldPage) -> String {
    if page.holds.is_empty() {
        return "no holds".to_owned();
    }
    let mut lines = vec![hold_table(&page.holds)];
    lines.extend(more_after(page.cursor.as_ref()));
    lines.join("\n")
}

fn hold_table(holds: &[HoldInfo]) -> String {
    let mut shown = table(["due", "topic", "key", "state", "version", "published", "id"]);
    for hold in holds {
        shown.add_row([
            &hold.due,
            &hold.topic,
            hold.key.as_deref().unwrap_or_default(),
            &format!("{}{}", hold.state, further_members(hold, &HOLD_COLUMNS)),
            &hold.version.map_or(String::new(), |version| version.to_string()),
            &hold.published_at,
            &hold.id,
        ]);
    }
    shown.to_string()
}

fn counts_text(counts: &HoldCounts) -> String {
    let total = format!("{} holds", counts.count);
    if counts.buckets.is_empty() {
        return total;
    }
    let mut shown = table(["from", "to", "holds"]);
    for bucket in &counts.buckets {
        shown.add_row([&bucket.from, &bucket.to, &bucket.count.to_string()]);
    }
    format!("{shown}\n{total}")
}

/// The further members of an answer, in words: when the hold fired, why it is dead, where its message is.
fn further_members(answer: &impl Serialize, apart: &[&str]) -> String {
    let is_shown = |name: &str, value: &Value| {
        !apart.contains(&name) && !value.is_null() && !value.is_object() && !value.is_array()
    };
    let facts = members(answer).into_iter().filter(|(name, value)| is_shown(name, value));
    facts.map(|(name, value)| format!(", {} {}", name.replace('_', " "), text_of(&value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_members_of_a_hold_are_shown_in_words() {
        let outcome: HoldOutcome =
            serde_json::from_str(r#"{"outcome":"fired","fired_at":"x","partition":3,"headers":{}}"#).unwrap();
        assert_eq!(further_members(&outcome, &["outcome", "due", "version"]), ", fired at x, partition 3");
    }
}
