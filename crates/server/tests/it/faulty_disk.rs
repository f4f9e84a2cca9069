//! A server whose disk fails as the test says: calls of its process are intercepted by a preloaded library, `tests/faults/disk.c`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::server::Server;

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

    /// The data folder of the server.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("whimbrel-data")
    }

    /// Injects these faults from now on, and no others: `<call> <part of a path> <effect>` each.
    pub fn inject(&self, rules: &[String]) {
        // Replaced whole, so that no half of it is read.
        let new = self.folder.path().join("disk-rules.new");
        std::fs::write(&new, rules.join("\n")).unwrap();
        std::fs::rename(&new, self.rules()).unwrap();
    }

    pub fn heal(&self) {
        self.inject(&[]);
    }

    pub fn start(&self, settings: &[&str]) -> Server {
        let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let environment: [(&str, OsString); 2] =
            [("LD_PRELOAD", self.library().into()), ("FAULT_DISK_RULES", self.rules().into())];
        Server::start_with(self.folder.path(), &arguments, &environment)
    }
}
