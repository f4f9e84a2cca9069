//! The plan of an outage round, made from its seed: the brokers, the server's timeouts, and the faults with their nodes and times.

use std::fmt;
use std::time::Duration;

use super::random::Random;

/// How long the workload runs before a fault, in milliseconds.
const WORK_MS: (i64, i64) = (500, 2500);
/// How long a node is down or frozen, in milliseconds. The range contains the session timeout of a broker, 2 s.
const DOWN_MS: (i64, i64) = (0, 5000);
/// The same in the short rounds of every test run.
const SHORT_WORK_MS: (i64, i64) = (300, 1000);
const SHORT_DOWN_MS: (i64, i64) = (0, 1500);
/// A recovery above this fails the short rounds. They run beside other tests on a busy machine, where brokers and server wait for a core;
/// `scripts/outages`, which has the machine to itself, has a tighter limit.
const SHORT_RECOVERY_MAX: Duration = Duration::from_secs(30);
/// Separates the random numbers of a plan from those of other tests with the same seed.
const PLAN_SALT: u64 = 0x6f75_7461_6765;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// SIGKILL, then a start.
    Kill,
    /// SIGTERM, then a start.
    Restart,
    /// SIGSTOP, then SIGCONT.
    Freeze,
    /// Every partition gets another leader.
    LeaderMove,
    /// SIGKILL, an emptied and formatted disk, then a start.
    DiskLoss,
    /// SIGKILL of the broker that coordinates the transactions of a shard, while that shard commits; then a start.
    CoordinatorKill,
    /// SIGKILL of a broker; when the other two are in sync, SIGSTOP of one of them, until the third one is the only one in sync. A message
    /// is then on one replica, where two are required. At the end both brokers return. The fault begins even if not all three are in sync.
    TwoBrokers,
}

impl FaultKind {
    const OF_ONE_BROKER: [Self; 4] = [Self::Kill, Self::Restart, Self::Freeze, Self::CoordinatorKill];
    const OF_THREE_BROKERS: [Self; 7] = [
        Self::Kill,
        Self::Restart,
        Self::Freeze,
        Self::LeaderMove,
        Self::DiskLoss,
        Self::CoordinatorKill,
        Self::TwoBrokers,
    ];
}

#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub kind: FaultKind,
    /// The failing node; unused by faults that choose it by its role.
    pub node: i32,
    pub work_ms: u64,
    pub down_ms: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, node, down_ms, .. } = self;
        match kind {
            FaultKind::Kill => write!(f, "kill-{node}"),
            FaultKind::Restart => write!(f, "restart-{node}"),
            FaultKind::Freeze => write!(f, "freeze-{node}-{down_ms}ms"),
            FaultKind::LeaderMove => write!(f, "leaders"),
            FaultKind::DiskLoss => write!(f, "disk-{node}"),
            FaultKind::CoordinatorKill => write!(f, "coordinator"),
            FaultKind::TwoBrokers => write!(f, "two-{node}"),
        }
    }
}

#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub brokers: usize,
    /// Whether the server waits for Kafka so briefly that calls end without an answer, or as long as by default.
    pub has_short_timeouts: bool,
    pub faults: Vec<Fault>,
    /// A longer recovery fails the round. `None` only prints the recovery times.
    pub recovery_max: Option<Duration>,
    /// The source of choices during the round.
    pub random: Random,
}

impl Plan {
    /// The seed chooses the number of brokers, unless it is given.
    pub fn of(seed: u64, brokers: Option<usize>, faults: u64) -> Self {
        let mut random = Random(seed ^ PLAN_SALT);
        let chosen = if random.one_in(2) { 1 } else { 3 };
        let brokers = brokers.unwrap_or(chosen);
        let has_short_timeouts = random.one_in(2);
        let kinds = if brokers == 1 { &FaultKind::OF_ONE_BROKER[..] } else { &FaultKind::OF_THREE_BROKERS[..] };
        let kinds: Vec<FaultKind> = (0..faults).map(|_| kinds[random.below(kinds.len() as u64) as usize]).collect();
        let faults = kinds.into_iter().map(|kind| fault(kind, brokers, WORK_MS, DOWN_MS, &mut random)).collect();
        Self { seed, brokers, has_short_timeouts, faults, recovery_max: None, random }
    }

    /// A short round with these faults.
    pub fn short(seed: u64, brokers: usize, kinds: &[FaultKind]) -> Self {
        let mut random = Random(seed ^ PLAN_SALT);
        let faults =
            kinds.iter().map(|kind| fault(*kind, brokers, SHORT_WORK_MS, SHORT_DOWN_MS, &mut random)).collect();
        Self { seed, brokers, has_short_timeouts: true, faults, recovery_max: Some(SHORT_RECOVERY_MAX), random }
    }

    /// The server's settings that vary from round to round.
    pub fn settings(&self) -> Vec<String> {
        let short = ["kafka.message_timeout=2s", "kafka.transaction_timeout=3s", "kafka.request_timeout=2s"];
        // A frozen broker writes a request after it is thawed, when the server has stopped waiting for it. A repeat under the same key
        // must look for the message after that: the lease is longer than the message timeout and the longest freeze together. With three
        // brokers a freeze can last longer, until the failover is measured; the frozen broker then leads nothing, and Kafka drops its write.
        let short = short.into_iter().chain(["receipts.lease=10s"]);
        short.filter(|_| self.has_short_timeouts).map(str::to_owned).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timeouts = if self.has_short_timeouts { "short" } else { "default" };
        let faults: Vec<String> = self.faults.iter().map(Fault::to_string).collect();
        write!(f, "{}\t{}\t{timeouts}\t{}", self.seed, self.brokers, faults.join(" "))
    }
}

fn fault(kind: FaultKind, brokers: usize, work_ms: (i64, i64), down_ms: (i64, i64), random: &mut Random) -> Fault {
    Fault {
        kind,
        node: 1 + random.below(brokers as u64) as i32,
        work_ms: random.between(work_ms.0, work_ms.1).unsigned_abs(),
        down_ms: random.between(down_ms.0, down_ms.1).unsigned_abs(),
    }
}
