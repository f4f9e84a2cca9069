//! The disk of the machine without its syncs, for tests that open a log thousands of times and never cut the power, and for tests in which
//! a sync waits or fails. The tests of the engines use it too.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use whimbrel_storage::disk::{Disk, DiskFile, RealDisk};

type Hook = Arc<dyn Fn() + Send + Sync>;
type SyncHook = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;
type RenameHook = Arc<dyn Fn(&Path) + Send + Sync>;
type FileHook = Arc<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;
type BadSectors = Arc<dyn Fn(&Path, Range<u64>) -> bool + Send + Sync>;

#[derive(Default)]
pub struct UnsyncedDisk {
    disk: RealDisk,
    before_lock: Option<Hook>,
    before_sync: Option<Hook>,
    sync_folder: Option<SyncHook>,
    before_read: Option<Hook>,
    after_rename: Option<RenameHook>,
    before_rename: Option<FileHook>,
    open: Option<FileHook>,
    before_lookup: Option<FileHook>,
    bad_sectors: Option<BadSectors>,
}

#[allow(dead_code, reason = "each test program uses a part of it")]
impl UnsyncedDisk {
    /// A disk that calls the hook before it takes a lock.
    pub fn with_before_lock(before_lock: impl Fn() + Send + Sync + 'static) -> Self {
        Self { before_lock: Some(Arc::new(before_lock)), ..Self::default() }
    }

    /// A disk that calls the hook before it syncs a file.
    pub fn with_before_sync(before_sync: impl Fn() + Send + Sync + 'static) -> Self {
        Self { before_sync: Some(Arc::new(before_sync)), ..Self::default() }
    }

    /// A disk that calls the hook to sync a folder, which fails if the hook does.
    pub fn with_folder_sync(sync_folder: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { sync_folder: Some(Arc::new(sync_folder)), ..Self::default() }
    }

    /// A disk that calls the hook before each read of a file, a length, a folder or an existence check.
    pub fn with_before_read(before_read: impl Fn() + Send + Sync + 'static) -> Self {
        Self { before_read: Some(Arc::new(before_read)), ..Self::default() }
    }

    /// A disk that calls the hook with the new name after each rename.
    pub fn with_after_rename(after_rename: impl Fn(&Path) + Send + Sync + 'static) -> Self {
        Self { after_rename: Some(Arc::new(after_rename)), ..Self::default() }
    }

    /// A disk that calls the hook with the new name before each rename, which fails if the hook does.
    pub fn with_before_rename(before_rename: impl Fn(&Path) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { before_rename: Some(Arc::new(before_rename)), ..Self::default() }
    }

    /// A disk that opens or creates a file only if the hook succeeds.
    pub fn with_open(open: impl Fn(&Path) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { open: Some(Arc::new(open)), ..Self::default() }
    }

    /// A disk that calls the hook before it checks whether a file exists, which fails if the hook does.
    pub fn with_before_lookup(self, before_lookup: impl Fn(&Path) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { before_lookup: Some(Arc::new(before_lookup)), ..self }
    }

    /// A disk that cannot read the bytes for which the function returns true.
    pub fn with_bad_sectors(are_bad: impl Fn(&Path, Range<u64>) -> bool + Send + Sync + 'static) -> Self {
        Self { bad_sectors: Some(Arc::new(are_bad)), ..Self::default() }
    }

    fn reading(&self) {
        if let Some(before_read) = &self.before_read {
            before_read();
        }
    }

    fn opening(&self, path: &Path) -> io::Result<()> {
        self.open.as_ref().map_or(Ok(()), |open| open(path))
    }

    fn unsynced(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let (before_sync, before_read) = (self.before_sync.clone(), self.before_read.clone());
        let bad_sectors = self.bad_sectors.clone();
        Arc::new(UnsyncedFile { path: path.to_owned(), file, before_sync, before_read, bad_sectors })
    }
}

struct UnsyncedFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bad_sectors: Option<BadSectors>,
    before_sync: Option<Hook>,
    before_read: Option<Hook>,
}

impl UnsyncedFile {
    fn reading(&self) {
        if let Some(before_read) = &self.before_read {
            before_read();
        }
    }
}

impl Disk for UnsyncedDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.reading();
        self.opening(path)?;
        self.disk.open(path).map(|file| self.unsynced(path, file))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.opening(path)?;
        self.disk.create(path).map(|file| self.unsynced(path, file))
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dirs(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before_rename.as_ref().map_or(Ok(()), |before_rename| before_rename(to))?;
        self.disk.rename(from, to)?;
        if let Some(after_rename) = &self.after_rename {
            after_rename(to);
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }

    fn remove_dirs(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dirs(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.reading();
        self.disk.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.reading();
        self.before_lookup.as_ref().map_or(Ok(()), |before_lookup| before_lookup(path))?;
        self.disk.exists(path)
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        self.sync_folder.as_ref().map_or(Ok(()), |sync_folder| sync_folder())
    }

    fn sync_all(&self, _root: &Path, _touched: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_bytes(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        if let Some(before_lock) = &self.before_lock {
            before_lock();
        }
        self.disk.lock(path)
    }
}

impl DiskFile for UnsyncedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.reading();
        let bytes = position..position + buffer.len() as u64;
        if self.bad_sectors.as_ref().is_some_and(|are_bad| are_bad(&self.path, bytes)) {
            const EIO: i32 = 5;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.file.read_at(buffer, position)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_at(bytes, position)
    }

    fn write_pieces_at(&self, pieces: &[&[u8]], position: u64) -> io::Result<()> {
        self.file.write_pieces_at(pieces, position)
    }

    fn sync(&self) -> io::Result<()> {
        if let Some(before_sync) = &self.before_sync {
            before_sync();
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.reading();
        self.file.len()
    }
}
