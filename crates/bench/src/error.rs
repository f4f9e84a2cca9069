//! The error of a benchmark.

use whimbrel_client::ClientError;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    System(#[from] std::io::Error),
    #[error("{0}")]
    Failed(String),
}

impl BenchError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }
}
