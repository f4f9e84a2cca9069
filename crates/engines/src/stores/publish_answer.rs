//! The format of the answer to a publisher. It begins with the version of the format.

use bytes::Buf as _;
use whimbrel_model::ports::PublishReceipt;
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

/// With the due time of a hold.
const FORMAT: u8 = 2;
/// Without the due time, as earlier versions wrote.
const FORMAT_WITHOUT_DUE: u8 = 1;
const FIXED_LEN: usize = 41;
/// Stands for the due time of a message that was not a hold.
const NOT_HELD: i64 = i64::MIN;

pub fn encode_answer(fingerprint: u64, answer: &PublishReceipt) -> Vec<u8> {
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

pub fn decode_answer(mut value: &[u8]) -> Option<(u64, PublishReceipt)> {
    let format = value.try_get_u8().ok()?;
    let fingerprint = value.try_get_u64_le().ok()?;
    let (topic, index) = (TopicNumber(value.try_get_u32_le().ok()?), value.try_get_u32_le().ok()?);
    let partition = PartitionId::new(topic, index);
    let offset = value.try_get_u64_le().ok()?;
    let answered_at = Timestamp::from_millis(value.try_get_i64_le().ok()?);
    let due = match format {
        FORMAT => value.try_get_i64_le().ok()?,
        FORMAT_WITHOUT_DUE => NOT_HELD,
        _ => return None,
    };
    let due = (due != NOT_HELD).then(|| Timestamp::from_millis(due));
    let id = std::str::from_utf8(value).ok()?.to_owned();
    Some((fingerprint, PublishReceipt { id, partition, offset, due, answered_at }))
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
