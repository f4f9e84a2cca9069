//! What a client heard, told apart by what it may have done: an answer that must be true, a refusal that did nothing, or nothing that
//! says what was done.

use serde_json::{Map, Value};
use whimbrel_client::{Accepted, Client, ClientError, Extension, HoldInfo, HoldOutcome, Problem};
use whimbrel_model::Timestamp;

use super::hold_model::Answer;

#[derive(Debug, Clone)]
pub enum Heard<T> {
    Answer(T),
    /// Certainly nothing was done, and this is why.
    NotDone(String),
    /// It may have been done, or be done later.
    InDoubt(String),
}

/// Refusals that say that nothing was done, and may pass.
const NOTHING_DONE: [&str; 5] = ["no_owner", "unavailable", "overloaded", "in_progress", "log_closed"];
/// Refusals of another body under an id or key that was used.
const NOT_THE_SAME: [&str; 2] = ["different_body", "id_taken"];

impl<T> Heard<T> {
    /// An error that says nothing about a hold.
    pub fn of(error: ClientError) -> Self {
        match error {
            ClientError::Unreachable { .. } => Self::NotDone("unreachable".to_owned()),
            ClientError::Broken { .. } => Self::InDoubt("broken off".to_owned()),
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

/// An answer to a command, and where a fired message is, where that is said.
pub type HeardOfHold = Heard<(Answer, Option<(u32, u64)>)>;

/// The id and the due time.
pub fn heard_publish(answer: Result<Accepted, ClientError>) -> Heard<(String, i64)> {
    match answer {
        Ok(Accepted::Held(held)) => {
            assert_eq!(held.state, "held");
            Heard::Answer((held.id, millis_of(&held.due)))
        }
        Ok(Accepted::Published(place)) => panic!("published at once: {place:?}"),
        Err(error) => Heard::of(error),
    }
}

pub async fn ask(client: &Client, id: &str, extension: &Extension) -> HeardOfHold {
    heard_outcome(client.extend(id, extension).await)
}

pub async fn withdraw(client: &Client, id: &str) -> HeardOfHold {
    heard_outcome(client.withdraw(id).await)
}

pub async fn fire(client: &Client, id: &str) -> HeardOfHold {
    heard_outcome(client.fire(id).await)
}

pub async fn look(client: &Client, id: &str) -> HeardOfHold {
    match client.look(id).await {
        Ok(hold) => Heard::Answer((seen(&hold), None)),
        Err(error) => heard_error(error),
    }
}

fn seen(hold: &HoldInfo) -> Answer {
    let due = millis_of(&hold.due);
    match hold.state.as_str() {
        "held" => Answer::Pending { due, version: hold.version.unwrap() },
        "fired" => Answer::AlreadyFired { at: time_in(&hold.more, "fired_at").unwrap(), due: Some(due) },
        "withdrawn" => Answer::AlreadyWithdrawn,
        _ => panic!("{hold:?}"),
    }
}

fn heard_outcome(outcome: Result<HoldOutcome, ClientError>) -> HeardOfHold {
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
        "fired" => Answer::Fired { at: time_in(&outcome.more, "fired_at") },
        _ => panic!("{outcome:?}"),
    };
    let number = |name: &str| outcome.more.get(name).and_then(Value::as_u64);
    let place = number("partition").and_then(|partition| u32::try_from(partition).ok()).zip(number("offset"));
    Heard::Answer((answer, place))
}

fn heard_error(error: ClientError) -> HeardOfHold {
    match error {
        ClientError::Problem(problem) => match definite(&problem) {
            Some(answer) => Heard::Answer((answer, None)),
            None => Heard::of(ClientError::Problem(problem)),
        },
        other => Heard::of(other),
    }
}

fn definite(problem: &Problem) -> Option<Answer> {
    match (problem.status, problem.code.as_str()) {
        (404, "unknown_hold") => Some(Answer::Unknown),
        (409, "already_fired") => {
            let at = time_in(&problem.members, "fired_at").expect("it says when it fired");
            Some(Answer::AlreadyFired { at, due: None })
        }
        (409, "already_withdrawn") => Some(Answer::AlreadyWithdrawn),
        (412, _) => Some(Answer::OtherVersion),
        _ => None,
    }
}

fn time_in(members: &Map<String, Value>, name: &str) -> Option<i64> {
    members.get(name).and_then(Value::as_str).map(millis_of)
}

pub fn millis_of(time: &str) -> i64 {
    Timestamp::parse(time).unwrap().as_millis()
}
