//! A store that is opened again after a failure, without a restart of the process.
//!
//! The LSM refuses every write after its first I/O error until it is opened again. [`StoreGuard`] then closes it, and opens it on a
//! separate thread with growing pauses. Until that succeeds, every call returns that the store is unavailable. The guard renames the
//! folder of a damaged store and starts with an empty one. So it may guard only views of the log, whose owners fold the log again. An owner
//! detects the loss by the offset that every read of such a store reports.

mod checked_open;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace};
use whimbrel_storage::disk::{Disk as _, RealDisk};

use super::fault::{FaultKind, StoreError, StoreFault};
use super::report::{StoreDamage, StoreReport, StoreReports};
use super::verify;
pub(super) use checked_open::damaged_table;
use checked_open::{OpenFailure, open_checked, probe};

/// The pause before the store is opened again: it doubles with each attempt that fails.
const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(100);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Consecutive attempts to open a store that fail with a device error, after which it is set aside.
const UNREADABLE_ATTEMPTS_MAX: u32 = 3;
/// The time for which a store must be unreadable before it is set aside: a disk that is unavailable for a moment still has the store.
const UNREADABLE_FOR: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(10) };
/// Consecutive failures after which the guard reads all tables before it uses the store again: the LSM stops without a reason when its
/// own thread meets a damaged table.
const VERIFIED_AT_FAILURE: u32 = 3;
/// A store that worked for this long is healthy: the failure counters restart at zero.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// The interval at which the guard checks whether the calls that use a failed store have ended.
const USERS_POLL: Duration = Duration::from_millis(5);
/// The suffix of the folder in which a damaged store is kept. A later one replaces it.
const SET_ASIDE: &str = "damaged";
/// Bytes that must be free, besides those of the rebuilt store, while the files of a damaged store are kept: twice the default of
/// `log.disk_reserve_bytes`.
const KEPT_FREE_BYTES: u64 = 256 << 20;

pub(crate) trait LsmStore: Send + Sync + 'static {
    fn database(&self) -> &Database;

    fn keyspaces(&self) -> Vec<Keyspace>;
}

/// A number that identifies one opening of a store, unique in this process.
pub(crate) fn next_opening() -> u64 {
    static OPENINGS: AtomicU64 = AtomicU64::new(0);
    OPENINGS.fetch_add(1, Ordering::Relaxed)
}

/// Opens the LSM in a folder, or creates it.
pub(crate) type OpenStore<T> = Box<dyn Fn(&Path) -> fjall::Result<T> + Send + Sync>;
/// Runs after each opening of the store.
pub(crate) type AfterOpen<T> = Box<dyn Fn(&Arc<T>) + Send + Sync>;

/// Guards a view of the log in an LSM. Dropping it closes the store for every handle.
pub(crate) struct StoreGuard<T: LsmStore>(StoreHandle<T>);

/// A handle to a guarded store. Clones share the store.
pub(crate) struct StoreHandle<T: LsmStore>(Arc<GuardShared<T>>);

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

struct GuardShared<T> {
    path: PathBuf,
    open: OpenStore<T>,
    after_open: AfterOpen<T>,
    report: StoreReport,
    state: Mutex<GuardState<T>>,
    /// Signalled when the store is closed for good.
    closing: Condvar,
}

struct GuardState<T> {
    store: Option<Arc<T>>,
    opened_at: Instant,
    reason: String,
    /// Consecutive failures of the open store.
    failures: u32,
    /// Since the disk failed to read the store at an attempt to open it.
    unreadable: Option<UnreadableStore>,
    /// Whether the store was set aside since it was open: its files are new.
    is_new: bool,
    /// The pause before the next attempt to open the store. It grows until the store is healthy.
    pause: Duration,
    /// Whether a thread is opening the store.
    is_reopening: bool,
    is_closed: bool,
}

/// Consecutive attempts to open a store that failed with a device error.
struct UnreadableStore {
    since: Instant,
    attempts: u32,
}

/// Why a store is opened again.
struct Incident<T> {
    /// The store that failed. Others may still use it.
    failed: Option<Arc<T>>,
    damage: Option<StoreDamage>,
    is_full: bool,
    /// Whether all tables are read first.
    is_verified: bool,
}

impl<T: LsmStore> StoreGuard<T> {
    /// Opens the store. Sets a damaged store aside. If a full disk or a device error prevents opening, the guard opens the store later.
    pub fn open(
        store: &'static str,
        path: &Path,
        reports: StoreReports,
        open: impl Fn(&Path) -> fjall::Result<T> + Send + Sync + 'static,
        after_open: impl Fn(&Arc<T>) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let state = GuardState {
            store: None,
            opened_at: Instant::now(),
            reason: String::new(),
            failures: 0,
            unreadable: None,
            is_new: false,
            pause: REOPEN_PAUSE_MIN,
            is_reopening: false,
            is_closed: false,
        };
        verify::remove_copy(path);
        let shared = Arc::new(GuardShared {
            path: path.to_owned(),
            open: Box::new(open),
            after_open: Box::new(after_open),
            report: StoreReport::new(reports, store),
            state: Mutex::new(state),
            closing: Condvar::new(),
        });
        match shared.open_or_set_aside(false) {
            Ok(opened) => shared.install(opened),
            Err(OpenFailure::Passing(problem)) if problem.is_of_disk() || path.is_dir() => {
                shared.report.failed(Path::new(&problem.file), &problem.reason);
                let damage = shared.count_unreadable(&problem);
                let is_full = problem.kind == FaultKind::Full;
                shared.state().reason = problem.reason;
                shared.reopen_apart(Incident { failed: None, damage, is_full, is_verified: false });
            }
            Err(OpenFailure::Refused(reason)) => return Err(format!("cannot open the store `{store}`: {reason}")),
            Err(OpenFailure::Passing(problem) | OpenFailure::Damaged(problem)) => {
                return Err(format!("cannot open the store `{store}`: {}", problem.reason));
            }
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

    /// Runs a piece of work on the store. A failure of the LSM closes the store.
    pub fn run<R, E: StoreError>(&self, work: impl FnOnce(&T) -> Result<R, StoreFault<E>>) -> Result<R, E> {
        let (store, is_reopening, reason) = {
            let state = self.0.state();
            (state.store.clone(), state.is_reopening || state.is_closed, state.reason.clone())
        };
        let Some(store) = store else {
            // The thread that opens it could not be started.
            if !is_reopening {
                self.0.reopen_apart(Incident { failed: None, damage: None, is_full: false, is_verified: false });
            }
            return Err(E::unavailable(reason));
        };
        let worked = caught(|| work(&store));
        let (kind, reason) = match worked {
            Ok(Ok(done)) => {
                close(store);
                return Ok(done);
            }
            Ok(Err(StoreFault::Refused(error))) => {
                close(store);
                return Err(error);
            }
            Ok(Err(StoreFault::Lsm(error))) => (FaultKind::of(&error), error.to_string()),
            Err(panic) => (FaultKind::Damage, panic),
        };
        let error = E::unavailable(reason.clone());
        self.0.fail(store, kind, reason);
        Err(error)
    }
}

impl<T: LsmStore> GuardShared<T> {
    fn state(&self) -> MutexGuard<'_, GuardState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, store: T) {
        let store = Arc::new(store);
        (self.after_open)(&store);
        let mut state = self.state();
        state.is_reopening = false;
        state.unreadable = None;
        if !state.is_closed {
            state.opened_at = Instant::now();
            state.is_new = false;
            state.store = Some(store);
        }
    }

    /// Counts consecutive device errors while the store is opened. Returns the reason to set it aside when they are too many: bytes that
    /// the disk cannot read do not come back, and the log has them. Files that are new are not set aside again.
    fn count_unreadable(&self, problem: &StoreDamage) -> Option<StoreDamage> {
        let mut state = self.state();
        if problem.kind != FaultKind::Device || state.is_new {
            return None;
        }
        let unreadable = state.unreadable.get_or_insert_with(|| UnreadableStore { since: Instant::now(), attempts: 0 });
        unreadable.attempts += 1;
        let is_lasting = unreadable.attempts >= UNREADABLE_ATTEMPTS_MAX && unreadable.since.elapsed() >= UNREADABLE_FOR;
        is_lasting.then(|| problem.clone())
    }

    fn fail(self: &Arc<Self>, store: Arc<T>, kind: FaultKind, reason: String) {
        let incident = {
            let mut state = self.state();
            // Another thread met the failure first.
            if !state.store.as_ref().is_some_and(|current| Arc::ptr_eq(current, &store)) {
                drop(state);
                return close(store);
            }
            let current = state.store.take();
            state.reason.clone_from(&reason);
            if state.opened_at.elapsed() >= HEALTHY_AFTER {
                (state.failures, state.pause) = (0, REOPEN_PAUSE_MIN);
            }
            state.failures += 1;
            // Device errors are not damage: after repeated failures, an attempt to open the store finds tables that cannot be read.
            let is_damaged = kind == FaultKind::Damage;
            Incident {
                failed: current,
                damage: is_damaged.then(|| StoreDamage::of_folder(&self.path, reason.clone())),
                is_full: kind == FaultKind::Full,
                is_verified: state.failures >= VERIFIED_AT_FAILURE,
            }
        };
        close(store);
        self.report.failed(&self.path, &reason);
        self.reopen_apart(incident);
    }

    /// Opens the store on a separate thread. Sets a damaged store aside first.
    fn reopen_apart(self: &Arc<Self>, incident: Incident<T>) {
        if std::mem::replace(&mut self.state().is_reopening, true) {
            return;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("store-reopen".to_owned());
        if let Err(error) = thread.spawn(move || shared.reopen(incident)) {
            self.state().is_reopening = false;
            self.report.still_failed(&format!("cannot start a thread that opens the store again: {error}"));
        }
    }

    /// Waits for the given time. Returns whether the store is closed for good.
    fn pauses(&self, pause: Duration) -> bool {
        let waiting = self.closing.wait_timeout_while(self.state(), pause, |state| !state.is_closed);
        waiting.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    fn reopen(&self, incident: Incident<T>) {
        let Incident { failed, mut damage, mut is_full, mut is_verified } = incident;
        // Until the last call has left the failed store, its threads may still write to the folder.
        if let Some(failed) = failed {
            while Arc::strong_count(&failed) > 1 {
                if self.pauses(USERS_POLL) {
                    return close(failed);
                }
            }
            // The error of the LSM does not name the damaged file.
            if damage.is_some() {
                let table = caught(|| damaged_table(&failed.keyspaces())).ok().flatten();
                damage = table.map(|table| table.of_kind(FaultKind::Damage)).or(damage);
            }
            close(failed);
        }
        loop {
            // An unreadable store is set aside right after the attempt that failed last: after a pause, the disk may be back.
            let is_unreadable = damage.as_ref().is_some_and(|found| found.kind == FaultKind::Device);
            let pause = if is_unreadable { Duration::ZERO } else { self.next_pause() };
            if self.pauses(pause) {
                return;
            }
            let attempt = caught(|| {
                if is_full {
                    self.remove_kept();
                }
                if let Some(found) = &damage {
                    let set_aside = self.set_aside(found);
                    if set_aside.is_ok() || is_unreadable {
                        damage = None;
                    }
                    // The next attempt opens the store again after a pause: if no folder can be renamed, the disk is unavailable.
                    set_aside
                        .map_err(|problem| if is_unreadable { problem.of_kind(FaultKind::Passing) } else { problem })?;
                }
                let store = self.open_or_set_aside(is_verified).map_err(|failure| match failure {
                    OpenFailure::Passing(problem) | OpenFailure::Damaged(problem) => problem,
                    OpenFailure::Refused(reason) => {
                        StoreDamage::of_folder(&self.path, reason).of_kind(FaultKind::Passing)
                    }
                })?;
                is_verified = false;
                probe(&self.path, &store)?;
                self.install(store);
                Ok(())
            });
            let problem = match attempt {
                Ok(Ok(())) => return self.report.recovered(),
                Ok(Err(problem)) => problem,
                Err(panic) => StoreDamage::of_folder(&self.path, panic).of_kind(FaultKind::Passing),
            };
            self.report.still_failed(&problem.reason);
            damage = damage.or_else(|| self.count_unreadable(&problem));
            is_full = problem.kind == FaultKind::Full;
            self.state().reason = problem.reason;
        }
    }

    fn next_pause(&self) -> Duration {
        let mut state = self.state();
        let pause = state.pause;
        state.pause = (pause * 2).min(REOPEN_PAUSE_MAX);
        pause
    }

    fn open_or_set_aside(&self, is_verified: bool) -> Result<T, OpenFailure> {
        let damage = match open_checked(&self.path, &self.open, is_verified) {
            Err(OpenFailure::Damaged(damage)) => damage,
            opened => return opened,
        };
        self.set_aside(&damage).map_err(OpenFailure::Passing)?;
        open_checked(&self.path, &self.open, false).map_err(|failure| match failure {
            OpenFailure::Damaged(damage) => OpenFailure::Passing(damage.of_kind(FaultKind::Passing)),
            failure => failure,
        })
    }

    /// Renames the folder, so that the store starts empty. Removes it if the disk has no space for it and the rebuilt store.
    fn set_aside(&self, damage: &StoreDamage) -> Result<(), StoreDamage> {
        let kept_as = self.kept_as();
        let failed = |error: io::Error| {
            let reason = format!("cannot move {} to {}: {error}", self.path.display(), kept_as.display());
            StoreDamage { reason, ..StoreDamage::of_io(&self.path, &error) }
        };
        match std::fs::remove_dir_all(&kept_as) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        match std::fs::rename(&self.path, &kept_as) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        {
            let mut state = self.state();
            (state.is_new, state.unreadable) = (true, None);
        }
        self.report.set_aside(damage, &kept_as);
        let needed = verify::bytes_in(&kept_as) + KEPT_FREE_BYTES;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        if RealDisk::new().free_bytes(folder).is_ok_and(|free| free < needed) {
            self.remove_kept();
        }
        Ok(())
    }

    fn kept_as(&self) -> PathBuf {
        self.path.with_extension(SET_ASIDE)
    }

    /// Removes the files of a damaged store, if there are any: the disk has no space for them.
    fn remove_kept(&self) {
        let kept_as = self.kept_as();
        match std::fs::remove_dir_all(&kept_as) {
            Ok(()) => self.report.files_removed(&kept_as),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, folder = %kept_as.display(), "cannot remove the files of a damaged store")
            }
        }
    }
}

/// Drops a store. The LSM may panic when the last reference to it is dropped after a failure.
pub(super) fn close<T>(store: T) {
    if let Err(panic) = caught(|| drop(store)) {
        tracing::warn!(panic, "the LSM panicked while it was closed");
    }
}

/// Runs the closure. If the LSM panics, returns the text of the panic.
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
