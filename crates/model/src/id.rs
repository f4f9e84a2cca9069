//! Message ids. A minted id contains the message's topic and partition, so a lookup needs no index.
//!
//! A minted id is a UUID of version 8, ordered by time:
//!
//! ```text
//! bits  48 milliseconds | 4 version | 12 topic (high) | 2 variant | 8 topic (low) | 14 partition | 12 node | 28 counter
//! ```
//!
//! The counter starts at a random number and does not restart each millisecond. So collisions are unlikely even if two processes share a
//! node number by mistake. A partition of all ones marks a hold: its partition is computed when it fires.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{PartitionId, Timestamp, TopicNumber};

const PARTITION_HELD: u32 = (1 << 14) - 1;
const NODE_MAX: u16 = (1 << 12) - 1;
const COUNTER_MASK: u32 = (1 << 28) - 1;

/// The contents of a minted id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MintedIdParts {
    pub minted_at: Timestamp,
    pub topic: TopicNumber,
    /// `None`: the id was minted for a hold.
    pub partition: Option<u32>,
    pub node: u16,
}

/// A minted id of 128 bits. Its text form is that of a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(u128);

impl MessageId {
    fn compose(minted_at: Timestamp, topic: TopicNumber, partition: u32, node: u16, counter: u32) -> Self {
        let ms = (minted_at.as_millis().max(0) as u128) & ((1 << 48) - 1);
        let topic = u128::from(topic.0);
        let high = ms << 16 | 8 << 12 | (topic >> 8 & 0xfff);
        let low = 0b10u128 << 62
            | (topic & 0xff) << 54
            | u128::from(partition & PARTITION_HELD) << 40
            | u128::from(node & NODE_MAX) << 28
            | u128::from(counter & COUNTER_MASK);
        Self(high << 64 | low)
    }

    /// Decodes the id. `None`: it is not of the minted form.
    pub fn place(self) -> Option<MintedIdParts> {
        let is_version_8 = self.0 >> 76 & 0xf == 8 && self.0 >> 62 & 0b11 == 0b10;
        let partition = (self.0 >> 40) as u32 & PARTITION_HELD;
        is_version_8.then(|| MintedIdParts {
            minted_at: Timestamp::from_millis((self.0 >> 80) as i64),
            topic: TopicNumber(((self.0 >> 64) as u32 & 0xfff) << 8 | (self.0 >> 54) as u32 & 0xff),
            partition: (partition != PARTITION_HELD).then_some(partition),
            node: (self.0 >> 28) as u16 & NODE_MAX,
        })
    }

    /// The text form, 36 ASCII characters, without an allocation.
    pub fn to_text(self) -> [u8; 36] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; 36];
        let mut at = 0;
        for (index, byte) in self.0.to_be_bytes().into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                at += 1;
            }
            text[at] = HEX[usize::from(byte >> 4)];
            text[at + 1] = HEX[usize::from(byte & 0xf)];
            at += 2;
        }
        text
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.to_text()).expect("hexadecimal digits are text"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID of 32 lowercase hexadecimal digits with dashes")]
pub struct NotAnId;

impl FromStr for MessageId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return Err(NotAnId);
        }
        let mut value = 0u128;
        for (index, byte) in bytes.iter().enumerate() {
            match (index, byte) {
                (8 | 13 | 18 | 23, b'-') => {}
                (8 | 13 | 18 | 23, _) => return Err(NotAnId),
                (_, b'0'..=b'9') => value = value << 4 | u128::from(byte - b'0'),
                (_, b'a'..=b'f') => value = value << 4 | u128::from(byte - b'a' + 10),
                _ => return Err(NotAnId),
            }
        }
        Ok(Self(value))
    }
}

/// Mints ids for one node.
#[derive(Debug)]
pub struct IdMint {
    node: u16,
    counter: AtomicU32,
}

impl IdMint {
    /// `start` is the first value of the counter, a random number.
    pub fn new(node: u16, start: u32) -> Self {
        assert!(node <= NODE_MAX, "node numbers have 12 bits");
        Self { node, counter: AtomicU32::new(start) }
    }

    /// Mints the id of a message that is appended to its partition now.
    pub fn mint(&self, now: Timestamp, partition: PartitionId) -> MessageId {
        debug_assert!(partition.index < PARTITION_HELD);
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        MessageId::compose(now, partition.topic, partition.index, self.node, counter)
    }

    /// Mints the id of a hold.
    pub fn mint_held(&self, now: Timestamp, topic: TopicNumber) -> MessageId {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        MessageId::compose(now, topic, PARTITION_HELD, self.node, counter)
    }
}

/// The id of a record that another application wrote: `at-<topic>-<partition>-<offset>`.
pub fn id_from_place(partition: PartitionId, offset: u64) -> String {
    format!("at-{}-{}-{offset}", partition.topic.0, partition.index)
}

/// Parses an id that [`id_from_place`] returned.
pub fn place_from_id(id: &str) -> Option<(PartitionId, u64)> {
    let mut parts = id.strip_prefix("at-")?.split('-');
    let topic = parts.next()?.parse().ok()?;
    let index = parts.next()?.parse().ok()?;
    let offset = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((PartitionId::new(TopicNumber(topic), index), offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_is_a_uuid_of_version_8() {
        let mint = IdMint::new(7, 1);
        let id =
            mint.mint(Timestamp::from_millis(1_794_739_122_001), PartitionId::new(TopicNumber(0xabcde), 3)).to_string();
        assert_eq!(id.len(), 36);
        assert_eq!(id.as_bytes()[14], b'8');
        assert!(matches!(id.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
    }

    #[test]
    fn an_id_made_from_a_location_parses_back() {
        let partition = PartitionId::new(TopicNumber(9), 2);
        assert_eq!(place_from_id(&id_from_place(partition, 77)), Some((partition, 77)));
        assert_eq!(place_from_id("at-1-2"), None);
        assert_eq!(place_from_id("order-1-2-3"), None);
    }

    proptest! {
        #[test]
        fn a_minted_id_decodes_to_its_parts(ms in 0i64..1 << 48, topic in 0u32..1 << 20, index in 0u32..(1 << 14) - 1, node in 0u16..1 << 12, start: u32) {
            let mint = IdMint::new(node, start);
            let (minted_at, topic) = (Timestamp::from_millis(ms), TopicNumber(topic));
            let id = mint.mint(minted_at, PartitionId::new(topic, index));
            prop_assert_eq!(id.place(), Some(MintedIdParts { minted_at, topic, partition: Some(index), node }));
            prop_assert_eq!(id.to_string().parse::<MessageId>(), Ok(id));
            let held = mint.mint_held(minted_at, topic);
            prop_assert_eq!(held.place().and_then(|place| place.partition), None);
            prop_assert_ne!(held, id);
        }

        #[test]
        fn later_ids_sort_after_earlier_ones(ms in 0i64..1 << 47, topic in 0u32..1 << 20) {
            let mint = IdMint::new(0, u32::MAX - 1);
            let at = |ms| mint.mint(Timestamp::from_millis(ms), PartitionId::new(TopicNumber(topic), 0));
            prop_assert!(at(ms).to_string() < at(ms + 1).to_string());
        }
    }
}
