//! Whom a kick ends, when its sessions are told to an owner before it, after it, or to another owner.

use whimbrel_model::people::{CloseCode, Platform, SessionId};
use whimbrel_model::ports::ToCarrier;
use whimbrel_model::push::{PushKick, PushTask};

use super::super::super::user_box::KICK_KEPT;
use super::super::{Effect, Input};
use super::{GATEWAY, World, uid};

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
    let came_before = world.announce_since(1, 900);
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
    let came_after = world.announce_since(1, 100);
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
        let came = world.announce_since(session, if session == 1 { 0 } else { 5_000 });
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
    let came_before = world.announce_since(1, 0);
    world.step(came_before);
    assert_eq!(world.core.sessions(), 1);
}

#[test]
fn a_kick_is_forgotten_in_time_although_the_clock_was_set_back() {
    let kept = i64::try_from(KICK_KEPT.as_millis()).unwrap();
    let mut world = World::new();
    world.wait(10 * kept);
    world.arrive(1, "u", "ios", None);
    world.append(&kick(Some("web"), None), "");
    world.wait(-5 * kept);
    world.wait(kept);
    let came_after = world.announce_since(2, world.now);
    world.step(came_after);
    assert_eq!(world.core.sessions(), 2);
}

#[test]
fn a_kick_that_was_saved_and_not_told_before_its_owner_died_ends_its_session_at_the_next() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.append(&kick(None, None), "");
    world.wait(1_000);
    assert_eq!(world.store.applied, 1, "the next owner does not fold it again");
    world.news.clear();
    for _ in 0..2 {
        // Nor does it help that the next one dies as well.
        world.take_over();
        let still_there = world.announce_since(1, 0);
        world.step(still_there);
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
    let still_there = world.announce_since(1, 0);
    world.step(still_there);
    assert_eq!(world.told(1), ["kick kicked bye"]);
}

#[test]
fn a_kick_that_is_folded_again_does_not_end_a_session_that_came_after_it() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.append(&kick(None, None), "");
    world.wait(50);
    assert_eq!(world.store.applied, 0, "nothing is saved yet");
    // Its device signs in again. The next owner hears of that before it has read anything.
    let log = std::mem::take(&mut world.log);
    world.take_over();
    world.step(Input::Started { applied: 0, first: 0, end: log.len() as u64 });
    for (session, at) in [(1, 0), (2, world.now)] {
        let mut there = world.announce_since(session, at);
        if let Input::From { messages, .. } = &mut there
            && let Some(ToCarrier::Announce(announced)) = messages.first_mut()
            && session == 1
        {
            announced.arrival.platform = Platform::new("ios").unwrap();
        }
        world.step(there);
    }
    world.news.clear();
    world.log = log;
    let from = world.reading.take().expect("it reads at the end");
    world.perform(Effect::Read { from });
    assert_eq!((world.told(1), world.told(2)), (vec!["kick kicked bye".to_owned()], vec![]));
}

#[test]
fn nothing_is_left_of_a_kick_when_its_time_is_over() {
    let mut world = World::new();
    world.append(&kick(None, None), "");
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.core.users_in_memory()), (1, 0));
    world.wait(i64::try_from(KICK_KEPT.as_millis()).unwrap());
    world.step(Input::Reclaimable(vec![uid("u")]));
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.core.users_in_memory()), (0, 0));
}

#[test]
fn a_kick_says_why_and_is_for_whom_it_names() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.arrive(2, "u", "ios", None);
    let platform = Some(Platform::new("web").unwrap());
    let kick = PushKick { uid: "u".into(), platform, session: None, reason: "bye".into() };
    world.append(&PushTask::Kick(kick), "");
    assert_eq!((world.told(1)[1].as_str(), world.told(2).len()), ("kick kicked bye", 1));
    assert_eq!(CloseCode::Kicked.number(), 4002);
}
