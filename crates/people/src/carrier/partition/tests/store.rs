//! Boxes and rows while the store is read, written or lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::people::{Platform, PlatformSettings};
use whimbrel_model::ports::{AtOffset, ToCarrier};
use whimbrel_model::push::{PushMessage, PushTask};

use super::{GATEWAY, World, message, uid};
use crate::carrier::partition::{CarrierEffect, CarrierInput};
use crate::carrier::settings::CarrierSettings;
use crate::carrier::user_box::UserBox;

#[test]
fn a_box_is_saved_without_the_messages_that_an_unstored_one_displaced() {
    let max_stored = Arc::new(AtomicU32::new(5));
    let present = Arc::clone(&max_stored);
    let mut world = World::new();
    world.rules = Arc::new(move |_: &Platform| {
        Arc::new(PlatformSettings { max_stored: present.load(Ordering::Relaxed), ..PlatformSettings::default() })
    });
    world.take_over();
    world.arrive(1, "u", "web", None);
    world.gone(1, "u");
    world.push(&["u"], "a");
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 1);
    max_stored.store(0, Ordering::Relaxed);
    world.push(&["u"], "b");
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 0, "the bound is zero");
    let saved = UserBox::decode(&world.store.boxes[&uid("u")]).unwrap();
    assert!(saved.slots.is_empty(), "the saved box still has removed slots: {:?}", saved.slots);
}

#[test]
fn a_row_that_was_saved_after_the_read_is_read_again() {
    let mut world = World::connected();
    world.gone(1, "u");
    world.push(&["u"], "a");
    world.wait(1_000);
    world.push(&["u"], "b");
    // While the second message is being saved, a third is published and a device arrives, which reads up to the stored offset.
    world.now += 1_000;
    let saving = world.step_without(CarrierInput::Tick, |effect| matches!(effect, CarrierEffect::Apply(_)));
    world.push(&["u"], "c");
    let arrival = ToCarrier::Arrive(Box::new(world.arrival(2, "u", "web", None)));
    let arrives = CarrierInput::From { gateway: GATEWAY, messages: vec![arrival] };
    let reading = world.step_without(arrives, |effect| matches!(effect, CarrierEffect::Rows { .. }));
    let CarrierEffect::Rows { token, keys, .. } = reading else { panic!("not a read of rows: {reading:?}") };
    assert_eq!(keys.len(), 3, "all three in order, also the unsaved ones");
    let found = vec![world.store.own.get(&(uid("u"), 1)).cloned(), None, None];
    let read_before = AtOffset { applied: world.store.applied, found };
    world.perform(saving);
    world.step(CarrierInput::Rows { token, found: Ok(read_before) });
    assert_eq!(world.told(2)[1..], ["a 1 after 0", "b 2 after 1", "c 3 after 2"]);
}

#[test]
fn a_wiped_inbox_is_empty() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.wait(1_000);
    world.append(&PushTask::Wipe { uid: "u".into() }, "");
    world.wait(1_000);
    assert!(world.store.own.is_empty() && world.store.shared.is_empty());
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1).len(), 1);
}

#[test]
fn an_abandoned_inbox_is_reclaimed_unread() {
    let mut world = World::new();
    world.push_message(PushMessage { store: true, ttl_ms: Some(500), ..message(&["u"]) }, "a");
    world.wait(400);
    assert_eq!((world.store.boxes.len(), world.store.own.len()), (1, 1));
    world.wait(1_000);
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.store.own.len()), (0, 0));
    assert_eq!(world.core.users_in_memory(), 0);
}

#[test]
fn a_write_with_an_unknown_outcome_ends_the_ownership() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.now += 1_000;
    assert!(matches!(world.only(CarrierInput::Tick)[..], [CarrierEffect::Apply(_)]));
    world.step(CarrierInput::Applied(Err(whimbrel_model::ports::InboxError::Unavailable("x".into()))));
    assert!(world.resigned);
}

#[test]
fn a_box_that_is_being_written_stays_in_memory() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.now += 1_000;
    let writing = world.only(CarrierInput::Tick);
    assert!(matches!(writing[..], [CarrierEffect::Apply(_)]));
    world.view(0, 10);
    assert_eq!(world.core.users_in_memory(), 1, "the store may still return the earlier state");
    world.perform_all(writing);
    assert_eq!(world.core.users_in_memory(), 0);
}

#[test]
fn a_store_that_has_lost_writes_ends_the_ownership() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.wait(1_000);
    let arrival = world.arrival(1, "u", "web", None);
    let messages = vec![ToCarrier::Arrive(Box::new(arrival))];
    let effects = world.only(CarrierInput::From { gateway: GATEWAY, messages });
    assert!(matches!(effects[..], [CarrierEffect::Load { .. }]));
    world.step(CarrierInput::Loaded(Ok(AtOffset { applied: 0, found: vec![None] })));
    assert!(world.resigned && world.told(1).is_empty());
}

#[test]
fn a_box_with_only_ids_is_reclaimed_too() {
    let mut world = World::new();
    world.push_message(PushMessage { brought: true, store: true, ..message(&["u"]) }, "a");
    world.append(&PushTask::Wipe { uid: "u".into() }, "");
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.store.own.len()), (1, 0), "its id is still known");
    let found_under = world.store.found_under[&uid("u")];
    world.now = found_under.as_millis() + 1;
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    world.wait(1_000);
    assert!(world.store.boxes.is_empty() && world.store.found_under.is_empty());
}

#[test]
fn a_change_of_keep_seats_leaves_no_stale_entry_in_the_index() {
    let mut world = World::connected();
    world.gone(1, "u");
    world.wait(1_000);
    let found_under = world.store.found_under[&uid("u")];
    let settings = CarrierSettings { keep_seats: Duration::from_secs(60), ..(*world.settings).clone() };
    world.settings = Arc::new(settings);
    world.take_over();
    world.arrive(2, "u", "web", None);
    world.wait(1_000);
    assert!(world.store.found_under[&uid("u")] < found_under);
}

#[test]
fn a_box_of_a_later_binary_is_not_overwritten() {
    let mut world = World::new();
    let later = Bytes::from_static(&[200, 1, 2, 3]);
    world.store.boxes.insert(uid("u"), later.clone());
    world.push(&["u"], "a");
    assert!(world.resigned);
    assert_eq!(world.store.boxes[&uid("u")], later);
}
