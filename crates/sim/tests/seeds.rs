//! The log: a fixed set of seeds for each kind of fault. Every one must be clean. For all parts: the same seed makes the same run.

use whimbrel_sim::{
    DeliveriesProfile, GrowthProfile, HoldsProfile, PeopleProfile, PresenceProfile, Profile, ReportOf, Simulation, run,
    run_all,
};

/// Enough to reach each kind of step many times, few enough for every test run. `whimbrel-sim` runs more.
const SEEDS: u64 = 60;

fn all_clean(profile: Profile) -> ReportOf<Profile> {
    let report = run_all(0..SEEDS, profile).unwrap_or_else(|failure| panic!("{failure}"));
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

fn runs_twice_alike<S: Simulation>(seed: u64) {
    for profile in S::clean() {
        let [first, second] = [(); 2].map(|()| run(seed, profile).expect("a clean run"));
        assert_eq!(first, second, "{} of {}", profile.name(), S::PART);
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    runs_twice_alike::<Profile>(7);
    runs_twice_alike::<Profile>(8);
    runs_twice_alike::<HoldsProfile>(3);
    runs_twice_alike::<DeliveriesProfile>(3);
    runs_twice_alike::<PresenceProfile>(3);
    runs_twice_alike::<PeopleProfile>(3);
    runs_twice_alike::<GrowthProfile>(3);
}
