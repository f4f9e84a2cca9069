//! The data folder: its format, the secret that distinguishes its batches from users' bytes, and the lock that excludes other processes.
//!
//! `FORMAT` never changes after the folder is created. `FORMAT.copy` has the same contents. If one of the two is damaged or missing, a
//! start uses the other one and writes it again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, read_whole, replace_file};
use crate::error::OpenError;
use crate::fallback::{ContentsError, Fallback, Replacement, copy_of, read_or_fallback, set_aside};
use crate::format::{FolderSecret, crc};

/// The version of everything in the folder. A folder of another version is rejected.
pub const FOLDER_FORMAT: u32 = 2;

pub(crate) const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "LOCK";
const FORMAT_PREFIX: &str = "whimbrel data folder, format ";
const SECRET_PREFIX: &str = "secret ";
const CHECKSUM_PREFIX: &str = "checksum ";

/// A Whimbrel data folder of a known format, locked for this process.
pub struct DataFolder {
    pub path: PathBuf,
    pub disk: Arc<dyn Disk>,
    /// Drawn when the folder is created.
    pub secret: FolderSecret,
    /// The damage of `FORMAT` if its copy was used.
    pub finding: Option<Replacement>,
    _lock: Lock,
}

impl DataFolder {
    /// Opens the folder, and creates it if it does not exist. A folder with other files and no `FORMAT` is not a data folder.
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
        // If a full disk has no space for the copy, a later start writes it.
        if let Err(error) = mend(&*disk, path, secret, finding.is_some()) {
            let folder = path.display();
            tracing::warn!(%error, %folder, "FORMAT or its copy cannot be written; the next start tries again");
        }
        // The writer of FORMAT may have been killed before its name was durable. Nothing may be in the folder without it.
        disk.sync_dir(path).map_err(io("syncing"))?;
        Ok(Self { path: path.to_owned(), disk, secret, finding, _lock: lock })
    }

    /// Checks whether the folder can be opened now, and returns the damage of its `FORMAT`. Changes nothing except the lock.
    pub fn probe(disk: &dyn Disk, path: &Path) -> Result<Option<Replacement>, OpenError> {
        let (_lock, found) = lock_and_read(disk, path)?;
        Ok(found.and_then(|(_, finding)| finding))
    }
}

type Lock = Box<dyn Send + Sync>;
type StoredFormat = Option<(FolderSecret, Option<Replacement>)>;

/// Reads the format twice. Nothing may be changed in a foreign folder, not even by a lock. And before this process has the lock, another
/// process may create the folder and fill it under its own secret.
fn lock_and_read(disk: &dyn Disk, path: &Path) -> Result<(Lock, StoredFormat), OpenError> {
    read_format(disk, path)?;
    let lock = disk.lock(&path.join(LOCK_FILE)).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse(path.to_owned()),
        _ => OpenError::io(format!("locking {}", path.display()))(error),
    })?;
    Ok((lock, read_format(disk, path)?))
}

/// Writes `FORMAT` and its copy if their contents are wrong. `FORMAT` is written first: a copy alone looks like a lost `FORMAT`.
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

/// A folder is durable when its name in the parent folder is. An interrupted start may have created some of the parents, so all are synced.
/// Folders that this process may not read were not created by Whimbrel.
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

/// The secret of an existing folder, from `FORMAT` or its copy; `None` if the folder is still to be created.
pub(crate) fn read_format(disk: &dyn Disk, path: &Path) -> Result<StoredFormat, OpenError> {
    let format = path.join(FORMAT_FILE);
    if let Some(found) =
        read_or_fallback(disk, &format, Fallback::Copy(&copy_of(&format)), |contents| parse_format(path, contents))?
    {
        return Ok(Some(found));
    }
    // A start that was interrupted before it wrote FORMAT leaves only the lock and an unfinished FORMAT.
    let names = disk.list(path).map_err(OpenError::io(format!("listing the data folder {}", path.display())))?;
    let is_left_over = |name: &String| name == LOCK_FILE || name == "FORMAT.new";
    if names.iter().all(is_left_over) { Ok(None) } else { Err(OpenError::NotOurs(path.to_owned())) }
}

fn format_contents(secret: FolderSecret) -> String {
    let FolderSecret(number) = secret;
    let body = format!("{FORMAT_PREFIX}{FOLDER_FORMAT}\n{SECRET_PREFIX}{number:016x}\n");
    let checksum = crc(body.as_bytes());
    format!("{body}{CHECKSUM_PREFIX}{checksum:08x}\n")
}

/// A secret is used only with a correct checksum: with a wrong one, every batch would look foreign. The same holds for the number of
/// another format. Only the first format has no checksum.
pub(crate) fn parse_format(path: &Path, contents: &[u8]) -> Result<FolderSecret, ContentsError> {
    let damaged = |why: &str| ContentsError::Damaged(why.to_owned());
    let text = String::from_utf8_lossy(contents);
    let mut lines = text.lines();
    let Some(version) = lines.next().and_then(|line| line.trim_end().strip_prefix(FORMAT_PREFIX)) else {
        return Err(damaged("it does not begin as the FORMAT of a Whimbrel data folder does"));
    };
    if version.parse() != Ok(FOLDER_FORMAT) {
        let checksum = text.trim_end().rsplit_once(CHECKSUM_PREFIX);
        let is_sound = match checksum {
            Some((body, stated)) => u32::from_str_radix(stated, 16) == Ok(crc(body.as_bytes())),
            None => lines.next().is_none(),
        };
        if !is_sound {
            return Err(damaged("its checksum is wrong"));
        }
        let found = version.chars().take(20).collect();
        let other = OpenError::OtherFormat { path: path.to_owned(), found, known: FOLDER_FORMAT };
        return Err(ContentsError::Refused(other));
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
    fn a_folder_of_the_previous_format_is_rejected_by_its_number() {
        let refused = parse_format(Path::new("data"), b"whimbrel data folder, format 1\n");
        let Err(ContentsError::Refused(OpenError::OtherFormat { found, known: 2, .. })) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(found, "1");
    }

    #[test]
    fn the_checksum_distinguishes_a_later_format_from_a_damaged_number() {
        let body = format!("{FORMAT_PREFIX}3\n{SECRET_PREFIX}{:016x}\nmore\n", SECRET.0);
        let later = format!("{body}{CHECKSUM_PREFIX}{:08x}\n", crc(body.as_bytes()));
        assert!(matches!(parse_format(Path::new("data"), later.as_bytes()), Err(ContentsError::Refused(_))));
        let damaged = format_contents(SECRET).replace("format 2", "format 3");
        assert!(matches!(parse_format(Path::new("data"), damaged.as_bytes()), Err(ContentsError::Damaged(_))));
    }
}
