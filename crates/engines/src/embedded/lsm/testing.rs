//! Reports that tests can inspect, a store of rows, and copies and damage of files.

use std::path::Path;
use std::sync::{Arc, Mutex};

use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use whimbrel_model::{Event, StoreHealth};

use super::guard::LsmStore;
use super::report::StoreReports;

/// The events of a store, and its health.
#[derive(Clone, Default)]
pub(crate) struct ObservedReports {
    pub events: Arc<Mutex<Vec<Event>>>,
    pub health: Arc<StoreHealth>,
}

impl ObservedReports {
    pub fn reports(&self) -> StoreReports {
        let events = Arc::clone(&self.events);
        let sink = move |event| events.lock().unwrap().push(event);
        StoreReports { events: Arc::new(sink), health: Arc::clone(&self.health) }
    }

    pub fn kinds(&self) -> Vec<&'static str> {
        self.events.lock().unwrap().iter().map(|event| event.kind).collect()
    }

    pub fn field(&self, kind: &str, field: &str) -> Option<String> {
        let events = self.events.lock().unwrap();
        let event = events.iter().find(|event| event.kind == kind)?;
        event.fields.iter().find(|(name, _)| *name == field).map(|(_, value)| value.clone())
    }
}

pub(crate) fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

/// A store of one keyspace.
pub(crate) struct Rows {
    pub database: Database,
    pub rows: Keyspace,
}

impl LsmStore for Rows {
    fn database(&self) -> &Database {
        &self.database
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        vec![self.rows.clone()]
    }
}

pub(crate) fn open_rows(path: &Path) -> fjall::Result<Rows> {
    let database = Database::builder(path).worker_threads(1).open()?;
    let rows = database.keyspace("rows", KeyspaceCreateOptions::default)?;
    Ok(Rows { database, rows })
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
