//! The `AttemptStore` port as files of the data folder: delivery attempts, and statistics by the minute.
//!
//! Callers put notes into a heap in memory and never wait. One thread takes the heap once a second, or earlier if it has grown. It groups
//! the notes by subscription and partition and appends them to the current slice ([`shelf`]). A look-up waits until the thread has written
//! the heap. It then reads the heads of all chunks ([`slice`]) and the few bodies that may have its entries. [`attempts`] and [`minutes`]
//! define the formats.
//!
//! No delivery waits for the notebook, and no failure of it keeps the server from starting. If the heap is full or the disk fails, the
//! notebook drops notes and counts them. Events report the first failure and the recovery; `/readyz` has a warning in between. Nothing is
//! synced: notes survive a crash of the process, and a power loss loses about the last 30 s of them.

mod attempts;
mod minutes;
mod shelf;
mod slice;
mod slice_reports;
mod varint;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use whimbrel_model::ports::{AttemptOutcome, AttemptRecord, AttemptStore, MinuteRow, PortFuture};
use whimbrel_model::{Clock, PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

use super::lsm::report::{StoreReport, StoreReports};
use super::thread_priority::lower_priority;
use attempts::{AttemptChunks, attempts_group};
use minutes::{minute_chunk, minutes_group};
use shelf::{Moment, Shelf, ShelfError, ShelfSettings};
use slice::{SliceSnapshot, scan};
use slice_reports::SliceReports;

/// The interval at which the heap is written.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// The number of notes in the heap that triggers a write at once.
const WRITE_AT_NOTES: usize = 64 << 10;
/// The maximum number of notes in the heap; more are dropped.
const NOTES_WAITING_MAX: usize = 512 << 10;
/// The bytes of answers that trigger a write at once, and beyond which notes are dropped.
const WRITE_AT_BYTES: usize = 4 << 20;
const BYTES_WAITING_MAX: usize = 32 << 20;
/// The maximum number of rows of minutes in the heap.
const MINUTES_WAITING_MAX: usize = 64 << 10;
/// The duration of one slice of attempts. A slice of minutes covers a day.
const ATTEMPTS_SLICE: Duration = Duration::from_secs(600);
const MINUTES_SLICE: Duration = Duration::from_secs(86_400);
const THREAD: &str = "notebook-writer";
const STORE: &str = "notebook";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotebookSettings {
    /// The maximum bytes of attempts; beyond it, the oldest slice is deleted.
    pub attempts_bytes_max: u64,
    /// The maximum bytes of statistics by the minute.
    pub minutes_bytes_max: u64,
    /// The retention of both.
    pub keep: Duration,
}

impl Default for NotebookSettings {
    fn default() -> Self {
        Self {
            attempts_bytes_max: 256 << 20,
            minutes_bytes_max: 64 << 20,
            keep: Duration::from_millis(whimbrel_model::limits::RETENTION_DEFAULT_MS),
        }
    }
}

/// A notebook in the data folder.
pub struct FileNotebook {
    heap: Arc<Heap>,
    reports: SliceReports,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Notes that are not written yet.
#[derive(Default)]
struct Heap {
    waiting: Mutex<WaitingNotes>,
    /// Wakes the thread for an early write.
    early: Condvar,
}

#[derive(Default)]
struct WaitingNotes {
    notes: Vec<Vec<AttemptRecord>>,
    /// The number of those notes, and the bytes of their answers.
    note_count: usize,
    note_bytes: usize,
    minutes: Vec<(TopicNumber, Timestamp, MinuteRow)>,
    /// Look-ups that wait until all notes so far are written.
    lookups: Vec<oneshot::Sender<WrittenSlices>>,
    closed: bool,
}

impl WaitingNotes {
    fn is_due(&self) -> bool {
        let is_large = self.note_count >= WRITE_AT_NOTES || self.note_bytes >= WRITE_AT_BYTES;
        is_large || !self.lookups.is_empty() || self.closed
    }
}

#[derive(Clone, Default)]
struct WrittenSlices {
    attempts: Vec<SliceSnapshot>,
    minutes: Vec<SliceSnapshot>,
}

impl Heap {
    fn waiting(&self) -> MutexGuard<'_, WaitingNotes> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next write, and takes the heap.
    fn take(&self, written_at: Instant) -> WaitingNotes {
        let mut waiting = self.waiting();
        loop {
            let left = WRITE_EVERY.saturating_sub(written_at.elapsed());
            if waiting.is_due() || left.is_zero() {
                let closed = waiting.closed;
                let taken = std::mem::take(&mut *waiting);
                waiting.closed = closed;
                return WaitingNotes { closed, ..taken };
            }
            waiting = self.early.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl FileNotebook {
    /// Starts the thread that opens the files. Fails if the thread cannot be started, never because of the files.
    pub fn open(
        path: &Path,
        settings: NotebookSettings,
        clock: Arc<dyn Clock>,
        reports: StoreReports,
    ) -> io::Result<Self> {
        let report = StoreReport::of_optional(reports, STORE);
        let reports = SliceReports::new(report.clone());
        let shelf = |family, slice_time, bytes_max| {
            let settings = ShelfSettings { slice_time, bytes_max, keep: settings.keep };
            Shelf::new(path, family, settings, reports.clone())
        };
        let writer = NotebookWriter {
            attempts: shelf("attempts", ATTEMPTS_SLICE, settings.attempts_bytes_max),
            minutes: shelf("minutes", MINUTES_SLICE, settings.minutes_bytes_max),
            chunks: AttemptChunks::default(),
            report,
            has_failed: false,
            clock,
        };
        let heap = Arc::<Heap>::default();
        let taken = Arc::clone(&heap);
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || writer.run(&taken))?;
        lower_priority(THREAD);
        Ok(Self { heap, reports, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until all notes are written. Returns the slices that contain them.
    async fn look(&self) -> WrittenSlices {
        let (lookup, seen) = oneshot::channel();
        {
            let mut waiting = self.heap.waiting();
            if waiting.closed {
                return WrittenSlices::default();
            }
            waiting.lookups.push(lookup);
        }
        self.heap.early.notify_one();
        seen.await.unwrap_or_default()
    }
}

impl Drop for FileNotebook {
    fn drop(&mut self) {
        self.heap.waiting().closed = true;
        self.heap.early.notify_one();
        if let Some(thread) = self.thread.get_mut().map_or(None, Option::take) {
            let _ = thread.join();
        }
    }
}

impl AttemptStore for FileNotebook {
    fn note(&self, notes: Vec<AttemptRecord>) {
        let (count, bytes) = (notes.len(), notes.iter().map(answer_bytes).sum::<usize>());
        if count == 0 {
            return;
        }
        let mut waiting = self.heap.waiting();
        if waiting.note_count + count > NOTES_WAITING_MAX || waiting.note_bytes + bytes > BYTES_WAITING_MAX {
            drop(waiting);
            return dropped(count);
        }
        let was_due = waiting.is_due();
        waiting.notes.push(notes);
        waiting.note_count += count;
        waiting.note_bytes += bytes;
        let is_due = waiting.is_due();
        drop(waiting);
        if is_due && !was_due {
            self.heap.early.notify_one();
        }
    }

    fn attempts(
        &self,
        subscription: SubscriptionNumber,
        partition: PartitionId,
        offset: u64,
    ) -> PortFuture<'_, Vec<AttemptRecord>> {
        Box::pin(async move {
            let (slices, reports) = (self.look().await.attempts, self.reports.clone());
            let looking = tokio::task::spawn_blocking(move || {
                let (group, mut found) = (attempts_group(subscription, partition), Vec::new());
                scan(&slices, group, offset..=offset, &reports, |head, body| {
                    attempts::find(head, body, offset, &mut found);
                });
                found.sort_by_key(|note| (note.at, note.attempt));
                found
            });
            looking.await.unwrap_or_default()
        })
    }

    fn note_minute(&self, topic: TopicNumber, minute: Timestamp, row: MinuteRow) {
        let mut waiting = self.heap.waiting();
        if waiting.minutes.len() >= MINUTES_WAITING_MAX {
            drop(waiting);
            return dropped(1);
        }
        waiting.minutes.push((topic, minute, row));
    }

    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        Box::pin(async move {
            if from >= to {
                return Vec::new();
            }
            let mut slices = self.look().await.minutes;
            // A note of a minute is written after that minute began: slices that were filled before `from` have only earlier minutes.
            let first = slices.windows(2).take_while(|pair| pair[1].begins < from).count();
            slices.drain(..first);
            let reports = self.reports.clone();
            let looking = tokio::task::spawn_blocking(move || {
                let mut rows = BTreeMap::<Timestamp, MinuteRow>::new();
                let wanted = minutes::sortable(from)..=minutes::sortable(to) - 1;
                scan(&slices, minutes_group(topic), wanted, &reports, |head, body| {
                    if let Some((minute, row)) = minutes::read(head, body) {
                        rows.entry(minute).or_default().add(&row);
                    }
                });
                rows.into_iter().collect()
            });
            looking.await.unwrap_or_default()
        })
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async { drop(self.look().await) })
    }
}

/// The outcome of reading all chunks of a notebook.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NotebookCheck {
    /// Slices that were read.
    pub files: usize,
    /// Damaged places: file, position, reason.
    pub damages: Vec<(PathBuf, u64, String)>,
    /// Files that are not slices of this format.
    pub not_checked: Vec<PathBuf>,
}

/// Reads every checksum of the notebook in a folder and changes nothing. A server may append to it or delete slices meanwhile.
pub(crate) fn check(folder: &Path, on_read: &dyn Fn(u64)) -> io::Result<NotebookCheck> {
    let mut found = NotebookCheck::default();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Ok(metadata) = path.metadata() else { continue };
        let slice = SliceSnapshot { path, begins: Timestamp::default(), len: metadata.len() };
        match slice::survey(&slice) {
            Ok(Some(survey)) => {
                found.files += 1;
                let damages = survey.damages.into_iter();
                found.damages.extend(damages.map(|damage| (slice.path.clone(), damage.position, damage.reason)));
            }
            // A slice that is being created.
            Ok(None) if slice.is_empty() => {}
            Ok(None) => found.not_checked.push(slice.path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => found.damages.push((slice.path, 0, error.to_string())),
        }
        on_read(metadata.len());
    }
    Ok(found)
}

fn answer_bytes(note: &AttemptRecord) -> usize {
    match &note.outcome {
        AttemptOutcome::Delivered { .. } => 0,
        AttemptOutcome::Failed { answer, reason, .. } => answer.len() + reason.len(),
    }
}

/// Counts notes that were dropped because the heap is full or a write failed.
fn dropped(count: usize) {
    metrics::counter!("whimbrel_statistics_dropped_total").increment(count as u64);
}

/// The state of the thread.
struct NotebookWriter {
    attempts: Shelf,
    minutes: Shelf,
    chunks: AttemptChunks,
    report: StoreReport,
    /// Whether a failure was reported and the recovery was not reported yet.
    has_failed: bool,
    clock: Arc<dyn Clock>,
}

impl NotebookWriter {
    fn run(mut self, heap: &Heap) {
        let opened = self.attempts.open();
        self.report_outcome(opened, 0);
        let opened = self.minutes.open();
        self.report_outcome(opened, 0);
        let mut written_at = Instant::now();
        loop {
            let waiting = heap.take(written_at);
            written_at = Instant::now();
            let closed = waiting.closed;
            self.write(waiting);
            if closed {
                return;
            }
        }
    }

    fn write(&mut self, waiting: WaitingNotes) {
        let WaitingNotes { notes, minutes, lookups, note_count, .. } = waiting;
        let moment = Moment { now: self.clock.now(), expiry: self.clock.expiry_now() };
        notes.iter().flatten().for_each(|note| self.chunks.add(note));
        let bytes = self.chunks.take();
        let written = self.attempts.append(&bytes, moment);
        self.report_outcome(written, note_count);
        self.chunks.give_back(bytes);
        let mut bytes = Vec::new();
        minutes.iter().for_each(|(topic, minute, row)| minute_chunk(*topic, *minute, row, &mut bytes));
        let written = self.minutes.append(&bytes, moment);
        self.report_outcome(written, minutes.len());
        if !lookups.is_empty() {
            let seen = WrittenSlices { attempts: self.attempts.seen(), minutes: self.minutes.seen() };
            // A caller may have stopped waiting.
            lookups.into_iter().for_each(|lookup| drop(lookup.send(seen.clone())));
        }
    }

    /// Counts the notes that a failed write lost. Reports the first failure, and the recovery after both shelves can write again.
    fn report_outcome(&mut self, written: Result<(), ShelfError>, count: usize) {
        if let Err(ShelfError { file, source }) = written {
            dropped(count);
            if !std::mem::replace(&mut self.has_failed, true) {
                self.report.failed(&file, &source.to_string());
            }
        } else if self.has_failed && !self.attempts.is_failing() && !self.minutes.is_failing() {
            self.has_failed = false;
            self.report.recovered();
        }
    }
}

#[cfg(test)]
#[path = "notebook/tests.rs"]
mod tests;
