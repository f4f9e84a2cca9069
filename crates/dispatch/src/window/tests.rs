//! Tests of the window: scenes for each property, and random runs compared with a naive model.

mod growth;
mod model;
mod random;
mod scene;

use super::*;
use crate::progress_format;
use scene::{WindowScene, at, place};

const FRESH: bool = true;

#[test]
fn one_message_of_a_key_is_in_flight_and_keys_go_in_parallel() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a", "b", "a"]);
    let first = scene.next().unwrap();
    let other = scene.next().unwrap();
    assert_eq!((first.offset, other.offset), (0, 2));
    assert!(scene.next().is_none(), "both keys have one in flight");
    scene.window.done(first.ticket);
    assert_eq!(scene.next().unwrap().offset, 1);
}

#[test]
fn messages_without_a_key_have_no_order() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["", "", ""]);
    assert_eq!([(); 3].map(|()| scene.next().unwrap().offset), [0, 1, 2]);
}

#[test]
fn an_ordered_partition_has_one_message_in_flight() {
    let mut scene = WindowScene::having_read(Ordering::Partition, &["a", "b"]);
    let first = scene.next().unwrap();
    assert!(scene.next().is_none());
    scene.window.done(first.ticket);
    assert_eq!(scene.next().unwrap().offset, 1);
}

#[test]
fn the_watermark_waits_for_the_earliest_unfinished() {
    let mut scene = WindowScene::having_read(Ordering::None, &["", "", ""]);
    let out = [(); 3].map(|()| scene.next().unwrap().ticket);
    scene.window.done(out[1]);
    scene.window.done(out[2]);
    assert_eq!(scene.window.watermark(place(0)), Some(0));
    scene.window.done(out[0]);
    assert_eq!(scene.window.watermark(place(0)), Some(3));
}

#[test]
fn a_failed_key_waits_without_a_slot_and_without_its_bodies() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a", "a", "b"]);
    let failing = scene.next().unwrap();
    assert!(scene.window.park(failing.ticket, at(1_000), true));
    assert_eq!(scene.window.in_flight(), 0);
    assert_eq!(scene.window.body_bytes(), scene.size, "only the body of the other key");
    assert_eq!(scene.next().unwrap().offset, 3, "another key continues");
    scene.read();
    assert!(scene.next().is_none(), "the retry is not due");
    assert_eq!(scene.window.next_time(), Some(at(1_000)));
    scene.now = at(1_000);
    assert!(scene.next().is_none(), "its body is requested again first");
    scene.read();
    let again = scene.next().unwrap();
    assert_eq!((again.offset, again.attempts), (0, 1));
}

#[test]
fn a_hurried_retry_goes_at_once_and_keeps_its_attempts() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a"]);
    scene.park_next(3_000_000);
    scene.window.hurry(at(5));
    assert_eq!(scene.window.next_time(), Some(at(5)));
    scene.now = at(5);
    assert!(scene.next().is_none(), "its body is requested again first");
    scene.read();
    let again = scene.next().unwrap();
    assert_eq!((again.offset, again.attempts), (0, 1));
}

#[test]
fn a_retried_key_requests_only_its_head_and_more_after_a_success() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a"; 50]);
    scene.park_next(1_000);
    scene.now = at(1_000);
    scene.window.has_ready(scene.now, FRESH);
    let trial = scene.window.next_read().unwrap();
    assert!(trial.again && trial.max_bytes < scene::SIZE, "{trial:?}");
    scene.window.end_read(trial);
    scene.read();
    let out = scene.next().unwrap();
    scene.window.done(out.ticket);
    let more = scene.window.next_read().unwrap();
    assert!(more.again && more.max_bytes > 50 * scene::SIZE, "{more:?}");
}

#[test]
fn a_read_from_before_a_reopening_leaves_no_gap() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a"]);
    let at_the_end = scene.window.next_read().unwrap();
    let resume =
        progress_format::decode(&progress_format::encode(&scene.window.progress(place(0)).unwrap(), None)).unwrap().0;
    scene.window.close(place(0));
    scene.window.open(place(0), resume, None, false);
    let again = scene.window.next_read().unwrap();
    assert_eq!((at_the_end.from, again.from), (2, 0));
    assert!(!scene.window.joins_on(&at_the_end) && scene.window.joins_on(&again));
    scene.window.end_read(again);
    assert_eq!(scene.deliver_all(), [(0, 0), (0, 1)]);
}

#[test]
fn a_delivery_that_was_not_an_attempt_does_not_count() {
    let mut scene = WindowScene::having_read(Ordering::None, &[""]);
    let out = scene.next().unwrap();
    scene.window.park(out.ticket, at(10), false);
    scene.read_at(10);
    assert_eq!(scene.next().unwrap().attempts, 0);
}

#[test]
fn a_settling_message_takes_no_slot_and_its_key_waits() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a"]);
    let out = scene.next().unwrap();
    assert!(scene.window.settle(out.ticket));
    assert_eq!(scene.window.in_flight(), 0);
    assert_eq!(scene.window.watermark(place(0)), Some(0), "it is not done before it is durable");
    assert!(scene.next().is_none());
    assert!(scene.window.done(out.ticket));
    assert_eq!(scene.window.watermark(place(0)), Some(1));
    assert_eq!(scene.next().unwrap().offset, 1);
}

#[test]
fn a_late_or_repeated_answer_changes_nothing() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a"]);
    let out = scene.next().unwrap().ticket;
    scene.window.park(out, at(0), true);
    let before = scene.window.unsaved();
    assert!(!scene.window.done(out) && !scene.window.settle(out) && !scene.window.park(out, at(9), true));
    assert!(!scene.window.is_in_flight(out));
    assert!(!before.is_empty() && scene.window.unsaved().is_empty(), "nothing has changed");
    scene.window.has_ready(at(0), FRESH);
    scene.read();
    let settling = scene.next().unwrap().ticket;
    scene.window.settle(settling);
    assert!(!scene.window.settle(settling) && !scene.window.park(settling, at(9), true));
    assert_eq!((scene.window.in_flight(), scene.window.watermark(place(0))), (0, Some(0)));
}

#[test]
fn bodies_in_memory_are_bounded_and_reading_continues() {
    let mut scene = WindowScene::with_limits(Ordering::None, 5 * scene::SIZE, 1 << 20);
    scene.publish_all(&[""; 100]);
    let mut delivered = 0;
    while delivered < 100 {
        scene.read();
        assert!(scene.window.body_bytes() <= 5 * scene::SIZE);
        let out = scene.next().unwrap_or_else(|| panic!("no delivery after {delivered}"));
        scene.window.done(out.ticket);
        delivered += 1;
    }
}

#[test]
fn a_message_larger_than_the_bound_is_taken_alone() {
    let mut scene = WindowScene::with_limits(Ordering::None, 5, 1 << 20);
    scene.publish_all(&["", ""]);
    scene.read();
    assert_eq!(scene.window.body_bytes(), scene.size);
    let first = scene.next().unwrap();
    assert!(scene.next().is_none());
    scene.window.done(first.ticket);
    scene.read();
    assert_eq!(scene.next().unwrap().offset, 1);
}

#[test]
fn a_message_that_does_not_fit_is_not_read_repeatedly() {
    let mut scene = WindowScene::with_limits(Ordering::None, 25, 1 << 20);
    scene.publish_all(&["", ""]);
    scene.read();
    scene.publish_sized("", 1_000);
    assert!(scene.rounds_of_reading() <= 2, "without space it is not requested");
}

#[test]
fn keys_that_are_retried_together_stay_within_the_bound() {
    let mut scene = WindowScene::with_limits(Ordering::Key, 5 * scene::SIZE, 1 << 20);
    let keys: Vec<String> = (0..50).map(|key| format!("k{key}")).collect();
    scene.publish_all(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    for _ in 0..50 {
        scene.read();
        scene.park_next(1_000);
    }
    scene.now = at(1_000);
    for done in 0..50 {
        scene.window.has_ready(scene.now, FRESH);
        scene.read();
        assert!(scene.window.body_bytes() <= 6 * scene::SIZE, "{}", scene.window.body_bytes());
        let out = scene.next().unwrap_or_else(|| panic!("no delivery after {done}"));
        scene.window.done(out.ticket);
    }
}

#[test]
fn parked_state_is_bounded_and_reading_continues() {
    let mut scene = WindowScene::with_limits(Ordering::Key, 1 << 20, 1_000);
    let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    scene.publish_all(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    scene.read();
    while let Some(out) = scene.next() {
        scene.window.park(out.ticket, at(1_000), true);
    }
    assert!(scene.window.is_full());
    scene.publish_all(&["x"]);
    scene.read();
    assert!(scene.next().is_none(), "reading has paused");
    scene.now = at(1_000);
    let mut delivered = Vec::new();
    for _ in 0..100 {
        scene.window.has_ready(scene.now, FRESH);
        scene.read();
        let Some(out) = scene.next() else { break };
        delivered.push(out.offset);
        scene.window.done(out.ticket);
    }
    assert_eq!(delivered.len(), 21, "{delivered:?}");
}

#[test]
fn retries_are_read_and_delivered_while_no_new_message_may_be() {
    let mut scene = WindowScene::with_limits(Ordering::None, 5 * scene::SIZE, 1 << 20);
    scene.open_retries();
    scene.publish_all(&[""; 20]);
    scene.read();
    scene.publish_retry();
    scene.read();
    let out = scene.window.next_delivery(scene.now, !FRESH).expect("retries have space of their own");
    assert_eq!(out.partition, scene::RETRIES);
    assert!(scene.window.next_delivery(scene.now, !FRESH).is_none());
    assert!(scene.next().is_some());
}

#[test]
fn a_restart_restores_unfinished_messages_with_their_attempts_and_times() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "b", "a", "c", "b"]);
    let [a, b, c] = [(); 3].map(|()| scene.next().unwrap().ticket);
    scene.window.park(a, at(5_000), true);
    scene.window.done(c);
    scene.restart();
    let _ = b;
    assert_eq!(scene.window.watermark(place(0)), Some(0));
    scene.read();
    let again = scene.next().unwrap();
    assert_eq!((again.offset, again.attempts), (1, 0), "it was in flight with an unknown result");
    scene.window.done(again.ticket);
    assert_eq!(scene.next().unwrap().offset, 4);
    assert!(scene.next().is_none(), "the completed one is not repeated, and the other is not due");
    assert_eq!(scene.window.next_time(), Some(at(5_000)));
    scene.read_at(5_000);
    let retried = scene.next().unwrap();
    assert_eq!((retried.offset, retried.attempts), (0, 1), "the retry schedule continues");
}

#[test]
fn a_second_restart_before_all_was_read_again_loses_nothing() {
    let mut scene = WindowScene::with_limits(Ordering::None, 2 * scene::SIZE, 1 << 20);
    scene.publish_all(&[""; 6]);
    for _ in 0..6 {
        scene.read();
        let out = scene.next().unwrap();
        if out.offset == 5 {
            scene.window.park(out.ticket, at(7_000), true);
        } else if out.offset.is_multiple_of(2) {
            scene.window.done(out.ticket);
        } else {
            scene.window.park(out.ticket, at(6_000), true);
        }
    }
    scene.restart();
    scene.restart();
    let progress = scene.window.partitions[&place(0)].progress();
    assert_eq!(progress.unfinished.iter().collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(progress.retries, [(1, 1, at(6_000)), (3, 1, at(6_000)), (5, 1, at(7_000))]);
    assert_eq!((progress.watermark, progress.read_to), (1, 6));
}

#[test]
fn a_replay_ends_exactly_at_its_end() {
    let mut scene = WindowScene::new(Ordering::None);
    scene.publish_all(&[""; 10]);
    scene.window.close(place(0));
    scene.window.open(place(0), PartitionResume::at(3), Some(6), false);
    assert!(!scene.window.is_over());
    scene.read();
    for offset in 3..6 {
        assert!(!scene.window.is_over());
        let out = scene.next().unwrap();
        assert_eq!(out.offset, offset);
        scene.window.done(out.ticket);
    }
    assert!(scene.next().is_none() && scene.window.next_read().is_none() && scene.window.is_over());
    assert_eq!(scene.window.watermark(place(0)), Some(6));
}

#[test]
fn messages_of_a_parked_key_that_retention_removed_are_settled() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a", "a", "a"]);
    scene.park_next(1_000);
    scene.trim(place(0), 2);
    let lost = scene.window.gone(place(0), 0..2, 1);
    assert_eq!(lost.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [0]);
    let more = scene.window.gone(place(0), 0..2, 10);
    assert_eq!(more.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [1]);
    assert!(scene.window.gone(place(0), 0..2, 10).is_empty());
    assert_eq!(scene.window.watermark(place(0)), Some(0), "the settlement is not durable");
    lost.into_iter().chain(more).for_each(|(ticket, _)| assert!(scene.window.done(ticket)));
    assert_eq!(scene.window.watermark(place(0)), Some(2));
    scene.read();
    let next = scene.next().unwrap();
    assert_eq!((next.offset, next.attempts), (2, 0));
}

#[test]
fn damage_loses_only_its_own_range() {
    let mut scene = WindowScene::having_read(Ordering::None, &[""; 6]);
    let out = [(); 4].map(|()| scene.next().unwrap().ticket);
    out.into_iter().for_each(|ticket| assert!(scene.window.park(ticket, at(1_000), true)));
    let lost = scene.window.gone(place(0), 2..4, 10);
    assert_eq!(lost.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [2, 3], "earlier messages can be read");
    lost.into_iter().for_each(|(ticket, _)| assert!(scene.window.done(ticket)));
    scene.now = at(1_000);
    let mut delivered = scene.deliver_all();
    delivered.sort_unstable();
    assert_eq!(delivered, [(0, 0), (0, 1), (0, 4), (0, 5)]);
}

#[test]
fn a_parked_key_that_lost_a_later_message_stays_parked() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a", "a"]);
    scene.park_next(1_000);
    assert_eq!(scene.window.gone(place(0), 1..2, 10).len(), 1);
    assert_eq!(scene.window.next_time(), Some(at(1_000)));
    scene.read_at(1_000);
    let again = scene.next().unwrap();
    assert_eq!((again.offset, again.attempts), (0, 1));
}

#[test]
fn messages_that_retention_removed_before_a_restart_are_settled() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "b", "a", "c"]);
    let [a, b] = [(); 2].map(|()| scene.next().unwrap().ticket);
    scene.window.park(a, at(1_000), true);
    scene.window.done(b);
    scene.restart();
    scene.trim(place(0), 3);
    let lost = scene.window.gone(place(0), 0..3, 100);
    assert_eq!(lost.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(scene.window.watermark(place(0)), Some(0));
    lost.into_iter().for_each(|(ticket, _)| assert!(scene.window.done(ticket)));
    assert_eq!(scene.window.watermark(place(0)), Some(3));
}

#[test]
fn a_message_whose_body_the_log_no_longer_has_is_settled() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a"]);
    scene.park_next(0);
    scene.window.has_ready(at(0), FRESH);
    let wanted = scene.window.next_read().unwrap();
    assert!(wanted.again);
    let lost = scene.window.take_again(wanted, vec![scene.arrival(place(0), 1)], 2);
    assert_eq!(lost.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [0]);
    assert!(scene.window.done(lost[0].0));
    scene.read();
    assert_eq!(scene.next().unwrap().offset, 1);
}

#[test]
fn a_message_that_the_filter_drops_at_the_second_read_is_done() {
    let mut scene = WindowScene::having_read(Ordering::Key, &["a", "a"]);
    scene.park_next(0);
    scene.window.has_ready(at(0), FRESH);
    let wanted = scene.window.next_read().unwrap();
    let left_out = ReadMessage { body: None, ..scene.arrival(place(0), 0) };
    assert!(scene.window.take_again(wanted, vec![left_out, scene.arrival(place(0), 1)], 2).is_empty());
    assert_eq!(scene.window.watermark(place(0)), Some(1));
    scene.read();
    let next = scene.next().unwrap();
    assert_eq!((next.offset, next.attempts), (1, 0));
}

#[test]
fn a_closed_partition_leaves_nothing_behind() {
    let mut scene = WindowScene::new(Ordering::Key);
    scene.open(place(1), 0);
    scene.publish_all(&["a", "a", "b", "c", "d"]);
    scene.read();
    let out = [(); 3].map(|()| scene.next().unwrap().ticket);
    scene.window.park(out[0], at(1), true);
    scene.window.settle(out[1]);
    scene.window.close(place(0));
    assert_eq!((scene.window.in_flight(), scene.window.body_bytes(), scene.window.parked()), (0, 0, (0, 0)));
    assert!(out.iter().all(|ticket| !scene.window.done(*ticket)));
    assert!(scene.next().is_none() && scene.window.next_time().is_none());
}
