//! The faulty disk of the simulator.
//!
//! It stores everything twice: as programs see it, and as it would be after a power loss. At [`SimDisk::crash`], unsynced changes may be
//! lost, kept or torn, in any order, page by page and name by name. It also injects faults: errors of calls, failed syncs that lose data, a
//! full disk, bits that flip at rest. The seed determines all of them.
//!
//! It must allow every behaviour that [`storage::disk::Disk`](whimbrel_storage::disk::Disk) allows a real disk.

mod contents;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use whimbrel_storage::disk::{Disk, DiskFile};

use crate::rng::Rng;
use crate::simulation::counts;
pub use contents::{PAGE_BYTES, SECTOR_BYTES};
use tree::Tree;

/// The frequency of each fault: one in this many calls, or never if zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    pub read_error: u64,
    /// A part of the bytes is written.
    pub write_error: u64,
    /// Half of the failed syncs lose the unsynced data.
    pub sync_error: u64,
    /// Like `sync_error`, with the error of a full disk: the disk may have no space for pages that the cache accepted.
    pub sync_without_room: u64,
    /// Fault of creations, renames and removals.
    pub name_error: u64,
    /// `sync_all` syncs only the listed files, like a system without `syncfs`.
    pub sync_by_file: bool,
    /// A deliberate violation: one in this many syncs of contents reports success and does nothing.
    pub lie_about_sync: u64,
}

counts! {
    /// Counts of the injected faults.
    pub struct FaultCounts {
        pub read_errors: u64,
        pub write_errors: u64,
        pub sync_errors: u64,
        pub name_errors: u64,
        pub refused_for_room: u64,
        pub lies: u64,
    }
}

impl FaultCounts {
    pub fn total(&self) -> u64 {
        self.read_errors + self.write_errors + self.sync_errors + self.name_errors + self.refused_for_room + self.lies
    }
}

/// A disk that the log uses while the test injects faults from outside. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<DiskState>>);

struct DiskState {
    tree: Tree,
    rng: Rng,
    faults: Faults,
    /// No faults are injected, so that a checker can read.
    quiet: bool,
    injected: FaultCounts,
    budget_bytes: u64,
    power: Power,
    /// The number of changing calls.
    calls: u64,
    /// The number of this process. Handles of earlier processes fail.
    life: u64,
    locked: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    /// Fails at the last of this many further changing calls.
    GoesAfter(u64),
    Off,
}

/// The outcome of a changing call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultChoice {
    Go,
    Fail,
    FailForRoom,
    /// The call takes effect in the cache, and its answer is lost.
    PowerGoes,
}

impl FaultChoice {
    fn sync_error(self) -> io::Error {
        match self {
            FaultChoice::PowerGoes => injected("the power went"),
            FaultChoice::FailForRoom => io::Error::new(io::ErrorKind::StorageFull, "injected: a sync found no room"),
            FaultChoice::Go | FaultChoice::Fail => injected("a sync failed"),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum ChangeKind {
    Write,
    Sync,
    Name,
}

fn injected(what: &str) -> io::Error {
    io::Error::other(format!("injected: {what}"))
}

impl DiskState {
    fn begin(&mut self, call: ChangeKind) -> io::Result<FaultChoice> {
        self.calls += 1;
        match &mut self.power {
            Power::Off => return Err(injected("the power is off")),
            Power::GoesAfter(1) => {
                self.power = Power::Off;
                return Ok(FaultChoice::PowerGoes);
            }
            Power::GoesAfter(calls) => *calls -= 1,
            Power::On => {}
        }
        if self.quiet {
            return Ok(FaultChoice::Go);
        }
        let (times, count) = match call {
            ChangeKind::Write => (self.faults.write_error, &mut self.injected.write_errors),
            ChangeKind::Sync => (self.faults.sync_error, &mut self.injected.sync_errors),
            ChangeKind::Name => (self.faults.name_error, &mut self.injected.name_errors),
        };
        if self.rng.one_in(times) {
            *count += 1;
            return Ok(FaultChoice::Fail);
        }
        if matches!(call, ChangeKind::Sync) && self.rng.one_in(self.faults.sync_without_room) {
            self.injected.sync_errors += 1;
            return Ok(FaultChoice::FailForRoom);
        }
        Ok(FaultChoice::Go)
    }

    fn begin_look(&mut self) -> io::Result<()> {
        if self.power == Power::Off {
            return Err(injected("the power is off"));
        }
        Ok(())
    }

    /// Changes names. If the power fails, the change may have happened.
    fn name_call<T>(&mut self, what: &str, change: impl FnOnce(&mut Tree) -> io::Result<T>) -> io::Result<T> {
        match self.begin(ChangeKind::Name)? {
            FaultChoice::Go => change(&mut self.tree),
            FaultChoice::PowerGoes => {
                change(&mut self.tree)?;
                Err(injected("the power went"))
            }
            FaultChoice::Fail | FaultChoice::FailForRoom => Err(injected(what)),
        }
    }

    fn write(&mut self, file: u64, bytes: &[u8], position: u64) -> io::Result<()> {
        let course = self.begin(ChangeKind::Write)?;
        let mut len = bytes.len();
        if course == FaultChoice::Fail {
            len = self.rng.below(bytes.len() as u64 + 1) as usize;
        }
        let used = self.tree.used_bytes;
        let contents = self.tree.file(file)?;
        let pages_before = contents.pages() as u64;
        let room = self.budget_bytes.saturating_sub(used) / PAGE_BYTES as u64;
        let fits = ((pages_before + room) * PAGE_BYTES as u64).saturating_sub(position).min(len as u64) as usize;
        contents.write(&bytes[..fits], position as usize);
        self.tree.used_bytes += (self.tree.file(file)?.pages() as u64 - pages_before) * PAGE_BYTES as u64;
        match course {
            FaultChoice::PowerGoes => Err(injected("the power went")),
            FaultChoice::Fail | FaultChoice::FailForRoom => Err(injected("a write failed")),
            FaultChoice::Go if fits < len => {
                self.injected.refused_for_room += 1;
                Err(io::Error::new(io::ErrorKind::StorageFull, "no room on the simulated disk"))
            }
            FaultChoice::Go => Ok(()),
        }
    }

    fn sync_file(&mut self, file: u64) -> io::Result<()> {
        match self.begin(ChangeKind::Sync)? {
            FaultChoice::Go if !self.quiet && self.rng.one_in(self.faults.lie_about_sync) => {
                self.injected.lies += 1;
                Ok(())
            }
            FaultChoice::Go => {
                self.tree.file(file)?.sync();
                Ok(())
            }
            FaultChoice::PowerGoes => Err(injected("the power went")),
            course => {
                if self.rng.one_in(2) {
                    let mut rng = self.rng.fork();
                    self.tree.file(file)?.lose(&mut rng);
                }
                Err(course.sync_error())
            }
        }
    }

    fn sync_all(&mut self, root: &Path, touched: &[PathBuf]) -> io::Result<()> {
        let (files, folders) = if self.faults.sync_by_file {
            let files: Vec<u64> = touched.iter().filter_map(|path| self.tree.open(path).ok()).collect();
            let folders = touched.iter().flat_map(|path| [Some(path.as_path()), path.parent()]).flatten();
            // Syncing the names in a file does nothing.
            (files, folders.filter_map(|path| self.tree.find(path).ok()).collect())
        } else {
            self.tree.below(self.tree.find(root)?)
        };
        let course = self.begin(ChangeKind::Sync)?;
        if course == FaultChoice::Go && !self.quiet && self.rng.one_in(self.faults.lie_about_sync) {
            self.injected.lies += 1;
            return Ok(());
        }
        // A failed or interrupted sync has done a part.
        for file in files {
            if course == FaultChoice::Go || self.rng.one_in(2) {
                self.tree.file(file)?.sync();
            } else if course != FaultChoice::PowerGoes && self.rng.one_in(2) {
                let mut rng = self.rng.fork();
                self.tree.file(file)?.lose(&mut rng);
            }
        }
        for folder in folders {
            if course == FaultChoice::Go || self.rng.one_in(2) {
                self.tree.sync_folder(folder);
            }
        }
        if course == FaultChoice::Go { Ok(()) } else { Err(course.sync_error()) }
    }
}

impl SimDisk {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            tree: Tree::new(),
            rng: Rng::new(seed),
            faults: Faults::default(),
            quiet: false,
            injected: FaultCounts::default(),
            budget_bytes: u64::MAX / 2,
            power: Power::On,
            calls: 0,
            life: 0,
            locked: Arc::default(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Suspends the faults, so that a checker can read.
    pub fn set_quiet(&self, quiet: bool) {
        self.state().quiet = quiet;
    }

    /// Sets the bytes that fit on the disk. They may increase later.
    pub fn set_budget(&self, bytes: u64) {
        self.state().budget_bytes = bytes;
    }

    pub fn used_bytes(&self) -> u64 {
        self.state().tree.used_bytes
    }

    pub fn injected(&self) -> FaultCounts {
        self.state().injected
    }

    /// The number of changing calls. The same seed makes the same number.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The power fails at the given changing call from now, counted from one.
    pub fn lose_power_after(&self, calls: u64) {
        self.state().power = Power::GoesAfter(calls.max(1));
    }

    /// Cancels a planned power loss.
    pub fn keep_power(&self) {
        let mut state = self.state();
        if state.power != Power::Off {
            state.power = Power::On;
        }
    }

    pub fn is_off(&self) -> bool {
        self.state().power == Power::Off
    }

    /// Simulates a power loss: unsynced changes are lost, kept or torn. All handles fail.
    pub fn crash(&self) {
        let mut state = self.state();
        let mut rng = state.rng.fork();
        state.tree.settle(&mut rng);
        state.start_over();
    }

    /// Simulates a kill of the process: nothing is lost, and all handles fail.
    pub fn kill(&self) {
        self.state().start_over();
    }

    /// All files with their lengths, in order of their paths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut state = self.state();
        let files = state.tree.files();
        files.into_iter().filter_map(|(path, node)| Some((path, state.tree.file(node).ok()?.len() as u64))).collect()
    }

    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let mut state = self.state();
        let node = state.tree.open(path).ok()?;
        Some(state.tree.file(node).ok()?.bytes().to_vec())
    }

    /// Flips a bit at rest. Returns `false` if there is no such byte.
    pub fn flip_bit(&self, path: &Path, position: u64, bit: u32) -> bool {
        let mask = 1u8 << (bit % 8);
        self.tamper(path, |bytes| {
            if let Some(byte) = bytes.get_mut(position as usize) {
                *byte ^= mask;
            }
        })
    }

    /// Changes the bytes of a file at rest, without a call of the log.
    pub fn tamper(&self, path: &Path, change: impl Fn(&mut [u8])) -> bool {
        let mut state = self.state();
        let Ok(node) = state.tree.open(path) else { return false };
        state.tree.file(node).map(|contents| contents.tamper(change)).is_ok()
    }

    fn file(&self, node: u64) -> Arc<dyn DiskFile> {
        let life = self.state().life;
        Arc::new(SimFile { disk: self.clone(), node, life })
    }
}

impl DiskState {
    fn start_over(&mut self) {
        self.power = Power::On;
        self.life += 1;
        self.locked = Arc::default();
    }
}

impl Disk for SimDisk {
    fn random(&self) -> u64 {
        self.state().rng.draw()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let node = {
            let mut state = self.state();
            state.begin_look()?;
            state.tree.open(path)?
        };
        Ok(self.file(node))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let node = self.state().name_call("a file could not be made", |tree| tree.create(path))?;
        Ok(self.file(node))
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        self.state().name_call("a folder could not be made", |tree| tree.create_dirs(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.state().name_call("renaming failed", |tree| tree.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.state().name_call("removing failed", |tree| tree.remove_file(path))
    }

    fn remove_dirs(&self, path: &Path) -> io::Result<()> {
        self.state().name_call("removing a folder failed", |tree| match tree.find(path) {
            Ok(_) => tree.remove_dirs(path),
            Err(_) => Ok(()),
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.begin_look()?;
        Ok(state.tree.list(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let mut state = self.state();
        state.begin_look()?;
        Ok(state.tree.find(path).is_ok())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let folder = state.tree.find(path)?;
        match state.begin(ChangeKind::Sync)? {
            FaultChoice::Go => {
                state.tree.sync_folder(folder);
                Ok(())
            }
            course => Err(course.sync_error()),
        }
    }

    fn sync_all(&self, root: &Path, touched: &[PathBuf]) -> io::Result<()> {
        self.state().sync_all(root, touched)
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let mut state = self.state();
        state.begin_look()?;
        Ok(state.budget_bytes.saturating_sub(state.tree.used_bytes))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let mut state = self.state();
        state.name_call("the lock could not be made", |tree| tree.create(path))?;
        if state.locked.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(LockGuard(state.locked.clone())))
    }
}

struct LockGuard(Arc<AtomicBool>);

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

struct SimFile {
    disk: SimDisk,
    node: u64,
    life: u64,
}

impl SimFile {
    fn state(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let state = self.disk.state();
        if state.life != self.life {
            return Err(injected("a handle of a process that is gone"));
        }
        Ok(state)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        state.begin_look()?;
        let times = state.faults.read_error;
        if !state.quiet && state.rng.one_in(times) {
            state.injected.read_errors += 1;
            return Err(injected("a read failed"));
        }
        Ok(state.tree.file(self.node)?.read(buffer, position as usize))
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.state()?.write(self.node, bytes, position)
    }

    fn write_pieces_at(&self, pieces: &[&[u8]], position: u64) -> io::Result<()> {
        self.state()?.write(self.node, &pieces.concat(), position)
    }

    fn sync(&self) -> io::Result<()> {
        self.state()?.sync_file(self.node)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        let course = state.begin(ChangeKind::Write)?;
        if course == FaultChoice::Fail {
            return Err(injected("a length could not be set"));
        }
        let contents = state.tree.file(self.node)?;
        let pages_before = contents.pages() as u64;
        contents.set_len(len as usize);
        let pages = contents.pages() as u64;
        let page_bytes = PAGE_BYTES as u64;
        state.tree.used_bytes = (state.tree.used_bytes + pages * page_bytes).saturating_sub(pages_before * page_bytes);
        if course == FaultChoice::PowerGoes { Err(injected("the power went")) } else { Ok(()) }
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.state()?;
        state.begin_look()?;
        Ok(state.tree.file(self.node)?.len() as u64)
    }
}
