//! Reports that tests can inspect, and damage to files.

use std::path::Path;
use std::sync::{Arc, Mutex};

use whimbrel_model::{Event, StoreHealth};

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
