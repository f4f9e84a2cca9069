//! Runs seeds of the simulator: `whimbrel-sim --seeds 10000`, or one of them again: `whimbrel-sim --seed 17 --trace`.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use whimbrel_sim::{Profile, Report, run, run_traced};

/// Failures that are printed whole; a broken log fails on most seeds.
const FAILURES_PRINTED: usize = 3;

#[derive(Parser)]
#[command(about = "Runs the embedded log on a simulated disk that fails, by seed.")]
struct Arguments {
    /// How many seeds to run, for each kind of fault
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
    /// crashes, errors, full, flips, mixed; or a deliberate breakage: lying-sync, resealed-flips. All but the breakages where
    /// it is left out
    #[arg(long, value_parser = parse_profile)]
    fault: Option<Profile>,
}

fn parse_profile(name: &str) -> Result<Profile, String> {
    Profile::by_name(name).ok_or_else(|| format!("there is no kind of fault `{name}`"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic becomes a failure with its seed; its backtrace would only stand between them.
    std::panic::set_hook(Box::new(|_| {}));
    let profiles = arguments.fault.map_or_else(|| Profile::HONEST.to_vec(), |profile| vec![profile]);
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => arguments.from..arguments.from + arguments.seeds,
    };
    let mut failed = Vec::new();
    for profile in profiles {
        let began = Instant::now();
        let mut report = Report::default();
        let mut failed_here = 0;
        for seed in seeds.clone() {
            let outcome = if arguments.trace { run_traced(seed, profile) } else { run(seed, profile) };
            match outcome {
                Ok(one) => report.add(&one),
                Err(failure) => {
                    if failed.len() < FAILURES_PRINTED {
                        eprintln!("{failure}\n");
                    }
                    failed_here += 1;
                    failed.push(failure);
                }
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let rate = (report.seeds + failed_here) as f64 / seconds;
        println!("{}: {failed_here} failed, {rate:.0} seeds/s\n{report}\n", profile.name());
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    for failure in failed.iter().take(20) {
        eprintln!("{} {}: {}", failure.profile.name(), failure.seed, failure.message);
    }
    ExitCode::FAILURE
}
