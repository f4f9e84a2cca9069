//! What a new owner makes of a store of another log, of kicks, and of sessions that it is told of one after the other.

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Platform, PlatformSettings, SessionId, SessionsRule};
use whimbrel_model::ports::{Arrival, PeopleAsk, PeopleTold, ToCarrier};
use whimbrel_model::push::{PushKick, PushTask};

use super::super::kicking::KICK_KEPT;
use super::super::{Effect, Input};
use super::{GATEWAY, World, uid};

/// A world whose store is far ahead of a log that begins again: one device had acknowledged all but the last message.
fn with_a_store_of_another_log() -> World {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
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
fn nothing_of_a_store_of_another_log_is_shown_or_sent() {
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
fn what_comes_while_a_store_of_another_log_is_emptied_waits_for_it() {
    let mut world = with_a_store_of_another_log();
    world.push(&["u"], "x");
    let (applied, end) = (world.store.applied, 1);
    let (settings, rules) = (world.settings.clone(), world.rules.clone());
    let now = Timestamp::from_millis(world.now);
    world.core = super::Partition::new(settings, rules, 2, super::EPOCH.into(), now);
    world.reading = None;
    let effects = world.only(Input::Started { applied, first: 0, end });
    let (mut writes, others): (Vec<_>, Vec<_>) =
        effects.into_iter().partition(|effect| matches!(effect, Effect::Apply(_)));
    let Some(Effect::Apply(reset)) = writes.pop() else { panic!("it is emptied before anything else") };
    assert!(reset.reset && reset.changes.is_empty() && reset.applied == 0);
    world.perform_all(others);
    world.arrive(2, "u", "web", None);
    let what = PeopleAsk::Inbox { uid: uid("u"), platform: None, after: 0, limit: 10 };
    world.step(Input::Asked { ask: 1, what, end: 1 });
    world.wait(1_000);
    assert!(world.news.is_empty() && world.answers.is_empty(), "nobody knows yet what is stored");
    world.perform(Effect::Apply(reset));
    assert_eq!(world.told(2).last().map(String::as_str), Some("x 1 after 0"));
    let Some(PeopleTold::Inbox(view)) = world.answers.pop() else { panic!("it is answered") };
    assert_eq!(view.stored, 1);
}

/// What the owner is told of a session that came at `at`.
fn announced(world: &World, session: u64, at: i64) -> Input {
    let Input::From { gateway, mut messages } = world.announce(session, "u", "web", 0, 0) else { unreachable!() };
    if let ToCarrier::Announce(announced) = &mut messages[0] {
        announced.arrival.at = Timestamp::from_millis(at);
    }
    Input::From { gateway, messages }
}

fn kick(platform: Option<&str>, session: Option<SessionId>) -> PushTask {
    let platform = platform.map(|name| Platform::new(name).unwrap());
    PushTask::Kick(PushKick {
        uid: "u".into(),
        platform,
        session: session.map(|id| id.to_string()),
        reason: "bye".into(),
    })
}

#[test]
fn a_kick_that_is_folded_before_its_session_is_announced_still_ends_it() {
    let mut world = World::new();
    world.wait(1_000);
    world.take_over();
    world.append(&kick(None, None), "");
    world.wait(500);
    let came_before = announced(&world, 1, 900);
    world.step(came_before);
    assert_eq!(world.told(1), ["kick kicked bye"]);
    assert_eq!(world.core.sessions(), 0);
}

#[test]
fn a_kick_does_not_end_a_session_that_came_after_it() {
    let mut world = World::new();
    world.take_over();
    world.append(&kick(None, None), "");
    world.wait(500);
    let came_after = announced(&world, 1, 100);
    world.step(came_after);
    assert!(world.told(1).is_empty());
    assert_eq!(world.core.sessions(), 1);
}

#[test]
fn an_early_kick_ends_only_the_sessions_that_it_names() {
    let mut world = World::new();
    world.wait(1_000);
    world.take_over();
    world.append(&kick(Some("ios"), None), "");
    world.append(&kick(None, Some(SessionId { gateway: GATEWAY, number: 2 })), "");
    for session in [1, 2] {
        // By the clock of its gateway the second came after the kick; the kick names it all the same.
        let came = announced(&world, session, if session == 1 { 0 } else { 5_000 });
        world.step(came);
    }
    assert!(world.told(1).is_empty(), "of another platform, and another session");
    assert_eq!(world.told(2), ["kick kicked bye"]);
}

#[test]
fn a_kick_is_forgotten_when_everybody_had_the_time_to_be_announced() {
    let mut world = World::new();
    world.wait(1_000);
    world.append(&kick(None, None), "");
    world.wait(i64::try_from(KICK_KEPT.as_millis()).unwrap());
    let came_before = announced(&world, 1, 0);
    world.step(came_before);
    assert_eq!(world.core.sessions(), 1);
}

#[test]
fn a_kick_is_forgotten_in_time_although_the_clock_was_set_back() {
    let mut world = World::new();
    world.wait(1_000_000);
    world.append(&kick(None, None), "");
    world.wait(-500_000);
    world.wait(i64::try_from(KICK_KEPT.as_millis()).unwrap());
    let came_after = announced(&world, 1, world.now);
    world.step(came_after);
    assert_eq!(world.core.sessions(), 1);
}

const OTHER: GatewayId = GatewayId { node: 2, incarnation: 7 };

fn that_rejects() -> World {
    World::with(PlatformSettings { sessions: SessionsRule::Reject, ..PlatformSettings::default() })
}

#[test]
fn where_a_second_session_is_rejected_the_one_that_came_first_is_kept_by_a_new_owner() {
    let mut world = that_rejects();
    world.wait(1_000);
    world.take_over();
    // A second one comes to the new owner before it knows of the first.
    let intruder = Arrival { session: 2, ..world.arrival(2, "u", "web", None) };
    world.step(Input::From { gateway: OTHER, messages: vec![ToCarrier::Arrive(Box::new(intruder))] });
    let first = announced(&world, 1, 10);
    world.step(first);
    assert!(world.told(1).is_empty(), "it was there first");
    assert_eq!(world.told(2).last().map(|told| told.starts_with("kick rejected")), Some(true));
    world.push(&["u"], "a");
    assert_eq!((world.told(1).len(), world.told(2).len()), (1, 0));
}

#[test]
fn where_a_second_session_is_rejected_a_later_one_that_is_announced_is_rejected_too() {
    let mut world = that_rejects();
    world.wait(1_000);
    world.take_over();
    for (session, at) in [(1, 10), (2, 20)] {
        let came = announced(&world, session, at);
        world.step(came);
    }
    assert!(world.told(1).is_empty());
    assert_eq!(world.told(2).first().map(|told| told.starts_with("kick rejected")), Some(true));
    assert_eq!(world.core.sessions(), 1);
}
