//! Boxes and rows whose store is read, written or lost while devices are there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{Platform, PlatformSettings};
use whimbrel_model::ports::{At, PeopleAsk, ToCarrier};
use whimbrel_model::push::{PushMessage, PushTask};

use super::super::super::settings::CarrierSettings;
use super::super::super::user_box::UserBox;
use super::super::{Effect, Input};
use super::{GATEWAY, World, message, uid};

#[test]
fn a_box_whose_messages_all_go_with_one_that_is_not_stored_is_saved_without_them() {
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
    assert_eq!(world.store.own.len(), 0, "nothing is kept any more");
    let saved = UserBox::decode(&world.store.boxes[&uid("u")]).unwrap();
    assert!(saved.slots.is_empty(), "it waits for what is gone: {:?}", saved.slots);
}

#[test]
fn a_row_that_was_saved_after_the_store_had_been_read_is_read_again() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.gone(1, "u");
    world.push(&["u"], "a");
    world.wait(1_000);
    world.push(&["u"], "b");
    // While the second is on its way into the store, a third comes, and a device, which reads what is stored up to then.
    world.now += 1_000;
    let saving = held_back(&mut world, Input::Tick, |effect| matches!(effect, Effect::Apply(_)));
    world.push(&["u"], "c");
    let arrival = ToCarrier::Arrive(Box::new(world.arrival(2, "u", "web", None)));
    let arrives = Input::From { gateway: GATEWAY, messages: vec![arrival] };
    let reading = held_back(&mut world, arrives, |effect| matches!(effect, Effect::Rows { .. }));
    let Effect::Rows { token, keys, .. } = reading else { panic!("it reads: {reading:?}") };
    assert_eq!(keys.len(), 3, "in order, those that are not saved yet too");
    let found = vec![world.store.own.get(&(uid("u"), 1)).cloned(), None, None];
    let read_before = At { applied: world.store.applied, found };
    world.perform(saving);
    world.step(Input::Rows { token, found: Ok(read_before) });
    assert_eq!(world.told(2)[1..], ["a 1 after 0", "b 2 after 1", "c 3 after 2"]);
}

/// Takes a step and keeps back the one thing to do that is meant.
fn held_back(world: &mut World, input: Input, is_meant: impl Fn(&Effect) -> bool) -> Effect {
    let effects = world.core.step(Timestamp::from_millis(world.now), input);
    let (mut meant, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_meant);
    others.into_iter().for_each(|effect| world.perform(effect));
    meant.pop().expect("it is to be done")
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
    world.step(Input::Reclaimable(vec![uid("u")]));
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.store.own.len()), (0, 0));
    assert_eq!(world.core.users_in_memory(), 0);
}

#[test]
fn a_write_whose_outcome_nobody_knows_ends_the_tenure() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.now += 1_000;
    let effects = world.core.step(Timestamp::from_millis(world.now), Input::Tick);
    assert!(matches!(effects[..], [Effect::Apply(_)]));
    world.step(Input::Applied(Err(whimbrel_model::ports::InboxError::Unavailable("x".into()))));
    assert!(world.resigned);
}

#[test]
fn a_box_that_is_being_written_stays_in_memory() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.now += 1_000;
    let writing = world.only(Input::Tick);
    assert!(matches!(writing[..], [Effect::Apply(_)]));
    let what = PeopleAsk::Inbox { uid: uid("u"), platform: None, after: 0, limit: 10 };
    world.step(Input::Asked { ask: 1, what, end: 1 });
    assert_eq!(world.core.users_in_memory(), 1, "the store could still say that it has none");
    world.perform_all(writing);
    assert_eq!(world.core.users_in_memory(), 0);
}

#[test]
fn a_store_that_has_fallen_back_is_not_believed() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.wait(1_000);
    let arrival = world.arrival(1, "u", "web", None);
    let messages = vec![ToCarrier::Arrive(Box::new(arrival))];
    let effects = world.only(Input::From { gateway: GATEWAY, messages });
    assert!(matches!(effects[..], [Effect::Load { .. }]));
    world.step(Input::Loaded(Ok(At { applied: 0, found: vec![None] })));
    assert!(world.resigned && world.told(1).is_empty());
}

#[test]
fn a_box_that_has_only_names_is_reclaimed_too() {
    let mut world = World::new();
    world.push_message(PushMessage { brought: true, store: true, ..message(&["u"]) }, "a");
    world.append(&PushTask::Wipe { uid: "u".into() }, "");
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.store.own.len()), (1, 0), "a repeat of it is known");
    let found_under = world.store.found_under[&uid("u")];
    world.now = found_under.as_millis() + 1;
    world.step(Input::Reclaimable(vec![uid("u")]));
    world.wait(1_000);
    assert!(world.store.boxes.is_empty() && world.store.found_under.is_empty());
}

#[test]
fn what_seats_are_kept_for_may_change_and_nothing_stays_in_the_index() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
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
fn a_box_that_a_later_binary_wrote_is_left_alone() {
    let mut world = World::new();
    let later = Bytes::from_static(&[200, 1, 2, 3]);
    world.store.boxes.insert(uid("u"), later.clone());
    world.push(&["u"], "a");
    assert!(world.resigned);
    assert_eq!(world.store.boxes[&uid("u")], later);
}
