//! A fixed set of seeds for each kind of fault. Every one must be clean.

use whimbrel_sim::{DeliveriesProfile, ReportOf, run_all};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim --what deliveries` runs more.
const SEEDS: u64 = 25;

fn all_clean(profile: DeliveriesProfile) -> ReportOf<DeliveriesProfile> {
    let report = run_all(0..SEEDS, profile).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(
        report.counts.taken > 0 && report.counts.held > 0 && report.counts.buried > 0 && report.counts.dropped > 0,
        "{report}"
    );
    report
}

#[test]
fn every_message_is_delivered_or_accounted_for_with_a_faulty_endpoint() {
    all_clean(DeliveriesProfile::Endpoint);
}

#[test]
fn nothing_is_lost_when_owners_crash_and_appends_fail() {
    let report = all_clean(DeliveriesProfile::Crashes);
    assert!(report.counts.crashes > SEEDS, "{report}");
}

#[test]
fn order_and_watermarks_hold_with_several_owners_at_once() {
    let report = all_clean(DeliveriesProfile::Zombies);
    assert!(report.counts.takeovers > SEEDS, "{report}");
}

#[test]
fn a_store_that_loses_writes_costs_only_repeats() {
    let report = all_clean(DeliveriesProfile::Store);
    assert!(report.counts.store_falls > SEEDS, "{report}");
}

#[test]
fn a_seek_is_not_affected_by_messages_in_flight_before_it() {
    let report = all_clean(DeliveriesProfile::Seeks);
    assert!(report.counts.seeks > SEEDS, "{report}");
}

#[test]
fn a_keys_order_survives_the_growth_of_its_topic_and_retention() {
    let report = all_clean(DeliveriesProfile::Topics);
    assert!(report.counts.growths > 0 && report.counts.trims > SEEDS, "{report}");
}

#[test]
fn all_faults_together_violate_no_rule() {
    let report = all_clean(DeliveriesProfile::Mixed);
    assert!(
        report.counts.crashes > 0
            && report.counts.takeovers > 0
            && report.counts.seeks > 0
            && report.counts.growths > 0,
        "{report}"
    );
}
