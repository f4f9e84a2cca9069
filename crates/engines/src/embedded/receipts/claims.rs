//! The claims in progress, and the store of answers. One thread owns both, so no claim can come between a check and its write.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use whimbrel_model::ports::{Answer, Begun, Claim, ReceiptsError};
use whimbrel_model::{PartitionId, Timestamp};

use super::ReceiptSettings;
use super::keys::claim_key;
use super::store::{Receipt, ReceiptStore};
use crate::embedded::lsm::{self, StoreHandle};

type Fault = lsm::Fault<ReceiptsError>;

pub(super) struct Claims {
    settings: ReceiptSettings,
    store: StoreHandle<ReceiptStore>,
    under_way: HashMap<Vec<u8>, UnderWay>,
    /// The offsets that were written last, so that the store skips writes for idle partitions.
    noted: HashMap<PartitionId, u64>,
    /// How often the store was opened. It may have lost answers each time.
    opened: Arc<AtomicU64>,
    /// The opening after which the store has followed the log to its end. No claim begins before: the store would not recognise a repeat.
    followed: u64,
}

struct UnderWay {
    fingerprint: u64,
    /// The partition of each attempt, and the partition's end when the attempt began. The record cannot be below that end.
    places: Vec<(PartitionId, u64)>,
    /// When the first attempt began. The window starts there.
    first_at: Timestamp,
    /// When the last attempt began.
    began_at: Timestamp,
    /// The publish ended with an unknown outcome. Until then a claim never lapses, however long its append takes.
    left: bool,
    /// The answer, if the store could not save it yet.
    unsaved: Option<Receipt>,
}

impl Claims {
    pub fn new(settings: ReceiptSettings, store: StoreHandle<ReceiptStore>, opened: Arc<AtomicU64>) -> Self {
        let (under_way, noted) = (HashMap::new(), HashMap::new());
        Self { settings, store, under_way, noted, opened, followed: 0 }
    }

    pub fn begin(&mut self, claim: &Claim, end: u64, now: Timestamp) -> Result<Begun, ReceiptsError> {
        let (key, place) = (claim_key(claim), (claim.partition, end));
        let not_before = now.saturating_sub(self.settings.window + self.settings.lease);
        // Ignores a claim whose outcome is still unknown after the window and the lease.
        let is_known = |earlier: &&mut UnderWay| !earlier.left || earlier.first_at >= not_before;
        if let Some(earlier) = self.under_way.get_mut(&key).filter(is_known) {
            if earlier.fingerprint != claim.fingerprint {
                return Ok(Begun::Different);
            }
            if let Some(unsaved) = &earlier.unsaved {
                return Ok(Begun::Earlier(unsaved.answer.clone()));
            }
            if !earlier.left || now.saturating_sub(self.settings.lease) < earlier.began_at {
                return Ok(Begun::UnderWay);
            }
            (earlier.began_at, earlier.left) = (now, false);
            let places = earlier.places.clone();
            earlier.places.push(place);
            return Ok(Begun::Lapsed { places });
        }
        let since = now.saturating_sub(self.settings.window);
        if !self.has_followed() {
            return Err(ReceiptsError::Unavailable("the receipts are read again from the log".to_owned()));
        }
        let answer = self.store.run(|store| -> Result<_, Fault> { Ok(store.answer(&key, since)?) })?;
        if let Some((fingerprint, answer)) = answer {
            let is_same = fingerprint == claim.fingerprint;
            return Ok(if is_same { Begun::Earlier(answer) } else { Begun::Different });
        }
        let (fingerprint, places) = (claim.fingerprint, vec![place]);
        let claim = UnderWay { fingerprint, places, first_at: now, began_at: now, left: false, unsaved: None };
        self.under_way.insert(key, claim);
        Ok(Begun::New)
    }

    /// Saves the answer: in memory, if the store cannot save it now.
    pub fn finish(&mut self, claim: &Claim, answer: Answer) -> Result<(), ReceiptsError> {
        let (kind, text, key, fingerprint) = (claim.kind, claim.text.clone(), claim_key(claim), claim.fingerprint);
        let receipt = Receipt { kind, text, key: key.clone(), fingerprint, answer };
        match self.keep(&receipt) {
            Ok(()) => drop(self.under_way.remove(&key)),
            Err(error) => {
                let Some(claim) = self.under_way.get_mut(&key) else { return Err(error) };
                claim.unsaved = Some(receipt);
            }
        }
        Ok(())
    }

    pub fn abandon(&mut self, claim: &Claim) {
        self.under_way.remove(&claim_key(claim));
    }

    pub fn leave(&mut self, claim: &Claim) {
        if let Some(claim) = self.under_way.get_mut(&claim_key(claim)) {
            claim.left = true;
        }
    }

    fn keep(&self, receipt: &Receipt) -> Result<(), ReceiptsError> {
        self.store.run(|store| -> Result<_, Fault> { Ok(store.keep(receipt)?) })
    }

    pub fn find(&self, id: &str) -> Result<Vec<Answer>, ReceiptsError> {
        self.store.run(|store| -> Result<_, Fault> { Ok(store.find(id)?) })
    }

    /// Whether the store has followed the log since it was opened.
    pub fn has_followed(&self) -> bool {
        self.followed == self.opened.load(Ordering::Acquire)
    }

    /// Starts following the log, and returns the current opening of the store.
    pub fn begin_following(&mut self) -> u64 {
        self.noted.clear();
        self.opened.load(Ordering::Acquire)
    }

    /// Whether the store is open.
    pub fn is_open(&self) -> bool {
        self.store.is_open()
    }

    pub fn set_followed(&mut self, opened: u64) {
        self.followed = opened;
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

    /// Records the offset up to which the store has followed the log.
    pub fn note_followed(&mut self, partition: PartitionId, offset: u64, opened: u64) -> Result<(), ReceiptsError> {
        self.check_opening(opened)?;
        self.note(partition, offset)
    }

    pub fn applied(&self, partition: PartitionId, opened: u64) -> Result<Option<u64>, ReceiptsError> {
        self.check_opening(opened)?;
        self.store.run(|store| -> Result<_, Fault> { Ok(store.applied(partition)?) })
    }

    fn note(&mut self, partition: PartitionId, offset: u64) -> Result<(), ReceiptsError> {
        if self.noted.get(&partition) != Some(&offset) {
            self.store.run(|store| -> Result<_, Fault> { Ok(store.set_applied(partition, offset)?) })?;
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
        let mut oldest = HashMap::<PartitionId, u64>::new();
        for (partition, from) in self.under_way.values().flat_map(|claim| &claim.places) {
            oldest.entry(*partition).and_modify(|oldest| *oldest = (*oldest).min(*from)).or_insert(*from);
        }
        for (partition, end) in ends {
            self.note(*partition, oldest.get(partition).map_or(*end, |from| (*from).min(*end)))?;
        }
        // The store would have dropped the answer by now, so a later repeat has no guarantee.
        let not_before = now.saturating_sub(self.settings.window + self.settings.lease);
        self.under_way.retain(|_, claim| !claim.left || claim.first_at >= not_before);
        self.store.run(|store| -> Result<_, Fault> { Ok(store.drop_before(now)?) })
    }

    fn save_unsaved(&mut self) -> Result<(), ReceiptsError> {
        let unsaved: Vec<_> = self.under_way.values().filter_map(|claim| claim.unsaved.clone()).collect();
        for receipt in unsaved {
            self.keep(&receipt)?;
            self.under_way.remove(&receipt.key);
        }
        Ok(())
    }
}
