//! The format of a topic's minute: a chunk with one row. The rows of several chunks of one minute are added.

use whimbrel_model::ports::{DurationHistogram, MinuteRow};
use whimbrel_model::{Timestamp, TopicNumber};

use super::slice::{ChunkHead, ChunkKey};
use super::varint::{put, take, take_as};

pub fn minutes_group(topic: TopicNumber) -> ChunkKey {
    [topic.0, 0, 0]
}

/// A time as an unsigned number that sorts as the time does: the look-up key of chunks of minutes.
pub fn sortable(time: Timestamp) -> u64 {
    time.as_millis() as u64 ^ 1 << 63
}

pub fn minute_chunk(topic: TopicNumber, minute: Timestamp, row: &MinuteRow, out: &mut Vec<u8>) {
    let mut body = Vec::new();
    [row.published, row.fired, row.delivered, row.failed].into_iter().for_each(|count| put(&mut body, count));
    for spread in [&row.publish_to_delivery, &row.callback, &row.lateness] {
        put(&mut body, spread.sum_us);
        put(&mut body, spread.buckets.len() as u64);
        let mut previous = 0;
        for (bucket, count) in &spread.buckets {
            put(&mut body, u64::from(bucket.wrapping_sub(previous)));
            put(&mut body, u64::from(*count));
            previous = *bucket;
        }
    }
    let place = sortable(minute);
    let head = ChunkHead::of(minutes_group(topic), place..=place, minute.as_millis(), 1, &body);
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(&body);
}

/// `None` if it cannot be decoded.
pub fn read(head: &ChunkHead, mut body: &[u8]) -> Option<(Timestamp, MinuteRow)> {
    let body = &mut body;
    let row = MinuteRow {
        published: take(body)?,
        fired: take(body)?,
        delivered: take(body)?,
        failed: take(body)?,
        publish_to_delivery: take_spread(body)?,
        callback: take_spread(body)?,
        lateness: take_spread(body)?,
    };
    Some((Timestamp::from_millis(head.base), row))
}

fn take_spread(body: &mut &[u8]) -> Option<DurationHistogram> {
    let (sum_us, count) = (take(body)?, take_as::<u16>(body)?);
    let mut buckets = Vec::new();
    let mut previous = 0u16;
    for _ in 0..count {
        previous = previous.wrapping_add(take_as(body)?);
        buckets.push((previous, take_as(body)?));
    }
    Some(DurationHistogram { sum_us, buckets })
}
