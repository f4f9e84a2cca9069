//! A message that its seat did not acknowledge after all retries becomes a dead letter when it expires, not before.

use whimbrel_model::Timestamp;
use whimbrel_model::people::Platform;
use whimbrel_model::push::PushMessage;

use super::{World, message, uid};
use crate::carrier::partition::{CarrierInput, CarrierRecord};

const TTL_MS: u64 = 600_000;

fn push(world: &mut World, body: &'static str) {
    world.push_message(PushMessage { store: true, ttl_ms: Some(TTL_MS), ..message(&["u"]) }, body);
}

/// A world in which every retry of a message passed without an acknowledgement, until the session was closed.
fn exhausted() -> World {
    let mut world = World::connected();
    push(&mut world, "a");
    for _ in 0..3 {
        world.wait(10_000);
        let held = world.held();
        world.wait(30_000);
        held.iter().for_each(|(_, task)| world.append(task, ""));
    }
    world.wait(10_000);
    assert_eq!((world.core.counts.no_acks, world.core.sessions()), (1, 0));
    world.wait(1_000);
    world
}

/// The offsets and platforms of the dead letters written since the last call.
fn buried(world: &mut World) -> Vec<(u64, Vec<Platform>)> {
    let dead = world.outbound.drain(..).filter_map(|item| match item {
        CarrierRecord::Exhausted { offset, platforms, uid: of, reason } => {
            assert_eq!((of, reason), (uid("u"), "not acknowledged by web after 4 attempts, and expired".to_owned()));
            Some((offset, platforms))
        }
        _ => None,
    });
    dead.collect()
}

#[test]
fn an_exhausted_message_becomes_a_dead_letter_when_it_expires() {
    let mut world = exhausted();
    assert_eq!(
        world.store.found_under[&uid("u")],
        Timestamp::from_millis(TTL_MS as i64),
        "the index lists the box by its expiry"
    );
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    assert!(buried(&mut world).is_empty(), "not expired yet: the device may return");
    world.now = TTL_MS as i64;
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    assert_eq!(buried(&mut world), [(0, vec![Platform::new("web").unwrap()])]);
    world.wait(1_000);
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    assert!(buried(&mut world).is_empty(), "the dead letter is written once");
    assert_eq!(world.core.counts.dead, 1);
}

#[test]
fn another_owner_writes_the_dead_letter_too() {
    let mut world = exhausted();
    world.take_over();
    world.now = TTL_MS as i64;
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    assert_eq!(buried(&mut world).len(), 1);
}

#[test]
fn messages_acknowledged_late_or_never_sent_are_no_dead_letters() {
    let mut world = exhausted();
    world.arrive(2, "u", "web", None);
    world.ack(2, "u", 1);
    world.gone(2, "u");
    push(&mut world, "b");
    world.wait(1_000);
    world.now += TTL_MS as i64;
    world.step(CarrierInput::Reclaimable(vec![uid("u")]));
    assert!(buried(&mut world).is_empty());
}
