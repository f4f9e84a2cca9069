//! Real servers of a test's own, on loopback ports of their own, ended with the test.
//!
//! They begin empty, so that no run meets another's holds. Tests that need them are skipped, visibly, where `WHIMBREL_TEST_QUICK=1`
//! allows it; `scripts/services up` installs what they need and writes `target/services/env`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to serve.
const START_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
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

/// A Kafka of one node.
pub struct OwnKafka {
    address: String,
    _process: Process,
    _folder: TempDir,
}

impl OwnKafka {
    pub fn start() -> Self {
        let libraries =
            std::env::var("WHIMBREL_TEST_KAFKA_LIBS").expect("scripts/services says where Kafka's jars are");
        let (address, controller) = (free_address(), free_address());
        let folder = tempfile::tempdir().unwrap();
        let properties = folder.path().join("server.properties");
        let text = [
            "process.roles=broker,controller",
            "node.id=1",
            &format!("listeners=PLAINTEXT://{address},CONTROLLER://{controller}"),
            &format!("controller.quorum.bootstrap.servers={controller}"),
            &format!("log.dirs={}", folder.path().join("log").display()),
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "auto.create.topics.enable=false",
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=4",
        ];
        std::fs::write(&properties, text.join("\n")).unwrap();
        let java = |arguments: &[&str]| {
            let mut command = Command::new("java");
            let options = ["-Xmx384m", "-XX:+UseSerialGC", "-cp"];
            command.args(options).arg(format!("{libraries}/*")).args(arguments).arg(&properties);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let format = java(&["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c"]).status();
        assert!(format.expect("java runs: scripts/services installs it").success());
        let process = Process(Some(java(&["kafka.Kafka"]).spawn().unwrap()));
        wait_until("Kafka serves", || {
            let kcat = Command::new("kcat").args(["-b", &address, "-L", "-m", "2"]).output();
            kcat.expect("kcat runs: scripts/services installs it").status.success()
        });
        Self { address, _process: process, _folder: folder }
    }

    /// The settings of a server that has its log there.
    pub fn settings(&self) -> Vec<String> {
        vec!["log.engine=kafka".to_owned(), format!("kafka.bootstrap={}", self.address)]
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

    pub fn start_again(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(self.data());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Process(Some(command.spawn().expect("redis-server runs: scripts/services installs it")));
        wait_until("Redis serves", || self.cli(&["ping"]) == "PONG");
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops it from answering, without its connections noticing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.0.as_ref().expect("Redis runs");
        kill_process(Pid::from_child(process), signal).unwrap();
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
            format!("redis.urls=redis://127.0.0.1:{}", self.port),
        ]
    }

    fn data(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}

/// The settings of servers that share the work through the etcd that `WHIMBREL_TEST_ETCD` names, apart from every other run.
pub fn etcd_settings() -> Vec<String> {
    let address = std::env::var("WHIMBREL_TEST_ETCD").expect("the address of etcd");
    let run = format!("{:x}-{:x}", super::hold_work::now_ms(), std::process::id());
    vec![
        "coordination.engine=etcd".to_owned(),
        format!("etcd.endpoints=http://{address}"),
        format!("etcd.prefix=test-{run}/"),
    ]
}

pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
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
