//! The encoding of a partition's progress: format 1. Numbers are little-endian.
//!
//! ```text
//! 1 format | 8 watermark | 8 read to | 8 failing since (ms; `i64::MIN`: none) | 4 count, then 8 offset 4 attempts 8 next (ms) each |
//! the unfinished offsets as a portable roaring treemap
//! ```

use bytes::{Buf, BufMut};
use roaring::RoaringTreemap;
use whimbrel_model::Timestamp;

use super::window::{PartitionProgress, PartitionResume};

const FORMAT: u8 = 1;
const NOT_FAILING: i64 = i64::MIN;
const FRAME_BYTES: usize = 1 + 8 * 3 + 4;
const RETRY_BYTES: usize = 8 + 4 + 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedProgress {
    #[error("the row has format {0}; this version reads format 1")]
    OtherFormat(u8),
    #[error("the row is truncated or corrupted")]
    Garbled,
}

pub fn encode(progress: &PartitionProgress, failing_since: Option<Timestamp>) -> Vec<u8> {
    let retries = &progress.retries;
    let capacity = FRAME_BYTES + retries.len() * RETRY_BYTES + progress.unfinished.serialized_size();
    let mut bytes = Vec::with_capacity(capacity);
    bytes.put_u8(FORMAT);
    bytes.put_u64_le(progress.watermark);
    bytes.put_u64_le(progress.read_to);
    bytes.put_i64_le(failing_since.map_or(NOT_FAILING, Timestamp::as_millis));
    bytes.put_u32_le(u32::try_from(retries.len()).expect("parked lanes are bounded in bytes"));
    for (offset, attempts, next) in retries {
        bytes.put_u64_le(*offset);
        bytes.put_u32_le(*attempts);
        bytes.put_i64_le(next.as_millis());
    }
    progress.unfinished.serialize_into(&mut bytes).expect("memory takes everything");
    bytes
}

pub fn decode(mut bytes: &[u8]) -> Result<(PartitionResume, Option<Timestamp>), MalformedProgress> {
    match bytes.first() {
        Some(&FORMAT) => {}
        Some(&other) => return Err(MalformedProgress::OtherFormat(other)),
        None => return Err(MalformedProgress::Garbled),
    }
    if bytes.len() < FRAME_BYTES {
        return Err(MalformedProgress::Garbled);
    }
    bytes.advance(1);
    let (watermark, read_to) = (bytes.get_u64_le(), bytes.get_u64_le());
    let failing_since = Some(bytes.get_i64_le()).filter(|ms| *ms != NOT_FAILING).map(Timestamp::from_millis);
    let count = bytes.get_u32_le() as usize;
    if bytes.len() / RETRY_BYTES < count {
        return Err(MalformedProgress::Garbled);
    }
    let retries = (0..count)
        .map(|_| (bytes.get_u64_le(), bytes.get_u32_le(), Timestamp::from_millis(bytes.get_i64_le())))
        .collect();
    let unfinished = RoaringTreemap::deserialize_from(bytes).map_err(|_| MalformedProgress::Garbled)?;
    if watermark > read_to {
        return Err(MalformedProgress::Garbled);
    }
    Ok((PartitionResume { watermark, read_to, unfinished, retries }, failing_since))
}

/// Whether a row counts for a line of this run. A seek begins a new run; retries in progress are not part of it.
pub fn counts(row_run: u32, run: u32, is_retry: bool) -> bool {
    row_run == run || is_retry
}

/// Whether rows belong to a later run than the line's. Then the catalogue has a seek that is not followed yet, and the line of that seek
/// needs the rows. The present line must not start.
pub fn are_ahead(row_runs: impl IntoIterator<Item = u32>, run: u32) -> bool {
    row_runs.into_iter().any(|row_run| row_run > run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoded_progress_is_decoded_unchanged(
            watermark in 0u64..1 << 40,
            unfinished in proptest::collection::btree_set(0u64..100_000, 0..200),
            retries in proptest::collection::vec((any::<u64>(), any::<u32>(), 0i64..1 << 48), 0..20),
            since in proptest::option::of(0i64..1 << 48),
        ) {
            let progress = PartitionProgress {
                watermark,
                read_to: watermark + 100_000,
                unfinished: unfinished.iter().map(|offset| watermark + offset).collect(),
                retries: retries.into_iter().map(|(offset, attempts, at)| (offset, attempts, Timestamp::from_millis(at))).collect(),
            };
            let since = since.map(Timestamp::from_millis);
            let (resume, failing_since) = decode(&encode(&progress, since)).unwrap();
            prop_assert_eq!(failing_since, since);
            prop_assert_eq!(resume.watermark, progress.watermark);
            prop_assert_eq!(resume.read_to, progress.read_to);
            prop_assert_eq!(resume.unfinished, progress.unfinished);
            prop_assert_eq!(resume.retries, progress.retries);
        }

        #[test]
        fn decoding_arbitrary_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn another_format_is_rejected() {
        assert_eq!(decode(&[9, 1, 2]), Err(MalformedProgress::OtherFormat(9)));
        assert_eq!(decode(&[]), Err(MalformedProgress::Garbled));
    }
}
