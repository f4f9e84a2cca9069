//! Generations of the parts of a store: of a shard of holds, or of a partition of inboxes.
//!
//! Every key of a row begins with its part and the part's generation. A part that is emptied continues in the next generation, and no read
//! sees the rows of the earlier one. The keyspace of the parts' states has the prefixes of the generations that must be erased.

use fjall::Keyspace;

pub(crate) const PREFIX_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation {
    /// The number of the shard or partition.
    pub part: u32,
    pub generation: u32,
}

impl Generation {
    pub fn prefix(self) -> [u8; PREFIX_BYTES] {
        (u64::from(self.part) << 32 | u64::from(self.generation)).to_be_bytes()
    }

    pub fn of_prefix(prefix: [u8; PREFIX_BYTES]) -> Self {
        let both = u64::from_be_bytes(prefix);
        Self { part: (both >> 32) as u32, generation: both as u32 }
    }

    /// The key of a row, from the fields after the prefix.
    pub fn key(self, fields: &[&[u8]]) -> Vec<u8> {
        let mut key = Vec::with_capacity(PREFIX_BYTES + fields.iter().map(|field| field.len()).sum::<usize>());
        key.extend_from_slice(&self.prefix());
        fields.iter().for_each(|field| key.extend_from_slice(field));
        key
    }

    /// The generations that are emptied and not erased yet.
    pub fn emptied(states: &Keyspace) -> fjall::Result<Vec<Self>> {
        let mut emptied = Vec::new();
        for entry in states.iter() {
            if let Ok(prefix) = <[u8; PREFIX_BYTES]>::try_from(&entry.key()?[..]) {
                emptied.push(Self::of_prefix(prefix));
            }
        }
        Ok(emptied)
    }
}
