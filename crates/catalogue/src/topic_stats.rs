//! Figures of each topic by the minute: what was published, fired, delivered, failed, and how long it took.
//!
//! Whoever does something counts it here, on any thread, at the cost of a lock that nobody else wants. A minute that is over goes to the
//! node's notebook; the running one is in memory only, so that a crash costs a minute of figures and never a message. Nothing here may
//! wait or fail.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{MinuteRow, Notebook};
use whimbrel_model::{Clock, Timestamp, TopicNumber};

/// Counting is spread over so many locks, by thread.
const SHARDS: usize = 16;
/// How often minutes are looked for that are over.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const MINUTE_MS: i64 = 60_000;

/// The figures of all topics on this node.
pub struct TopicStats {
    clock: Arc<dyn Clock>,
    notebook: Arc<dyn Notebook>,
    shards: [Mutex<Shard>; SHARDS],
}

/// What the threads of one lock have counted in one minute.
#[derive(Default)]
struct Shard {
    /// The minute's start, in milliseconds.
    minute_ms: i64,
    rows: HashMap<TopicNumber, MinuteRow, foldhash::fast::FixedState>,
}

/// Rows of a minute that is over.
type Finished = (Timestamp, Vec<(TopicNumber, MinuteRow)>);

impl TopicStats {
    pub fn new(clock: Arc<dyn Clock>, notebook: Arc<dyn Notebook>) -> Arc<Self> {
        Arc::new(Self { clock, notebook, shards: std::array::from_fn(|_| Mutex::default()) })
    }

    /// So many messages of a topic were accepted into it.
    pub fn published(&self, topic: TopicNumber, count: u64) {
        self.count(topic, |row| row.published += count);
    }

    /// A hold of a topic fired so long after it was due.
    pub fn fired(&self, topic: TopicNumber, lateness_us: u64) {
        self.count(topic, |row| {
            row.fired += 1;
            row.lateness.note(lateness_us);
        });
    }

    /// A message of a topic was delivered: so long after its publish, or its due time, by a callback that took so long, if it was one.
    pub fn delivered(&self, topic: TopicNumber, publish_to_delivery_us: u64, callback_us: Option<u64>) {
        self.count(topic, |row| {
            row.delivered += 1;
            row.publish_to_delivery.note(publish_to_delivery_us);
            callback_us.into_iter().for_each(|us| row.callback.note(us));
        });
    }

    /// A delivery of a message of a topic failed, after a callback that took so long, if it was one.
    pub fn failed(&self, topic: TopicNumber, callback_us: Option<u64>) {
        self.count(topic, |row| {
            row.failed += 1;
            callback_us.into_iter().for_each(|us| row.callback.note(us));
        });
    }

    /// The rows of a topic from a minute on to before another, in order, the running one included.
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

    /// Hands minutes over that are over, also of topics of which nothing is counted any more, until the shutdown; then all of them.
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

    fn hand_over(&self, finished: Option<Finished>) {
        let Some((minute, rows)) = finished else { return };
        rows.into_iter().for_each(|(topic, row)| self.notebook.note_minute(topic, minute, row));
    }
}

impl Shard {
    /// Goes on to a minute, and gives what an earlier one had. A clock that falls back counts into the minute that it was.
    fn turn_to(&mut self, minute_ms: i64) -> Option<Finished> {
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

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads take turns, so that those that count most have a lock each.
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
    use whimbrel_model::ports::{AttemptNote, PortFuture};
    use whimbrel_model::{PartitionId, SubscriptionNumber};

    struct StillClock(AtomicI64);

    impl Clock for StillClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.0.load(Ordering::SeqCst))
        }
    }

    #[derive(Default)]
    struct Rows(Mutex<BTreeMap<(TopicNumber, Timestamp), MinuteRow>>);

    impl Notebook for Rows {
        fn note(&self, _: Vec<AttemptNote>) {}

        fn attempts(&self, _: SubscriptionNumber, _: PartitionId, _: u64) -> PortFuture<'_, Vec<AttemptNote>> {
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
    async fn a_minute_that_is_over_is_in_the_notebook_and_the_running_one_is_added() {
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
        assert!(stats.minutes(TOPIC, at(0), at(60_000)).await.is_empty(), "the end is left out");
    }

    #[tokio::test]
    async fn what_many_threads_count_adds_up_and_nothing_is_lost_at_the_end() {
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
    async fn a_clock_that_falls_back_loses_nothing() {
        let (clock, notebook) = (Arc::new(StillClock(AtomicI64::new(120_000))), Arc::new(Rows::default()));
        let stats = TopicStats::new(clock.clone(), notebook);
        stats.published(TOPIC, 1);
        clock.0.store(119_999, Ordering::SeqCst);
        stats.published(TOPIC, 1);
        assert_eq!(stats.minutes(TOPIC, at(0), at(180_000)).await[0].1.published, 2);
    }
}
