//! Reads every checksum of a data folder's log and reports damage: for `whimbrel check --deep` and for the scrub of a running server.
//!
//! It only reads, takes no lock, and works beside a server that appends, makes checkpoints and drops segments. The checkpoint defines which
//! bytes must exist: bytes beyond it are still in the journal and are not checked. Before the check reports a damaged place, it reads the
//! place again, against a checkpoint that it reads afterwards. It must never report changes of a running server as damage.

mod journal;
mod read_only;
mod segment;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::PartitionKey;
use crate::checkpoint::{Checkpoint, PartitionMark};
use crate::disk::{Disk, is_passing, read_whole};
use crate::error::{LogDamage, OpenError};
use crate::fallback::{ContentsError, copy_of};
use crate::folder::{FORMAT_FILE, parse_format, read_format};
use crate::format::FolderSecret;
use crate::journal::is_begun;
use crate::layout::LogLayout;
use crate::segment::{BatchScope, Segment};
use journal::{FrameCheck, check_journal};
use segment::{IndexCheck, is_stopped};

pub use read_only::ReadMeter;
pub(crate) use read_only::ReadOnlyDisk;
pub(crate) use segment::{Extent, check_twice};

const RESTORE: &str = "copy the data folder away, check the disk (`dmesg`, SMART), and restore the file from a backup";

/// Limit of the findings that a report lists. It only counts the rest: a disk with more is beyond repair.
const FINDINGS_MAX: usize = 10_000;

/// A damaged place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamageFinding {
    pub file: PathBuf,
    pub position: u64,
    pub what: String,
    /// The consequence for the data.
    pub meaning: String,
    /// The recommended action for the operator.
    pub advice: String,
    /// The file is a hint that is not synced: a power loss may leave it like this, and the server works without it.
    pub is_harmless: bool,
}

/// A file or folder that could not be checked, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotChecked {
    pub path: PathBuf,
    pub why: String,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Files that were read.
    pub files: usize,
    pub findings: Vec<DamageFinding>,
    /// Damaged places beyond those that are listed.
    pub unlisted: usize,
    pub not_checked: Vec<NotChecked>,
}

impl CheckReport {
    /// Whether any damaged file is more than a hint.
    pub fn is_damaged(&self) -> bool {
        self.unlisted > 0 || self.findings.iter().any(|finding| !finding.is_harmless)
    }

    pub fn add(&mut self, findings: impl IntoIterator<Item = DamageFinding>) {
        for finding in findings {
            if self.findings.len() < FINDINGS_MAX {
                self.findings.push(finding);
            } else if !finding.is_harmless {
                self.unlisted += 1;
            }
        }
    }
}

/// A part of a data folder to check.
#[derive(Debug, Clone)]
pub enum CheckTarget {
    Format,
    Checkpoint,
    Journal,
    Segment(SegmentTarget),
    /// Offsets of a partition that are in the checkpoint and in no segment.
    Missing(MissingOffsets),
}

#[derive(Debug, Clone)]
pub struct SegmentTarget {
    extent: Extent,
}

#[derive(Debug, Clone)]
pub struct MissingOffsets {
    key: PartitionKey,
    folder: PathBuf,
    from: u64,
    to: u64,
}

/// A check of one data folder.
pub struct Verifier {
    disk: Arc<dyn Disk>,
    data: PathBuf,
    layout: LogLayout,
    /// `None` before [`Verifier::plan`], or if `FORMAT` cannot be read: the check then cannot distinguish batches from other bytes.
    secret: Option<FolderSecret>,
    report: CheckReport,
}

impl Verifier {
    /// A check of the folder `data`. It calls the meter for each read; see [`ReadMeter`].
    pub fn new(disk: Arc<dyn Disk>, data: &Path, meter: ReadMeter) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk, meter));
        Self { disk, data: data.to_owned(), layout: LogLayout::of(data), secret: None, report: CheckReport::default() }
    }

    /// Everything to check now, and its approximate bytes.
    pub fn plan(&mut self) -> io::Result<(Vec<CheckTarget>, u64)> {
        self.secret = match self.read_secret() {
            // No server has started on this folder yet.
            Ok(None) => return Ok((Vec::new(), 0)),
            Ok(secret) => secret,
            // The check of FORMAT reports the error.
            Err(_) => None,
        };
        let mut targets = vec![CheckTarget::Format];
        let log = self.layout.root.clone();
        if !self.disk.exists(&log)? {
            return Ok((targets, 0));
        }
        let is_new = !self.disk.exists(&self.layout.checkpoint())? && !is_begun(&*self.disk, &self.layout.journal())?;
        if is_new {
            return Ok((targets, 0));
        }
        targets.push(CheckTarget::Checkpoint);
        if self.secret.is_none() {
            self.skip(log, "FORMAT cannot be read, and without it no batch can be checked");
            return Ok((targets, 0));
        }
        let Some(checkpoint) = self.checkpoint() else {
            self.skip(log, "the checkpoint cannot be read, and without it the log cannot be checked");
            return Ok((targets, 0));
        };
        targets.push(CheckTarget::Journal);
        let mut bytes = self.bytes_in(&self.layout.journal(), ".journal")?;
        for mark in &checkpoint.partitions {
            bytes += self.plan_partition(mark, &mut targets)?;
        }
        Ok((targets, bytes))
    }

    /// Checks one target. Fails only if the meter ends the check.
    pub fn check(&mut self, target: &CheckTarget) -> io::Result<()> {
        match target {
            CheckTarget::Format => self.check_format(),
            CheckTarget::Checkpoint => self.check_checkpoint(),
            CheckTarget::Journal => return self.check_journal(),
            CheckTarget::Segment(target) => return self.check_segment(&target.extent),
            CheckTarget::Missing(missing) => self.check_missing(missing),
        }
        Ok(())
    }

    /// Ends the check.
    pub fn finish(self) -> CheckReport {
        self.report
    }

    /// Reads the secret from `FORMAT` or its copy. `None` if no server has created the folder yet.
    fn read_secret(&self) -> Result<Option<FolderSecret>, OpenError> {
        let read = || read_format(&*self.disk, &self.data).map(|found| found.map(|(secret, _)| secret));
        match read() {
            // A server may create the folder after the first read found no FORMAT, and before it listed the other files.
            Err(OpenError::NotOurs(_)) => read(),
            other => other,
        }
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        Checkpoint::read(&*self.disk, &self.layout.checkpoint()).ok().flatten().map(|(checkpoint, _)| checkpoint)
    }

    fn skip(&mut self, path: PathBuf, why: &str) {
        self.report.not_checked.push(NotChecked { path, why: why.to_owned() });
    }

    fn bytes_in(&self, folder: &Path, suffix: &str) -> io::Result<u64> {
        let names = self.disk.list(folder)?.into_iter().filter(|name| name.ends_with(suffix));
        // A file that was removed in the meantime counts as empty.
        Ok(names.filter_map(|name| self.disk.open(&folder.join(name)).and_then(|file| file.len()).ok()).sum())
    }

    /// Adds the segments of one partition as of the checkpoint. Segments that were begun later, or dropped earlier, are left out.
    fn plan_partition(&self, mark: &PartitionMark, targets: &mut Vec<CheckTarget>) -> io::Result<u64> {
        let Some(secret) = self.secret else { return Ok(0) };
        let key = key_of(mark);
        let folder = self.layout.partition(key);
        let (first, next) = (mark.first.get(), mark.next.get());
        let names = self.disk.list(&folder)?;
        let mut bases: Vec<u64> =
            names.iter().filter_map(|name| Segment::base_of(name)).filter(|base| *base < next).collect();
        bases.sort_unstable();
        let mut bytes = 0;
        let mut expected = first;
        for (index, base) in bases.iter().copied().enumerate() {
            let end = bases.get(index + 1).copied().unwrap_or(next);
            if end <= first {
                continue;
            }
            if base > expected && expected == first {
                let missing = MissingOffsets { key, folder: folder.clone(), from: first, to: base };
                targets.push(CheckTarget::Missing(missing));
            }
            expected = end;
            let is_active = mark.active_len.get() > 0 && mark.active_base.get() == base;
            let len = is_active.then_some(mark.active_len.get());
            let path = Segment::existing(&folder, base).path().to_owned();
            bytes += match len {
                Some(len) => len,
                None => self.disk.open(&path).and_then(|file| file.len()).unwrap_or(0),
            };
            let of = BatchScope { secret, key };
            targets.push(CheckTarget::Segment(SegmentTarget { extent: Extent { of, path, base, len, end } }));
        }
        if expected == first && first < next {
            targets.push(CheckTarget::Missing(MissingOffsets { key, folder, from: first, to: next }));
        }
        Ok(bytes)
    }

    fn check_format(&mut self) {
        let folder = self.data.clone();
        let decode = |bytes: &[u8]| parse_format(&folder, bytes).map(drop);
        self.check_pair(
            &self.data.join(FORMAT_FILE),
            &decode,
            "restore FORMAT from a backup: it never changes after the folder is created",
        );
    }

    fn check_checkpoint(&mut self) {
        let decode = |bytes: &[u8]| Checkpoint::decode(bytes).map(drop);
        self.check_pair(&self.layout.checkpoint(), &decode, "restore the whole data folder from a backup");
    }

    /// Checks a small file and its copy, which are replaced as a whole. A folder of an earlier version has no copy yet. A server may write
    /// the first copy during the check, so one read decides both whether the copy exists and whether it is sound.
    fn check_pair(&mut self, file: &Path, decode: &dyn Fn(&[u8]) -> Result<(), ContentsError>, without_both: &str) {
        let copy = copy_of(file);
        let read = |path: &Path| read_whole(&*self.disk, path).transpose();
        let problem_of = |contents: Option<io::Result<Vec<u8>>>| match contents {
            Some(Ok(bytes)) => match decode(&bytes) {
                Ok(()) => None,
                Err(ContentsError::Damaged(why)) => Some(why),
                Err(ContentsError::Refused(error)) => Some(error.to_string()),
            },
            Some(Err(error)) => Some(error.to_string()),
            None => Some("it is missing".to_owned()),
        };
        let of_file = problem_of(read(file));
        let contents_of_copy = read(&copy);
        let has_copy = contents_of_copy.is_some();
        let of_copy = problem_of(contents_of_copy);
        let is_lost = of_file.is_some() && of_copy.is_some();
        let finding = |path: &Path, what: String| DamageFinding {
            file: path.to_owned(),
            position: 0,
            what,
            meaning: if is_lost {
                "the server does not start"
            } else {
                "nothing is lost: the server uses the other copy"
            }
            .to_owned(),
            advice: if is_lost {
                without_both.to_owned()
            } else {
                "check the disk (`dmesg`, SMART); the next start of the server writes the file again".to_owned()
            },
            is_harmless: false,
        };
        let found =
            [of_file.map(|what| finding(file, what)), of_copy.filter(|_| has_copy).map(|what| finding(&copy, what))];
        self.report.files += 1 + usize::from(has_copy);
        self.report.add(found.into_iter().flatten());
    }

    fn check_journal(&mut self) -> io::Result<()> {
        let (Some(secret), folder) = (self.secret, self.layout.journal()) else { return Ok(()) };
        self.report.files += self.disk.list(&folder).map_or(0, |names| names.len());
        let damage = match check_journal(&*self.disk, &folder, secret, &|| self.checkpoint()) {
            Ok(FrameCheck::Checked(damage)) => damage,
            Ok(FrameCheck::Unsettled) => {
                self.skip(folder, "the server was restarted several times during the check");
                return Ok(());
            }
            Err(error) if is_stopped(&error) => return Err(error),
            Err(error) if is_passing(&error) => {
                self.skip(folder, &error.to_string());
                return Ok(());
            }
            Err(error) => {
                let file = folder.display().to_string();
                vec![LogDamage { what: format!("reading failed: {error}"), file, position: 0, resume_at: None }]
            }
        };
        for LogDamage { what, file, position, .. } in damage {
            self.report.add([DamageFinding {
                file: folder.join(file),
                position,
                what,
                meaning: "messages that were acknowledged are lost if the server stops before its next checkpoint; \
                          a server that runs still has them in memory"
                    .to_owned(),
                advice: "if a server runs on the folder, leave it running for the length of `log.checkpoint_interval` and check \
                         again; then check the disk (`dmesg`, SMART)"
                    .to_owned(),
                is_harmless: false,
            }]);
        }
        Ok(())
    }

    fn check_segment(&mut self, extent: &Extent) -> io::Result<()> {
        self.report.files += 1;
        let mut index = IndexCheck::load(&*self.disk, extent).ok();
        let checked = check_twice(&*self.disk, extent, &mut |position, batch| {
            if let Some(index) = &mut index {
                index.see(position, batch);
            }
        });
        let damage = match checked {
            Err(error) if is_passing(&error) => {
                self.skip(extent.path.clone(), &error.to_string());
                return Ok(());
            }
            checked => checked?,
        };
        if !damage.is_empty() && self.is_dropped(extent.of.key, extent.end) {
            return Ok(());
        }
        self.report.add(damage.into_iter().map(|damage| segment_finding(extent.of.key, damage)));
        let Some(index) = index else { return Ok(()) };
        let (unusable, stored) = index.outcome();
        if unusable > 0 {
            self.report.add([DamageFinding {
                file: index.path,
                position: 0,
                what: format!("{unusable} of {stored} entries of the index cannot be used"),
                meaning: "no message is affected: reads by offset and by time take longer".to_owned(),
                advice: "nothing is needed; the file is removed with its segment".to_owned(),
                is_harmless: true,
            }]);
        }
        Ok(())
    }

    fn check_missing(&mut self, missing: &MissingOffsets) {
        if self.is_dropped(missing.key, missing.to) {
            return;
        }
        let what = format!("records {} to {} are missing", missing.from, missing.to - 1);
        let file = missing.folder.display().to_string();
        let damage = LogDamage { what, file, position: 0, resume_at: Some(missing.to) };
        self.report.add([segment_finding(missing.key, damage)]);
    }

    /// Whether retention or a deletion of the topic dropped everything below `end` since the check began. A deletion renames the folder of
    /// the topic, and topic numbers are never reused: an existing folder therefore still belongs to this topic.
    fn is_dropped(&self, key: PartitionKey, end: u64) -> bool {
        let is_there = self.disk.exists(&self.layout.topic(key.topic)).unwrap_or(true);
        let Some(checkpoint) = self.checkpoint() else { return !is_there };
        let mark = checkpoint.partitions.iter().find(|mark| key_of(mark) == key);
        !is_there || mark.is_none_or(|mark| end <= mark.first.get())
    }
}

fn key_of(mark: &PartitionMark) -> PartitionKey {
    PartitionKey { topic: mark.topic.get(), partition: mark.partition.get() }
}

fn segment_finding(key: PartitionKey, damage: LogDamage) -> DamageFinding {
    let until = damage.resume_at.map_or(String::new(), |offset| format!(" before offset {offset}"));
    DamageFinding {
        meaning: format!(
            "messages of topic number {}, partition {},{until} cannot be read; readers get 410 `damaged` and go on behind them",
            key.topic, key.partition
        ),
        file: PathBuf::from(damage.file),
        position: damage.position,
        what: damage.what,
        advice: RESTORE.to_owned(),
        is_harmless: false,
    }
}
