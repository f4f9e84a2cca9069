//! Runs seeds of the simulator: `whimbrel-sim --seeds 10000`; or repeats one of them: `whimbrel-sim --seed 17 --trace`. `--what holds`
//! simulates the owners of holds, `--what deliveries` those of subscriptions, `--what presence` gateways and presence writers, `--what
//! people` carriers with inboxes, gateways and devices, `--what growth` nodes that grow a topic.

use std::fmt::Display;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use whimbrel_sim::{
    DeliveriesProfile, GrowthProfile, HoldsProfile, PeopleProfile, PresenceProfile, Profile, ReportOf, RunFailure,
    Simulation, run, run_traced,
};

/// Failures that are printed completely. A broken build fails on most seeds.
const FAILURES_PRINTED: usize = 3;
/// Failures that are listed at the end.
const FAILURES_LISTED: usize = 20;

#[derive(Parser)]
#[command(
    about = "Simulates Whimbrel by seed: the embedded log on a faulty disk, the owners of holds or subscriptions on a faulty log and store, or presence and pushes on faulty networks."
)]
struct Arguments {
    /// The part to simulate
    #[arg(long, value_enum, default_value_t = Part::Log)]
    what: Part,
    /// Number of seeds for each kind of fault
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// One seed only
    #[arg(long)]
    seed: Option<u64>,
    /// Print each step
    #[arg(long)]
    trace: bool,
    /// Kinds of faults. Log: crashes, errors, full, flips, mixed; or a deliberate breakage: lying-sync, resealed-flips. Holds: crashes,
    /// zombies, store, clock, mixed. Deliveries: endpoint, crashes, zombies, store, seeks, topics, mixed. Presence: network, outages,
    /// writers, deaths, leases, unheard, mixed; or a deliberate breakage: no-dedupe, no-gaps, no-void, old-news. People: devices, crashes,
    /// zombies, links, gateways, store, clock, mixed; or a deliberate breakage: no-gaps, sent-is-acked, lost-writes, double-release,
    /// no-announce, no-kicks. Growth: stale, partitions, frozen, unknown, crashes, mixed; or a deliberate breakage: unconfirmed, no-lease,
    /// early-ack, reopen, stale-join, blind-reader, hasty-reader. Default: all except the breakages
    #[arg(long)]
    fault: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Log,
    Holds,
    Deliveries,
    Presence,
    People,
    Growth,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic becomes a failure with its seed. A backtrace would only separate the failures.
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => arguments.from..arguments.from + arguments.seeds,
    };
    let failed = match arguments.what {
        Part::Log => simulate::<Profile>(&arguments, &seeds),
        Part::Holds => simulate::<HoldsProfile>(&arguments, &seeds),
        Part::Presence => simulate::<PresenceProfile>(&arguments, &seeds),
        Part::People => simulate::<PeopleProfile>(&arguments, &seeds),
        Part::Growth => simulate::<GrowthProfile>(&arguments, &seeds),
        Part::Deliveries => simulate::<DeliveriesProfile>(&arguments, &seeds),
    };
    match failed {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("unknown kind of fault `{fault}`; see --help");
            ExitCode::from(2)
        }
    }
}

/// Runs the requested kind of fault of a part, or each of them. Returns the number of failed seeds.
fn simulate<S>(arguments: &Arguments, seeds: &Range<u64>) -> Result<u64, String>
where
    S: Simulation,
    ReportOf<S>: Display + Default,
{
    let one = if arguments.trace { run_traced::<S> } else { run::<S> };
    let all = |profile: S| all(profile, seeds.clone(), |seed| one(seed, profile));
    match &arguments.fault {
        Some(name) => S::from_str(name, false).map(all).map_err(|_| name.to_owned()),
        None => Ok(S::clean().map(all).sum()),
    }
}

/// Runs all seeds of one kind of fault. Returns the number of failed seeds.
fn all<S>(profile: S, seeds: Range<u64>, run: impl Fn(u64) -> Result<ReportOf<S>, Box<RunFailure<S>>>) -> u64
where
    S: Simulation,
    ReportOf<S>: Display + Default,
{
    let (name, began, count) = (profile.name(), Instant::now(), seeds.end - seeds.start);
    let (mut report, mut failed) = (ReportOf::<S>::default(), Vec::new());
    for seed in seeds {
        match run(seed) {
            Ok(one) => report.add(&one),
            Err(failure) => {
                if failed.len() < FAILURES_PRINTED {
                    eprintln!("{failure}\n");
                }
                failed.push(seed);
            }
        }
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    println!("{name}: {} failed, {rate:.0} seeds/s\n{report}\n", failed.len());
    if !failed.is_empty() {
        eprintln!("{name} failed: {:?}", &failed[..failed.len().min(FAILURES_LISTED)]);
    }
    failed.len() as u64
}
