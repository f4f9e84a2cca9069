//! A Kafka cluster of one or three nodes on free loopback ports, stopped at the end of the test.
//!
//! Every node is broker and controller, so that any node can fail. A cluster can also have a separate controller process, so that two of
//! its brokers can fail. The test can kill, stop, freeze, restart or wipe a node, and move leaders. The cluster is ready when every node
//! lists all nodes, and for every partition a leader and enough replicas in sync to accept a write.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Deserialize;
use tempfile::TempDir;

use super::kafka_admin::{PartitionReplicas, delete_topic, elect_preferred_leaders, set_replicas, topic_setting};
use super::random::Random;
use super::services::{Outage, OwnRedis, Process, free_address, silent, skip, wait_until};

/// Concurrent brokers: each needs a core and 0.5 GiB, and starts slowly beside others. A cluster of three takes all.
const BROKERS_AT_ONCE: usize = 2;
static BROKERS: Mutex<usize> = Mutex::new(0);
static BROKER_ENDED: Condvar = Condvar::new();
/// The cluster id: 16 bytes in URL-safe base64.
const CLUSTER_ID: &str = "AAAAAAAAQACAAAAAAAAAAQ";
/// A killed broker can register again after its session has expired. On a busy machine a slow broker must not lose its session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// The session timeout of clusters whose brokers fail on purpose.
const SHORT_SESSION_TIMEOUT: Duration = Duration::from_secs(2);
/// Partitions of the log of the transaction coordinators.
const COORDINATOR_PARTITIONS: i32 = 4;
const COORDINATOR_TOPIC: &str = "__transaction_state";
/// In-sync replicas that a cluster of several nodes requires before it acknowledges a message.
const MIN_INSYNC: usize = 2;
const MIN_INSYNC_SETTING: &str = "min.insync.replicas";
/// The cluster counts as ready when every check in this time finds it ready: a broker that was frozen first answers from old metadata.
const READY_STREAK: Duration = Duration::from_millis(400);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout for the cluster to be ready, and its replicas to be in sync.
const READY_MAX: Duration = Duration::from_secs(120);
/// Timeout for a node to stop after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Lines of a broker's output that a failed test prints.
const LAST_LINES: usize = 15;

pub struct KafkaCluster {
    libraries: String,
    nodes: Vec<Node>,
    /// The only controller, if it is separate from the brokers.
    controller: Option<Node>,
    folder: TempDir,
    _permit: BrokerPermit,
}

struct Node {
    id: i32,
    address: String,
    controller: String,
    process: Process,
}

/// A Kafka with one broker, a Redis, and the settings of a server that uses both. `None` if they are not there: the test is skipped.
pub fn kafka_with_redis() -> Option<(KafkaCluster, OwnRedis, Vec<String>)> {
    if skip(&["WHIMBREL_TEST_KAFKA_LIBS", "WHIMBREL_TEST_REDIS"]) {
        return None;
    }
    let (kafka, redis) = (KafkaCluster::single(), OwnRedis::start());
    let settings = [kafka.settings(), redis.settings()].concat();
    Some((kafka, redis, settings))
}

/// The permission to run brokers; released when dropped.
struct BrokerPermit(usize);

impl BrokerPermit {
    fn wait_for(brokers: usize) -> Self {
        let brokers = brokers.min(BROKERS_AT_ONCE);
        let running = BROKERS.lock().unwrap_or_else(PoisonError::into_inner);
        let running = BROKER_ENDED.wait_while(running, |running| *running + brokers > BROKERS_AT_ONCE);
        *running.unwrap_or_else(PoisonError::into_inner) += brokers;
        Self(brokers)
    }
}

impl Drop for BrokerPermit {
    fn drop(&mut self) {
        *BROKERS.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        BROKER_ENDED.notify_all();
    }
}

/// The cluster as one broker lists it.
#[derive(Debug, Deserialize)]
pub struct ClusterListing {
    brokers: Vec<ListedId>,
    pub topics: Vec<ListedTopic>,
}

#[derive(Debug, Deserialize)]
pub struct ListedTopic {
    pub topic: String,
    pub partitions: Vec<ListedPartition>,
}

#[derive(Debug, Deserialize)]
pub struct ListedPartition {
    pub partition: i32,
    pub leader: i32,
    replicas: Vec<ListedId>,
    isrs: Vec<ListedId>,
}

#[derive(Debug, Deserialize)]
struct ListedId {
    id: i32,
}

impl ClusterListing {
    fn partitions(&self) -> impl Iterator<Item = &ListedPartition> {
        self.topics.iter().flat_map(|topic| &topic.partitions)
    }

    /// Whether all nodes are listed and every partition accepts writes.
    fn is_ready(&self, nodes: usize) -> bool {
        self.brokers.len() == nodes
            && self.partitions().all(|each| each.leader > 0 && each.isrs.len() >= nodes.min(MIN_INSYNC))
    }

    /// Whether a failed node is no longer listed, and every partition accepts writes without it.
    fn has_failed_over(&self, failed: i32) -> bool {
        let others = |ids: &[ListedId]| ids.iter().filter(|replica| replica.id != failed).count();
        let is_led =
            |each: &ListedPartition| each.leader > 0 && each.leader != failed && others(&each.isrs) >= MIN_INSYNC;
        self.brokers.iter().all(|broker| broker.id != failed) && self.partitions().all(is_led)
    }

    fn is_in_sync(&self) -> bool {
        self.partitions().all(|each| each.isrs.len() == each.replicas.len())
    }

    /// Whether every replica but those of a failed node is in sync.
    fn is_in_sync_without(&self, failed: i32) -> bool {
        let ids_without = |ids: &[ListedId]| ids.iter().filter(|replica| replica.id != failed).count();
        self.partitions().all(|each| {
            each.isrs.iter().all(|replica| replica.id != failed) && each.isrs.len() == ids_without(&each.replicas)
        })
    }

    fn leader_of(&self, topic: &str, partition: i32) -> Option<i32> {
        let topic = self.topics.iter().find(|each| each.topic == topic)?;
        topic.partitions.iter().find(|each| each.partition == partition).map(|each| each.leader)
    }
}

impl KafkaCluster {
    /// One node, for tests in which the broker itself is not under test.
    pub fn single() -> Self {
        Self::with_sessions(1, false, SESSION_TIMEOUT)
    }

    /// A cluster for tests in which brokers fail. With three nodes, every partition has three replicas, of which two must be in sync.
    pub fn start(nodes: usize) -> Self {
        Self::with_sessions(nodes, false, SHORT_SESSION_TIMEOUT)
    }

    /// Like `start`, with a separate controller that does not fail: all brokers but one can be lost, and the controller notices.
    pub fn start_with_controller(nodes: usize) -> Self {
        Self::with_sessions(nodes, true, SHORT_SESSION_TIMEOUT)
    }

    fn with_sessions(nodes: usize, has_controller: bool, session_timeout: Duration) -> Self {
        let permit = BrokerPermit::wait_for(nodes);
        let libraries =
            std::env::var("WHIMBREL_TEST_KAFKA_LIBS").expect("scripts/services sets where Kafka's jars are");
        let folder = tempfile::tempdir().unwrap();
        let node = |id| {
            let (address, controller) = (free_address(), free_address());
            Node { id, address, controller, process: Process::none() }
        };
        let controller = has_controller.then(|| node(nodes as i32 + 1));
        let nodes: Vec<Node> = (1..=nodes as i32).map(node).collect();
        let mut cluster = Self { libraries, nodes, controller, folder, _permit: permit };
        let ids: Vec<i32> = cluster.ids().into_iter().chain(cluster.controller.as_ref().map(|node| node.id)).collect();
        for id in &ids {
            std::fs::write(cluster.properties(*id), cluster.properties_text(*id, session_timeout)).unwrap();
        }
        let formats: Vec<_> = ids.iter().map(|id| cluster.format_command(*id).spawn().unwrap()).collect();
        for mut format in formats {
            assert!(format.wait().unwrap().success(), "a node cannot be formatted");
        }
        ids.iter().for_each(|id| cluster.start_node(*id));
        cluster.wait_ready();
        cluster
    }

    fn properties_text(&self, id: i32, session_timeout: Duration) -> String {
        let node = self.node(id);
        let (broker, controller) =
            (format!("PLAINTEXT://{}", node.address), format!("CONTROLLER://{}", node.controller));
        let (roles, listeners, voters) = match &self.controller {
            None => ("broker,controller", format!("{broker},{controller}"), self.nodes.iter().collect()),
            Some(only) if only.id == id => ("controller", controller, vec![only]),
            Some(only) => ("broker", broker, vec![only]),
        };
        let voters: Vec<String> = voters.iter().map(|each| format!("{}@{}", each.id, each.controller)).collect();
        let replicas = self.nodes.len();
        let min_insync = replicas.min(MIN_INSYNC);
        [
            format!("process.roles={roles}"),
            format!("node.id={id}"),
            format!("listeners={listeners}"),
            // Voters without directory ids: a node that lost its disk returns as the same voter.
            format!("controller.quorum.voters={}", voters.join(",")),
            format!("log.dirs={}", self.data(id).display()),
            "controller.listener.names=CONTROLLER".to_owned(),
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
            "auto.create.topics.enable=false".to_owned(),
            format!("broker.session.timeout.ms={}", session_timeout.as_millis()),
            "broker.heartbeat.interval.ms=500".to_owned(),
            // A coordinator waits this long for a broker that does not answer before it writes a transaction marker elsewhere: 30 s by
            // default, which no client can shorten.
            format!("request.timeout.ms={}", session_timeout.as_millis()),
            format!("default.replication.factor={replicas}"),
            format!("{MIN_INSYNC_SETTING}={min_insync}"),
            format!("offsets.topic.replication.factor={replicas}"),
            "offsets.topic.num.partitions=1".to_owned(),
            format!("transaction.state.log.replication.factor={replicas}"),
            format!("transaction.state.log.min.isr={min_insync}"),
            format!("transaction.state.log.num.partitions={COORDINATOR_PARTITIONS}"),
        ]
        .join("\n")
    }

    fn properties(&self, id: i32) -> PathBuf {
        self.folder.path().join(format!("node-{id}.properties"))
    }

    fn data(&self, id: i32) -> PathBuf {
        self.folder.path().join(format!("node-{id}"))
    }

    fn output(&self, id: i32) -> PathBuf {
        self.folder.path().join(format!("node-{id}.output"))
    }

    fn java(&self, id: i32, arguments: &[&str]) -> Command {
        let mut command = Command::new("java");
        // A simpler compiler and collector start a broker faster, which matters more here than its throughput.
        command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]);
        command.arg("-cp").arg(format!("{}/*", self.libraries)).args(arguments).arg(self.properties(id));
        silent(&mut command);
        command
    }

    fn format_command(&self, id: i32) -> Command {
        self.java(id, &["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"])
    }

    fn node(&self, id: i32) -> &Node {
        self.nodes.get(id as usize - 1).or(self.controller.as_ref()).expect("the node exists")
    }

    fn node_mut(&mut self, id: i32) -> &mut Node {
        self.nodes.get_mut(id as usize - 1).or(self.controller.as_mut()).expect("the node exists")
    }

    /// The ids of the brokers: 1 and on.
    pub fn ids(&self) -> Vec<i32> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    pub fn bootstrap(&self) -> String {
        let addresses: Vec<&str> = self.nodes.iter().map(|node| node.address.as_str()).collect();
        addresses.join(",")
    }

    /// The settings of a server with its log on this cluster. Replicas and in-sync replicas of topics are the brokers' defaults.
    pub fn settings(&self) -> Vec<String> {
        vec!["log.engine=kafka".to_owned(), format!("kafka.bootstrap={}", self.bootstrap())]
    }

    pub fn kill_9(&mut self, id: i32) {
        self.node_mut(id).process.kill();
    }

    /// Sends SIGTERM, and waits until the process has exited.
    pub fn stop_cleanly(&mut self, id: i32) {
        assert!(self.node_mut(id).process.terminate(STOP_MAX), "node {id} does not stop within {STOP_MAX:?}");
    }

    /// SIGSTOP: the node answers nothing, and its connections stay open.
    pub fn freeze(&self, id: i32) {
        self.node(id).process.signal(Signal::STOP);
    }

    pub fn thaw(&self, id: i32) {
        self.node(id).process.signal(Signal::CONT);
    }

    /// Starts a stopped node on its disk, without waiting for it.
    pub fn start_node(&mut self, id: i32) {
        let output = File::options().create(true).append(true).open(self.output(id)).unwrap();
        let mut command = self.java(id, &["kafka.Kafka"]);
        command.stdout(output.try_clone().unwrap()).stderr(output);
        self.node_mut(id).process = Process::of(command.spawn().expect("java runs: scripts/services installs it"));
    }

    /// Wipes the disk of a stopped node, and formats it again with the same node id.
    pub fn wipe(&self, id: i32) {
        assert!(self.nodes.len() > 1, "the only node has the only copy");
        std::fs::remove_dir_all(self.data(id)).unwrap();
        assert!(self.format_command(id).status().unwrap().success(), "node {id} cannot be formatted again");
    }

    /// Moves the leader of every partition to another broker, chosen at random, and waits until all have moved.
    pub fn move_leaders(&self, random: &mut Random) {
        let listing = self.wait_in_sync();
        let broker = &self.nodes[0].address;
        let mut moves = Vec::new();
        for topic in &listing.topics {
            for partition in &topic.partitions {
                let mut replicas: Vec<i32> = partition.replicas.iter().map(|replica| replica.id).collect();
                while replicas.len() > 1 && replicas[0] == partition.leader {
                    let steps = random.below(replicas.len() as u64) as usize;
                    replicas.rotate_left(steps);
                }
                moves.push(PartitionReplicas { topic: topic.topic.clone(), partition: partition.partition, replicas });
            }
        }
        set_replicas(broker, &moves);
        elect_preferred_leaders(broker, &moves);
        wait_until("all leaders are moved", || {
            self.listing_of(1).is_some_and(|listing| {
                moves
                    .iter()
                    .all(|each| listing.leader_of(&each.topic, each.partition) == each.replicas.first().copied())
            })
        });
    }

    /// Deletes a topic as another application would.
    pub fn delete_topic(&self, topic: &str) {
        delete_topic(&self.nodes[0].address, topic);
    }

    /// The node whose broker coordinates the transactions of this id.
    pub fn transaction_coordinator_of(&self, transactional_id: &str) -> i32 {
        let hash = transactional_id.encode_utf16();
        let hash = hash.fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
        let partition = hash.checked_abs().unwrap_or(0) % COORDINATOR_PARTITIONS;
        let leader = self.wait_in_sync().leader_of(COORDINATOR_TOPIC, partition);
        leader.expect("a commit has created the log of the coordinators")
    }

    pub fn wait_ready(&self) -> Instant {
        self.wait_for_listings(&self.ids(), |listing| listing.is_ready(self.nodes.len()))
    }

    /// Waits until the other nodes have taken over from a failed one, and returns the time at which each of them listed a leader for
    /// every partition.
    pub fn wait_failed_over(&self, failed: i32) -> Instant {
        self.wait_for_listings(&self.ids_without(failed), |listing| listing.has_failed_over(failed))
    }

    fn ids_without(&self, failed: i32) -> Vec<i32> {
        self.ids().into_iter().filter(|id| *id != failed).collect()
    }

    /// Waits until the listings of all these nodes satisfy a condition for [`READY_STREAK`], and returns the start of that time.
    fn wait_for_listings(&self, ids: &[i32], is_satisfied: impl Fn(&ClusterListing) -> bool) -> Instant {
        let began = Instant::now();
        let mut satisfied_since = None;
        loop {
            let checked = Instant::now();
            let is_ready = ids.iter().all(|id| self.listing_of(*id).is_some_and(|listing| is_satisfied(&listing)));
            match satisfied_since {
                _ if !is_ready => satisfied_since = None,
                None => satisfied_since = Some(checked),
                Some(since) if checked.duration_since(since) >= READY_STREAK => return since,
                Some(_) => {}
            }
            assert!(began.elapsed() < READY_MAX, "Kafka is not ready after {READY_MAX:?}");
            std::thread::sleep(READY_POLL_INTERVAL);
        }
    }

    /// Waits until every replica is in sync, and returns the listing.
    pub fn wait_in_sync(&self) -> ClusterListing {
        self.wait_for_listing(1, |listing| listing.is_ready(self.nodes.len()) && listing.is_in_sync())
    }

    /// Waits until the other nodes have taken over from a failed one, and their replicas are in sync.
    pub fn wait_in_sync_without(&self, failed: i32) {
        let witness = self.ids_without(failed)[0];
        self.wait_for_listing(witness, |listing| listing.has_failed_over(failed) && listing.is_in_sync_without(failed));
    }

    /// Waits until a single broker of several has every partition, and is the only one in sync.
    pub fn wait_only_in_sync(&self, remaining: i32) {
        let is_alone = |each: &ListedPartition| each.leader == remaining && each.isrs.len() == 1;
        self.wait_for_listing(remaining, |listing| listing.brokers.len() == 1 && listing.partitions().all(is_alone));
    }

    fn wait_for_listing(&self, id: i32, is_satisfied: impl Fn(&ClusterListing) -> bool) -> ClusterListing {
        let began = Instant::now();
        loop {
            if let Some(listing) = self.listing_of(id).filter(&is_satisfied) {
                return listing;
            }
            assert!(began.elapsed() < READY_MAX, "the replicas are not as expected after {READY_MAX:?}");
            std::thread::sleep(READY_POLL_INTERVAL);
        }
    }

    /// Checks, for a cluster of several nodes, that every topic requires two in-sync replicas. Returns the number of topics.
    pub fn check_min_insync(&self) -> usize {
        if self.nodes.len() < MIN_INSYNC {
            return 0;
        }
        let topics: Vec<String> = self.wait_in_sync().topics.into_iter().map(|topic| topic.topic).collect();
        let settings = topic_setting(&self.nodes[0].address, &topics, MIN_INSYNC_SETTING);
        assert_eq!(settings.len(), topics.len(), "the broker described {settings:?}");
        for (topic, value) in settings {
            assert_eq!(value, Some(MIN_INSYNC.to_string()), "{MIN_INSYNC_SETTING} of {topic}");
        }
        topics.len()
    }

    /// The cluster as this node lists it; `None` if it does not answer.
    fn listing_of(&self, id: i32) -> Option<ClusterListing> {
        let kcat = Command::new("kcat").args(["-b", &self.node(id).address, "-L", "-J", "-m", "2"]).output();
        let output = kcat.expect("kcat runs: scripts/services installs it");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok()).flatten()
    }
}

impl Outage for KafkaCluster {
    fn kill(&mut self) {
        self.ids().into_iter().for_each(|id| self.kill_9(id));
    }

    fn start_again(&mut self) {
        self.ids().into_iter().for_each(|id| self.start_node(id));
        self.wait_ready();
    }

    fn freeze(&self) {
        self.ids().into_iter().for_each(|id| Self::freeze(self, id));
    }

    fn go_on(&self) {
        self.ids().into_iter().for_each(|id| self.thaw(id));
    }
}

impl Drop for KafkaCluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for id in self.ids() {
            let output = std::fs::read_to_string(self.output(id)).unwrap_or_default();
            let lines: Vec<&str> = output.lines().collect();
            println!("last output of Kafka node {id}:");
            lines[lines.len().saturating_sub(LAST_LINES)..].iter().for_each(|line| println!("  {line}"));
        }
    }
}
