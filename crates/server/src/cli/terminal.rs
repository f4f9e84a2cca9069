//! `whimbrel connect`: a device in a terminal. It shows every frame, acknowledges messages, and reconnects as the close codes require.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use whimbrel_people::gateway::websocket::{ClientSocket, ClientSocketError, SocketMessage};

use super::CliError;
use super::connect::converse;
use super::output::{print_json, print_line, text_of};

const PLATFORM_DEFAULT: &str = "cli";
const SUBPROTOCOL: &str = "whimbrel.v1.json";
/// The first delay of a reconnect, unless the server sends one…
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// …and the longest, after repeated failures.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// The longest delay that it accepts from a server.
const TOLD_PAUSE_MAX: Duration = Duration::from_secs(600);
const SEVERAL_HINT: &str = "`whimbrel platform set PLATFORM --sessions 3` permits several devices of a user";
/// Maximum length of a payload in a line, in characters.
const PAYLOAD_SHOWN_CHARS: usize = 1000;

#[derive(Debug, clap::Args)]
pub struct TerminalArgs {
    /// The user, without a token; only for a server without client keys, on its own machine
    #[arg(long, value_name = "UID", required_unless_present = "token", conflicts_with = "token")]
    uid: Option<String>,
    /// The token (JWT) of the user
    #[arg(long, value_name = "JWT", env = "WHIMBREL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The platform [default: the token's, otherwise cli]
    #[arg(long)]
    platform: Option<String>,
    /// The name of the device
    #[arg(long, default_value = "")]
    device: String,
    /// Resume after this cursor
    #[arg(long, value_name = "EPOCH:CURSOR", value_parser = resume)]
    resume: Option<(String, u64)>,
    /// Acknowledge no messages: stored messages stay in the inbox
    #[arg(long)]
    no_ack: bool,
    /// Exit when the connection ends instead of reconnecting
    #[arg(long)]
    once: bool,
    /// End after this number of messages
    #[arg(short, long, value_name = "COUNT")]
    limit: Option<u64>,
    /// The URL of the server
    #[arg(long, value_name = "URL", env = "WHIMBREL_SERVER", default_value = "http://127.0.0.1:7600")]
    server: String,
    /// Print raw frames, one per line
    #[arg(long)]
    json: bool,
}

/// The platform to send, if any. A token with a platform of its own (`plat`) is valid for that platform only.
fn platform<'a>(asked: Option<&'a str>, token: Option<&str>) -> Option<&'a str> {
    let has_own = || token.and_then(claims).is_some_and(|claims| claims["plat"].is_string());
    asked.or_else(|| (!has_own()).then_some(PLATFORM_DEFAULT))
}

/// The claims of a token. Only the server verifies them.
fn claims(token: &str) -> Option<Value> {
    let bytes = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn resume(text: &str) -> Result<(String, u64), String> {
    let (epoch, cursor) = text.rsplit_once(':').ok_or("expected EPOCH:CURSOR, as in `connected`")?;
    let cursor = cursor.parse().map_err(|_| format!("`{cursor}` is not a number"))?;
    Ok((epoch.to_owned(), cursor))
}

/// The next step after a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum ReconnectDecision {
    Return(Duration),
    /// A reconnect would get the same answer.
    Stay(&'static str),
}

/// Decides by the ranges of close codes. Any other code means that the connection broke.
fn next_after(code: u16, reason: &str, pause: Duration) -> ReconnectDecision {
    match code {
        4001 => ReconnectDecision::Stay(
            "a newer session of the user and platform replaced it; reconnecting would replace that one",
        ),
        4000..=4099 => ReconnectDecision::Stay("the server does not permit a reconnect"),
        4100..=4199 => ReconnectDecision::Return(Duration::ZERO),
        4200..=4299 => ReconnectDecision::Return(told_delay(reason).unwrap_or(pause)),
        4300..=4399 => ReconnectDecision::Stay("a new token is required"),
        _ => ReconnectDecision::Return(pause),
    }
}

/// The delay in a close reason: the first number in it, in milliseconds.
fn told_delay(reason: &str) -> Option<Duration> {
    let digits: String = reason.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(|ms| Duration::from_millis(ms).min(TOLD_PAUSE_MAX))
}

pub fn run(args: TerminalArgs) -> Result<ExitCode, CliError> {
    let host = args.server.trim_end_matches('/');
    let Some(host) = host.strip_prefix("http://").filter(|host| !host.is_empty() && !host.contains('/')) else {
        return Err(
            CliError::new(format!("`{}` is not a server address", args.server)).with_hint("expected http://host:port")
        );
    };
    let place = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let mut terminal =
        Terminal { args: &args, place, resume: args.resume.clone(), shown: 0, broke_with: None, kicked: None };
    converse(async {
        tokio::select! {
            ended = terminal.run() => ended,
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
        }
    })
}

struct Terminal<'a> {
    args: &'a TerminalArgs,
    /// `host:port`
    place: String,
    /// The inbox's epoch, and the highest sequence number that was printed.
    resume: Option<(String, u64)>,
    shown: u64,
    /// The reason why the last attempt failed, until one succeeds.
    broke_with: Option<String>,
    /// The code of the last `kick` frame.
    kicked: Option<String>,
}

/// How a connection ended.
enum ConnectionEnd {
    Closed(u16, String),
    Broke(String),
    /// The requested number of messages was received.
    Enough,
}

impl Terminal<'_> {
    async fn run(&mut self) -> Result<ExitCode, CliError> {
        let mut pause = PAUSE_MIN;
        loop {
            let shown_before = self.shown;
            let next = match self.connection().await? {
                ConnectionEnd::Enough => return Ok(ExitCode::SUCCESS),
                ConnectionEnd::Closed(code, reason) => {
                    self.say_closed(code, &reason)?;
                    next_after(code, &reason, pause)
                }
                ConnectionEnd::Broke(why) if self.args.once => return Err(CliError::new(why)),
                ConnectionEnd::Broke(why) => {
                    // Printed once while the reason stays the same.
                    if self.broke_with.as_ref() != Some(&why) {
                        eprintln!("{why}; retrying until Ctrl-C");
                        self.broke_with = Some(why);
                    }
                    ReconnectDecision::Return(pause)
                }
            };
            match next {
                ReconnectDecision::Stay(why) => {
                    let failure = CliError::new(format!("the connection was closed; {why}"));
                    let is_replaced = self.kicked.as_deref() == Some("replaced");
                    return Err(if is_replaced { failure.with_hint(SEVERAL_HINT) } else { failure });
                }
                ReconnectDecision::Return(_) if self.args.once => return Ok(ExitCode::SUCCESS),
                ReconnectDecision::Return(after) => {
                    tokio::time::sleep(after).await;
                    let went_well = self.shown > shown_before;
                    pause = if went_well { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
                }
            }
        }
    }

    async fn connection(&mut self) -> Result<ConnectionEnd, CliError> {
        let opened = ClientSocket::connect(&*self.place, &self.place, "/v1/connect", Some(SUBPROTOCOL)).await;
        let mut socket = match opened {
            Ok(socket) => socket,
            // A repeat of a rejected handshake would be rejected again.
            Err(ClientSocketError::Refused(answer)) => {
                return Err(CliError::new(format!("the server rejected the connection: {answer}")));
            }
            Err(error) => return Ok(ConnectionEnd::Broke(format!("cannot connect to {}: {error}", self.args.server))),
        };
        if let Err(error) = socket.send_text(self.first_frame().to_string()).await {
            return Ok(ConnectionEnd::Broke(error.to_string()));
        }
        loop {
            let text = match socket.next().await {
                Ok(Some(SocketMessage::Text(text))) => text,
                Ok(Some(SocketMessage::Close(Some((code, reason))))) => return Ok(ConnectionEnd::Closed(code, reason)),
                Ok(Some(SocketMessage::Close(None)) | None) => {
                    return Ok(ConnectionEnd::Broke("the server ended the connection".into()));
                }
                Ok(Some(_)) => continue,
                Err(error) => return Ok(ConnectionEnd::Broke(error.to_string())),
            };
            let Ok(frame) = serde_json::from_str::<Value>(&text) else {
                return Err(CliError::new(format!("the server sent a frame that is not JSON: {text}")));
            };
            for answer in self.answers_to(&frame) {
                if let Err(error) = socket.send_text(answer.to_string()).await {
                    return Ok(ConnectionEnd::Broke(error.to_string()));
                }
            }
            self.show(&frame)?;
            if self.args.limit.is_some_and(|limit| self.shown >= limit) {
                // A normal close lets the server read the acknowledgements before the connection ends.
                let _ = socket.send(&SocketMessage::Close(Some((1000, String::new())))).await;
                while let Ok(Some(_)) = socket.next().await {}
                return Ok(ConnectionEnd::Enough);
            }
        }
    }

    fn first_frame(&self) -> Value {
        let mut connect = json!({ "device": self.args.device });
        if let Some(platform) = platform(self.args.platform.as_deref(), self.args.token.as_deref()) {
            connect["platform"] = platform.into();
        }
        match (&self.args.token, &self.args.uid) {
            (Some(token), _) => connect["token"] = token.as_str().into(),
            (None, uid) => connect["uid"] = uid.as_deref().into(),
        }
        if let Some((epoch, cursor)) = &self.resume {
            connect["resume"] = json!({ "epoch": epoch, "cursor": cursor });
        }
        json!({ "connect": connect })
    }

    /// The replies to a frame. Records the cursor for a resume.
    fn answers_to(&mut self, frame: &Value) -> Vec<Value> {
        if frame.get("ping").is_some() {
            return vec![json!({ "pong": {} })];
        }
        // Without acknowledgements, a reconnect must not send a cursor.
        if self.args.no_ack {
            return Vec::new();
        }
        if let Some(connected) = frame.get("connected") {
            let epoch = connected["epoch"].as_str().unwrap_or_default().to_owned();
            let cursor = match &self.resume {
                Some((known, cursor)) if *known == epoch => *cursor,
                _ => 0,
            };
            self.resume = Some((epoch, cursor));
        }
        match frame.get("message").and_then(|message| message["seq"].as_u64()) {
            Some(seq) => {
                if let Some((_, cursor)) = &mut self.resume {
                    *cursor = seq.max(*cursor);
                }
                vec![json!({ "ack": seq })]
            }
            None => Vec::new(),
        }
    }

    fn show(&mut self, frame: &Value) -> Result<(), CliError> {
        self.shown += u64::from(frame.get("message").is_some());
        self.broke_with = None;
        if self.args.json {
            return print_json(frame);
        }
        let Some((name, content)) = frame.as_object().and_then(|members| members.iter().next()) else {
            return print_line(&frame.to_string());
        };
        match name.as_str() {
            "ping" | "pong" => Ok(()),
            "message" => print_line(&message_line(content)),
            "connected" => print_line(&connected_line(content)),
            "truncated" => print_line(&format!("messages {} to {} were removed", content["from"], content["to"])),
            "lost" => print_line(&format!("{} ephemeral messages were dropped", content["count"])),
            "goaway" => print_line("the server shuts down"),
            "kick" => {
                self.kicked = Some(text_of(&content["code"]));
                print_line(&kick_line(content))
            }
            _ => print_line(&frame.to_string()),
        }
    }

    fn say_closed(&self, code: u16, reason: &str) -> Result<(), CliError> {
        if self.args.json {
            return print_json(&json!({ "closed": { "code": code, "reason": reason } }));
        }
        // `kick` has shown its reason.
        let reason = if self.kicked.is_some() { "" } else { reason };
        print_line(format!("closed: {code} {reason}").trim_end())
    }
}

fn kick_line(content: &Value) -> String {
    let reason = text_of(&content["reason"]);
    match content["code"].as_str() {
        // No kick: a newer session of the same user replaced this one.
        Some("replaced") => format!("replaced: {reason}"),
        Some("kicked") => format!("kicked: {reason}"),
        _ => format!("kicked: {} ({reason})", text_of(&content["code"])),
    }
}

fn connected_line(content: &Value) -> String {
    let resumed = match (content["resumed"].as_bool(), content.get("why").and_then(Value::as_str)) {
        (Some(true), _) => ", resumed".to_owned(),
        (_, Some(why)) => format!(", not resumed: {why}"),
        _ => String::new(),
    };
    let [session, epoch] = ["session", "epoch"].map(|name| text_of(&content[name]));
    format!("connected: session {session}, epoch {epoch}, head {}{resumed}", content["head"])
}

fn message_line(content: &Value) -> String {
    let number = content["seq"].as_u64().map_or_else(|| "-".to_owned(), |seq| format!("#{seq}"));
    let payload = match (content["payload"].as_str(), content["payload_base64"].as_str()) {
        (Some(text), _) => {
            let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
            plain.take(PAYLOAD_SHOWN_CHARS).collect()
        }
        (None, Some(encoded)) => format!("<{encoded}>"),
        (None, None) => String::new(),
    };
    format!("{number} {} {payload}", text_of(&content["sent_at"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_code_decides_whether_and_when_to_reconnect() {
        let pause = Duration::from_millis(700);
        assert!(matches!(next_after(4001, "replaced", pause), ReconnectDecision::Stay(_)));
        assert_eq!(next_after(4100, "no_ack", pause), ReconnectDecision::Return(Duration::ZERO));
        assert_eq!(
            next_after(4200, "going_away: after 1200 ms", pause),
            ReconnectDecision::Return(Duration::from_millis(1200))
        );
        assert_eq!(next_after(4202, "overloaded", pause), ReconnectDecision::Return(pause));
        assert!(matches!(next_after(4301, "token_expired", pause), ReconnectDecision::Stay(_)));
        assert_eq!(next_after(1006, "", pause), ReconnectDecision::Return(pause));
    }

    #[test]
    fn the_platform_of_a_token_is_not_sent_and_any_other_is() {
        let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        let (with, without) = (token(r#"{"sub":"u1","plat":"ios"}"#), token(r#"{"sub":"u1"}"#));
        assert_eq!(platform(None, Some(&with)), None);
        assert_eq!(platform(Some("web"), Some(&with)), Some("web"), "the server rejects it");
        assert_eq!(platform(None, Some(&without)), Some("cli"));
        assert_eq!(platform(None, Some("no token")), Some("cli"));
        assert_eq!(platform(None, None), Some("cli"));
    }

    #[test]
    fn a_replaced_session_gets_an_explanation() {
        let reason = "another session of this platform took its place";
        assert_eq!(kick_line(&json!({ "code": "replaced", "reason": reason })), format!("replaced: {reason}"));
        assert_eq!(kick_line(&json!({ "code": "kicked", "reason": "bye" })), "kicked: bye");
        let ReconnectDecision::Stay(why) = next_after(4001, reason, PAUSE_MIN) else { panic!("it reconnects") };
        assert!(why.contains("a newer session"), "{why}");
    }

    #[test]
    fn a_resume_position_is_an_epoch_and_a_number() {
        assert_eq!(resume("a1:b2:41"), Ok(("a1:b2".into(), 41)));
        assert!(resume("41").is_err() && resume("a:b").is_err());
    }
}
