//! The journal: one sequence of frames for all partitions, in preallocated files that are used again and again.
//!
//! A frame is written, synced, and only then acknowledged; the next one is written after that. Files are slots: which frames
//! one holds is said by its header, not by its name. A slot is used again when a checkpoint covers all its frames. What an
//! earlier life of a slot left behind never passes for a new frame: its generation or its sequence number is too low.

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

pub(crate) struct Journal {
    slots: Arc<Slots>,
    generation: u64,
    next_sequence: u64,
    /// Files with frames that no checkpoint covers, oldest first; the last one is being written.
    used: VecDeque<UsedSlot>,
    /// Where the next frame goes in the last file.
    position: u64,
}

/// A slot that is not in use.
pub(crate) struct Slot {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

struct UsedSlot {
    slot: Slot,
    /// Of the last frame in it.
    last_sequence: u64,
}

/// The slots that are not in use, shared with whoever makes them ahead of time.
pub(crate) struct Slots {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    file_bytes: u64,
    inner: Mutex<SlotsInner>,
}

struct SlotsInner {
    free: Vec<Slot>,
    made: usize,
}

pub(crate) enum WriteError {
    /// There is no slot and no room to make one. Nothing was written.
    NoRoom(io::Error),
    /// The disk failed; what is on it is not known.
    Failed(io::Error),
}

impl Slots {
    /// Takes stock of the slots that are there. Those in use by frames that must be kept are taken out with [`Slots::claim`].
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
            free.push(Slot { path, file });
        }
        // One whose maker was killed has the right length and perhaps no lasting name.
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

    /// Makes a new slot, zeroed and durable, which takes its time: a journal that is about to need one asks in advance.
    pub fn make(&self) -> io::Result<()> {
        let number = {
            let mut inner = self.lock();
            inner.made += 1;
            inner.made - 1
        };
        let path = self.folder.join(format!("{number:04}{SUFFIX}"));
        match self.fill(&path) {
            Ok(file) => {
                self.lock().free.push(Slot { path, file });
                Ok(())
            }
            Err(error) => {
                // A half-made slot would hold the last of the room; it has no frames.
                self.disk.remove_file(&path).ok();
                Err(error)
            }
        }
    }

    /// Zeros are really written: space that is only reserved costs a change of the file system's metadata at each first write,
    /// and with it a slower sync.
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

    fn take(&self) -> io::Result<Slot> {
        loop {
            if let Some(slot) = self.lock().free.pop() {
                // A slot of other settings, or one whose making was cut off, is made anew in its place.
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

impl Journal {
    /// A journal that begins a generation after `last_sequence`. The generation is durable before this is called.
    pub fn begin(slots: Arc<Slots>, generation: u64, last_sequence: u64) -> Self {
        Self { slots, generation, next_sequence: last_sequence + 1, used: VecDeque::new(), position: u64::MAX }
    }

    /// Bytes of the files that are in use.
    pub fn used_bytes(&self) -> u64 {
        self.used.len() as u64 * self.slots.file_bytes
    }

    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Writes one frame and syncs it. `frame` has room for the header at its front and the batches after it; it comes back with
    /// the header filled in. Returns the frame's sequence number.
    pub fn write(&mut self, frame: &mut Vec<u8>, batches: u32) -> Result<u64, WriteError> {
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
        written.map_err(WriteError::Failed)?;
        used.last_sequence = sequence;
        self.position += aligned;
        self.next_sequence += 1;
        Ok(sequence)
    }

    fn make_room_for(&mut self, aligned: u64) -> Result<(), WriteError> {
        if self.position.saturating_add(aligned) <= self.slots.file_bytes {
            return Ok(());
        }
        let slot = self.slots.take().map_err(WriteError::NoRoom)?;
        let mut block = [0; FRAME_ALIGNMENT];
        let header = JournalHeader::new(self.generation, self.next_sequence);
        block[..size_of::<JournalHeader>()].copy_from_slice(header.as_bytes());
        // Not synced here: the first frame's sync covers it, and without a frame nobody misses it.
        slot.file.write_at(&block, 0).map_err(WriteError::Failed)?;
        self.used.push_back(UsedSlot { slot, last_sequence: self.next_sequence });
        self.position = FRAME_ALIGNMENT as u64;
        Ok(())
    }

    /// Gives back the files whose frames a durable checkpoint covers. The one being written stays.
    pub fn trim(&mut self, covered: u64) {
        while self.used.len() > 1 && self.used[0].last_sequence <= covered {
            let used = self.used.pop_front().expect("there is more than one");
            self.slots.lock().free.push(used.slot);
        }
    }
}
