//! The claims in progress, and the store of answers. One thread owns both, so no claim can begin between a check and its write.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use whimbrel_model::ports::{Claim, ClaimState, PublishReceipt, ReceiptsError};
use whimbrel_model::{PartitionId, Timestamp};

use super::claim_table::{ClaimInProgress, ClaimTable};
use super::keys::claim_key;
use super::store::{Receipt, ReceiptStore};
use crate::embedded::lsm::{self, StoreHandle};
use crate::stores::ReceiptSettings;

/// The maximum number of answers that one call of [`ClaimStore::note_all`] saves, and of claims that it forgets. Publishes with an
/// `Idempotency-Key` or an id wait for the call.
const SAVED_AT_ONCE: usize = 1_000;
const FORGOTTEN_AT_ONCE: usize = 10_000;

type ReceiptsFault = lsm::StoreFault<ReceiptsError>;

pub(super) struct ClaimStore {
    settings: ReceiptSettings,
    store: StoreHandle<ReceiptStore>,
    under_way: ClaimTable,
    /// The offsets that were written last, so that the store skips writes for idle partitions.
    noted: HashMap<PartitionId, u64>,
    /// The number of openings of the store. It may have lost answers at each.
    opened: Arc<AtomicU64>,
    /// The opening after which the store has followed the log to its end. No claim begins before: the store would not recognise a repeat.
    followed: u64,
    /// The partitions that could not be read. No claim of their topics begins.
    unfollowed: HashSet<PartitionId>,
}

impl ClaimStore {
    pub fn new(settings: ReceiptSettings, store: StoreHandle<ReceiptStore>, opened: Arc<AtomicU64>) -> Self {
        let (under_way, noted, unfollowed) = (ClaimTable::default(), HashMap::new(), HashSet::new());
        Self { settings, store, under_way, noted, opened, followed: 0, unfollowed }
    }

    /// `expiry` is the time by which earlier answers are too old.
    pub fn begin(
        &mut self,
        claim: &Claim,
        end: u64,
        now: Timestamp,
        expiry: Timestamp,
    ) -> Result<ClaimState, ReceiptsError> {
        let (key, place) = (claim_key(claim), (claim.partition, end));
        let not_before = expiry.saturating_sub(self.settings.window + self.settings.lease);
        // Ignores a claim whose outcome is still unknown after the window and the lease.
        let is_known = |earlier: &&ClaimInProgress| !earlier.is_left || earlier.first_at >= not_before;
        if let Some(earlier) = self.under_way.get(&key).filter(is_known) {
            if earlier.fingerprint != claim.fingerprint {
                return Ok(ClaimState::Different);
            }
            if let Some(unsaved) = &earlier.unsaved {
                return Ok(ClaimState::Earlier(unsaved.answer.clone()));
            }
            if !earlier.has_lapsed(now, self.settings.lease) {
                return Ok(ClaimState::UnderWay);
            }
            return Ok(ClaimState::Lapsed { places: self.under_way.retake(&key, place, now) });
        }
        let since = expiry.saturating_sub(self.settings.window);
        self.check_followed(claim)?;
        let answer = self.store.run(|store| -> Result<_, ReceiptsFault> { Ok(store.answer(&key, since)?) })?;
        if let Some((fingerprint, answer)) = answer {
            let is_same = fingerprint == claim.fingerprint;
            return Ok(if is_same { ClaimState::Earlier(answer) } else { ClaimState::Different });
        }
        self.under_way.insert(key, claim.fingerprint, place, now);
        Ok(ClaimState::New)
    }

    /// Saves the answer: in memory, if the store cannot save it now.
    pub fn finish(&mut self, claim: &Claim, answer: PublishReceipt) -> Result<(), ReceiptsError> {
        let (kind, text, key, fingerprint) = (claim.kind, claim.text.clone(), claim_key(claim), claim.fingerprint);
        let receipt = Receipt { kind, text, key: key.clone(), fingerprint, answer };
        match self.keep(&receipt) {
            Ok(()) => self.under_way.remove(&key),
            Err(error) if !self.under_way.set_unsaved(&key, receipt) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    pub fn abandon(&mut self, claim: &Claim) {
        self.under_way.remove(&claim_key(claim));
    }

    pub fn give_back(&mut self, claim: &Claim) {
        self.under_way.give_back(&claim_key(claim));
    }

    pub fn leave(&mut self, claim: &Claim) {
        self.under_way.leave(&claim_key(claim));
    }

    fn keep(&self, receipt: &Receipt) -> Result<(), ReceiptsError> {
        self.store.run(|store| -> Result<_, ReceiptsFault> { Ok(store.keep(receipt)?) })
    }

    pub fn find(&self, id: &str) -> Result<Vec<PublishReceipt>, ReceiptsError> {
        self.store.run(|store| -> Result<_, ReceiptsFault> { Ok(store.find(id)?) })
    }

    /// Whether the store has followed the log since it was opened, except for [`Self::unfollowed`].
    pub fn has_followed(&self) -> bool {
        self.followed == self.opened.load(Ordering::Acquire)
    }

    /// The partitions that could not be read.
    pub fn unfollowed(&self) -> Vec<PartitionId> {
        self.unfollowed.iter().copied().collect()
    }

    /// Fails if a record of the claim may be in a part of the log that was not read. A held message is in another topic than that of
    /// the claim.
    fn check_followed(&self, claim: &Claim) -> Result<(), ReceiptsError> {
        let topics = [claim.topic, claim.partition.topic];
        let missing = self.unfollowed.iter().find(|partition| topics.contains(&partition.topic));
        let reason = match missing {
            _ if !self.has_followed() => "the server is rebuilding them from the log".to_owned(),
            Some(partition) => format!("the server cannot read partition {partition} of the log yet"),
            None => return Ok(()),
        };
        Err(ReceiptsError::Unavailable(reason))
    }

    /// The current opening of the store.
    pub fn opening(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// Starts following the whole log, and returns the current opening of the store.
    pub fn begin_following(&mut self) -> u64 {
        self.noted.clear();
        self.opening()
    }

    pub fn is_open(&self) -> bool {
        self.store.is_open()
    }

    /// The store has followed the log after this opening, except for these partitions.
    pub fn set_followed(&mut self, opened: u64, unfollowed: HashSet<PartitionId>) {
        (self.followed, self.unfollowed) = (opened, unfollowed);
    }

    /// Fails if the store was reopened since following began: it may have lost receipts.
    fn check_opening(&self, opened: u64) -> Result<(), ReceiptsError> {
        if self.opened.load(Ordering::Acquire) == opened {
            return Ok(());
        }
        Err(ReceiptsError::Unavailable("the store was opened again while the log was followed".to_owned()))
    }

    /// Saves receipts that were found in the log.
    pub fn keep_found(&self, receipts: &[Receipt], opened: u64) -> Result<(), ReceiptsError> {
        self.check_opening(opened)?;
        receipts.iter().try_for_each(|receipt| self.keep(receipt))
    }

    /// The partitions with older offsets whose ids are not in the store yet.
    pub fn backlogs(&self) -> Result<Vec<(PartitionId, Range<u64>)>, ReceiptsError> {
        self.store.run(|store| -> Result<_, ReceiptsFault> { Ok(store.backlogs()?) })
    }

    /// Records which older offsets of a partition have ids that the store lacks, and saves the ids found before those offsets.
    pub fn set_backlog(
        &self,
        partition: PartitionId,
        left: &Range<u64>,
        found: &[Receipt],
        opened: u64,
    ) -> Result<(), ReceiptsError> {
        self.check_opening(opened)?;
        self.store.run(|store| -> Result<_, ReceiptsFault> {
            found.iter().try_for_each(|receipt| store.keep_id(receipt))?;
            Ok(store.set_backlog(partition, left)?)
        })
    }

    /// Records the offset up to which the store has followed the log.
    pub fn note_followed(&mut self, partition: PartitionId, offset: u64, opened: u64) -> Result<(), ReceiptsError> {
        self.check_opening(opened)?;
        self.note(partition, offset)
    }

    pub fn applied(&self, partition: PartitionId, opened: u64) -> Result<Option<u64>, ReceiptsError> {
        self.check_opening(opened)?;
        self.store.run(|store| -> Result<_, ReceiptsFault> { Ok(store.applied(partition)?) })
    }

    fn note(&mut self, partition: PartitionId, offset: u64) -> Result<(), ReceiptsError> {
        if self.noted.get(&partition) != Some(&offset) {
            self.store.run(|store| -> Result<_, ReceiptsFault> { Ok(store.set_applied(partition, offset)?) })?;
            self.noted.insert(partition, offset);
        }
        Ok(())
    }

    /// Records the offsets up to which the store is complete, given the ends of the partitions before this call, and drops old slices.
    /// A record below an end has its claim here, or its answer in the store.
    pub fn note_all(&mut self, ends: &[(PartitionId, u64)], now: Timestamp) -> Result<(), ReceiptsError> {
        self.save_unsaved()?;
        // After a failure, records no offsets until the store has followed the log.
        if !self.has_followed() {
            return Ok(());
        }
        for (partition, end) in ends {
            if !self.unfollowed.contains(partition) {
                self.note(*partition, self.under_way.oldest_end(*partition).map_or(*end, |from| from.min(*end)))?;
            }
        }
        // The store would have dropped the answer by now, so a later repeat has no guarantee.
        let not_before = now.saturating_sub(self.settings.window + self.settings.lease);
        self.under_way.forget_left_before(not_before, FORGOTTEN_AT_ONCE);
        self.store.run(|store| -> Result<_, ReceiptsFault> { Ok(store.drop_before(now)?) })
    }

    fn save_unsaved(&mut self) -> Result<(), ReceiptsError> {
        for receipt in self.under_way.unsaved(SAVED_AT_ONCE) {
            self.keep(&receipt)?;
            self.under_way.remove(&receipt.key);
        }
        Ok(())
    }
}
