//! A broker of a test's own, which can be killed and started again, and names that no other test uses.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use whimbrel_model::{Retention, TopicNumber, TopicSpec};

/// How long a broker may take to serve.
const START_MAX: Duration = Duration::from_secs(60);

/// What names a cluster: 16 bytes in URL-safe base64.
const CLUSTER_ID: &str = "AAAAAAAAQACAAAAAAAAAAQ";

/// A Kafka in folders of its own, with one node unless more are added. All are killed when it is dropped.
pub struct OwnBroker {
    pub address: String,
    controller: String,
    libraries: PathBuf,
    folder: TempDir,
    nodes: Vec<Node>,
}

struct Node {
    address: String,
    properties: PathBuf,
    process: Option<Child>,
}

impl OwnBroker {
    /// Formats a folder and starts a broker in it, which is the cluster's controller too.
    pub fn start() -> Self {
        let libraries =
            std::env::var_os("WHIMBREL_TEST_KAFKA_LIBS").expect("scripts/services says where Kafka's jars are");
        let (address, controller) = (free_address(), free_address());
        let folder = tempfile::tempdir().expect("a folder for the broker");
        let mut broker =
            Self { address: address.clone(), controller, libraries: libraries.into(), folder, nodes: Vec::new() };
        let listeners = format!("listeners=PLAINTEXT://{address},CONTROLLER://{}", broker.controller);
        broker.prepare(address, &["process.roles=broker,controller", &listeners], "--standalone");
        broker.start_again();
        broker
    }

    /// Adds a second broker to the cluster and waits until it serves.
    pub fn add_node(&mut self) {
        let address = free_address();
        let listeners = format!("listeners=PLAINTEXT://{address}");
        self.prepare(address, &["process.roles=broker", &listeners], "--no-initial-controllers");
        self.start_again();
        let count = self.nodes.len();
        wait_until("all nodes are in the cluster", || {
            let listed = kcat_lists(&self.address).unwrap_or_default();
            listed.contains(&format!(" {count} brokers:"))
        });
    }

    /// Starts every node that does not run, on what it left behind, and waits until it serves.
    pub fn start_again(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].process.is_none() {
                let properties = self.nodes[at].properties.clone();
                let process = self.java(&["kafka.Kafka"]).arg(properties).spawn().expect("java runs");
                self.nodes[at].process = Some(process);
                wait_until("the broker serves", || kcat_lists(&self.nodes[at].address).is_some());
            }
        }
    }

    /// Ends every node as a crash would.
    pub fn kill(&mut self) {
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            process.kill().expect("the broker can be killed");
            process.wait().expect("the broker ends");
        }
        self.nodes.iter_mut().for_each(|node| node.process = None);
    }

    /// Takes the end of a transaction away, which must be the last that a partition has: what a coordinator leaves behind that believes
    /// to have ended it. Only while nothing runs.
    pub fn take_last_end_away(&self, topic: &str, index: u32) {
        const OFFSET_AND_LENGTH: usize = 12;
        const ATTRIBUTES_AT: usize = 21;
        const IS_CONTROL: u16 = 1 << 5;
        assert!(self.nodes.iter().all(|node| node.process.is_none()), "a broker must not run");
        let segment = format!("node-1/{topic}-{index}/00000000000000000000.log");
        let segment = std::fs::OpenOptions::new().read(true).write(true).open(self.folder.path().join(segment));
        let mut segment = segment.expect("the partition is in its first segment");
        let mut bytes = Vec::new();
        segment.read_to_end(&mut bytes).expect("the segment can be read");
        let mut last = None;
        let mut at = 0;
        while let Some(length) = bytes.get(at + 8..at + OFFSET_AND_LENGTH) {
            let length = u32::from_be_bytes(length.try_into().unwrap());
            if length == 0 {
                break;
            }
            last = Some(at);
            at += OFFSET_AND_LENGTH + length as usize;
        }
        let last = last.expect("a batch is there");
        let attributes = &bytes[last + ATTRIBUTES_AT..last + ATTRIBUTES_AT + 2];
        let attributes = u16::from_be_bytes(attributes.try_into().unwrap());
        assert!(
            attributes & IS_CONTROL != 0,
            "the last of {} bytes, at {last}, is no end of a transaction",
            bytes.len()
        );
        segment.set_len(last as u64).expect("the segment can be cut");
    }

    fn prepare(&mut self, address: String, own_properties: &[&str], format_as: &str) {
        let number = self.nodes.len() + 1;
        let data = self.folder.path().join(format!("node-{number}"));
        let properties = self.folder.path().join(format!("node-{number}.properties"));
        let (number, data) = (format!("node.id={number}"), format!("log.dirs={}", data.display()));
        let controller = format!("controller.quorum.bootstrap.servers={}", self.controller);
        let text = [&number, &data, &controller]
            .into_iter()
            .map(String::as_str)
            .chain(own_properties.iter().copied())
            .chain([
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "auto.create.topics.enable=false",
                // A broker that was killed is taken back when its session is over.
                "broker.session.timeout.ms=2000",
                "broker.heartbeat.interval.ms=500",
                "offsets.topic.replication.factor=1",
                "offsets.topic.num.partitions=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "transaction.state.log.num.partitions=1",
            ])
            .collect::<Vec<_>>()
            .join("\n");
        std::fs::write(&properties, text).expect("the folder can be written");
        let format = ["kafka.tools.StorageTool", "format", format_as, "-t", CLUSTER_ID, "-c"];
        let formatted = self.java(&format).arg(&properties).status().expect("java runs");
        assert!(formatted.success(), "the folder can be formatted");
        self.nodes.push(Node { address, properties, process: None });
    }

    fn java(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("java");
        command
            // A broker that lives for seconds is started faster by a simpler compiler and collector.
            .args([
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-cp",
                &format!("{}/*", self.libraries.display()),
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What kcat lists of the cluster, where the broker answers.
fn kcat_lists(address: &str) -> Option<String> {
    let kcat = Command::new("kcat").args(["-b", address, "-L", "-m", "2"]).output();
    let output = kcat.expect("kcat runs: scripts/services installs it");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < START_MAX, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A port that nobody listens on, below those that the system gives to outgoing connections.
pub fn free_port() -> u16 {
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

/// A topic that no other test uses.
pub fn new_spec(partitions: u32) -> TopicSpec {
    static TOPICS: AtomicU32 = AtomicU32::new(500_000);
    let number = TOPICS.fetch_add(1, Ordering::Relaxed);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TopicSpec {
        number: TopicNumber(number),
        name: format!("engine-{:x}-{:x}-{number}", since_epoch.as_millis(), std::process::id()),
        partitions,
        retention: Retention::default(),
        replicas: None,
        min_insync: None,
    }
}
