//! The contents of one file: as programs see them, and as they would be after a power loss.

use std::collections::BTreeSet;

use crate::rng::Rng;

/// The unit that a disk writes completely or not at all.
pub const SECTOR_BYTES: usize = 512;
/// The unit that the system caches, and writes back in any order.
pub const PAGE_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub struct FileContents {
    durable: Vec<u8>,
    current: Vec<u8>,
    /// The pages written since the last sync.
    dirty: BTreeSet<usize>,
    /// The shortest length since the last sync, if it is shorter than the durable length.
    cut_to: Option<usize>,
    /// A failed sync lost pages: the cache has them, the disk does not, and no call reports it.
    diverged: bool,
}

impl FileContents {
    pub fn len(&self) -> usize {
        self.current.len()
    }

    pub fn pages(&self) -> usize {
        self.current.len().div_ceil(PAGE_BYTES)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.current
    }

    pub fn read(&self, buffer: &mut [u8], position: usize) -> usize {
        let Some(there) = self.current.get(position..) else { return 0 };
        let len = there.len().min(buffer.len());
        buffer[..len].copy_from_slice(&there[..len]);
        len
    }

    pub fn write(&mut self, bytes: &[u8], position: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = position + bytes.len();
        if self.current.len() < end {
            set_len(&mut self.current, end);
        }
        self.current[position..end].copy_from_slice(bytes);
        self.dirty.extend(position / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
    }

    pub fn set_len(&mut self, len: usize) {
        if len < self.durable.len() {
            self.cut_to = Some(self.cut_to.map_or(len, |cut| cut.min(len)));
        }
        set_len(&mut self.current, len);
        self.dirty.retain(|page| page * PAGE_BYTES < len);
    }

    /// Makes all contents durable.
    pub fn sync(&mut self) {
        if let Some(cut) = self.cut_to.take() {
            self.durable.truncate(cut);
        }
        set_len(&mut self.durable, self.current.len());
        for page in std::mem::take(&mut self.dirty) {
            self.copy(page * PAGE_BYTES, PAGE_BYTES);
        }
    }

    /// A failed sync: some pages reached the disk, the others never will, and the cache marks all of them as clean.
    pub fn lose(&mut self, rng: &mut Rng) {
        if let Some(cut) = self.cut_to.take() {
            self.durable.truncate(cut);
        }
        self.diverged = true;
        for page in std::mem::take(&mut self.dirty) {
            if rng.one_in(2) {
                let end = ((page + 1) * PAGE_BYTES).min(self.current.len());
                if self.durable.len() < end {
                    set_len(&mut self.durable, end);
                }
                self.copy(page * PAGE_BYTES, PAGE_BYTES);
            }
        }
    }

    fn copy(&mut self, from: usize, len: usize) {
        let end = (from + len).min(self.durable.len()).min(self.current.len());
        if from < end {
            self.durable[from..end].copy_from_slice(&self.current[from..end]);
        }
    }

    /// A power loss: each unsynced page is old, new, or a mix of both by sectors.
    pub fn settle(&mut self, rng: &mut Rng) {
        if self.dirty.is_empty() && self.cut_to.is_none() && self.durable.len() == self.current.len() && !self.diverged
        {
            return;
        }
        let nothing_happened = self.cut_to.is_some() && rng.one_in(3);
        if !nothing_happened {
            if let Some(cut) = self.cut_to {
                self.durable.truncate(cut);
            }
            let (short, long) = (self.durable.len() as u64, self.current.len() as u64);
            let len = match rng.below(3) {
                0 => short.min(long),
                1 => long,
                _ => rng.between(short.min(long), long),
            };
            let len = (len as usize).max(self.durable.len());
            set_len(&mut self.durable, len);
            for page in std::mem::take(&mut self.dirty) {
                let from = page * PAGE_BYTES;
                match rng.below(4) {
                    0 => {}
                    1 => self.copy(from, PAGE_BYTES),
                    2 => self.copy(from, rng.below(PAGE_BYTES as u64 / SECTOR_BYTES as u64) as usize * SECTOR_BYTES),
                    _ => {
                        let sectors = (from..from + PAGE_BYTES).step_by(SECTOR_BYTES);
                        sectors.filter(|_| rng.one_in(2)).collect::<Vec<_>>().into_iter().for_each(|sector| {
                            self.copy(sector, SECTOR_BYTES);
                        });
                    }
                }
            }
        }
        self.dirty.clear();
        self.cut_to = None;
        self.diverged = false;
        self.current.clone_from(&self.durable);
    }

    /// Changes bytes at rest, both on the disk and in the cache.
    pub fn tamper(&mut self, change: impl Fn(&mut [u8])) {
        change(&mut self.durable);
        change(&mut self.current);
    }
}

/// Like `Vec::resize`, which copies byte by byte in builds without optimisation.
fn set_len(bytes: &mut Vec<u8>, len: usize) {
    if len <= bytes.len() {
        bytes.truncate(len);
    } else {
        let mut longer = vec![0; len];
        longer[..bytes.len()].copy_from_slice(bytes);
        *bytes = longer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_bytes_stay_and_unsynced_ones_are_old_new_or_torn_by_sectors() {
        let (mut old, mut new, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let mut contents = FileContents::default();
            contents.write(&[1; 2 * PAGE_BYTES], 0);
            contents.sync();
            contents.write(&[2; PAGE_BYTES], 0);
            contents.settle(&mut Rng::new(seed));
            assert_eq!(contents.bytes()[PAGE_BYTES..], [1; PAGE_BYTES]);
            let sectors: Vec<&[u8]> = contents.bytes()[..PAGE_BYTES].chunks(SECTOR_BYTES).collect();
            assert!(sectors.iter().all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            match sectors.iter().filter(|sector| sector[0] == 2).count() {
                0 => old += 1,
                8 => new += 1,
                _ => torn += 1,
            }
        }
        assert!(old > 20 && new > 20 && torn > 20, "{old} {new} {torn}");
    }

    #[test]
    fn a_length_that_was_not_synced_may_be_the_old_one() {
        let lens: BTreeSet<usize> = (0..50)
            .map(|seed| {
                let mut contents = FileContents::default();
                contents.write(&[1; 100], 0);
                contents.sync();
                contents.set_len(0);
                contents.write(&[2; 50], 0);
                contents.settle(&mut Rng::new(seed));
                contents.len()
            })
            .collect();
        assert!(lens.contains(&0) && lens.contains(&50) && lens.contains(&100), "{lens:?}");
    }

    #[test]
    fn pages_that_a_failed_sync_lost_are_in_the_cache_until_a_power_loss() {
        let lost = (0..50).filter(|seed| {
            let mut contents = FileContents::default();
            contents.write(&[1; PAGE_BYTES], 0);
            contents.sync();
            contents.write(&[2; PAGE_BYTES], 0);
            contents.lose(&mut Rng::new(*seed));
            contents.sync();
            assert_eq!(contents.bytes(), [2; PAGE_BYTES]);
            contents.settle(&mut Rng::new(*seed));
            contents.bytes()[0] == 1
        });
        assert!(lost.count() > 10);
    }
}
