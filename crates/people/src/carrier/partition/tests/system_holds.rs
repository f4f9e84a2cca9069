//! Holds of a carrier have ids of the system, which no publisher can use.

use whimbrel_model::push::is_system_hold;

use super::{World, with_notice};

#[test]
fn holds_of_retries_and_notices_have_system_ids() {
    let mut world = World::new();
    world.arrive(1, "u", "my-web", None);
    world.push(&["u"], "a");
    world.wait(10_000);
    let retries = world.held();
    world.push_message(with_notice(true, &["u"]), "b");
    let notices = world.held();
    for (held, head) in [(retries, "push-"), (notices, "notice-")] {
        let is_of_system = |id: &str| id.starts_with(head) && is_system_hold(id);
        assert!(!held.is_empty() && held.iter().all(|(id, _)| is_of_system(id)), "{held:?}");
    }
}
