//! Why a command failed, for the person in front of it: what happened, and what to do about it. Never Rust's debug output.

use std::fmt;
use std::process::ExitCode;

use whimbrel_client::ClientError;

#[derive(Debug)]
pub struct Failure {
    message: String,
    /// Further lines, such as each problem of a configuration.
    details: Vec<String>,
    hint: Option<String>,
    /// The reader of stdout has closed the pipe: a normal end, about which nothing is printed.
    is_closed_pipe: bool,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), details: Vec::new(), hint: None, is_closed_pipe: false }
    }

    /// The reader of stdout has gone, as `| head` does when it has its lines.
    pub fn closed_pipe() -> Self {
        Self { is_closed_pipe: true, ..Self::new("the reader of stdout has closed the pipe") }
    }

    /// Tells the user, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if self.is_closed_pipe {
            return ExitCode::SUCCESS;
        }
        eprint!("{self}");
        ExitCode::FAILURE
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn with_details(mut self, details: impl IntoIterator<Item = String>) -> Self {
        self.details.extend(details);
        self
    }

    /// What went wrong, in one sentence.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.message)?;
        for detail in &self.details {
            writeln!(f, "  {detail}")?;
        }
        match &self.hint {
            Some(hint) => writeln!(f, "hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let failure = Self::new(error.to_string());
        match &error {
            ClientError::Unreachable { .. } => {
                failure.with_hint("is it running? Start it with `whimbrel serve`, or name another with --server URL")
            }
            ClientError::Problem(problem) => match problem.code.as_str() {
                "key_missing" | "key_unknown" => failure.with_hint("pass an API key with --key or WHIMBREL_KEY"),
                "unknown_topic" => failure.with_hint("`whimbrel topic list` shows the topics there are"),
                "unknown_subscription" => failure.with_hint("`whimbrel sub list` shows the subscriptions there are"),
                "unknown_hold" => failure.with_hint("`whimbrel holds list` shows what is pending"),
                "not_fresh" => {
                    failure.with_hint("whoever writes presence has not been heard from; try again in a moment")
                }
                "no_owner" => failure.with_hint("the shard is being taken over; repeating it is safe"),
                _ => failure,
            },
            error if error.outcome_is_unknown() => {
                failure.with_hint("what was sent may have been accepted; look before you repeat it")
            }
            _ => failure,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}
