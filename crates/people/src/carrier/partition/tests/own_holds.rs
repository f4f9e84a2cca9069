//! The holds that a carrier makes are known as the system's: nobody else has their ids, or acts on them.

use whimbrel_model::push::{Notify, PushMessage, is_system_hold};

use super::super::Letter;
use super::{World, message};

/// The ids of what was held since the last look.
fn held(world: &mut World) -> Vec<String> {
    let id = |letter: Letter| if let Letter::Hold { id, .. } = letter { Some(id) } else { None };
    std::mem::take(&mut world.letters).into_iter().filter_map(id).collect()
}

#[test]
fn a_retry_and_a_notice_are_held_under_ids_of_the_system() {
    let mut world = World::new();
    world.arrive(1, "u", "my-web", None);
    world.push(&["u"], "a");
    world.wait(10_000);
    let retries = held(&mut world);
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    world.push_message(PushMessage { store: true, notify, ..message(&["u"]) }, "b");
    let notices = held(&mut world);
    for (ids, head) in [(retries, "push-"), (notices, "notice-")] {
        assert!(!ids.is_empty() && ids.iter().all(|id| id.starts_with(head) && is_system_hold(id)), "{ids:?}");
    }
}
