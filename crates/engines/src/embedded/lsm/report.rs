//! Reports incidents of a store: events, `/readyz`, metrics. One event begins an incident and one ends it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use whimbrel_model::{Event, EventSink, StoreHealth};

use super::fault::FaultKind;
use super::folder::FolderError;
use super::journal::{JournalDamage, JournalError};

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

/// Why a store or a copy cannot be used, was set aside or rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreDamage {
    pub file: String,
    pub position: Option<u64>,
    pub reason: String,
    pub kind: FaultKind,
}

impl From<JournalDamage> for StoreDamage {
    fn from(damage: JournalDamage) -> Self {
        let place = Self::of_file(&damage.file, damage.reason);
        Self { position: Some(damage.position), ..place }
    }
}

impl From<JournalError> for StoreDamage {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Damaged(damage) => damage.into(),
            JournalError::Io { path, source } => Self::of_io(&path, &source),
        }
    }
}

impl From<FolderError> for StoreDamage {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Damaged { file, reason } => Self::of_file(&file, reason),
            FolderError::Io { path, source } => Self::of_io(&path, &source),
            FolderError::Newer { ref file, .. } => Self::of_file(file, error.to_string()).of_kind(FaultKind::Passing),
        }
    }
}

impl StoreDamage {
    pub fn of_file(file: &Path, reason: impl Into<String>) -> Self {
        let file = file.display().to_string();
        Self { file, position: None, reason: reason.into(), kind: FaultKind::Damage }
    }

    pub fn of_folder(folder: &Path, reason: impl Into<String>) -> Self {
        Self::of_file(folder, reason)
    }

    pub fn of_lsm(folder: &Path, error: &fjall::Error) -> Self {
        Self::of_folder(folder, error.to_string()).of_kind(FaultKind::of(error))
    }

    /// An error of the disk, which does not show that bytes are wrong.
    pub fn of_io(path: &Path, error: &io::Error) -> Self {
        let kind = match FaultKind::of_io(error) {
            FaultKind::Damage => FaultKind::Passing,
            kind => kind,
        };
        Self::of_file(path, error.to_string()).of_kind(kind)
    }

    pub fn of_kind(self, kind: FaultKind) -> Self {
        Self { kind, ..self }
    }

    /// Whether bytes on disk are wrong; otherwise the disk or the LSM failed.
    pub fn is_damage(&self) -> bool {
        self.kind == FaultKind::Damage
    }

    /// Whether the disk is full or reports errors: the process starts without the store and opens it later.
    pub fn is_of_disk(&self) -> bool {
        matches!(self.kind, FaultKind::Full | FaultKind::Device)
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
        self.emit_failure(format!("the store `{store}` failed and is opened again: {error}"), file, error);
        self.down(error);
    }

    /// The store cannot serve yet: an attempt to open it failed.
    pub fn still_failed(&self, error: &str) {
        tracing::warn!(store = self.store, error, "cannot open the store; retrying");
        self.down(error);
    }

    /// A copy of the store is closed and is rebuilt. The other copy serves.
    pub fn copy_failed(&self, file: &Path, error: &str) {
        let store = self.store;
        tracing::error!(store, file = %file.display(), error, "a copy of a store failed; rebuilding it");
        let detail = format!("one of the two copies of the store `{store}` failed and is rebuilt: {error}");
        self.emit_failure(detail, file, error);
        self.one_copy(error);
    }

    fn emit_failure(&self, detail: String, file: &Path, error: &str) {
        let event = Event::failure("store_failed", detail).with("store", self.store);
        (self.reports.events)(event.with("file", file.display()).with("error", error));
    }

    /// A copy is still closed: an attempt to rebuild it failed.
    pub fn copy_still_failed(&self, error: &str) {
        tracing::warn!(store = self.store, error, "cannot rebuild a copy of a store; retrying");
        self.one_copy(error);
    }

    fn one_copy(&self, error: &str) {
        metrics::gauge!("whimbrel_store_up", "store" => self.store).set(1.0);
        self.reports.health.set_on_one_copy(self.store, error.to_owned());
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
        (self.reports.events)(
            Event::new("store_recovered", format!("the store `{store}` is open again")).with("store", store),
        );
        self.reports.health.set_working(store);
    }

    /// Reports that readers skip a damaged part of the store, which has no other copy.
    pub fn skipped(&self, damage: &StoreDamage) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        tracing::warn!(store, place, reason, "a part of a store is damaged; readers skip it");
        let detail = format!("a part of the store `{store}` is damaged ({place}: {reason}); readers skip it");
        (self.reports.events)(damage.describe(Event::warning("store_damaged", detail).with("store", store)));
    }

    /// The store begins empty and is rebuilt from the log.
    pub fn set_aside(&self, damage: &StoreDamage, kept_as: &Path) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        metrics::counter!("whimbrel_store_rebuilds_total", "store" => store).increment(1);
        tracing::warn!(store, place, reason, kept_as = %kept_as.display(), "store is damaged; rebuilding it from the log");
        let detail = format!("the store `{store}` is damaged ({place}: {reason}) and is rebuilt from the log");
        let event = Event::warning("store_rebuilt", detail).with("store", store);
        (self.reports.events)(damage.describe(event).with("kept_as", kept_as.display()));
    }

    /// The files of a damaged store were removed: the disk has no space for them.
    pub fn files_removed(&self, folder: &Path) {
        let store = self.store;
        tracing::warn!(store, folder = %folder.display(), "removed the files of a damaged store to free disk space");
        let detail = format!("the files of the damaged store `{store}` were removed to free disk space");
        let event = Event::warning("store_files_removed", detail).with("store", store);
        (self.reports.events)(event.with("folder", folder.display()));
    }

    /// One of two copies was rebuilt from the other.
    pub fn copy_rebuilt(&self, damage: &StoreDamage) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        metrics::counter!("whimbrel_store_rebuilds_total", "store" => store).increment(1);
        tracing::warn!(store, place, reason, "a copy of a store was rebuilt from the other copy");
        let detail = format!("a copy of the store `{store}` ({place}: {reason}) was rebuilt from the other copy");
        let event = Event::warning("store_copy_rebuilt", detail).with("store", store);
        (self.reports.events)(damage.describe(event));
    }

    /// Neither copy has everything.
    pub fn data_lost(&self, damage: &StoreDamage) {
        let (store, place, reason) = (self.store, damage.place(), &damage.reason);
        tracing::error!(store, place, reason, "both copies of a store are damaged; entries are lost");
        let detail = format!("both copies of the store `{store}` are damaged ({place}: {reason}); entries are lost");
        (self.reports.events)(damage.describe(Event::failure("store_data_lost", detail).with("store", store)));
    }
}
