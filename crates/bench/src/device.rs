//! The sync rate of the device: 4 KiB blocks written and fdatasynced on allocated space. It varies from minute to minute, so it is
//! measured between the rounds and in the same folder.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::histogram::Histogram;

const BLOCK: usize = 4096;
/// Blocks that are overwritten in turn.
const BLOCKS: usize = 1024;
const SYNCS_MAX: usize = 2000;

pub struct StorageDevice {
    file: File,
    block: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Probe {
    pub p50: Duration,
    pub p99: Duration,
}

impl StorageDevice {
    /// Creates and fills the file, so that later writes change no metadata.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join("device-probe");
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
        for block in 0..BLOCKS {
            file.write_all_at(&[0; BLOCK], (block * BLOCK) as u64)?;
        }
        file.sync_all()?;
        Ok(Self { file, block: 0 })
    }

    /// Syncs one block after the other for about this duration.
    pub fn probe(&mut self, about: Duration) -> io::Result<Probe> {
        let mut histogram = Histogram::default();
        let began = Instant::now();
        for round in 0..SYNCS_MAX {
            if began.elapsed() >= about {
                break;
            }
            let sync_began = Instant::now();
            self.file.write_all_at(&[round as u8; BLOCK], (self.block * BLOCK) as u64)?;
            self.file.sync_data()?;
            histogram.record(sync_began.elapsed());
            self.block = (self.block + 1) % BLOCKS;
        }
        Ok(Probe { p50: histogram.quantile(0.5), p99: histogram.quantile(0.99) })
    }
}
