//! How inboxes lie in the LSM.
//!
//! A key begins with the partition and its generation, which grows with each reset: what stood before one is never read again. After
//! that, a box has the user's id; a row the id and its number; a shared row and its references the number; an entry of the index of what
//! may be reclaimed the hour and the id. Numbers are big-endian. Ids need no mark of their end: what follows one has a fixed length.
//!
//! The values of boxes and rows are their owner's bytes and nothing else; the formats of the others are here.

/// The format of a partition's state; part of what is on disk.
const FORMAT: u8 = 1;
const STATE_BYTES: usize = 1 + 8 + 8 + 4;
/// Bytes of a key before what is its own.
pub(super) const PREFIX_BYTES: usize = 8;
const HOUR_BYTES: usize = 4;

/// Where a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionState {
    pub epoch: u64,
    pub applied: u64,
    pub generation: u32,
}

impl PartitionState {
    /// Of a partition that nobody wrote.
    pub const UNKNOWN: Self = Self { epoch: 0, applied: 0, generation: 0 };

    pub fn encode(&self) -> [u8; STATE_BYTES] {
        let mut value = [FORMAT; STATE_BYTES];
        value[1..9].copy_from_slice(&self.epoch.to_be_bytes());
        value[9..17].copy_from_slice(&self.applied.to_be_bytes());
        value[17..].copy_from_slice(&self.generation.to_be_bytes());
        value
    }

    pub fn decode(value: &[u8]) -> Option<Self> {
        let (&FORMAT, rest) = value.split_first()? else { return None };
        let (epoch, rest) = rest.split_first_chunk()?;
        let (applied, rest) = rest.split_first_chunk()?;
        let generation = rest.try_into().ok()?;
        Some(Self {
            epoch: u64::from_be_bytes(*epoch),
            applied: u64::from_be_bytes(*applied),
            generation: u32::from_be_bytes(generation),
        })
    }
}

/// A generation of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub partition: u32,
    pub generation: u32,
}

impl Place {
    pub fn prefix(self) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..4].copy_from_slice(&self.partition.to_be_bytes());
        prefix[4..].copy_from_slice(&self.generation.to_be_bytes());
        prefix
    }

    pub fn of_prefix(prefix: [u8; PREFIX_BYTES]) -> Self {
        let [p0, p1, p2, p3, g0, g1, g2, g3] = prefix;
        Self { partition: u32::from_be_bytes([p0, p1, p2, p3]), generation: u32::from_be_bytes([g0, g1, g2, g3]) }
    }

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

    fn key(self, parts: &[&[u8]]) -> Vec<u8> {
        let mut key = Vec::with_capacity(PREFIX_BYTES + parts.iter().map(|part| part.len()).sum::<usize>());
        key.extend_from_slice(&self.prefix());
        parts.iter().for_each(|part| key.extend_from_slice(part));
        key
    }
}

/// The user of an entry of the index of what may be reclaimed.
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
    fn a_state_survives_and_a_broken_one_is_refused() {
        let state = PartitionState { epoch: u64::MAX, applied: 7, generation: 9 };
        let value = state.encode();
        assert_eq!(PartitionState::decode(&value), Some(state));
        for len in 0..value.len() {
            assert_eq!(PartitionState::decode(&value[..len]), None);
        }
        let newer = [&[FORMAT + 1], &value[1..]].concat();
        assert_eq!(PartitionState::decode(&newer), None, "a format that is not known");
    }

    #[test]
    fn rows_of_different_users_never_meet() {
        let place = Place { partition: 3, generation: 1 };
        let ids = ["a", "aa", "aaaaaaaaa", "b"];
        let seqs = [0, 1, u64::from_be_bytes(*b"aaaaaaaa")];
        let mut keys: Vec<_> = ids.iter().flat_map(|id| seqs.map(|seq| place.own(id, seq))).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), ids.len() * seqs.len());
        assert_eq!(reclaim_user(&place.reclaim(5, "b")), Some("b"));
        assert_eq!(Place::of_prefix(place.prefix()), place);
    }
}
