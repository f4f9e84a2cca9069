//! A fixed set of seeds for each kind of fault: every one must be clean, and the same seed must make the same run.

use whimbrel_sim::{HoldsProfile, ReportOf, run};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim --what holds` runs more.
const SEEDS: u64 = 6;

fn all_clean(profile: HoldsProfile) -> ReportOf<HoldsProfile> {
    let mut report = ReportOf::<HoldsProfile>::default();
    for seed in 0..SEEDS {
        match run(seed, profile) {
            Ok(one) => report.add(&one),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(
        report.counts.fired > 0 && report.counts.withdrawn > 0 && report.counts.dead > 0 && report.counts.moved > 0,
        "{report}"
    );
    assert!(report.counts.trims > 0 && report.counts.carried > 0 && report.counts.answered > 0, "{report}");
    report
}

#[test]
fn every_hold_ends_once_through_crashes_and_unknown_outcomes() {
    let report = all_clean(HoldsProfile::Crashes);
    assert!(report.counts.crashes > 0 && report.counts.unknown_commits > 0, "{report}");
}

#[test]
fn every_hold_ends_once_with_several_owners_at_once() {
    let report = all_clean(HoldsProfile::Zombies);
    assert!(report.counts.takeovers > SEEDS, "{report}");
}

#[test]
fn every_hold_ends_once_on_a_store_that_loses_writes_and_fails() {
    let report = all_clean(HoldsProfile::Store);
    assert!(report.counts.store_falls > 0, "{report}");
}

#[test]
fn no_hold_is_early_when_clocks_jump() {
    let report = all_clean(HoldsProfile::Clock);
    assert!(report.counts.clock_steps > SEEDS, "{report}");
}

#[test]
fn every_hold_ends_once_with_all_faults_together() {
    let report = all_clean(HoldsProfile::Mixed);
    assert!(report.counts.crashes > 0 && report.counts.takeovers > 0 && report.counts.store_falls > 0, "{report}");
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for profile in HoldsProfile::ALL {
        let (first, second) = (run(3, profile), run(3, profile));
        assert_eq!(first.expect("a clean run"), second.expect("a clean run"));
    }
}
