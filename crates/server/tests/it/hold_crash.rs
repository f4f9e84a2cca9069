//! The crash test of holds: SIGKILL stops the real binary at random moments while workers hold, extend, withdraw, fire and query, and it
//! restarts. No acknowledged hold is lost, fires early, appears twice in its topic or appears after its withdrawal, and every answer
//! stays true.
//!
//! One seed, which is printed, determines the random choices; `WHIMBREL_HOLD_SEED` replays them (not the scheduler's),
//! `WHIMBREL_HOLD_OPS` sets the number of operations, `WHIMBREL_HOLD_KILLS` the number of kills.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use whimbrel_model::HOLDS_TOPIC;

use super::hold_settling::{Settling, make_topics};
use super::hold_work::{Pace, ServerUrls, Work, Worker};
use super::kafka_cluster::kafka_with_redis;
use super::random::Random;
use super::server::{PATIENCE, Server, set};

const OPERATIONS_DEFAULT: u64 = 3000;
const KILLS_DEFAULT: u64 = 10;
const WORKERS: u64 = 12;
const ANSWER_WAIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// One of this many starts is killed before it is ready.
const KILL_DURING_START_ONE_IN: u64 = 6;
const START_MS_MAX: u64 = 60;

pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[test]
fn holds_agree_with_a_model_through_kills() {
    kill_at_random("embedded", &[]);
}

#[test]
fn holds_on_kafka_with_redis_agree_with_a_model_through_kills() {
    let Some((_kafka, _redis, mut settings)) = kafka_with_redis() else { return };
    // The killed server cannot release its leases, so they should be short.
    settings.extend(["kafka.message_timeout=5s", "receipts.lease=11s"].map(str::to_owned));
    kill_at_random("Kafka with Redis", &settings);
}

fn kill_at_random(engines: &str, engine_settings: &[String]) {
    let operations = number("WHIMBREL_HOLD_OPS", OPERATIONS_DEFAULT);
    let kills = number("WHIMBREL_HOLD_KILLS", KILLS_DEFAULT);
    let seed = number("WHIMBREL_HOLD_SEED", u64::from(std::process::id()));
    println!("{engines}: seed {seed}, {operations} operations, {kills} kills");
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed);

    let mut of_starts = Random(random.next());
    let mut server = start(folder.path(), engine_settings, &mut of_starts);
    runtime.block_on(make_topics(&server.client(), WORKERS));
    let crew = Crew::begin(&runtime, WORKERS, ANSWER_WAIT, &mut random);
    crew.open(&[&server]);
    let mut settling = Settling::default();
    for round in 0..kills {
        // Each round has a share of the operations, so that all are done after the last one.
        crew.wait_for(random.below(2 * operations / kills) + 1);
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        server.kill_and_wait();
        println!("kill {} after {} operations", round + 1, crew.operations.load(Ordering::Relaxed));
        crew.open(&[]);
        server = start(folder.path(), engine_settings, &mut of_starts);
        runtime.block_on(settling.read_on(&server.client(), WORKERS));
        crew.open(&[&server]);
    }
    let done = crew.operations.load(Ordering::Relaxed);
    crew.wait_for(operations.saturating_sub(done));
    let operations = crew.operations.load(Ordering::Relaxed);
    let workers = crew.end(&runtime);
    let summary = runtime.block_on(settling.settle(&server.client(), workers));
    let shards = runtime.block_on(server.client().topic(HOLDS_TOPIC)).unwrap().partition_list.unwrap();
    let trimmed: u64 = shards.iter().map(|shard| shard.first_offset).sum();
    println!("{engines}: seed {seed}, {operations} operations, {kills} kills, {trimmed} records trimmed\n{summary}");
    server.kill_and_wait();

    // Everything must still be there after one more start.
    server = start(folder.path(), engine_settings, &mut of_starts);
    runtime.block_on(settling.read_again(&server.client(), WORKERS));
}

/// Starts a server, sometimes after one that is killed during its start.
fn start(folder: &Path, engine_settings: &[String], random: &mut Random) -> Server {
    let mut settings = settings(random);
    settings.extend_from_slice(engine_settings);
    // Sometimes the log is trimmed almost at once, so that pending holds must be written again.
    if random.one_in(2) {
        settings.extend(["holds.keep_log=1s", "holds.trim_interval=1s"].map(str::to_owned));
    }
    let arguments = set(&settings);
    if random.one_in(KILL_DURING_START_ONE_IN) {
        let starting = Server::spawn(folder, &arguments);
        std::thread::sleep(Duration::from_millis(random.below(START_MS_MAX)));
        starting.kill();
    }
    Server::start(folder, &arguments)
}

/// Settings that vary from start to start: windows that hold everything or almost nothing, stores that are written constantly or
/// rarely.
pub fn settings(random: &mut Random) -> Vec<String> {
    vec![
        format!("log.checkpoint_interval={}ms", 100 << random.below(6)),
        format!("log.segment_bytes={}", 64 << (10 + random.below(4))),
        format!("holds.window={}s", 1 << random.below(5)),
        format!("holds.checkpoint_interval={}ms", 50 << random.below(7)),
    ]
}

pub struct Crew {
    doors: watch::Sender<ServerUrls>,
    ended: Arc<AtomicBool>,
    pub operations: Arc<AtomicU64>,
    workers: Vec<JoinHandle<Worker>>,
}

impl Crew {
    pub fn begin(runtime: &Runtime, count: u64, answer_wait: Duration, random: &mut Random) -> Self {
        Self::begin_at(Pace::default(), runtime, count, answer_wait, random)
    }

    /// Like `begin`, with delays and pauses of the test's own.
    pub fn begin_at(pace: Pace, runtime: &Runtime, count: u64, answer_wait: Duration, random: &mut Random) -> Self {
        let (doors, seen) = watch::channel(ServerUrls::default());
        let (ended, operations) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (Arc::clone(&ended), Arc::clone(&operations));
        let work = Work { doors: seen, ended: told, operations: counted, answer_wait, pace };
        let workers = (0..count).map(|worker| runtime.spawn(Worker::new(worker, random.next(), work.clone()).run()));
        Self { doors, ended, operations, workers: workers.collect() }
    }

    /// Sets the servers to call from now on.
    pub fn open(&self, servers: &[&Server]) {
        self.doors.send_replace(Arc::new(servers.iter().map(|server| server.url.clone()).collect()));
    }

    /// Whether a worker has ended, which means that it found a contradiction.
    pub fn has_ended_worker(&self) -> bool {
        self.workers.iter().any(JoinHandle::is_finished)
    }

    /// Waits until this many more operations were answered. A worker that has ended found a contradiction.
    pub fn wait_for(&self, more: u64) {
        let goal = self.operations.load(Ordering::Relaxed) + more;
        let mut last = (Instant::now(), 0);
        loop {
            let now = self.operations.load(Ordering::Relaxed);
            if now >= goal || self.has_ended_worker() {
                return;
            }
            if now != last.1 {
                last = (Instant::now(), now);
            }
            assert!(last.0.elapsed() < PATIENCE, "no operation is answered");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    pub fn end(self, runtime: &Runtime) -> Vec<Worker> {
        self.ended.store(true, Ordering::Relaxed);
        self.workers.into_iter().map(|worker| runtime.block_on(worker).unwrap()).collect()
    }
}
