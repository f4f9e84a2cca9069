//! Reports incidents of a store: events, `/readyz`, metrics. One event begins an incident and one ends it.

use std::path::Path;
use std::sync::Arc;

use whimbrel_model::{Event, EventSink, StoreHealth};

use super::journal::JournalDamage;

/// The destination of the reports of all stores. Clones share it.
#[derive(Clone)]
pub struct StoreReports {
    pub events: EventSink,
    pub health: Arc<StoreHealth>,
}

impl Default for StoreReports {
    /// Discards all reports.
    fn default() -> Self {
        Self { events: Arc::new(|_| {}), health: Arc::default() }
    }
}

/// Why a store was set aside or rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    pub file: String,
    pub position: Option<u64>,
    pub reason: String,
    /// Whether bytes on disk are wrong; otherwise the disk or the LSM failed.
    pub is_damage: bool,
}

impl From<JournalDamage> for Damage {
    fn from(damage: JournalDamage) -> Self {
        let file = damage.file.display().to_string();
        Self { file, position: Some(damage.position), reason: damage.reason.to_owned(), is_damage: true }
    }
}

impl Damage {
    pub fn of_file(file: &Path, reason: impl Into<String>) -> Self {
        Self { file: file.display().to_string(), position: None, reason: reason.into(), is_damage: true }
    }

    pub fn of_folder(folder: &Path, reason: impl Into<String>) -> Self {
        Self { file: folder.display().to_string(), position: None, reason: reason.into(), is_damage: true }
    }

    /// The same problem, without evidence that the bytes on disk are wrong.
    pub fn not_damaged(self) -> Self {
        Self { is_damage: false, ..self }
    }

    fn place(&self) -> String {
        match self.position {
            Some(position) => format!("{} at byte {position}", self.file),
            None => self.file.clone(),
        }
    }

    fn describe(&self, event: Event) -> Event {
        let event = event.with("file", &self.file).with("error", &self.reason);
        match self.position {
            Some(position) => event.with("position", position),
            None => event,
        }
    }
}

/// The reports of one store.
#[derive(Clone)]
pub(crate) struct StoreReport {
    reports: StoreReports,
    store: &'static str,
    /// Whether requests need the store. If so, `/readyz` answers 503 while the store fails; otherwise it answers 200 with a warning.
    is_needed: bool,
}

impl StoreReport {
    pub fn new(reports: StoreReports, store: &'static str) -> Self {
        metrics::gauge!("whimbrel_store_up", "store" => store).set(1.0);
        Self { reports, store, is_needed: true }
    }

    /// The reports of a store that no request needs.
    pub fn of_optional(reports: StoreReports, store: &'static str) -> Self {
        Self { is_needed: false, ..Self::new(reports, store) }
    }

    /// Reports that the store cannot serve until it is open again. `file` is the store's folder if the error does not name a file.
    pub fn failed(&self, file: &Path, error: &str) {
        let store = self.store;
        tracing::error!(store, file = %file.display(), error, "store failed; opening it again");
        let detail = format!("the store `{store}` failed and is opened again: {error}");
        let event = Event::failure("store_failed", detail).with("store", store);
        (self.reports.events)(event.with("file", file.display()).with("error", error));
        self.down(error);
    }

    /// The store cannot serve yet: an attempt to open it failed.
    pub fn still_failed(&self, error: &str) {
        tracing::warn!(store = self.store, error, "store cannot be opened; the next attempt follows");
        self.down(error);
    }

    fn down(&self, error: &str) {
        metrics::gauge!("whimbrel_store_up", "store" => self.store).set(0.0);
        let health = &self.reports.health;
        let record = if self.is_needed { StoreHealth::set_failed } else { StoreHealth::set_degraded };
        record(health, self.store, error.to_owned());
    }

    pub fn recovered(&self) {
        let store = self.store;
        tracing::info!(store, "store is open again");
        metrics::gauge!("whimbrel_store_up", "store" => store).set(1.0);
        self.reports.health.set_working(store);
        (self.reports.events)(
            Event::new("store_recovered", format!("the store `{store}` is open again")).with("store", store),
        );
    }

    /// Reports that readers skip a damaged part of the store, which has no other copy.
    pub fn skipped(&self, damage: &Damage) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        tracing::warn!(store, place, reason, "a part of a store is damaged; readers skip it");
        let detail = format!("a part of the store `{store}` is damaged ({place}: {reason}); readers skip it");
        (self.reports.events)(damage.describe(Event::warning("store_damaged", detail).with("store", store)));
    }

    /// The store begins empty and is rebuilt from the log.
    pub fn set_aside(&self, damage: &Damage, kept_as: &Path) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        metrics::counter!("whimbrel_store_rebuilds_total", "store" => store).increment(1);
        tracing::warn!(store, place, reason, kept_as = %kept_as.display(), "store is damaged; rebuilding it from the log");
        let detail = format!("the store `{store}` is damaged ({place}: {reason}) and is rebuilt from the log");
        let event = Event::warning("store_rebuilt", detail).with("store", store);
        (self.reports.events)(damage.describe(event).with("kept_as", kept_as.display()));
    }

    /// One of two copies was rebuilt from the other.
    pub fn copy_rebuilt(&self, damage: &Damage) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        metrics::counter!("whimbrel_store_rebuilds_total", "store" => store).increment(1);
        tracing::warn!(store, place, reason, "a copy of a store was rebuilt from the other copy");
        let detail = format!("a copy of the store `{store}` ({place}: {reason}) was rebuilt from the other copy");
        let event = Event::warning("store_copy_rebuilt", detail).with("store", store);
        (self.reports.events)(damage.describe(event));
    }

    /// Neither copy has everything.
    pub fn data_lost(&self, damage: &Damage) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        tracing::error!(store, place, reason, "both copies of a store are damaged; entries are lost");
        let detail = format!("both copies of the store `{store}` are damaged ({place}: {reason}); entries are lost");
        (self.reports.events)(damage.describe(Event::failure("store_data_lost", detail).with("store", store)));
    }
}
