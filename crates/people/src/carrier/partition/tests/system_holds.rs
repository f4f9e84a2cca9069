//! Holds of a carrier have ids of the system, which no publisher can use.

use whimbrel_model::push::{Notify, PushMessage, is_system_hold};

use super::{World, message};
use crate::carrier::partition::CarrierRecord;

/// The ids of the holds written since the last call.
fn held(world: &mut World) -> Vec<String> {
    let id = |item: CarrierRecord| if let CarrierRecord::Hold { id, .. } = item { Some(id) } else { None };
    std::mem::take(&mut world.outbound).into_iter().filter_map(id).collect()
}

#[test]
fn holds_of_retries_and_notices_have_system_ids() {
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
