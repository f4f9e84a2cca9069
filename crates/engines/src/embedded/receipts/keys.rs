//! The format of receipts in the LSM. Answers begin with the version of their format.

use std::ops::Range;

use whimbrel_model::ports::{Claim, ClaimKind, PublishReceipt};
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

/// With the due time of a hold.
const FORMAT: u8 = 2;
/// Without the due time, as earlier versions wrote.
const FORMAT_WITHOUT_DUE: u8 = 1;
const FIXED_LEN: usize = 41;
/// Stands for the due time of a message that was not a hold.
const NOT_HELD: i64 = i64::MIN;

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

pub(crate) fn encode_answer(fingerprint: u64, answer: &PublishReceipt) -> Vec<u8> {
    let mut value = Vec::with_capacity(FIXED_LEN + answer.id.len());
    value.push(FORMAT);
    value.extend_from_slice(&fingerprint.to_le_bytes());
    value.extend_from_slice(&answer.partition.topic.0.to_le_bytes());
    value.extend_from_slice(&answer.partition.index.to_le_bytes());
    value.extend_from_slice(&answer.offset.to_le_bytes());
    value.extend_from_slice(&answer.answered_at.as_millis().to_le_bytes());
    value.extend_from_slice(&answer.due.map_or(NOT_HELD, Timestamp::as_millis).to_le_bytes());
    value.extend_from_slice(answer.id.as_bytes());
    value
}

pub(crate) fn decode_answer(value: &[u8]) -> Option<(u64, PublishReceipt)> {
    let (format, rest) = value.split_first()?;
    let (fingerprint, rest) = rest.split_first_chunk()?;
    let (topic, rest) = rest.split_first_chunk()?;
    let (index, rest) = rest.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (answered_at, rest) = rest.split_first_chunk()?;
    let (due, id) = match *format {
        FORMAT => rest.split_first_chunk().map(|(due, id)| (i64::from_le_bytes(*due), id))?,
        FORMAT_WITHOUT_DUE => (NOT_HELD, rest),
        _ => return None,
    };
    let answer = PublishReceipt {
        id: std::str::from_utf8(id).ok()?.to_owned(),
        partition: PartitionId::new(TopicNumber(u32::from_le_bytes(*topic)), u32::from_le_bytes(*index)),
        offset: u64::from_le_bytes(*offset),
        due: (due != NOT_HELD).then(|| Timestamp::from_millis(due)),
        answered_at: Timestamp::from_millis(i64::from_le_bytes(*answered_at)),
    };
    Some((u64::from_le_bytes(*fingerprint), answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_written_and_a_damaged_one_is_rejected() {
        let partition = PartitionId::new(TopicNumber(3), 4);
        let (due, answered_at) = (Some(Timestamp::from_millis(9)), Timestamp::from_millis(6));
        let answer = PublishReceipt { id: "order-1".into(), partition, offset: 5, due, answered_at };
        let now = PublishReceipt { due: None, ..answer.clone() };
        assert_eq!(decode_answer(&encode_answer(7, &now)), Some((7, now)));
        let value = encode_answer(7, &answer);
        assert_eq!(decode_answer(&value), Some((7, answer)));
        for len in 0..FIXED_LEN {
            assert_eq!(decode_answer(&value[..len]), None);
        }
    }
}
