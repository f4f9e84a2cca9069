//! Small files without which a data folder cannot be used. Each has a second file as a fallback.
//!
//! A damaged file is never used and never overwritten: it is renamed. The caller gets the name of the file that is used instead, and emits
//! an event. A file of another format is rejected without reading its second file.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, is_device_error, read_whole};
use crate::error::OpenError;

/// Attempts to read a file at which the device reports an error.
const READ_ATTEMPTS: usize = 3;

/// The reason why the contents of a file are not used.
#[derive(Debug)]
pub enum ContentsError {
    Damaged(String),
    /// The file is sound, but the folder must not be opened.
    Refused(OpenError),
}

/// A file that is damaged, missing or unreadable, and the file that is used instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    pub file: PathBuf,
    pub why: String,
    pub used: PathBuf,
}

/// The second file of a small file.
#[derive(Debug, Clone, Copy)]
pub enum Fallback<'a> {
    /// The second file has the same contents. It is also used if the device cannot read the first file.
    Copy(&'a Path),
    /// The second file has the contents before the last change. Not used if the device cannot read the first file: a later read may
    /// succeed.
    Earlier(&'a Path),
}

/// The contents of `path`, or of the second file if `path` is damaged, missing or, for a copy, unreadable; `None` if neither exists.
pub fn read_or_fallback<T>(
    disk: &dyn Disk,
    path: &Path,
    second: Fallback<'_>,
    decode: impl Fn(&[u8]) -> Result<T, ContentsError>,
) -> Result<Option<(T, Option<Replacement>)>, OpenError> {
    let (fallback, is_copy) = match second {
        Fallback::Copy(path) => (path, true),
        Fallback::Earlier(path) => (path, false),
    };
    let read = |path: &Path| match read_repeatedly(disk, path) {
        Ok(bytes) => Ok(bytes.map(|bytes| decode(&bytes))),
        Err(error) if is_copy && is_device_error(&error) => {
            Ok(Some(Err(ContentsError::Damaged(format!("reading it failed: {error}")))))
        }
        Err(error) => Err(OpenError::io(format!("reading {}", path.display()))(error)),
    };
    let damaged = match read(path)? {
        Some(Ok(contents)) => return Ok(Some((contents, None))),
        Some(Err(ContentsError::Refused(error))) => return Err(error),
        Some(Err(ContentsError::Damaged(why))) => Some(why),
        None => None,
    };
    let shown = fallback.display();
    let neither = match (read(fallback)?, &damaged) {
        (Some(Ok(contents)), _) => {
            let why = damaged.unwrap_or_else(|| "it is missing".to_owned());
            let replaced = Replacement { file: path.to_owned(), why, used: fallback.to_owned() };
            return Ok(Some((contents, Some(replaced))));
        }
        (None, None) => return Ok(None),
        (None, Some(why)) => format!("{why}, and there is no {shown} to use instead"),
        (Some(Err(unusable)), _) => {
            let why = damaged.as_deref().unwrap_or("it is missing");
            let also = match unusable {
                ContentsError::Damaged(also) => also,
                ContentsError::Refused(error) => error.to_string(),
            };
            format!("{why}, and {shown} cannot be used instead: {also}")
        }
    };
    Err(OpenError::Unreadable { path: path.to_owned(), why: neither })
}

fn read_repeatedly(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut read = read_whole(disk, path);
    for _ in 1..READ_ATTEMPTS {
        match &read {
            Err(error) if is_device_error(error) => read = read_whole(disk, path),
            _ => break,
        }
    }
    read
}

/// Renames a damaged file, if it exists, to the name that [`aside`] returns.
pub fn set_aside(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if disk.exists(path)? { disk.rename(path, &aside(path)) } else { Ok(()) }
}

/// `catalogue.json.damaged` for `catalogue.json`.
pub fn aside(path: &Path) -> PathBuf {
    with_suffix(path, ".damaged")
}

/// The name of the copy of a file: `FORMAT.copy` for `FORMAT`.
pub(crate) fn copy_of(path: &Path) -> PathBuf {
    with_suffix(path, ".copy")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
