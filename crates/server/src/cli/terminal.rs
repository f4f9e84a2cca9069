//! `whimbrel connect`: a device in a terminal. It shows every frame, acknowledges what it was sent, and comes back as the close codes say.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use whimbrel_people::gateway::websocket::{ClientError, ClientSocket, Message};

use super::Failure;
use super::connect::converse;
use super::output::{print_json, print_line};

const PLATFORM_DEFAULT: &str = "cli";
const SUBPROTOCOL: &str = "whimbrel.v1.json";
/// How long it waits before it comes back where nobody said how long…
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// …and at most, after it failed again and again.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// The longest that it obeys a server about.
const TOLD_PAUSE_MAX: Duration = Duration::from_secs(600);
const SEVERAL_HINT: &str = "`whimbrel platform set PLATFORM --sessions 3` lets several devices of a user in";
/// Characters of a payload that a line shows.
const PAYLOAD_SHOWN_CHARS: usize = 1000;

#[derive(Debug, clap::Args)]
pub struct TerminalArgs {
    /// Who to be, without a token; only where the server has no client keys, on its own machine
    #[arg(long, value_name = "UID", required_unless_present = "token", conflicts_with = "token")]
    uid: Option<String>,
    /// The token (JWT) that says who it is
    #[arg(long, value_name = "JWT", env = "WHIMBREL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The platform to be of: the token's, where it has one, otherwise cli
    #[arg(long)]
    platform: Option<String>,
    /// The device's name
    #[arg(long, default_value = "")]
    device: String,
    /// Go on behind what is here already
    #[arg(long, value_name = "EPOCH:CURSOR", value_parser = resume)]
    resume: Option<(String, u64)>,
    /// Acknowledge nothing: what is stored stays stored
    #[arg(long)]
    no_ack: bool,
    /// End with the connection instead of coming back
    #[arg(long)]
    once: bool,
    /// End after so many messages
    #[arg(short, long, value_name = "COUNT")]
    limit: Option<u64>,
    /// The server to talk to
    #[arg(long, value_name = "URL", env = "WHIMBREL_SERVER", default_value = "http://127.0.0.1:7600")]
    server: String,
    /// Print the frames as they are, one per line
    #[arg(long)]
    json: bool,
}

/// What it says its platform is, where it has to say: a token that has one of its own (`plat`) is good for no other.
fn platform<'a>(asked: Option<&'a str>, token: Option<&str>) -> Option<&'a str> {
    let has_own = || token.and_then(claims).is_some_and(|claims| claims["plat"].is_string());
    asked.or_else(|| (!has_own()).then_some(PLATFORM_DEFAULT))
}

/// What a token says of itself. Whether that is true is the server's to judge.
fn claims(token: &str) -> Option<Value> {
    let bytes = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn resume(text: &str) -> Result<(String, u64), String> {
    let (epoch, cursor) = text.rsplit_once(':').ok_or("write EPOCH:CURSOR, as `connected` said")?;
    let cursor = cursor.parse().map_err(|_| format!("`{cursor}` is not a number"))?;
    Ok((epoch.to_owned(), cursor))
}

/// What to do about an end.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Return(Duration),
    /// It would be told the same again.
    Stay(&'static str),
}

/// By the ranges of close codes; what is no code of Whimbrel's is a connection that broke.
fn next_after(code: u16, reason: &str, pause: Duration) -> Next {
    match code {
        4001 => Next::Stay("the newest session of a user and platform wins, so there is nothing to come back for"),
        4000..=4099 => Next::Stay("it is not to come back"),
        4100..=4199 => Next::Return(Duration::ZERO),
        4200..=4299 => Next::Return(told_delay(reason).unwrap_or(pause)),
        4300..=4399 => Next::Stay("it needs another token"),
        _ => Next::Return(pause),
    }
}

/// The delay in a close reason: the first number in it, in milliseconds.
fn told_delay(reason: &str) -> Option<Duration> {
    let digits: String = reason.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(|ms| Duration::from_millis(ms).min(TOLD_PAUSE_MAX))
}

pub fn run(args: TerminalArgs) -> Result<ExitCode, Failure> {
    let host = args.server.trim_end_matches('/');
    let Some(host) = host.strip_prefix("http://").filter(|host| !host.is_empty() && !host.contains('/')) else {
        return Err(
            Failure::new(format!("`{}` is not a server's address", args.server)).with_hint("write http://host:port")
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
    /// The inbox's epoch, and the highest number that was shown.
    resume: Option<(String, u64)>,
    shown: u64,
    /// Why the last attempt came to nothing, until one comes to something.
    broke_with: Option<String>,
    /// The code of the `kick` that it was told.
    kicked: Option<String>,
}

/// How a connection ended.
enum Ended {
    Closed(u16, String),
    Broke(String),
    /// As many messages as were wanted.
    Enough,
}

impl Terminal<'_> {
    async fn run(&mut self) -> Result<ExitCode, Failure> {
        let mut pause = PAUSE_MIN;
        loop {
            let shown_before = self.shown;
            let next = match self.connection().await? {
                Ended::Enough => return Ok(ExitCode::SUCCESS),
                Ended::Closed(code, reason) => {
                    self.say_closed(code, &reason)?;
                    next_after(code, &reason, pause)
                }
                Ended::Broke(why) if self.args.once => return Err(Failure::new(why)),
                Ended::Broke(why) => {
                    // Said once for as long as it lasts.
                    if self.broke_with.as_ref() != Some(&why) {
                        eprintln!("{why}; trying again until Ctrl-C");
                        self.broke_with = Some(why);
                    }
                    Next::Return(pause)
                }
            };
            match next {
                Next::Stay(why) => {
                    let failure = Failure::new(format!("the connection was closed; {why}"));
                    let is_replaced = self.kicked.as_deref() == Some("replaced");
                    return Err(if is_replaced { failure.with_hint(SEVERAL_HINT) } else { failure });
                }
                Next::Return(_) if self.args.once => return Ok(ExitCode::SUCCESS),
                Next::Return(after) => {
                    tokio::time::sleep(after).await;
                    let went_well = self.shown > shown_before;
                    pause = if went_well { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
                }
            }
        }
    }

    async fn connection(&mut self) -> Result<Ended, Failure> {
        let opened = ClientSocket::connect(&*self.place, &self.place, "/v1/connect", Some(SUBPROTOCOL)).await;
        let mut socket = match opened {
            Ok(socket) => socket,
            // Whoever answers no to the handshake would do so again.
            Err(ClientError::Refused(answer)) => return Err(Failure::new(format!("the server refused: {answer}"))),
            Err(error) => return Ok(Ended::Broke(format!("{} cannot be reached: {error}", self.args.server))),
        };
        if let Err(error) = socket.send_text(self.first_frame().to_string()).await {
            return Ok(Ended::Broke(error.to_string()));
        }
        loop {
            let text = match socket.next().await {
                Ok(Some(Message::Text(text))) => text,
                Ok(Some(Message::Close(Some((code, reason))))) => return Ok(Ended::Closed(code, reason)),
                Ok(Some(Message::Close(None)) | None) => {
                    return Ok(Ended::Broke("the server ended the connection".into()));
                }
                Ok(Some(_)) => continue,
                Err(error) => return Ok(Ended::Broke(error.to_string())),
            };
            let Ok(frame) = serde_json::from_str::<Value>(&text) else {
                return Err(Failure::new(format!("the server sent what is no JSON: {text}")));
            };
            for answer in self.answers_to(&frame) {
                if let Err(error) = socket.send_text(answer.to_string()).await {
                    return Ok(Ended::Broke(error.to_string()));
                }
            }
            self.show(&frame)?;
            if self.args.limit.is_some_and(|limit| self.shown >= limit) {
                // An orderly end, so that what was acknowledged is read before the connection goes.
                let _ = socket.send(&Message::Close(Some((1000, String::new())))).await;
                while let Ok(Some(_)) = socket.next().await {}
                return Ok(Ended::Enough);
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

    /// What a frame is answered with; remembers where to resume.
    fn answers_to(&mut self, frame: &Value) -> Vec<Value> {
        if frame.get("ping").is_some() {
            return vec![json!({ "pong": {} })];
        }
        // What acknowledges nothing must not say when it comes back that it has everything.
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

    fn show(&mut self, frame: &Value) -> Result<(), Failure> {
        self.shown += u64::from(frame.get("message").is_some());
        self.broke_with = None;
        if self.args.json {
            return print_json(frame);
        }
        let Some((name, said)) = frame.as_object().and_then(|members| members.iter().next()) else {
            return print_line(&frame.to_string());
        };
        match name.as_str() {
            "ping" | "pong" => Ok(()),
            "message" => print_line(&message_line(said)),
            "connected" => print_line(&connected_line(said)),
            "truncated" => print_line(&format!("messages {} to {} are gone", said["from"], said["to"])),
            "lost" => print_line(&format!("{} ephemeral messages were dropped", said["count"])),
            "goaway" => print_line("the server goes away"),
            "kick" => {
                self.kicked = Some(text_of(&said["code"]));
                print_line(&kick_line(said))
            }
            _ => print_line(&frame.to_string()),
        }
    }

    fn say_closed(&self, code: u16, reason: &str) -> Result<(), Failure> {
        if self.args.json {
            return print_json(&json!({ "closed": { "code": code, "reason": reason } }));
        }
        // The reason of a kick was shown with it.
        let reason = if self.kicked.is_some() { "" } else { reason };
        print_line(format!("closed: {code} {reason}").trim_end())
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn kick_line(said: &Value) -> String {
    let reason = text_of(&said["reason"]);
    match said["code"].as_str() {
        // Nobody sent it away: the same user is somewhere else now.
        Some("replaced") => format!("replaced: {reason}"),
        Some("kicked") => format!("kicked: {reason}"),
        _ => format!("sent away: {} ({reason})", text_of(&said["code"])),
    }
}

fn connected_line(said: &Value) -> String {
    let resumed = match (said["resumed"].as_bool(), said.get("why").and_then(Value::as_str)) {
        (Some(true), _) => ", resumed".to_owned(),
        (_, Some(why)) => format!(", not resumed: {why}"),
        _ => String::new(),
    };
    let [session, epoch] = ["session", "epoch"].map(|name| text_of(&said[name]));
    format!("connected: session {session}, epoch {epoch}, head {}{resumed}", said["head"])
}

fn message_line(said: &Value) -> String {
    let number = said["seq"].as_u64().map_or_else(|| "-".to_owned(), |seq| format!("#{seq}"));
    let payload = match (said["payload"].as_str(), said["payload_base64"].as_str()) {
        (Some(text), _) => {
            let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
            plain.take(PAYLOAD_SHOWN_CHARS).collect()
        }
        (None, Some(encoded)) => format!("<{encoded}>"),
        (None, None) => String::new(),
    };
    format!("{number} {} {payload}", text_of(&said["sent_at"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_code_says_whether_and_when_to_come_back() {
        let pause = Duration::from_millis(700);
        assert!(matches!(next_after(4001, "replaced", pause), Next::Stay(_)));
        assert_eq!(next_after(4100, "no_ack", pause), Next::Return(Duration::ZERO));
        assert_eq!(next_after(4200, "going_away: after 1200 ms", pause), Next::Return(Duration::from_millis(1200)));
        assert_eq!(next_after(4202, "overloaded", pause), Next::Return(pause));
        assert!(matches!(next_after(4301, "token_expired", pause), Next::Stay(_)));
        assert_eq!(next_after(1006, "", pause), Next::Return(pause));
    }

    #[test]
    fn a_token_that_has_a_platform_says_it_and_any_other_needs_one() {
        let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        let (with, without) = (token(r#"{"sub":"u1","plat":"ios"}"#), token(r#"{"sub":"u1"}"#));
        assert_eq!(platform(None, Some(&with)), None);
        assert_eq!(platform(Some("web"), Some(&with)), Some("web"), "the server says what is wrong with that");
        assert_eq!(platform(None, Some(&without)), Some("cli"));
        assert_eq!(platform(None, Some("no token")), Some("cli"));
        assert_eq!(platform(None, None), Some("cli"));
    }

    #[test]
    fn who_is_replaced_is_told_so_in_words() {
        let reason = "another session of this platform took its place";
        assert_eq!(kick_line(&json!({ "code": "replaced", "reason": reason })), format!("replaced: {reason}"));
        assert_eq!(kick_line(&json!({ "code": "kicked", "reason": "bye" })), "kicked: bye");
        let Next::Stay(why) = next_after(4001, reason, PAUSE_MIN) else { panic!("it came back") };
        assert!(why.contains("nothing to come back for"), "{why}");
    }

    #[test]
    fn where_to_resume_is_an_epoch_and_a_number() {
        assert_eq!(resume("a1:b2:41"), Ok(("a1:b2".into(), 41)));
        assert!(resume("41").is_err() && resume("a:b").is_err());
    }
}
