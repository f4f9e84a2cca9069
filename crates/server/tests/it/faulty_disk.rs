//! A server whose disk fails as the test specifies: a preloaded library, `tests/faults/disk.c`, intercepts the calls of its process.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::random::Random;
use super::server::{Server, set};

/// Bytes of a note's header in the undo file, and the kinds of notes: see `disk.c`.
const NOTE_BYTES: usize = 32;
const NOTE_WRITE: u32 = 1;
const NOTE_SYNC: u32 = 2;

pub struct FaultyDisk {
    folder: TempDir,
}

impl FaultyDisk {
    pub fn new() -> Self {
        let disk = Self { folder: tempfile::tempdir().unwrap() };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/disk.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(disk.library()).arg(source).arg("-ldl");
        assert!(compiler.status().unwrap().success(), "the C compiler failed");
        disk.heal();
        disk
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("disk.so")
    }

    fn rules(&self) -> PathBuf {
        self.folder.path().join("disk-rules")
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("whimbrel-data")
    }

    /// Injects these faults from now on, and no others: `<call> <part of a path> <effect>` each.
    pub fn inject(&self, rules: &[String]) {
        // Replaced atomically, so that the library never reads half of it.
        let new = self.folder.path().join("disk-rules.new");
        std::fs::write(&new, rules.join("\n")).unwrap();
        std::fs::rename(&new, self.rules()).unwrap();
    }

    pub fn heal(&self) {
        self.inject(&[]);
    }

    pub fn start(&self, settings: &[&str]) -> Server {
        Server::start_with(self.folder.path(), &set(settings), &self.environment())
    }

    /// Like [`Self::start`], with notes of every write, so that [`Self::cut_power`] can revert unsynced ones.
    pub fn start_noting(&self, settings: &[&str]) -> Server {
        let _ = std::fs::remove_file(self.undo());
        let mut environment = self.environment();
        environment.push(("FAULT_DISK_UNDO", self.undo().into()));
        environment.push(("FAULT_DISK_UNDO_PATH", "/whimbrel-data/".into()));
        Server::start_with(self.folder.path(), &set(settings), &environment)
    }

    fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![("LD_PRELOAD", self.library().into()), ("FAULT_DISK_RULES", self.rules().into())]
    }

    fn undo(&self) -> PathBuf {
        self.folder.path().join("disk-undo")
    }

    /// Reverts some of the writes that were not synced when the server was killed, as a power cut would. Returns their number.
    pub fn cut_power(&self, random: &mut Random) -> usize {
        let notes = std::fs::read(self.undo()).unwrap_or_default();
        let lost = unsynced(&notes);
        let mut taken_back = 0;
        for write in lost.iter().rev() {
            if random.one_in(2) && write.take_back() {
                taken_back += 1;
            }
        }
        taken_back
    }
}

/// A fault that a log or a store recovers from by itself or with a restart, at one of these places. A failed write or sync of the log
/// itself closes it until a restart.
pub fn passing_fault(random: &mut Random, places: &[&str]) -> String {
    let place = places[random.below(places.len() as u64) as usize];
    let (call, effect) = match random.below(6) {
        0 => ("write", "ENOSPC"),
        1 => ("write", "short"),
        2 => ("sync", "EIO"),
        3 => ("sync", "delay=200"),
        4 => ("write", "once:EIO"),
        _ => ("sync", "once:EIO"),
    };
    format!("{call} {place} {effect}")
}

/// A write that was not synced.
struct Unsynced<'a> {
    path: &'a Path,
    position: u64,
    size_before: u64,
    old: &'a [u8],
}

impl Unsynced<'_> {
    /// Restores the old bytes, and zeros beyond the old end. Returns `false` if the file no longer exists.
    fn take_back(&self) -> bool {
        let Ok(file) = File::options().write(true).open(self.path) else { return false };
        let end = file.metadata().unwrap().len();
        let behind = self.position.max(self.size_before);
        if end > behind && self.old.is_empty() {
            file.write_all_at(&vec![0; (end - behind) as usize], behind).unwrap();
        }
        file.write_all_at(self.old, self.position).unwrap();
        true
    }
}

fn unsynced(notes: &[u8]) -> Vec<Unsynced<'_>> {
    let mut writes: Vec<Unsynced<'_>> = Vec::new();
    let mut rest = notes;
    while let Some((head, after)) = rest.split_at_checked(NOTE_BYTES) {
        let long = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap());
        let short = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let (path_bytes, bytes) = (short(4) as usize, long(24) as usize);
        let Some((path, after)) = after.split_at_checked(path_bytes) else { break };
        let Some((old, after)) = after.split_at_checked(bytes) else { break };
        let path = Path::new(std::str::from_utf8(path).unwrap());
        match short(0) {
            NOTE_WRITE => writes.push(Unsynced { path, position: long(8), size_before: long(16), old }),
            NOTE_SYNC => writes.retain(|write| write.path != path),
            _ => writes.clear(),
        }
        rest = after;
    }
    writes
}
