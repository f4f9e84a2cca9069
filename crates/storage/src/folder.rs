//! The data folder: its format, and the lock that keeps a second process out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, read_whole, replace_file};
use crate::error::OpenError;

/// The version of everything in the folder. A folder of another version is refused, not guessed at.
pub const FOLDER_FORMAT: u32 = 1;

const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "LOCK";
const FORMAT_PREFIX: &str = "whimbrel data folder, format ";

/// A data folder that is ours, of our format, and locked for this process.
pub struct DataFolder {
    pub path: PathBuf,
    pub disk: Arc<dyn Disk>,
    _lock: Box<dyn Send + Sync>,
}

impl DataFolder {
    /// Opens the folder, making it where it is not there. A folder that has files and no `FORMAT` is somebody else's.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<Self, OpenError> {
        let io = |what: &str| OpenError::io(format!("{what} {}", path.display()));
        disk.create_dirs(path).map_err(io("making the data folder"))?;
        let names = disk.list(path).map_err(io("listing the data folder"))?;
        let is_new = match read_whole(&*disk, &path.join(FORMAT_FILE)).map_err(io("reading the format of"))? {
            Some(format) => check_format(path, &format).map(|()| false)?,
            // A start that was cut off before it wrote FORMAT leaves nothing else than the lock or an unfinished FORMAT.
            None if names.iter().all(|name| name == LOCK_FILE || name == "FORMAT.new") => true,
            None => return Err(OpenError::NotOurs(path.to_owned())),
        };
        let lock = disk.lock(&path.join(LOCK_FILE)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => OpenError::InUse(path.to_owned()),
            _ => OpenError::io(format!("locking {}", path.display()))(error),
        })?;
        if is_new {
            sync_names_of(&*disk, path).map_err(io("syncing the folders above"))?;
            let format = format!("{FORMAT_PREFIX}{FOLDER_FORMAT}\n");
            replace_file(&*disk, &path.join(FORMAT_FILE), format.as_bytes()).map_err(io("writing the format of"))?;
        } else {
            // Its writer may have been killed before its name was durable, and nothing may be in the folder without it.
            disk.sync_dir(path).map_err(io("syncing"))?;
        }
        Ok(Self { path: path.to_owned(), disk, _lock: lock })
    }
}

/// A folder lasts when its name in the one above does. Which of them were made just now is not known: an earlier start may have
/// made them and been cut off. Folders that we may not read were made by somebody else.
fn sync_names_of(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    for above in path.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        match disk.sync_dir(above) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn check_format(path: &Path, contents: &[u8]) -> Result<(), OpenError> {
    let text = String::from_utf8_lossy(contents);
    match text.trim_end().strip_prefix(FORMAT_PREFIX) {
        Some(version) if version.parse() == Ok(FOLDER_FORMAT) => Ok(()),
        Some(version) => {
            let found = version.chars().take(20).collect();
            Err(OpenError::OtherFormat { path: path.to_owned(), found, known: FOLDER_FORMAT })
        }
        None => Err(OpenError::NotOurs(path.to_owned())),
    }
}
