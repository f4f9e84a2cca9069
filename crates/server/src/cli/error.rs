//! The error of a command: what failed, and the fix. It never prints Rust's debug output.

use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

use whimbrel_bench::BenchError;
use whimbrel_client::ClientError;

#[derive(Debug)]
pub struct CliError {
    message: String,
    /// Further lines, for example each problem of a configuration.
    details: Vec<String>,
    hint: Option<String>,
    /// The reader of stdout has closed the pipe: a normal end, printed as nothing.
    is_closed_pipe: bool,
}

impl CliError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), details: Vec::new(), hint: None, is_closed_pipe: false }
    }

    /// The reader of stdout has exited, for example `| head` after its lines.
    pub fn closed_pipe() -> Self {
        Self { is_closed_pipe: true, ..Self::new("the reader of stdout has closed the pipe") }
    }

    /// Prints the error and returns the exit code.
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

    /// The failure in one sentence.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for CliError {
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

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let failure = Self::new(error.to_string());
        match &error {
            ClientError::Unreachable { .. } => {
                failure.with_hint("is it running? Start it with `whimbrel serve`, or set another one with --server URL")
            }
            ClientError::Problem(problem) => match problem.code.as_str() {
                "key_missing" | "key_unknown" => failure.with_hint("pass an API key with --key or WHIMBREL_KEY"),
                "unknown_topic" => failure.with_hint("`whimbrel topic list` lists the topics"),
                "unknown_subscription" => failure.with_hint("`whimbrel sub list` lists the subscriptions"),
                "unknown_hold" => failure.with_hint("`whimbrel holds list` lists pending holds"),
                "presence_stale" => {
                    failure.with_hint("the writer of presence has not reported in time; retry in a moment")
                }
                "no_owner" => failure.with_hint("another node is taking over the shard; retrying is safe"),
                _ => failure,
            },
            error if error.outcome_is_unknown() => {
                failure.with_hint("the server may have accepted the request; check before you repeat it")
            }
            _ => failure,
        }
    }
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Client(error) => error.into(),
            BenchError::System(error) if error.kind() == ErrorKind::BrokenPipe => Self::closed_pipe(),
            error => Self::new(error.to_string()),
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}
