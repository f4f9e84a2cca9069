//! The interface between the log and the disk.
//!
//! The log accesses a disk only through [`Disk`] and [`DiskFile`]. [`RealDisk`] is the real disk; the simulator has a faulty one. Each call
//! documents the guarantees on which the log relies. The faulty disk breaks everything else.

mod real;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use real::RealDisk;

/// A file system as the log uses it. Paths are complete; [`Disk::create_dirs`] creates the parents first.
pub trait Disk: Send + Sync + 'static {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading only. This also works in a folder that must not be written to.
    fn open_for_reading(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }

    /// Opens a file for reading and writing, and creates an empty one if it does not exist. The new name survives a power loss only after
    /// [`Disk::sync_dir`] or [`Disk::sync_all`].
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    fn create_dirs(&self, path: &Path) -> io::Result<()>;

    /// Replaces `to` atomically. Durable after [`Disk::sync_dir`] of the folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with everything in it.
    fn remove_dirs(&self, path: &Path) -> io::Result<()>;

    /// The names of the folders and files in a folder, in no order. A missing folder is empty.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Makes the names in this folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes everything durable that was written below `root`: contents, lengths and names. `touched` lists the files that were written
    /// since the last call, for systems that cannot sync a whole file system at once.
    fn sync_all(&self, root: &Path, touched: &[PathBuf]) -> io::Result<()>;

    /// The free space below `path`, in bytes.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;

    /// An unpredictable number. It is part of this trait so that runs of the simulator can be repeated.
    fn random(&self) -> u64 {
        RandomState::new().hash_one(std::process::id())
    }

    /// Locks the file for this process until the guard is dropped. Fails with `WouldBlock` if another process has the lock.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
}

/// An open file. Each read and write names its position, so a file has no cursor and can be shared.
pub trait DiskFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes. Reads fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes all bytes, or fails after an unknown part. Not durable.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Writes the pieces one after the other, like [`DiskFile::write_at`].
    fn write_pieces_at(&self, pieces: &[&[u8]], position: u64) -> io::Result<()>;

    /// Makes contents and length durable. After an error, the state of everything written since the last success is unknown.
    fn sync(&self) -> io::Result<()>;

    fn set_len(&self, len: u64) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Advises the system not to cache these bytes, which are read once. A hint: errors are ignored.
    fn drop_cached(&self, _position: u64, _len: u64) {}
}

/// Reads exactly `len` bytes. Fails if the file ends earlier.
pub(crate) fn read_exact_at(file: &dyn DiskFile, position: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; len];
    let got = file.read_at(&mut buffer, position)?;
    if got < len {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before"));
    }
    Ok(buffer)
}

/// Reads a small file as a whole. Returns `None` if it does not exist.
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

/// The reasons why the replacement of a small file is not certain.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The old file is unchanged.
    #[error(transparent)]
    NotReplaced(io::Error),
    /// The new file is in place. A power loss may bring the old one back.
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

/// Replaces a small file. After any crash the file is either the old one or the new one, complete.
pub fn replace_file(disk: &dyn Disk, path: &Path, contents: &[u8]) -> Result<(), ReplaceError> {
    let temporary = write_beside(disk, path, contents).map_err(ReplaceError::NotReplaced)?;
    disk.rename(&temporary, path).map_err(ReplaceError::NotReplaced)?;
    disk.sync_dir(folder_of(path)).map_err(ReplaceError::NotSynced)
}

/// Replaces a small file like [`replace_file`], and keeps the version before under the name `previous`. After a crash in between, `path`
/// may be missing. The version before is then under `previous`, and the new one may be complete at [`beside`].
pub fn replace_file_keeping(
    disk: &dyn Disk,
    path: &Path,
    previous: &Path,
    contents: &[u8],
) -> Result<(), ReplaceError> {
    let temporary = write_beside(disk, path, contents).map_err(ReplaceError::NotReplaced)?;
    disk.rename(path, previous).map_err(ReplaceError::NotReplaced)?;
    if let Err(error) = disk.rename(&temporary, path) {
        // Without the new file beside it, a start finds the version before.
        let is_undone = disk.remove_file(&temporary).and_then(|()| disk.rename(previous, path)).is_ok();
        return Err(if is_undone { ReplaceError::NotReplaced(error) } else { ReplaceError::NotSynced(error) });
    }
    disk.sync_dir(folder_of(path)).map_err(ReplaceError::NotSynced)
}

/// The path at which the new version of `path` is written first.
pub fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Writes and syncs the new version of a small file beside it, and returns its path.
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

/// The disk has no space. The error is temporary: removing other files ends it.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the device reports an error: it cannot read or write these bytes.
pub(crate) fn is_device_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// Whether the disk cannot return these bytes: a sector is unreadable or a file is missing. Other errors, such as a shortage of file
/// descriptors, do not concern the disk.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    is_device_error(error) || error.kind() == io::ErrorKind::NotFound
}

/// File descriptors or memory are short. The call did nothing and can be repeated after the shortage. The error of a sync is temporary only
/// if the sync [has not begun](is_not_begun).
pub(crate) fn is_passing(error: &io::Error) -> bool {
    is_short(error) || is_not_begun(error)
}

fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// A sync that did not begin: file descriptors or memory were short, so its file or folder could not be opened. Unlike a failed sync, it
/// leaves the state of the disk known and can be repeated.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotBegun(String);

pub(crate) fn is_not_begun(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<NotBegun>())
}

/// Marks the error of an open before a sync.
fn before_sync(error: io::Error) -> io::Error {
    if is_short(&error) { io::Error::new(error.kind(), NotBegun(error.to_string())) } else { error }
}
