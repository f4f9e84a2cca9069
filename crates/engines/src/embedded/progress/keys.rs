//! The format of progress in the LSM, and of a row in any store.
//!
//! A key is the subscription's number, the line, the topic's number and the partition, big-endian, so that the rows of a subscription and
//! of a line are adjacent. A value begins with the number of its format. A row then has its run and the owner's bytes; an epoch is a
//! number.

use bytes::Bytes;
use whimbrel_model::ports::{ProgressKey, ProgressRow};
use whimbrel_model::{PartitionId, SubscriptionNumber, TopicNumber};

/// The format of values. It is persisted.
const FORMAT: u8 = 1;
const SUBSCRIPTION_BYTES: usize = 4;
const PLACE_BYTES: usize = 12;
/// Bytes of a value before the owner's bytes.
const HEAD_BYTES: usize = 5;

pub fn subscription(subscription: SubscriptionNumber) -> [u8; SUBSCRIPTION_BYTES] {
    subscription.0.to_be_bytes()
}

pub fn line(subscription: SubscriptionNumber, line: u32) -> [u8; SUBSCRIPTION_BYTES + 4] {
    let mut key = [0; SUBSCRIPTION_BYTES + 4];
    key[..SUBSCRIPTION_BYTES].copy_from_slice(&subscription.0.to_be_bytes());
    key[SUBSCRIPTION_BYTES..].copy_from_slice(&encode_line(line));
    key
}

pub fn row(subscription: SubscriptionNumber, place: ProgressKey) -> [u8; SUBSCRIPTION_BYTES + PLACE_BYTES] {
    let mut key = [0; SUBSCRIPTION_BYTES + PLACE_BYTES];
    key[..SUBSCRIPTION_BYTES].copy_from_slice(&subscription.0.to_be_bytes());
    key[SUBSCRIPTION_BYTES..].copy_from_slice(&encode_place(place));
    key
}

/// The prefix of the places of a line.
pub fn encode_line(line: u32) -> [u8; 4] {
    line.to_be_bytes()
}

pub fn encode_place(place: ProgressKey) -> [u8; PLACE_BYTES] {
    let mut bytes = [0; PLACE_BYTES];
    bytes[..4].copy_from_slice(&place.line.to_be_bytes());
    bytes[4..8].copy_from_slice(&place.partition.topic.0.to_be_bytes());
    bytes[8..].copy_from_slice(&place.partition.index.to_be_bytes());
    bytes
}

pub fn decode_place(bytes: &[u8]) -> Option<ProgressKey> {
    let (line, rest) = bytes.split_first_chunk()?;
    let (topic, rest) = rest.split_first_chunk()?;
    let index = rest.try_into().ok()?;
    let partition = PartitionId::new(TopicNumber(u32::from_be_bytes(*topic)), u32::from_be_bytes(index));
    Some(ProgressKey { line: u32::from_be_bytes(*line), partition })
}

pub fn encode_row(row: &ProgressRow) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD_BYTES + row.state.len());
    value.push(FORMAT);
    value.extend_from_slice(&row.run.to_be_bytes());
    value.extend_from_slice(&row.state);
    value
}

pub fn decode_run(value: &[u8]) -> Option<u32> {
    let (head, _) = value.split_first_chunk::<HEAD_BYTES>()?;
    let [FORMAT, run @ ..] = *head else { return None };
    Some(u32::from_be_bytes(run))
}

pub fn decode_row(key: &[u8], value: &[u8]) -> Option<ProgressRow> {
    decode_placed_row(key.get(SUBSCRIPTION_BYTES..)?, Bytes::copy_from_slice(value))
}

pub fn decode_placed_row(place: &[u8], mut value: Bytes) -> Option<ProgressRow> {
    let (place, run) = (decode_place(place)?, decode_run(&value)?);
    Some(ProgressRow { place, run, state: value.split_off(HEAD_BYTES) })
}

pub fn encode_epoch(epoch: u64) -> [u8; 9] {
    let mut value = [FORMAT; 9];
    value[1..].copy_from_slice(&epoch.to_be_bytes());
    value
}

pub fn decode_epoch(value: &[u8]) -> Option<u64> {
    match value.split_first()? {
        (&FORMAT, epoch) => Some(u64::from_be_bytes(epoch.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_written_and_a_damaged_one_is_rejected() {
        let place = ProgressKey { line: 3, partition: PartitionId::new(TopicNumber(4), 5) };
        let saved = ProgressRow { place, run: 7, state: Bytes::from_static(b"bitmap") };
        let (key, value) = (row(SubscriptionNumber(9), place), encode_row(&saved));
        assert_eq!(decode_row(&key, &value), Some(saved));
        assert!(key.starts_with(&line(SubscriptionNumber(9), 3)));
        for len in 0..HEAD_BYTES {
            assert_eq!(decode_row(&key, &value[..len]), None);
        }
        for len in 0..key.len() {
            assert_eq!(decode_row(&key[..len], &value), None);
        }
        let newer = [&[FORMAT + 1], &value[1..]].concat();
        assert_eq!(decode_row(&key, &newer), None, "an unknown format");
    }

    #[test]
    fn an_epoch_is_read_as_written_and_a_damaged_one_is_rejected() {
        assert_eq!(decode_epoch(&encode_epoch(u64::MAX - 1)), Some(u64::MAX - 1));
        assert_eq!(decode_epoch(&[]), None);
        assert_eq!(decode_epoch(&encode_epoch(1)[..8]), None);
        assert_eq!(decode_epoch(&[FORMAT + 1, 0, 0, 0, 0, 0, 0, 0, 1]), None);
    }
}
