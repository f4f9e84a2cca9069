//! A session that was sent something is looked after until it has acknowledged all of it, and each session is looked after once.

use std::sync::{Arc, Mutex};

use whimbrel_model::SessionsRule;
use whimbrel_model::push::PushTask;

use super::super::Letter;
use super::World;

/// The retries that were held since the last look.
fn retries(world: &mut World) -> Vec<(String, PushTask)> {
    let held = world.letters.drain(..).filter_map(|letter| match letter {
        Letter::Hold { id, task: task @ PushTask::Retry(_), .. } => Some((id, task)),
        _ => None,
    });
    held.collect()
}

#[test]
fn who_acknowledges_a_part_is_tried_again_for_the_rest() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    ["a", "b", "c"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(10_000);
    let first = retries(&mut world);
    world.ack(1, "u", 1);
    world.told(1);
    // What was held to try it again comes back, and is of no use: it has answered.
    first.iter().for_each(|(_, task)| world.append(task, ""));
    assert!(world.told(1).is_empty());
    world.wait(10_000);
    let second = retries(&mut world);
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first[0].0, second[0].0, "it is another hold");
    world.append(&second[0].1, "");
    assert_eq!(world.told(1), ["b 2 after 1 again", "c 3 after 2 again"]);
}

#[test]
fn who_acknowledges_a_part_and_nothing_more_is_closed_in_the_end() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    ["a", "b"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(10_000);
    world.ack(1, "u", 1);
    retries(&mut world);
    for _ in 0..3 {
        world.wait(10_000);
        let held = retries(&mut world);
        world.wait(30_000);
        held.iter().for_each(|(_, task)| world.append(task, ""));
    }
    world.wait(10_000);
    assert_eq!((world.core.counts.no_acks, world.core.sessions()), (1, 0));
}

#[test]
fn what_comes_after_a_wipe_is_tried_again_although_a_retry_was_held_before() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.wait(10_000);
    let before = retries(&mut world);
    world.append(&PushTask::Wipe { uid: "u".into() }, "");
    before.iter().for_each(|(_, task)| world.append(task, ""));
    world.push(&["u"], "b");
    world.told(1);
    world.wait(10_000);
    assert_eq!((before.len(), retries(&mut world).len()), (1, 1));
}

#[test]
fn a_session_that_is_announced_again_is_tried_again_once() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.wait(5_000);
    let again = world.announce(1, "u", "web", 1, 0);
    world.step(again);
    world.wait(5_000);
    world.wait(5_000);
    assert_eq!(retries(&mut world).len(), 1);
}

#[test]
fn a_session_that_is_announced_again_under_another_rule_is_one_session() {
    let rule = Arc::new(Mutex::new(SessionsRule::Replace));
    let mut world = World::ruled(&rule);
    world.arrive(1, "u", "web", None);
    *rule.lock().unwrap() = SessionsRule::Many(3);
    let again = world.announce(1, "u", "web", 0, 0);
    world.step(again);
    world.told(1);
    assert_eq!(world.core.sessions(), 1);
    world.push(&["u"], "a");
    assert_eq!(world.told(1), ["a 1 after 0"]);
}

#[test]
fn a_seat_that_does_not_acknowledge_is_tried_again_and_then_closed() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.told(1);
    for pause in [1_000, 5_000, 30_000] {
        world.wait(10_000);
        let Some(Letter::Hold { task, due, .. }) = world.letters.pop() else { panic!("a retry is held") };
        assert_eq!(due.as_millis(), world.now + pause);
        world.wait(pause);
        world.append(&task, "");
        assert_eq!(world.told(1), ["a 1 after 0 again"]);
    }
    world.wait(10_000);
    assert_eq!(world.told(1).len(), 1, "it is closed");
    assert_eq!(world.core.counts.no_acks, 1);
    world.wait(1_000);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2)[1..], ["a 1 after 0"], "it is still stored");
}

#[test]
fn an_acknowledgement_ends_the_retries() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.wait(10_000);
    let Some(Letter::Hold { task, .. }) = world.letters.pop() else { panic!("a retry is held") };
    world.told(1);
    world.ack(1, "u", 1);
    world.append(&task, "");
    assert!(world.told(1).is_empty());
    world.wait(60_000);
    assert!(world.letters.is_empty());
}

#[test]
fn what_is_tried_again_after_an_announcement_is_held_anew_and_counts_on() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    let mut ids = Vec::new();
    let mut attempts = Vec::new();
    for _ in 0..3 {
        world.wait(10_000);
        let Some(Letter::Hold { id, task: PushTask::Retry(retry), .. }) = world.letters.pop() else {
            panic!("it is tried again")
        };
        ids.push(id);
        attempts.push(retry.attempt);
        // The message had been lost on the way, and its gateway says so: nothing was sent, as far as the device knows.
        let announce = world.announce_since(1, 0);
        world.step(announce);
    }
    ids.dedup();
    assert_eq!((ids.len(), attempts), (3, vec![1, 2, 3]), "an id that fired is not held again");
    world.wait(10_000);
    assert!(world.told(1).last().is_some_and(|told| told.starts_with("kick no_ack")));
}
