//! Presence: a fixed set of seeds for each kind of trouble, each clean, and breakages that must be found out.

use whimbrel_sim::{PresenceProfile, PresenceReport, run_presence};

/// Enough to meet each kind of step many times, few enough for every test run; `whimbrel-sim --what presence` runs more.
const SEEDS: u64 = 20;

fn all_clean(profile: PresenceProfile) -> PresenceReport {
    let mut report = PresenceReport::default();
    for seed in 0..SEEDS {
        match run_presence(seed, profile) {
            Ok(one) => report.add(&one),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(report.news > 0 && report.gaps > 0 && report.pictures > 0 && report.repeated > 0, "{report}");
    report
}

#[test]
fn every_writer_shows_the_truth_whatever_the_network_loses_repeats_and_reorders() {
    let report = all_clean(PresenceProfile::Network);
    assert!(report.lost > 1_000 * SEEDS && report.unanswered > 0, "{report}");
}

#[test]
fn paths_that_are_cut_are_made_up_for() {
    let report = all_clean(PresenceProfile::Outages);
    assert!(report.outages > SEEDS, "{report}");
}

#[test]
fn a_writer_that_restarts_draws_its_picture_anew() {
    let report = all_clean(PresenceProfile::Writers);
    assert!(report.restarts > SEEDS, "{report}");
}

#[test]
fn nothing_is_shown_of_a_gateway_that_died() {
    let report = all_clean(PresenceProfile::Deaths);
    assert!(report.deaths > SEEDS, "{report}");
}

#[test]
fn a_gateway_that_lost_its_lease_is_void_and_comes_back_as_another() {
    let report = all_clean(PresenceProfile::Leases);
    assert!(report.leases_lost > SEEDS && report.refused > 0, "{report}");
}

#[test]
fn who_cannot_be_heard_is_told_of_as_of_when_it_was_heard_or_not_at_all() {
    let report = all_clean(PresenceProfile::Unheard);
    assert!(report.unheard > SEEDS && report.fresh > 0 && report.not_fresh > 0, "{report}");
}

#[test]
fn all_of_it_holds_together() {
    let report = all_clean(PresenceProfile::Mixed);
    assert!(report.restarts > 0 && report.deaths > 0 && report.leases_lost > 0 && report.outages > 0, "{report}");
}

#[test]
fn a_writer_without_dedupe_or_gaps_that_shows_what_is_void_or_takes_old_news_for_new_is_found_out() {
    for profile in PresenceProfile::BREAKAGES {
        let found = (0..SEEDS).filter(|seed| run_presence(*seed, profile).is_err()).count();
        assert!(found as u64 > SEEDS / 2, "{}: {found} of {SEEDS} seeds", profile.name());
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for profile in PresenceProfile::ALL {
        let (first, second) = (run_presence(3, profile), run_presence(3, profile));
        assert_eq!(first.expect("a clean run"), second.expect("a clean run"));
    }
}
