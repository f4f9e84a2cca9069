//! The checker has teeth: a disk that lies, and data that changed with its checksum, are found out.

use whimbrel_sim::{Failure, Profile, run};

const SEEDS: u64 = 40;

fn failures(profile: Profile) -> Vec<Failure> {
    let failures: Vec<Failure> =
        (0..SEEDS).filter_map(|seed| run(seed, profile).err()).map(|failure| *failure).collect();
    let panicked = failures.iter().find(|failure| failure.message.starts_with("a panic"));
    assert!(panicked.is_none(), "the checker finds it, not an accident: {panicked:?}");
    failures
}

#[test]
fn a_sync_that_does_nothing_is_found_out() {
    let failures = failures(Profile::LyingSync);
    assert!(failures.len() as u64 > SEEDS / 2, "{} of {SEEDS}", failures.len());
    let lost = failures.iter().filter(|failure| failure.message.contains("were acknowledged"));
    assert!(lost.count() > 0, "acknowledged records that are gone are said to be: {failures:?}");
}

/// This is what a log that checked no CRC would let through: the bytes are wrong and nothing in the log can tell.
#[test]
fn data_that_changed_together_with_its_checksum_is_found_out() {
    let failures = failures(Profile::ResealedFlips);
    assert!(failures.len() as u64 > SEEDS / 2, "{} of {SEEDS}", failures.len());
    let wrong = failures.iter().filter(|failure| failure.message.contains("instead of Some(Entry"));
    assert!(wrong.count() > 0, "wrong data is said to be wrong data: {failures:?}");
}

#[test]
fn a_failure_names_its_seed_and_replays() {
    let first = failures(Profile::LyingSync).swap_remove(0);
    let again = run(first.seed, Profile::LyingSync).expect_err("the same seed fails again");
    assert_eq!((again.message.as_str(), &again.trace), (first.message.as_str(), &first.trace));
    assert!(first.to_string().contains(&format!("--seed {} --fault lying-sync", first.seed)), "{first}");
}
