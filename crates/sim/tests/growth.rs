//! Growths of a topic that several nodes share: a fixed set of seeds for each kind of fault, which must all be clean, and breakages that
//! the simulator must detect.

use whimbrel_sim::{GrowthProfile, ReportOf, Simulation as _, run, run_all};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim --what growth` runs more.
const SEEDS: u64 = 30;

fn all_clean(profile: GrowthProfile) -> ReportOf<GrowthProfile> {
    let report = run_all(0..SEEDS, profile).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(
        report.counts.acknowledged > 100 * SEEDS && report.counts.finished > SEEDS && report.counts.pages > SEEDS,
        "{report}"
    );
    report
}

#[test]
fn a_growth_waits_for_nodes_that_see_it_late_or_is_rolled_back() {
    let report = all_clean(GrowthProfile::Stale);
    assert!(report.counts.rolled_back > 0, "{report}");
}

#[test]
fn nodes_that_are_cut_off_reject_keys_and_are_not_awaited() {
    let report = all_clean(GrowthProfile::Partitions);
    assert!(report.counts.sessions_lost > SEEDS && report.counts.refused > SEEDS, "{report}");
}

#[test]
fn appends_that_a_node_sends_after_a_pause_are_not_acknowledged() {
    let report = all_clean(GrowthProfile::Frozen);
    assert!(report.counts.sessions_lost > SEEDS && report.counts.unknown > SEEDS, "{report}");
}

#[test]
fn writes_with_unknown_outcome_keep_the_gates_closed_until_the_entry_is_read() {
    let report = all_clean(GrowthProfile::Unknown);
    assert!(report.counts.finished > SEEDS, "{report}");
}

#[test]
fn another_node_ends_the_growth_of_a_crashed_one() {
    let report = all_clean(GrowthProfile::Crashes);
    assert!(report.counts.crashes > SEEDS && report.counts.taken_over > 0, "{report}");
}

#[test]
fn all_faults_together_violate_no_rule() {
    let report = all_clean(GrowthProfile::Mixed);
    assert!(report.counts.crashes > 0 && report.counts.sessions_lost > 0 && report.counts.taken_over > 0, "{report}");
}

#[test]
fn each_rule_is_needed() {
    for profile in GrowthProfile::BROKEN.iter().copied() {
        let found = (0..SEEDS).filter(|seed| run(*seed, profile).is_err()).count();
        assert!(found as u64 > SEEDS / 10, "{}: {found} of {SEEDS} seeds", profile.name());
    }
}
