//! The format of inboxes in the LSM.
//!
//! A key begins with the partition and its generation. Each reset increments the generation, so rows from before a reset are never read
//! again. The rest of the key is: for a box, the user's id; for a row, the id and the row's number; for a shared row and its references,
//! the number; for an entry of the index of reclaimable boxes, the hour and the id. Numbers are big-endian. Ids need no terminator: the
//! rest after an id has a fixed length.
//!
//! The values of boxes and rows are the owner's bytes only. This module defines the formats of the other values.

use bytes::Buf as _;

use crate::embedded::lsm::{Generation, PREFIX_BYTES};

/// The format of a partition's state. It is persisted.
const FORMAT: u8 = 1;
const STATE_BYTES: usize = 1 + 8 + 8 + 4;
const HOUR_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionState {
    pub epoch: u64,
    pub applied: u64,
    pub generation: u32,
}

impl PartitionState {
    /// A partition that was never written.
    pub const UNKNOWN: Self = Self { epoch: 0, applied: 0, generation: 0 };

    pub fn encode(&self) -> [u8; STATE_BYTES] {
        let mut value = [FORMAT; STATE_BYTES];
        value[1..9].copy_from_slice(&self.epoch.to_be_bytes());
        value[9..17].copy_from_slice(&self.applied.to_be_bytes());
        value[17..].copy_from_slice(&self.generation.to_be_bytes());
        value
    }

    pub fn decode(value: &[u8]) -> Option<Self> {
        let (&FORMAT, mut rest) = value.split_first()? else { return None };
        let (epoch, applied) = (rest.try_get_u64().ok()?, rest.try_get_u64().ok()?);
        let generation = rest.try_get_u32().ok()?;
        rest.is_empty().then_some(Self { epoch, applied, generation })
    }
}

/// The keys of a partition.
impl Generation {
    pub fn user(self, uid: &str) -> Vec<u8> {
        self.key(&[uid.as_bytes()])
    }

    pub fn own(self, uid: &str, seq: u64) -> Vec<u8> {
        self.key(&[uid.as_bytes(), &seq.to_be_bytes()])
    }

    pub fn shared(self, seq: u64) -> Vec<u8> {
        self.key(&[&seq.to_be_bytes()])
    }

    pub fn reclaim(self, hour: u32, uid: &str) -> Vec<u8> {
        self.key(&[&hour.to_be_bytes(), uid.as_bytes()])
    }
}

/// The user in a key of the index of reclaimable boxes.
pub(super) fn reclaim_user(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(PREFIX_BYTES + HOUR_BYTES..)?).ok()
}

pub(super) fn decode_references(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_written_and_a_damaged_one_is_rejected() {
        let state = PartitionState { epoch: u64::MAX, applied: 7, generation: 9 };
        let value = state.encode();
        assert_eq!(PartitionState::decode(&value), Some(state));
        for len in 0..value.len() {
            assert_eq!(PartitionState::decode(&value[..len]), None);
        }
        let newer = [&[FORMAT + 1], &value[1..]].concat();
        assert_eq!(PartitionState::decode(&newer), None, "an unknown format");
    }

    #[test]
    fn rows_of_different_users_have_different_keys() {
        let place = Generation { part: 3, generation: 1 };
        let ids = ["a", "aa", "aaaaaaaaa", "b"];
        let seqs = [0, 1, u64::from_be_bytes(*b"aaaaaaaa")];
        let mut keys: Vec<_> = ids.iter().flat_map(|id| seqs.map(|seq| place.own(id, seq))).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), ids.len() * seqs.len());
        assert_eq!(reclaim_user(&place.reclaim(5, "b")), Some("b"));
        assert_eq!(Generation::of_prefix(place.prefix()), place);
    }
}
