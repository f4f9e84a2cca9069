//! `whimbrel push`: push a message to one user or to many.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use whimbrel_client::{Client, NewNotify, NewPush, Origin, Pushed};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{print_answers, table};
use super::publish::read_payloads;

/// Users of one request: the server's maximum.
const UIDS_MAX: usize = 10_000;

#[derive(Debug, clap::Args)]
pub struct PushArgs {
    /// The user
    #[arg(required_unless_present = "uids", conflicts_with = "uids")]
    uid: Option<String>,
    /// The payloads, one message each; `-`, or none, reads one from standard input
    #[arg(value_name = "PAYLOAD")]
    payloads: Vec<String>,
    /// Push to every user of a file, one per line, in requests of up to 10 000; `-` is standard input
    #[arg(long, value_name = "FILE")]
    uids: Option<PathBuf>,
    /// The payload, without a UID argument
    #[arg(short, long, value_name = "TEXT", conflicts_with = "payloads")]
    payload: Option<String>,
    /// Only this platform, as often as needed
    #[arg(long, value_name = "PLATFORM")]
    platform: Vec<String>,
    /// All platforms but this one, as often as needed
    #[arg(long, value_name = "PLATFORM")]
    except_platform: Vec<String>,
    /// Store it until it is acknowledged [the default]
    #[arg(long, conflicts_with = "ephemeral")]
    store: bool,
    /// Deliver to connected devices only; do not store it
    #[arg(long)]
    ephemeral: bool,
    /// How long it is stored: 1h, 7d
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Replaces the stored message with the same key
    #[arg(long, value_name = "KEY")]
    collapse_key: Option<String>,
    /// Push later, after this delay: 10m, 1h30m
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// Your id of the message; pushing it again returns the first answer
    #[arg(long)]
    id: Option<String>,
    /// Your sequence number; a client shows two messages with the same number once
    #[arg(long, value_name = "SERVER:SEQ", value_parser = origin)]
    origin: Option<Origin>,
    /// The payload's media type
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    #[command(flatten)]
    notify: NotifyArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Notifications to devices that do not acknowledge.
#[derive(Debug, clap::Args)]
struct NotifyArgs {
    /// Send a notification with this title to devices that do not acknowledge
    #[arg(long, value_name = "TEXT")]
    notify_title: Option<String>,
    /// …and this text
    #[arg(long, value_name = "TEXT")]
    notify_body: Option<String>,
    /// …and this JSON for the app
    #[arg(long, value_name = "JSON", value_parser = json)]
    notify_data: Option<serde_json::Value>,
    /// Time without an acknowledgement before the notification: 10s
    #[arg(long, value_name = "DURATION")]
    notify_after: Option<String>,
}

fn origin(text: &str) -> Result<Origin, String> {
    let (server, seq) = text.rsplit_once(':').ok_or("expected SERVER:SEQ")?;
    let seq = seq.parse().map_err(|_| format!("`{seq}` is not a number"))?;
    Ok(Origin { server: server.to_owned(), seq })
}

fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

pub fn run(args: PushArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    let pushes = args.pushes()?;
    let users = args.uids.as_deref().map(users_of).transpose()?;
    converse(async {
        let mut pushed = Vec::new();
        for push in &pushes {
            match (&args.uid, &users) {
                (_, Some(users)) => pushed.extend(push_to_all(&client, users, push).await?),
                (Some(uid), None) => pushed.push((1, client.push(uid, push).await?)),
                (None, None) => return Err(CliError::new("set a user, or a file of users with --uids")),
            }
        }
        let (users, answers): (Vec<usize>, Vec<Pushed>) = pushed.into_iter().unzip();
        print_answers(&answers, args.connect.json, |answers| pushed_table(&users, answers))
    })
}

async fn push_to_all(client: &Client, users: &[String], push: &NewPush) -> Result<Vec<(usize, Pushed)>, CliError> {
    let mut pushed = Vec::new();
    for some in users.chunks(UIDS_MAX) {
        pushed.push((some.len(), client.push_many(some, push).await?));
    }
    Ok(pushed)
}

impl PushArgs {
    fn pushes(&self) -> Result<Vec<NewPush>, CliError> {
        let texts = self.payload.as_ref().map_or(&self.payloads[..], std::slice::from_ref);
        let payloads = read_payloads(texts)?.ok_or_else(|| {
            CliError::new("nothing to push").with_hint("write the payload after the user, or `-` to type it")
        })?;
        if payloads.len() > 1 && (self.id.is_some() || self.origin.is_some()) {
            return Err(CliError::new("--id cannot be used with several messages"));
        }
        let notify = &self.notify;
        let is_woken = notify.notify_title.is_some() || notify.notify_body.is_some() || notify.notify_data.is_some();
        let template = NewPush {
            content_type: self.content_type.clone(),
            platforms: (!self.platform.is_empty()).then(|| self.platform.clone()),
            except_platforms: self.except_platform.clone(),
            store: if self.ephemeral { Some(false) } else { self.store.then_some(true) },
            ttl: self.ttl.clone(),
            collapse_key: self.collapse_key.clone(),
            notify: is_woken.then(|| NewNotify {
                title: notify.notify_title.clone(),
                body: notify.notify_body.clone(),
                data: notify.notify_data.clone(),
            }),
            notify_after: notify.notify_after.clone(),
            delay: self.delay.clone(),
            id: self.id.clone(),
            origin: self.origin.clone(),
            ..NewPush::default()
        };
        Ok(payloads.into_iter().map(|payload| NewPush { payload: payload.into(), ..template.clone() }).collect())
    }
}

/// Reads one user per line; empty lines are skipped.
fn users_of(path: &Path) -> Result<Vec<String>, CliError> {
    let cannot_read = |error| CliError::new(format!("{} cannot be read: {error}", path.display()));
    let reader: Box<dyn std::io::BufRead> = if path == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        Box::new(BufReader::new(std::fs::File::open(path).map_err(cannot_read)?))
    };
    let mut users = Vec::new();
    for line in reader.lines() {
        let line = line.map_err(cannot_read)?;
        if !line.trim().is_empty() {
            users.push(line.trim().to_owned());
        }
    }
    if users.is_empty() { Err(CliError::new(format!("{} has no users", path.display()))) } else { Ok(users) }
}

fn pushed_table(users: &[usize], answers: &[Pushed]) -> String {
    let mut shown = table(["users", "id"]);
    for (users, answer) in users.iter().zip(answers) {
        shown.add_row([&users.to_string(), &answer.id]);
    }
    shown.to_string()
}
