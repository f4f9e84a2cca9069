//! The catalogue: a small, durable, watched map. Topics with their numbers live here; subscriptions, platforms and keys will.

use super::PortFuture;

/// A value with the version that its last write gave it. Versions of one key only grow, also across its deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    pub value: Vec<u8>,
    pub version: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// Another writer was faster; nothing was written.
    #[error("another node changed `{key}` first: {}", .found.map_or("it has no entry".to_owned(), |version| format!("its entry is at version {version}")))]
    Conflict { key: String, found: Option<u64> },
    /// Nothing was written.
    #[error("the disk is full: the catalogue could not be written")]
    DiskFull,
    #[error("the catalogue is not available: {0}")]
    Unavailable(String),
    /// It may have been written, and may last or not. Reading tells what it is now.
    #[error("whether the catalogue was written is not known: {0}")]
    OutcomeUnknown(String),
}

/// Small values under names such as `topics/orders`. Every write is durable when it answers, and atomic by key.
///
/// *Cancellation*: a dropped write may or may not have happened; reading tells.
pub trait Catalogue: Send + Sync {
    fn get<'a>(&'a self, key: &'a str) -> PortFuture<'a, Result<Option<Versioned>, CatalogueError>>;

    /// All keys that start with `prefix`, in order.
    fn list<'a>(&'a self, prefix: &'a str) -> PortFuture<'a, Result<Vec<(String, Versioned)>, CatalogueError>>;

    /// Writes if the key is at `expected` (`None`: if it is not there), and answers with the new version.
    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> PortFuture<'a, Result<u64, CatalogueError>>;

    /// Removes the key if it is at `expected`.
    fn remove<'a>(&'a self, key: &'a str, expected: u64) -> PortFuture<'a, Result<(), CatalogueError>>;

    /// Returns when something was written after `seen`, with the revision to give the next time. Begin with zero.
    fn changed(&self, seen: u64) -> PortFuture<'_, Result<u64, CatalogueError>>;
}
