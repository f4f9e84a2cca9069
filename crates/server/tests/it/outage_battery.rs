//! The outage battery: brokers fail while a workload publishes, holds, delivers and pushes. The server is never restarted. No message may
//! be lost, stored or delivered twice, delivered early or stuck. The checks use the server's API, its callbacks and
//! devices, and an independent reader.
//!
//! One seed makes one round. `scripts/outages` runs many rounds and bounds their recovery and failover times; here those are printed, and
//! bounded in the short rounds only.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use whimbrel_client::{Client, HoldFilter, Message, TopicSettings};
use whimbrel_model::EVENTS_TOPIC;

use super::committed_reader::{CommittedRecord, read_committed};
use super::hold_answer::millis_of;
use super::hold_crash::{Crew, number};
use super::hold_settling::{Settling, make_topics, topics};
use super::hold_work::Pace;
use super::kafka_cluster::KafkaCluster;
use super::outage_burst::{BURST_MS, BURST_TOPIC, Burst};
use super::outage_people::{ProbeDevices, Users};
use super::outage_plan::{Fault, FaultKind, Plan};
use super::outage_probe::{Probe, ProbeState, Recovery, is_probe, name_in};
use super::outage_publishers::{ORDERS_TOPIC, Publishers};
use super::outage_subscription::OutageSubscription;
use super::server::{Server, read_all, set};
use super::services::skip;

/// Workers with holds.
const WORKERS: u64 = 4;
const PACE: Pace = Pace { delay_ms_max: 5000, pause: Duration::from_millis(25) };
const HOLD_SHARDS: u32 = 8;
const PUSH_PARTITIONS: u32 = 4;
const ANSWER_WAIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the workload continues after the last recovery.
const LAST_WORK: Duration = Duration::from_secs(1);
/// Time limit after the workload until everything is delivered and no hold is pending.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const FAULTS_DEFAULT: u64 = 3;
/// A longer recovery prints the server's log. `scripts/outages` counts the round as failed.
const RECOVERY_MAX: Duration = Duration::from_secs(5);
/// A broker that is down for at least this long stays down until the others have taken over, and the failover is measured. Brokers have a
/// session timeout of 2 s.
const FAILOVER_DOWN_MIN: Duration = Duration::from_secs(2);
/// After a broker is frozen, requests that it took before may still be acknowledged for this time.
const FREEZE_MARGIN: Duration = Duration::from_millis(200);
/// The event of a topic whose messages are acknowledged with one replica.
const NOT_DURABLE_EVENT: &str = "acknowledged_not_durable";
/// The transactional id of a shard of the holds, without its number.
const TRANSACTIONAL_ID_PREFIX: &str = "whimbrel/holds/";

#[test]
fn an_outage_of_the_only_broker_causes_no_loss_and_no_duplicate() {
    if !skip(&["WHIMBREL_TEST_KAFKA_LIBS"]) {
        Round::run(Plan::short(1, 1, &[FaultKind::CoordinatorKill, FaultKind::Freeze]));
    }
}

#[test]
fn outages_of_one_of_three_brokers_cause_no_loss_and_no_duplicate() {
    if !skip(&["WHIMBREL_TEST_KAFKA_LIBS"]) {
        Round::run(Plan::short(1, 3, &[FaultKind::LeaderMove, FaultKind::DiskLoss]));
    }
}

#[test]
#[ignore = "one round of scripts/outages, which sets the seed"]
fn outage_round() {
    let seed = number("WHIMBREL_OUTAGE_SEED", 1);
    let brokers = Some(number("WHIMBREL_OUTAGE_BROKERS", 0) as usize).filter(|brokers| *brokers > 0);
    let faults = number("WHIMBREL_OUTAGE_FAULTS", FAULTS_DEFAULT);
    Round::run(Plan::of(seed, brokers, faults));
}

struct Round {
    plan: Plan,
    // Stops before its brokers.
    server: Server,
    client: Client,
    cluster: KafkaCluster,
    _folder: TempDir,
    runtime: Runtime,
    bursts: Vec<Burst>,
    /// Times in which fewer than `min.insync.replicas` brokers could store a message.
    without_copies: Vec<(Instant, Instant)>,
    began: Instant,
}

/// A fault that has ended.
struct Injected {
    /// When the cluster was ready again.
    ready: Instant,
    /// Withdrawals in progress when the broker failed, which may still be in progress.
    withdrawals: Option<JoinHandle<Burst>>,
}

/// The clients that use the server while brokers fail.
struct Workload {
    crew: Crew,
    publishers: Publishers,
    subscription: OutageSubscription,
    users: Users,
}

impl Round {
    fn run(plan: Plan) {
        println!("\nplan\t{plan}");
        let mut round = Self::start(plan);
        let workload = round.begin_workload();
        let probe = round.probe(&workload);
        round.cluster.check_min_insync();
        for (at, fault) in round.plan.faults.clone().into_iter().enumerate() {
            round.work_for(&workload, Duration::from_millis(fault.work_ms));
            if fault.kind != FaultKind::TwoBrokers {
                round.cluster.wait_in_sync();
            }
            let Injected { ready, withdrawals } = round.inject(at, fault, &probe);
            round.measure("recovery", fault, &probe, ready);
            let burst = withdrawals.map(|withdrawals| round.runtime.block_on(withdrawals).unwrap());
            round.bursts.extend(burst);
            round.check_alive();
        }
        round.work_for(&workload, LAST_WORK);
        round.finish(workload, probe);
    }

    fn start(plan: Plan) -> Self {
        let began = Instant::now();
        let loses_two_brokers = plan.faults.iter().any(|fault| fault.kind == FaultKind::TwoBrokers);
        let start = if loses_two_brokers { KafkaCluster::start_with_controller } else { KafkaCluster::start };
        let cluster = start(plan.brokers);
        let folder = tempfile::tempdir().unwrap();
        let mut settings = cluster.settings();
        settings.extend([format!("holds.shards={HOLD_SHARDS}"), format!("push.partitions={PUSH_PARTITIONS}")]);
        settings.extend(plan.settings());
        settings.extend(std::env::var("WHIMBREL_OUTAGE_LEVEL").map(|level| format!("telemetry.level={level}")));
        let server = Server::start(folder.path(), &set(&settings));
        let client = server.client().with_answer_wait(ANSWER_WAIT);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (bursts, without_copies) = (Vec::new(), Vec::new());
        Self { plan, server, client, cluster, _folder: folder, runtime, bursts, without_copies, began }
    }

    fn begin_workload(&mut self) -> Workload {
        let subscription = self.runtime.block_on(async {
            make_topics(&self.client, WORKERS).await;
            for (topic, partitions) in [ORDERS_TOPIC, BURST_TOPIC] {
                let settings = TopicSettings { partitions: Some(partitions), ..TopicSettings::default() };
                self.client.put_topic(topic, &settings).await.unwrap();
            }
            OutageSubscription::create(&self.client, all_topics().map(|(topic, _)| topic).collect()).await
        });
        let crew = Crew::begin_at(PACE, &self.runtime, WORKERS, ANSWER_WAIT, &mut self.plan.random);
        crew.open(&[&self.server]);
        let publishers = Publishers::begin(&self.runtime, &self.client);
        Workload { crew, publishers, subscription, users: Users::begin(&self.server) }
    }

    fn probe(&self, workload: &Workload) -> Probe {
        let users = (0..PUSH_PARTITIONS).map(|partition| name_in(partition, PUSH_PARTITIONS));
        Probe {
            client: self.client.clone(),
            topics: all_topics().collect(),
            hold_topic: (BURST_TOPIC.0.to_owned(), BURST_TOPIC.1),
            hold_shards: HOLD_SHARDS,
            push_partitions: PUSH_PARTITIONS,
            arrivals: workload.subscription.arrivals.clone(),
            devices: ProbeDevices::begin(&self.server, users),
            state: ProbeState::default(),
        }
    }

    /// Measures the time from the moment at which the brokers were ready until every probed part serves, and prints it.
    fn measure(&mut self, what: &str, fault: Fault, probe: &Probe, ready: Instant) {
        let recovery: Recovery = self.runtime.block_on(probe.measure(ready));
        println!("{what}\t{fault}\t{recovery}\tat {:?}", self.began.elapsed());
        if recovery.time > RECOVERY_MAX {
            self.server.show_what_it_said();
        }
        if let Some(limit) = self.plan.recovery_max {
            assert!(
                recovery.time <= limit,
                "the {what} after {fault} took {:?}, the limit is {limit:?}",
                recovery.time
            );
        }
    }

    /// Lets the workload run. A worker or publisher that has ended found a contradiction.
    fn work_for(&mut self, workload: &Workload, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time && !workload.crew.has_ended_worker() && !workload.publishers.has_failed() {
            std::thread::sleep(POLL_INTERVAL);
        }
        self.check_alive();
    }

    fn check_alive(&mut self) {
        assert!(self.server.is_running(), "the server process has exited");
    }

    /// Injects a fault and ends it. Measures the failover to the other brokers if the fault lasts long enough.
    fn inject(&mut self, at: usize, fault: Fault, probe: &Probe) -> Injected {
        let down = Duration::from_millis(fault.down_ms);
        let (mut node, mut withdrawals) = (fault.node, None);
        match fault.kind {
            FaultKind::Kill | FaultKind::DiskLoss => self.cluster.kill_9(node),
            FaultKind::Restart => self.cluster.stop_cleanly(node),
            FaultKind::Freeze => self.cluster.freeze(node),
            FaultKind::CoordinatorKill => {
                let (coordinator, burst) = self.kill_coordinator(at);
                (node, withdrawals) = (coordinator, Some(burst));
            }
            FaultKind::LeaderMove => self.cluster.move_leaders(&mut self.plan.random),
            FaultKind::TwoBrokers => self.lose_two_brokers(node, down, probe),
        }
        let failed = Instant::now();
        let has_failover = !matches!(fault.kind, FaultKind::LeaderMove | FaultKind::TwoBrokers);
        // The leaders of a broker that stops cleanly move before it exits.
        let is_long = down >= FAILOVER_DOWN_MIN || fault.kind == FaultKind::Restart;
        if has_failover {
            if self.plan.brokers > 1 && is_long {
                let failed_over = self.cluster.wait_failed_over(node);
                self.measure("failover", fault, probe, failed_over);
            }
            std::thread::sleep(down.saturating_sub(failed.elapsed()));
        }
        match fault.kind {
            FaultKind::Freeze => self.cluster.thaw(node),
            FaultKind::LeaderMove | FaultKind::TwoBrokers => {}
            FaultKind::Kill | FaultKind::Restart | FaultKind::DiskLoss | FaultKind::CoordinatorKill => {
                if fault.kind == FaultKind::DiskLoss {
                    self.cluster.wipe(node);
                }
                self.cluster.start_node(node);
            }
        }
        Injected { ready: self.cluster.wait_ready(), withdrawals }
    }

    /// Kills the broker that coordinates the transactions of a shard while that shard commits withdrawals. Returns the broker and the
    /// withdrawals.
    fn kill_coordinator(&mut self, at: usize) -> (i32, JoinHandle<Burst>) {
        let shard = self.plan.random.below(u64::from(HOLD_SHARDS)) as u32;
        let burst = self.runtime.block_on(Burst::hold(&self.client, at, shard, HOLD_SHARDS));
        let node = self.cluster.transaction_coordinator_of(&format!("{TRANSACTIONAL_ID_PREFIX}{shard}"));
        let withdrawals = self.runtime.spawn(burst.withdraw(self.client.clone()));
        std::thread::sleep(Duration::from_millis(self.plan.random.below(BURST_MS)));
        self.cluster.kill_9(node);
        (node, withdrawals)
    }

    /// Kills a broker, freezes another one as soon as the remaining two are in sync, and brings both back. While both are lost, no
    /// message can be on two replicas, and none may be acknowledged: neither while the remaining broker waits for the frozen one, nor when
    /// it is the only one in sync.
    fn lose_two_brokers(&mut self, killed: i32, down: Duration, probe: &Probe) {
        let [frozen, remaining] = [1, 2].map(|step| (killed - 1 + step) % self.plan.brokers as i32 + 1);
        self.cluster.kill_9(killed);
        self.cluster.wait_in_sync_without(killed);
        self.cluster.freeze(frozen);
        let began = Instant::now();
        std::thread::sleep(FREEZE_MARGIN);
        let from = Instant::now();
        self.runtime.block_on(probe.check_refused());
        self.cluster.wait_only_in_sync(remaining);
        self.runtime.block_on(probe.check_refused());
        std::thread::sleep(down.saturating_sub(began.elapsed()));
        self.without_copies.push((from, Instant::now()));
        self.cluster.thaw(frozen);
        self.cluster.start_node(killed);
    }

    /// Ends the workload, waits until everything has settled, and checks all of it.
    fn finish(mut self, Workload { crew, publishers, subscription, users }: Workload, probe: Probe) {
        let operations = crew.operations.load(Ordering::Relaxed) + publishers.operations.load(Ordering::Relaxed);
        let publishes = publishers.end(&self.runtime);
        let workers = crew.end(&self.runtime);
        self.runtime.block_on(settle(&self.client, &subscription));
        println!("settled\tat {:?}", self.began.elapsed());
        let mut settling = Settling::default();
        print!("{}", self.runtime.block_on(settling.settle(&self.client, workers)));

        let bootstrap = self.cluster.bootstrap();
        let orders = read_committed(&bootstrap, ORDERS_TOPIC.0);
        self.runtime.block_on(check_same(&self.client, ORDERS_TOPIC, &orders));
        println!("  {}", publishes.check(&orders));
        publishes.check_none_acknowledged(&self.without_copies);

        let holds: Vec<CommittedRecord> =
            topics(WORKERS).flat_map(|(topic, _)| read_committed(&bootstrap, &topic)).collect();
        check_holds(&settling, &holds);
        let burst = read_committed(&bootstrap, BURST_TOPIC.0);
        for each in &self.bursts {
            self.runtime.block_on(each.check(&self.client, &burst));
        }
        println!("  {}", subscription.check_not_early(self.dues(&settling, &probe, &burst)));
        probe.check(&burst);
        let subscribed: Vec<CommittedRecord> = orders.into_iter().chain(holds).chain(burst).collect();
        check_ids_differ(&subscribed);
        println!("  {}", self.runtime.block_on(subscription.check(&self.client, &subscribed)));
        println!("  {}", self.runtime.block_on(users.check(&self.client, SETTLE_MAX)));
        println!("  {}", self.runtime.block_on(check_events(&self.client)));
        println!("  min.insync.replicas: checked on {} topics", self.cluster.check_min_insync());
        self.check_alive();
        let (threads, resident_mib) = process_size(self.server.process_id());
        println!("end\t{operations}\t{threads}\t{resident_mib}");
    }

    /// Every hold that came due and fired, with its due time. The history of a hold has shown whether a command may have fired it.
    fn dues(&self, settling: &Settling, probe: &Probe, burst: &[CommittedRecord]) -> Vec<(String, i64)> {
        let time = |message: &Message, name: &str| {
            let time = if name == "due" { &message.due } else { &message.fired_at };
            millis_of(time.as_deref().unwrap_or_else(|| panic!("no {name} in {message:?}")))
        };
        let came_due = settling.messages().filter(|message| time(message, "fired_at") >= time(message, "due"));
        let stored: HashSet<&str> = burst.iter().map(|record| record.id.as_str()).collect();
        let bursts = self.bursts.iter().flat_map(Burst::dues).filter(|(id, _)| stored.contains(id));
        let dues = came_due.map(|message| (message.id.clone(), time(message, "due")));
        dues.chain(bursts.map(|(id, due_ms)| (id.to_owned(), due_ms))).chain(probe.fired()).collect()
    }
}

/// The topics of the workload, with their partitions.
fn all_topics() -> impl Iterator<Item = (String, u32)> {
    topics(WORKERS).chain([ORDERS_TOPIC, BURST_TOPIC].map(|(topic, partitions)| (topic.to_owned(), partitions)))
}

/// Checks that no event reports a topic that acknowledges with one replica. Returns the number of events of each kind.
async fn check_events(client: &Client) -> String {
    let (events, _) = read_all(client, EVENTS_TOPIC, 0, 0).await;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for event in events {
        let payload = event.payload.unwrap_or_default();
        let kind = serde_json::from_str::<serde_json::Value>(&payload).unwrap()["kind"].as_str().unwrap().to_owned();
        assert_ne!(kind, NOT_DURABLE_EVENT, "{payload}");
        *counts.entry(kind).or_default() += 1;
    }
    format!("events: {counts:?}")
}

/// Waits until no hold is pending and the subscription has delivered everything.
async fn settle(client: &Client, subscription: &OutageSubscription) {
    let began = Instant::now();
    loop {
        let pending = match client.count_holds(&HoldFilter::default()).await {
            Ok(counts) if counts.count == 0 => None,
            Ok(counts) => Some(format!("{} holds are pending", counts.count)),
            Err(error) => Some(format!("holds: {error}")),
        };
        let remaining: Vec<String> = [pending, subscription.remaining(client).await].into_iter().flatten().collect();
        if remaining.is_empty() {
            return;
        }
        assert!(began.elapsed() < SETTLE_MAX, "not settled after {SETTLE_MAX:?}: {}", remaining.join("; "));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Checks that the server reads the same messages as the independent reader.
async fn check_same(client: &Client, (topic, partitions): (&str, u32), records: &[CommittedRecord]) {
    let mut read = Vec::new();
    for partition in 0..partitions {
        let (messages, _) = read_all(client, topic, partition, 0).await;
        read.extend(messages.into_iter().map(|message| (partition, message.offset, message.id)));
    }
    let stored: Vec<_> = records.iter().map(|each| (each.partition, each.offset, each.id.clone())).collect();
    assert!(read == stored, "the server reads {} messages of {topic}, kcat {}", read.len(), stored.len());
}

fn check_ids_differ(records: &[CommittedRecord]) {
    let mut ids = HashSet::new();
    for record in records {
        assert!(ids.insert((&record.topic, &record.id)), "{record:?} is stored twice");
    }
}

/// Checks the same for the topics of the holds, which the settling has read through the server.
fn check_holds(settling: &Settling, records: &[CommittedRecord]) {
    let read = settling.messages().map(|each| (each.topic.clone(), each.partition, each.offset, each.id.clone()));
    let mut read: Vec<_> = read.collect();
    let records = records.iter().filter(|record| !is_probe(&record.payload));
    let mut stored: Vec<_> =
        records.map(|each| (each.topic.clone(), each.partition, each.offset, each.id.clone())).collect();
    read.sort_unstable();
    stored.sort_unstable();
    assert!(read == stored, "the server reads {} fired holds, kcat {}", read.len(), stored.len());
}

/// Threads and resident memory in MiB of a process.
fn process_size(id: u32) -> (u64, u64) {
    const KIB_PER_MIB: u64 = 1024;
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    (field("Threads:"), field("VmRSS:") / KIB_PER_MIB)
}
