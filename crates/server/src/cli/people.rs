//! `whimbrel presence`, `kick` and `inbox`.

use std::process::ExitCode;

use whimbrel_client::{InboxInfo, Kick, PresenceInfo};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{print_json, print_line, table};

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
        show_presence(&users, args.connect.json)
    })
}

pub fn kick(args: KickArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    let kick = Kick { platform: args.platform, session: args.session, reason: args.reason };
    converse(async {
        let answer = client.kick(&args.uid, &kick).await?;
        if args.connect.json {
            print_json(&answer)?;
        } else {
            print_line(&format!("{} will be kicked: {}", args.uid, kick.reason))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

pub fn inbox(args: InboxArgs) -> Result<ExitCode, CliError> {
    let client = args.connect.client()?;
    converse(async {
        if args.wipe {
            client.wipe_inbox(&args.uid).await?;
            if !args.connect.json {
                print_line(&format!("the inbox of {} will be emptied", args.uid))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        show_inbox(&client.inbox(&args.uid, args.platform.as_deref()).await?, args.connect.json)
    })
}

fn show_presence(users: &[PresenceInfo], json: bool) -> Result<ExitCode, CliError> {
    if json {
        for user in users {
            print_json(user)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
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
    print_line(&shown.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn show_inbox(inbox: &InboxInfo, json: bool) -> Result<ExitCode, CliError> {
    if json {
        print_json(inbox)?;
        return Ok(ExitCode::SUCCESS);
    }
    if inbox.messages.is_empty() {
        print_line("nothing is stored")?;
    } else {
        let mut shown = table(["number", "id", "expires", "payload"]);
        for message in &inbox.messages {
            let text = message.payload.as_deref().or(message.payload_base64.as_deref()).unwrap_or_default();
            let plain: String =
                text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(PAYLOAD_SHOWN_CHARS).collect();
            shown.add_row([&message.seq.to_string(), &message.id, &message.expires_at, &plain]);
        }
        print_line(&shown.to_string())?;
    }
    if !inbox.seats.is_empty() {
        let mut shown = table(["platform", "device", "acknowledged up to", "online", "waiting"]);
        for seat in &inbox.seats {
            let numbers = [seat.cursor.to_string(), seat.online.to_string(), seat.waiting.to_string()];
            let cells = [&seat.platform, &seat.device, &numbers[0], &numbers[1], &numbers[2]];
            shown.add_row(cells.map(String::as_str));
        }
        print_line(&shown.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
