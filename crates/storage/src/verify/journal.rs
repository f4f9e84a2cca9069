//! Checks each frame of the journal that no checkpoint covers, beside a server that continues to write.
//!
//! A running server appends frames and reuses journal files, so one scan proves nothing. A frame counts as damaged only if two scans miss
//! it, if it was synced before the second scan began, and if a checkpoint that is read after both does not cover it. The file of such a
//! frame was not written again in between.

use std::io;
use std::path::Path;

use bytes::Buf;

use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::error::LogDamage;
use crate::format::{FolderSecret, LogBatch};
use crate::journal::{FoundFrame, JournalScan, scan};

/// Attempts before the check gives up. An attempt fails if the server restarts or removes files.
const TRIES_MAX: usize = 5;

/// The outcome of a check of the journal.
pub(crate) enum FrameCheck {
    Checked(Vec<LogDamage>),
    /// The server restarted during each attempt.
    Unsettled,
}

pub(crate) fn check_journal(
    disk: &dyn Disk,
    folder: &Path,
    secret: FolderSecret,
    checkpoint: &dyn Fn() -> Option<Checkpoint>,
) -> io::Result<FrameCheck> {
    for _ in 0..TRIES_MAX {
        let Some(before) = checkpoint() else { return Ok(FrameCheck::Checked(Vec::new())) };
        let look = || scan(disk, folder, before.generation, before.sequence);
        let found = look().and_then(|first| {
            let bad = bad_batches(disk, folder, secret, &first.frames)?;
            if first.damage.is_empty() && bad.is_empty() {
                return Ok(None);
            }
            Ok(Some((first, look()?, bad)))
        });
        let (first, second, bad) = match found {
            Ok(Some(suspects)) => suspects,
            Ok(None) => return Ok(FrameCheck::Checked(Vec::new())),
            // A start replaces journal files of another length.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let Some(after) = checkpoint().filter(|after| after.generation == before.generation) else { continue };
        let mut damage = missing_in_both(&first, &second, after.sequence);
        damage.extend(bad.into_iter().filter(|(sequence, _)| *sequence > after.sequence).map(|(_, damage)| damage));
        return Ok(FrameCheck::Checked(damage));
    }
    Ok(FrameCheck::Unsettled)
}

fn missing_in_both(first: &JournalScan, second: &JournalScan, covered: u64) -> Vec<LogDamage> {
    let mut damage = Vec::new();
    for (from, to, _) in &first.damage {
        for (also_from, also_to, place) in &second.damage {
            let (from, to) = (*from.max(also_from).max(&(covered + 1)), *to.min(also_to));
            if from <= to {
                let what = format!("journal frames {from} to {to} cannot be read");
                damage.push(LogDamage { what, ..place.clone() });
            }
        }
    }
    damage
}

/// Damaged batches in sound frames, each with the number of its frame.
fn bad_batches(
    disk: &dyn Disk,
    folder: &Path,
    secret: FolderSecret,
    frames: &[FoundFrame],
) -> io::Result<Vec<(u64, LogDamage)>> {
    let mut bad = Vec::new();
    for frame in frames {
        let mut body = frame.body(disk, folder)?;
        while !body.is_empty() {
            let Ok(batch) = LogBatch::read(&body, secret) else {
                bad.push((frame.sequence, frame.bad_batch()));
                break;
            };
            body.advance(batch.bytes.len());
        }
    }
    Ok(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_with(damage: &[(u64, u64)]) -> JournalScan {
        let place = LogDamage { what: String::new(), file: "0000.journal".into(), position: 0, resume_at: None };
        let damage = damage.iter().map(|(from, to)| (*from, *to, place.clone())).collect();
        JournalScan { damage, ..JournalScan::default() }
    }

    fn texts(first: &[(u64, u64)], second: &[(u64, u64)], covered: u64) -> Vec<String> {
        missing_in_both(&scan_with(first), &scan_with(second), covered).into_iter().map(|damage| damage.what).collect()
    }

    #[test]
    fn a_frame_that_the_second_scan_finds_is_not_damaged() {
        assert_eq!(texts(&[(5, 9)], &[], 4), [""; 0]);
        assert_eq!(texts(&[(5, 5)], &[(6, 9)], 4), [""; 0]);
    }

    #[test]
    fn a_frame_that_a_checkpoint_covers_meanwhile_is_not_damaged() {
        assert_eq!(texts(&[(5, 9)], &[(5, 9)], 9), [""; 0]);
        assert_eq!(texts(&[(5, 9)], &[(5, 9)], 7), ["journal frames 8 to 9 cannot be read"]);
    }

    #[test]
    fn a_frame_that_is_missing_twice_and_not_covered_is_damaged() {
        assert_eq!(texts(&[(5, 6)], &[(6, 8)], 4), ["journal frames 6 to 6 cannot be read"]);
    }
}
