//! A fixed set of seeds for each kind of fault: every one must be clean, and the same seed must make the same run.

use whimbrel_sim::{HoldsProfile, HoldsReport, run_holds};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim --what holds` runs more.
const SEEDS: u64 = 6;

fn all_clean(profile: HoldsProfile) -> HoldsReport {
    let mut report = HoldsReport::default();
    for seed in 0..SEEDS {
        match run_holds(seed, profile) {
            Ok(one) => report.add(&one),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(report.fired > 0 && report.withdrawn > 0 && report.dead > 0 && report.moved > 0, "{report}");
    assert!(report.trims > 0 && report.carried > 0 && report.answered > 0, "{report}");
    report
}

#[test]
fn every_hold_ends_once_through_crashes_and_unknown_outcomes() {
    let report = all_clean(HoldsProfile::Crashes);
    assert!(report.crashes > 0 && report.unknown_commits > 0, "{report}");
}

#[test]
fn every_hold_ends_once_with_several_owners_at_once() {
    let report = all_clean(HoldsProfile::Zombies);
    assert!(report.takeovers > SEEDS, "{report}");
}

#[test]
fn every_hold_ends_once_on_a_store_that_loses_writes_and_fails() {
    let report = all_clean(HoldsProfile::Store);
    assert!(report.store_falls > 0, "{report}");
}

#[test]
fn no_hold_is_early_when_clocks_jump() {
    let report = all_clean(HoldsProfile::Clock);
    assert!(report.clock_steps > SEEDS, "{report}");
}

#[test]
fn every_hold_ends_once_with_all_faults_together() {
    let report = all_clean(HoldsProfile::Mixed);
    assert!(report.crashes > 0 && report.takeovers > 0 && report.store_falls > 0, "{report}");
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for profile in HoldsProfile::ALL {
        let (first, second) = (run_holds(3, profile), run_holds(3, profile));
        assert_eq!(first.expect("a clean run"), second.expect("a clean run"));
    }
}
