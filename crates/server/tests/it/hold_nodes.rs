//! Two nodes on Kafka, Redis and etcd: SIGSTOP stops one while it fires, or SIGKILL kills it; the other takes over its shards, and the
//! first one resumes. No message is duplicated or lost, and no answer is false, whichever node it came from.
//!
//! `WHIMBREL_HOLD_ROUNDS` sets the number of stops and kills, `WHIMBREL_HOLD_ROUND_OPS` the operations of a round.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use whimbrel_client::{ClientError, HoldFilter, NewMessage};

use super::hold_crash::{Crew, number, settings};
use super::hold_settling::{Settling, make_topics};
use super::kafka_cluster::KafkaCluster;
use super::random::Random;
use super::server::{PATIENCE, Server};
use super::services::{Outage as _, OwnEtcd, OwnRedis, skip};

const NEEDED: [&str; 3] = ["WHIMBREL_TEST_KAFKA_LIBS", "WHIMBREL_TEST_REDIS", "WHIMBREL_TEST_ETCD"];
const ROUNDS_DEFAULT: u64 = 4;
const ROUND_OPERATIONS_DEFAULT: u64 = 300;
const WORKERS: u64 = 8;
/// Shorter than a standstill of a node, so that workers continue with another node.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
const BRIEFLY_MS_MAX: u64 = 2500;
/// Time without etcd: longer than a session.
const WITHOUT_ETCD: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The services that several nodes share, and the nodes' folders.
pub struct Shared {
    folders: [TempDir; 4],
    _kafka: KafkaCluster,
    _redis: OwnRedis,
    etcd: OwnEtcd,
    settings: Vec<String>,
}

impl Shared {
    /// `None` if the services are not there: the test is skipped.
    pub fn start() -> Option<Self> {
        if skip(&NEEDED) {
            return None;
        }
        let (kafka, redis, etcd) = (KafkaCluster::single(), OwnRedis::start(), OwnEtcd::start());
        let mut settings = kafka.settings();
        settings.extend(redis.settings());
        settings.extend(etcd.settings());
        settings.extend(["etcd.session=2s", "internal_listen=127.0.0.1:0"].map(str::to_owned));
        let folders = [(); 4].map(|()| tempfile::tempdir().unwrap());
        Some(Self { folders, _kafka: kafka, _redis: redis, etcd, settings })
    }

    /// Starts the node with the folder of that index.
    pub fn node(&self, index: usize, more: &[String]) -> Server {
        let mut server = self.spawn(index, more);
        server.wait_for_banner();
        server
    }

    /// Starts a node without waiting for it.
    pub fn spawn(&self, index: usize, more: &[String]) -> Server {
        let settings = self.settings.iter().chain(more);
        let arguments: Vec<&str> = settings.flat_map(|setting| ["--set", setting.as_str()]).collect();
        Server::spawn(self.folders[index].path(), &arguments)
    }

    pub fn stop_etcd(&mut self) {
        self.etcd.kill();
    }

    pub fn start_etcd_again(&mut self) {
        self.etcd.start_again();
    }
}

#[test]
fn holds_agree_with_a_model_while_nodes_stand_still_die_and_return() {
    let rounds = number("WHIMBREL_HOLD_ROUNDS", ROUNDS_DEFAULT);
    let round_operations = number("WHIMBREL_HOLD_ROUND_OPS", ROUND_OPERATIONS_DEFAULT);
    let seed = number("WHIMBREL_HOLD_SEED", u64::from(std::process::id()));
    println!("two nodes: seed {seed}, {rounds} rounds of {round_operations} operations three times");
    let Some(shared) = Shared::start() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed);

    let mut nodes = [0, 1].map(|node| Some(shared.node(node, &settings(&mut random))));
    runtime.block_on(make_topics(&nodes[0].as_ref().unwrap().client(), WORKERS));
    let crew = Crew::begin(&runtime, WORKERS, ANSWER_WAIT, &mut random);
    crew.open(&nodes.each_ref().map(|node| node.as_ref().unwrap()));
    let mut settling = Settling::default();
    let (mut stopped, mut killed) = (0, 0);
    for round in 0..rounds {
        crew.wait_for(round_operations);
        let victim = (round % 2) as usize;
        // Too short to lose its session, or just long enough.
        let node = nodes[victim].as_ref().unwrap();
        node.freeze();
        std::thread::sleep(Duration::from_millis(random.below(BRIEFLY_MS_MAX)));
        node.go_on();
        crew.wait_for(round_operations / 2);
        let is_killed = round % 4 >= 2;
        if is_killed {
            nodes[victim].take().unwrap().kill();
            killed += 1;
        } else {
            nodes[victim].as_ref().unwrap().freeze();
            stopped += 1;
        }
        let survivor = nodes[1 - victim].as_ref().unwrap();
        if !is_killed {
            // Until its session expires, the other node does not notice the failure.
            crew.wait_for(WORKERS * 3);
        }
        crew.open(&[survivor]);
        wait_until_all_shards_answer(&runtime, survivor);
        crew.wait_for(round_operations);
        runtime.block_on(settling.read_on(&survivor.client(), WORKERS));
        match &nodes[victim] {
            Some(node) => node.go_on(),
            None => nodes[victim] = Some(shared.node(victim, &settings(&mut random))),
        }
        crew.open(&nodes.each_ref().map(|node| node.as_ref().unwrap()));
        crew.wait_for(round_operations);
        wait_until_all_shards_answer(&runtime, nodes[victim].as_ref().unwrap());
    }
    let operations = crew.operations.load(Ordering::Relaxed);
    let workers = crew.end(&runtime);
    let client = nodes[(rounds % 2) as usize].as_ref().unwrap().client();
    let summary = runtime.block_on(settling.settle(&client, workers));
    println!("two nodes: seed {seed}, {operations} operations, {stopped} stopped, {killed} killed\n{summary}");
}

/// Sends requests through a node until every shard has an owner that answers.
fn wait_until_all_shards_answer(runtime: &Runtime, node: &Server) {
    let (client, began) = (node.client(), Instant::now());
    while let Err(error) = runtime.block_on(client.count_holds(&HoldFilter::default())) {
        assert!(began.elapsed() < PATIENCE, "not every shard has an owner that answers: {error}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[test]
fn without_an_owner_commands_are_rejected_and_holds_survive() {
    let Some(shared) = Shared::start() else { return };
    let door = shared.node(0, &["roles=receive".to_owned()]);
    let client = door.client();
    let runtime = Runtime::new().unwrap();
    let held = runtime.block_on(async {
        let held = client.hold("orders", &NewMessage::text("x").delay("1h")).await.unwrap();
        let refused = [
            client.withdraw(&held.id).await.unwrap_err(),
            client.look(&held.id).await.unwrap_err(),
            client.hold("orders", &NewMessage::text("y").delay("1h").id("mine")).await.unwrap_err(),
        ];
        for error in refused {
            let ClientError::Problem(problem) = &error else { panic!("{error}") };
            assert_eq!((problem.status, problem.code.as_str()), (503, "no_owner"));
        }
        held
    });
    let _center = shared.node(1, &["roles=center".to_owned()]);
    // On a busy machine the center takes longer to own all shards than a request waits for an owner.
    wait_until_all_shards_answer(&runtime, &door);
    runtime.block_on(async {
        assert_eq!(client.look(&held.id).await.unwrap().state, "held");
        assert_eq!(client.withdraw(&held.id).await.unwrap().outcome, "withdrawn");
        client.hold("orders", &NewMessage::text("y").delay("1h").id("mine")).await.unwrap();
    });
}

#[test]
fn holds_agree_with_a_model_without_etcd() {
    let round_operations = number("WHIMBREL_HOLD_ROUND_OPS", ROUND_OPERATIONS_DEFAULT);
    let seed = number("WHIMBREL_HOLD_SEED", u64::from(std::process::id()));
    println!("without etcd: seed {seed}");
    let Some(mut shared) = Shared::start() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed);
    let nodes = [0, 1].map(|node| shared.node(node, &settings(&mut random)));
    runtime.block_on(make_topics(&nodes[0].client(), WORKERS));
    let crew = Crew::begin(&runtime, WORKERS, Duration::from_secs(30), &mut random);
    crew.open(&nodes.each_ref());
    let mut settling = Settling::default();
    crew.wait_for(round_operations);
    for node in &nodes {
        shared.etcd.kill();
        std::thread::sleep(WITHOUT_ETCD);
        runtime.block_on(settling.read_on(&node.client(), WORKERS));
        shared.etcd.start_again();
        wait_until_all_shards_answer(&runtime, node);
        crew.wait_for(round_operations);
    }
    let operations = crew.operations.load(Ordering::Relaxed);
    let workers = crew.end(&runtime);
    let summary = runtime.block_on(settling.settle(&nodes[0].client(), workers));
    println!("without etcd: seed {seed}, {operations} operations\n{summary}");
    assert!(summary.contains("no_owner"), "no command met the outage");
}
