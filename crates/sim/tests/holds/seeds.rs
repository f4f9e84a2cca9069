//! A fixed set of seeds for each kind of fault. Every one must be clean.

use whimbrel_sim::{HoldsProfile, ReportOf, run_all};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim --what holds` runs more.
const SEEDS: u64 = 6;

fn all_clean(profile: HoldsProfile) -> ReportOf<HoldsProfile> {
    let report = run_all(0..SEEDS, profile).unwrap_or_else(|failure| panic!("{failure}"));
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
