//! The format of a row of progress.
//!
//! A place is the line, the topic's number and the partition, big-endian. A value is the number of its format, the run, and the owner's
//! bytes.

use bytes::Bytes;
use whimbrel_model::ports::{ProgressKey, ProgressRow};
use whimbrel_model::{PartitionId, TopicNumber};

/// The format of values. It is persisted.
pub const FORMAT: u8 = 1;
const PLACE_BYTES: usize = 12;
/// Bytes of a value before the owner's bytes.
pub const HEAD_BYTES: usize = 5;

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

pub fn decode_placed_row(place: &[u8], mut value: Bytes) -> Option<ProgressRow> {
    let (place, run) = (decode_place(place)?, decode_run(&value)?);
    Some(ProgressRow { place, run, state: value.split_off(HEAD_BYTES) })
}
