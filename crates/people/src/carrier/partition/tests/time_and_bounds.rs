//! Losses by expiry and by bounds are reported, and delay nothing else.

use bytes::Bytes;
use whimbrel_model::people::PlatformSettings;
use whimbrel_model::ports::Resume;
use whimbrel_model::push::{PushMessage, PushTask};
use whimbrel_model::{Record, StoredRecord, Timestamp};

use super::{World, epoch, message};
use crate::carrier::partition::CarrierRecord;

#[test]
fn expired_messages_are_not_retried_and_the_session_continues() {
    let mut world = World::connected();
    for _ in 0..4 {
        world.push_message(PushMessage { store: true, ttl_ms: Some(5_000), ..message(&["u"]) }, "old");
    }
    world.push(&["u"], "new");
    assert_eq!(world.told(1).len(), 5, "its window is full");
    world.wait(10_000);
    let Some(CarrierRecord::Hold { task, .. }) = world.outbound.pop() else { panic!("no retry is held") };
    world.append(&task, "");
    assert_eq!(world.told(1), ["new 5 after 4"]);
}

#[test]
fn a_message_that_expired_before_its_fold_is_reported_as_lost() {
    let mut world = World::connected();
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
fn a_device_does_not_resume_the_position_of_another_user() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.push(&["v"], "b");
    world.arrive(1, "v", "web", Some(Resume { epoch: epoch("u"), cursor: 2 }));
    assert_eq!(world.told(1), ["admitted other_epoch at 0 head 2", "b 2 after 0"]);
}

#[test]
fn the_number_of_sessions_of_one_user_is_bounded() {
    let mut world = World::new();
    for session in 1..=40 {
        world.wait(1);
        world.arrive(session, "u", &format!("p{session}"), None);
    }
    assert_eq!(world.core.sessions(), crate::carrier::user_box::SEATS_MAX);
    assert_eq!(world.told(1).len(), 2, "the oldest session is kicked");
}

#[test]
fn a_clock_that_is_set_back_by_an_hour_delays_neither_saves_nor_retries() {
    let mut world = World::new();
    world.wait(7_200_000);
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.now -= 3_600_000;
    world.push(&["u"], "b");
    world.wait(200);
    assert_eq!(world.store.applied, 2, "the save is on time");
    world.wait(10_000);
    assert!(matches!(world.outbound[..], [CarrierRecord::Hold { .. }]), "the unacknowledged message is retried");
}

#[test]
fn a_loss_is_reported_before_the_next_message() {
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
fn a_message_that_expires_in_the_backlog_is_reported_before_the_next_one() {
    let mut world = World::connected();
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.push_message(PushMessage { store: true, ttl_ms: Some(500), ..message(&["u"]) }, "e");
    world.push(&["u"], "f");
    world.wait(1_000);
    world.told(1);
    world.ack(1, "u", 4);
    assert_eq!(world.told(1), ["lost 5 to 5", "f 6 after 5"]);
}
