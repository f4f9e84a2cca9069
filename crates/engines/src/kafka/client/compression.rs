//! The four compression formats of Kafka's record batches. Decompression stops at 128 MiB per batch, so that damaged or hostile bytes
//! cannot fill the memory.

use std::io::{self, Read, Write as _};

use crate::kafka::settings::Compression;

/// The maximum size of one batch after decompression. `docs/operating/kafka.md` states it.
const DECOMPRESSED_BYTES_MAX: usize = 128 << 20;
/// The magic bytes that snappy-java writes before its blocks.
const XERIAL_MAGIC: &[u8] = &[0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const XERIAL_HEADER_BYTES: usize = 16;
const SNAPPY_BLOCK_BYTES: usize = 32 << 10;

/// Whether a body of this size may be compressed: a reader must be able to decompress it.
pub(super) fn can_compress(bytes: usize) -> bool {
    bytes <= DECOMPRESSED_BYTES_MAX
}

/// The codec in the attributes of a batch.
pub(super) fn codec_of(compression: Compression) -> i16 {
    match compression {
        Compression::None => 0,
        Compression::Gzip => 1,
        Compression::Snappy => 2,
        Compression::Lz4 => 3,
        Compression::Zstd => 4,
    }
}

pub(super) fn compress(compression: Compression, bytes: &[u8]) -> io::Result<Vec<u8>> {
    match compression {
        Compression::None => Ok(bytes.to_vec()),
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes)?;
            encoder.finish()
        }
        Compression::Snappy => snappy(bytes),
        Compression::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(bytes)?;
            encoder.finish().map_err(io::Error::other)
        }
        Compression::Zstd => zstd::stream::encode_all(bytes, zstd::DEFAULT_COMPRESSION_LEVEL),
    }
}

pub(super) fn decompress(codec: i16, bytes: &[u8]) -> io::Result<Vec<u8>> {
    decompress_within(codec, bytes, DECOMPRESSED_BYTES_MAX)
}

fn decompress_within(codec: i16, bytes: &[u8], bytes_max: usize) -> io::Result<Vec<u8>> {
    match codec {
        1 => bounded(flate2::read::MultiGzDecoder::new(bytes), bytes_max),
        2 => unsnappy(bytes, bytes_max),
        3 => bounded(lz4_flex::frame::FrameDecoder::new(bytes), bytes_max),
        4 => bounded(zstd::stream::read::Decoder::new(bytes)?, bytes_max),
        other => Err(invalid(format!("unknown compression codec {other}"))),
    }
}

fn bounded(reader: impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut decompressed = Vec::new();
    reader.take(bytes_max as u64 + 1).read_to_end(&mut decompressed)?;
    if decompressed.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    Ok(decompressed)
}

fn snappy(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressed = XERIAL_MAGIC.to_vec();
    // Its version, and the version that can read it.
    compressed.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    let mut encoder = snap::raw::Encoder::new();
    for block in bytes.chunks(SNAPPY_BLOCK_BYTES) {
        let block = encoder.compress_vec(block)?;
        compressed.extend((block.len() as u32).to_be_bytes());
        compressed.extend(block);
    }
    Ok(compressed)
}

/// One raw block, or snappy-java's stream of blocks.
fn unsnappy(bytes: &[u8], bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut decompressed = Vec::new();
    if !bytes.starts_with(XERIAL_MAGIC) {
        unsnappy_block(bytes, &mut decompressed, bytes_max)?;
        return Ok(decompressed);
    }
    let cut_short = || invalid("a truncated snappy stream".to_owned());
    let mut rest = bytes.get(XERIAL_HEADER_BYTES..).ok_or_else(cut_short)?;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (block, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(cut_short)?;
        unsnappy_block(block, &mut decompressed, bytes_max)?;
        rest = after;
    }
    if rest.is_empty() { Ok(decompressed) } else { Err(cut_short()) }
}

fn unsnappy_block(block: &[u8], decompressed: &mut Vec<u8>, bytes_max: usize) -> io::Result<()> {
    let (begin, length) = (decompressed.len(), snap::raw::decompress_len(block)?);
    if begin + length > bytes_max {
        return Err(too_large(bytes_max));
    }
    decompressed.resize(begin + length, 0);
    let written = snap::raw::Decoder::new().decompress(block, &mut decompressed[begin..])?;
    decompressed.truncate(begin + written);
    Ok(())
}

fn too_large(bytes_max: usize) -> io::Error {
    invalid(format!("more than {bytes_max} bytes after decompression"))
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 4] = [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    #[test]
    fn every_codec_restores_its_input() {
        let texts = [Vec::new(), b"whimbrel".to_vec(), b"whimbrel ".repeat(20_000)];
        for compression in ALL {
            for text in &texts {
                let compressed = compress(compression, text).unwrap();
                assert_eq!(&decompress(codec_of(compression), &compressed).unwrap(), text, "{compression:?}");
            }
        }
    }

    #[test]
    fn a_batch_over_the_bound_is_refused_by_every_codec() {
        let text = b"whimbrel ".repeat(20_000);
        for compression in ALL {
            let compressed = compress(compression, &text).unwrap();
            let codec = codec_of(compression);
            assert!(decompress_within(codec, &compressed, text.len() - 1).is_err(), "{compression:?}");
            assert_eq!(decompress_within(codec, &compressed, text.len()).unwrap(), text, "{compression:?}");
        }
    }

    #[test]
    fn broken_bytes_are_an_error_and_not_a_panic() {
        for compression in ALL {
            let compressed = compress(compression, &b"whimbrel ".repeat(100)).unwrap();
            for length in 0..compressed.len() {
                let _ = decompress(codec_of(compression), &compressed[..length]);
            }
            let garbage: Vec<u8> = (0..200_u8).map(|byte| byte.wrapping_mul(37)).collect();
            assert!(decompress(codec_of(compression), &garbage).is_err(), "{compression:?}");
        }
        assert!(decompress(9, b"").is_err());
    }
}
