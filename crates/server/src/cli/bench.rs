//! `whimbrel bench`: what is measured and with how much of it. The measuring is in `crate::bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;

#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Publish: rates and latencies beside the device's sync and the server's own /healthz
    Publish(BenchPublishArgs),
    /// Hold: how fast holds are taken, moved and fired, how late, and what many of them cost
    Hold(BenchHoldArgs),
    /// Deliver: how fast subscribers are called beside a bare client loop, how soon, and what a failing one costs others
    Deliver(BenchDeliverArgs),
    /// Connect: what idle devices cost, how fast they come, and how soon presence is right when all of them go
    Connect(BenchConnectArgs),
    /// Push: how fast and how soon people are reached, and what an inbox costs
    Push(BenchPushArgs),
    /// The devices of `connect` and `push`
    #[command(hide = true)]
    Crowd,
    /// What `deliver` calls: answers callbacks and counts them
    #[command(hide = true)]
    Sink,
}

/// What every bench takes.
#[derive(Debug, Clone, clap::Args)]
pub struct StageArgs {
    /// Measure a running server instead of a fresh one; its device cannot be told, so --data should be on the same one
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The API key of that server
    #[arg(long, value_name = "SECRET", env = "WHIMBREL_KEY", hide_env_values = true, requires = "server")]
    pub key: Option<String>,
    /// A folder on the device to measure; a temporary one is made in it and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,
    /// How long each measurement takes
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Threads of the load generator
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// A few seconds in all, to see that everything works
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
    /// How long each measurement of one and of a thousand partitions takes [default: as --seconds]
    #[arg(long, value_parser = seconds)]
    pub partition_seconds: Option<f64>,
    /// Only this round with its probes of the device, as often as needed [default: all of them]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<BenchRound>,
}

/// The rounds of `bench publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchRound {
    /// Single publishes over one connection, in turns with /healthz
    #[value(name = "singles-1")]
    Singles1,
    /// Single publishes over 64 connections, in turns with /healthz
    #[value(name = "singles-64")]
    Singles64,
    /// Single publishes over 256 connections, in turns with /healthz
    #[value(name = "singles-256")]
    Singles256,
    /// A steady rate
    Steady,
    /// NDJSON batches
    Batches,
    /// One and a thousand partitions in turns, singles and batches
    Partitions,
}

#[derive(Debug, clap::Args)]
pub struct BenchHoldArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Only this round, as often as needed [default: all of them]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<HoldRound>,
    /// Holds per second that are accepted and fired at the same time
    #[arg(long, value_name = "PER_SECOND", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub rate: u32,
    /// Holds that are pending while others are moved and taken back, and that come due in one second
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub pending: u32,
    /// Holds that memory and a restart are measured with, beside --pending
    #[arg(long, value_name = "COUNT", default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub pending_many: u32,
}

/// The rounds of `bench hold`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldRound {
    /// Holds accepted over 64 connections, and in batches
    Accept,
    /// A few holds on an idle server: how late they fire
    Idle,
    /// A steady rate accepted and fired at the same time: how late they fire
    Fire,
    /// Very many holds due in the same second, and publishes meanwhile
    Burst,
    /// Extending with very many pending
    Extend,
    /// Withdrawing with very many pending
    Withdraw,
    /// Resident memory with many and with very many pending, and a restart
    Pending,
}

#[derive(Debug, clap::Args)]
pub struct BenchDeliverArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Only this round, as often as needed [default: all of them]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<DeliverRound>,
    /// Messages of the backlog
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub backlog: u32,
}

/// The rounds of `bench deliver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DeliverRound {
    /// A steady rate: how soon a message reaches its subscriber
    Steady,
    /// Deliveries without order, in turns with a bare client loop
    None,
    /// Deliveries in the order of a thousand keys, in turns with a bare client loop
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
    /// Devices that are connected; each takes a file descriptor of both processes
    #[arg(long, value_name = "COUNT", default_value_t = 18_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub connections: u32,
}

#[derive(Debug, clap::Args)]
pub struct BenchPushArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Only this round, as often as needed [default: all of them]
    #[arg(long, value_name = "ROUND", value_enum)]
    pub only: Vec<PushRound>,
}

/// The rounds of `bench push`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PushRound {
    /// Pushes to devices that are there, kept for nobody
    Ephemeral,
    /// Pushes to devices that are there, stored and acknowledged
    Stored,
    /// A steady rate: how soon a push reaches its device
    Steady,
    /// The first page of a user with many stored messages
    Page,
    /// What a push to many inboxes costs on disk
    Fanout,
}

fn seconds(text: &str) -> Result<f64, String> {
    let refused = || "write a number of seconds from 0.1 to 3600".to_owned();
    text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds)).ok_or_else(refused)
}

pub fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
    match args.what {
        What::Publish(args) => crate::bench::publish(&args),
        What::Hold(args) => crate::bench::hold(&args),
        What::Deliver(args) => crate::bench::deliver(&args),
        What::Connect(args) => crate::bench::connect(&args),
        What::Push(args) => crate::bench::push(&args),
        What::Crowd => crate::bench::crowd(),
        What::Sink => crate::bench::sink(),
    }
}
