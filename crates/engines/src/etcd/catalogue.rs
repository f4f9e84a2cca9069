//! The `Catalogue` port on etcd. A version is the etcd revision of the write, so it increases across all keys and removals.

use std::sync::Arc;

use whimbrel_model::EventSink;
use whimbrel_model::ports::{Catalogue, CatalogueError, PortFuture, Versioned};

use super::connection::{EtcdConnection, delete, get, is_absent, is_at, is_full, may_have_run, put, reason, under};
use super::mirror::PrefixMirror;
use super::wire::request_op::Request as Operation;
use super::wire::{KeyValue, RangeRequest};

/// The catalogue of an installation, which all nodes share.
pub struct EtcdCatalogue {
    connection: EtcdConnection,
    prefix: String,
    mirror: PrefixMirror,
}

impl EtcdCatalogue {
    /// Must be called within a tokio runtime: it starts the watch of the catalogue.
    pub fn new(connection: EtcdConnection) -> Self {
        Self::reporting_to(connection, Arc::new(|_| {}))
    }

    /// The same, with a sink for events about etcd.
    pub fn reporting_to(connection: EtcdConnection, events: EventSink) -> Self {
        let prefix = format!("{}catalogue/", connection.settings().prefix);
        let mirror = PrefixMirror::new(connection.clone(), prefix.clone().into_bytes(), events);
        Self { connection, prefix, mirror }
    }

    fn key(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }

    /// Changes the key if it is at the expected version. Returns the revision of the change.
    async fn change(&self, key: &str, expected: Option<u64>, change: Operation) -> Result<u64, CatalogueError> {
        let full = self.key(key);
        let condition = match expected {
            None => is_absent(&full),
            Some(version) => is_at(&full, i64::try_from(version).unwrap_or(i64::MAX)),
        };
        let outcome = self.connection.transact(vec![condition], vec![change], vec![get(&full)]).await;
        let outcome = outcome.map_err(|status| not_confirmed(&status))?;
        if outcome.succeeded {
            return Ok(version(outcome.revision));
        }
        let found = outcome.found.first().map(|entry| version(entry.mod_revision));
        Err(CatalogueError::Conflict { key: key.to_owned(), found })
    }
}

fn version(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

fn versioned(entry: KeyValue) -> Versioned {
    Versioned { version: version(entry.mod_revision), value: entry.value }
}

fn unavailable(status: &tonic::Status) -> CatalogueError {
    if is_full(status) { CatalogueError::DiskFull } else { CatalogueError::Unavailable(reason(status)) }
}

/// The error for a write whose outcome is unknown or that failed.
fn not_confirmed(status: &tonic::Status) -> CatalogueError {
    if may_have_run(status) {
        CatalogueError::OutcomeUnknown(format!("etcd did not confirm the write: {}", reason(status)))
    } else {
        unavailable(status)
    }
}

impl Catalogue for EtcdCatalogue {
    fn get<'a>(&'a self, key: &'a str) -> PortFuture<'a, Result<Option<Versioned>, CatalogueError>> {
        Box::pin(async move {
            let request = RangeRequest { key: self.key(key), ..RangeRequest::default() };
            let read = self.connection.range(request).await.map_err(|status| unavailable(&status))?;
            Ok(read.kvs.into_iter().next().map(versioned))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> PortFuture<'a, Result<Vec<(String, Versioned)>, CatalogueError>> {
        Box::pin(async move {
            let read = self.connection.range(under(&self.key(prefix))).await.map_err(|status| unavailable(&status))?;
            let named = |entry: KeyValue| {
                let key = entry.key.strip_prefix(self.prefix.as_bytes()).map(<[u8]>::to_vec);
                let key = key.and_then(|key| String::from_utf8(key).ok());
                // Ignores keys under the prefix that are not text: another program wrote them.
                key.map(|key| (key, versioned(entry)))
            };
            Ok(read.kvs.into_iter().filter_map(named).collect())
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> PortFuture<'a, Result<u64, CatalogueError>> {
        let change = put(&self.key(key), value, 0);
        Box::pin(self.change(key, expected, change))
    }

    fn remove<'a>(&'a self, key: &'a str, expected: u64) -> PortFuture<'a, Result<(), CatalogueError>> {
        let change = delete(&self.key(key));
        Box::pin(async move { self.change(key, Some(expected), change).await.map(drop) })
    }

    fn changed(&self, seen: u64) -> PortFuture<'_, Result<u64, CatalogueError>> {
        Box::pin(async move {
            let newer = self.mirror.newer_than(seen).await;
            newer.map(|mirrored| mirrored.revision).map_err(CatalogueError::Unavailable)
        })
    }
}
