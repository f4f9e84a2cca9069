//! The seam between the log and the disk.
//!
//! Everything that the log does to a disk goes through [`Disk`] and [`DiskFile`]. The real one is below; the simulator has a
//! faulty twin. What the log relies on, and what the twin breaks on purpose, is stated on each call.

mod real;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use real::RealDisk;

/// A file system as the log sees it. Paths are whole paths; parents are made by [`Disk::create_dirs`] first.
pub trait Disk: Send + Sync + 'static {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading alone, which a folder that must not be written to allows too.
    fn open_for_reading(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }

    /// Opens a file for reading and writing, making an empty one where there is none. The new name survives a power loss only
    /// after [`Disk::sync_dir`] or [`Disk::sync_all`].
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    fn create_dirs(&self, path: &Path) -> io::Result<()>;

    /// Replaces `to` atomically. Durable after [`Disk::sync_dir`] of the folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with everything in it.
    fn remove_dirs(&self, path: &Path) -> io::Result<()>;

    /// Names in a folder, in no order; folders and files alike. A folder that is not there is empty.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Makes names in this folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes everything durable that was written below `root`: contents, lengths and names. `touched` are the files that were
    /// written since the last call, for systems that cannot sync a whole file system at once.
    fn sync_all(&self, root: &Path, touched: &[PathBuf]) -> io::Result<()>;

    /// Bytes that can still be written below `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;

    /// A number that nobody can guess. It is asked for here so that the simulator's runs can be repeated.
    fn random(&self) -> u64 {
        RandomState::new().hash_one(std::process::id())
    }

    /// Takes the file's lock for this process until the guard is dropped; `WouldBlock` where another process has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
}

/// An open file. Reads and writes say where, so a file has no position and can be shared.
pub trait DiskFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes all of it, or fails with an unknown part written. Not durable.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Writes the pieces one after the other, as [`DiskFile::write_at`].
    fn write_pieces_at(&self, pieces: &[&[u8]], position: u64) -> io::Result<()>;

    /// Makes contents and length durable. After a failure nothing is known about what was written since the last success.
    fn sync(&self) -> io::Result<()>;

    fn set_len(&self, len: u64) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Tells the system that these bytes were read once and need not stay in its memory. A hint: failures are ignored.
    fn drop_cached(&self, _position: u64, _len: u64) {}
}

/// Reads exactly `len` bytes, or says that the file ends before.
pub(crate) fn read_exact_at(file: &dyn DiskFile, position: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; len];
    let got = file.read_at(&mut buffer, position)?;
    if got < len {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before"));
    }
    Ok(buffer)
}

/// Reads a small file whole; `None` where it is not there.
pub fn read_whole(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    match disk.open(path) {
        Ok(file) => {
            let len = file.len()? as usize;
            read_exact_at(&*file, 0, len).map(Some)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why it is not certain that a small file was replaced.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The old file is there as it was.
    #[error(transparent)]
    NotReplaced(io::Error),
    /// The new file is in place, and a power loss may bring the old one back.
    #[error("the file was replaced, and its folder could not be synced: {0}")]
    NotSynced(io::Error),
}

impl From<ReplaceError> for io::Error {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::NotReplaced(error) => error,
            ReplaceError::NotSynced(ref cause) if is_not_begun(cause) => {
                Self::new(cause.kind(), NotBegun(error.to_string()))
            }
            ReplaceError::NotSynced(ref cause) => Self::new(cause.kind(), error.to_string()),
        }
    }
}

/// Replaces a small file so that after any crash it is the old one or the new one, whole.
pub fn replace_file(disk: &dyn Disk, path: &Path, contents: &[u8]) -> Result<(), ReplaceError> {
    let temporary = write_beside(disk, path, contents).map_err(ReplaceError::NotReplaced)?;
    disk.rename(&temporary, path).map_err(ReplaceError::NotReplaced)?;
    disk.sync_dir(folder_of(path)).map_err(ReplaceError::NotSynced)
}

/// The same, with the version before it kept under the name `previous`. After a crash in between, `path` may be missing; the version
/// before is then under `previous`, and the new one may be whole at [`beside`].
pub fn replace_file_keeping(
    disk: &dyn Disk,
    path: &Path,
    previous: &Path,
    contents: &[u8],
) -> Result<(), ReplaceError> {
    let temporary = write_beside(disk, path, contents).map_err(ReplaceError::NotReplaced)?;
    disk.rename(path, previous).map_err(ReplaceError::NotReplaced)?;
    if let Err(error) = disk.rename(&temporary, path) {
        // Without the new file beside it, the version before is what a start finds.
        let is_undone = disk.remove_file(&temporary).and_then(|()| disk.rename(previous, path)).is_ok();
        return Err(if is_undone { ReplaceError::NotReplaced(error) } else { ReplaceError::NotSynced(error) });
    }
    disk.sync_dir(folder_of(path)).map_err(ReplaceError::NotSynced)
}

/// Where a small file that is to replace `path` is written first.
pub fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Writes what is to replace a small file beside it, synced, and returns where.
fn write_beside(disk: &dyn Disk, path: &Path, contents: &[u8]) -> io::Result<PathBuf> {
    let temporary = beside(path);
    let file = disk.create(&temporary)?;
    file.set_len(0)?;
    file.write_at(contents, 0)?;
    file.sync()?;
    Ok(temporary)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// A disk that has no room: this passes when something else is removed.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the device reports an error: it cannot read or write these bytes.
pub(crate) fn is_device_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// A place that the disk does not give back: a sector that cannot be read, or a file that is gone. Other errors, such as the want of file
/// descriptors, say nothing of the disk.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    is_device_error(error) || error.kind() == io::ErrorKind::NotFound
}

/// File descriptors or memory are short: the call did nothing, and can be repeated when the shortage is over. Not of a sync, whose error
/// passes only if it [has not begun](is_not_begun).
pub(crate) fn is_passing(error: &io::Error) -> bool {
    is_short(error) || is_not_begun(error)
}

fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// A sync that did not begin, because its file or folder could not be opened for want of file descriptors or memory. Unlike a failed sync,
/// it says nothing of what is on the disk, and can be repeated.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotBegun(String);

pub(crate) fn is_not_begun(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<NotBegun>())
}

/// The error of an open before a sync.
fn before_sync(error: io::Error) -> io::Error {
    if is_short(&error) { io::Error::new(error.kind(), NotBegun(error.to_string())) } else { error }
}
