//! The errors of the embedded log.

use std::path::PathBuf;

use crate::PartitionKey;

/// The reason why a data folder could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data folder {0} is in use by another process")]
    InUse(PathBuf),
    #[error("the data folder {0} has files that are not Whimbrel's, and no FORMAT file")]
    NotOurs(PathBuf),
    #[error("the data folder {path} has format {found}; this version reads format {known}")]
    OtherFormat { path: PathBuf, found: String, known: u32 },
    #[error("invalid settings of the log: {0}")]
    Settings(String),
    /// A file that is needed to interpret the others.
    #[error("{path} cannot be read: {why}")]
    Unreadable { path: PathBuf, why: String },
    /// Without the catalogue, topics cannot be identified, and their numbers would be used again.
    #[error("the log has topics, but {0} is missing")]
    CatalogueMissing(PathBuf),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
}

impl OpenError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The reason why an append failed. Except for `Unknown`, nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("there is no partition {0}")]
    UnknownPartition(PartitionKey),
    #[error("{size} bytes are over the limit of {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("{0}")]
    DiskFull(String),
    #[error("the write queue of the log is full: {waiting} bytes wait")]
    Overloaded { waiting: usize },
    /// File descriptors or memory are short. The error is temporary, and the log is unchanged.
    #[error("{0}")]
    Delayed(String),
    #[error("{0}")]
    Poisoned(String),
    #[error("the log is closing")]
    Closing,
    #[error("{0}")]
    Unknown(String),
}

/// The reason why a read failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("there is no partition {0}")]
    UnknownPartition(PartitionKey),
    #[error("the retention removed offset {asked}: the first is {first}")]
    Trimmed { asked: u64, first: u64 },
    #[error("offset {asked} is beyond the end: the next is {next}")]
    BeyondEnd { asked: u64, next: u64 },
    #[error("{0}")]
    Damaged(LogDamage),
    #[error("reading {file} failed: {why}")]
    Io { file: String, why: String },
}

/// A place that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDamage {
    pub what: String,
    pub file: String,
    pub position: u64,
    /// The next readable offset, if the damage is in a partition.
    pub resume_at: Option<u64>,
}

impl std::fmt::Display for LogDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {} at byte {}", self.what, self.file, self.position)
    }
}
