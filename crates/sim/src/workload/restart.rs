//! Power losses, kills and flipped bits, and the check of the log after each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use whimbrel_storage::{Core, DataFolder, LogEvent, LogRecovery, OpenError, PartitionKey, ReadError};

use super::{FAULTY_OPENINGS_MAX, LogWorld, PARTITIONS_MAX};
use crate::Profile;
use crate::checker::{CheckResult, FileKind};
use crate::model::{ModelRecord, TopicState};
use crate::tamper;

/// A flipped bit in a file without which the log does not open.
struct FlippedBit {
    path: PathBuf,
    position: u64,
    bit: u32,
    /// The file with the flipped bit.
    contents: Option<Vec<u8>>,
}

impl LogWorld {
    pub(super) fn open(&mut self) -> CheckResult<Core> {
        self.reopen(true)
    }

    /// Kills the log and opens it again.
    pub(super) fn restart(&mut self, core: Core) -> CheckResult<Core> {
        drop(core);
        self.interrupt();
        self.reopen(true)
    }

    /// Like [`LogWorld::restart`], on a disk without faults.
    pub(super) fn restart_honestly(&mut self, core: Core) -> CheckResult<Core> {
        drop(core);
        self.trace.note(|| "the power goes a last time".to_owned());
        self.counts.power_losses += 1;
        self.disk.crash();
        self.reopen(false)
    }

    fn interrupt(&mut self) {
        if self.rng.one_in(4) {
            self.trace.note(|| "the process is killed".to_owned());
            self.counts.kills += 1;
            self.disk.kill();
        } else {
            self.trace.note(|| "the power goes".to_owned());
            self.counts.power_losses += 1;
            self.disk.crash();
        }
    }

    fn reopen(&mut self, with_faults: bool) -> CheckResult<Core> {
        let mut undo = if with_faults { self.flip_before_opening() } else { None };
        let mut tries = 0;
        loop {
            let is_honest = !with_faults || tries >= FAULTY_OPENINGS_MAX;
            tries += 1;
            self.disk.set_quiet(is_honest);
            if !is_honest && self.rng.one_in(4) {
                let calls = self.rng.between(1, 30);
                self.disk.lose_power_after(calls);
            }
            self.injected_before = self.disk.injected();
            let opened = self.open_once();
            self.trace.note(|| format!("opened: {:?}", opened.as_ref().map(|(_, recovered)| recovered)));
            match opened {
                Ok(_)
                    if undo.as_ref().is_some_and(|undo| undo.path.ends_with("checkpoint"))
                        && !self.is_replacement_reported() =>
                {
                    return Err("the checkpoint was damaged, and the log opened without an event".to_owned());
                }
                Ok(_) if self.disk.is_off() => self.interrupt(),
                Ok((core, recovered)) => {
                    self.disk.set_quiet(true);
                    self.resolve(&core, &recovered)?;
                    self.disk.set_quiet(false);
                    return Ok(core);
                }
                Err(error) => {
                    self.counts.failed_openings += 1;
                    let failed = self.something_failed();
                    match undo.take_if(|_| !failed) {
                        Some(flip) if names_file(&error, &flip.path) => {
                            self.disk.flip_bit(&flip.path, flip.position, flip.bit);
                        }
                        _ if !failed || is_honest => return Err(format!("the log does not open: {error}")),
                        _ => {}
                    }
                    self.interrupt();
                    // A power loss may have restored the file as it was before it was written and damaged.
                    undo = undo.filter(|undo| self.disk.contents(&undo.path) == undo.contents);
                }
            }
        }
    }

    /// Whether an event reported that the copy of the checkpoint is used.
    fn is_replacement_reported(&self) -> bool {
        let is_reported = |event: &LogEvent| matches!(event, LogEvent::FileReplaced(replaced) if replaced.file.ends_with("checkpoint"));
        self.events.lock().is_ok_and(|events| events.iter().any(is_reported))
    }

    fn open_once(&mut self) -> Result<(Core, LogRecovery), OpenError> {
        let folder = Arc::new(DataFolder::open(Arc::new(self.disk.clone()), Self::data_folder())?);
        let events = self.events.clone();
        let on_event = Box::new(move |event| {
            if let Ok(mut events) = events.lock() {
                events.push(event);
            }
        });
        Core::open(folder, self.settings.clone(), self.now, on_event)
    }

    /// Resolves the uncertain parts of the model: the log decides, and its state must be one of the allowed ones.
    fn resolve(&mut self, core: &Core, recovered: &LogRecovery) -> CheckResult {
        self.model.poisoned = false;
        self.model.fences.clear();
        self.model.newest_token = 0;
        self.retention.clear();
        self.counts.torn_tails += u64::from(recovered.torn_tail_cut);
        if let Some(damage) = recovered.damage.iter().find(|damage| self.flipped.total == 0 || damage.file.is_empty()) {
            return Err(format!("recovery reports damage: {damage:?}"));
        }
        self.resolve_topics(core)?;
        self.resolve_limbo(core)?;
        let mut lost_frames = BTreeSet::new();
        for key in self.model.alive() {
            self.resolve_bounds(core, key, &mut lost_frames)?;
            if self.flipped.journal > 0 {
                self.resolve_holes(core, key, &mut lost_frames)?;
            }
        }
        if lost_frames.len() as u64 > self.flipped.journal {
            return Err(format!("{} flips in the journal cost the frames {lost_frames:?}", self.flipped.journal));
        }
        self.check_reported(recovered, &lost_frames)?;
        self.flipped.journal = 0;
        self.checker(core).check_all()
    }

    /// Checks that lost frames were reported. The last ones may be unreported if no later frame records that they were synced.
    fn check_reported(&mut self, recovered: &LogRecovery, lost_frames: &BTreeSet<u64>) -> CheckResult {
        let was_marked = self.model.last_frame_marked;
        if self.flipped.journal > 0 {
            // The flip may have hit the idle frame, which alone recorded that the frame before it was synced.
            self.model.last_frame_marked = false;
        }
        let Some(first_lost) = lost_frames.first() else { return Ok(()) };
        let events = self.events.lock().map_err(|_| "the lock of the events is poisoned")?;
        let is_reported =
            !recovered.damage.is_empty() || events.iter().any(|event| matches!(event, LogEvent::Damaged(..)));
        drop(events);
        let there = self.model.partitions.values().flat_map(|partition| {
            // Trimmed records prove nothing.
            let entries = (0..).zip(&partition.entries).skip(partition.first as usize);
            entries.filter(|(offset, _)| !partition.holes.contains(offset)).map(|(_, entry)| entry.frame)
        });
        let last_there = there.max().unwrap_or(0);
        // A flip can hit the idle frame itself.
        let is_marked = was_marked && self.flipped.journal as usize <= lost_frames.len();
        if !is_reported && (is_marked || *first_lost < last_there) {
            return Err(format!(
                "frames {lost_frames:?} are lost, frame {last_there} exists, and nothing was reported"
            ));
        }
        Ok(())
    }

    fn resolve_topics(&mut self, core: &Core) -> CheckResult {
        for (topic, state) in self.model.topics.clone() {
            let found = core.partition_count(topic);
            let known = self.model.partitions_of(topic);
            match state {
                TopicState::Gone if found > 0 => return Err(format!("topic {topic} was deleted and is back")),
                TopicState::Deleting if found == 0 => {
                    self.model.partitions.retain(|key, _| key.topic != topic);
                    self.model.topics.insert(topic, TopicState::Gone);
                }
                TopicState::Deleting | TopicState::Growing { .. } => {
                    // The topic may have been growing before the deletion.
                    let upto = if let TopicState::Growing { upto } = state { upto } else { PARTITIONS_MAX };
                    self.model.topics.insert(topic, TopicState::Growing { upto });
                    for key in (0..upto).map(|partition| PartitionKey { topic, partition }) {
                        let known = self.model.partitions.get(&key);
                        let may_go = known.is_some_and(|known| known.is_adopted && known.entries.is_empty());
                        match core.bounds(key).is_ok() {
                            true if known.is_none() => self.adopt(key),
                            false if may_go => drop(self.model.partitions.remove(&key)),
                            _ => {}
                        }
                    }
                }
                TopicState::Alive if found != known => {
                    return Err(format!("topic {topic} has {found} partitions instead of {known}"));
                }
                TopicState::Alive | TopicState::Gone => {}
            }
        }
        Ok(())
    }

    /// The group commit with an unknown outcome exists completely or not at all.
    fn resolve_limbo(&mut self, core: &Core) -> CheckResult {
        let Some(mut frame) = self.model.limbo.take() else { return Ok(()) };
        frame.parts.retain(|(key, _, _)| self.model.partitions.contains_key(key));
        let mut there = Vec::new();
        for (key, base, entries) in &frame.parts {
            let (_, next) = core.bounds(*key).map_err(|error| error.to_string())?;
            match next {
                next if next <= *base => there.push(false),
                next if next == base + entries.len() as u64 => there.push(true),
                next => return Err(format!("{key} ends at {next}, in the middle of a commit at {base}")),
            }
        }
        if there.iter().any(|is_there| *is_there != there[0]) {
            return Err(format!("a commit exists in part: {there:?} of {frame:?}"));
        }
        if there.first() == Some(&true) {
            self.counts.unknown_landed += 1;
            self.model.add(&frame);
        } else {
            self.counts.unknown_gone += 1;
        }
        Ok(())
    }

    fn resolve_bounds(&mut self, core: &Core, key: PartitionKey, lost_frames: &mut BTreeSet<u64>) -> CheckResult {
        let (first, next) = core.bounds(key).map_err(|error| format!("{key} after recovery: {error}"))?;
        let journal_flips = self.flipped.journal;
        let Some(partition) = self.model.partitions.get_mut(&key) else { return Ok(()) };
        // Only the frame's own count tells how many offsets a damaged frame had. If a bit of the count flipped, more offsets are skipped,
        // and no read may return them.
        while journal_flips > 0 && partition.next() < next {
            partition.holes.insert(partition.next());
            partition.entries.push(ModelRecord { number: 0, timestamp: i64::MIN, frame: 0 });
        }
        if next > partition.next() {
            return Err(format!("{key} ends at {next}, and only {} were written", partition.next()));
        }
        if next < partition.next() {
            if journal_flips == 0 {
                return Err(format!("{key} ends at {next}, and {} were acknowledged", partition.next()));
            }
            let known_holes = partition.holes.split_off(&next);
            let lost = (next..).zip(partition.entries.split_off(next as usize));
            for (_, entry) in lost.filter(|(offset, _)| !known_holes.contains(offset)) {
                self.counts.records_lost_to_flips += 1;
                lost_frames.insert(entry.frame);
            }
        }
        let latest_first = partition.first.min(next).max(partition.first_durable);
        if first > next || !(partition.first_durable..=latest_first).contains(&first) {
            let (least, most) = (partition.first_durable, partition.first);
            return Err(format!("{key} begins at {first} of {next} after recovery, and may begin at {least}..={most}"));
        }
        partition.first = first;
        // Opening ends with a checkpoint, unless the disk was full.
        if core.refusal().is_none() {
            partition.first_durable = first;
        }
        Ok(())
    }

    /// Finds the records that were lost with damaged frames.
    fn resolve_holes(&mut self, core: &Core, key: PartitionKey, lost_frames: &mut BTreeSet<u64>) -> CheckResult {
        let Some(partition) = self.model.partitions.get_mut(&key) else { return Ok(()) };
        let mut from = partition.first;
        while from < partition.next() {
            match core.read(key, from, 0) {
                Ok(read) if read.next > from => from = read.next,
                Err(ReadError::Damaged(damage)) if damage.what == "records are missing" => {
                    let to = damage.resume_at.filter(|at| *at > from).ok_or_else(|| format!("{key}: {damage:?}"))?;
                    let new = (from..to).filter(|offset| partition.holes.insert(*offset));
                    for offset in new.collect::<Vec<_>>() {
                        self.counts.records_lost_to_flips += 1;
                        let entry = partition.entries.get(offset as usize).ok_or("a hole beyond the end")?;
                        lost_frames.insert(entry.frame);
                    }
                    from = to;
                }
                // A segment with a flipped bit: the checker checks it.
                Err(ReadError::Damaged(damage)) if damage.resume_at.is_some_and(|at| at > from) => {
                    from = damage.resume_at.unwrap_or(u64::MAX);
                }
                other => return Err(format!("{key} at {from} after recovery: {other:?}")),
            }
        }
        Ok(())
    }

    pub(super) fn flip_while_running(&mut self) -> CheckResult {
        if self.profile.flips_bits() && self.profile != Profile::ResealedFlips {
            self.flip(|kind| kind != FileKind::Other);
        }
        Ok(())
    }

    fn flip_before_opening(&mut self) -> Option<FlippedBit> {
        if !self.profile.flips_bits() || !self.rng.one_in(2) {
            return None;
        }
        if self.profile == Profile::ResealedFlips {
            self.reseal();
            return None;
        }
        match self.rng.below(8) {
            0 => self.flip(|kind| kind == FileKind::Other),
            1..4 => {
                self.flip(|kind| kind == FileKind::Journal);
                None
            }
            _ => {
                self.flip(|kind| kind != FileKind::Other);
                None
            }
        }
    }

    /// Flips a bit in a file of a wanted kind, preferably in a byte that is not zero.
    fn flip(&mut self, wanted: impl Fn(FileKind) -> bool) -> Option<FlippedBit> {
        let files = self.disk.files();
        let files: Vec<_> = files.into_iter().filter(|(path, len)| *len > 0 && wanted(FileKind::of(path))).collect();
        if files.is_empty() {
            return None;
        }
        let (path, len) = self.rng.pick(&files).clone();
        let contents = self.disk.contents(&path)?;
        let mut position = self.rng.below(len);
        for _ in 0..20 {
            if contents[position as usize] != 0 {
                break;
            }
            position = self.rng.below(len);
        }
        let bit = self.rng.below(8) as u32;
        self.trace.note(|| format!("bit {bit} of byte {position} of {} flips", path.display()));
        self.disk.flip_bit(&path, position, bit);
        self.flipped.total += 1;
        self.counts.bits_flipped += 1;
        match FileKind::of(&path) {
            FileKind::Segment(key, base) => {
                self.flipped.segments.insert((key, base));
            }
            FileKind::Journal => self.flipped.journal += 1,
            FileKind::Index | FileKind::Other => {}
        }
        let contents = self.disk.contents(&path);
        Some(FlippedBit { path, position, bit, contents })
    }

    /// Changes a record together with its checksums: the log cannot detect it, so the checker must.
    fn reseal(&mut self) {
        let files = self.disk.files();
        let files: Vec<PathBuf> = files.into_iter().map(|(path, _)| path).collect();
        if files.is_empty() {
            return;
        }
        for _ in 0..20 {
            let path = self.rng.pick(&files).clone();
            if let Some(what) = tamper::change_a_record(&self.disk, &path) {
                self.trace.note(|| format!("{what} changes with its checksum in {}", path.display()));
                self.counts.bits_flipped += 1;
                return;
            }
        }
    }
}

/// Whether the error names the wrong file. A folder with an unreadable format is named itself.
fn names_file(error: &OpenError, path: &Path) -> bool {
    match error {
        OpenError::OtherFormat { path: folder, .. } | OpenError::NotOurs(folder) => path.parent() == Some(folder),
        other => other.to_string().contains(&path.display().to_string()),
    }
}
