//! What can go wrong, as a caller branches on it: the server's own refusal with its stable code, or a failure on the way.

use serde::{Deserialize, Serialize};

/// The server's answer to a request it refused (RFC 9457).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub status: u16,
    /// A stable word to branch on, such as `unknown_topic`.
    #[serde(default)]
    pub code: String,
    /// A sentence for people.
    #[serde(default)]
    pub detail: String,
    /// Whatever else the problem says: the index of a bad entry, the first kept offset.
    #[serde(flatten)]
    pub members: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("`{url}` is not a server's address: {why}")]
    BadUrl { url: String, why: &'static str },
    /// The request cannot be sent as it is: a header or a name has characters that HTTP does not carry.
    #[error("the request cannot be sent: {0}")]
    BadRequest(String),
    /// Nothing was sent: no connection came about.
    #[error("no connection to {server}: {why}")]
    Unreachable { server: String, why: String },
    /// The connection broke or the answer could not be read. What was sent may have been accepted.
    #[error("the connection to {server} failed: {why}")]
    Broken { server: String, why: String },
    /// No answer in time. What was sent may have been accepted.
    #[error("{server} did not answer within {waited_ms} ms")]
    Timeout { server: String, waited_ms: u128 },
    /// The server refused.
    #[error("{} ({})", .0.detail, .0.code)]
    Problem(Box<Problem>),
    /// The server answered with something that is not in its contract: probably it is another server.
    #[error("{server} answered {status} with something unexpected: {shown}")]
    Unexpected { server: String, status: u16, shown: String },
}

impl ClientError {
    /// The problem's stable code, where the server refused.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => Some(&problem.code),
            _ => None,
        }
    }

    /// Whether what was sent may have been accepted all the same.
    pub fn outcome_is_unknown(&self) -> bool {
        match self {
            Self::Broken { .. } | Self::Timeout { .. } | Self::Unexpected { .. } => true,
            Self::Problem(problem) => matches!(problem.code.as_str(), "outcome_unknown" | "partly_appended"),
            Self::BadUrl { .. } | Self::BadRequest(_) | Self::Unreachable { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_keeps_its_further_members() {
        let text =
            r#"{"type":"about:blank","title":"Bad entry","status":422,"code":"bad_entry","detail":"no","index":3}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((problem.status, problem.code.as_str()), (422, "bad_entry"));
        assert_eq!(problem.members["index"], 3);
    }
}
