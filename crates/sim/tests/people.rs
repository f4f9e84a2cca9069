//! People: a fixed set of seeds for each kind of fault, each clean, and breakages that must be detected.

use whimbrel_sim::{PeopleProfile, ReportOf, Simulation as _, run, run_all};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim --what people` runs more.
const SEEDS: u64 = 8;
/// The number of seeds within which a breakage must be detected.
const BREAKAGE_SEEDS: u64 = 20;

fn all_clean(profile: PeopleProfile) -> ReportOf<PeopleProfile> {
    let report = run_all(0..SEEDS, profile).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(
        report.counts.seen > 0
            && report.counts.seen_again > 0
            && report.counts.truncated > 0
            && report.counts.resumed > 0,
        "{report}"
    );
    assert!(
        report.counts.ephemeral > 0 && report.counts.kicks > 0 && report.counts.holds > 0 && report.counts.acks > 0,
        "{report}"
    );
    report
}

#[test]
fn every_seat_receives_everything_in_order_for_any_behaviour_of_its_devices() {
    let report = all_clean(PeopleProfile::Devices);
    assert!(report.counts.no_acks > 0, "{report}");
}

#[test]
fn a_carrier_that_crashes_loses_nothing() {
    let report = all_clean(PeopleProfile::Crashes);
    assert!(report.counts.faults.owners > 2 * SEEDS && report.counts.faults.kicks_cut_off > 0, "{report}");
}

#[test]
fn a_replaced_carrier_that_continues_does_no_harm() {
    let report = all_clean(PeopleProfile::Zombies);
    assert!(report.counts.faults.zombies > 2 * SEEDS && report.counts.faults.older_epochs > 0, "{report}");
}

#[test]
fn messages_lost_with_a_link_are_sent_again() {
    let report = all_clean(PeopleProfile::Links);
    assert!(report.counts.faults.breaks > 5 * SEEDS && report.counts.faults.gaps > 0, "{report}");
}

#[test]
fn gateways_that_die_or_lose_their_leases_lose_nothing() {
    let report = all_clean(PeopleProfile::Gateways);
    assert!(report.counts.faults.deaths > SEEDS && report.counts.faults.leases > SEEDS, "{report}");
}

#[test]
fn a_store_that_fails_falls_back_or_is_lost_is_rebuilt_from_the_log() {
    let report = all_clean(PeopleProfile::Store);
    assert!(report.counts.faults.store_errors > 0 && report.counts.faults.fall_backs > 0, "{report}");
}

#[test]
fn a_clock_that_jumps_loses_nothing() {
    let report = all_clean(PeopleProfile::Clock);
    assert!(report.counts.faults.jumps > 2 * SEEDS, "{report}");
}

#[test]
fn all_faults_together_violate_no_rule() {
    all_clean(PeopleProfile::Mixed);
}

#[test]
fn every_breakage_is_detected() {
    for profile in PeopleProfile::BROKEN.iter().copied() {
        let found = (0..BREAKAGE_SEEDS).any(|seed| run(seed, profile).is_err());
        assert!(found, "{} was not detected within {BREAKAGE_SEEDS} seeds", profile.name());
    }
}
