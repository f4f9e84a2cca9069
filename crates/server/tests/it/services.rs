//! Real servers of a test's own, on loopback ports of their own, ended with the test.
//!
//! They begin empty, so that no run meets another's holds. Tests that need them are skipped, visibly, where `WHIMBREL_TEST_QUICK=1`
//! allows it; `scripts/services up` installs what they need and writes `target/services/env`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to serve.
const START_MAX: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Brokers that run at the same time: each takes a core and half a gigabyte, and starts slowly beside others.
const BROKERS_AT_ONCE: usize = 2;
static BROKERS: Mutex<usize> = Mutex::new(0);
static BROKER_ENDED: Condvar = Condvar::new();
/// What names a cluster of Kafka: 16 bytes in URL-safe base64.
const CLUSTER_ID: &str = "AAAAAAAAQACAAAAAAAAAAQ";

/// Whether a test that needs what these variables name is skipped.
pub fn skip(variables: &[&str]) -> bool {
    let missing: Vec<&str> = variables.iter().copied().filter(|name| std::env::var_os(name).is_none()).collect();
    if missing.is_empty() {
        return false;
    }
    let quick = std::env::var("WHIMBREL_TEST_QUICK").is_ok_and(|value| value == "1");
    assert!(
        quick,
        "this test needs real servers ({missing:?} are not set): run `scripts/services up` and `source target/services/env`, \
         or set WHIMBREL_TEST_QUICK=1 to skip it"
    );
    whimbrel_engines::conformance::say_skipped(&format!("tests of holds with real servers need {missing:?}"));
    true
}

/// A process that is killed when it is dropped.
struct Process(Option<Child>);

impl Process {
    fn signal(&self, signal: Signal) {
        let process = self.0.as_ref().expect("it runs");
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a test can do to a server that others need.
pub trait Outage {
    /// Ends it as a crash would.
    fn kill(&mut self);
    /// Starts it again on what it left behind, and waits until it serves.
    fn start_again(&mut self);
    /// Stops it from answering, without its connections noticing.
    fn freeze(&self);
    fn go_on(&self);
}

macro_rules! signals {
    () => {
        fn kill(&mut self) {
            self.process.kill();
        }

        fn freeze(&self) {
            self.process.signal(Signal::STOP);
        }

        fn go_on(&self) {
            self.process.signal(Signal::CONT);
        }
    };
}

fn silent(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// A Kafka of one node.
pub struct OwnKafka {
    address: String,
    libraries: String,
    process: Process,
    folder: TempDir,
    _place: BrokerPlace,
}

/// The right to run a broker; given back when dropped.
struct BrokerPlace;

impl BrokerPlace {
    fn wait_for() -> Self {
        let running = BROKERS.lock().unwrap_or_else(PoisonError::into_inner);
        let running = BROKER_ENDED.wait_while(running, |running| *running >= BROKERS_AT_ONCE);
        *running.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for BrokerPlace {
    fn drop(&mut self) {
        *BROKERS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        BROKER_ENDED.notify_one();
    }
}

impl OwnKafka {
    pub fn start() -> Self {
        let place = BrokerPlace::wait_for();
        let libraries =
            std::env::var("WHIMBREL_TEST_KAFKA_LIBS").expect("scripts/services says where Kafka's jars are");
        let (address, controller) = (free_address(), free_address());
        let folder = tempfile::tempdir().unwrap();
        let text = [
            "process.roles=broker,controller",
            "node.id=1",
            &format!("listeners=PLAINTEXT://{address},CONTROLLER://{controller}"),
            &format!("controller.quorum.bootstrap.servers={controller}"),
            &format!("log.dirs={}", folder.path().join("log").display()),
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "auto.create.topics.enable=false",
            // A broker that was killed is taken back when its session is over.
            "broker.session.timeout.ms=6000",
            "broker.heartbeat.interval.ms=500",
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=4",
        ];
        let mut kafka = Self { address, libraries, process: Process(None), folder, _place: place };
        std::fs::write(kafka.properties(), text.join("\n")).unwrap();
        let format =
            kafka.java(&["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c"]).status();
        assert!(format.expect("java runs: scripts/services installs it").success());
        kafka.start_again();
        kafka
    }

    fn properties(&self) -> PathBuf {
        self.folder.path().join("server.properties")
    }

    fn java(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("java");
        let options = ["-Xmx384m", "-XX:+UseSerialGC", "-cp"];
        command.args(options).arg(format!("{}/*", self.libraries)).args(arguments).arg(self.properties());
        silent(&mut command);
        command
    }

    /// The settings of a server that has its log there.
    pub fn settings(&self) -> Vec<String> {
        vec!["log.engine=kafka".to_owned(), format!("kafka.bootstrap={}", self.address)]
    }
}

impl Outage for OwnKafka {
    signals!();

    fn start_again(&mut self) {
        self.process = Process(Some(self.java(&["kafka.Kafka"]).spawn().unwrap()));
        wait_until("Kafka serves", || {
            let kcat = Command::new("kcat").args(["-b", &self.address, "-L", "-m", "2"]).output();
            kcat.expect("kcat runs: scripts/services installs it").status.success()
        });
    }
}

/// A Redis with an append-only file that is synced before every answer.
pub struct OwnRedis {
    port: u16,
    folder: TempDir,
    process: Process,
}

impl OwnRedis {
    pub fn start() -> Self {
        let mut redis = Self { port: free_port(), folder: tempfile::tempdir().unwrap(), process: Process(None) };
        redis.start_again();
        redis
    }

    /// What is on its disk now: every answered write.
    pub fn copy_of_disk(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&self.data(), copy.path());
        copy
    }

    /// Kills it, puts an earlier state of its disk back, and starts it again.
    pub fn fall_back_to(&mut self, copy: &TempDir) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
        copy_folder(copy.path(), &self.data());
        self.start_again();
    }

    pub fn cli(&self, arguments: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &port]).args(arguments).output();
        let output = output.expect("redis-cli runs: scripts/services installs it");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The settings of a server that has the state beside its log there.
    pub fn settings(&self) -> Vec<String> {
        vec![
            "timers.engine=redis".to_owned(),
            "receipts.engine=redis".to_owned(),
            "subscriptions.engine=redis".to_owned(),
            "push.engine=redis".to_owned(),
            "presence.engine=redis".to_owned(),
            "devices.engine=redis".to_owned(),
            format!("redis.urls=redis://127.0.0.1:{}", self.port),
        ]
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

impl Outage for OwnRedis {
    signals!();

    fn start_again(&mut self) {
        std::fs::create_dir_all(self.data()).unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(self.data());
        let process = silent(&mut command).spawn().expect("redis-server runs: scripts/services installs it");
        self.process = Process(Some(process));
        wait_until("Redis serves", || self.cli(&["ping"]) == "PONG");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// An etcd of one member.
pub struct OwnEtcd {
    address: String,
    peer: String,
    folder: TempDir,
    process: Process,
}

impl OwnEtcd {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = Self { address: free_address(), peer: free_address(), folder, process: Process(None) };
        etcd.start_again();
        etcd
    }

    /// The settings of servers that share the work through it.
    pub fn settings(&self) -> Vec<String> {
        vec!["coordination.engine=etcd".to_owned(), format!("etcd.endpoints=http://{}", self.address)]
    }
}

impl Outage for OwnEtcd {
    signals!();

    fn start_again(&mut self) {
        let [client, peer] = [&self.address, &self.peer].map(|address| format!("http://{address}"));
        let mut command = Command::new("etcd");
        command.args(["--name", "default", "--logger", "zap", "--data-dir"]).arg(self.folder.path().join("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        let process = silent(&mut command).spawn().expect("etcd runs: scripts/services installs it");
        self.process = Process(Some(process));
        wait_until("etcd serves", || {
            let health = Command::new("curl").args(["-s", "-m", "2", &format!("{client}/health")]).output();
            health.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).contains("\"health\":\"true\""))
        });
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < START_MAX, "waited in vain until {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A port that nobody listens on, below those that the system gives to outgoing connections.
fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Test binaries that run at the same time begin at different places.
    let begin = std::process::id().wrapping_mul(37);
    let mut candidates = std::iter::repeat_with(|| begin.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let found = candidates.by_ref().take(COUNT as usize).map(|each| (FIRST + each) as u16).find(free);
    found.expect("a port is free")
}
