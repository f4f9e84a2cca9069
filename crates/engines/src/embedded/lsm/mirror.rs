//! Two copies of an LSM for data that is not in a log.
//!
//! The mirror writes every batch, with a sequence number, to both copies. It closes a copy that fails or is damaged, and rebuilds it from
//! the other one while that serves. At the next start, the sequence numbers show whether a copy lost its last writes. The mirror trusts
//! neither copy after both failed: a failed sync may have dropped pages that reads still return. It then rebuilds one copy from the other
//! as new files, and the other one from the result.
//!
//! One thread owns a mirror ([`thread`]): no read overtakes a write.

mod copy;
mod thread;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fjall::Slice;

use super::fault::FaultKind;
use super::folder::{self, FolderError};
use super::guard::close;
use super::report::{StoreDamage, StoreReport, StoreReports};
use super::verify;
use copy::{CopyDb, CopyFailure, CopyResult};
pub(crate) use thread::{MirrorThread, SyncRule};

/// The pause before a copy is opened or rebuilt again: it doubles with each attempt that fails.
const HEAL_PAUSE_MIN: Duration = Duration::from_millis(100);
const HEAL_PAUSE_MAX: Duration = Duration::from_secs(5);
/// The time for which the mirror waits for a copy that cannot be opened, although its files are not damaged, before it uses the other one:
/// either may have batches that the other one lacks.
const UNREADABLE_FOR: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };
/// The suffixes of the folders of the second copy, and of a copy that is being rebuilt.
const SECOND: &str = "mirror";
const REBUILD: &str = "rebuild";

/// The sizes and keyspaces of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MirrorSettings {
    pub store: &'static str,
    /// The keyspaces; calls refer to them by their index in this list.
    pub keyspaces: &'static [&'static str],
    /// Memory of each copy for cached blocks of its tables.
    pub cache_bytes: u64,
    /// The maximum size of each copy's journal, which a start replays.
    pub journal_bytes_max: u64,
}

/// The reason why neither copy can serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct MirrorFault(pub String);

#[derive(Debug, Clone)]
pub(crate) enum RowChange {
    Insert(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
}

pub(crate) type MirrorBatch = Vec<(usize, RowChange)>;

pub(crate) struct LsmMirror {
    settings: MirrorSettings,
    report: StoreReport,
    copies: [MirrorSide; 2],
    /// The number of the last batch.
    seq: u64,
    /// The number of the last batch that every open copy has synced.
    synced: u64,
    /// Whether the mirror trusts neither copy, so that it must rebuild each from the other.
    is_suspect: bool,
    /// The part of the store that an event reported as failed.
    reported: ReportedFailure,
    heal_at: Option<Instant>,
    heal_pause: Duration,
    /// Since one of the copies can be opened and the other one cannot, although its files are not damaged.
    undecided_since: Option<Instant>,
}

/// How much of the store has failed in this incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReportedFailure {
    Nothing,
    OneCopy,
    BothCopies,
}

struct MirrorSide {
    path: PathBuf,
    db: Option<CopyDb>,
    /// Why the copy is not open, reported when it has been rebuilt.
    problem: Option<StoreDamage>,
    /// Whether its files are sound and may have batches that the other copy lacks. A rebuild keeps them under another name.
    is_unread: bool,
}

impl MirrorSide {
    /// Whether the copy has files. If the disk reports an error, it may have them.
    fn exists(&self) -> bool {
        self.path.try_exists().unwrap_or(true)
    }

    fn is_damaged(&self) -> bool {
        self.problem.as_ref().is_some_and(StoreDamage::is_damage)
    }
}

impl LsmMirror {
    /// Opens both copies, or creates them. If neither can be opened now, [`Self::heal`] tries again later.
    pub fn open(path: &Path, settings: MirrorSettings, reports: StoreReports) -> Result<Self, MirrorFault> {
        let side = |path: PathBuf| MirrorSide { path, db: None, problem: None, is_unread: false };
        let mut mirror = Self {
            report: StoreReport::new(reports, settings.store),
            copies: [side(path.to_owned()), side(path.with_extension(SECOND))],
            settings,
            seq: 0,
            synced: 0,
            is_suspect: false,
            reported: ReportedFailure::Nothing,
            heal_at: None,
            heal_pause: HEAL_PAUSE_MIN,
            undecided_since: None,
        };
        mirror.refuse_newer()?;
        mirror.copies.iter().for_each(|side| verify::remove_copy(&side.path));
        mirror.open_copies();
        let may_open_later =
            |side: &MirrorSide| side.exists() || side.problem.as_ref().is_some_and(StoreDamage::is_of_disk);
        if mirror.is_closed() && !mirror.copies.iter().any(may_open_later) {
            return Err(MirrorFault(format!("cannot open the store `{}`: {}", settings.store, mirror.reason())));
        }
        Ok(mirror)
    }

    /// Fails if a copy has a newer format: a rebuild would replace it.
    fn refuse_newer(&self) -> Result<(), MirrorFault> {
        for side in &self.copies {
            if let Err(error @ FolderError::Newer { .. }) = folder::inspect(&side.path) {
                return Err(MirrorFault(format!("cannot open the store `{}`: {error}", self.settings.store)));
            }
        }
        Ok(())
    }

    pub fn get(&mut self, keyspace: usize, key: &[u8]) -> Result<Option<Slice>, MirrorFault> {
        self.read(|db| db.get(keyspace, key))
    }

    /// At most `limit` rows whose keys begin with the prefix, in the order of their keys.
    pub fn prefix(&mut self, keyspace: usize, prefix: &[u8], limit: usize) -> Result<Vec<(Slice, Slice)>, MirrorFault> {
        self.read(|db| db.prefix(keyspace, prefix, limit))
    }

    /// Writes a batch to every open copy. The batch survives a crash of the process; after [`Self::sync`], also of the machine.
    pub fn commit(&mut self, batch: &MirrorBatch) -> Result<(), MirrorFault> {
        let (seq, synced) = (self.seq + 1, self.synced);
        self.on_each(|db| db.commit(batch, seq, synced))?;
        self.seq = seq;
        Ok(())
    }

    pub fn sync(&mut self) -> Result<(), MirrorFault> {
        if self.is_synced() {
            return Ok(());
        }
        self.on_each(CopyDb::sync)?;
        self.synced = self.seq;
        Ok(())
    }

    pub fn is_synced(&self) -> bool {
        self.synced == self.seq && !self.is_closed()
    }

    /// Flushes everything into tables, so that the next start reads short journals.
    pub fn flush(&mut self) -> Result<(), MirrorFault> {
        self.on_each(CopyDb::flush)
    }

    /// When [`Self::heal`] has something to do.
    pub fn heal_at(&self) -> Option<Instant> {
        self.heal_at
    }

    /// Opens or rebuilds copies that failed.
    pub fn heal(&mut self) {
        if self.is_closed() {
            self.open_copies();
        } else {
            self.rebuild_copies();
        }
        self.plan();
    }

    fn is_closed(&self) -> bool {
        self.copies.iter().all(|side| side.db.is_none())
    }

    fn reason(&self) -> String {
        let problem = self.copies.iter().find_map(|side| side.problem.as_ref());
        problem.map_or_else(|| "it is being opened".to_owned(), |problem| problem.reason.clone())
    }

    /// Reads from the first copy that can.
    fn read<R>(&mut self, read: impl Fn(&CopyDb) -> Result<R, CopyFailure>) -> Result<R, MirrorFault> {
        for side in 0..self.copies.len() {
            let Some(db) = &self.copies[side].db else { continue };
            match copy::guarded(|| read(db)) {
                Ok(found) => return Ok(found),
                Err(failure) => self.fail(side, failure),
            }
        }
        Err(MirrorFault(self.reason()))
    }

    /// Runs the work on every open copy, and closes a copy that fails. Returns an error only if no copy is left.
    fn on_each(&mut self, work: impl Fn(&CopyDb) -> Result<(), CopyFailure>) -> Result<(), MirrorFault> {
        for side in 0..self.copies.len() {
            let Some(db) = &self.copies[side].db else { continue };
            if let Err(failure) = copy::guarded(|| work(db)) {
                self.fail(side, failure);
            }
        }
        if self.is_closed() { Err(MirrorFault(self.reason())) } else { Ok(()) }
    }

    fn fail(&mut self, side: usize, failure: CopyFailure) {
        let closed = &mut self.copies[side];
        let mut damage = failure.damage(&closed.path);
        // The error of the LSM does not name the damaged file.
        if damage.is_damage()
            && let Some(table) = closed.db.as_ref().and_then(CopyDb::damaged_table)
        {
            damage = table.of_kind(FaultKind::Damage);
        }
        close(closed.db.take());
        closed.problem = Some(damage.clone());
        // After both failed, reads may still return pages that a sync reported as lost.
        self.is_suspect |= self.is_closed();
        self.report_closed(&damage);
        self.heal_pause = HEAL_PAUSE_MIN;
        self.plan();
    }

    /// Reports that a copy is closed: a warning of `/readyz` while the other one serves, and a failure otherwise. Each gets one event
    /// per incident.
    fn report_closed(&mut self, problem: &StoreDamage) {
        let (file, reason) = (Path::new(&problem.file), &problem.reason);
        let failed = if self.is_closed() { ReportedFailure::BothCopies } else { ReportedFailure::OneCopy };
        match (failed, self.reported < failed) {
            (ReportedFailure::BothCopies, true) => self.report.failed(file, reason),
            (ReportedFailure::BothCopies, false) => self.report.still_failed(reason),
            (_, true) => self.report.copy_failed(file, reason),
            (_, false) => self.report.copy_still_failed(reason),
        }
        self.reported = self.reported.max(failed);
    }

    /// Plans the next attempt to heal, or reports that the store has recovered.
    fn plan(&mut self) {
        let is_whole = self.copies.iter().all(|side| side.db.is_some()) && !self.is_suspect;
        if is_whole {
            self.heal_at = None;
            self.heal_pause = HEAL_PAUSE_MIN;
            if std::mem::replace(&mut self.reported, ReportedFailure::Nothing) != ReportedFailure::Nothing {
                self.report.recovered();
            }
            return;
        }
        self.heal_at = Some(Instant::now() + self.heal_pause);
        self.heal_pause = (self.heal_pause * 2).min(HEAL_PAUSE_MAX);
    }

    /// Opens the copies that can be opened, and rebuilds the others.
    fn open_copies(&mut self) {
        let is_new = self.copies.iter().all(|side| !side.exists());
        for side in 0..self.copies.len() {
            // Only the first copy of a new store is created; the second one is rebuilt from it.
            if self.copies[side].exists() || (side == 0 && is_new) {
                self.open_copy(side);
            }
        }
        if self.is_undecided() {
            self.copies.iter_mut().for_each(|side| close(side.db.take()));
        } else if self.is_closed() {
            self.salvage();
        } else {
            self.prefer_newer();
        }
        self.choose();
        self.rebuild_copies();
        if self.is_closed() {
            let problem = self.copies.iter().find_map(|side| side.problem.clone());
            let unknown = || StoreDamage::of_folder(&self.copies[0].path, self.reason());
            self.report_closed(&problem.unwrap_or_else(unknown));
        }
        self.plan();
    }

    fn open_copy(&mut self, at: usize) {
        let side = &mut self.copies[at];
        match CopyDb::open_checked(&side.path, &self.settings) {
            Ok(db) => (side.db, side.problem) = (Some(db), None),
            Err(failure) => side.problem = Some(failure.damage(&side.path)),
        }
        side.is_unread = side.db.is_none() && !side.is_damaged();
    }

    /// Whether the mirror waits for a copy that cannot be opened now. The other one may lack acknowledged batches, and a batch that it
    /// gets now may be discarded later.
    fn is_undecided(&mut self) -> bool {
        let is_one_unread = !self.is_closed() && self.copies.iter().any(|side| side.is_unread);
        let since = self.undecided_since.unwrap_or_else(Instant::now);
        let is_undecided = is_one_unread && since.elapsed() < UNREADABLE_FOR;
        self.undecided_since = is_undecided.then_some(since);
        is_undecided
    }

    /// Prefers a damaged copy if it has synced batches that the sound one lacks: the sound one had failed before the process ended.
    fn prefer_newer(&mut self) {
        let Some(sound) = self.copies.iter().position(|side| side.db.is_some()) else { return };
        let other = 1 - sound;
        let has = self.copies[sound].db.as_ref().map_or(0, |db| db.state().seq);
        if !self.copies[other].is_damaged() || self.copies[other].db.is_some() {
            return;
        }
        let Ok(newer) = CopyDb::salvage(&self.copies[other].path, &self.settings) else { return };
        if newer.state().synced <= has {
            return close(newer);
        }
        if let Some(problem) = self.copies[other].problem.take() {
            self.report.data_lost(&problem);
        }
        self.copies[other].db = Some(newer);
        self.is_suspect = true;
    }

    /// Of two open copies, uses the one with more batches and marks the other one for a rebuild.
    fn choose(&mut self) {
        let [first, second] = self.copies.each_ref().map(|side| side.db.as_ref().map(CopyDb::state));
        if let (Some(first), Some(second)) = (first, second)
            && first.seq != second.seq
        {
            let (behind, ahead) = if first.seq < second.seq { (0, second) } else { (1, first) };
            let side = &mut self.copies[behind];
            let has = side.db.as_ref().map_or(0, |db| db.state().seq);
            close(side.db.take());
            // Batches that were not synced may be in one copy only after a crash.
            let reason = format!("it has {has} of {} batches, of which {} were synced", ahead.seq, ahead.synced);
            side.problem = (has < ahead.synced).then(|| StoreDamage::of_folder(&side.path, reason));
        }
        if let Some(state) = self.copies.iter().find_map(|side| side.db.as_ref().map(CopyDb::state)) {
            (self.seq, self.synced) = (state.seq, state.seq);
        }
    }

    /// Opens copies whose journals are damaged, without the batches behind the damage.
    fn salvage(&mut self) {
        if !self.copies.iter().all(|side| side.is_damaged() || !side.exists()) {
            return;
        }
        for side in self.copies.iter_mut().filter(|side| side.exists()) {
            side.db = CopyDb::salvage(&side.path, &self.settings).ok();
        }
        if let Some(problem) = self.copies.iter_mut().find_map(|side| side.problem.take()) {
            self.report.data_lost(&problem);
        }
        if self.is_closed() {
            for side in &self.copies {
                if let Err(error) = copy::set_aside(&side.path) {
                    tracing::warn!(%error, folder = %side.path.display(), "cannot rename a damaged copy");
                }
            }
            self.open_copy(0);
        }
    }

    /// Rebuilds each closed copy from the open one. After a failure of both, rebuilds both, one from the other.
    fn rebuild_copies(&mut self) {
        let Some(source) = self.copies.iter().position(|side| side.db.is_some()) else { return };
        let target = 1 - source;
        if self.is_suspect
            && let Some(suspect) = self.copies[target].db.take()
        {
            close(suspect);
        }
        if self.copies[target].db.is_none() && !self.rebuild(source, target) {
            return;
        }
        if self.is_suspect {
            close(self.copies[source].db.take());
            self.is_suspect = !self.rebuild(target, source);
        }
    }

    /// Whether the copy is whole and open now.
    fn rebuild(&mut self, source: usize, target: usize) -> bool {
        let Some(db) = &self.copies[source].db else { return false };
        let (path, is_unread) = (self.copies[target].path.clone(), self.copies[target].is_unread);
        let rebuilt = copy::guarded(|| db.copy_to(&path.with_extension(REBUILD), &path, is_unread, &self.settings));
        match rebuilt {
            Ok(CopyResult { db: copy, lost }) => {
                self.copies[target].db = Some(copy);
                self.copies[target].is_unread = false;
                if let Some(problem) = self.copies[target].problem.take() {
                    self.report.copy_rebuilt(&problem);
                }
                if let Some(lost) = lost {
                    self.report.data_lost(&StoreDamage::of_folder(&self.copies[source].path, lost));
                    close(self.copies[source].db.take());
                    return self.rebuild(target, source);
                }
                true
            }
            Err(failure) => {
                let problem = failure.damage(&path);
                self.report_closed(&problem);
                self.copies[target].problem.get_or_insert(problem);
                false
            }
        }
    }
}
