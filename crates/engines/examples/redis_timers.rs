//! Measures timers on Redis on this machine: writes of several sizes, look-ups by id, pages of due holds, counts, and the memory of Redis.
//!
//! ```text
//! cargo run --release -p whimbrel-engines --no-default-features --features redis --example redis_timers -- <addresses> [holds]
//! ```
//!
//! Addresses are separated by commas. It writes under a prefix of its own and removes that again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use whimbrel_engines::conformance::timers;
use whimbrel_engines::redis::{RedisConnection, RedisSettings, RedisTimers};
use whimbrel_engines::stores::TimerSettings;
use whimbrel_model::ports::{ApplyOutcome, CountQuery, DueCursor, DueKey, TimerChange, Timers, TimersWrite};
use whimbrel_model::{Headers, Hold, HoldEndKind, HoldId, MessageBody, Timestamp, TopicNumber};

const SHARDS: u32 = 16;
const PAYLOAD_BYTES: usize = 200;
const START_MS: i64 = 1_800_000_000_000;
const WRITE_SIZES: [u64; 4] = [100, 1_000, 10_000, 20_000];

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let addresses = arguments.next().expect("the addresses of Redis");
    let holds: u64 = arguments.next().map_or(400_000, |text| text.parse().expect("a number of holds"));
    let prefix = format!("measured-{}", std::process::id());
    let settings = RedisSettings { prefix, ..RedisSettings::new(addresses.split(',')) };
    let connection = RedisConnection::connect(settings).await.expect("Redis can be reached");
    println!("{}, {SHARDS} shards, holds of {PAYLOAD_BYTES} bytes", connection.description());
    let timers: Arc<dyn Timers> = Arc::new(RedisTimers::new(connection, TimerSettings::default()));
    let mut owners: Vec<_> =
        (0..SHARDS).map(|shard| ShardWriter { timers: timers.clone(), shard, applied: 0 }).collect();

    let per_size = holds / WRITE_SIZES.len() as u64;
    for (size, n) in WRITE_SIZES.into_iter().zip(0..) {
        writes(&mut owners, n * per_size, per_size, size).await;
    }
    questions(&owners, holds).await;
    pages(&owners).await;
    counts(&owners).await;
    ends(&mut owners, holds).await;
    let emptied = Instant::now();
    join_all(owners.iter_mut().map(ShardWriter::reset)).await;
    println!("emptied all shards in {:.1} ms", emptied.elapsed().as_secs_f64() * 1000.0);
}

/// The writer of one shard. Hold `n` belongs to shard `n % SHARDS`.
struct ShardWriter {
    timers: Arc<dyn Timers>,
    shard: u32,
    applied: u64,
}

impl ShardWriter {
    async fn write(&mut self, reset: bool, changes: Vec<TimerChange>) -> Duration {
        let (expected, applied) = (self.applied, self.applied + 1);
        let (floor, now) = (Timestamp::from_millis(0), Timestamp::from_millis(START_MS));
        let write = TimersWrite { epoch: 1, expected, reset, changes, applied, floor, now, synced: false };
        let began = Instant::now();
        assert_eq!(self.timers.apply(self.shard, write).await, Ok(ApplyOutcome::Done));
        self.applied = applied;
        began.elapsed()
    }

    async fn reset(&mut self) {
        self.write(true, Vec::new()).await;
    }

    fn numbers(&self, first: u64, count: u64) -> impl Iterator<Item = u64> + use<> {
        let shard = u64::from(self.shard);
        (first..first + count).filter(move |n| n % u64::from(SHARDS) == shard)
    }
}

fn id(n: u64) -> HoldId {
    HoldId::new(&format!("01a1df0f-1689-8000-8080-{n:012x}"))
}

fn due(n: u64) -> Timestamp {
    Timestamp::from_millis(START_MS + (n * 7919 % 86_400_000) as i64)
}

fn hold(n: u64) -> Hold {
    let value = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    Hold {
        id: id(n),
        topic: TopicNumber((n % 20) as u32),
        due: due(n),
        message: MessageBody { key: Some(Bytes::from_static(b"customer-1")), value, headers: Headers::EMPTY },
        ..timers::hold("", 0)
    }
}

fn report(what: &str, count: u64, took: Duration, mut each: Vec<Duration>) {
    each.sort();
    let ms = |at: usize| each.get(at.min(each.len().saturating_sub(1))).map_or(0.0, |each| each.as_secs_f64() * 1000.0);
    println!(
        "{what:34} {:9.0}/s   one call p50 {:6.2} ms, p99 {:6.2} ms",
        count as f64 / took.as_secs_f64(),
        ms(each.len() / 2),
        ms(each.len() * 99 / 100)
    );
}

async fn writes(owners: &mut [ShardWriter], first: u64, count: u64, size: u64) {
    let began = Instant::now();
    let each = join_all(owners.iter_mut().map(async |owner| {
        let numbers: Vec<u64> = owner.numbers(first, count).collect();
        let mut took = Vec::new();
        for chunk in numbers.chunks(size as usize) {
            let puts = chunk.iter().map(|n| TimerChange::Put { hold: Arc::new(hold(*n)), was: None }).collect();
            took.push(owner.write(false, puts).await);
        }
        took
    }))
    .await;
    report(&format!("put, {size} to a write"), count, began.elapsed(), each.into_iter().flatten().collect());
}

async fn questions(owners: &[ShardWriter], holds: u64) {
    let began = Instant::now();
    let each = join_all(owners.iter().map(async |owner| {
        let numbers: Vec<u64> = owner.numbers(0, holds).take(5_000).collect();
        let mut took = Vec::new();
        for chunk in numbers.chunks(100) {
            let began = Instant::now();
            let found =
                owner.timers.get(owner.shard, chunk.iter().map(|n| id(*n)).collect()).await.expect("it answers");
            assert!(found.found.iter().all(Option::is_some));
            took.push(began.elapsed());
        }
        took
    }))
    .await;
    report(
        "get, 100 ids to a question",
        5_000 * u64::from(SHARDS),
        began.elapsed(),
        each.into_iter().flatten().collect(),
    );
}

async fn pages(owners: &[ShardWriter]) {
    let began = Instant::now();
    let each = join_all(owners.iter().map(async |owner| {
        let (mut after, mut took, mut read) = (None, Vec::new(), 0);
        loop {
            let began = Instant::now();
            let until = Timestamp::from_millis(i64::MAX);
            let page = owner.timers.due(owner.shard, after, until, 1_000, 8 << 20).await.expect("it answers").found;
            took.push(began.elapsed());
            let Some(last) = page.last() else { return (read, took) };
            read += page.len() as u64;
            after = Some(DueCursor { due: last.due, id: last.id.clone() });
        }
    }))
    .await;
    let took = began.elapsed();
    let read = each.iter().map(|(read, _)| read).sum();
    report("due, pages of 1 000", read, took, each.into_iter().flat_map(|(_, took)| took).collect());
}

async fn counts(owners: &[ShardWriter]) {
    let query = CountQuery { topic: None, from: None, to: None, bucket: Duration::from_secs(60) };
    let began = Instant::now();
    let mut each = Vec::new();
    for owner in owners {
        let began = Instant::now();
        owner.timers.count(owner.shard, query.clone()).await.expect("it answers");
        each.push(began.elapsed());
    }
    report("count, a day by the minute", each.len() as u64, began.elapsed(), each);
}

async fn ends(owners: &mut [ShardWriter], holds: u64) {
    let began = Instant::now();
    let each = join_all(owners.iter_mut().map(async |owner| {
        let numbers: Vec<u64> = owner.numbers(0, holds).collect();
        let mut took = Vec::new();
        for chunk in numbers.chunks(1_000) {
            let ends = chunk.iter().map(|n| {
                let hold = hold(*n);
                let was = Some(DueKey { due: hold.due, topic: hold.topic });
                TimerChange::End {
                    id: hold.id.clone(),
                    end: hold.ended(HoldEndKind::Fired { partition: 0 }, hold.due),
                    was,
                }
            });
            took.push(owner.write(false, ends.collect()).await);
        }
        took
    }))
    .await;
    report("end, 1 000 to a write", holds, began.elapsed(), each.into_iter().flatten().collect());
}
