//! The `Catalogue` port in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use whimbrel_model::ports::{Catalogue, CatalogueError, PortFuture, Versioned};

#[derive(Default)]
pub struct MemoryCatalogue {
    entries: Mutex<BTreeMap<String, Versioned>>,
    revision: watch::Sender<u64>,
    /// The error of all writes, while it is set.
    refuses: Mutex<Option<CatalogueError>>,
    lets_others_in: AtomicBool,
}

impl MemoryCatalogue {
    pub fn refuse_writes(&self, error: Option<CatalogueError>) {
        *self.refuses.lock().unwrap() = error;
    }

    /// From now on, other nodes write between each read of an entry and the write that follows it.
    pub fn let_others_in(&self) {
        self.lets_others_in.store(true, Ordering::Relaxed);
    }

    /// Loses everything, like the restore of an empty backup.
    pub fn forget(&self) {
        self.entries.lock().unwrap().clear();
    }

    pub fn force(&self, key: &str, value: &str) {
        let mut entries = self.entries.lock().unwrap();
        let version = *self.revision.borrow() + 1;
        entries.insert(key.to_owned(), Versioned { value: value.as_bytes().to_vec(), version });
        drop(entries);
        self.revision.send_replace(version);
    }

    /// Changes an entry like another process.
    pub fn edit(&self, key: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let mut entry = self.value(key).expect("the entry exists");
        change(&mut entry);
        self.force(key, &entry.to_string());
    }

    pub fn value(&self, key: &str) -> Option<serde_json::Value> {
        let entries = self.entries.lock().unwrap();
        entries.get(key).map(|found| serde_json::from_slice(&found.value).unwrap())
    }

    fn write(&self, key: &str, value: Option<Vec<u8>>, expected: Option<u64>) -> Result<u64, CatalogueError> {
        if let Some(error) = self.refuses.lock().unwrap().clone() {
            return Err(error);
        }
        let mut entries = self.entries.lock().unwrap();
        let found = entries.get(key).map(|found| found.version);
        if found != expected {
            return Err(CatalogueError::Conflict { key: key.to_owned(), found });
        }
        let version = *self.revision.borrow() + 1;
        match value {
            Some(value) => entries.insert(key.to_owned(), Versioned { value, version }),
            None => entries.remove(key),
        };
        drop(entries);
        self.revision.send_replace(version);
        Ok(version)
    }
}

impl Catalogue for MemoryCatalogue {
    fn get<'a>(&'a self, key: &'a str) -> PortFuture<'a, Result<Option<Versioned>, CatalogueError>> {
        Box::pin(async move {
            let found = self.entries.lock().unwrap().get(key).cloned();
            if self.lets_others_in.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            Ok(found)
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> PortFuture<'a, Result<Vec<(String, Versioned)>, CatalogueError>> {
        Box::pin(async move {
            let entries = self.entries.lock().unwrap();
            let listed = entries.iter().filter(|(key, _)| key.starts_with(prefix));
            Ok(listed.map(|(key, value)| (key.clone(), value.clone())).collect())
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> PortFuture<'a, Result<u64, CatalogueError>> {
        Box::pin(async move { self.write(key, Some(value), expected) })
    }

    fn remove<'a>(&'a self, key: &'a str, expected: u64) -> PortFuture<'a, Result<(), CatalogueError>> {
        Box::pin(async move { self.write(key, None, Some(expected)).map(|_| ()) })
    }

    fn changed(&self, seen: u64) -> PortFuture<'_, Result<u64, CatalogueError>> {
        Box::pin(async move {
            let mut revision = self.revision.subscribe();
            let revision = revision.wait_for(|revision| *revision > seen).await;
            Ok(*revision.expect("the sender exists"))
        })
    }
}
