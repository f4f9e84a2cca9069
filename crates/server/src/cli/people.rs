//! `whimbrel presence`, `kick` and `inbox`.

use std::process::ExitCode;

use whimbrel_client::{InboxInfo, Kick, PresenceInfo};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{print_answers, table};

/// Maximum length of a payload in a row, in characters.
const PAYLOAD_SHOWN_CHARS: usize = 80;

#[derive(Debug, clap::Args)]
pub struct PresenceArgs {
    /// The users
    #[arg(required = true)]
    uids: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Args)]
pub struct KickArgs {
    /// The user
    uid: String,
    /// The reason that the devices receive
    #[arg(short, long, value_name = "TEXT", default_value = "kicked")]
    reason: String,
    /// Only the sessions of this platform
    #[arg(long)]
    platform: Option<String>,
    /// Only this session
    #[arg(long)]
    session: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Args)]
pub struct InboxArgs {
    /// The user
    uid: String,
    /// Only the messages that this platform has not acknowledged
    #[arg(long, conflicts_with = "wipe")]
    platform: Option<String>,
    /// Empty the inbox instead of showing it
    #[arg(long)]
    wipe: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub fn presence(args: PresenceArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    converse(async {
        let users = match args.uids.as_slice() {
            [one] => vec![client.presence(one).await?],
            many => client.presence_of(many).await?.users,
        };
        print_answers(&users, args.connect.json, presence_table)
    })
}

pub fn kick(args: KickArgs) -> Result<ExitCode, CliError> {
    let kick = Kick { platform: args.platform, session: args.session, reason: args.reason };
    let sentence = format!("{} will be kicked, with the reason `{}`", args.uid, kick.reason);
    args.connect.show(async |client| client.kick(&args.uid, &kick).await, |_| sentence)
}

pub fn inbox(args: InboxArgs) -> Result<ExitCode, CliError> {
    let InboxArgs { uid, platform, wipe, connect } = args;
    if wipe {
        let sentence = format!("the inbox of {uid} will be emptied");
        return connect.finish(async |client| client.wipe_inbox(&uid).await, &sentence);
    }
    connect.show(async |client| client.inbox(&uid, platform.as_deref()).await, inbox_text)
}

fn presence_table(users: &[PresenceInfo]) -> String {
    let mut shown = table(["user", "online", "platform", "device", "since", "session"]);
    for user in users {
        if user.sessions.is_empty() {
            let seen = user.last_seen.as_ref().map_or(String::new(), |time| format!("last seen {time}"));
            shown.add_row([user.uid.as_str(), "no", "", "", &seen, ""]);
        }
        for session in &user.sessions {
            let cells = [&session.platform, &session.device, &session.since, &session.session].map(String::as_str);
            shown.add_row([[user.uid.as_str(), "yes"].as_slice(), cells.as_slice()].concat());
        }
    }
    shown.to_string()
}

fn inbox_text(inbox: &InboxInfo) -> String {
    let mut lines = Vec::new();
    if inbox.messages.is_empty() {
        lines.push("nothing is stored".to_owned());
    } else {
        let mut shown = table(["number", "id", "expires", "payload"]);
        for message in &inbox.messages {
            let text = message.payload.as_deref().or(message.payload_base64.as_deref()).unwrap_or_default();
            let plain: String =
                text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(PAYLOAD_SHOWN_CHARS).collect();
            shown.add_row([&message.seq.to_string(), &message.id, &message.expires_at, &plain]);
        }
        lines.push(shown.to_string());
    }
    if !inbox.seats.is_empty() {
        let mut shown = table(["platform", "device", "acknowledged up to", "online", "waiting"]);
        for seat in &inbox.seats {
            let numbers = [seat.cursor.to_string(), seat.online.to_string(), seat.waiting.to_string()];
            let cells = [&seat.platform, &seat.device, &numbers[0], &numbers[1], &numbers[2]];
            shown.add_row(cells.map(String::as_str));
        }
        lines.push(shown.to_string());
    }
    lines.join("\n")
}
