//! The `Receipts` port on an LSM beside the log.
//!
//! Answers are kept in keyspaces by slices of time, which are dropped whole when they are too old: no tombstones, no scans.
//! What is under way is only in memory. A crash forgets it, and may forget the last answers; but every record carries its claim
//! in its headers, so [`Receipts::recover`] finds them again in the log, from the offset up to which the store is known to be
//! complete. That offset is noted every few seconds: the partition's end as it was, or where the oldest claim under way began,
//! whichever is less. The LSM keeps the order of its writes through a crash, so a noted offset never outlives the answers below it.

pub(crate) mod keys;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fjall::{Database, Keyspace};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use whimbrel_model::hold::HEADER_DUE;
use whimbrel_model::ports::{
    Answer, Begun, Claim, ClaimKind, Log, LogError, PortFuture, ReadLimits, Receipts, ReceiptsError,
};
use whimbrel_model::record::{
    HEADER_ALSO_ID, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, split_idempotency_header,
};
use whimbrel_model::{Clock, HoldRecord, PartitionId, StoredRecord, Timestamp};

use super::slices::{self, Slices};
use keys::{applied_key, claim_key, decode_answer, encode_answer, id_key, id_prefix};

/// Partitions that are followed at the same time.
const FOLLOWED_AT_ONCE: usize = 16;
/// Records that are looked at together while following the log.
const FOLLOW_RECORDS: usize = 10_000;
const FOLLOW_BYTES: usize = 4 << 20;
/// How long a start waits for records that are durable and not yet visible.
const FOLLOW_WAIT_MAX: Duration = Duration::from_secs(60);
const FOLLOW_WAIT_STEP: Duration = Duration::from_secs(1);
/// What is written to see whether the store takes anything; no partition has such a key.
const PROBE_KEY: &[u8] = b"probe";
/// Memory that the LSM may use for blocks.
const CACHE_BYTES: u64 = 8 << 20;

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
    answers: Slices,
    ids: Slices,
    /// By partition, the offset up to which every answer is in the store.
    applied: Keyspace,
    under_way: Mutex<HashMap<Vec<u8>, UnderWay>>,
    /// An answer could not be written. Until the store takes one again nothing is begun: a repeat would not be recognised.
    broken: AtomicBool,
    /// What was noted last, so that a quiet partition is not noted again.
    noted: Mutex<HashMap<PartitionId, u64>>,
    log: Arc<dyn Log>,
    partitions: ListPartitions,
    clock: Arc<dyn Clock>,
}

struct UnderWay {
    fingerprint: u64,
    /// Where each try went: the partition, and its end when the try began, below which its record cannot be.
    places: Vec<(PartitionId, u64)>,
    /// When the first try began: the window is counted from there.
    first_at: Timestamp,
    /// When the last one did.
    began_at: Timestamp,
    /// Whoever tried went away without knowing the outcome. Before that a claim never lapses, however long its append takes.
    left: bool,
}

fn unavailable(error: fjall::Error) -> ReceiptsError {
    ReceiptsError::Unavailable(error.to_string())
}

impl LsmReceipts {
    pub fn open(
        path: &Path,
        settings: ReceiptSettings,
        log: Arc<dyn Log>,
        partitions: ListPartitions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ReceiptsError> {
        let database = Database::builder(path).cache_size(CACHE_BYTES).worker_threads(1).open().map_err(unavailable)?;
        let applied = database.keyspace("applied", slices::small_keyspace).map_err(unavailable)?;
        let answers = Slices::open(&database, "answers", settings.window).map_err(unavailable)?;
        let ids = Slices::open(&database, "ids", settings.id_window).map_err(unavailable)?;
        let inner = Inner {
            settings,
            answers,
            ids,
            applied,
            under_way: Mutex::default(),
            broken: AtomicBool::new(false),
            noted: Mutex::default(),
            log,
            partitions,
            clock,
        };
        Ok(Self(Arc::new(inner)))
    }
}

impl Inner {
    fn under_way(&self) -> MutexGuard<'_, HashMap<Vec<u8>, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, claim: &Claim, end: u64, now: Timestamp) -> Result<Begun, ReceiptsError> {
        let key = claim_key(claim);
        // Held while the store is asked: `finish` writes to the store before it leaves this map.
        let mut under_way = self.under_way();
        if self.broken.load(Ordering::Acquire) {
            return Err(ReceiptsError::Unavailable(
                "an answer could not be written; until that works, none is given".to_owned(),
            ));
        }
        let place = (claim.partition, end);
        let not_before = now.saturating_sub(self.settings.window + self.settings.lease);
        // One whose outcome nobody could find out in all that time is as none.
        let is_known = |earlier: &&mut UnderWay| !earlier.left || earlier.first_at >= not_before;
        if let Some(earlier) = under_way.get_mut(&key).filter(is_known) {
            if earlier.fingerprint != claim.fingerprint {
                return Ok(Begun::Different);
            }
            if !earlier.left || now.saturating_sub(self.settings.lease) < earlier.began_at {
                return Ok(Begun::UnderWay);
            }
            (earlier.began_at, earlier.left) = (now, false);
            let places = earlier.places.clone();
            earlier.places.push(place);
            return Ok(Begun::Lapsed { places });
        }
        if let Some((fingerprint, answer)) = self.earlier_answer(&key, now)? {
            let is_same = fingerprint == claim.fingerprint;
            return Ok(if is_same { Begun::Earlier(answer) } else { Begun::Different });
        }
        let (fingerprint, places) = (claim.fingerprint, vec![place]);
        under_way.insert(key, UnderWay { fingerprint, places, first_at: now, began_at: now, left: false });
        Ok(Begun::New)
    }

    fn leave(&self, key: &[u8]) {
        if let Some(claim) = self.under_way().get_mut(key) {
            claim.left = true;
        }
    }

    fn earlier_answer(&self, key: &[u8], now: Timestamp) -> Result<Option<(u64, Answer)>, ReceiptsError> {
        let not_before = now.saturating_sub(self.settings.window);
        for slice in self.answers.newest_first() {
            if let Some(found) = slice.get(key).map_err(unavailable)?.as_deref().and_then(decode_answer)
                && found.1.answered_at >= not_before
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn keep(
        &self,
        kind: ClaimKind,
        text: &str,
        key: Vec<u8>,
        fingerprint: u64,
        answer: &Answer,
    ) -> Result<(), ReceiptsError> {
        let value = encode_answer(fingerprint, answer);
        if kind == ClaimKind::Id {
            let slice = self.ids.at(answer.answered_at).map_err(unavailable)?;
            slice.insert(id_key(text, answer), value.clone()).map_err(unavailable)?;
        }
        let slice = self.answers.at(answer.answered_at).map_err(unavailable)?;
        slice.insert(key, value).map_err(unavailable)
    }

    fn find(&self, id: &str) -> Result<Vec<Answer>, ReceiptsError> {
        let mut answers = Vec::new();
        for slice in self.ids.newest_first().into_iter().rev() {
            for entry in slice.prefix(id_prefix(id)) {
                let value = entry.value().map_err(unavailable)?;
                answers.extend(decode_answer(&value).map(|(_, answer)| answer));
            }
        }
        Ok(answers)
    }

    /// Follows one partition from where the store is complete to its end.
    async fn follow(&self, partition: PartitionId, now: Timestamp) -> Result<(), ReceiptsError> {
        let noted = self.applied.get(applied_key(partition)).map_err(unavailable)?;
        let noted = noted.and_then(|bytes| bytes.first_chunk().copied().map(u64::from_le_bytes));
        let bounds = self.log.bounds(partition).await.map_err(ReceiptsError::Log)?;
        if bounds.first == bounds.next || noted == Some(bounds.next) {
            return self.note(partition, bounds.next);
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
                // What lies behind an open transaction of somebody else may carry a claim of ours.
                Ok(read) if read.next == from && from < bounds.next && waited < FOLLOW_WAIT_MAX => {
                    waited += FOLLOW_WAIT_STEP;
                }
                Ok(read) if read.next == from => {
                    if from < bounds.next {
                        tracing::warn!(%partition, from, "records are not visible yet; repeats of what they hold may double");
                    }
                    return self.note(partition, from);
                }
                Ok(read) => {
                    read.records.iter().try_for_each(|stored| self.keep_from_record(partition, stored))?;
                    from = read.next;
                }
                Err(LogError::Trimmed { first, .. }) => from = first,
                // What was damaged cannot be followed; its event was written when it was found.
                Err(LogError::Damaged { resume_at, .. }) if resume_at > from => from = resume_at,
                // The log lost what it had, which only a folder put together from two does; begin again at its end.
                Err(LogError::BeyondEnd { next, .. }) => from = next,
                Err(error) => return Err(ReceiptsError::Log(error)),
            }
        }
    }

    /// The receipt that a record of the log is itself.
    fn keep_from_record(&self, partition: PartitionId, stored: &StoredRecord) -> Result<(), ReceiptsError> {
        let headers = &stored.record.headers;
        let Some(fingerprint) = headers.get_str(HEADER_FINGERPRINT).and_then(|text| u64::from_str_radix(text, 16).ok())
        else {
            return Ok(());
        };
        let Some(id) = headers.get_str(HEADER_ID) else { return Ok(()) };
        // A message that was held carries its claim into its topic too. Its publisher was answered when it was held.
        if headers.get(HEADER_DUE).is_some() {
            return Ok(());
        }
        // What was held stands among the holds, and is for another topic than the one it stands in.
        let held = match HoldRecord::of(&stored.record, stored.offset) {
            Ok(HoldRecord::Held(hold)) => Some(hold),
            Ok(_) => return Ok(()),
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
        let (kind, owner, text) = match headers.get(HEADER_IDEMPOTENCY_KEY).and_then(split_idempotency_header) {
            Some((owner, "")) => (ClaimKind::Id, owner, id),
            Some((owner, key)) => (ClaimKind::Key, owner, key),
            None => return Ok(()),
        };
        for text in std::iter::once(text).chain(headers.get_str(HEADER_ALSO_ID)) {
            let claim = Claim { owner: owner.to_owned(), kind, text: text.to_owned(), topic, partition, fingerprint };
            self.keep(kind, text, claim_key(&claim), fingerprint, &answer)?;
        }
        Ok(())
    }

    fn note(&self, partition: PartitionId, offset: u64) -> Result<(), ReceiptsError> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.insert(partition, offset) != Some(offset) {
            self.applied.insert(applied_key(partition), offset.to_le_bytes()).map_err(unavailable)?;
        }
        Ok(())
    }

    /// Notes how far the store is complete, and lets go of old slices.
    async fn note_all(&self) -> Result<(), ReceiptsError> {
        if self.broken.load(Ordering::Acquire) {
            self.applied.insert(PROBE_KEY, []).map_err(unavailable)?;
            self.broken.store(false, Ordering::Release);
        }
        for partition in (self.partitions)() {
            // The end is read before the claims are looked at: a record below it has its claim among them, or in the store.
            let Ok(bounds) = self.log.bounds(partition).await else { continue };
            let oldest = {
                let under_way = self.under_way();
                let places = under_way.values().flat_map(|claim| &claim.places);
                places.filter(|(other, _)| *other == partition).map(|(_, from)| *from).min()
            };
            self.note(partition, oldest.map_or(bounds.next, |from| from.min(bounds.next)))?;
        }
        let now = self.clock.expiry_now();
        // Nobody repeated them while an answer would have been kept; now nobody may count on it.
        let not_before = now.saturating_sub(self.settings.window + self.settings.lease);
        self.under_way().retain(|_, claim| !claim.left || claim.first_at >= not_before);
        self.answers.drop_before(now).map_err(unavailable)?;
        self.ids.drop_before(now).map_err(unavailable)
    }
}

/// Notes from time to time until the receipts are dropped.
async fn keep_noting(inner: Weak<Inner>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.note_all().await {
            tracing::warn!(%error, "the receipts could not note how far they are complete; it is tried again");
        }
    }
}

impl Receipts for LsmReceipts {
    fn begin<'a>(&'a self, claim: &'a Claim, end: u64, now: Timestamp) -> PortFuture<'a, Result<Begun, ReceiptsError>> {
        let begun = self.0.begin(claim, end, now);
        Box::pin(async move { begun })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, answer: Answer) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let key = claim_key(claim);
        let kept = self.0.keep(claim.kind, &claim.text, key.clone(), claim.fingerprint, &answer);
        match &kept {
            Ok(()) => drop(self.0.under_way().remove(&key)),
            // The message is in the log, and only there: a repeat must look for it.
            Err(_) => {
                self.0.broken.store(true, Ordering::Release);
                self.0.leave(&key);
            }
        }
        Box::pin(async move { kept })
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        self.0.under_way().remove(&claim_key(claim));
        Box::pin(async { Ok(()) })
    }

    fn leave<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>> {
        self.0.leave(&claim_key(claim));
        Box::pin(async { Ok(()) })
    }

    fn recover<'a>(&'a self, partitions: &'a [PartitionId]) -> PortFuture<'a, Result<(), ReceiptsError>> {
        Box::pin(async move {
            let now = self.0.clock.expiry_now();
            // A log that is far away takes its time for each; they need not wait for each other.
            let followed: Vec<_> = partitions.iter().map(|partition| self.0.follow(*partition, now)).collect();
            stream::iter(followed).buffer_unordered(FOLLOWED_AT_ONCE).try_collect::<()>().await?;
            tokio::spawn(keep_noting(Arc::downgrade(&self.0), self.0.settings.note_interval));
            Ok(())
        })
    }

    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<Answer>, ReceiptsError>> {
        let found = self.0.find(id);
        Box::pin(async move { found })
    }
}
