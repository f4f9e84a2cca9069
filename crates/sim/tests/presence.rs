//! Presence: a fixed set of seeds for each kind of fault, each clean, and breakages that must be detected.

use whimbrel_sim::{PresenceProfile, ReportOf, Simulation as _, run, run_all};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim --what presence` runs more.
const SEEDS: u64 = 20;

fn all_clean(profile: PresenceProfile) -> ReportOf<PresenceProfile> {
    let report = run_all(0..SEEDS, profile).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(
        report.counts.news > 0 && report.counts.gaps > 0 && report.counts.pictures > 0 && report.counts.repeated > 0,
        "{report}"
    );
    report
}

#[test]
fn every_writer_shows_the_truth_on_a_network_that_loses_repeats_and_reorders() {
    let report = all_clean(PresenceProfile::Network);
    assert!(report.counts.lost > 1_000 * SEEDS && report.counts.unanswered > 0, "{report}");
}

#[test]
fn writers_catch_up_after_cut_paths() {
    let report = all_clean(PresenceProfile::Outages);
    assert!(report.counts.outages > SEEDS, "{report}");
}

#[test]
fn a_writer_that_restarts_fetches_new_snapshots() {
    let report = all_clean(PresenceProfile::Writers);
    assert!(report.counts.restarts > SEEDS, "{report}");
}

#[test]
fn no_session_of_a_dead_gateway_is_shown() {
    let report = all_clean(PresenceProfile::Deaths);
    assert!(report.counts.deaths > SEEDS, "{report}");
}

#[test]
fn a_gateway_that_lost_its_lease_is_void_and_rejoins_under_a_new_id() {
    let report = all_clean(PresenceProfile::Leases);
    assert!(report.counts.leases_lost > SEEDS && report.counts.refused > 0, "{report}");
}

#[test]
fn an_unreachable_gateway_is_fresh_only_as_of_its_last_packet() {
    let report = all_clean(PresenceProfile::Unheard);
    assert!(report.counts.unreachable > SEEDS && report.counts.fresh > 0 && report.counts.not_fresh > 0, "{report}");
}

#[test]
fn all_faults_together_violate_no_rule() {
    let report = all_clean(PresenceProfile::Mixed);
    assert!(
        report.counts.restarts > 0
            && report.counts.deaths > 0
            && report.counts.leases_lost > 0
            && report.counts.outages > 0,
        "{report}"
    );
}

#[test]
fn every_breakage_is_detected() {
    for profile in PresenceProfile::BROKEN.iter().copied() {
        let found = (0..SEEDS).filter(|seed| run(*seed, profile).is_err()).count();
        assert!(found as u64 > SEEDS / 2, "{}: {found} of {SEEDS} seeds", profile.name());
    }
}
