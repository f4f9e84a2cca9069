//! Follows the log into the store of receipts: at a start, after the store was opened again, and for old ids in the background.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use whimbrel_model::hold::HEADER_DUE;
use whimbrel_model::ports::{Claim, ClaimKind, LogError, PublishReceipt, ReadLimits, ReceiptsError};
use whimbrel_model::record::{
    HEADER_ALSO_ID, HEADER_FINGERPRINT, HEADER_ID, HEADER_IDEMPOTENCY_KEY, split_idempotency_header,
};
use whimbrel_model::{HoldRecord, PartitionId, StoredRecord, Timestamp};

use super::ReceiptsState;
use super::claims::ClaimStore;
use super::keys::claim_key;
use super::store::Receipt;

/// The maximum number of partitions that are followed concurrently.
const FOLLOWED_AT_ONCE: usize = 16;
/// The limits of one read while the store follows the log.
const FOLLOW_LIMITS: ReadLimits = ReadLimits { max_records: 10_000, max_bytes: 4 << 20, wait: Duration::ZERO };
/// The maximum time for which a start waits for records that are durable and not yet visible.
const FOLLOW_WAIT_MAX: Duration = Duration::from_secs(60);
const FOLLOW_WAIT_STEP: Duration = Duration::from_secs(1);
/// The limits of one read of older records. Publishes with an `Idempotency-Key` or an id wait while their ids are written.
const FILL_LIMITS: ReadLimits = ReadLimits { max_records: 1_000, max_bytes: 1 << 20, wait: Duration::ZERO };
/// The interval at which the background task looks for old ids to read, and its pause after a failure.
const FILL_INTERVAL: Duration = Duration::from_secs(5);
/// The name in `/readyz` while the store follows the log. The server rejects publishes with an `Idempotency-Key` or an id meanwhile.
const FOLLOWING: &str = "receipts (following the log)";

/// The receipts of some consecutive records.
struct ReceiptPage {
    receipts: Vec<Receipt>,
    /// Where reading continues. At the end of the log, the offset from which the page was read.
    next: u64,
}

impl ReceiptsState {
    /// Follows the log from the offset up to which the store is complete to the ends of the partitions. Fails if the store fails, or if no
    /// partition can be followed.
    pub(super) async fn follow_all(&self, partitions: &[PartitionId]) -> Result<(), ReceiptsError> {
        let opened = self.claims.write(|claims| Ok::<_, ReceiptsError>(claims.begin_following())).await?;
        self.health.set_failed(FOLLOWING, "the server is reading the log".to_owned());
        self.follow_some(partitions, partitions.len(), opened).await
    }

    /// Follows these partitions and records which of them could not be read. Fails if these are all `all` partitions.
    async fn follow_some(&self, partitions: &[PartitionId], all: usize, opened: u64) -> Result<(), ReceiptsError> {
        let (unfollowed, error) = self.follow_each(partitions, opened).await?;
        if let Some(error) = &error
            && unfollowed.len() == all
        {
            return Err(error.clone());
        }
        let count = unfollowed.len();
        let set_followed = move |claims: &mut ClaimStore| {
            claims.set_followed(opened, unfollowed);
            Ok::<_, ReceiptsError>(())
        };
        self.claims.write(set_followed).await?;
        match error {
            None => self.health.set_working(FOLLOWING),
            Some(error) => {
                tracing::warn!(
                    count,
                    %error,
                    "cannot read partitions; publishes with an `Idempotency-Key` or an `id` to their topics are rejected"
                );
                self.health.set_degraded(FOLLOWING, format!("{count} partitions cannot be read: {error}"));
            }
        }
        Ok(())
    }

    /// Follows each partition. Returns those that the log cannot read now, with the last error; a failure of the store is an error.
    async fn follow_each(
        &self,
        partitions: &[PartitionId],
        opened: u64,
    ) -> Result<(HashSet<PartitionId>, Option<ReceiptsError>), ReceiptsError> {
        let now = self.clock.expiry_now();
        // A remote log has a high latency, so several partitions are read at the same time.
        let follows: Vec<_> = partitions
            .iter()
            .map(|partition| async move { (*partition, self.follow(*partition, now, opened).await) })
            .collect();
        let mut followed = stream::iter(follows).buffer_unordered(FOLLOWED_AT_ONCE);
        let (mut unfollowed, mut last) = (HashSet::new(), None);
        while let Some((partition, outcome)) = followed.next().await {
            match outcome {
                Ok(()) => {}
                Err(error @ ReceiptsError::Log(_)) => {
                    unfollowed.insert(partition);
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((unfollowed, last))
    }

    /// Follows one partition from the offset up to which the store is complete to its end.
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
            None => self.begin_empty(partition, now, opened).await?,
        };
        let mut waited = Duration::ZERO;
        loop {
            let wait = if waited.is_zero() { Duration::ZERO } else { FOLLOW_WAIT_STEP };
            let page = self.page(partition, from, ReadLimits { wait, ..FOLLOW_LIMITS }).await?;
            if page.next != from {
                self.claims.write(move |claims| claims.keep_found(&page.receipts, opened)).await?;
                from = page.next;
            } else if from < bounds.next && waited < FOLLOW_WAIT_MAX {
                // A record behind an open transaction of another producer may carry a claim of this installation.
                waited += FOLLOW_WAIT_STEP;
            } else {
                if from < bounds.next {
                    tracing::warn!(%partition, from, "records are not visible yet; repeated publishes may be stored twice");
                }
                return self.note(partition, from, opened).await;
            }
        }
    }

    /// The offset at which an empty store begins: the start of the window of repeats. It reads older ids later.
    async fn begin_empty(&self, partition: PartitionId, now: Timestamp, opened: u64) -> Result<u64, ReceiptsError> {
        let offset_at = async |window| {
            let offset = self.log.offset_at(partition, now.saturating_sub(window)).await;
            offset.map_err(ReceiptsError::Log)
        };
        let from = offset_at(self.settings.window).await?;
        if self.settings.id_window > self.settings.window {
            let left = offset_at(self.settings.id_window).await?..from;
            if !left.is_empty() {
                self.claims.write(move |claims| claims.set_backlog(partition, &left, &[], opened)).await?;
            }
        }
        Ok(from)
    }

    async fn page(&self, partition: PartitionId, from: u64, limits: ReadLimits) -> Result<ReceiptPage, ReceiptsError> {
        let (records, next) = match self.log.read(partition, from, limits).await {
            Ok(read) => (read.records, read.next),
            Err(LogError::Trimmed { first, .. }) => (Vec::new(), first),
            // Skips a damaged place. The event was emitted when the damage was found.
            Err(LogError::Damaged { resume_at, .. }) if resume_at > from => (Vec::new(), resume_at),
            // The log lost its end, for example because the folder was put together from two. Begin again at its end.
            Err(LogError::BeyondEnd { next, .. }) => (Vec::new(), next),
            Err(error) => return Err(ReceiptsError::Log(error)),
        };
        let receipts = records.iter().flat_map(|stored| receipts_of(partition, stored)).collect();
        Ok(ReceiptPage { receipts, next })
    }

    pub(super) async fn is_store_open(&self) -> bool {
        self.claims.write(|claims| Ok::<_, ReceiptsError>(claims.is_open())).await.unwrap_or(false)
    }

    async fn note(&self, partition: PartitionId, offset: u64, opened: u64) -> Result<(), ReceiptsError> {
        self.claims.write(move |claims| claims.note_followed(partition, offset, opened)).await
    }

    /// Stores the offsets up to which the store is complete. If the store was opened again, it follows the log first.
    async fn note_all(&self) -> Result<(), ReceiptsError> {
        let partitions = (self.partitions)();
        let state = |claims: &mut ClaimStore| {
            Ok::<_, ReceiptsError>((claims.has_followed(), claims.opening(), claims.unfollowed()))
        };
        let (has_followed, opened, unfollowed) = self.claims.write(state).await?;
        if !has_followed {
            self.follow_all(&partitions).await?;
        } else if !unfollowed.is_empty() {
            self.follow_some(&unfollowed, usize::MAX, opened).await?;
        }
        let mut ends = Vec::with_capacity(partitions.len());
        for partition in partitions {
            // Reads the end before the claims: a record below it has its claim among them, or in the store.
            if let Ok(bounds) = self.log.bounds(partition).await {
                ends.push((partition, bounds.next));
            }
        }
        let now = self.clock.expiry_now();
        self.claims.write(move |claims| claims.note_all(&ends, now)).await
    }

    /// Reads a page of older records in every partition whose older ids are not in the store. Returns whether there may be more.
    async fn fill_ids(&self) -> Result<bool, ReceiptsError> {
        let state = |claims: &mut ClaimStore| Ok::<_, ReceiptsError>((claims.opening(), claims.backlogs()?));
        let (opened, backlogs) = self.claims.write(state).await?;
        let mut has_more = false;
        for (partition, left) in backlogs {
            match self.fill_page(partition, left, opened).await {
                Ok(()) => has_more = true,
                Err(error @ ReceiptsError::Log(_)) => {
                    tracing::warn!(%partition, %error, "cannot read publishers' ids of older records; trying again");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(has_more)
    }

    async fn fill_page(&self, partition: PartitionId, left: Range<u64>, opened: u64) -> Result<(), ReceiptsError> {
        let page = match self.page(partition, left.start, FILL_LIMITS).await {
            // The topic was deleted.
            Err(ReceiptsError::Log(LogError::UnknownPartition(_))) => {
                ReceiptPage { receipts: Vec::new(), next: left.end }
            }
            page => page?,
        };
        let found: Vec<_> = page.receipts.into_iter().filter(|receipt| receipt.answer.offset < left.end).collect();
        // At the end of the log, nothing is left.
        let next = if page.next > left.start { page.next.min(left.end) } else { left.end };
        let left = next..left.end;
        self.claims.write(move |claims| claims.set_backlog(partition, &left, &found, opened)).await
    }
}

/// Stores the offsets up to which the store is complete, at every interval, until the receipts are dropped.
pub(super) async fn keep_noting(inner: Weak<ReceiptsState>, interval: Duration) {
    let Some(reopened) = inner.upgrade().map(|inner| Arc::clone(&inner.reopened)) else { return };
    loop {
        let _ = tokio::time::timeout(interval, reopened.notified()).await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.note_all().await {
            tracing::warn!(%error, "cannot store the offsets that the receipts have followed; trying again");
        }
    }
}

/// Reads the ids of older records into a store that began empty, until the receipts are dropped.
pub(super) async fn keep_filling(inner: Weak<ReceiptsState>) {
    loop {
        let Some(filled) = inner.upgrade() else { return };
        let has_more = match filled.fill_ids().await {
            Ok(has_more) => has_more,
            Err(error) => {
                tracing::debug!(%error, "cannot read publishers' ids of older records now; trying again");
                false
            }
        };
        drop(filled);
        if !has_more {
            tokio::time::sleep(FILL_INTERVAL).await;
        }
    }
}

fn receipts_of(partition: PartitionId, stored: &StoredRecord) -> Vec<Receipt> {
    claimed_by(partition, stored).unwrap_or_default()
}

fn claimed_by(partition: PartitionId, stored: &StoredRecord) -> Option<Vec<Receipt>> {
    let headers = &stored.record.headers;
    let fingerprint = headers.get_str(HEADER_FINGERPRINT).and_then(|text| u64::from_str_radix(text, 16).ok())?;
    let id = headers.get_str(HEADER_ID)?;
    // A fired hold carries its claim into its topic too. Its publisher got the answer when the hold was accepted.
    if headers.get(HEADER_DUE).is_some() {
        return None;
    }
    // A held message is a record of `_holds`; its claim belongs to the topic of the hold.
    let held = match HoldRecord::of(&stored.record, stored.offset) {
        Ok(HoldRecord::Held(hold)) => Some(hold),
        Ok(_) => return None,
        Err(_) => None,
    };
    let answer = PublishReceipt {
        id: id.to_owned(),
        partition,
        offset: stored.offset,
        due: held.as_ref().map(|hold| hold.due),
        answered_at: stored.record.timestamp,
    };
    let topic = held.map_or(partition.topic, |hold| hold.topic);
    // Without an `Idempotency-Key`, the publisher gave the id.
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
