//! The `Catalogue` port: a small, durable, watched map of topics, subscriptions and platforms.

use super::PortFuture;

/// A value with the version of its last write. Versions of a key only increase, even across a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    pub value: Vec<u8>,
    pub version: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// Another writer changed the key first. Nothing was written.
    #[error("another node changed `{key}` first: {}", .found.map_or("it has no entry".to_owned(), |version| format!("its entry is at version {version}")))]
    Conflict { key: String, found: Option<u64> },
    /// Nothing was written.
    #[error("the disk is full: the catalogue could not be written")]
    DiskFull,
    #[error("the catalogue is not available: {0}")]
    Unavailable(String),
    /// The write may or may not have happened, and may or may not survive a restart. A read returns the present state.
    #[error("the outcome of a write to the catalogue is unknown: {0}")]
    OutcomeUnknown(String),
}

/// Small values under names such as `topics/orders`.
///
/// *Atomicity*: each write changes one key, by compare-and-set. *Order*: writes of one key are ordered by their versions. *Durability*: a
/// write is durable when it returns. *Cancellation*: a dropped write may or may not have happened; a read returns the present state.
pub trait Catalogue: Send + Sync {
    fn get<'a>(&'a self, key: &'a str) -> PortFuture<'a, Result<Option<Versioned>, CatalogueError>>;

    /// All keys that start with `prefix`, sorted.
    fn list<'a>(&'a self, prefix: &'a str) -> PortFuture<'a, Result<Vec<(String, Versioned)>, CatalogueError>>;

    /// Writes if the key has the version `expected` (`None`: if it does not exist). Returns the new version.
    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> PortFuture<'a, Result<u64, CatalogueError>>;

    /// Removes the key if it has the version `expected`.
    fn remove<'a>(&'a self, key: &'a str, expected: u64) -> PortFuture<'a, Result<(), CatalogueError>>;

    /// Returns when any key was written after revision `seen`, with the revision for the next call. Start with zero.
    fn changed(&self, seen: u64) -> PortFuture<'_, Result<u64, CatalogueError>>;
}
