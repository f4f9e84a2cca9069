//! The data folder: its format, the secret that tells its batches from a user's bytes, and the lock that keeps a second process
//! out.
//!
//! `FORMAT` never changes after the folder was made. `FORMAT.copy` has the same contents; where one of the two is damaged or missing, a start
//! uses the other one and writes it again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, read_whole, replace_file};
use crate::error::OpenError;
use crate::fallback::{Fallback, Replaced, Unusable, copy_of, read_or_fallback, set_aside};
use crate::format::{FolderSecret, crc};

/// The version of everything in the folder. A folder of another version is refused, not guessed at.
pub const FOLDER_FORMAT: u32 = 2;

pub(crate) const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "LOCK";
const FORMAT_PREFIX: &str = "whimbrel data folder, format ";
const SECRET_PREFIX: &str = "secret ";
const CHECKSUM_PREFIX: &str = "checksum ";

/// A data folder that is ours, of our format, and locked for this process.
pub struct DataFolder {
    pub path: PathBuf,
    pub disk: Arc<dyn Disk>,
    /// Drawn when the folder was made.
    pub secret: FolderSecret,
    /// `FORMAT` was damaged or missing, and its copy was used.
    pub finding: Option<Replaced>,
    _lock: Lock,
}

impl DataFolder {
    /// Opens the folder, making it where it is not there. A folder that has files and no `FORMAT` is somebody else's.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<Self, OpenError> {
        let io = |what: &str| OpenError::io(format!("{what} {}", path.display()));
        disk.create_dirs(path).map_err(io("making the data folder"))?;
        let (lock, found) = lock_and_read(&*disk, path)?;
        let (secret, finding) = match found {
            Some(found) => found,
            None => {
                sync_names_of(&*disk, path).map_err(io("syncing the folders above"))?;
                let secret = FolderSecret(disk.random());
                replace_file(&*disk, &path.join(FORMAT_FILE), format_contents(secret).as_bytes())
                    .map_err(|error| io("writing the format of")(error.into()))?;
                (secret, None)
            }
        };
        // A copy that finds no room on a full disk is written by a later start.
        if let Err(error) = mend(&*disk, path, secret, finding.is_some()) {
            let folder = path.display();
            tracing::warn!(%error, %folder, "FORMAT or its copy cannot be written; the next start tries again");
        }
        // The writer of FORMAT may have been killed before its name was durable, and nothing may be in the folder without it.
        disk.sync_dir(path).map_err(io("syncing"))?;
        Ok(Self { path: path.to_owned(), disk, secret, finding, _lock: lock })
    }

    /// Says whether the folder can be opened now, and what is wrong with its `FORMAT`. Nothing is changed but the lock.
    pub fn probe(disk: &dyn Disk, path: &Path) -> Result<Option<Replaced>, OpenError> {
        let (_lock, found) = lock_and_read(disk, path)?;
        Ok(found.and_then(|(_, finding)| finding))
    }
}

type Lock = Box<dyn Send + Sync>;
type Found = Option<(FolderSecret, Option<Replaced>)>;

/// The format is looked at twice: nothing may be changed in a folder that is not ours, not even by a lock, and before we had the lock
/// another process may have made the folder, and filled it under its secret.
fn lock_and_read(disk: &dyn Disk, path: &Path) -> Result<(Lock, Found), OpenError> {
    read_format(disk, path)?;
    let lock = disk.lock(&path.join(LOCK_FILE)).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse(path.to_owned()),
        _ => OpenError::io(format!("locking {}", path.display()))(error),
    })?;
    Ok((lock, read_format(disk, path)?))
}

/// Writes `FORMAT` and its copy where they are not as they must be. `FORMAT` goes first: a copy without one looks like a `FORMAT` that was lost.
fn mend(disk: &dyn Disk, path: &Path, secret: FolderSecret, is_format_lost: bool) -> io::Result<()> {
    let (format, contents) = (path.join(FORMAT_FILE), format_contents(secret));
    if is_format_lost {
        set_aside(disk, &format)?;
        replace_file(disk, &format, contents.as_bytes())?;
    }
    let copy = copy_of(&format);
    match read_whole(disk, &copy)? {
        Some(bytes) if bytes == contents.as_bytes() => Ok(()),
        _ => Ok(replace_file(disk, &copy, contents.as_bytes())?),
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

/// The secret of a folder that is there, by `FORMAT` or its copy; `None` where it is still to be made.
pub(crate) fn read_format(disk: &dyn Disk, path: &Path) -> Result<Found, OpenError> {
    let format = path.join(FORMAT_FILE);
    if let Some(found) =
        read_or_fallback(disk, &format, Fallback::Copy(&copy_of(&format)), |contents| parse_format(path, contents))?
    {
        return Ok(Some(found));
    }
    // A start that was cut off before it wrote FORMAT leaves nothing else than the lock or an unfinished FORMAT.
    let names = disk.list(path).map_err(OpenError::io(format!("listing the data folder {}", path.display())))?;
    let is_left_over = |name: &String| name == LOCK_FILE || name == "FORMAT.new";
    if names.iter().all(is_left_over) { Ok(None) } else { Err(OpenError::NotOurs(path.to_owned())) }
}

fn format_contents(secret: FolderSecret) -> String {
    let FolderSecret(number) = secret;
    let told = format!("{FORMAT_PREFIX}{FOLDER_FORMAT}\n{SECRET_PREFIX}{number:016x}\n");
    let checksum = crc(told.as_bytes());
    format!("{told}{CHECKSUM_PREFIX}{checksum:08x}\n")
}

/// With a wrong secret every batch would be taken for somebody else's, so it is not believed without its checksum. Nor is the number of
/// another format, unless it is of the first one, which had no checksum.
pub(crate) fn parse_format(path: &Path, contents: &[u8]) -> Result<FolderSecret, Unusable> {
    let damaged = |why: &str| Unusable::Damaged(why.to_owned());
    let text = String::from_utf8_lossy(contents);
    let mut lines = text.lines();
    let Some(version) = lines.next().and_then(|line| line.trim_end().strip_prefix(FORMAT_PREFIX)) else {
        return Err(damaged("it does not begin as the FORMAT of a Whimbrel data folder does"));
    };
    if version.parse() != Ok(FOLDER_FORMAT) {
        let checksum = text.trim_end().rsplit_once(CHECKSUM_PREFIX);
        let is_sound = match checksum {
            Some((told, stated)) => u32::from_str_radix(stated, 16) == Ok(crc(told.as_bytes())),
            None => lines.next().is_none(),
        };
        if !is_sound {
            return Err(damaged("its checksum is wrong"));
        }
        let found = version.chars().take(20).collect();
        return Err(Unusable::Refused(OpenError::OtherFormat { path: path.to_owned(), found, known: FOLDER_FORMAT }));
    }
    let number = lines.next().and_then(|line| u64::from_str_radix(line.strip_prefix(SECRET_PREFIX)?, 16).ok());
    let secret = number.map(FolderSecret).filter(|secret| format_contents(*secret).trim_end() == text.trim_end());
    secret.ok_or_else(|| damaged("its secret or its checksum is wrong"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: FolderSecret = FolderSecret(0xfeed_0123_4567_89ab);

    #[test]
    fn the_format_is_read_as_it_was_written() {
        assert_eq!(parse_format(Path::new("data"), format_contents(SECRET).as_bytes()).unwrap(), SECRET);
    }

    #[test]
    fn no_flipped_bit_makes_another_secret() {
        let whole = format_contents(SECRET).into_bytes();
        for (position, bit) in (0..whole.len()).flat_map(|position| (0..8).map(move |bit| (position, bit))) {
            let mut flipped = whole.clone();
            flipped[position] ^= 1 << bit;
            if let Ok(secret) = parse_format(Path::new("data"), &flipped) {
                assert_eq!(secret, SECRET, "bit {bit} of byte {position}");
            }
        }
    }

    #[test]
    fn a_folder_of_the_format_before_is_refused_by_its_number() {
        let refused = parse_format(Path::new("data"), b"whimbrel data folder, format 1\n");
        let Err(Unusable::Refused(OpenError::OtherFormat { found, known: 2, .. })) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(found, "1");
    }

    #[test]
    fn a_later_format_is_told_from_a_damaged_number_by_its_checksum() {
        let told = format!("{FORMAT_PREFIX}3\n{SECRET_PREFIX}{:016x}\nmore\n", SECRET.0);
        let later = format!("{told}{CHECKSUM_PREFIX}{:08x}\n", crc(told.as_bytes()));
        assert!(matches!(parse_format(Path::new("data"), later.as_bytes()), Err(Unusable::Refused(_))));
        let damaged = format_contents(SECRET).replace("format 2", "format 3");
        assert!(matches!(parse_format(Path::new("data"), damaged.as_bytes()), Err(Unusable::Damaged(_))));
    }
}
