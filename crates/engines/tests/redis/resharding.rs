//! A Cluster of a test's own, whose slots move and whose nodes end during writes.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use whimbrel_engines::needs_servers;
use whimbrel_engines::redis::RedisSettings;
use whimbrel_model::ports::{ApplyOutcome, Timers, TimersError, TimersWrite};

use crate::outage::empty_write;
use crate::services::{Outage as _, OwnRedis, free_port, wait_until};
use crate::{ONE, open_timers};

const SHARDS: u32 = 16;
/// The sum of both timeouts of the settings, and a margin for a busy machine.
const PATIENCE_MAX: Duration = Duration::from_secs(4);

struct OwnCluster {
    nodes: Vec<OwnRedis>,
}

impl OwnCluster {
    fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| Self::start_node()).collect();
        let addresses: Vec<String> = nodes.iter().map(OwnRedis::address).collect();
        redis_cli(&["--cluster", "create", &addresses[0], &addresses[1], &addresses[2], "--cluster-yes"]);
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    fn start_node() -> OwnRedis {
        let bus = free_port().to_string();
        let options = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"];
        // A missing node must not stop the others, as in an installation that prefers availability.
        let rest = ["--cluster-require-full-coverage", "no", "--appendonly", "yes", "--appendfsync", "always"];
        OwnRedis::start_with(&[&options[..], &rest].concat())
    }

    fn wait_until_whole(&self) {
        for node in &self.nodes {
            wait_until("every node knows the whole cluster", || {
                let info = node.cli(&["cluster", "info"]);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            });
        }
    }

    fn settings(&self) -> RedisSettings {
        let urls = self.nodes.iter().map(OwnRedis::address).collect();
        RedisSettings { urls, ..self.nodes[0].settings() }
    }

    fn slot_of(&self, shard: u32) -> u32 {
        let key = format!("{}:{{h{shard}}}:meta", self.settings().prefix);
        self.nodes[0].cli(&["cluster", "keyslot", &key]).parse().expect("a slot is a number")
    }

    fn holder_of(&self, slot: u32) -> usize {
        let has = |node: &OwnRedis| {
            let myself = node.cli(&["cluster", "nodes"]);
            let myself = myself.lines().find(|line| line.contains("myself")).expect("a node knows itself").to_owned();
            myself.split_whitespace().skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last) = (first.parse::<u32>(), last.parse::<u32>());
                first.is_ok_and(|first| first <= slot) && last.is_ok_and(|last| slot <= last)
            })
        };
        self.nodes.iter().position(has).expect("every slot has a node")
    }

    /// Adds a replica of a node and waits until it is synchronized.
    fn add_replica(&mut self, of: usize) -> usize {
        let (primary, replica) = (&self.nodes[of], Self::start_node());
        let id = primary.cli(&["cluster", "myid"]);
        let nodes = [replica.address(), primary.address()];
        redis_cli(&["--cluster", "add-node", &nodes[0], &nodes[1], "--cluster-slave", "--cluster-master-id", &id]);
        wait_until("the replica has everything", || {
            let info = replica.cli(&["info", "replication"]);
            info.contains("role:slave") && info.contains("master_link_status:up")
        });
        self.nodes.push(replica);
        self.nodes.len() - 1
    }

    /// Moves a slot with all its keys to the next node, as an operator's resharding does.
    fn move_slot(&self, slot: u32) {
        let from = self.holder_of(slot);
        let (from, to) = (&self.nodes[from], &self.nodes[(from + 1) % self.nodes.len()]);
        let (slot, id_of) = (slot.to_string(), |node: &OwnRedis| node.cli(&["cluster", "myid"]));
        assert_eq!(to.cli(&["cluster", "setslot", &slot, "importing", &id_of(from)]), "OK");
        assert_eq!(from.cli(&["cluster", "setslot", &slot, "migrating", &id_of(to)]), "OK");
        loop {
            let keys = from.cli(&["cluster", "getkeysinslot", &slot, "1"]);
            if keys.is_empty() {
                break;
            }
            let port = to.port();
            let moved = from.cli(&["migrate", "127.0.0.1", &port, &keys, "0", "5000"]);
            assert!(moved == "OK" || moved == "NOKEY", "{moved}");
        }
        for node in [to, from] {
            assert_eq!(node.cli(&["cluster", "setslot", &slot, "node", &id_of(to)]), "OK");
        }
    }
}

fn redis_cli(arguments: &[&str]) {
    let made = Command::new("redis-cli").args(arguments).output();
    let made = made.expect("redis-cli runs: scripts/services installs it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
}

fn write(expected: u64) -> TimersWrite {
    empty_write(expected, expected + 1)
}

/// Writes until a write at an offset is done.
async fn write_past(timers: &dyn Timers, shard: u32, offset: u64) {
    let (began, mut at) = (Instant::now(), offset);
    while at == offset {
        assert!(began.elapsed() < 3 * PATIENCE_MAX, "shard {shard} cannot be written");
        at = write_on(timers, shard, at).await;
    }
}

/// Writes like an owner: after an unknown outcome, the next attempt finds out what was done.
async fn write_on(timers: &dyn Timers, shard: u32, at: u64) -> u64 {
    match timers.apply(shard, write(at)).await {
        Ok(ApplyOutcome::Done) => at + 1,
        Ok(ApplyOutcome::Behind { at: there }) => {
            assert!(there == at + 1, "the store is at {there} where {at} was written");
            there
        }
        Ok(ApplyOutcome::OlderEpoch) => panic!("there is no other writer"),
        Err(_) => at,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_moves_to_another_node_during_writes_loses_nothing() {
    needs_servers!(ONE);
    let cluster = OwnCluster::start();
    let timers = open_timers(cluster.settings()).await;
    let moved = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let (timers, moved) = (timers.clone(), moved.clone());
        async move {
            let mut at = 0;
            while !moved.load(Ordering::Acquire) {
                at = write_on(&*timers, 0, at).await;
            }
            at
        }
    });
    let slot = cluster.slot_of(0);
    let before = cluster.holder_of(slot);
    tokio::task::block_in_place(|| cluster.move_slot(slot));
    assert_ne!(cluster.holder_of(slot), before);
    moved.store(true, Ordering::Release);
    let at = writing.await.expect("the writer ends");
    for offset in at..at + 3 {
        write_past(&*timers, 0, offset).await;
    }
    assert_eq!(timers.get(0, Vec::new()).await.map(|read| read.applied), Ok(at + 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_node_stops_only_its_own_shards_until_it_returns() {
    needs_servers!(ONE);
    let mut cluster = OwnCluster::start();
    let timers = open_timers(cluster.settings()).await;
    for shard in 0..SHARDS {
        assert_eq!(timers.apply(shard, write(0)).await, Ok(ApplyOutcome::Done));
    }
    let gone = cluster.holder_of(cluster.slot_of(0));
    let (theirs, others): (Vec<u32>, Vec<u32>) =
        (0..SHARDS).partition(|shard| cluster.holder_of(cluster.slot_of(*shard)) == gone);
    assert!(!theirs.is_empty() && !others.is_empty());
    cluster.nodes[gone].kill();
    let began = Instant::now();
    assert!(matches!(timers.apply(0, write(1)).await, Err(TimersError::Unavailable(_))));
    assert!(began.elapsed() < PATIENCE_MAX, "it took {:?}", began.elapsed());
    for shard in others {
        // These shards are on nodes that run.
        write_past(&*timers, shard, 1).await;
    }

    cluster.nodes[gone].start_again();
    cluster.wait_until_whole();
    for shard in theirs {
        write_past(&*timers, shard, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_is_found_and_continues_at_its_offset() {
    needs_servers!(ONE);
    let mut cluster = OwnCluster::start();
    let gone = cluster.holder_of(cluster.slot_of(0));
    let replica = cluster.add_replica(gone);
    let timers = open_timers(cluster.settings()).await;
    assert_eq!(timers.apply(0, write(0)).await, Ok(ApplyOutcome::Done));
    wait_until("the replica has the write", || {
        let offset = |node: &OwnRedis, field: &str| {
            let info = node.cli(&["info", "replication"]);
            info.lines().find_map(|line| line.strip_prefix(field)).map(str::trim).map(str::to_owned)
        };
        let written = offset(&cluster.nodes[gone], "master_repl_offset:");
        written.is_some() && written == offset(&cluster.nodes[replica], "slave_repl_offset:")
    });
    cluster.nodes[gone].kill();
    assert_eq!(cluster.nodes[replica].cli(&["cluster", "failover", "takeover"]), "OK");
    write_past(&*timers, 0, 1).await;
    assert_eq!(timers.open(0, 1).await, Ok(Some(2)));
}
