//! A session with unacknowledged messages has exactly one pending deadline or retry.

use std::sync::{Arc, Mutex};

use whimbrel_model::SessionsRule;
use whimbrel_model::push::PushTask;

use super::World;
use crate::carrier::partition::CarrierRecord;

#[test]
fn a_partial_acknowledgement_leaves_retries_for_the_rest() {
    let mut world = World::connected();
    ["a", "b", "c"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(10_000);
    let first = world.held();
    world.ack(1, "u", 1);
    world.told(1);
    // The hold of the first retry fires and has no effect, because the device has made progress.
    first.iter().for_each(|(_, task)| world.append(task, ""));
    assert!(world.told(1).is_empty());
    world.wait(10_000);
    let second = world.held();
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first[0].0, second[0].0, "the second retry needs a hold of its own");
    world.append(&second[0].1, "");
    assert_eq!(world.told(1), ["b 2 after 1 again", "c 3 after 2 again"]);
}

#[test]
fn a_session_without_further_acknowledgements_is_closed_in_the_end() {
    let mut world = World::connected();
    ["a", "b"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(10_000);
    world.ack(1, "u", 1);
    world.held();
    for _ in 0..3 {
        world.wait(10_000);
        let held = world.held();
        world.wait(30_000);
        held.iter().for_each(|(_, task)| world.append(task, ""));
    }
    world.wait(10_000);
    assert_eq!((world.core.counts.no_acks, world.core.sessions()), (1, 0));
}

#[test]
fn a_message_after_a_wipe_is_retried_although_an_earlier_retry_was_pending() {
    let mut world = World::connected();
    world.push(&["u"], "a");
    world.wait(10_000);
    let before = world.held();
    world.append(&PushTask::Wipe { uid: "u".into() }, "");
    before.iter().for_each(|(_, task)| world.append(task, ""));
    world.push(&["u"], "b");
    world.told(1);
    world.wait(10_000);
    assert_eq!((before.len(), world.held().len()), (1, 1));
}

#[test]
fn a_session_that_is_announced_again_has_one_retry() {
    let mut world = World::connected();
    world.push(&["u"], "a");
    world.wait(5_000);
    let again = world.announcement(1, "u", "web", 1, 0);
    world.step(again);
    world.wait(5_000);
    world.wait(5_000);
    assert_eq!(world.held().len(), 1);
}

#[test]
fn a_session_that_is_announced_again_under_another_rule_stays_one_session() {
    let rule = Arc::new(Mutex::new(SessionsRule::Replace));
    let mut world = World::ruled(&rule);
    world.arrive(1, "u", "web", None);
    *rule.lock().unwrap() = SessionsRule::Many(3);
    let again = world.announcement(1, "u", "web", 0, 0);
    world.step(again);
    world.told(1);
    assert_eq!(world.core.sessions(), 1);
    world.push(&["u"], "a");
    assert_eq!(world.told(1), ["a 1 after 0"]);
}

#[test]
fn an_unacknowledged_message_is_retried_and_then_the_session_is_closed() {
    let mut world = World::connected();
    world.push(&["u"], "a");
    world.told(1);
    for pause in [1_000, 5_000, 30_000] {
        world.wait(10_000);
        let Some(CarrierRecord::Hold { task, due, .. }) = world.outbound.pop() else { panic!("no retry is held") };
        assert_eq!(due.as_millis(), world.now + pause);
        world.wait(pause);
        world.append(&task, "");
        assert_eq!(world.told(1), ["a 1 after 0 again"]);
    }
    world.wait(10_000);
    assert_eq!(world.told(1).len(), 1, "the session is closed");
    assert_eq!(world.core.counts.no_acks, 1);
    world.wait(1_000);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2)[1..], ["a 1 after 0"], "the message is still stored");
}

#[test]
fn an_acknowledgement_ends_the_retries() {
    let mut world = World::connected();
    world.push(&["u"], "a");
    world.wait(10_000);
    let Some(CarrierRecord::Hold { task, .. }) = world.outbound.pop() else { panic!("no retry is held") };
    world.told(1);
    world.ack(1, "u", 1);
    world.append(&task, "");
    assert!(world.told(1).is_empty());
    world.wait(60_000);
    assert!(world.outbound.is_empty());
}

#[test]
fn an_announcement_does_not_reset_the_attempts_and_each_retry_has_a_new_hold() {
    let mut world = World::connected();
    world.push(&["u"], "a");
    let mut ids = Vec::new();
    let mut attempts = Vec::new();
    for _ in 0..3 {
        world.wait(10_000);
        let Some(CarrierRecord::Hold { id, task: PushTask::Retry(retry), .. }) = world.outbound.pop() else {
            panic!("no retry is held")
        };
        ids.push(id);
        attempts.push(retry.attempt);
        // The message was lost between carrier and gateway. The gateway announces that the session has received nothing.
        world.announce_since(1, 0);
    }
    ids.dedup();
    assert_eq!((ids.len(), attempts), (3, vec![1, 2, 3]), "an id that fired is not held again");
    world.wait(10_000);
    assert!(world.told(1).last().is_some_and(|told| told.starts_with("kick no_ack")));
}
