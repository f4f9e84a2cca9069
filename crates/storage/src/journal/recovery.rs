//! Finds the frames again after a crash, and distinguishes a torn tail from damage.
//!
//! The scan walks all slots of the generation for frames with a correct CRC. They must be dense from the checkpoint on. A missing frame is
//! **damage** if a later frame records that it was synced. Otherwise it is the **torn tail**, an unacknowledged write, and the journal ends
//! before it.

use std::io;
use std::path::Path;

use bytes::Bytes;

use super::slot_number;
use crate::disk::{Disk, DiskFile, read_exact_at};
use crate::error::LogDamage;
use crate::format::{FRAME_ALIGNMENT, FRAME_HEADER_LEN, FrameHeader, JournalHeader, align};
use crate::settings::FRAME_BYTES_MAX;

/// Bytes of one read while searching for the next frame.
const SEARCH_CHUNK: usize = 1 << 20;

/// A frame with a correct CRC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundFrame {
    pub sequence: u64,
    synced_upto: u64,
    pub file: String,
    pub position: u64,
    pub len: usize,
}

/// The frames to replay, and the damage.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalScan {
    /// In order. Dense except at the gaps in `damage`.
    pub frames: Vec<FoundFrame>,
    /// Acknowledged frames that cannot be read: the first and last missing number, and the place.
    pub damage: Vec<(u64, u64, LogDamage)>,
    /// The frames in `damage` whose headers can be read, with their place and the numbers in the headers. In order.
    pub broken: Vec<FoundFrame>,
    /// Whether remains of a torn tail were found and cut.
    pub torn: bool,
}

/// Whether the journal was ever written to. The first checkpoint is durable before that.
pub(crate) fn is_begun(disk: &dyn Disk, folder: &Path) -> io::Result<bool> {
    for name in slot_names(disk, folder)? {
        let file = disk.open(&folder.join(&name))?;
        if file.len()? >= FRAME_ALIGNMENT as u64
            && JournalHeader::read(&read_exact_at(&*file, 0, FRAME_ALIGNMENT)?).is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn slot_names(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = disk.list(folder)?.into_iter().filter(|name| slot_number(name).is_some()).collect();
    names.sort();
    Ok(names)
}

/// Finds the frames of `generation` after `covered`.
pub(crate) fn scan(disk: &dyn Disk, folder: &Path, generation: u64, covered: u64) -> io::Result<JournalScan> {
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for name in slot_names(disk, folder)? {
        let file = disk.open(&folder.join(&name))?;
        walk(&*file, &name, generation, covered, &mut found, &mut broken)?;
    }
    for frames in [&mut found, &mut broken] {
        frames.sort_by_key(|frame| frame.sequence);
        frames.dedup_by_key(|frame| frame.sequence);
    }
    let mut scan = judge(found, covered);
    let last = scan.frames.last().map_or(covered, |frame| frame.sequence);
    scan.torn |= broken.last().is_some_and(|frame| frame.sequence > last);
    for frame in broken {
        let is_in = |(from, to, _): &&mut (u64, u64, LogDamage)| (*from..=*to).contains(&frame.sequence);
        if let Some((_, _, damage)) = scan.damage.iter_mut().find(is_in) {
            (damage.file, damage.position) = (frame.file.clone(), frame.position);
            scan.broken.push(frame);
        }
    }
    Ok(scan)
}

/// Selects the frames to replay, and finds the gaps.
fn judge(found: Vec<FoundFrame>, covered: u64) -> JournalScan {
    let known_synced = found.iter().map(|frame| frame.synced_upto).max().unwrap_or(0);
    let mut scan = JournalScan::default();
    let mut expected = covered + 1;
    for frame in found {
        if frame.sequence > expected {
            if expected > known_synced {
                scan.torn = true;
                break;
            }
            let last = (frame.sequence - 1).min(known_synced);
            let damage = LogDamage {
                what: format!("journal frames {expected} to {last} cannot be read (before frame {})", frame.sequence),
                file: frame.file.clone(),
                position: frame.position,
                resume_at: None,
            };
            scan.damage.push((expected, last, damage));
        }
        expected = frame.sequence + 1;
        scan.frames.push(frame);
    }
    if !scan.torn && known_synced >= expected {
        let last = scan.frames.last();
        let damage = LogDamage {
            what: format!("journal frames {expected} to {known_synced} cannot be read"),
            file: last.map_or_else(String::new, |frame| frame.file.clone()),
            position: last.map_or(0, |frame| frame.position + align(frame.len as u64)),
            resume_at: None,
        };
        scan.damage.push((expected, known_synced, damage));
    }
    scan
}

/// Adds the frames of one file: the whole ones, and those with a readable header that are not whole.
fn walk(
    file: &dyn DiskFile,
    name: &str,
    generation: u64,
    covered: u64,
    found: &mut Vec<FoundFrame>,
    broken: &mut Vec<FoundFrame>,
) -> io::Result<()> {
    let len = file.len()?;
    if len < FRAME_ALIGNMENT as u64 {
        return Ok(());
    }
    let header = JournalHeader::read(&read_exact_at(file, 0, FRAME_ALIGNMENT)?);
    // If the header has another generation, the slot is not used by this one. If it is unreadable, each frame is checked by its own header.
    if header.is_some_and(|header| header.generation.get() != generation) {
        return Ok(());
    }
    let mut position = FRAME_ALIGNMENT as u64;
    let mut chunk = SearchWindow::default();
    while position + FRAME_HEADER_LEN as u64 <= len {
        let Some(header) = FrameHeader::read(chunk.at(file, position, len)?) else {
            position += FRAME_ALIGNMENT as u64;
            continue;
        };
        let frame_len = header.frame_len();
        let can_be = frame_len <= FRAME_BYTES_MAX + FRAME_HEADER_LEN && position + frame_len as u64 <= len;
        let is_ours = can_be && header.generation.get() == generation;
        let frame = FoundFrame {
            sequence: header.sequence.get(),
            synced_upto: header.synced_upto.get(),
            file: name.to_owned(),
            position,
            len: frame_len,
        };
        let is_new = frame.sequence > covered;
        if !is_ours || !header.is_whole(&read_exact_at(file, position, frame_len)?) {
            if is_ours && is_new {
                broken.push(frame);
            }
            position += FRAME_ALIGNMENT as u64;
            continue;
        }
        if is_new {
            found.push(frame);
        }
        position += align(frame_len as u64);
    }
    Ok(())
}

/// A window on the file, so that a search does not read block by block.
#[derive(Default)]
struct SearchWindow {
    from: u64,
    bytes: Vec<u8>,
}

impl SearchWindow {
    fn at(&mut self, file: &dyn DiskFile, position: u64, file_len: u64) -> io::Result<&[u8]> {
        let end = self.from + self.bytes.len() as u64;
        if position < self.from || position + FRAME_HEADER_LEN as u64 > end {
            self.bytes = vec![0; SEARCH_CHUNK.min(file_len.saturating_sub(position) as usize)];
            let read = file.read_at(&mut self.bytes, position)?;
            self.bytes.truncate(read);
            self.from = position;
        }
        Ok(&self.bytes[(position - self.from) as usize..])
    }
}

impl FoundFrame {
    /// Makes the frame and the header of its file durable: without the header the frame is not found. Both are written again, because an
    /// earlier failed sync may have dropped them from the cache.
    pub fn secure(&self, disk: &dyn Disk, folder: &Path) -> io::Result<()> {
        let file = disk.open(&folder.join(&self.file))?;
        for (position, len) in [(0, FRAME_ALIGNMENT), (self.position, self.len)] {
            let bytes = read_exact_at(&*file, position, len)?;
            file.write_at(&bytes, position)?;
        }
        file.sync()
    }

    /// The damage of a wrong batch in a frame with a correct CRC.
    pub fn bad_batch(&self) -> LogDamage {
        LogDamage {
            what: format!("a batch in journal frame {} is wrong although the frame is not", self.sequence),
            file: self.file.clone(),
            position: self.position,
            resume_at: None,
        }
    }

    /// The batches of the frame, one after the other.
    pub fn body(&self, disk: &dyn Disk, folder: &Path) -> io::Result<Bytes> {
        let file = disk.open(&folder.join(&self.file))?;
        let frame = Bytes::from(read_exact_at(&*file, self.position, self.len)?);
        Ok(frame.slice(FRAME_HEADER_LEN..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(sequence: u64, synced_upto: u64) -> FoundFrame {
        FoundFrame { sequence, synced_upto, file: "0000.journal".into(), position: sequence * 4096, len: 100 }
    }

    fn sequences(scan: &JournalScan) -> Vec<u64> {
        scan.frames.iter().map(|frame| frame.sequence).collect()
    }

    #[test]
    fn a_dense_run_is_replayed_whole() {
        let scan = judge(vec![frame(5, 4), frame(6, 5)], 4);
        assert_eq!((sequences(&scan), scan.damage.len(), scan.torn), (vec![5, 6], 0, false));
    }

    #[test]
    fn a_frame_that_was_known_synced_and_is_missing_is_damage() {
        let scan = judge(vec![frame(5, 4), frame(7, 6), frame(8, 7)], 4);
        assert_eq!(sequences(&scan), [5, 7, 8]);
        assert_eq!((scan.damage[0].0, scan.damage[0].1), (6, 6));
    }

    #[test]
    fn a_missing_frame_that_was_not_known_synced_ends_the_journal() {
        let scan = judge(vec![frame(5, 4), frame(7, 5)], 4);
        assert_eq!((sequences(&scan), scan.damage.len(), scan.torn), (vec![5], 0, true));
    }

    #[test]
    fn the_first_frame_after_the_checkpoint_can_be_damaged_too() {
        let scan = judge(vec![frame(6, 5)], 4);
        assert_eq!((sequences(&scan), scan.damage.len()), (vec![6], 1));
    }
}
