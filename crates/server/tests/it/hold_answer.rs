//! The answers that a client received, by their possible effect: an answer that must be true, a rejection without an effect, or an
//! unknown outcome.

use whimbrel_client::{Accepted, Client, ClientError, Extension, HoldInfo, HoldOutcome, Problem};
use whimbrel_model::Timestamp;

use super::hold_model::Answer;

#[derive(Debug, Clone)]
pub enum HoldReply<T> {
    Answer(T),
    /// The command had no effect, for this reason.
    NotDone(String),
    /// The command may have had an effect, or may have one later.
    InDoubt(String),
}

/// Rejections without an effect, which may pass.
const NOTHING_DONE: [&str; 5] = ["no_owner", "unavailable", "overloaded", "in_progress", "log_closed"];
/// Rejections of another body under an id or key that was used.
const NOT_THE_SAME: [&str; 2] = ["different_body", "id_taken"];

impl<T> HoldReply<T> {
    /// An error without information about a hold.
    pub fn of(error: ClientError) -> Self {
        match error {
            ClientError::Unreachable { .. } => Self::NotDone("unreachable".to_owned()),
            ClientError::Broken { .. } => Self::InDoubt("connection broken".to_owned()),
            ClientError::Timeout { .. } => Self::InDoubt("no answer in time".to_owned()),
            ClientError::Problem(problem) => {
                let code = problem.code.as_str();
                if NOTHING_DONE.contains(&code) || NOT_THE_SAME.contains(&code) {
                    Self::NotDone(code.to_owned())
                } else if ["outcome_unknown", "partly_appended"].contains(&code) {
                    Self::InDoubt(code.to_owned())
                } else {
                    panic!("refused: {problem:?}")
                }
            }
            other => panic!("{other}"),
        }
    }

    pub fn why(&self) -> &str {
        match self {
            Self::Answer(_) => "answered",
            Self::NotDone(why) | Self::InDoubt(why) => why,
        }
    }
}

/// An answer to a command, with the position of a fired message if the answer has it.
pub type CommandReply = HoldReply<(Answer, Option<(u32, u64)>)>;

pub fn publish_reply(answer: Result<Accepted, ClientError>) -> HoldReply<(String, i64)> {
    match answer {
        Ok(Accepted::Held(held)) => {
            assert_eq!(held.state, "held");
            HoldReply::Answer((held.id, millis_of(&held.due)))
        }
        Ok(Accepted::Published(place)) => panic!("published without a hold: {place:?}"),
        Err(error) => HoldReply::of(error),
    }
}

pub async fn ask(client: &Client, id: &str, extension: &Extension) -> CommandReply {
    heard_outcome(client.extend(id, extension).await)
}

pub async fn withdraw(client: &Client, id: &str) -> CommandReply {
    heard_outcome(client.withdraw(id).await)
}

pub async fn fire(client: &Client, id: &str) -> CommandReply {
    heard_outcome(client.fire(id).await)
}

pub async fn look(client: &Client, id: &str) -> CommandReply {
    match client.look(id).await {
        Ok(hold) => HoldReply::Answer((seen(&hold), None)),
        Err(error) => heard_error(error),
    }
}

fn seen(hold: &HoldInfo) -> Answer {
    let due = millis_of(&hold.due);
    match hold.state.as_str() {
        "held" => Answer::Pending { due, version: hold.version.unwrap() },
        "fired" => Answer::AlreadyFired { at: time_of(&hold.fired_at).unwrap(), due: Some(due) },
        "withdrawn" => Answer::AlreadyWithdrawn,
        _ => panic!("{hold:?}"),
    }
}

fn heard_outcome(outcome: Result<HoldOutcome, ClientError>) -> CommandReply {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return heard_error(error),
    };
    let answer = match outcome.outcome.as_str() {
        "rescheduled" => {
            let due = millis_of(outcome.due.as_deref().unwrap());
            Answer::Rescheduled { due, version: outcome.version.unwrap() }
        }
        "withdrawn" => Answer::Withdrawn,
        "fired" => Answer::Fired { at: time_of(&outcome.fired_at) },
        _ => panic!("{outcome:?}"),
    };
    HoldReply::Answer((answer, outcome.partition.zip(outcome.offset)))
}

fn heard_error(error: ClientError) -> CommandReply {
    match error {
        ClientError::Problem(problem) => match definite(&problem) {
            Some(answer) => HoldReply::Answer((answer, None)),
            None => HoldReply::of(ClientError::Problem(problem)),
        },
        other => HoldReply::of(other),
    }
}

fn definite(problem: &Problem) -> Option<Answer> {
    match (problem.status, problem.code.as_str()) {
        (404, "unknown_hold") => Some(Answer::Unknown),
        (409, "already_fired") => {
            let at = time_of(&problem.members.fired_at).expect("it has the time of firing");
            Some(Answer::AlreadyFired { at, due: None })
        }
        (409, "already_withdrawn") => Some(Answer::AlreadyWithdrawn),
        (412, _) => Some(Answer::OtherVersion),
        _ => None,
    }
}

fn time_of(time: &Option<String>) -> Option<i64> {
    time.as_deref().map(millis_of)
}

pub fn millis_of(time: &str) -> i64 {
    Timestamp::parse(time).unwrap().as_millis()
}
