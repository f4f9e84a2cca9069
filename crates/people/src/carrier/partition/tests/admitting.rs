//! Who may be there, and who has to leave for it.

use std::sync::Arc;

use whimbrel_model::SessionsRule;
use whimbrel_model::people::PlatformSettings;

use super::super::Input;
use super::super::admitting::REPLACED;
use super::{GATEWAY, World};

#[test]
fn of_two_sessions_of_a_platform_the_newer_one_stays_and_the_older_one_is_told() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(1)[1], format!("kick replaced {}", REPLACED));
    world.push(&["u"], "a");
    assert_eq!((world.told(1).len(), world.told(2).len()), (0, 2));
}

#[test]
fn a_platform_that_rejects_lets_no_second_session_in() {
    let mut world = World::with(PlatformSettings { sessions: SessionsRule::Reject, ..PlatformSettings::default() });
    world.arrive(1, "u", "web", None);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2), ["rejected rejected"]);
    world.gone(1, "u");
    world.arrive(3, "u", "web", None);
    assert_eq!(world.told(3).len(), 1, "the place is free again");
}

#[test]
fn beyond_the_number_of_a_platform_with_many_the_oldest_goes() {
    let mut world = World::with(PlatformSettings { sessions: SessionsRule::Many(2), ..PlatformSettings::default() });
    for session in 1..=3 {
        world.wait(10);
        world.arrive(session, "u", "web", None);
    }
    assert_eq!(world.told(1).len(), 2);
    world.push(&["u"], "a");
    assert_eq!((world.told(2).len(), world.told(3).len()), (2, 2), "each device has a seat of its own");
}

#[test]
fn sessions_of_a_gateway_that_died_are_over_at_once() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.step(Input::Living(Arc::new(vec![GATEWAY])));
    assert_eq!(world.core.sessions(), 1);
    world.step(Input::Living(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 0);
}

#[test]
fn a_gateway_that_speaks_before_it_is_shown_is_not_taken_for_dead() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.step(Input::Living(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 1);
    world.now += 10_000;
    world.step(Input::Living(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 0, "it had its time to be shown");
}
