//! A new owner with a store of another log, and with sessions that are announced one after the other.

use whimbrel_model::people::{GatewayId, SessionsRule};
use whimbrel_model::ports::{AnnouncedSession, Arrival, AtOffset, PeopleQuery, ToCarrier};

use super::{GATEWAY, World, epoch, uid};
use crate::carrier::partition::{CarrierEffect, CarrierInput};

/// A world whose store is far ahead of a new log. One device has acknowledged all but the last message.
fn with_a_store_of_another_log() -> World {
    let mut world = World::connected();
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.ack(1, "u", 3);
    world.gone(1, "u");
    world.wait(1_000);
    assert_eq!((world.store.applied, world.store.own.len()), (4, 1));
    world.log.clear();
    world.news.clear();
    world
}

#[test]
fn a_store_of_another_log_is_neither_shown_nor_sent() {
    let mut world = with_a_store_of_another_log();
    world.take_over();
    world.arrive(2, "u", "web", None);
    world.push(&["u"], "x");
    world.push(&["u"], "y");
    assert_eq!(world.told(2), ["admitted anew at 0 head 0", "x 1 after 0", "y 2 after 1"]);
    world.wait(1_000);
    assert_eq!((world.store.applied, world.store.own.len(), world.store.boxes.len()), (2, 2, 1));
}

#[test]
fn work_waits_while_a_store_of_another_log_is_emptied() {
    let mut world = with_a_store_of_another_log();
    world.push(&["u"], "x");
    let effects = world.begin_to_take_over();
    let (mut writes, others): (Vec<_>, Vec<_>) =
        effects.into_iter().partition(|effect| matches!(effect, CarrierEffect::Apply(_)));
    let Some(CarrierEffect::Apply(reset)) = writes.pop() else { panic!("the first effect must be the reset") };
    assert!(reset.reset && reset.changes.is_empty() && reset.applied == 0);
    world.perform_all(others);
    world.arrive(2, "u", "web", None);
    let what = PeopleQuery::Inbox { uid: uid("u"), platform: None, after: 0, limit: 10 };
    world.step(CarrierInput::Query { ask: 1, what, end: 1 });
    world.wait(1_000);
    assert!(world.news.is_empty() && world.answers.is_empty(), "the contents of the store are not settled yet");
    world.perform(CarrierEffect::Apply(reset));
    assert_eq!(world.told(2).last().map(String::as_str), Some("x 1 after 0"));
    assert_eq!(world.viewed().stored, 1);
}

const OTHER: GatewayId = GatewayId { node: 2, incarnation: 7 };

#[test]
fn under_reject_a_new_owner_keeps_the_session_that_arrived_first() {
    let mut world = World::with_sessions(SessionsRule::Reject);
    world.wait(1_000);
    world.take_over();
    // The second session arrives at the new owner before the first is announced.
    let intruder = Arrival { session: 2, ..world.arrival(2, "u", "web", None) };
    world.step(CarrierInput::From { gateway: OTHER, messages: vec![ToCarrier::Arrive(Box::new(intruder))] });
    world.announce_since(1, 10);
    assert!(world.told(1).is_empty(), "it arrived first");
    assert_eq!(world.told(2).last().map(|told| told.starts_with("kick rejected")), Some(true));
    world.push(&["u"], "a");
    assert_eq!((world.told(1).len(), world.told(2).len()), (1, 0));
}

#[test]
fn under_reject_a_later_session_that_is_announced_is_rejected_too() {
    let mut world = World::with_sessions(SessionsRule::Reject);
    world.wait(1_000);
    world.take_over();
    for (session, at) in [(1, 10), (2, 20)] {
        world.announce_since(session, at);
    }
    assert!(world.told(1).is_empty());
    assert_eq!(world.told(2).first().map(|told| told.starts_with("kick rejected")), Some(true));
    assert_eq!(world.core.sessions(), 1);
}

#[test]
fn a_new_owner_continues_from_the_announced_positions() {
    let mut world = World::connected();
    world.push(&["u"], "a");
    world.push(&["u"], "b");
    world.wait(1_000);
    world.push(&["u"], "c");
    world.told(1);
    let arrival = world.arrival(1, "u", "web", None);
    world.take_over();
    world.push(&["u"], "d");
    let announced = AnnouncedSession { arrival, epoch: (&*epoch("u")).into(), sent: 2, acked: 1 };
    world.from(vec![ToCarrier::Announce(Box::new(announced))]);
    assert_eq!(world.told(1), ["c 3 after 2", "d 4 after 3"]);
    world.ack(1, "u", 4);
    world.wait(1_000);
    assert!(world.store.own.is_empty());
}

#[test]
fn an_acknowledgement_of_a_session_whose_announcement_is_queued_counts() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.push(&["u"], "b");
    world.wait(1_000);
    world.take_over();
    let announced = world.announcement(1, "u", "web", 2, 0);
    let effects = world.only(announced);
    assert!(matches!(effects[..], [CarrierEffect::Load { .. }]), "its box must be loaded");
    world.ack(1, "u", 2);
    world.perform_all(effects);
    world.wait(1_000);
    assert!(world.store.own.is_empty());
}

#[test]
fn a_page_requested_before_an_announcement_is_discarded() {
    let mut world = World::new();
    world.arrive(9, "u", "ios", None);
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(1_000);
    let arrival = world.arrival(1, "u", "web", None);
    let mut effects =
        world.only(CarrierInput::From { gateway: GATEWAY, messages: vec![ToCarrier::Arrive(Box::new(arrival))] });
    let row = |world: &World, seq: u64| world.store.own.get(&(uid("u"), seq)).cloned();
    let Some(CarrierEffect::Rows { token, .. }) = effects.pop() else { panic!("no page was requested") };
    let found = (1..=3).map(|seq| row(&world, seq)).collect();
    let mut effects = world.only(CarrierInput::Rows { token, found: Ok(AtOffset { applied: 4, found }) });
    let Some(CarrierEffect::Rows { token: second, .. }) = effects.pop() else { panic!("no second page was requested") };
    // The messages after the first one were lost between carrier and gateway.
    let announced = world.announcement(1, "u", "web", 1, 0);
    let third = world.only(announced);
    world.step(CarrierInput::Rows { token: second, found: Ok(AtOffset { applied: 4, found: vec![row(&world, 4)] }) });
    assert!(world.told(1).is_empty());
    world.perform_all(third);
    assert_eq!(world.told(1), ["b 2 after 1", "c 3 after 2", "d 4 after 3"]);
}

#[test]
fn a_message_of_an_earlier_owner_may_be_acknowledged() {
    let mut world = World::new();
    world.arrive(9, "u", "ios", None);
    world.push(&["u"], "a");
    world.wait(1_000);
    let announced = world.announcement(1, "u", "web", 0, 0);
    let reading = world.only(announced);
    world.ack(1, "u", 1);
    world.ack(9, "u", 1);
    world.perform_all(reading);
    world.wait(1_000);
    assert!(world.told(1).is_empty() && world.store.own.is_empty());
}
