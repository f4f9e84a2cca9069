//! Tests of growing topics: a moved key's new messages wait for its old ones, and no message waits forever.

use super::scene::key_with;
use super::*;

/// A key with that many messages in partition 0, which moves to partition 2 and has one more message there.
fn with_moved_key(messages_before: usize) -> WindowScene {
    let mut scene = WindowScene::with_partitions(Ordering::Key, 2);
    let moved = key_with(&[(2, 0), (3, 2)]);
    scene.publish_all(&vec![&*moved; messages_before]);
    scene.grow(3);
    scene.publish(&moved);
    scene
}

#[test]
fn a_moved_keys_new_messages_wait_for_its_old_ones() {
    let mut scene = with_moved_key(1);
    scene.read();
    let old = scene.next().unwrap();
    assert_eq!(old.partition, place(0));
    assert!(scene.next().is_none(), "the old message is in flight");
    scene.window.done(old.ticket);
    scene.read();
    assert_eq!(scene.next().unwrap().partition, place(2));
}

#[test]
fn a_moved_keys_new_messages_wait_for_unread_old_ones() {
    let mut scene = with_moved_key(1);
    let reads: Vec<_> = std::iter::from_fn(|| scene.window.next_read()).collect();
    let new = reads.iter().find(|wanted| wanted.partition == place(2)).unwrap();
    scene.window.take_in(new.partition, vec![scene.arrival(place(2), 0)], 1);
    assert!(scene.next().is_none());
    scene.window.take_in(place(0), vec![scene.arrival(place(0), 0)], 1);
    assert_eq!(scene.next().unwrap().partition, place(0));
}

#[test]
fn a_moved_keys_new_messages_wait_while_its_old_ones_are_parked() {
    let mut scene = with_moved_key(2);
    scene.read();
    scene.park_next(1_000);
    scene.read();
    assert!(scene.next().is_none());
    scene.now = at(1_000);
    assert_eq!(scene.deliver_all(), [(0, 0), (0, 1), (2, 0)]);
}

#[test]
fn keys_that_did_not_move_do_not_wait() {
    let mut scene = WindowScene::with_partitions(Ordering::Key, 2);
    let (moved, other) = (key_with(&[(2, 0), (3, 2)]), key_with(&[(2, 1), (3, 1)]));
    scene.publish(&moved);
    scene.grow(3);
    scene.publish(&other);
    scene.read();
    let [first, second] = [(); 2].map(|()| scene.next().unwrap().partition.index);
    assert_eq!(first + second, 1, "both are in flight");
}

#[test]
fn the_order_of_a_key_holds_through_two_growths_in_a_row() {
    // The key returns to its first partition. Its newest messages follow its oldest there, and others elsewhere.
    let back = key_with(&[(2, 0), (3, 2), (4, 0)]);
    for parked in [false, true] {
        let mut scene = WindowScene::with_partitions(Ordering::Key, 2);
        scene.publish(&back);
        scene.grow(3);
        scene.publish(&back);
        scene.grow(4);
        scene.publish(&back);
        scene.read();
        if parked {
            scene.park_next(1_000);
            scene.read();
            assert!(scene.next().is_none());
            scene.now = at(1_000);
        }
        assert_eq!(scene.deliver_all(), [(0, 0), (2, 0), (0, 1)]);
    }
}

#[test]
fn ordered_partitions_wait_for_all_messages_before_the_growth() {
    let mut scene = WindowScene::with_partitions(Ordering::Partition, 2);
    let (here, there) = (key_with(&[(2, 0), (3, 2)]), key_with(&[(2, 1), (3, 1)]));
    scene.publish(&here);
    scene.publish(&there);
    scene.grow(3);
    scene.publish(&here);
    scene.read();
    let out = [(); 2].map(|()| scene.next().unwrap());
    assert!(scene.next().is_none());
    scene.window.park(out[1].ticket, at(1_000), true);
    scene.window.done(out[0].ticket);
    assert!(scene.next().is_none(), "an old partition is not done");
    scene.now = at(1_000);
    assert_eq!(scene.deliver_all().last(), Some(&(2, 0)));
    assert_eq!(scene.window.watermark(place(2)), Some(1));
}

#[test]
fn a_restart_after_a_growth_keeps_the_order() {
    let mut scene = with_moved_key(2);
    scene.read();
    scene.park_next(1_000);
    scene.restart();
    scene.read();
    assert!(scene.next().is_none());
    scene.now = at(1_000);
    assert_eq!(scene.deliver_all(), [(0, 0), (0, 1), (2, 0)]);
}

#[test]
fn a_parked_key_waits_for_old_messages_whose_progress_was_lost() {
    let mut scene = with_moved_key(1);
    scene.read();
    let old = scene.next().unwrap();
    scene.window.done(old.ticket);
    scene.read();
    scene.park_next(1_000);
    scene.restart();
    // The progress of the old partition is lost.
    scene.window.close(place(0));
    scene.open(place(0), 0);
    scene.read_at(1_000);
    scene.window.has_ready(scene.now, FRESH);
    scene.read();
    let out = scene.next().unwrap();
    assert_eq!(out.partition, place(0));
    assert!(scene.next().is_none(), "the key has one message in flight");
    scene.window.done(out.ticket);
    scene.read();
    let last = scene.next().unwrap();
    assert_eq!((last.partition, last.attempts), (place(2), 1), "its retry schedule continues");
}

#[test]
fn a_key_whose_old_messages_were_lost_continues() {
    let mut scene = with_moved_key(1);
    scene.read();
    scene.park_next(1_000);
    let lost = scene.window.gone(place(0), 0..1, 10);
    lost.into_iter().for_each(|(ticket, _)| assert!(scene.window.done(ticket)));
    assert_eq!(scene.deliver_all(), [(2, 0)]);
}

#[test]
fn ordered_partitions_continue_when_the_last_old_message_was_lost() {
    let mut scene = WindowScene::with_partitions(Ordering::Partition, 2);
    scene.publish(&key_with(&[(2, 0)]));
    scene.grow(3);
    scene.publish(&key_with(&[(3, 2)]));
    scene.read();
    scene.park_next(1_000);
    let lost = scene.window.gone(place(0), 0..1, 10);
    lost.into_iter().for_each(|(ticket, _)| assert!(scene.window.done(ticket)));
    assert_eq!(scene.deliver_all(), [(2, 0)]);
}

#[test]
fn a_replay_does_not_wait_for_old_messages_beyond_its_end() {
    let moved = key_with(&[(2, 0), (3, 2)]);
    for ordering in [Ordering::Key, Ordering::Partition] {
        let mut scene = WindowScene::with_partitions(ordering, 2);
        scene.publish(&moved);
        scene.publish(&moved);
        scene.grow(3);
        scene.publish(&moved);
        (0..3).for_each(|index| scene.window.close(place(index)));
        scene.window.open(place(0), PartitionResume::at(0), Some(1), false);
        scene.window.open(place(1), PartitionResume::at(0), Some(0), false);
        scene.window.open(place(2), PartitionResume::at(0), Some(1), false);
        assert_eq!(scene.deliver_all(), [(0, 0), (2, 0)]);
        assert!(scene.window.is_over());
    }
}

#[test]
fn a_closed_partition_delays_no_lane() {
    let mut scene = with_moved_key(1);
    scene.read();
    scene.park_next(1_000);
    scene.window.close(place(0));
    assert_eq!(scene.deliver_all(), [(2, 0)]);
}
