//! The disk of the machine.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{Disk, DiskFile, before_sync};

/// Pieces of one `pwritev`: the limit of the kernel.
const PIECES_PER_WRITE: usize = 1024;

/// Linux reports write-back errors to `syncfs` from this version on.
const SYNCFS_SINCE: (u32, u32) = (5, 8);

/// File systems whose `syncfs` does not report a failed write: file systems of another process or machine, and those on top of another file
/// system. Identified by their number in `statfs`.
const SYNCED_BY_FILE: [(u64, &str); 7] = [
    (0x6573_5546, "FUSE"),
    (0x794c_7630, "overlayfs"),
    (0x6969, "NFS"),
    (0x0102_1997, "9p"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x00c3_6400, "Ceph"),
];

#[derive(Debug, Default)]
pub struct RealDisk {
    /// A handle on the file system, opened before anything is written: `syncfs` reports a write-back error only to handles open at the
    /// time.
    root: OnceLock<File>,
    /// Whether files are synced one by one. Unset until the first sync finds out.
    by_file: OnceLock<bool>,
}

impl RealDisk {
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk that syncs file by file, on any file system.
    pub fn by_file() -> Self {
        Self { root: OnceLock::new(), by_file: OnceLock::from(true) }
    }

    fn syncs_by_file(&self, root: &Path) -> bool {
        *self.by_file.get_or_init(|| {
            let why = why_by_file(root);
            if let Some(why) = &why {
                tracing::info!("segments are synced file by file: {why}");
            }
            why.is_some()
        })
    }

    fn sync_each(&self, touched: &[PathBuf]) -> io::Result<()> {
        let mut folders = BTreeSet::new();
        for path in touched {
            match File::open(path) {
                Ok(file) => file.sync_all()?,
                // Retention may have dropped the file since; then it need not be durable.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(before_sync(error)),
            }
            folders.extend(path.parent());
        }
        folders.into_iter().try_for_each(|folder| self.sync_dir(folder))
    }
}

/// The reason why one sync of the whole file system is not enough; `None` if it is.
#[cfg(target_os = "linux")]
fn why_by_file(root: &Path) -> Option<String> {
    let magic = match file_system_of(root) {
        Ok(magic) => magic,
        Err(error) => return Some(format!("the type of its file system is unknown: {error}")),
    };
    judge_syncfs(&kernel_release(), magic)
}

#[cfg(not(target_os = "linux"))]
fn why_by_file(_: &Path) -> Option<String> {
    Some("this system has no `syncfs`".to_owned())
}

#[cfg(target_os = "linux")]
fn judge_syncfs(release: &str, magic: u64) -> Option<String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < SYNCFS_SINCE {
        return Some(format!("Linux {release} does not report write-back errors to `syncfs`"));
    }
    let (_, name) = SYNCED_BY_FILE.into_iter().find(|(known, _)| *known == magic)?;
    Some(format!("{name} does not report write-back errors to `syncfs`"))
}

#[cfg(target_os = "linux")]
fn kernel_release() -> String {
    // SAFETY: `names` is plain old data that the call fills with terminated strings.
    unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        if libc::uname(&mut names) != 0 {
            return String::new();
        }
        std::ffi::CStr::from_ptr(names.release.as_ptr()).to_string_lossy().into_owned()
    }
}

#[cfg(target_os = "linux")]
fn file_system_of(path: &Path) -> io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `stats` is plain old data that the call fills; `path` is a terminated string that outlives the call.
    unsafe {
        let mut stats: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &mut stats) != 0 {
            return Err(io::Error::last_os_error());
        }
        // File system numbers have 32 bits; the sign depends on the architecture.
        Ok(u64::from(stats.f_type as u32))
    }
}

struct RealFile(File);

fn open(path: &Path, create: bool) -> io::Result<Arc<dyn DiskFile>> {
    let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).open(path)?;
    Ok(Arc::new(RealFile(file)))
}

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        open(path, false)
    }

    fn open_for_reading(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(File::open(path)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        open(path, true)
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dirs(&self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path).map_err(before_sync)?.sync_all()
    }

    #[cfg(not(target_os = "linux"))]
    fn sync_all(&self, root: &Path, touched: &[PathBuf]) -> io::Result<()> {
        self.syncs_by_file(root);
        self.sync_each(touched)
    }

    #[cfg(target_os = "linux")]
    fn sync_all(&self, root: &Path, touched: &[PathBuf]) -> io::Result<()> {
        if self.syncs_by_file(root) {
            return self.sync_each(touched);
        }
        let root = match self.root.get() {
            Some(root) => root,
            None => {
                let opened = File::open(root).map_err(before_sync)?;
                self.root.get_or_init(|| opened)
            }
        };
        // SAFETY: the descriptor is open for as long as `self` lives, and the call takes nothing else.
        match unsafe { libc::syncfs(root.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: `stats` is plain old data that the call fills; `path` is a terminated string that outlives the call.
        let stats = unsafe {
            let mut stats: libc::statvfs = std::mem::zeroed();
            if libc::statvfs(path.as_ptr(), &mut stats) != 0 {
                return Err(io::Error::last_os_error());
            }
            stats
        };
        Ok(stats.f_bavail as u64 * stats.f_frsize as u64)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], position + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, position)
    }

    fn write_pieces_at(&self, pieces: &[&[u8]], mut position: u64) -> io::Result<()> {
        for group in pieces.chunks(PIECES_PER_WRITE) {
            let mut slices: Vec<IoSlice<'_>> = group.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                // SAFETY: `IoSlice` has the layout of `iovec`, and each points to memory that outlives the call.
                let written = unsafe {
                    libc::pwritev(self.0.as_raw_fd(), rest.as_ptr().cast(), rest.len() as libc::c_int, position as i64)
                };
                match written {
                    -1 => {
                        let error = io::Error::last_os_error();
                        if error.kind() != io::ErrorKind::Interrupted {
                            return Err(error);
                        }
                    }
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    written => {
                        position += written as u64;
                        IoSlice::advance_slices(&mut rest, written as usize);
                    }
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    #[cfg(target_os = "linux")]
    fn drop_cached(&self, position: u64, len: u64) {
        let (Ok(position), Ok(len)) = (position.try_into(), len.try_into()) else { return };
        // SAFETY: the descriptor is open for as long as `self` lives, and the call takes no memory.
        unsafe { libc::posix_fadvise(self.0.as_raw_fd(), position, len, libc::POSIX_FADV_DONTNEED) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const EXT4: u64 = 0xef53;

    #[test]
    fn syncfs_is_trusted_only_where_it_reports_errors() {
        for release in ["5.8.0", "5.10.0-21-amd64", "6.18.44-fc-v490", "10.0"] {
            assert_eq!(judge_syncfs(release, EXT4), None, "{release}");
        }
        for release in ["5.7.19", "4.19.0-25-amd64", "3.10.0", "", "unknown"] {
            assert!(judge_syncfs(release, EXT4).is_some(), "{release}");
        }
        for (magic, name) in SYNCED_BY_FILE {
            let why = judge_syncfs("6.1.0", magic).unwrap();
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn the_file_system_and_the_kernel_of_this_machine_are_identified() {
        assert!(file_system_of(Path::new("/")).unwrap() > 0);
        assert!(kernel_release().chars().next().unwrap().is_ascii_digit());
    }
}
