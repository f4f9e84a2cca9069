//! The format of progress in the LSM.
//!
//! A key is the subscription's number and the place of the row, so that the rows of a subscription and of a line are adjacent. A value
//! begins with the number of its format. A row is in the format of any store ([`progress_row`](crate::stores::progress_row)); an epoch is a
//! number.

use bytes::Bytes;
use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{ProgressKey, ProgressRow};

use crate::stores::progress_row::{FORMAT, decode_placed_row, encode_line, encode_place};

const SUBSCRIPTION_BYTES: usize = 4;

pub fn subscription(subscription: SubscriptionNumber) -> [u8; SUBSCRIPTION_BYTES] {
    subscription.0.to_be_bytes()
}

pub fn line(subscription: SubscriptionNumber, line: u32) -> Vec<u8> {
    [&subscription.0.to_be_bytes()[..], &encode_line(line)].concat()
}

pub fn row(subscription: SubscriptionNumber, place: ProgressKey) -> Vec<u8> {
    [&subscription.0.to_be_bytes()[..], &encode_place(place)].concat()
}

pub fn decode_row(key: &[u8], value: &[u8]) -> Option<ProgressRow> {
    decode_placed_row(key.get(SUBSCRIPTION_BYTES..)?, Bytes::copy_from_slice(value))
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
    use whimbrel_model::{PartitionId, TopicNumber};

    use super::*;
    use crate::stores::progress_row::{HEAD_BYTES, encode_row};

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
