//! Measures the embedded timers: filling, look-ups by id, a steady load, a burst, and a start with all holds pending.
//!
//! ```text
//! cargo run --release -p whimbrel-engines --no-default-features --example timers_throughput -- [rows] [folder]
//! ```
//!
//! The folder is emptied first. It should be on the disk that is to be measured; without one a temporary folder is taken.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use whimbrel_engines::conformance::timers;
use whimbrel_engines::embedded::{LsmTimers, StoreReports};
use whimbrel_engines::stores::TimerSettings;
use whimbrel_model::ports::{ApplyOutcome, DueCursor, DueKey, TimerChange, Timers, TimersWrite};
use whimbrel_model::{Headers, Hold, HoldEndKind, HoldId, MessageBody, Timestamp};

/// The server's allocator, since the example measures memory too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SHARDS: u32 = 16;
const PAYLOAD_BYTES: usize = 200;
const CHANGES_PER_WRITE: u64 = 1_000;
const PAGE: usize = 1_000;
const PAGE_BYTES: usize = 8 << 20;
const START_MS: i64 = 1_800_000_000_000;
const QUESTIONS: u64 = 50_000;
/// The time for which the store may catch up before its memory is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// The maximum number of holds in the burst.
const BURST_MAX: u64 = 1_000_000;
const STEADY_SECONDS: u64 = 10;
const STEADY_PER_SECOND: u64 = 20_000;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let rows: u64 = arguments.next().map_or(1_000_000, |text| text.parse().expect("a number of rows"));
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = arguments.next().map_or(temporary.path().join("holds"), PathBuf::from);
    let _ = std::fs::remove_dir_all(&folder);

    println!("{rows} holds of {PAYLOAD_BYTES} bytes in {SHARDS} shards, {} MB resident", resident_mb());
    let mut owners = open(&folder).await;
    // Spread over an hour; the burst below has a second of its own.
    let filled = TimeSpent::now();
    each(&mut owners, |owner| {
        owner.fill(0, rows / u64::from(SHARDS), |n| START_MS + 60_000 + (n * 7919 % 3_600_000) as i64)
    })
    .await;
    filled.report("put", rows);
    tokio::time::sleep(SETTLE).await;
    filled.report("put and settled", rows);
    questions(&owners, rows).await;
    owners = open_again(owners, &folder).await;
    questions(&owners, rows).await;
    let spent = TimeSpent::now();
    steady(&mut owners, rows).await;
    spent.report("steady: put, read and end of each", STEADY_SECONDS * STEADY_PER_SECOND);
    burst(&mut owners, rows.min(BURST_MAX)).await;
    println!("{} MB resident at the end", resident_mb());
}

async fn open(folder: &Path) -> Vec<ShardWriter> {
    let timers: Arc<dyn Timers> =
        Arc::new(LsmTimers::open(folder, TimerSettings::default(), StoreReports::default()).expect("the store opens"));
    let mut owners = Vec::new();
    for shard in 0..SHARDS {
        timers.open(shard, 1).await.expect("the shard opens").expect("the epoch is the newest");
        owners.push(ShardWriter { timers: Arc::clone(&timers), shard, applied: 0 });
    }
    owners
}

async fn open_again(owners: Vec<ShardWriter>, folder: &Path) -> Vec<ShardWriter> {
    let applied: Vec<_> = owners.iter().map(|owner| owner.applied).collect();
    drop(owners);
    let closed = resident_mb();
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut owners = open(folder).await;
    let (took, cpu) = (began.elapsed(), cpu_seconds() - cpu);
    println!("opened again in {took:.0?}, CPU {cpu:.2}s; closed {closed} MB resident, then {} MB", resident_mb());
    owners.iter_mut().zip(applied).for_each(|(owner, applied)| owner.applied = applied);
    owners
}

/// Runs the work on all shards concurrently.
async fn each<F: Future + Send + 'static>(owners: &mut [ShardWriter], work: impl Fn(ShardWriter) -> F)
where
    F::Output: Send + Into<ShardWriter>,
{
    let tasks: Vec<_> = owners.iter().map(|owner| tokio::spawn(work(owner.clone()))).collect();
    for (owner, done) in owners.iter_mut().zip(join_all(tasks).await) {
        *owner = done.expect("no shard panics").into();
    }
}

/// Look-ups of one id and of many, one after the other.
async fn questions(owners: &[ShardWriter], rows: u64) {
    for ids in [1, 5] {
        let mut times = Vec::new();
        for question in 0..QUESTIONS / ids {
            let owner = &owners[(question % u64::from(SHARDS)) as usize];
            let asked =
                (0..ids).map(|n| id(owner.shard, (question * 104_729 + n * 31) % (rows / u64::from(SHARDS)))).collect();
            let began = Instant::now();
            let found = owner.timers.get(owner.shard, asked).await.expect("the store answers").found;
            times.push(began.elapsed());
            assert!(found.iter().all(Option::is_some));
        }
        percentiles(&format!("get of {ids} of {rows}"), times);
    }
    let mut times = Vec::new();
    for question in 0..QUESTIONS {
        let unknown = HoldId::new(&format!("unknown-{}", question * 104_729));
        let began = Instant::now();
        owners[0].timers.get(0, vec![unknown]).await.expect("the store answers");
        times.push(began.elapsed());
    }
    percentiles("get of an unknown id", times);
}

/// Every second each shard writes its share of new holds and of ends, and reads as many due holds.
async fn steady(owners: &mut [ShardWriter], rows: u64) {
    let per_shard = STEADY_PER_SECOND / u64::from(SHARDS);
    let first = rows / u64::from(SHARDS);
    let began = Instant::now();
    each(owners, |mut owner| async move {
        let mut times = Vec::new();
        let mut after = None;
        for second in 0..STEADY_SECONDS {
            tokio::time::sleep_until((began + Duration::from_secs(second)).into()).await;
            let page = owner.page(after.take(), i64::MAX, per_shard as usize).await;
            after = page.last().map(|hold| DueCursor { due: hold.due, id: hold.id.clone() });
            let new = (0..per_shard).map(|n| put(owner.shard, first + second * per_shard + n, START_MS + 4_000_000));
            let changes = new.chain(page.iter().map(|hold| end(hold))).collect();
            let began = Instant::now();
            owner.write(changes, page.last().map_or(START_MS, |hold| hold.due.as_millis())).await;
            times.push(began.elapsed());
        }
        (owner, times)
    })
    .await;
}

/// Many holds, all due in one second: read in due order and ended.
async fn burst(owners: &mut [ShardWriter], rows: u64) {
    let (first, count) = (1 << 40, rows / u64::from(SHARDS));
    let spent = TimeSpent::now();
    each(owners, move |owner| owner.fill(first, count, |n| START_MS + (n % 1000) as i64)).await;
    spent.report("put for the burst", rows);
    let spent = TimeSpent::now();
    each(owners, |owner| async move {
        let (mut after, mut read) = (None, 0);
        loop {
            let page = owner.page(after.take(), START_MS + 1000, PAGE).await;
            let Some(last) = page.last() else { break };
            after = Some(DueCursor { due: last.due, id: last.id.clone() });
            read += page.len() as u64;
        }
        assert_eq!(read, count);
        owner
    })
    .await;
    spent.report("read of the burst", rows);
    let spent = TimeSpent::now();
    each(owners, |mut owner| async move {
        let (mut after, mut slowest) = (None, Duration::ZERO);
        loop {
            let page = owner.page(after.take(), START_MS + 1000, PAGE).await;
            let Some(last) = page.last() else { break };
            after = Some(DueCursor { due: last.due, id: last.id.clone() });
            let began = Instant::now();
            owner.write(page.iter().map(|hold| end(hold)).collect(), last.due.as_millis()).await;
            slowest = slowest.max(began.elapsed());
        }
        (owner, vec![slowest])
    })
    .await;
    spent.report("read and end of the burst", rows);
    let began = Instant::now();
    owners[0].page(None, START_MS + 60_000, PAGE).await;
    println!("first page after the burst in {:.1?}", began.elapsed());
}

#[derive(Clone)]
struct ShardWriter {
    timers: Arc<dyn Timers>,
    shard: u32,
    applied: u64,
}

impl From<(ShardWriter, Vec<Duration>)> for ShardWriter {
    /// Prints the slowest writes if a shard has recorded them.
    fn from((owner, times): (ShardWriter, Vec<Duration>)) -> Self {
        if owner.shard == 0 {
            percentiles("writes of shard 0", times);
        }
        owner
    }
}

impl ShardWriter {
    async fn fill(mut self, first: u64, count: u64, due: impl Fn(u64) -> i64) -> Self {
        let mut next = first;
        while next < first + count {
            let last = (next + CHANGES_PER_WRITE).min(first + count);
            let changes = (next..last).map(|n| put(self.shard, n, due(n))).collect();
            self.write(changes, START_MS).await;
            next = last;
        }
        self
    }

    async fn write(&mut self, changes: Vec<TimerChange>, floor: i64) {
        // The present time is that of the last end.
        let (floor, now) = (Timestamp::from_millis(floor), Timestamp::from_millis(floor));
        let applied = self.applied + changes.len() as u64;
        let write =
            TimersWrite { epoch: 1, expected: self.applied, reset: false, changes, applied, floor, now, synced: false };
        assert_eq!(self.timers.apply(self.shard, write).await, Ok(ApplyOutcome::Done));
        self.applied = applied;
    }

    async fn page(&self, after: Option<DueCursor>, until: i64, limit: usize) -> Vec<Arc<Hold>> {
        let page = self.timers.due(self.shard, after, Timestamp::from_millis(until), limit, PAGE_BYTES).await;
        page.expect("the store can be read").found
    }
}

/// As long as a minted id, and also ordered by time.
fn id(shard: u32, number: u64) -> HoldId {
    HoldId::new(&format!("0190a1b2-{number:012x}-{shard:04x}-8000-00"))
}

fn put(shard: u32, number: u64, due: i64) -> TimerChange {
    let mut headers = Headers::builder();
    headers.push("whimbrel-id", id(shard, number).as_str().as_bytes());
    let value = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    let message = MessageBody { key: None, value, headers: headers.take() };
    let (id, due) = (id(shard, number), Timestamp::from_millis(due));
    let hold = Hold { id, due, version: number, message, ..timers::hold("", 0) };
    TimerChange::Put { hold: Arc::new(hold), was: None }
}

fn end(hold: &Hold) -> TimerChange {
    let end = hold.ended(HoldEndKind::Fired { partition: 0 }, Timestamp::from_millis(START_MS));
    TimerChange::End { id: hold.id.clone(), end, was: Some(DueKey { due: hold.due, topic: hold.topic }) }
}

/// The time and CPU time of a step.
struct TimeSpent {
    began: Instant,
    cpu_seconds: f64,
}

impl TimeSpent {
    fn now() -> Self {
        Self { began: Instant::now(), cpu_seconds: cpu_seconds() }
    }

    fn report(&self, what: &str, rows: u64) {
        let took = self.began.elapsed();
        let rate = rows as f64 / took.as_secs_f64();
        let cpu = (cpu_seconds() - self.cpu_seconds) * 1e6 / rows as f64;
        println!("{what}: {rows} in {took:.2?}, {rate:.0}/s, {cpu:.1}µs of CPU each, {} MB resident", resident_mb());
    }
}

fn percentiles(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let of = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what}: p50 {:.1?}, p99 {:.1?}, max {:.1?}", of(0.5), of(0.99), of(1.0));
}

/// The CPU time of all threads, in units of 10 ms as Linux reports it. Other load on the machine does not change it.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// Anonymous memory of the process.
fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
