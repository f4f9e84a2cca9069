//! The `Receipts` port on an LSM beside the log.
//!
//! Answers are kept in keyspaces by slices of time, which are dropped whole when they are too old: no tombstones, no scans.
//! Claims under way are only in memory. A crash forgets them, and may forget the last answers; but every record carries its claim
//! in its headers, so [`Receipts::recover`] finds them again in the log, from the offset up to which the store is known to be
//! complete. That offset is noted every few seconds: the partition's end as it was, or where the oldest claim under way began,
//! whichever is less. The LSM keeps the order of its writes through a crash, so a noted offset never outlives the answers below it.
//!
//! The store is a view of the log ([`StoreGuard`]): after a failure it is opened again, or begins empty, and follows the log once more
//! before the next claim begins. One thread does all I/O ([`claims`]): a slow disk delays publishes with a key or an id, and no others.

mod claims;
pub(crate) mod keys;
mod store;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::Notify;
use whimbrel_model::hold::HEADER_DUE;
use whimbrel_model::ports::{
    Answer, Begun, Claim, ClaimKind, Log, LogError, PortFuture, ReadLimits, Receipts, ReceiptsError,
};
use whimbrel_model::record::{
    HEADER_ALSO_ID, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, split_idempotency_header,
};
use whimbrel_model::{Clock, HoldRecord, PartitionId, StoreHealth, StoredRecord, Timestamp};

use super::background::yields;
use super::lsm::report::StoreReports;
use super::lsm::{StoreError, StoreGuard, WorkThread};
use claims::Claims;
use keys::claim_key;
use store::{Receipt, ReceiptStore};

/// Partitions that are followed at the same time.
const FOLLOWED_AT_ONCE: usize = 16;
/// Records that are looked at together while following the log.
const FOLLOW_RECORDS: usize = 10_000;
const FOLLOW_BYTES: usize = 4 << 20;
/// How long a start waits for records that are durable and not yet visible.
const FOLLOW_WAIT_MAX: Duration = Duration::from_secs(60);
const FOLLOW_WAIT_STEP: Duration = Duration::from_secs(1);
/// Calls that wait for the thread; further callers wait until there is space.
const CALLS_WAITING_MAX: usize = 1024;
const STORE: &str = "receipts";
/// What `/readyz` names while the store follows the log: publishes with a key or an id are refused for so long.
const FOLLOWING: &str = "receipts (following the log)";
const THREAD: &str = "receipts";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptSettings {
    /// How long the first answer stays.
    pub window: Duration,
    /// How long a brought id is found again.
    pub id_window: Duration,
    /// When a claim that began and never finished may be taken by another; longer than any append takes.
    pub lease: Duration,
    /// How often the offsets are noted up to which the store is complete.
    pub note_interval: Duration,
}

impl Default for ReceiptSettings {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(whimbrel_model::limits::RECEIPT_WINDOW_DEFAULT_MS),
            id_window: Duration::from_millis(whimbrel_model::limits::RETENTION_DEFAULT_MS),
            lease: Duration::from_secs(60),
            note_interval: Duration::from_secs(2),
        }
    }
}

/// The partitions that exist now.
pub type ListPartitions = Box<dyn Fn() -> Vec<PartitionId> + Send + Sync>;

/// Receipts in an LSM of the data folder. Cloning shares them.
#[derive(Clone)]
pub struct LsmReceipts(Arc<Inner>);

struct Inner {
    settings: ReceiptSettings,
    claims: WorkThread<Claims>,
    /// Signalled when the store was opened again.
    reopened: Arc<Notify>,
    health: Arc<StoreHealth>,
    log: Arc<dyn Log>,
    partitions: ListPartitions,
    clock: Arc<dyn Clock>,
    /// Dropped after the thread, which does the work that waits.
    _store: StoreGuard<ReceiptStore>,
}

impl StoreError for ReceiptsError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

impl LsmReceipts {
    pub fn open(
        path: &Path,
        settings: ReceiptSettings,
        log: Arc<dyn Log>,
        partitions: ListPartitions,
        clock: Arc<dyn Clock>,
        reports: StoreReports,
    ) -> Result<Self, ReceiptsError> {
        let (opened, reopened) = (Arc::<AtomicU64>::default(), Arc::<Notify>::default());
        let after_open = {
            let (opened, reopened) = (Arc::clone(&opened), Arc::clone(&reopened));
            move |_: &Arc<ReceiptStore>| {
                yields("fjall:worker");
                opened.fetch_add(1, Ordering::AcqRel);
                reopened.notify_one();
            }
        };
        let health = Arc::clone(&reports.health);
        let (window, id_window) = (settings.window, settings.id_window);
        let open = move |path: &Path| ReceiptStore::open(path, window, id_window);
        let store = StoreGuard::open(STORE, path, reports, open, after_open).map_err(ReceiptsError::Unavailable)?;
        let claims = Claims::new(settings.clone(), store.handle(), opened);
        let claims = WorkThread::start(THREAD, CALLS_WAITING_MAX, claims);
        let claims = claims.map_err(|error| ReceiptsError::Unavailable(error.to_string()))?;
        Ok(Self(Arc::new(Inner { settings, claims, reopened, health, log, partitions, clock, _store: store })))
    }
}

impl Inner {
    /// Follows the log from where the store is complete to the ends of the partitions.
    async fn follow_all(&self, partitions: &[PartitionId]) -> Result<(), ReceiptsError> {
        let opened = self.claims.write(|claims| Ok::<_, ReceiptsError>(claims.begin_following())).await?;
        self.health.set_failed(FOLLOWING, "the log is read again".to_owned());
        self.follow_each(partitions, opened).await?;
        let set_followed = move |claims: &mut Claims| {
            claims.set_followed(opened);
            Ok::<_, ReceiptsError>(())
        };
        self.claims.write(set_followed).await?;
        self.health.set_working(FOLLOWING);
        Ok(())
    }

    async fn follow_each(&self, partitions: &[PartitionId], opened: u64) -> Result<(), ReceiptsError> {
        let now = self.clock.expiry_now();
        // A log that is far away takes its time for each; they need not wait for each other.
        let followed: Vec<_> = partitions.iter().map(|partition| self.follow(*partition, now, opened)).collect();
        stream::iter(followed).buffer_unordered(FOLLOWED_AT_ONCE).try_collect::<()>().await
    }

    /// Follows one partition from where the store is complete to its end.
    async fn follow(&self, partition: PartitionId, now: Timestamp, opened: u64) -> Result<(), ReceiptsError> {
        let noted = self.claims.write(move |claims| claims.applied(partition, opened)).await?;
        let bounds = match self.log.bounds(partition).await {
            // The topic was deleted, and nothing can be published to it.
            Err(LogError::UnknownPartition(_)) => return Ok(()),
            bounds => bounds.map_err(ReceiptsError::Log)?,
        };
        if bounds.first == bounds.next || noted == Some(bounds.next) {
            return self.note(partition, bounds.next, opened).await;
        }
        let mut from = match noted {
            Some(offset) => offset,
            None => self
                .log
                .offset_at(partition, now.saturating_sub(self.settings.window))
                .await
                .map_err(ReceiptsError::Log)?,
        };
        let limits = ReadLimits { max_records: FOLLOW_RECORDS, max_bytes: FOLLOW_BYTES, wait: Duration::ZERO };
        let waiting = ReadLimits { wait: FOLLOW_WAIT_STEP, ..limits };
        let mut waited = Duration::ZERO;
        loop {
            let limits = if waited.is_zero() { limits } else { waiting };
            match self.log.read(partition, from, limits).await {
                // A record behind an open transaction of another producer may carry a claim of ours.
                Ok(read) if read.next == from && from < bounds.next && waited < FOLLOW_WAIT_MAX => {
                    waited += FOLLOW_WAIT_STEP;
                }
                Ok(read) if read.next == from => {
                    if from < bounds.next {
                        tracing::warn!(%partition, from, "records are not visible yet; repeats of their publishes may be stored twice");
                    }
                    return self.note(partition, from, opened).await;
                }
                Ok(read) => {
                    let receipts: Vec<_> =
                        read.records.iter().flat_map(|stored| receipts_of(partition, stored)).collect();
                    self.claims.write(move |claims| claims.keep_found(&receipts, opened)).await?;
                    from = read.next;
                }
                Err(LogError::Trimmed { first, .. }) => from = first,
                // A damaged stretch cannot be followed; its event was written when it was found.
                Err(LogError::Damaged { resume_at, .. }) if resume_at > from => from = resume_at,
                // The log lost its end, which only a folder put together from two does; begin again at its end.
                Err(LogError::BeyondEnd { next, .. }) => from = next,
                Err(error) => return Err(ReceiptsError::Log(error)),
            }
        }
    }

    async fn is_store_open(&self) -> bool {
        self.claims.write(|claims| Ok::<_, ReceiptsError>(claims.is_open())).await.unwrap_or(false)
    }

    async fn note(&self, partition: PartitionId, offset: u64, opened: u64) -> Result<(), ReceiptsError> {
        self.claims.write(move |claims| claims.note_followed(partition, offset, opened)).await
    }

    /// Notes how far the store is complete, after it has followed the log where it was opened again.
    async fn note_all(&self) -> Result<(), ReceiptsError> {
        let partitions = (self.partitions)();
        if !self.claims.write(|claims| Ok::<_, ReceiptsError>(claims.has_followed())).await? {
            self.follow_all(&partitions).await?;
        }
        let mut ends = Vec::with_capacity(partitions.len());
        for partition in partitions {
            // The end is read before the claims are looked at: a record below it has its claim among them, or in the store.
            if let Ok(bounds) = self.log.bounds(partition).await {
                ends.push((partition, bounds.next));
            }
        }
        let now = self.clock.expiry_now();
        self.claims.write(move |claims| claims.note_all(&ends, now)).await
    }
}

/// The receipts that a record of the log is itself.
fn receipts_of(partition: PartitionId, stored: &StoredRecord) -> Vec<Receipt> {
    claimed_by(partition, stored).unwrap_or_default()
}

fn claimed_by(partition: PartitionId, stored: &StoredRecord) -> Option<Vec<Receipt>> {
    let headers = &stored.record.headers;
    let fingerprint = headers.get_str(HEADER_FINGERPRINT).and_then(|text| u64::from_str_radix(text, 16).ok())?;
    let id = headers.get_str(HEADER_ID)?;
    // A message that was held carries its claim into its topic too. Its publisher was answered when it was held.
    if headers.get(HEADER_DUE).is_some() {
        return None;
    }
    // A held message is a record of `_holds`, and is for another topic than that.
    let held = match HoldRecord::of(&stored.record, stored.offset) {
        Ok(HoldRecord::Held(hold)) => Some(hold),
        Ok(_) => return None,
        Err(_) => None,
    };
    let answer = Answer {
        id: id.to_owned(),
        partition,
        offset: stored.offset,
        due: held.as_ref().map(|hold| hold.due),
        answered_at: stored.record.timestamp,
    };
    let topic = held.map_or(partition.topic, |hold| hold.topic);
    // Without a key the id was brought.
    let (kind, owner, text) = match headers.get(HEADER_IDEMPOTENCY_KEY).and_then(split_idempotency_header)? {
        (owner, "") => (ClaimKind::Id, owner, id),
        (owner, key) => (ClaimKind::Key, owner, key),
    };
    let texts = std::iter::once(text).chain(headers.get_str(HEADER_ALSO_ID));
    let receipt = |text: &str| {
        let claim = Claim { owner: owner.to_owned(), kind, text: text.to_owned(), topic, partition, fingerprint };
        Receipt { kind, text: text.to_owned(), key: claim_key(&claim), fingerprint, answer: answer.clone() }
    };
    Some(texts.map(receipt).collect())
}

/// Notes from time to time until the receipts are dropped.
async fn keep_noting(inner: Weak<Inner>, interval: Duration) {
    let Some(reopened) = inner.upgrade().map(|inner| Arc::clone(&inner.reopened)) else { return };
    loop {
        let _ = tokio::time::timeout(interval, reopened.notified()).await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.note_all().await {
            tracing::warn!(%error, "the receipts cannot note how far they are complete; the next attempt follows");
        }
    }
}

impl Receipts for LsmReceipts {
    fn begin<'a>(&'a self, claim: &'a Claim, end: u64, now: Timestamp) -> PortFuture<'a, Result<Begun, ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| claims.begin(&claim, end, now)))
    }

    fn finish<'a>(&'a self, claim: &'a Claim, answer: Answer) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| claims.finish(&claim, answer)))
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| {
            claims.abandon(&claim);
            Ok(())
        }))
    }

    fn leave<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let claim = claim.clone();
        Box::pin(self.0.claims.write(move |claims| {
            claims.leave(&claim);
            Ok(())
        }))
    }

    fn recover<'a>(&'a self, partitions: &'a [PartitionId]) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move {
            let inner = &self.0;
            match inner.follow_all(partitions).await {
                Ok(()) => {}
                // The store cannot be opened yet: the task below follows the log when it is.
                Err(error) if !inner.is_store_open().await => {
                    tracing::warn!(%error, "the receipts are followed when their store is open");
                }
                Err(error) => return Err(error),
            }
            tokio::spawn(keep_noting(Arc::downgrade(inner), inner.settings.note_interval));
            Ok(())
        })
    }

    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<Answer>, ReceiptsError>> {
        let id = id.to_owned();
        Box::pin(self.0.claims.read(move |claims| claims.find(&id)))
    }
}
