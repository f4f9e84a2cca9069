//! One scene for each rule of deliveries. Each fails if its rule is removed from the code: docs/internals/deliveries-rules.md names the
//! place of the rule and the mutation. Every step is also compared with the true history: the watermark passes only done messages, the
//! messages of a key are first delivered in order, and an owner continues exactly from the saved progress.

use super::scene::{Scene, key_with, ordered, unordered, without_retries};
use whimbrel_model::Headers;
use whimbrel_model::subscription::{HEADER_DELIVERY, OnExhausted};
use whimbrel_sim::deliveries::endpoint::SimEndpoint;
use whimbrel_sim::deliveries::log::{DEAD, RETRIES};
use whimbrel_sim::deliveries::world::{AppendFault, RunSettings};

const HOUR: i64 = 3_600_000;

#[test]
fn stale_ticket_an_answer_that_arrives_twice_counts_once() {
    let mut scene = Scene::new(ordered());
    scene.world.endpoint = SimEndpoint { twice: 1, ..SimEndpoint::default() };
    scene.bad_key("a", HOUR);
    scene.publish(&["a", "a"]);
    scene.wait(0, 100);
    let memory = scene.world.memory(0, scene.first_partition());
    assert_eq!(memory.tries.get(&0).map(|(attempts, _)| *attempts), Some(1));
    scene.world.endpoint.bad_keys.clear();
    scene.wait(0, 60_000);
    assert_eq!(scene.taken(), [1, 1]);
}

#[test]
fn stale_line_an_answer_from_before_a_seek_changes_nothing() {
    let mut scene = Scene::new(ordered());
    scene.publish(&["a", "b", "c", "d"]);
    scene.read(0);
    // All four are in flight and unanswered when the cursor is set to the third.
    scene.seek(2);
    scene.bad_key("c", 500);
    scene.bad_key("d", 500);
    scene.sound(|world| world.follow(0));
    scene.read(0);
    scene.run(0);
    assert_eq!(scene.watermark(0, 0), 2, "the answers of the earlier run do not count");
    // The endpoint may have requested a delay of half a minute.
    scene.wait(0, 60_000);
    assert_eq!((scene.watermark(0, 0), scene.taken()), (4, vec![1, 1, 2, 2]));
}

#[test]
fn run_progress_from_before_a_seek_does_not_count() {
    let mut scene = Scene::new(ordered());
    scene.publish(&["a", "b", "c"]);
    scene.wait(0, 2_000);
    assert_eq!(scene.watermark(0, 0), 3);
    scene.seek(1);
    // The owner crashes before it has saved anything of the new run.
    scene.fail_over();
    scene.wait(1, 2_000);
    assert_eq!(scene.taken(), [1, 2, 2]);
}

#[test]
fn run_an_owner_behind_a_seek_does_not_use_the_new_progress() {
    let mut scene = Scene::new(ordered());
    scene.publish(&["a", "b", "c"]);
    scene.run(0);
    scene.seek(1);
    scene.sound(|world| world.follow(0));
    scene.wait(0, 2_000);
    assert_eq!(scene.taken(), [1, 2, 2]);
    scene.world.crash(0);
    let earlier = scene.world.earlier.clone();
    scene.sound(|world| world.take_behind(1, earlier));
    scene.wait(1, 100);
    scene.sound(|world| world.follow(1));
    scene.wait(1, 2_000);
    assert_eq!((scene.taken(), scene.watermark(1, 0)), (vec![1, 2, 2], 3));
}

#[test]
fn run_retries_that_were_delivered_are_not_repeated_by_a_seek() {
    let mut scene = Scene::new(unordered());
    scene.bad_key("a", 500);
    scene.publish(&["a"]);
    scene.wait(0, 5_000);
    assert_eq!((scene.taken(), scene.world.log.records(RETRIES).len()), (vec![1], 1));
    scene.seek(1);
    scene.fail_over();
    scene.wait(1, 5_000);
    assert_eq!(scene.taken(), [1]);
}

#[test]
fn run_late_saves_of_an_earlier_run_are_rejected() {
    let mut scene = Scene::new(ordered());
    scene.publish(&["a", "b", "c"]);
    scene.run(0);
    let rows = scene.sound(|world| world.begin_save(0));
    scene.seek(0);
    scene.sound(|world| world.follow(0));
    scene.save(0);
    let saved = scene.world.store.save(1, rows);
    assert!(saved.is_err(), "{saved:?}");
    scene.wait(0, 100);
    assert_eq!(scene.taken(), [2, 2, 2]);
}

#[test]
fn epoch_saves_of_a_zombie_are_rejected() {
    let mut scene = Scene::new(ordered());
    scene.bad_key("a", HOUR);
    scene.publish(&["a", "b"]);
    scene.run(0);
    scene.take(1);
    scene.save(0);
    assert!(scene.world.nodes[0].is_none(), "it has stopped");
}

#[test]
fn settle_a_message_is_not_done_before_its_dead_letter_is_durable() {
    let mut scene = Scene::new(without_retries(ordered()));
    scene.bad_key("a", HOUR);
    scene.publish(&["a", "a"]);
    scene.run_but_appends(0);
    assert_eq!(scene.watermark(0, 0), 0);
    scene.append(0, AppendFault::Fails);
    scene.save(0);
    scene.world.crash(0);
    assert!(scene.world.log.records(DEAD).is_empty());
    scene.take(1);
    scene.run(1);
    assert_eq!(scene.world.log.records(DEAD).len(), 2, "the successor retries it, and buries both");
    assert_eq!(scene.watermark(1, 0), 2);
}

#[test]
fn settle_a_message_is_not_done_before_its_hold_is_durable() {
    let mut scene = Scene::new(unordered());
    scene.bad_key("a", 500);
    scene.publish(&["a"]);
    scene.run_but_appends(0);
    assert_eq!((scene.watermark(0, 0), scene.world.holds.waiting()), (0, 0));
    scene.save(0);
    scene.fail_over();
    scene.wait(1, 5_000);
    assert_eq!(scene.taken(), [1]);
}

#[test]
fn settle_a_key_waits_until_its_dead_letter_is_durable() {
    let mut scene = Scene::new(without_retries(ordered()));
    scene.bad_key("a", 1);
    scene.publish(&["a", "a"]);
    scene.run_but_appends(0);
    scene.sound(|world| world.pass(10));
    scene.run_but_appends(0);
    assert_eq!(scene.taken(), [0, 0]);
    scene.run(0);
    assert_eq!(scene.taken(), [0, 1]);
}

#[test]
fn made_id_a_retry_whose_append_was_not_confirmed_is_one_hold() {
    let mut scene = Scene::new(unordered());
    scene.bad_key("a", 500);
    scene.publish(&["a"]);
    scene.run_but_appends(0);
    scene.append(0, AppendFault::AnswerLost);
    scene.run(0);
    assert_eq!(scene.world.truth.held, 1);
    scene.wait(0, 5_000);
    assert_eq!((scene.taken(), scene.world.log.records(RETRIES).len()), (vec![1], 1));
}

#[test]
fn made_id_a_retry_from_before_a_crash_is_one_hold() {
    let mut scene = Scene::new(unordered());
    scene.bad_key("a", 500);
    scene.publish(&["a"]);
    scene.run(0);
    assert_eq!(scene.world.truth.held, 1);
    // It crashes before it has saved that the message is a hold now.
    scene.world.crash(0);
    scene.sound(|world| world.pass(100));
    scene.take(1);
    scene.wait(1, 5_000);
    assert_eq!((scene.world.truth.held, scene.taken()), (1, vec![1]));
}

#[test]
fn unfinished_parked_messages_behind_the_read_are_delivered_after_a_crash() {
    let mut scene = Scene::new(ordered());
    scene.bad_key("a", 500);
    scene.publish(&["a", "b", "a", "b"]);
    scene.run(0);
    assert_eq!(scene.taken(), [0, 1, 0, 1]);
    scene.save(0);
    scene.fail_over();
    scene.wait(1, 20_000);
    assert_eq!(scene.taken(), [1, 1, 1, 1], "nothing is lost, and no done message is repeated");
}

#[test]
fn attempts_the_ladder_continues_after_a_crash() {
    let mut scene = Scene::new(ordered());
    scene.bad_key("a", HOUR);
    scene.publish(&["a"]);
    let id = scene.first_partition();
    // Attempts at 0, 1 and 11 seconds; the fourth is at 71 seconds.
    scene.wait(0, 30_000);
    let before = scene.world.memory(0, id);
    assert_eq!(before.tries.get(&0).map(|(attempts, _)| *attempts), Some(3));
    scene.fail_over();
    scene.wait(1, 30_000);
    assert_eq!(scene.world.memory(1, id), before, "nothing was tried before its time");
    scene.wait(1, 20_000);
    assert_eq!(scene.world.memory(1, id).tries.get(&0).map(|(attempts, _)| *attempts), Some(4));
    scene.wait(1, HOUR);
    assert_eq!(scene.world.calls, 6, "six attempts of both owners together");
    assert!(scene.world.truth.messages[0].is_buried);
}

#[test]
fn own_rule_a_messages_own_interval_outlives_a_crash() {
    let mut scene = Scene::new(ordered());
    scene.bad_key("a", HOUR);
    let mut headers = Headers::builder();
    headers.push(HEADER_DELIVERY, br#"{"retry":{"times":3,"schedule_ms":[604800000]}}"#);
    scene.world.publish_with(Some("a"), 10, headers.take());
    scene.wait(0, 2_000);
    let id = scene.first_partition();
    let before = scene.world.memory(0, id);
    scene.fail_over();
    scene.wait(1, 2 * HOUR);
    assert_eq!(scene.world.memory(1, id), before, "it was tried before its time");
    scene.wait(1, 8 * 24 * HOUR);
    assert_eq!(scene.taken(), [1]);
}

#[test]
fn lane_a_keys_messages_wait_for_the_one_that_failed_and_others_do_not() {
    let mut scene = Scene::new(ordered());
    scene.bad_key("a", 500);
    scene.publish(&["a", "a", "b", "a", "b"]);
    scene.run(0);
    assert_eq!(scene.taken(), [0, 0, 1, 0, 1]);
    scene.wait(0, 5_000);
    assert_eq!(scene.taken(), [1, 1, 1, 1, 1]);
}

#[test]
fn barrier_a_moved_keys_new_messages_wait_for_its_old_ones() {
    let mut scene = Scene::with_partitions(ordered(), 2);
    let moved = key_with(&[(2, 0), (3, 2)]);
    scene.bad_key(&moved, 500);
    scene.publish(&[&moved, &moved]);
    scene.run(0);
    scene.world.grow(3);
    scene.publish(&[&moved]);
    scene.sound(|world| world.follow(0));
    scene.wait(0, 400);
    // From here on the endpoint accepts the key. The new message, which never failed, must still be the last.
    scene.wait(0, 200);
    assert_eq!(scene.taken(), [0, 0, 0]);
    scene.wait(0, 5_000);
    assert_eq!(scene.taken(), [1, 1, 1]);
}

#[test]
fn barrier_two_growths_in_a_row_keep_the_order() {
    let mut scene = Scene::with_partitions(ordered(), 2);
    let back = key_with(&[(2, 0), (3, 2), (4, 0)]);
    scene.publish(&[&back]);
    scene.world.grow(3);
    scene.publish(&[&back]);
    scene.world.grow(4);
    scene.publish(&[&back]);
    scene.wait(0, 100);
    assert_eq!(scene.taken(), [1, 1, 1]);
}

#[test]
fn lost_a_parked_message_that_retention_removed_becomes_a_dead_letter() {
    let mut scene = Scene::new(ordered());
    scene.bad_key("a", 500);
    scene.publish(&["a", "a", "b"]);
    scene.run(0);
    let id = scene.first_partition();
    scene.world.log.trim(id, 1);
    scene.wait(0, 5_000);
    assert_eq!(scene.taken(), [0, 1, 1]);
    assert_eq!((scene.world.truth.buried, scene.watermark(0, 0)), (1, 3));
}

#[test]
fn block_a_message_that_must_not_be_given_up_is_retried() {
    let mut scene = Scene::new(RunSettings { on_exhausted: OnExhausted::Block, ..without_retries(ordered()) });
    scene.bad_key("a", HOUR);
    scene.publish(&["a", "a"]);
    scene.wait(0, HOUR - 1_000);
    assert_eq!(scene.taken(), [0, 0]);
    scene.wait(0, 10_000);
    assert_eq!((scene.taken(), scene.world.truth.buried), (vec![1, 1], 0));
}
