//! A read-only view of a disk, for checks. It meters every read, so that a check can limit its rate and show its progress. It advises the
//! system not to cache the bytes that it read. Every call that would change the disk fails.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};

/// Called with the bytes of each read. It may wait, to limit the rate. It may fail with [`io::ErrorKind::Interrupted`], to end the check.
pub type ReadMeter = Arc<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

pub(crate) struct ReadOnlyDisk {
    disk: Arc<dyn Disk>,
    meter: ReadMeter,
}

struct MeteredFile {
    file: Arc<dyn DiskFile>,
    meter: ReadMeter,
}

impl ReadOnlyDisk {
    pub fn new(disk: Arc<dyn Disk>, meter: ReadMeter) -> Self {
        Self { disk, meter }
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a check changes nothing"))
}

impl Disk for ReadOnlyDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open_for_reading(path)?;
        Ok(Arc::new(MeteredFile { file, meter: self.meter.clone() }))
    }

    fn create(&self, _: &Path) -> io::Result<Arc<dyn DiskFile>> {
        refused()
    }

    fn create_dirs(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_file(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_dirs(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_all(&self, _: &Path, _: &[PathBuf]) -> io::Result<()> {
        refused()
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_bytes(path)
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn Send + Sync>> {
        refused()
    }
}

impl DiskFile for MeteredFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let read = self.file.read_at(buffer, position)?;
        self.file.drop_cached(position, read as u64);
        (self.meter)(read as u64)?;
        Ok(read)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        refused()
    }

    fn write_pieces_at(&self, _: &[&[u8]], _: u64) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> io::Result<()> {
        refused()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        refused()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
