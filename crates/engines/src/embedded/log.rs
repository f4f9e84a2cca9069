//! The `Log` port on the storage crate.

use std::future::Future;
use std::sync::Arc;

use whimbrel_model::ports::{
    AppendOutcome, Bounds, CommitOutcome, Entry, Fence, Log, LogError, PortFuture, ReadBatch, ReadLimits,
};
use whimbrel_model::{Clock, Event, EventSink, PartitionId, Timestamp, TopicNumber};
use whimbrel_storage::fallback::Replacement;
use whimbrel_storage::{
    AppendError, DataFolder, LogEvent, LogRecovery, LogReply, LogSettings, LogStore, LogTicket, LogWrite, OpenError,
    ReadError,
};

use super::records::{PartitionedEntries, append_error, decode, id_of, key_of, read_error, size_of_entry};
use super::scrub::Scrub;

/// The embedded log. Clones share it.
#[derive(Clone)]
pub struct EmbeddedLog {
    pub(super) store: Arc<LogStore>,
    scrub: Arc<Scrub>,
}

/// One record takes at most half of a frame. A commit that copies the largest record (a hold's `fired` beside its message) must fit into
/// one frame.
const RECORDS_PER_LARGEST_FRAME: usize = 2;

/// An upper bound for a batch's header and a record's lengths.
const RECORD_OVERHEAD_BYTES: usize = 256;

/// The maximum [`whimbrel_model::Record::size`] of a log with these settings.
pub fn record_bytes_max(settings: &LogSettings) -> usize {
    settings.frame_bytes_max / RECORDS_PER_LARGEST_FRAME - RECORD_OVERHEAD_BYTES
}

/// The process's clock, in the form that the storage crate needs.
struct LogClock(Arc<dyn Clock>);

impl whimbrel_storage::StorageClock for LogClock {
    fn now_ms(&self) -> i64 {
        self.0.now().as_millis()
    }

    fn expiry_ms(&self) -> i64 {
        self.0.expiry_now().as_millis()
    }
}

impl EmbeddedLog {
    pub fn open(
        folder: Arc<DataFolder>,
        settings: LogSettings,
        clock: Arc<dyn Clock>,
        events: EventSink,
    ) -> Result<(Self, LogRecovery), OpenError> {
        let on_event = Box::new(move |event| events(event_of(event)));
        let log_clock = Arc::new(LogClock(Arc::clone(&clock)));
        let (store, recovered) = LogStore::open(folder, settings, log_clock, on_event)?;
        let store = Arc::new(store);
        let scrub = Arc::new(Scrub::start(Arc::clone(&store), clock));
        Ok((Self { store, scrub }, recovered))
    }

    /// Commits queued work and writes a last checkpoint. Rejects later appends.
    pub async fn close(&self) {
        let (store, scrub) = (self.store.clone(), self.scrub.clone());
        let close = move || {
            scrub.stop();
            store.close();
        };
        tokio::task::spawn_blocking(close).await.ok();
    }

    pub fn partitions(&self) -> Vec<PartitionId> {
        self.store.partition_keys().into_iter().map(id_of).collect()
    }

    /// The latest time of the last records of the partitions.
    pub fn latest_time(&self) -> Option<Timestamp> {
        self.store.latest_time().map(Timestamp::from_millis)
    }

    /// The maximum [`whimbrel_model::Record::size`] that the log accepts.
    pub fn record_bytes_max(&self) -> usize {
        record_bytes_max(self.store.settings())
    }

    /// An append that fits into one frame. The call itself queues it, so that appends keep the order of the calls, independent of polling.
    fn append_fitting(&self, entries: &[Entry]) -> impl Future<Output = AppendOutcome> + Send + use<> {
        let (parts, places) = PartitionedEntries::new(entries).split();
        let submitted = self.store.submit(LogWrite::Append(parts));
        async move {
            let failed = |error: AppendError| vec![Err(append_error(error)); places.len()];
            let outcome = match submitted {
                Ok(ticket) => ticket.await,
                Err(error) => return failed(error),
            };
            match outcome {
                LogReply::Appended(bases) => {
                    let offset = |&(part, index): &(u32, u32)| {
                        bases[part as usize].clone().map(|base| base + u64::from(index)).map_err(append_error)
                    };
                    places.iter().map(offset).collect()
                }
                LogReply::Failed(error) => failed(error),
                other => failed(AppendError::Unknown(format!("unexpected answer to an append: {other:?}"))),
            }
        }
    }

    /// An append that contains too large records, or exceeds one frame: in several pieces, in order.
    async fn append_in_pieces(&self, entries: Vec<Entry>) -> AppendOutcome {
        let limit = self.record_bytes_max();
        let mut answers = Vec::with_capacity(entries.len());
        let mut piece = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            let size = entry.record.size();
            let encoded = size_of_entry(&entry.record);
            if size > limit || bytes + encoded > self.piece_bytes_max() {
                let taken = self.append_piece(&std::mem::take(&mut piece), &answers).await;
                answers.extend(taken);
                bytes = 0;
            }
            if size > limit {
                answers.push(Err(LogError::TooLarge { size, limit }));
            } else {
                bytes += encoded;
                piece.push(entry);
            }
        }
        let taken = self.append_piece(&piece, &answers).await;
        answers.extend(taken);
        answers
    }

    /// Appends a piece, unless an earlier piece failed: later messages of a key must not overtake earlier ones.
    async fn append_piece(&self, piece: &[Entry], before: &[Result<u64, LogError>]) -> AppendOutcome {
        let stopped = before.iter().find_map(|answer| match answer {
            Ok(_) | Err(LogError::TooLarge { .. } | LogError::UnknownPartition(_)) => None,
            Err(error) => Some(error),
        });
        match stopped {
            _ if piece.is_empty() => Vec::new(),
            // The outcome of the first piece is unknown, but this piece was certainly not written.
            Some(LogError::Unknown(why)) => vec![Err(LogError::Unavailable(why.clone())); piece.len()],
            Some(error) => vec![Err(error.clone()); piece.len()],
            None => self.append_fitting(piece).await,
        }
    }

    /// The encoded bytes that certainly fit into a frame, for any distribution over partitions.
    fn piece_bytes_max(&self) -> usize {
        self.store.settings().frame_bytes_max / RECORDS_PER_LARGEST_FRAME
    }

    /// Checks a commit and queues it, or returns the rejection.
    fn submit_commit(&self, fence: &Fence, entries: &[Entry]) -> Result<(LogTicket, Vec<(u32, u32)>), CommitOutcome> {
        let token = *fence.handle.downcast_ref::<u64>().ok_or(CommitOutcome::Fenced)?;
        if entries.is_empty() {
            return Err(CommitOutcome::Done(Vec::new()));
        }
        let limit = self.record_bytes_max();
        let sizes = entries.iter().map(|entry| entry.record.size());
        if let Some((index, size)) = sizes.enumerate().find(|(_, size)| *size > limit) {
            return Err(CommitOutcome::Refused { index, error: LogError::TooLarge { size, limit } });
        }
        let (parts, places) = PartitionedEntries::new(entries).split();
        let work = LogWrite::Commit { fence: fence.name.to_string(), token, parts };
        let ticket = self.store.submit(work).map_err(|error| CommitOutcome::NotNow(append_error(error)))?;
        Ok((ticket, places))
    }

    async fn read_records(&self, partition: PartitionId, from: u64, limits: ReadLimits) -> Result<ReadBatch, LogError> {
        let key = key_of(partition);
        let max_bytes = limits.max_bytes.max(1);
        let read = match self.store.read_memory(key, from, max_bytes).map_err(read_error)? {
            Some(read) => read,
            None => {
                let store = self.store.clone();
                let read = tokio::task::spawn_blocking(move || store.read(key, from, max_bytes));
                read.await.map_err(|error| LogError::Unavailable(error.to_string()))?.map_err(read_error)?
            }
        };
        let (records, next) = decode(&read.batches, from, read.next, limits.max_records.max(1), max_bytes);
        Ok(ReadBatch { records, next })
    }

    /// Runs a call that may block on the disk, on a thread that may block.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&LogStore) -> T + Send + 'static,
    ) -> Result<T, LogError> {
        let store = self.store.clone();
        let result = tokio::task::spawn_blocking(move || call(&store)).await;
        result.map_err(|error| LogError::Unavailable(error.to_string()))
    }
}

impl Log for EmbeddedLog {
    fn largest_record(&self, _: TopicNumber) -> usize {
        self.record_bytes_max()
    }

    fn refusal(&self) -> Option<LogError> {
        self.store.refusal().map(append_error)
    }

    fn append(&self, entries: Vec<Entry>) -> PortFuture<'_, AppendOutcome> {
        let fits_alone = |entry: &Entry| entry.record.size() <= self.record_bytes_max();
        let encoded = entries.iter().map(|entry| size_of_entry(&entry.record)).sum::<usize>();
        if entries.is_empty() {
            Box::pin(async { Vec::new() })
        } else if encoded <= self.piece_bytes_max() && entries.iter().all(fits_alone) {
            Box::pin(self.append_fitting(&entries))
        } else {
            Box::pin(self.append_in_pieces(entries))
        }
    }

    fn fence<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<Fence, LogError>> {
        Box::pin(async move {
            let ticket = self.store.submit(LogWrite::OpenFence(name.to_owned())).map_err(append_error)?;
            match ticket.await {
                LogReply::FenceOpened(token) => Ok(Fence { name: name.into(), epoch, handle: Arc::new(token) }),
                LogReply::Failed(error) => Err(append_error(error)),
                other => Err(LogError::Unknown(format!("unexpected answer to a fence: {other:?}"))),
            }
        })
    }

    fn commit<'a>(&'a self, fence: &'a Fence, entries: Vec<Entry>) -> PortFuture<'a, CommitOutcome> {
        let submitted = self.submit_commit(fence, &entries);
        Box::pin(async move {
            match submitted {
                Ok((ticket, places)) => commit_outcome(ticket.await, &places),
                Err(outcome) => outcome,
            }
        })
    }

    fn read(
        &self,
        partition: PartitionId,
        from: u64,
        limits: ReadLimits,
    ) -> PortFuture<'_, Result<ReadBatch, LogError>> {
        Box::pin(async move {
            let read = self.read_records(partition, from, limits).await?;
            if !read.records.is_empty() || read.next > from || limits.wait.is_zero() {
                return Ok(read);
            }
            let arrival = self.store.arrival(key_of(partition), from).map_err(read_error)?;
            match tokio::time::timeout(limits.wait, arrival).await {
                Ok(()) => self.read_records(partition, from, limits).await,
                Err(_) => Ok(read),
            }
        })
    }

    fn bounds(&self, partition: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>> {
        let bounds = self.store.bounds(key_of(partition));
        Box::pin(async move { bounds.map(|(first, next)| Bounds { first, next }).map_err(read_error) })
    }

    fn offset_at(&self, partition: PartitionId, time: Timestamp) -> PortFuture<'_, Result<u64, LogError>> {
        Box::pin(async move {
            self.blocking(move |store| store.offset_at(key_of(partition), time.as_millis())).await?.map_err(read_error)
        })
    }

    fn trim(&self, partition: PartitionId, before: u64) -> PortFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            let trimmed: Result<(), ReadError> =
                self.blocking(move |store| store.trim(key_of(partition), before)).await?;
            trimmed.map_err(read_error)
        })
    }
}

fn commit_outcome(outcome: LogReply, places: &[(u32, u32)]) -> CommitOutcome {
    match outcome {
        LogReply::Committed(bases) => {
            CommitOutcome::Done(places.iter().map(|(part, index)| bases[*part as usize] + u64::from(*index)).collect())
        }
        LogReply::Fenced => CommitOutcome::Fenced,
        LogReply::Refused { part, error } => CommitOutcome::Refused {
            index: PartitionedEntries::first_of_part(places, part),
            error: append_error(error),
        },
        LogReply::Failed(AppendError::Unknown(why)) => CommitOutcome::Unknown(why),
        LogReply::Failed(error) => CommitOutcome::NotNow(append_error(error)),
        other => CommitOutcome::Unknown(format!("unexpected answer to a commit: {other:?}")),
    }
}

/// The event for a small file that was damaged or missing and had a copy.
pub(super) fn file_replaced(replaced: &Replacement) -> Event {
    let (file, why, used) = (replaced.file.display(), &replaced.why, replaced.used.display());
    let detail = format!("{file} cannot be used: {why}. Its copy {used} is used, and nothing is lost; check the disk");
    Event::warning("file_damaged", detail).with("file", file).with("reason", why).with("used", used)
}

fn event_of(event: LogEvent) -> Event {
    match event {
        LogEvent::Damaged(damage, partition) => {
            let mut event = Event::warning("damage_found", damage.to_string())
                .with("file", &damage.file)
                .with("position", damage.position)
                .with("what", &damage.what);
            if let Some(key) = partition {
                event = event.with("topic_number", key.topic).with("partition", key.partition);
            }
            match damage.resume_at {
                Some(offset) => event.with("resume_at", offset),
                None => event,
            }
        }
        LogEvent::SegmentUnreadable { key, file, error } => {
            let file = file.display();
            let detail = format!(
                "retention cannot read {file} of topic number {}, partition {}: {error}; other segments are dropped as usual",
                key.topic, key.partition
            );
            Event::warning("segment_unreadable", detail)
                .with("file", file)
                .with("error", error)
                .with("topic_number", key.topic)
                .with("partition", key.partition)
        }
        LogEvent::FileReplaced(replaced) => file_replaced(&replaced),
        LogEvent::DiskFull(why) => {
            Event::warning("disk_full", format!("the log rejects writes until the disk has space: {why}"))
        }
        LogEvent::Delayed(why) => {
            let detail = format!("the log cannot write its files now: {why}. It retries, and no data is lost");
            Event::warning("checkpoint_delayed", detail).with("error", why)
        }
        LogEvent::DiskHasRoom => {
            Event::new("disk_space_recovered", "the disk has space again, and the log accepts writes")
        }
        LogEvent::Poisoned(why) => {
            Event::failure("log_failed", format!("the log failed and rejects writes until a restart: {why}"))
        }
    }
}
