//! The sessions that a kick ends, if they are announced before it, after it, or to another owner.

use whimbrel_model::people::{CloseCode, Platform, SessionId};
use whimbrel_model::ports::ToCarrier;
use whimbrel_model::push::{PushKick, PushTask};

use super::{GATEWAY, World, uid};
use crate::carrier::partition::{CarrierEffect, CarrierInput};
use crate::carrier::user_box::KICK_KEPT;

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
    world.announce_since(1, 900);
    assert_eq!(world.told(1), ["kick kicked bye"]);
    assert_eq!(world.core.sessions(), 0);
}

#[test]
fn a_kick_does_not_end_a_session_that_arrived_after_it() {
    let mut world = World::new();
    world.take_over();
    world.append(&kick(None, None), "");
    world.wait(500);
    world.announce_since(1, 100);
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
        // By its gateway's clock the second session arrived after the kick, but the kick names it.
        world.announce_since(session, if session == 1 { 0 } else { 5_000 });
    }
    assert!(world.told(1).is_empty(), "another platform, and another session");
    assert_eq!(world.told(2), ["kick kicked bye"]);
}

#[test]
fn a_kick_is_removed_after_every_session_had_time_to_be_announced() {
    let mut world = World::new();
    world.wait(1_000);
    world.append(&kick(None, None), "");
    world.wait(i64::try_from(KICK_KEPT.as_millis()).unwrap());
    world.announce_since(1, 0);
    assert_eq!(world.core.sessions(), 1);
}

#[test]
fn a_kick_is_removed_in_time_after_the_clock_was_set_back() {
    let kept = i64::try_from(KICK_KEPT.as_millis()).unwrap();
    let mut world = World::new();
    world.wait(10 * kept);
    world.arrive(1, "u", "ios", None);
    world.append(&kick(Some("web"), None), "");
    world.wait(-5 * kept);
    world.wait(kept);
    world.announce_since(2, world.now);
    assert_eq!(world.core.sessions(), 2);
}

#[test]
fn a_saved_kick_whose_message_was_lost_ends_its_session_at_the_next_owner() {
    let mut world = World::connected();
    world.append(&kick(None, None), "");
    world.wait(1_000);
    assert_eq!(world.store.applied, 1, "the next owner does not fold it again");
    world.news.clear();
    for _ in 0..2 {
        // Also if the next owner dies.
        world.take_over();
        world.announce_since(1, 0);
        assert_eq!(world.told(1), ["kick kicked bye"]);
        world.wait(1_000);
    }
}

#[test]
fn a_wipe_does_not_undo_a_kick() {
    let mut world = World::new();
    world.append(&kick(None, None), "");
    world.append(&PushTask::Wipe { uid: "u".into() }, "");
    world.wait(1_000);
    world.take_over();
    world.announce_since(1, 0);
    assert_eq!(world.told(1), ["kick kicked bye"]);
}

#[test]
fn a_refolded_kick_does_not_end_a_session_that_arrived_after_it() {
    let mut world = World::connected();
    world.append(&kick(None, None), "");
    world.wait(50);
    assert_eq!(world.store.applied, 0, "nothing is saved yet");
    // Its device connects again, and the session is announced to the next owner before that owner reads the log.
    let log = std::mem::take(&mut world.log);
    world.take_over();
    world.step(CarrierInput::Started { applied: 0, first: 0, end: log.len() as u64 });
    for (session, at) in [(1, 0), (2, world.now)] {
        let mut there = world.announcement_since(session, at);
        if let CarrierInput::From { messages, .. } = &mut there
            && let Some(ToCarrier::Announce(announced)) = messages.first_mut()
            && session == 1
        {
            announced.arrival.platform = Platform::new("ios").unwrap();
        }
        world.step(there);
    }
    world.news.clear();
    world.log = log;
    let from = world.reading.take().expect("a read waits at the end of the log");
    world.perform(CarrierEffect::Read { from });
    assert_eq!((world.told(1), world.told(2)), (vec!["kick kicked bye".to_owned()], vec![]));
}

#[test]
fn an_expired_kick_leaves_nothing_in_store_or_memory() {
    let mut world = World::new();
    world.append(&kick(None, None), "");
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.core.users_in_memory()), (1, 0));
    world.wait(i64::try_from(KICK_KEPT.as_millis()).unwrap());
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.core.users_in_memory()), (0, 0));
}

#[test]
fn a_kick_has_a_reason_and_ends_only_the_platform_that_it_names() {
    let mut world = World::connected();
    world.arrive(2, "u", "ios", None);
    world.append(&kick(Some("web"), None), "");
    assert_eq!((world.told(1)[1].as_str(), world.told(2).len()), ("kick kicked bye", 1));
    assert_eq!(CloseCode::Kicked.number(), 4002);
}
