//! Admission of sessions, and the sessions that must end for it.

use std::sync::Arc;

use whimbrel_model::SessionsRule;

use super::{GATEWAY, World};
use crate::carrier::partition::CarrierInput;
use crate::carrier::partition::admission::REPLACED;

#[test]
fn a_second_session_of_a_platform_replaces_the_first_with_a_kick() {
    let mut world = World::connected();
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(1)[1], format!("kick replaced {}", REPLACED));
    world.push(&["u"], "a");
    assert_eq!((world.told(1).len(), world.told(2).len()), (0, 2));
}

#[test]
fn the_reject_rule_rejects_a_second_session() {
    let mut world = World::with_sessions(SessionsRule::Reject);
    world.arrive(1, "u", "web", None);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2), ["rejected rejected"]);
    world.gone(1, "u");
    world.arrive(3, "u", "web", None);
    assert_eq!(world.told(3).len(), 1, "the first session has left");
}

#[test]
fn a_session_beyond_the_limit_of_many_replaces_the_oldest() {
    let mut world = World::with_sessions(SessionsRule::Many(2));
    for session in 1..=3 {
        world.wait(10);
        world.arrive(session, "u", "web", None);
    }
    assert_eq!(world.told(1).len(), 2);
    world.push(&["u"], "a");
    assert_eq!((world.told(2).len(), world.told(3).len()), (2, 2), "each device has a seat of its own");
}

#[test]
fn sessions_of_a_dead_gateway_end_at_once() {
    let mut world = World::connected();
    world.step(CarrierInput::LiveGateways(Arc::new(vec![GATEWAY])));
    assert_eq!(world.core.sessions(), 1);
    world.step(CarrierInput::LiveGateways(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 0);
}

#[test]
fn a_gateway_that_sends_before_it_is_listed_does_not_count_as_dead() {
    let mut world = World::connected();
    world.step(CarrierInput::LiveGateways(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 1);
    world.now += 10_000;
    world.step(CarrierInput::LiveGateways(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 0, "its time to be listed is over");
}
