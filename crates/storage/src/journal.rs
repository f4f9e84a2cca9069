//! The journal: one sequence of frames for all partitions, in preallocated files that are reused.
//!
//! A frame is written, synced, and only then acknowledged; the next one is written after that. Files are slots: the header of a slot
//! identifies its frames, not its name. A slot is reused when a checkpoint covers all its frames. Old frames in a reused slot never pass
//! for new ones: their generation or sequence number is too low.

mod recovery;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use zerocopy::IntoBytes;

use crate::disk::{Disk, DiskFile};
use crate::format::{FRAME_ALIGNMENT, FRAME_HEADER_LEN, FRAME_MAGIC, FrameHeader, JournalHeader, align, seal};

pub(crate) use recovery::{FoundFrame, JournalScan, is_begun, scan};

const SUFFIX: &str = ".journal";
const PREALLOCATION_CHUNK: usize = 1 << 20;

pub(crate) struct LogJournal {
    slots: Arc<JournalSlots>,
    generation: u64,
    next_sequence: u64,
    /// Files with frames that no checkpoint covers, oldest first. The last one is being written.
    used: VecDeque<UsedSlot>,
    /// The position of the next frame in the last file.
    position: u64,
}

/// A slot that is not in use.
pub(crate) struct JournalSlot {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

struct UsedSlot {
    slot: JournalSlot,
    /// The sequence number of the last frame in the slot.
    last_sequence: u64,
}

/// The free slots. The keeper shares them to create slots in advance.
pub(crate) struct JournalSlots {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    file_bytes: u64,
    inner: Mutex<SlotsInner>,
}

struct SlotsInner {
    free: Vec<JournalSlot>,
    made: usize,
}

pub(crate) enum FrameWriteError {
    /// There is no free slot, and no space to create one. Nothing was written.
    NoRoom(io::Error),
    /// The disk failed. Its contents are unknown.
    Failed(io::Error),
}

impl JournalSlots {
    /// Opens the existing slots. All are free: a start makes a checkpoint, which covers their frames, before the journal begins.
    pub fn open(disk: Arc<dyn Disk>, folder: &Path, file_bytes: u64) -> io::Result<Self> {
        disk.create_dirs(folder)?;
        let mut names: Vec<String> =
            disk.list(folder)?.into_iter().filter(|name| slot_number(name).is_some()).collect();
        names.sort();
        let made = names.iter().filter_map(|name| slot_number(name)).max().map_or(0, |number| number + 1);
        let mut free = Vec::new();
        for name in names {
            let path = folder.join(name);
            let file = disk.open(&path)?;
            free.push(JournalSlot { path, file });
        }
        // A slot whose creator was killed has the right length, but its name may not be durable.
        disk.sync_dir(folder)?;
        let inner = Mutex::new(SlotsInner { free, made });
        Ok(Self { disk, folder: folder.to_owned(), file_bytes, inner })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SlotsInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn free(&self) -> usize {
        self.lock().free.len()
    }

    /// Creates a new slot, zeroed and durable. This is slow, so the keeper does it before the journal needs the slot.
    pub fn make(&self) -> io::Result<()> {
        let number = {
            let mut inner = self.lock();
            inner.made += 1;
            inner.made - 1
        };
        let path = self.folder.join(format!("{number:04}{SUFFIX}"));
        match self.fill(&path) {
            Ok(file) => {
                self.lock().free.push(JournalSlot { path, file });
                Ok(())
            }
            Err(error) => {
                // A partly written slot would take the last free space. It has no frames.
                self.disk.remove_file(&path).ok();
                Err(error)
            }
        }
    }

    /// Writes zeros. With space that is only reserved, each first write changes the metadata of the file system, and its sync is slower.
    fn fill(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(path)?;
        let zeros = vec![0; PREALLOCATION_CHUNK.min(self.file_bytes as usize)];
        let mut position = 0;
        while position < self.file_bytes {
            let len = zeros.len().min((self.file_bytes - position) as usize);
            file.write_at(&zeros[..len], position)?;
            position += len as u64;
        }
        file.sync()?;
        self.disk.sync_dir(&self.folder)?;
        Ok(file)
    }

    fn take(&self) -> io::Result<JournalSlot> {
        loop {
            if let Some(slot) = self.lock().free.pop() {
                // A slot of another length was interrupted or has other settings. A new one replaces it.
                if slot.file.len()? != self.file_bytes {
                    self.disk.remove_file(&slot.path)?;
                    continue;
                }
                return Ok(slot);
            }
            self.make()?;
        }
    }
}

fn slot_number(name: &str) -> Option<usize> {
    name.strip_suffix(SUFFIX)?.parse().ok()
}

impl LogJournal {
    /// Begins a generation after `last_sequence`. The generation must be durable before this call.
    pub fn begin(slots: Arc<JournalSlots>, generation: u64, last_sequence: u64) -> Self {
        Self { slots, generation, next_sequence: last_sequence + 1, used: VecDeque::new(), position: u64::MAX }
    }

    /// Bytes of the files that are in use.
    pub fn used_bytes(&self) -> u64 {
        self.used.len() as u64 * self.slots.file_bytes
    }

    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Writes one frame and syncs it. `frame` has space for the header at its front and the batches after it. The call fills in the header.
    /// Returns the sequence number of the frame.
    pub fn write(&mut self, frame: &mut Vec<u8>, batches: u32) -> Result<u64, FrameWriteError> {
        let sequence = self.next_sequence;
        let header = FrameHeader {
            magic: FRAME_MAGIC,
            crc: 0.into(),
            generation: self.generation.into(),
            sequence: sequence.into(),
            // Each frame is synced before the next one is written.
            synced_upto: (sequence - 1).into(),
            body_len: ((frame.len() - FRAME_HEADER_LEN) as u32).into(),
            batches: batches.into(),
        };
        frame[..FRAME_HEADER_LEN].copy_from_slice(header.as_bytes());
        seal(frame);
        let len = frame.len();
        let aligned = align(len as u64);
        self.make_room_for(aligned)?;
        let used = self.used.back_mut().expect("making room leaves a file to write to");
        frame.resize(aligned as usize, 0);
        let written = used.slot.file.write_at(frame, self.position).and_then(|()| used.slot.file.sync());
        frame.truncate(len);
        written.map_err(FrameWriteError::Failed)?;
        used.last_sequence = sequence;
        self.position += aligned;
        self.next_sequence += 1;
        Ok(sequence)
    }

    fn make_room_for(&mut self, aligned: u64) -> Result<(), FrameWriteError> {
        if self.position.saturating_add(aligned) <= self.slots.file_bytes {
            return Ok(());
        }
        let slot = self.slots.take().map_err(FrameWriteError::NoRoom)?;
        let mut block = [0; FRAME_ALIGNMENT];
        let header = JournalHeader::new(self.generation, self.next_sequence);
        block[..size_of::<JournalHeader>()].copy_from_slice(header.as_bytes());
        // Not synced here: the sync of the first frame covers the header, and without a frame the header is not needed.
        slot.file.write_at(&block, 0).map_err(FrameWriteError::Failed)?;
        self.used.push_back(UsedSlot { slot, last_sequence: self.next_sequence });
        self.position = FRAME_ALIGNMENT as u64;
        Ok(())
    }

    /// Frees the files whose frames a durable checkpoint covers. The file that is being written stays.
    pub fn trim(&mut self, covered: u64) {
        while self.used.len() > 1 && self.used[0].last_sequence <= covered {
            let used = self.used.pop_front().expect("there is more than one");
            self.slots.lock().free.push(used.slot);
        }
    }
}
