//! `whimbrel import`: creates subscriptions from a kafka-pusher's configuration file. It sends nothing if the file has an error.

mod lenient_json;
mod pusher;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use whimbrel_client::{Client, ClientError};

use self::pusher::PlannedSubscription;
use super::CliError;
use super::connect::{ConnectArgs, converse, exists};
use super::output::{print_answer, table};

#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// The configuration file of a kafka-pusher; // comments and trailing commas are accepted
    #[arg(value_name = "PUSHER_JSON")]
    file: PathBuf,
    /// Show what would be created, without creating it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub fn run(args: ImportArgs) -> Result<ExitCode, CliError> {
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| CliError::new(format!("{name} cannot be read: {error}")))?;
    let plan = pusher::plan(&text).map_err(|problems| {
        let lines = problems.into_iter().map(|problem| format!("{name}: {problem}"));
        CliError::new("nothing was imported:")
            .with_details(lines)
            .with_hint("docs/guides/kafka-pusher.md has each field")
    })?;
    for remark in &plan.remarks {
        eprintln!("{name}: {remark}");
    }
    if args.dry_run {
        return show(&plan.subscriptions, &vec!["would be put"; plan.subscriptions.len()], args.connect.json);
    }
    let client = args.connect.client()?;
    converse(async {
        let mut outcomes = Vec::with_capacity(plan.subscriptions.len());
        for planned in &plan.subscriptions {
            let outcome = put(&client, planned).await.map_err(|error| {
                let done = outcomes.len();
                CliError::new(format!("{name}: line {}: {}: {error}", planned.line, planned.name)).with_hint(format!(
                    "the {done} subscriptions before it were created; a second import does not duplicate them"
                ))
            })?;
            outcomes.push(outcome);
        }
        show(&plan.subscriptions, &outcomes, args.connect.json)
    })
}

async fn put(client: &Client, planned: &PlannedSubscription) -> Result<&'static str, ClientError> {
    let was_there = exists(client.subscription(&planned.name).await, "unknown_subscription")?;
    client.put_subscription(&planned.name, &planned.settings).await?;
    Ok(if was_there { "changed" } else { "made" })
}

fn show(planned: &[PlannedSubscription], outcomes: &[&str], json: bool) -> Result<ExitCode, CliError> {
    let shown = planned.iter().zip(outcomes).map(|(planned, outcome)| {
        json!({ "name": planned.name, "outcome": outcome, "line": planned.line, "subscription": planned.settings })
    });
    let answer = json!({ "subscriptions": shown.collect::<Vec<_>>() });
    print_answer(&answer, json, |_| plan_table(planned, outcomes))
}

fn plan_table(planned: &[PlannedSubscription], outcomes: &[&str]) -> String {
    let mut shown = table(["subscription", "", "topics", "url", "concurrency", "retries", "after retries"]);
    for (planned, outcome) in planned.iter().zip(outcomes) {
        let settings = &planned.settings;
        let retry = settings.retry.clone().unwrap_or_default();
        shown.add_row([
            planned.name.clone(),
            (*outcome).to_owned(),
            settings.topics.join(" "),
            settings.endpoint.as_ref().map_or(String::new(), |endpoint| endpoint.url.clone()),
            settings.concurrency.map_or(String::new(), |count| count.to_string()),
            format!("{} every {}", retry.times.unwrap_or_default(), retry.schedule.join(" ")),
            settings.on_exhausted.clone().unwrap_or_default(),
        ]);
    }
    shown.to_string()
}
