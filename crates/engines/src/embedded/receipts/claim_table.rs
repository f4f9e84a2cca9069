//! The claims in progress, with indexes, so that no call iterates over all claims.
//!
//! After an outage there may be millions of claims with an unknown outcome, and the thread that owns the table serves every publish with a
//! key or an id.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use whimbrel_model::{PartitionId, Timestamp};

use super::store::Receipt;

/// A claim whose answer is not in the store.
pub(super) struct ClaimInProgress {
    pub fingerprint: u64,
    /// The partition of each attempt, and the partition's end when the attempt began. The offset of the record is at least that end.
    places: Vec<(PartitionId, u64)>,
    /// When the first attempt began. The window starts there.
    pub first_at: Timestamp,
    /// When the last attempt began that may have written. `None`: its time is over, since an attempt after it wrote nothing.
    began_at: Option<Timestamp>,
    /// The publish ended with an unknown outcome. Until then a claim never lapses, however long its append takes.
    pub is_left: bool,
    /// The answer, if the store could not save it yet.
    pub unsaved: Option<Receipt>,
}

impl ClaimInProgress {
    /// Whether the next attempt may take the claim over.
    pub fn has_lapsed(&self, now: Timestamp, lease: Duration) -> bool {
        self.is_left && self.began_at.is_none_or(|began_at| began_at <= now.saturating_sub(lease))
    }
}

#[derive(Default)]
pub(super) struct ClaimTable {
    claims: HashMap<Vec<u8>, ClaimInProgress>,
    /// For each partition and end offset, the number of attempts that began there.
    ends: BTreeMap<(PartitionId, u64), usize>,
    /// The claims with an unknown outcome, by the time of their first attempt.
    left: BTreeSet<(Timestamp, Vec<u8>)>,
    /// The claims whose answers are not saved.
    unsaved: BTreeSet<Vec<u8>>,
}

impl ClaimTable {
    pub fn get(&self, key: &[u8]) -> Option<&ClaimInProgress> {
        self.claims.get(key)
    }

    /// Begins a claim. It replaces an earlier claim with this key.
    pub fn insert(&mut self, key: Vec<u8>, fingerprint: u64, place: (PartitionId, u64), now: Timestamp) {
        self.remove(&key);
        *self.ends.entry(place).or_default() += 1;
        let places = vec![place];
        let claim =
            ClaimInProgress { fingerprint, places, first_at: now, began_at: Some(now), is_left: false, unsaved: None };
        self.claims.insert(key, claim);
    }

    /// Begins a further attempt of a claim. Returns the places of the attempts before it.
    pub fn retake(&mut self, key: &[u8], place: (PartitionId, u64), now: Timestamp) -> Vec<(PartitionId, u64)> {
        let Some(claim) = self.claims.get_mut(key) else { return Vec::new() };
        self.left.remove(&(claim.first_at, key.to_vec()));
        *self.ends.entry(place).or_default() += 1;
        (claim.began_at, claim.is_left) = (Some(now), false);
        let places = claim.places.clone();
        claim.places.push(place);
        places
    }

    /// Records that the attempt ended with an unknown outcome.
    pub fn leave(&mut self, key: &[u8]) {
        if let Some(claim) = self.claims.get_mut(key) {
            claim.is_left = true;
            self.left.insert((claim.first_at, key.to_vec()));
        }
    }

    /// The last attempt wrote nothing. Attempts before it had lapsed when it began.
    pub fn give_back(&mut self, key: &[u8]) {
        let Some(claim) = self.claims.get_mut(key) else { return };
        if claim.places.len() <= 1 {
            return self.remove(key);
        }
        let place = claim.places.pop();
        (claim.began_at, claim.is_left) = (None, true);
        self.left.insert((claim.first_at, key.to_vec()));
        place.into_iter().for_each(|place| self.drop_end(place));
    }

    /// Keeps an answer that the store could not save. Returns false if there is no such claim.
    pub fn set_unsaved(&mut self, key: &[u8], receipt: Receipt) -> bool {
        let Some(claim) = self.claims.get_mut(key) else { return false };
        claim.unsaved = Some(receipt);
        self.unsaved.insert(key.to_vec());
        true
    }

    pub fn remove(&mut self, key: &[u8]) {
        let Some((key, claim)) = self.claims.remove_entry(key) else { return };
        claim.places.into_iter().for_each(|place| self.drop_end(place));
        self.unsaved.remove(&key);
        self.left.remove(&(claim.first_at, key));
    }

    fn drop_end(&mut self, place: (PartitionId, u64)) {
        if let Some(count) = self.ends.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&place);
            }
        }
    }

    /// The lowest end of a partition at which an attempt began: the answers to the records behind it may be missing in the store.
    pub fn oldest_end(&self, partition: PartitionId) -> Option<u64> {
        self.ends.range((partition, 0)..=(partition, u64::MAX)).next().map(|((_, end), _)| *end)
    }

    /// At most `max` answers that are not saved.
    pub fn unsaved(&self, max: usize) -> Vec<Receipt> {
        let keys = self.unsaved.iter().take(max);
        keys.filter_map(|key| self.claims.get(key)?.unsaved.clone()).collect()
    }

    /// Removes at most `max` claims with an unknown outcome whose first attempt began before `not_before`.
    pub fn forget_left_before(&mut self, not_before: Timestamp, max: usize) {
        for _ in 0..max {
            let Some((first_at, key)) = self.left.first() else { return };
            if *first_at >= not_before {
                return;
            }
            let key = key.clone();
            self.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::TopicNumber;

    use super::*;

    const PARTITION: PartitionId = PartitionId::new(TopicNumber(1), 0);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn the_oldest_end_is_that_of_the_attempts_that_remain() {
        let mut table = ClaimTable::default();
        for (key, end) in [(b"a", 5), (b"b", 3), (b"c", 3)] {
            table.insert(key.to_vec(), 7, (PARTITION, end), at(0));
        }
        assert_eq!(table.oldest_end(PARTITION), Some(3));
        table.remove(b"b");
        assert_eq!(table.oldest_end(PARTITION), Some(3));
        table.remove(b"c");
        assert_eq!(table.oldest_end(PARTITION), Some(5));
        assert_eq!(table.retake(b"a", (PARTITION, 4), at(1)), [(PARTITION, 5)]);
        assert_eq!(table.oldest_end(PARTITION), Some(4));
        table.insert(b"a".to_vec(), 8, (PARTITION, 9), at(2));
        assert_eq!(table.oldest_end(PARTITION), Some(9), "a new claim replaces the earlier one");
        table.remove(b"a");
        assert_eq!(table.oldest_end(PARTITION), None);
        assert!(table.ends.is_empty());
    }

    #[test]
    fn an_attempt_that_is_given_back_leaves_the_earlier_ones_lapsed() {
        let (mut table, lease) = (ClaimTable::default(), Duration::from_secs(60));
        table.insert(b"a".to_vec(), 7, (PARTITION, 5), at(0));
        table.leave(b"a");
        table.retake(b"a", (PARTITION, 3), at(60));
        assert!(!table.claims[&b"a"[..]].has_lapsed(at(1000), lease), "the attempt is under way");
        table.give_back(b"a");
        assert_eq!(table.oldest_end(PARTITION), Some(5));
        assert!(table.claims[&b"a"[..]].has_lapsed(at(60), lease), "at once");
        assert_eq!(table.retake(b"a", (PARTITION, 9), at(61)), [(PARTITION, 5)]);
        assert!(table.left.is_empty());
        table.insert(b"b".to_vec(), 7, (PARTITION, 1), at(0));
        table.give_back(b"b");
        assert!(table.get(b"b").is_none(), "a first attempt leaves nothing");
        assert_eq!(table.oldest_end(PARTITION), Some(5));
    }

    #[test]
    fn old_claims_with_an_unknown_outcome_are_forgotten_a_few_at_a_time() {
        let mut table = ClaimTable::default();
        for number in 0..10 {
            table.insert(vec![number], 7, (PARTITION, 0), at(number.into()));
            table.leave(&[number]);
        }
        table.retake(&[0], (PARTITION, 1), at(20));
        table.forget_left_before(at(8), 5);
        assert_eq!(table.claims.len(), 5);
        table.forget_left_before(at(8), 5);
        let mut kept: Vec<_> = table.claims.keys().map(|key| key[0]).collect();
        kept.sort_unstable();
        assert_eq!(kept, [0, 8, 9], "the attempt under way, and those that are not old");
        assert_eq!(table.left.len(), 2);
    }
}
