//! Statistics of each topic by the minute: published, fired, delivered and failed messages, and durations.
//!
//! Any thread counts here, at the cost of a lock that is almost never contended. A finished minute is written to the node's notebook. The
//! present minute is in memory only, so a crash costs at most one minute of statistics, and never a message. Counting must neither wait
//! nor fail.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{AttemptStore, MinuteRow};
use whimbrel_model::{Clock, Timestamp, TopicNumber};

/// The number of locks over which counting is spread, by thread.
const SHARDS: usize = 16;
/// How often finished minutes are written to the notebook.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const MINUTE_MS: i64 = 60_000;

pub struct TopicStats {
    clock: Arc<dyn Clock>,
    notebook: Arc<dyn AttemptStore>,
    shards: [Mutex<StatsShard>; SHARDS],
}

/// The counts of one lock's threads in one minute.
#[derive(Default)]
struct StatsShard {
    /// The minute's start, in milliseconds.
    minute_ms: i64,
    rows: HashMap<TopicNumber, MinuteRow, foldhash::fast::FixedState>,
}

type FinishedMinute = (Timestamp, Vec<(TopicNumber, MinuteRow)>);

impl TopicStats {
    pub fn new(clock: Arc<dyn Clock>, notebook: Arc<dyn AttemptStore>) -> Arc<Self> {
        Arc::new(Self { clock, notebook, shards: std::array::from_fn(|_| Mutex::default()) })
    }

    pub fn published(&self, topic: TopicNumber, count: u64) {
        self.count(topic, |row| row.published += count);
    }

    pub fn fired(&self, topic: TopicNumber, lateness_us: u64) {
        self.count(topic, |row| {
            row.fired += 1;
            row.lateness.note(lateness_us);
        });
    }

    /// Counts a delivered message, with the time since its publish or due time, and the duration of the callback if there was one.
    pub fn delivered(&self, topic: TopicNumber, publish_to_delivery_us: u64, callback_us: Option<u64>) {
        self.count(topic, |row| {
            row.delivered += 1;
            row.publish_to_delivery.note(publish_to_delivery_us);
            callback_us.into_iter().for_each(|us| row.callback.note(us));
        });
    }

    /// Counts a failed delivery, with the duration of the callback if there was one.
    pub fn failed(&self, topic: TopicNumber, callback_us: Option<u64>) {
        self.count(topic, |row| {
            row.failed += 1;
            callback_us.into_iter().for_each(|us| row.callback.note(us));
        });
    }

    /// The rows of a topic from `from` to before `to`, in order, including the present minute.
    pub async fn minutes(&self, topic: TopicNumber, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, MinuteRow)> {
        let mut rows: BTreeMap<Timestamp, MinuteRow> =
            self.notebook.minutes(topic, from, to).await.into_iter().collect();
        for shard in &self.shards {
            let shard = lock(shard);
            let minute = Timestamp::from_millis(shard.minute_ms);
            if let Some(row) = shard.rows.get(&topic).filter(|_| from <= minute && minute < to) {
                rows.entry(minute).or_default().add(row);
            }
        }
        rows.into_iter().collect()
    }

    /// Writes finished minutes to the notebook until the shutdown, then all minutes. This includes topics without new messages.
    pub async fn run(&self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(SWEEP_EVERY) => self.sweep(minute_of(self.clock.now())),
                () = shutdown.cancelled() => return self.sweep(i64::MAX),
            }
        }
    }

    fn count(&self, topic: TopicNumber, count: impl FnOnce(&mut MinuteRow)) {
        let minute_ms = minute_of(self.clock.now());
        let mut shard = lock(&self.shards[shard_of_this_thread()]);
        let finished = shard.turn_to(minute_ms);
        count(shard.rows.entry(topic).or_default());
        drop(shard);
        self.hand_over(finished);
    }

    fn sweep(&self, minute_ms: i64) {
        for shard in &self.shards {
            let finished = lock(shard).turn_to(minute_ms);
            self.hand_over(finished);
        }
    }

    fn hand_over(&self, finished: Option<FinishedMinute>) {
        let Some((minute, rows)) = finished else { return };
        rows.into_iter().for_each(|(topic, row)| self.notebook.note_minute(topic, minute, row));
    }
}

impl StatsShard {
    /// Starts a minute, and returns the rows of the earlier one. After a step back of the clock, counts go to the later minute.
    fn turn_to(&mut self, minute_ms: i64) -> Option<FinishedMinute> {
        if minute_ms <= self.minute_ms {
            return None;
        }
        let minute = Timestamp::from_millis(std::mem::replace(&mut self.minute_ms, minute_ms));
        let rows: Vec<_> = self.rows.drain().collect();
        (!rows.is_empty()).then_some((minute, rows))
    }
}

fn minute_of(time: Timestamp) -> i64 {
    time.as_millis().div_euclid(MINUTE_MS) * MINUTE_MS
}

fn lock(shard: &Mutex<StatsShard>) -> MutexGuard<'_, StatsShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Assigns locks to threads in turn, so that busy threads have a lock each.
fn shard_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<Option<usize>> = const { Cell::new(None) });
    MINE.with(|mine| {
        let shard = mine.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        mine.set(Some(shard));
        shard
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;
    use whimbrel_model::ports::{AttemptRecord, PortFuture};
    use whimbrel_model::{PartitionId, SubscriptionNumber};

    struct StillClock(AtomicI64);

    impl Clock for StillClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.0.load(Ordering::SeqCst))
        }
    }

    #[derive(Default)]
    struct Rows(Mutex<BTreeMap<(TopicNumber, Timestamp), MinuteRow>>);

    impl AttemptStore for Rows {
        fn note(&self, _: Vec<AttemptRecord>) {}

        fn attempts(&self, _: SubscriptionNumber, _: PartitionId, _: u64) -> PortFuture<'_, Vec<AttemptRecord>> {
            Box::pin(async { Vec::new() })
        }

        fn note_minute(&self, topic: TopicNumber, minute: Timestamp, row: MinuteRow) {
            self.0.lock().unwrap().entry((topic, minute)).or_default().add(&row);
        }

        fn minutes(
            &self,
            topic: TopicNumber,
            from: Timestamp,
            to: Timestamp,
        ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
            let rows = self.0.lock().unwrap();
            let found = rows.range((topic, from)..(topic, to)).map(|((_, at), row)| (*at, row.clone())).collect();
            Box::pin(async { found })
        }
    }

    const TOPIC: TopicNumber = TopicNumber(7);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[tokio::test]
    async fn a_finished_minute_is_in_the_notebook_and_the_present_one_is_added() {
        let (clock, notebook) = (Arc::new(StillClock(AtomicI64::new(60_500))), Arc::new(Rows::default()));
        let stats = TopicStats::new(clock.clone(), notebook.clone());
        stats.published(TOPIC, 3);
        stats.delivered(TOPIC, 2_000, Some(1_000));
        clock.0.store(121_000, Ordering::SeqCst);
        stats.published(TOPIC, 1);
        assert_eq!(notebook.0.lock().unwrap()[&(TOPIC, at(60_000))].published, 3);
        let rows = stats.minutes(TOPIC, at(0), at(180_000)).await;
        let published: Vec<_> = rows.iter().map(|(minute, row)| (minute.as_millis(), row.published)).collect();
        assert_eq!(published, [(60_000, 3), (120_000, 1)]);
        assert_eq!((rows[0].1.delivered, rows[0].1.callback.average()), (1, Some(1_000)));
        assert!(stats.minutes(TOPIC, at(0), at(60_000)).await.is_empty(), "the end is exclusive");
    }

    #[tokio::test]
    async fn counts_of_many_threads_add_up_and_none_is_lost_at_the_shutdown() {
        let (clock, notebook) = (Arc::new(StillClock(AtomicI64::new(60_500))), Arc::new(Rows::default()));
        let stats = TopicStats::new(clock, notebook.clone());
        let threads: Vec<_> = (0..SHARDS * 2)
            .map(|_| {
                let stats = Arc::clone(&stats);
                std::thread::spawn(move || (0..100).for_each(|_| stats.fired(TOPIC, 500)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let ended = CancellationToken::new();
        ended.cancel();
        stats.run(ended).await;
        assert_eq!(notebook.0.lock().unwrap()[&(TOPIC, at(60_000))].fired, SHARDS as u64 * 200);
    }

    #[tokio::test]
    async fn a_step_back_of_the_clock_loses_no_counts() {
        let (clock, notebook) = (Arc::new(StillClock(AtomicI64::new(120_000))), Arc::new(Rows::default()));
        let stats = TopicStats::new(clock.clone(), notebook);
        stats.published(TOPIC, 1);
        clock.0.store(119_999, Ordering::SeqCst);
        stats.published(TOPIC, 1);
        assert_eq!(stats.minutes(TOPIC, at(0), at(180_000)).await[0].1.published, 2);
    }
}
