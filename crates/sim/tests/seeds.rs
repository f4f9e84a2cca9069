//! A fixed set of seeds for each kind of fault: every one must be clean, and the same seed must make the same run.

use whimbrel_sim::{Profile, ReportOf, run};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim` runs more.
const SEEDS: u64 = 60;

fn all_clean(profile: Profile) -> ReportOf<Profile> {
    let mut report = ReportOf::<Profile>::default();
    for seed in 0..SEEDS {
        match run(seed, profile) {
            Ok(one) => report.add(&one),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(
        report.counts.power_losses > SEEDS && report.counts.kills > 0 && report.counts.failed_openings > 0,
        "{report}"
    );
    assert!(report.counts.unknown_landed > 0 && report.counts.unknown_gone > 0, "{report}");
    report
}

#[test]
fn nothing_acknowledged_is_lost_to_power_losses_and_kills() {
    all_clean(Profile::Crashes);
}

#[test]
fn nothing_acknowledged_is_lost_to_errors_of_the_disk() {
    let report = all_clean(Profile::Errors);
    let injected = report.counts.injected;
    assert!(injected.read_errors > 0 && injected.write_errors > 0 && injected.sync_errors > 0, "{report}");
}

#[test]
fn nothing_acknowledged_is_lost_on_a_full_disk() {
    let report = all_clean(Profile::Full);
    assert!(report.counts.injected.refused_for_room > 0, "{report}");
}

#[test]
fn flipped_bits_are_reported_and_never_read_as_data() {
    let report = all_clean(Profile::Flips);
    assert!(report.counts.bits_flipped > 0 && report.counts.damage > 0, "{report}");
}

#[test]
fn all_faults_together_lose_nothing_acknowledged() {
    all_clean(Profile::Mixed);
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for profile in Profile::HONEST {
        for seed in [7, 8] {
            let (first, second) = (run(seed, profile), run(seed, profile));
            assert_eq!(first.expect("a clean run"), second.expect("a clean run"));
        }
    }
}
