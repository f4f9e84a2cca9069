//! Opens the log: cuts the segments back to the checkpoint, replays the journal, begins a new generation.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes};
use zerocopy::FromBytes;

use super::{
    CheckpointState, Core, JournalState, LogHealth, OnEvent, PartitionTable, RecentFrame, RecentFrames, UnsavedBatches,
    lock,
};
use crate::checkpoint::{Checkpoint, PartitionMark};
use crate::error::{LogDamage, OpenError};
use crate::fallback::set_aside;
use crate::folder::DataFolder;
use crate::format::{BatchHeader, LogBatch};
use crate::journal::{FoundFrame, JournalSlots, is_begun, scan};
use crate::layout::LogLayout;
use crate::partition::LogPartition;
use crate::segment::BatchScope;
use crate::{LogSettings, PartitionKey};

/// The result of opening the log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LogRecovery {
    pub partitions: usize,
    pub frames_replayed: usize,
    pub torn_tail_cut: bool,
    pub damage: Vec<LogDamage>,
}

impl Core {
    /// Opens the log of a data folder as of the last acknowledged append. Damage is returned and emitted as events; undamaged records stay
    /// readable. On a full disk the log opens and rejects appends.
    pub fn open(
        folder: Arc<DataFolder>,
        settings: LogSettings,
        now: i64,
        on_event: OnEvent,
    ) -> Result<(Self, LogRecovery), OpenError> {
        if let Some(problem) = settings.problem() {
            return Err(OpenError::Settings(problem));
        }
        let disk = folder.disk.clone();
        let (layout, health) = (LogLayout::of(&folder.path), LogHealth::new(on_event));
        let io = |what: &str| OpenError::io(format!("{what} {}", layout.root.display()));
        let checkpoint = open_checkpoint(&folder, &layout, &health)?;
        let mut recovered = LogRecovery::default();
        let slots = JournalSlots::open(disk.clone(), &layout.journal(), settings.journal_file_bytes)
            .map_err(io("opening the journal of"))?;
        let mut checkpoints = CheckpointState { touched: BTreeSet::new(), last: checkpoint };
        let opened = open_partitions(&folder, &layout, &settings, &mut checkpoints, now, &mut recovered.damage);
        let partitions = PartitionTable::default();
        partitions.insert(opened.map_err(io("opening partitions of"))?);
        let (generation, sequence) =
            checkpoints.last.as_ref().map_or((0, 0), |checkpoint| (checkpoint.generation, checkpoint.sequence));
        let core = Self {
            slots: Arc::new(slots),
            journal: Mutex::new(JournalState {
                journal: None,
                // A random number, not the next one: a client that could guess it could write a payload that looks like a frame.
                generation: disk.random().max(1),
                last_sequence: sequence,
                fences: HashMap::new(),
                fence_tokens: 0,
            }),
            partitions,
            unsaved: UnsavedBatches::default(),
            recent: RecentFrames::after(sequence),
            bytes_since_checkpoint: AtomicU64::new(0),
            checkpoints: Mutex::new(checkpoints),
            health,
            settings,
            disk,
            layout,
            folder,
        };
        let last_frame = core.replay(generation, sequence, now, &mut recovered)?;
        // Reported before the damaged journal is freed: the next start would not find the damage any more.
        recovered.damage.iter().for_each(|damage| core.health.report_damage(damage, None));
        core.begin_generation(last_frame.as_ref(), now)?;
        recovered.partitions = core.partitions.all().len();
        Ok((core, recovered))
    }

    fn replay(
        &self,
        generation: u64,
        covered: u64,
        now: i64,
        recovered: &mut LogRecovery,
    ) -> Result<Option<FoundFrame>, OpenError> {
        let journal = self.layout.journal();
        let io = |error| OpenError::io(format!("reading the journal {}", journal.display()))(error);
        let scan = scan(&*self.disk, &journal, generation, covered).map_err(io)?;
        recovered.torn_tail_cut = scan.torn;
        recovered.damage.extend(scan.damage.into_iter().map(|(_, _, damage)| damage));
        let mut broken = scan.broken.iter().peekable();
        let mut lost_ends = HashMap::new();
        for frame in &scan.frames {
            while let Some(lost) = broken.next_if(|lost| lost.sequence < frame.sequence) {
                self.note_lost(lost.body(&*self.disk, &journal).map_err(io)?, &mut lost_ends);
            }
            let body = frame.body(&*self.disk, &journal).map_err(io)?;
            self.replay_frame(frame, body, &mut lost_ends, recovered);
            recovered.frames_replayed += 1;
            if self.wants_relief() {
                // On a full disk the batches stay in memory, at most as much as the journal holds. Until then the log accepts nothing.
                self.relieve_memory(now).ok();
            }
        }
        lock(&self.journal).last_sequence = self.recent.published();
        for partition in self.partitions.all() {
            partition.reach_first();
            if let Some(end) = lost_ends.get(&partition.key) {
                partition.skip_to(*end);
            }
        }
        Ok(scan.frames.into_iter().next_back())
    }

    /// Makes the names of all partitions durable. Otherwise a checkpoint does this.
    fn sync_topic_names(&self) -> io::Result<()> {
        let topics: BTreeSet<u32> = self.partitions.all().iter().map(|partition| partition.key.topic).collect();
        topics.into_iter().try_for_each(|topic| self.disk.sync_dir(&self.layout.topic(topic)))?;
        self.disk.sync_dir(&self.layout.topics())
    }

    /// Records the end offsets of an unreadable frame: its records were acknowledged, so their offsets must not be used again. No CRC
    /// covers its headers. So a header counts only if it fits the known offsets, and until a whole batch of its partition replaces it.
    fn note_lost(&self, body: Bytes, lost_ends: &mut HashMap<PartitionKey, u64>) {
        let mut rest = &body[..];
        while let Ok((header, records)) = BatchHeader::read_from_prefix(rest) {
            let (len, count) = (header.body_len.get() as usize, header.count.get());
            if !header.is_ours(self.folder.secret) || len > records.len() || count as usize > len {
                return;
            }
            let key = PartitionKey { topic: header.topic.get(), partition: header.partition.get() };
            let base = header.base_offset.get();
            let next = || self.partitions.get(key).map(|partition| partition.bounds().1);
            if lost_ends.get(&key).copied().or_else(next) == Some(base) {
                lost_ends.insert(key, base + u64::from(count));
            }
            rest = &records[len..];
        }
    }

    fn replay_frame(
        &self,
        frame: &FoundFrame,
        mut body: Bytes,
        lost_ends: &mut HashMap<PartitionKey, u64>,
        recovered: &mut LogRecovery,
    ) {
        let mut replayed = RecentFrame { sequence: frame.sequence, bytes: frame.len as u64, partitions: Vec::new() };
        while !body.is_empty() {
            let Ok(batch) = LogBatch::read(&body, self.folder.secret) else {
                recovered.damage.push(frame.bad_batch());
                break;
            };
            body.advance(batch.bytes.len());
            let key = PartitionKey { topic: batch.header.topic.get(), partition: batch.header.partition.get() };
            // An unknown partition was deleted. A batch below the next offset is already in the segments.
            let Some(partition) = self.partitions.get(key).filter(|partition| partition.bounds().1 <= batch.base())
            else {
                continue;
            };
            lost_ends.remove(&key);
            self.unsaved.add(&partition, batch, frame.sequence);
            replayed.partitions.push(partition);
        }
        self.bytes_since_checkpoint.fetch_add(replayed.bytes, Ordering::Relaxed);
        self.recent.publish(replayed);
    }

    /// Writes a checkpoint, which makes the new generation durable, and begins its journal. If there is no space for it, the log is open
    /// for reading and rejects appends until there is.
    fn begin_generation(&self, last: Option<&FoundFrame>, now: i64) -> Result<(), OpenError> {
        match self.checkpoint(now, &mut || {}) {
            Ok(()) => Ok(()),
            // If its writer was killed before the sync, the last frame may be only in the page cache. Readers must not see records that a
            // power loss could still take. The frames before it were synced before it was written.
            Err(crate::AppendError::DiskFull(_)) => {
                let secured = last.map_or(Ok(()), |frame| frame.secure(&*self.disk, &self.layout.journal()));
                secured.and_then(|()| self.sync_topic_names()).map_err(OpenError::io("syncing what was found"))
            }
            Err(error) => Err(OpenError::Io {
                what: "recovering the log".to_owned(),
                source: io::Error::other(error.to_string()),
            }),
        }
    }
}

/// Reads the checkpoint or its copy, and makes the names that recovery depends on durable. Without a checkpoint the log is new, and the
/// contents of its segments do not count.
fn open_checkpoint(data: &DataFolder, layout: &LogLayout, health: &LogHealth) -> Result<Option<Checkpoint>, OpenError> {
    let (disk, path) = (&*data.disk, layout.checkpoint());
    let io = |what: &str| OpenError::io(format!("{what} {}", layout.root.display()));
    disk.create_dirs(&layout.topics()).map_err(io("making"))?;
    let (checkpoint, replaced) = Checkpoint::read(disk, &path)?.unzip();
    let is_begun = is_begun(disk, &layout.journal()).map_err(io("reading the journal of"))?;
    if let Some(replaced) = replaced.flatten() {
        // The very first checkpoint may have been interrupted between the copy and the file. The journal begins after both.
        let is_damaged = is_begun || disk.exists(&path).map_err(io("looking into"))?;
        if is_damaged {
            set_aside(disk, &path).map_err(io("setting the damaged checkpoint aside in"))?;
            health.report_replaced(replaced);
        }
    }
    if checkpoint.is_none() && is_begun {
        let why = "it and its copy are missing, and the journal was written to".to_owned();
        return Err(OpenError::Unreadable { path, why });
    }
    // The writer of the checkpoint may have been killed before the file name was durable. Recovery depends on this checkpoint, so a
    // power loss must not take it. A new log needs its folder names synced: topics may precede a first checkpoint that finds no space.
    disk.sync_dir(&layout.root).map_err(io("syncing"))?;
    if checkpoint.is_none() {
        disk.sync_dir(&data.path).map_err(io("syncing the folder above"))?;
    }
    Ok(checkpoint)
}

/// Opens the partitions at their marks in the checkpoint. Adds the files to sync to `checkpoints`, and damage to `damaged`.
fn open_partitions(
    data: &DataFolder,
    layout: &LogLayout,
    settings: &LogSettings,
    checkpoints: &mut CheckpointState,
    now: i64,
    damaged: &mut Vec<LogDamage>,
) -> io::Result<Vec<LogPartition>> {
    let CheckpointState { touched, last: checkpoint } = checkpoints;
    let marks: HashMap<(u32, u32), &PartitionMark> = checkpoint
        .iter()
        .flat_map(|checkpoint| &checkpoint.partitions)
        .map(|mark| ((mark.topic.get(), mark.partition.get()), mark))
        .collect();
    let (disk, topics) = (&data.disk, &layout.topics());
    let mut partitions = Vec::new();
    for name in disk.list(topics)? {
        let folder = topics.join(&name);
        if name.ends_with(".deleted") {
            // The process that renamed the folder may have been killed before the name was durable. Unsynced, the topic could come back.
            disk.sync_dir(topics)?;
            disk.remove_dirs(&folder)?;
            continue;
        }
        let Ok(topic) = name.parse::<u32>() else { continue };
        let indexes: BTreeSet<u32> = disk.list(&folder)?.iter().filter_map(|name| name.parse().ok()).collect();
        for partition in indexes {
            let key = PartitionKey { topic, partition };
            let of = BatchScope { secret: data.secret, key };
            let mark = marks.get(&(topic, partition)).copied();
            let partition_folder = folder.join(partition.to_string());
            // The process that created these folders may have been killed before their names were synced.
            touched.extend([folder.clone(), partition_folder.clone()]);
            let (opened, damage) = LogPartition::open(of, partition_folder, disk.clone(), settings, mark, now)?;
            touched.extend(opened.active_path());
            damaged.extend(damage);
            partitions.push(opened);
        }
    }
    Ok(partitions)
}
