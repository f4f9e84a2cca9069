//! A store that is built again from the log while devices are there that have more of it than was folded yet.

use std::sync::Arc;

use whimbrel_model::people::{Platform, PlatformSettings};
use whimbrel_model::ports::Resume;
use whimbrel_model::push::PushMessage;

use super::super::super::user_box::UserBox;
use super::super::{Effect, Input};
use super::{Store, World, epoch, message, uid};

#[test]
fn a_box_whose_messages_all_go_with_one_that_is_not_stored_is_saved_without_them() {
    let mut world = World::new();
    world.rules = Arc::new(|platform: &Platform| {
        Arc::new(PlatformSettings { store: platform.as_str() != "bare", ..PlatformSettings::default() })
    });
    let bare = Platform::new("bare").unwrap();
    world.push(&["u"], "a");
    world.push_message(PushMessage { store: true, except_platforms: vec![bare], ..message(&["u"]) }, "b");
    // The store is lost. The devices come to a new owner before it has read anything.
    let log = std::mem::take(&mut world.log);
    world.store = Store::default();
    world.take_over();
    world.step(Input::Started { applied: 0, first: 0, end: 2 });
    world.arrive(1, "u", "web", Some(Resume { epoch: epoch("u"), cursor: 2 }));
    world.arrive(2, "u", "bare", None);
    world.log = log[..1].to_vec();
    world.reading = None;
    world.perform(Effect::Read { from: 0 });
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 1, "a platform that keeps nothing has not acknowledged it");
    world.log = log;
    world.reading = None;
    world.perform(Effect::Read { from: 1 });
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 0, "who keeps something has both");
    let saved = UserBox::decode(&world.store.boxes[&uid("u")]).unwrap();
    assert!(saved.slots.is_empty(), "it waits for what is gone: {:?}", saved.slots);
}
