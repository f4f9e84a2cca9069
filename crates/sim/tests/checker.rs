//! The checker detects violations: a disk that lies about syncs, and data that changed with its checksum.

use whimbrel_sim::{Profile, RunFailure, run};

const SEEDS: u64 = 40;

fn failures(profile: Profile) -> Vec<RunFailure<Profile>> {
    let failures: Vec<RunFailure<Profile>> =
        (0..SEEDS).filter_map(|seed| run(seed, profile).err()).map(|failure| *failure).collect();
    let panicked = failures.iter().find(|failure| failure.message.starts_with("a panic"));
    assert!(panicked.is_none(), "the checker must find it, not a panic: {panicked:?}");
    failures
}

#[test]
fn a_sync_that_does_nothing_is_detected() {
    let failures = failures(Profile::LyingSync);
    assert!(failures.len() as u64 > SEEDS / 2, "{} of {SEEDS}", failures.len());
    let lost = failures.iter().filter(|failure| failure.message.contains("were acknowledged"));
    assert!(lost.count() > 0, "the loss of acknowledged records is reported: {failures:?}");
}

/// A log without CRC checks would accept this: the bytes are wrong, and the log cannot detect it.
#[test]
fn data_that_changed_together_with_its_checksum_is_detected() {
    let failures = failures(Profile::ResealedFlips);
    assert!(failures.len() as u64 > SEEDS / 2, "{} of {SEEDS}", failures.len());
    let wrong = failures.iter().filter(|failure| failure.message.contains("instead of Some(ModelRecord"));
    assert!(wrong.count() > 0, "wrong data is reported: {failures:?}");
}

#[test]
fn a_failure_names_its_seed_and_can_be_repeated() {
    let first = failures(Profile::LyingSync).swap_remove(0);
    let again = run(first.seed, Profile::LyingSync).expect_err("the same seed fails again");
    assert_eq!((again.message.as_str(), &again.trace), (first.message.as_str(), &first.trace));
    assert!(first.to_string().contains(&format!("--seed {} --fault lying-sync", first.seed)), "{first}");
}
