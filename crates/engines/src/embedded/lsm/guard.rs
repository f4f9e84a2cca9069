//! A store that is opened again after a failure, without a restart of the process.
//!
//! The LSM refuses every write after its first I/O error until it is opened again. [`StoreGuard`] closes it then, and opens it on a
//! thread of its own with growing pauses; until that succeeds every call answers that the store is unavailable. A store whose bytes are
//! damaged is set aside under another name and begins empty: only views of the log are guarded like this, and their owners
//! fold the log again. The owners notice by the offset that every read of such a store reports.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fjall::{AbstractTree as _, Keyspace};

use super::fault::{Fault, FaultKind, StoreError};
use super::journal::{self, JournalError};
use super::report::{Damage, StoreReport, StoreReports};

/// The pause before the store is opened again: it doubles with each attempt that fails.
const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(100);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Errors of the device in a row after which a store is set aside.
const DEVICE_FAILURES_MAX: u32 = 3;
/// A store that worked for so long is healthy: failures are counted from zero again.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// The suffix of the folder in which a damaged store is kept. A later one replaces it.
const SET_ASIDE: &str = "damaged";

/// An LSM with its keyspaces.
pub(crate) trait LsmStore: Send + Sync + 'static {
    fn keyspaces(&self) -> Vec<Keyspace>;
}

/// Opens the LSM in a folder, or creates it.
pub(crate) type OpenStore<T> = Box<dyn Fn(&Path) -> fjall::Result<T> + Send + Sync>;
/// Runs after each time that the store was opened.
pub(crate) type AfterOpen<T> = Box<dyn Fn(&Arc<T>) + Send + Sync>;

/// A view of the log in an LSM. Dropping it closes the store for every handle.
pub(crate) struct StoreGuard<T: LsmStore>(StoreHandle<T>);

/// Works on a guarded store. Cloning shares it.
pub(crate) struct StoreHandle<T: LsmStore>(Arc<Shared<T>>);

impl<T: LsmStore> Clone for StoreHandle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: LsmStore> Drop for StoreGuard<T> {
    fn drop(&mut self) {
        let shared = &self.0.0;
        let mut state = shared.state();
        state.is_closed = true;
        state.reason = "the server is shutting down".to_owned();
        let store = state.store.take();
        drop(state);
        shared.closing.notify_all();
        close(store);
    }
}

struct Shared<T> {
    path: PathBuf,
    open: OpenStore<T>,
    after_open: AfterOpen<T>,
    report: StoreReport,
    state: Mutex<State<T>>,
    /// Signalled when the store is closed for good.
    closing: Condvar,
}

struct State<T> {
    store: Option<Arc<T>>,
    opened_at: Instant,
    /// Why there is no store.
    reason: String,
    /// Failures of the device in a row.
    device_failures: u32,
    is_closed: bool,
}

/// Why a store cannot be opened.
#[derive(Debug)]
enum OpenFailure {
    Passing(String),
    Damaged(Damage),
}

impl<T: LsmStore> StoreGuard<T> {
    /// Opens the store. One that is damaged is set aside; one that a full disk or its device keeps from opening is opened later.
    pub fn open(
        store: &'static str,
        path: &Path,
        reports: StoreReports,
        open: impl Fn(&Path) -> fjall::Result<T> + Send + Sync + 'static,
        after_open: impl Fn(&Arc<T>) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let state = State {
            store: None,
            opened_at: Instant::now(),
            reason: String::new(),
            device_failures: 0,
            is_closed: false,
        };
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            open: Box::new(open),
            after_open: Box::new(after_open),
            report: StoreReport::new(reports, store),
            state: Mutex::new(state),
            closing: Condvar::new(),
        });
        match shared.open_or_set_aside() {
            Ok(opened) => shared.install(opened),
            Err(reason) if shared.may_open_later() => {
                shared.report.failed(path, &reason);
                shared.state().reason = reason;
                shared.reopen_apart(None);
            }
            Err(reason) => return Err(format!("cannot open the store `{store}`: {reason}")),
        }
        Ok(Self(StoreHandle(shared)))
    }

    pub fn handle(&self) -> StoreHandle<T> {
        self.0.clone()
    }
}

impl<T: LsmStore> StoreHandle<T> {
    pub fn is_open(&self) -> bool {
        self.0.state().store.is_some()
    }

    /// Works on the store. A failure of the LSM closes it.
    pub fn run<R, E: StoreError>(&self, work: impl FnOnce(&T) -> Result<R, Fault<E>>) -> Result<R, E> {
        let store = {
            let state = self.0.state();
            state.store.clone().ok_or_else(|| E::unavailable(state.reason.clone()))?
        };
        let worked = caught(|| work(&store));
        let (kind, reason) = match worked {
            Ok(Ok(done)) => {
                close(store);
                return Ok(done);
            }
            Ok(Err(Fault::Refused(error))) => return Err(error),
            Ok(Err(Fault::Lsm(error))) => (FaultKind::of(&error), error.to_string()),
            Err(panic) => (FaultKind::Damage, panic),
        };
        let error = E::unavailable(reason.clone());
        self.0.fail(store, kind, reason);
        Err(error)
    }
}

impl<T: LsmStore> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, store: T) {
        let store = Arc::new(store);
        (self.after_open)(&store);
        let mut state = self.state();
        if !state.is_closed {
            state.opened_at = Instant::now();
            state.store = Some(store);
        }
    }

    /// Whether it makes sense to start without the store: the folder is there and is ours.
    fn may_open_later(&self) -> bool {
        self.path.is_dir()
    }

    fn fail(self: &Arc<Self>, store: Arc<T>, kind: FaultKind, reason: String) {
        let damage = {
            let mut state = self.state();
            // Another thread met the failure first.
            if !state.store.as_ref().is_some_and(|current| Arc::ptr_eq(current, &store)) {
                return;
            }
            state.store = None;
            state.reason.clone_from(&reason);
            let is_healthy = state.opened_at.elapsed() >= HEALTHY_AFTER;
            state.device_failures = match kind {
                FaultKind::Device if is_healthy => 1,
                FaultKind::Device => state.device_failures + 1,
                _ => 0,
            };
            let is_damaged = kind == FaultKind::Damage || state.device_failures >= DEVICE_FAILURES_MAX;
            is_damaged.then(|| Damage::of_folder(&self.path, reason.clone()))
        };
        self.report.failed(&self.path, &reason);
        close(store);
        self.reopen_apart(damage);
    }

    /// Opens the store on a thread of its own; first sets it aside where it is damaged.
    fn reopen_apart(self: &Arc<Self>, damage: Option<Damage>) {
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("store-reopen".to_owned());
        if let Err(error) = thread.spawn(move || shared.reopen(damage)) {
            self.report.still_failed(&format!("cannot start a thread that opens the store again: {error}"));
        }
    }

    fn reopen(&self, mut damage: Option<Damage>) {
        let mut pause = REOPEN_PAUSE_MIN;
        loop {
            let waiting = self.closing.wait_timeout_while(self.state(), pause, |state| !state.is_closed);
            if waiting.unwrap_or_else(PoisonError::into_inner).0.is_closed {
                return;
            }
            let opened = match damage.take() {
                Some(found) => {
                    self.set_aside(&found).inspect_err(|_| damage = Some(found)).and_then(|()| self.open_or_set_aside())
                }
                None => self.open_or_set_aside(),
            };
            match opened {
                Ok(store) => {
                    self.install(store);
                    return self.report.recovered();
                }
                Err(reason) => {
                    self.report.still_failed(&reason);
                    self.state().reason = reason;
                }
            }
            pause = (pause * 2).min(REOPEN_PAUSE_MAX);
        }
    }

    fn open_or_set_aside(&self) -> Result<T, String> {
        match open_checked(&self.path, &self.open) {
            Ok(store) => Ok(store),
            Err(OpenFailure::Passing(reason)) => Err(reason),
            Err(OpenFailure::Damaged(damage)) => {
                self.set_aside(&damage)?;
                match open_checked(&self.path, &self.open) {
                    Ok(store) => Ok(store),
                    Err(OpenFailure::Passing(reason)) => Err(reason),
                    Err(OpenFailure::Damaged(damage)) => Err(damage.reason),
                }
            }
        }
    }

    /// Renames the folder, so that the store begins empty.
    fn set_aside(&self, damage: &Damage) -> Result<(), String> {
        let kept_as = self.path.with_extension(SET_ASIDE);
        let failed =
            |error: std::io::Error| format!("cannot move {} to {}: {error}", self.path.display(), kept_as.display());
        match std::fs::remove_dir_all(&kept_as) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        match std::fs::rename(&self.path, &kept_as) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        self.report.set_aside(damage, &kept_as);
        Ok(())
    }
}

/// Opens an LSM whose journals were checked.
fn open_checked<T: LsmStore>(path: &Path, open: impl Fn(&Path) -> fjall::Result<T>) -> Result<T, OpenFailure> {
    let checked = journal::repair(path).map_err(|error| match error {
        JournalError::Damaged(damage) => OpenFailure::Damaged(damage.into()),
        JournalError::Io { .. } => OpenFailure::Passing(error.to_string()),
    })?;
    let store = match caught(|| open(path)) {
        Ok(Ok(store)) => store,
        Ok(Err(error)) if FaultKind::of(&error) != FaultKind::Damage => {
            return Err(OpenFailure::Passing(error.to_string()));
        }
        Ok(Err(error)) => return Err(OpenFailure::Damaged(Damage::of_folder(path, error.to_string()))),
        Err(panic) => return Err(OpenFailure::Damaged(Damage::of_folder(path, panic))),
    };
    // The LSM syncs its journal before it writes tables from it. Tables with newer writes than the journal mean that more than
    // the torn end is missing.
    let in_tables = store.keyspaces().iter().filter_map(|keyspace| keyspace.tree.get_highest_persisted_seqno()).max();
    if checked.is_torn && in_tables > checked.last_seqno {
        return Err(OpenFailure::Damaged(Damage::of_folder(path, "the journal lost writes that the tables have")));
    }
    Ok(store)
}

/// Lets go of a store. The LSM may panic when the last reference to it is dropped after a failure.
pub(super) fn close<T>(store: T) {
    if let Err(panic) = caught(|| drop(store)) {
        tracing::warn!(panic, "the LSM panicked while it was closed");
    }
}

/// Runs it, and returns the text of a panic of the LSM.
pub(super) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the LSM panicked: {}", text.unwrap_or("no message"))
}

#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
