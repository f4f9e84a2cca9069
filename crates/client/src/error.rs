//! Errors of the client: a rejection by the server with its stable code, or a failure of the transfer.

use whimbrel_api::problem::Problem;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("`{url}` is not a server's address: {why}")]
    BadUrl { url: String, why: &'static str },
    /// The request is invalid: a header or a name has characters that HTTP does not allow.
    #[error("the request cannot be sent: {0}")]
    BadRequest(String),
    /// No connection could be opened. Nothing was sent.
    #[error("no connection to {server}: {why}")]
    Unreachable { server: String, why: String },
    /// The connection failed, or the response could not be read. The request may have been accepted.
    #[error("the connection to {server} failed: {why}")]
    Broken { server: String, why: String },
    /// No response in time. The request may have been accepted.
    #[error("{server} did not answer within {waited_ms} ms")]
    Timeout { server: String, waited_ms: u128 },
    /// The server rejected the request.
    #[error("{} ({})", .0.detail, .0.code)]
    Problem(Box<Problem>),
    /// The response is not one of the API: probably the address is of another server.
    #[error("unexpected response from {server}: status {status}, body {shown}")]
    Unexpected { server: String, status: u16, shown: String },
}

impl ClientError {
    /// The problem's stable code, if the server rejected the request.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => Some(&problem.code),
            _ => None,
        }
    }

    /// Whether the request may have been accepted despite the error.
    pub fn outcome_is_unknown(&self) -> bool {
        match self {
            Self::Broken { .. } | Self::Timeout { .. } | Self::Unexpected { .. } => true,
            Self::Problem(problem) => matches!(problem.code.as_str(), "outcome_unknown" | "partly_appended"),
            Self::BadUrl { .. } | Self::BadRequest(_) | Self::Unreachable { .. } => false,
        }
    }
}
