//! The `Notebook`: what deliveries were tried and how they went, and figures by the minute. Each node keeps its own.
//!
//! It stands beside the deliveries and never in their way: a note that cannot be written is lost and counted. Space is bounded, and is
//! freed by whole slices of time, the oldest first.

use bytes::Bytes;

use super::PortFuture;
use crate::{PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

/// Bytes of an answer that are kept for a failed attempt.
pub const ANSWER_KEPT_BYTES: usize = 16 << 10;

/// One attempt to deliver a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptNote {
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
    /// It failed, and this is what comes next.
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

/// What happened to one topic in one minute on one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MinuteRow {
    pub published: u64,
    pub fired: u64,
    pub delivered: u64,
    pub failed: u64,
    /// From the publish, or from the due time of a held message, to the success.
    pub publish_to_delivery: Spread,
    /// From the start of a callback to its end.
    pub callback: Spread,
    /// From a hold's due time to its firing.
    pub lateness: Spread,
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

/// How durations were spread: counts by size, each size within an eighth, and the sum. Spreads of several nodes add up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spread {
    pub sum_us: u64,
    /// By [`Spread::bucket_of`], in order, only those that are not empty.
    pub buckets: Vec<(u16, u32)>,
}

impl Spread {
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

    /// In microseconds; `None` where there is nothing.
    pub fn average(&self) -> Option<u64> {
        self.sum_us.checked_div(self.count())
    }

    /// The duration that this part of all do not exceed, in microseconds, within an eighth.
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

pub trait Notebook: Send + Sync {
    /// Takes notes in; returns at once and writes them behind.
    fn note(&self, notes: Vec<AttemptNote>);

    /// The attempts at one message for one subscription, in the order of their times, as far as they are kept here.
    fn attempts(
        &self,
        subscription: SubscriptionNumber,
        partition: PartitionId,
        offset: u64,
    ) -> PortFuture<'_, Vec<AttemptNote>>;

    /// Adds to the row of a topic's minute; returns at once and writes it behind. `minute` is its start.
    fn note_minute(&self, topic: TopicNumber, minute: Timestamp, row: MinuteRow);

    /// The rows of a topic from a minute on to before another, in order, as far as they are kept here.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>>;

    /// Writes what was taken in so far.
    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spreads_of_two_nodes_add_up() {
        let (mut one, mut two) = (Spread::default(), Spread::default());
        (0..99).for_each(|_| one.note(1_000));
        two.note(1_000_000);
        one.add(&two);
        assert_eq!(one.count(), 100);
        assert_eq!(one.average(), Some((99 * 1_000 + 1_000_000) / 100));
        let p99 = one.quantile(0.99).unwrap();
        assert!((1_000..1_125).contains(&p99), "{p99}");
        assert!(one.quantile(1.0).unwrap() >= 1_000_000);
        assert_eq!(Spread::default().quantile(0.5), None);
    }

    proptest! {
        #[test]
        fn a_bucket_is_within_an_eighth(us in 8u64..1 << 50) {
            let top = Spread::top_of(Spread::bucket_of(us));
            prop_assert!(top >= us && top as f64 <= us as f64 * 1.126, "{us} {top}");
        }
    }
}
