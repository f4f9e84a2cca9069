//! A message that its seat did not acknowledge after all retries becomes a dead letter when it expires, and not before.

use whimbrel_model::Timestamp;
use whimbrel_model::people::Platform;
use whimbrel_model::push::{PushMessage, PushTask};

use super::super::{Input, Letter};
use super::{World, message, uid};

const TTL_MS: u64 = 600_000;

fn push(world: &mut World, body: &'static str) {
    world.push_message(PushMessage { store: true, ttl_ms: Some(TTL_MS), ..message(&["u"]) }, body);
}

/// Lets every retry pass without an acknowledgement, until the session is closed.
fn exhaust(world: &mut World) {
    for _ in 0..3 {
        world.wait(10_000);
        let held: Vec<PushTask> = world
            .letters
            .drain(..)
            .filter_map(|letter| match letter {
                Letter::Hold { task, .. } => Some(task),
                _ => None,
            })
            .collect();
        world.wait(30_000);
        held.iter().for_each(|task| world.append(task, ""));
    }
    world.wait(10_000);
    assert_eq!((world.core.counts.no_acks, world.core.sessions()), (1, 0));
    world.wait(1_000);
}

/// The dead letters since the last look: offsets and platforms.
fn buried(world: &mut World) -> Vec<(u64, Vec<Platform>)> {
    let dead = world.letters.drain(..).filter_map(|letter| match letter {
        Letter::Exhausted { offset, platforms, uid: of, reason } => {
            assert_eq!((of, reason), (uid("u"), "not acknowledged by web after 4 attempts, and expired".to_owned()));
            Some((offset, platforms))
        }
        _ => None,
    });
    dead.collect()
}

#[test]
fn what_was_never_acknowledged_is_found_when_it_expires_and_becomes_a_dead_letter() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    push(&mut world, "a");
    exhaust(&mut world);
    assert_eq!(world.store.found_under[&uid("u")], Timestamp::from_millis(TTL_MS as i64), "the store finds it by then");
    world.step(Input::Reclaimable(vec![uid("u")]));
    assert!(buried(&mut world).is_empty(), "it has not expired: its device may return");
    world.now = TTL_MS as i64;
    world.step(Input::Reclaimable(vec![uid("u")]));
    assert_eq!(buried(&mut world), [(0, vec![Platform::new("web").unwrap()])]);
    world.wait(1_000);
    world.step(Input::Reclaimable(vec![uid("u")]));
    assert!(buried(&mut world).is_empty(), "once is enough");
    assert_eq!(world.core.counts.dead, 1);
}

#[test]
fn another_owner_knows_it_too() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    push(&mut world, "a");
    exhaust(&mut world);
    world.take_over();
    world.now = TTL_MS as i64;
    world.step(Input::Reclaimable(vec![uid("u")]));
    assert_eq!(buried(&mut world).len(), 1);
}

#[test]
fn what_a_device_acknowledges_after_its_return_and_what_was_never_sent_are_no_dead_letters() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    push(&mut world, "a");
    exhaust(&mut world);
    world.arrive(2, "u", "web", None);
    world.ack(2, "u", 1);
    world.gone(2, "u");
    push(&mut world, "b");
    world.wait(1_000);
    world.now += TTL_MS as i64;
    world.step(Input::Reclaimable(vec![uid("u")]));
    assert!(buried(&mut world).is_empty());
}
