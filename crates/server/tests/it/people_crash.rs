//! The crash test of pushes: SIGKILL stops the real binary at random moments during pushes, and it restarts. Every acknowledged push
//! reaches its device, in the order of the pushes. A repeated message has the same number and payload.
//!
//! A second test does the same while the disk fails for moments.
//!
//! One seed, which is printed, determines the random choices; `WHIMBREL_PUSH_SEED` replays it, `WHIMBREL_PUSH_KILLS` sets the kills.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use whimbrel_client::{Client, NewPush};

use super::device::{ConnectFrame, Device, DeviceEvent};
use super::faulty_disk::{FaultyDisk, passing_fault};
use super::hold_crash::number;
use super::kafka_cluster::kafka_with_redis;
use super::random::Random;
use super::server::{PATIENCE, Server, converse, set};

const KILLS_DEFAULT: u64 = 4;
const USERS: usize = 6;
const RUN_MS_MIN: u64 = 300;
const RUN_MS_MAX: u64 = 2000;
/// Silence after which a device assumes that no more messages arrive.
const QUIET: Duration = Duration::from_secs(2);

/// Paths with faults.
const FAULTY_PLACES: [&str; 4] =
    ["/whimbrel-data/log", "/whimbrel-data/inboxes/", "/whimbrel-data/receipts/", "/whimbrel-data/holds/"];
/// How long the disk fails before a kill.
const FAILING_MS_MAX: u64 = 700;

#[test]
fn pushes_survive_kills() {
    let folder = tempfile::tempdir().unwrap();
    kill_at_random("embedded", || start(folder.path(), &[]), |_| {});
}

#[test]
fn pushes_survive_kills_while_the_disk_fails() {
    let disk = FaultyDisk::new();
    let fail = |random: &mut Random| {
        let fault = passing_fault(random, &FAULTY_PLACES);
        disk.inject(std::slice::from_ref(&fault));
        std::thread::sleep(Duration::from_millis(random.below(FAILING_MS_MAX)));
        println!("{fault}");
    };
    let start = || {
        disk.heal();
        disk.start(&[])
    };
    kill_at_random("embedded, with faults", start, fail);
}

#[test]
fn pushes_on_kafka_with_redis_survive_kills() {
    let Some((_kafka, _redis, settings)) = kafka_with_redis() else { return };
    let folder = tempfile::tempdir().unwrap();
    kill_at_random("Kafka with Redis", || start(folder.path(), &settings), |_| {});
}

/// Delay between two pushes to one user: all pushes together must fit into the inbox of a device that stays offline.
const PUSH_PAUSE: Duration = Duration::from_millis(15);

pub fn uid(user: usize) -> String {
    format!("crash-{user}")
}

/// Pushes numbers to one user, each after the previous one was acknowledged.
pub struct Pusher {
    acknowledged: Arc<Mutex<u64>>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Pusher {
    pub fn begin(user: usize, url: Arc<Mutex<String>>, pause: Duration) -> Self {
        let (acknowledged, ends) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, told) = (Arc::clone(&acknowledged), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let number = *counted.lock().unwrap();
                let place = url.lock().unwrap().clone();
                // The same id until the outcome of the push is known.
                let push = NewPush::text(number.to_string()).id(format!("{}-{number}", uid(user)));
                let client = Client::new(&place).unwrap().with_answer_wait(Duration::from_secs(5));
                match converse(client.push(&uid(user), &push)) {
                    Ok(_) => {
                        *counted.lock().unwrap() += 1;
                        std::thread::sleep(pause);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        });
        Self { acknowledged, ends, thread }
    }

    pub fn end(self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        *self.acknowledged.lock().unwrap()
    }
}

/// The messages that a user's device received: number and payload, once each.
#[derive(Default)]
pub struct Seen {
    pub messages: Vec<(u64, u64)>,
    pub again: usize,
}

impl Seen {
    pub fn take(&mut self, message: &serde_json::Value) -> u64 {
        let seq = message["seq"].as_u64().unwrap();
        let number = message["payload"].as_str().unwrap().parse().unwrap();
        match self.messages.iter().find(|(known, _)| *known == seq) {
            Some((_, same)) => {
                assert_eq!(*same, number, "number {seq} was previously another message");
                self.again += 1;
            }
            None => self.messages.push((seq, number)),
        }
        seq
    }
}

/// Reads while messages arrive; acknowledges most of them.
fn read_on(device: &mut Device, seen: &mut Seen, random: &mut Random, quiet: Duration) {
    while let DeviceEvent::Frame(frame) = device.next(quiet) {
        if let Some(message) = frame.get("message") {
            let seq = seen.take(message);
            if random.below(4) > 0 {
                device.ack(seq);
            }
        }
    }
}

/// Calls `fail` before each kill.
fn kill_at_random(what: &str, start: impl Fn() -> Server, fail: impl Fn(&mut Random)) {
    let kills = number("WHIMBREL_PUSH_KILLS", KILLS_DEFAULT);
    let seed = number("WHIMBREL_PUSH_SEED", u64::from(std::process::id()));
    println!("pushes on {what}: seed {seed}, {kills} kills");
    let mut random = Random(seed);
    let mut server = start();
    let url = Arc::new(Mutex::new(server.url.clone()));
    let pushers: Vec<Pusher> = (0..USERS).map(|user| Pusher::begin(user, Arc::clone(&url), PUSH_PAUSE)).collect();
    let mut seen: Vec<Seen> = (0..USERS).map(|_| Seen::default()).collect();
    for kill in 0..kills {
        // Some devices are connected, others are not.
        let mut devices: Vec<Option<Device>> = (0..USERS)
            .map(|user| {
                (random.below(3) > 0)
                    .then(|| Device::connect_after_kill(&server, &ConnectFrame::of(&uid(user), "web").device("d")))
            })
            .collect();
        let run = Duration::from_millis(RUN_MS_MIN + random.below(RUN_MS_MAX - RUN_MS_MIN));
        let began = std::time::Instant::now();
        while began.elapsed() < run {
            for (device, seen) in devices.iter_mut().zip(&mut seen) {
                if let Some(device) = device {
                    read_on(device, seen, &mut random, Duration::from_millis(5));
                }
            }
        }
        fail(&mut random);
        server.kill();
        server = start();
        url.lock().unwrap().clone_from(&server.url);
        println!("kill {kill} after {} ms", run.as_millis());
    }
    let acknowledged: Vec<u64> = pushers.into_iter().map(Pusher::end).collect();
    for (user, seen) in seen.iter_mut().enumerate() {
        let mut device = Device::connect_after_kill(&server, &ConnectFrame::of(&uid(user), "web").device("d"));
        let began = std::time::Instant::now();
        while (seen.messages.len() as u64) < acknowledged[user] && began.elapsed() < PATIENCE {
            while let DeviceEvent::Frame(frame) = device.next(QUIET) {
                if let Some(message) = frame.get("message") {
                    let seq = seen.take(message);
                    device.ack(seq);
                }
            }
        }
        // Whatever was lost or repeated, the numbers and the pushes have the same order.
        seen.messages.sort_unstable();
        let numbers: Vec<u64> = seen.messages.iter().map(|(_, number)| *number).collect();
        let wanted: Vec<u64> = (0..acknowledged[user]).collect();
        assert!(numbers.starts_with(&wanted), "{}: {numbers:?} of {}", uid(user), acknowledged[user]);
        assert!(numbers.len() as u64 <= acknowledged[user] + 1, "a message arrived that was never pushed");
    }
    let again: usize = seen.iter().map(|seen| seen.again).sum();
    println!("pushes on {what}: {acknowledged:?} acknowledged, {again} repeated");
}

fn start(folder: &Path, settings: &[String]) -> Server {
    Server::start(folder, &set(settings))
}
