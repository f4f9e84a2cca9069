//! What time and bounds take away is told, and holds nobody up.

use bytes::Bytes;
use whimbrel_model::people::PlatformSettings;
use whimbrel_model::ports::Resume;
use whimbrel_model::push::{PushMessage, PushTask};
use whimbrel_model::{Record, StoredRecord, Timestamp};

use super::super::Letter;
use super::{World, epoch, message};

#[test]
fn what_expired_is_not_tried_again_and_the_session_goes_on() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    for _ in 0..4 {
        world.push_message(PushMessage { store: true, ttl_ms: Some(5_000), ..message(&["u"]) }, "old");
    }
    world.push(&["u"], "new");
    assert_eq!(world.told(1).len(), 5, "its window is full");
    world.wait(10_000);
    let Some(Letter::Hold { task, .. }) = world.letters.pop() else { panic!("a retry is held") };
    world.append(&task, "");
    assert_eq!(world.told(1), ["new 5 after 4"]);
}

#[test]
fn what_expired_before_it_was_handled_is_told_as_lost() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.gone(1, "u");
    let task = PushTask::Message(PushMessage { store: true, ttl_ms: Some(10), ..message(&["u"]) });
    let headers = task.headers().take();
    let record = Record { key: None, value: Bytes::new(), headers, timestamp: Timestamp::from_millis(0) };
    world.now = 1_000;
    world.log.push(StoredRecord { offset: 0, record });
    world.push(&["u"], "a");
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2)[1..], ["lost 1 to 1", "a 2 after 1"]);
}

#[test]
fn a_device_that_was_somebody_elses_does_not_resume_with_what_it_had_then() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.push(&["v"], "b");
    world.arrive(1, "v", "web", Some(Resume { epoch: epoch("u"), cursor: 2 }));
    assert_eq!(world.told(1), ["admitted other_epoch at 0 head 2", "b 2 after 0"]);
}

#[test]
fn one_user_has_so_many_sessions_and_no_more() {
    let mut world = World::new();
    for session in 1..=40 {
        world.wait(1);
        world.arrive(session, "u", &format!("p{session}"), None);
    }
    assert_eq!(world.core.sessions(), crate::carrier::user_box::SEATS_MAX);
    assert_eq!(world.told(1).len(), 2, "the oldest is told");
}

#[test]
fn a_clock_that_is_set_back_by_an_hour_holds_up_neither_saving_nor_retries() {
    let mut world = World::new();
    world.wait(7_200_000);
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.now -= 3_600_000;
    world.push(&["u"], "b");
    world.wait(200);
    assert_eq!(world.store.applied, 2, "it is saved as ever");
    world.wait(10_000);
    assert!(matches!(world.letters[..], [Letter::Hold { .. }]), "it did not acknowledge, and is tried again");
}

#[test]
fn who_lost_something_is_told_before_what_comes_after_it() {
    let mut world = World::with(PlatformSettings { max_stored: 2, ..PlatformSettings::default() });
    world.arrive(1, "u", "web", None);
    world.gone(1, "u");
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 2);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2)[1..], ["lost 1 to 2", "c 3 after 2", "d 4 after 3"]);
}

#[test]
fn what_expires_while_a_seat_is_behind_is_told_before_what_comes_after_it() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.push_message(PushMessage { store: true, ttl_ms: Some(500), ..message(&["u"]) }, "e");
    world.push(&["u"], "f");
    world.wait(1_000);
    world.told(1);
    world.ack(1, "u", 4);
    assert_eq!(world.told(1), ["lost 5 to 5", "f 6 after 5"]);
}
