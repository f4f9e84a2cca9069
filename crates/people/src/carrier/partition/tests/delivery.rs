//! Delivery: which messages a session receives, in which order, from which position.

use whimbrel_model::people::PlatformSettings;
use whimbrel_model::ports::{PeopleQuery, Resume};

use super::{World, epoch, message, uid};
use crate::carrier::partition::{CarrierInput, CarrierRecord};

#[test]
fn a_stored_message_is_delivered_and_removed_when_acknowledged() {
    let mut world = World::connected();
    world.push(&["u"], "a");
    assert_eq!(world.told(1), ["admitted anew at 0 head 0", "a 1 after 0"]);
    world.ack(1, "u", 1);
    world.wait(1_000);
    assert_eq!((world.store.applied, world.store.own.len()), (1, 0), "it never reached the store");
}

#[test]
fn a_returning_device_gets_its_backlog_in_order_and_then_new_messages() {
    let mut world = World::new();
    for body in ["a", "b", "c", "d", "e", "f"] {
        world.push(&["u"], body);
    }
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 6);
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1)[1..], ["a 1 after 0", "b 2 after 1", "c 3 after 2", "d 4 after 3"], "its window is full");
    world.push(&["u"], "g");
    assert!(world.told(1).is_empty());
    world.ack(1, "u", 2);
    assert_eq!(world.told(1), ["e 5 after 4", "f 6 after 5"]);
    world.ack(1, "u", 6);
    assert_eq!(world.told(1), ["g 7 after 6"]);
    world.ack(1, "u", 7);
    world.wait(1_000);
    assert!(world.store.own.is_empty());
}

#[test]
fn resuming_continues_without_gap_or_repeat() {
    let mut world = World::connected();
    ["a", "b", "c"].into_iter().for_each(|body| world.push(&["u"], body));
    world.told(1);
    // It has read all three. Its acknowledgement was lost with the connection.
    world.gone(1, "u");
    world.push(&["u"], "d");
    world.arrive(2, "u", "web", Some(Resume { epoch: epoch("u"), cursor: 3 }));
    assert_eq!(world.told(2), ["admitted resumed at 3 head 4", "d 4 after 3"]);
}

#[test]
fn an_unknown_epoch_or_a_cursor_ahead_of_the_log_is_not_resumed() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.arrive(1, "u", "web", Some(Resume { epoch: "x".into(), cursor: 1 }));
    assert_eq!(world.told(1), ["admitted other_epoch at 0 head 1", "a 1 after 0"]);
    world.arrive(2, "u", "ios", Some(Resume { epoch: epoch("u"), cursor: 99 }));
    assert_eq!(world.told(2), ["admitted cursor_ahead at 0 head 1", "a 1 after 0"]);
}

#[test]
fn an_ephemeral_message_reaches_only_connected_sessions() {
    let mut world = World::connected();
    world.push_message(message(&["u", "v"]), "x");
    assert_eq!(world.told(1)[1..], ["x ephemeral"]);
    world.arrive(2, "v", "web", None);
    assert_eq!(world.told(2).len(), 1);
    assert_eq!(world.core.counts.dropped, 1);
}

#[test]
fn a_payload_for_many_users_is_stored_once_until_its_last_reference() {
    let mut world = World::new();
    world.push(&["u", "v", "w"], "a");
    world.wait(1_000);
    assert_eq!((world.store.shared.len(), world.store.own.len(), world.store.boxes.len()), (1, 0, 3));
    for (session, who) in [(1, "u"), (2, "v"), (3, "w")] {
        assert_eq!(world.store.shared.len(), 1);
        world.arrive(session, who, "web", None);
        assert_eq!(world.told(session)[1..], ["a 1 after 0"]);
        world.ack(session, who, 1);
        world.wait(1_000);
    }
    assert!(world.store.shared.is_empty());
}

#[test]
fn a_platform_without_storage_is_not_sent_messages_stored_for_others() {
    let mut world = World::with(PlatformSettings { store: false, ..PlatformSettings::default() });
    world.push(&["u"], "a");
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1).len(), 1, "it gets nothing but the admission");
}

#[test]
fn an_inbox_view_includes_everything_accepted_before_the_query() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.wait(1_000);
    let what = PeopleQuery::Inbox { uid: uid("u"), platform: None, after: 0, limit: 10 };
    world.step(CarrierInput::Query { ask: 1, what, end: 2 });
    assert!(world.answers.is_empty(), "an accepted record was not read yet");
    world.push(&["u"], "b");
    let view = world.viewed();
    let bodies: Vec<&[u8]> = view.messages.iter().map(|shown| &*shown.message.payload).collect();
    assert_eq!((bodies, view.stored), (vec![&b"a"[..], b"b"], 2));
}

#[test]
fn a_malformed_record_becomes_a_dead_letter_and_does_not_block() {
    let mut world = World::new();
    let headers = whimbrel_model::Headers::builder().push("whimbrel-push", b"{").take();
    // One batch has both records: nothing is read before the second one.
    let reading = world.reading.take();
    world.append_record(headers, "");
    world.reading = reading;
    world.push(&["u"], "a");
    assert!(matches!(world.outbound[..], [CarrierRecord::Dead { offset: 0, .. }]));
    world.wait(1_000);
    assert_eq!(world.store.applied, 2);
}
