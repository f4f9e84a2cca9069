//! The arguments of the benchmarks.

use std::path::PathBuf;
use std::process::ExitCode;

use super::BenchError;
use super::{deliver, hold, people, publish};

#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Publish: rates and latencies, compared with the device's sync and the server's own /healthz
    Publish(BenchPublishArgs),
    /// Hold: rates of accepting, extending and firing holds, lateness, and the cost of many pending holds
    Hold(BenchHoldArgs),
    /// Deliver: callback rates compared with a bare client loop, latency, and the cost of a failing endpoint for others
    Deliver(BenchDeliverArgs),
    /// Connect: cost of idle devices, connection rate, and time until presence is correct after all disconnect
    Connect(BenchConnectArgs),
    /// Push: rate and latency of pushes, and the cost of an inbox
    Push(BenchPushArgs),
    /// The devices of `connect` and `push`
    #[command(hide = true)]
    Crowd,
    /// The endpoint of `deliver`: answers callbacks and counts them
    #[command(hide = true)]
    Sink,
}

/// The arguments of every benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct StageArgs {
    /// Measure a running server instead of a fresh one; its device is unknown, so --data should be on the same device
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The API key of that server
    #[arg(long, value_name = "SECRET", env = "WHIMBREL_KEY", hide_env_values = true, requires = "server")]
    pub key: Option<String>,
    /// A folder on the device to measure; a temporary folder is created in it and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Threads of the load generator
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// A short run of a few seconds, to test that everything works
    #[arg(long)]
    pub quick: bool,
    /// A setting of the fresh server, as often as needed: --set workers=1
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "server")]
    pub set: Vec<String>,
    /// Print JSON for programs
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct BenchPublishArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Duration of each measurement of one and of a thousand partitions [default: as --seconds]
    #[arg(long, value_parser = seconds)]
    pub partition_seconds: Option<f64>,
    /// Run only this round with its probes of the device, as often as needed [default: all rounds]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<BenchRound>,
}

/// The rounds of `bench publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchRound {
    /// Single publishes over one connection, alternating with /healthz
    #[value(name = "singles-1")]
    Singles1,
    /// Single publishes over 64 connections, alternating with /healthz
    #[value(name = "singles-64")]
    Singles64,
    /// Single publishes over 256 connections, alternating with /healthz
    #[value(name = "singles-256")]
    Singles256,
    /// A steady rate
    Steady,
    /// NDJSON batches
    Batches,
    /// One and a thousand partitions alternating, singles and batches
    Partitions,
}

#[derive(Debug, clap::Args)]
pub struct BenchHoldArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Run only this round, as often as needed [default: all rounds]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<HoldRound>,
    /// Holds per second, accepted and fired at the same time
    #[arg(long, value_name = "PER_SECOND", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub rate: u32,
    /// Pending holds while others are extended and withdrawn; also the holds that come due in one second
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub pending: u32,
    /// Pending holds for the measurement of memory and restart, in addition to --pending
    #[arg(long, value_name = "COUNT", default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub pending_many: u32,
}

/// The rounds of `bench hold`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldRound {
    /// Holds accepted over 64 connections, and in batches
    Accept,
    /// A few holds on an idle server: lateness
    Idle,
    /// A steady rate, accepted and fired at the same time: lateness
    Fire,
    /// Very many holds due in the same second, with publishes at the same time
    Burst,
    /// Extending with very many pending holds
    Extend,
    /// Withdrawing with very many pending holds
    Withdraw,
    /// Resident memory with many and with very many pending holds, and a restart
    Pending,
}

#[derive(Debug, clap::Args)]
pub struct BenchDeliverArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Run only this round, as often as needed [default: all rounds]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<DeliverRound>,
    /// Messages in the backlog
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub backlog: u32,
}

/// The rounds of `bench deliver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DeliverRound {
    /// A steady rate: delivery latency
    Steady,
    /// Deliveries without order, alternating with a bare client loop
    None,
    /// Deliveries in the order of a thousand keys, alternating with a bare client loop
    Key,
    /// Deliveries beside a subscription whose endpoint hangs
    Hang,
    /// Four keys while a fifth fails
    Badkey,
    /// Catching up with a large backlog
    Backlog,
}

#[derive(Debug, clap::Args)]
pub struct BenchConnectArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Connected devices; each takes a file descriptor of both processes
    #[arg(long, value_name = "COUNT", default_value_t = 18_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub connections: u32,
}

#[derive(Debug, clap::Args)]
pub struct BenchPushArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Run only this round, as often as needed [default: all rounds]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<PushRound>,
}

/// The rounds of `bench push`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PushRound {
    /// Ephemeral pushes to connected devices
    Ephemeral,
    /// Stored and acknowledged pushes to connected devices
    Stored,
    /// A steady rate: push latency
    Steady,
    /// The first page of a user with many stored messages
    Page,
    /// Disk space of a push to many inboxes
    Fanout,
}

fn seconds(text: &str) -> Result<f64, String> {
    let refused = || "expected a number of seconds from 0.1 to 3600".to_owned();
    text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds)).ok_or_else(refused)
}

pub fn run(args: BenchArgs) -> Result<ExitCode, BenchError> {
    match args.what {
        BenchCommand::Publish(args) => publish::publish(&args),
        BenchCommand::Hold(args) => hold::hold(&args),
        BenchCommand::Deliver(args) => deliver::deliver(&args),
        BenchCommand::Connect(args) => people::connect(&args),
        BenchCommand::Push(args) => people::push(&args),
        BenchCommand::Crowd => people::crowd::run(),
        BenchCommand::Sink => deliver::sink::run(),
    }
}
