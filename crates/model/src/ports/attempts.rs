//! The `AttemptStore` port: delivery attempts with their results, and metrics by the minute. Each node stores its own.
//!
//! It never delays a delivery: a note that cannot be written is lost and counted. Space is bounded; the oldest slices of time are deleted.

use bytes::Bytes;

use super::PortFuture;
use crate::{PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

/// The stored bytes of the response to a failed attempt.
pub const ANSWER_KEPT_BYTES: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    pub subscription: SubscriptionNumber,
    pub run: u32,
    pub partition: PartitionId,
    pub offset: u64,
    /// The first is 1.
    pub attempt: u32,
    pub at: Timestamp,
    pub took_ms: u32,
    pub outcome: AttemptOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptOutcome {
    Delivered {
        status: u16,
    },
    /// The attempt failed. `next` is the next action.
    Failed {
        status: Option<u16>,
        reason: Box<str>,
        answer: Bytes,
        next: AfterFailure,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    RetryAt(Timestamp),
    DeadLetter,
    Dropped,
}

/// The metrics of one topic in one minute on one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MinuteRow {
    pub published: u64,
    pub fired: u64,
    pub delivered: u64,
    pub failed: u64,
    /// From the publish, or from the due time of a hold, to the successful delivery.
    pub publish_to_delivery: DurationHistogram,
    pub callback: DurationHistogram,
    /// From a hold's due time to the time at which it fired.
    pub lateness: DurationHistogram,
}

impl MinuteRow {
    /// Adds another node's row of the same minute.
    pub fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.fired += other.fired;
        self.delivered += other.delivered;
        self.failed += other.failed;
        self.publish_to_delivery.add(&other.publish_to_delivery);
        self.callback.add(&other.callback);
        self.lateness.add(&other.lateness);
    }
}

/// A histogram of durations: counts in buckets, each accurate to an eighth, and the sum. Histograms of several nodes add up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DurationHistogram {
    pub sum_us: u64,
    /// The non-empty buckets, sorted by [`DurationHistogram::bucket_of`].
    pub buckets: Vec<(u16, u32)>,
}

impl DurationHistogram {
    /// The bucket of a duration: eight for every power of two of microseconds.
    pub fn bucket_of(us: u64) -> u16 {
        let us = us.max(8);
        let exponent = us.ilog2();
        ((exponent - 3) * 8) as u16 + ((us >> (exponent - 3)) & 7) as u16
    }

    /// The largest duration of a bucket, in microseconds.
    pub fn top_of(bucket: u16) -> u64 {
        let (exponent, step) = (u32::from(bucket / 8) + 3, u64::from(bucket % 8));
        ((8 + step + 1) << (exponent - 3)) - 1
    }

    pub fn note(&mut self, us: u64) {
        self.sum_us = self.sum_us.saturating_add(us);
        self.put(Self::bucket_of(us), 1);
    }

    pub fn add(&mut self, other: &Self) {
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        other.buckets.iter().for_each(|(bucket, count)| self.put(*bucket, *count));
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// The average in microseconds, `None` if it is empty.
    pub fn average(&self) -> Option<u64> {
        self.sum_us.checked_div(self.count())
    }

    /// The duration, in microseconds, that the fraction `part` of all durations does not exceed, accurate to an eighth.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.buckets.iter().find_map(|(bucket, count)| {
            seen += u64::from(*count);
            (seen >= wanted).then(|| Self::top_of(*bucket))
        })
    }

    fn put(&mut self, bucket: u16, count: u32) {
        match self.buckets.binary_search_by_key(&bucket, |(each, _)| *each) {
            Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(count),
            Err(at) => self.buckets.insert(at, (bucket, count)),
        }
    }
}

/// The attempts and metrics of this node. *Durability*: notes are written in the background and may be lost. *Cancellation*: reads have no effect.
pub trait AttemptStore: Send + Sync {
    /// Queues notes and returns at once.
    fn note(&self, notes: Vec<AttemptRecord>);

    /// The stored attempts to deliver one message to one subscription, sorted by time.
    fn attempts(
        &self,
        subscription: SubscriptionNumber,
        partition: PartitionId,
        offset: u64,
    ) -> PortFuture<'_, Vec<AttemptRecord>>;

    /// Queues an addition to the row of a topic's minute and returns at once. `minute` is the start of the minute.
    fn note_minute(&self, topic: TopicNumber, minute: Timestamp, row: MinuteRow);

    /// The stored rows of a topic, from the minute `from` to before `to`, sorted by time.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>>;

    /// Writes all queued notes.
    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn histograms_of_two_nodes_add_up() {
        let (mut one, mut two) = (DurationHistogram::default(), DurationHistogram::default());
        (0..99).for_each(|_| one.note(1_000));
        two.note(1_000_000);
        one.add(&two);
        assert_eq!(one.count(), 100);
        assert_eq!(one.average(), Some((99 * 1_000 + 1_000_000) / 100));
        let p99 = one.quantile(0.99).unwrap();
        assert!((1_000..1_125).contains(&p99), "{p99}");
        assert!(one.quantile(1.0).unwrap() >= 1_000_000);
        assert_eq!(DurationHistogram::default().quantile(0.5), None);
    }

    proptest! {
        #[test]
        fn a_bucket_is_within_an_eighth(us in 8u64..1 << 50) {
            let top = DurationHistogram::top_of(DurationHistogram::bucket_of(us));
            prop_assert!(top >= us && top as f64 <= us as f64 * 1.126, "{us} {top}");
        }
    }
}
