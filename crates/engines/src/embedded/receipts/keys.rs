//! The keys of receipts in the LSM, and the format of its small values.

use std::ops::Range;

use whimbrel_model::ports::{Claim, ClaimKind, PublishReceipt};
use whimbrel_model::{PartitionId, TopicNumber};

/// The identity of a claim: its kind, topic, owner and text, but not its partition.
pub(super) fn claim_key(claim: &Claim) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + claim.owner.len() + claim.text.len());
    key.push(match claim.kind {
        ClaimKind::Key => b'k',
        ClaimKind::Id => b'i',
    });
    key.extend_from_slice(&claim.topic.0.to_be_bytes());
    key.extend_from_slice(&(claim.owner.len() as u32).to_be_bytes());
    key.extend_from_slice(claim.owner.as_bytes());
    key.extend_from_slice(claim.text.as_bytes());
    key
}

/// The prefix of one id alone: ids contain no zero byte.
pub(super) fn id_prefix(id: &str) -> Vec<u8> {
    let mut key = id.as_bytes().to_vec();
    key.push(0);
    key
}

/// The key of an answer under its id, ordered by time.
pub(super) fn id_key(id: &str, answer: &PublishReceipt) -> Vec<u8> {
    let mut key = id_prefix(id);
    key.extend_from_slice(&answer.answered_at.as_millis().to_be_bytes());
    key.extend_from_slice(&answer.partition.topic.0.to_be_bytes());
    key.extend_from_slice(&answer.partition.index.to_be_bytes());
    key.extend_from_slice(&answer.offset.to_be_bytes());
    key
}

pub(super) fn applied_key(partition: PartitionId) -> [u8; 8] {
    (u64::from(partition.topic.0) << 32 | u64::from(partition.index)).to_be_bytes()
}

pub(super) fn partition_of(key: &[u8]) -> Option<PartitionId> {
    let number = u64::from_be_bytes(key.try_into().ok()?);
    Some(PartitionId::new(TopicNumber((number >> 32) as u32), number as u32))
}

pub(super) fn encode_backlog(left: &Range<u64>) -> Vec<u8> {
    [left.start.to_le_bytes(), left.end.to_le_bytes()].concat()
}

pub(super) fn decode_backlog(value: &[u8]) -> Option<Range<u64>> {
    let (start, end) = value.split_first_chunk()?;
    Some(u64::from_le_bytes(*start)..u64::from_le_bytes(end.try_into().ok()?))
}
