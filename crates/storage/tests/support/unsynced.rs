//! The disk of the machine without its syncs, for tests that open a log thousands of times and never cut the power, and for tests in which
//! a call waits or fails. The tests of the engines use it too.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use whimbrel_storage::disk::{Disk, DiskFile, RealDisk};

/// A call of the disk that is about to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskCall<'a> {
    Open(&'a Path),
    Create(&'a Path),
    /// A check whether a file exists.
    Exists(&'a Path),
    List,
    /// The length of a file.
    Len,
    Read(&'a Path, Range<u64>),
    SyncFile,
    SyncFolder,
    /// With the new name.
    Rename(&'a Path),
    /// The rename has happened.
    Renamed(&'a Path),
    Lock,
}

/// Called before each call of the disk, which fails if the hook does.
type Hook = Arc<dyn Fn(DiskCall<'_>) -> io::Result<()> + Send + Sync>;

pub struct UnsyncedDisk {
    disk: RealDisk,
    hook: Hook,
}

impl Default for UnsyncedDisk {
    fn default() -> Self {
        Self::with(|_| Ok(()))
    }
}

impl UnsyncedDisk {
    pub fn with(hook: impl Fn(DiskCall<'_>) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { disk: RealDisk::default(), hook: Arc::new(hook) }
    }

    /// A disk on which some calls fail with this number of an error while `fails` is set.
    pub fn failing(
        fails: &Arc<AtomicBool>,
        errno: i32,
        is_failing: impl Fn(DiskCall<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let fails = fails.clone();
        Self::with(move |call| match fails.load(Ordering::SeqCst) && is_failing(call) {
            true => Err(io::Error::from_raw_os_error(errno)),
            false => Ok(()),
        })
    }

    fn unsynced(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(UnsyncedFile { path: path.to_owned(), file, hook: self.hook.clone() })
    }
}

struct UnsyncedFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    hook: Hook,
}

impl Disk for UnsyncedDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        (self.hook)(DiskCall::Open(path))?;
        self.disk.open(path).map(|file| self.unsynced(path, file))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        (self.hook)(DiskCall::Create(path))?;
        self.disk.create(path).map(|file| self.unsynced(path, file))
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dirs(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.hook)(DiskCall::Rename(to))?;
        self.disk.rename(from, to)?;
        (self.hook)(DiskCall::Renamed(to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }

    fn remove_dirs(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dirs(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        (self.hook)(DiskCall::List)?;
        self.disk.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        (self.hook)(DiskCall::Exists(path))?;
        self.disk.exists(path)
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        (self.hook)(DiskCall::SyncFolder)
    }

    fn sync_all(&self, _root: &Path, _touched: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_bytes(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        (self.hook)(DiskCall::Lock)?;
        self.disk.lock(path)
    }
}

impl DiskFile for UnsyncedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        (self.hook)(DiskCall::Read(&self.path, position..position + buffer.len() as u64))?;
        self.file.read_at(buffer, position)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_at(bytes, position)
    }

    fn write_pieces_at(&self, pieces: &[&[u8]], position: u64) -> io::Result<()> {
        self.file.write_pieces_at(pieces, position)
    }

    fn sync(&self) -> io::Result<()> {
        (self.hook)(DiskCall::SyncFile)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        (self.hook)(DiskCall::Len)?;
        self.file.len()
    }
}
