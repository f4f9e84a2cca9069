//! Repeats of a push are dropped.

use whimbrel_model::push::PushMessage;

use super::{World, message};

#[test]
fn a_repeat_with_a_publishers_id_is_delivered_once() {
    let mut world = World::connected();
    for _ in 0..2 {
        world.push_message(PushMessage { brought: true, store: true, ..message(&["u"]) }, "a");
    }
    assert_eq!(world.told(1)[1..], ["a 1 after 0"]);
    assert_eq!(world.core.counts.repeats, 1);
}

/// As two data centres publish it: each has accepted it independently.
#[test]
fn a_message_with_two_ids_is_delivered_once_under_either() {
    let mut world = World::connected();
    for (id, also) in [("m", Some("o")), ("o", None), ("m", None)] {
        let also = also.map(str::to_owned);
        let named = PushMessage { id: id.into(), also, brought: true, store: true, ..message(&["u"]) };
        world.push_message(named, "a");
    }
    assert_eq!(world.told(1)[1..], ["a 1 after 0"]);
    assert_eq!(world.core.counts.repeats, 2);
}
