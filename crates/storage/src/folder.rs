//! The data folder: its format, the secret that tells its batches from a user's bytes, and the lock that keeps a second process
//! out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, read_whole, replace_file};
use crate::error::OpenError;
use crate::format::{FolderSecret, crc};

/// The version of everything in the folder. A folder of another version is refused, not guessed at.
pub const FOLDER_FORMAT: u32 = 2;

const FORMAT_FILE: &str = "FORMAT";
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
    _lock: Box<dyn Send + Sync>,
}

impl DataFolder {
    /// Opens the folder, making it where it is not there. A folder that has files and no `FORMAT` is somebody else's.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<Self, OpenError> {
        let io = |what: &str| OpenError::io(format!("{what} {}", path.display()));
        disk.create_dirs(path).map_err(io("making the data folder"))?;
        // Looked at twice: nothing may be changed in a folder that is not ours, not even by a lock, and before we had the lock
        // another process may have made the folder, and filled it under its secret.
        read_format(&*disk, path)?;
        let lock = disk.lock(&path.join(LOCK_FILE)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => OpenError::InUse(path.to_owned()),
            _ => OpenError::io(format!("locking {}", path.display()))(error),
        })?;
        let secret = match read_format(&*disk, path)? {
            Some(secret) => {
                // Its writer may have been killed before its name was durable, and nothing may be in the folder without it.
                disk.sync_dir(path).map_err(io("syncing"))?;
                secret
            }
            None => {
                sync_names_of(&*disk, path).map_err(io("syncing the folders above"))?;
                let secret = FolderSecret(disk.random());
                let contents = format_contents(secret);
                replace_file(&*disk, &path.join(FORMAT_FILE), contents.as_bytes())
                    .map_err(|error| io("writing the format of")(error.into()))?;
                secret
            }
        };
        Ok(Self { path: path.to_owned(), disk, secret, _lock: lock })
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

/// The secret of a folder that is there; `None` where it is still to be made.
fn read_format(disk: &dyn Disk, path: &Path) -> Result<Option<FolderSecret>, OpenError> {
    let io = |what: &str| OpenError::io(format!("{what} {}", path.display()));
    let file = path.join(FORMAT_FILE);
    if let Some(contents) = read_whole(disk, &file).map_err(io("reading the format of"))? {
        return parse_format(path, &contents).map(Some);
    }
    // A start that was cut off before it wrote FORMAT leaves nothing else than the lock or an unfinished FORMAT.
    let names = disk.list(path).map_err(io("listing the data folder"))?;
    let is_left_over = |name: &String| name == LOCK_FILE || name == "FORMAT.new";
    if names.iter().all(is_left_over) { Ok(None) } else { Err(OpenError::NotOurs(path.to_owned())) }
}

fn format_contents(secret: FolderSecret) -> String {
    let FolderSecret(number) = secret;
    let told = format!("{FORMAT_PREFIX}{FOLDER_FORMAT}\n{SECRET_PREFIX}{number:016x}\n");
    let checksum = crc(told.as_bytes());
    format!("{told}{CHECKSUM_PREFIX}{checksum:08x}\n")
}

/// With a wrong secret every batch would be taken for somebody else's, so it is not believed without its checksum.
fn parse_format(path: &Path, contents: &[u8]) -> Result<FolderSecret, OpenError> {
    let text = String::from_utf8_lossy(contents);
    let mut lines = text.lines();
    let Some(version) = lines.next().and_then(|line| line.trim_end().strip_prefix(FORMAT_PREFIX)) else {
        return Err(OpenError::NotOurs(path.to_owned()));
    };
    if version.parse() != Ok(FOLDER_FORMAT) {
        let found = version.chars().take(20).collect();
        return Err(OpenError::OtherFormat { path: path.to_owned(), found, known: FOLDER_FORMAT });
    }
    let number = lines.next().and_then(|line| u64::from_str_radix(line.strip_prefix(SECRET_PREFIX)?, 16).ok());
    let secret = number.map(FolderSecret).filter(|secret| format_contents(*secret).trim_end() == text.trim_end());
    secret.ok_or_else(|| OpenError::Unreadable {
        path: path.join(FORMAT_FILE),
        why: "its secret or its checksum is wrong".to_owned(),
    })
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
        assert!(matches!(refused, Err(OpenError::OtherFormat { found, known: 2, .. }) if found == "1"));
    }
}
