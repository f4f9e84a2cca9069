//! Writes: atomic, at the applied offset of the store, by the newest owner.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::future::join_all;
use whimbrel_model::HoldId;
use whimbrel_model::ports::{ApplyOutcome, TimersWrite};

use super::TimersFactory;
use super::scene::{HoldStep, ShardScene, dead, fired, hold, ids_of, new_shard};

pub async fn a_write_moves_the_store_to_its_offset(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 1)]).await;
    shard.put(vec![hold("b", 1)]).await;
    assert_eq!(open.open(0, shard.epoch).await, Ok(Some(20)));
    shard.agrees().await;
}

pub async fn a_write_without_changes_moves_the_store_too(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    shard.apply(Vec::new()).await;
    assert_eq!(open.open(0, shard.epoch).await, Ok(Some(10)));
}

/// A write that would change every row that [`some_holds`] puts.
fn upheaval(shard: &ShardScene) -> TimersWrite {
    let ends = ["a", "b"].map(|id| HoldStep::End(HoldId::new(id), fired(1)));
    shard.write([HoldStep::Put(hold("c", 900)), HoldStep::Put(hold("new", 5))].into_iter().chain(ends).collect())
}

fn some_holds() -> Vec<HoldStep> {
    vec![
        HoldStep::Put(hold("a", 1)),
        HoldStep::Put(hold("b", 2)),
        HoldStep::Put(hold("c", 3)),
        HoldStep::End(HoldId::new("d"), fired(1)),
        HoldStep::End(HoldId::new("e"), dead(1, 7)),
    ]
}

pub async fn a_write_from_elsewhere_is_told_where_the_store_is_and_changes_nothing(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.apply(some_holds()).await;
    for expected in [0, 9, 11, 5000] {
        let write = TimersWrite { expected, applied: 6000, ..upheaval(&shard) };
        assert_eq!(shard.offer(write).await, ApplyOutcome::Behind { at: 10 });
        shard.agrees().await;
    }
    let write = upheaval(&shard);
    shard.done(write).await;
}

pub async fn a_write_of_an_older_epoch_is_refused_and_changes_nothing(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    shard.apply(some_holds()).await;
    assert_eq!(open.open(0, 2).await, Ok(Some(10)));
    assert_eq!(shard.offer(upheaval(&shard)).await, ApplyOutcome::OlderEpoch);
    shard.agrees().await;
    let lost = TimersWrite { expected: 3, ..upheaval(&shard) };
    assert_eq!(shard.offer(lost).await, ApplyOutcome::OlderEpoch, "a former owner is rejected at any offset");
}

pub async fn one_of_many_writes_at_the_same_offset_is_done(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    let writes: Vec<_> = (0..8).map(|n| shard.write(vec![HoldStep::Put(hold(&format!("hold-{n}"), n))])).collect();
    let outcomes = join_all(writes.iter().map(|write| shard.offer(write.clone()))).await;
    let done: Vec<_> = outcomes.iter().zip(&writes).filter(|(outcome, _)| **outcome == ApplyOutcome::Done).collect();
    assert_eq!(done.len(), 1, "{outcomes:?}");
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == ApplyOutcome::Behind { at: 10 }).count(),
        7,
        "{outcomes:?}"
    );
    shard.follow(done[0].1);
    shard.agrees().await;
}

pub async fn a_reset_empties_the_shard_and_its_own_changes_stay(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.apply(some_holds()).await;
    let reset = shard.reset(vec![HoldStep::Put(hold("b", 70_000)), HoldStep::Put(hold("f", 3))], 20);
    shard.done(reset).await;
    shard.agrees().await;
    assert_eq!(shard.get_many(&["a", "c", "d", "e"]).await, [None, None, None, None]);
    assert_eq!(ids_of(&shard.due_all().await), ["f", "b"]);
}

pub async fn a_reset_may_go_back_to_an_earlier_offset(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.apply(some_holds()).await;
    shard.apply(Vec::new()).await;
    let reset = shard.reset(vec![HoldStep::Put(hold("x", 2))], 4);
    shard.done(reset).await;
    shard.agrees().await;
    shard.put(vec![hold("y", 1)]).await;
    shard.agrees().await;
}

pub async fn a_reset_at_another_offset_empties_nothing(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.apply(some_holds()).await;
    let reset = TimersWrite { expected: 7, ..shard.reset(Vec::new(), 20) };
    assert_eq!(shard.offer(reset).await, ApplyOutcome::Behind { at: 10 });
    shard.agrees().await;
}

pub async fn a_reset_of_an_older_epoch_empties_nothing(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    shard.apply(some_holds()).await;
    assert_eq!(open.open(0, 2).await, Ok(Some(10)));
    assert_eq!(shard.offer(shard.reset(Vec::new(), 20)).await, ApplyOutcome::OlderEpoch);
    shard.agrees().await;
}

pub async fn rows_from_before_a_reset_are_never_visible_again(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    for round in 0..3 {
        shard.put((0..200).map(|n| hold(&format!("hold-{round}-{n}"), n)).collect()).await;
        shard.end(&format!("ended-{round}"), dead(1, 7)).await;
        let reset = shard.reset(vec![HoldStep::Put(hold("kept", 7))], shard.applied);
        shard.done(reset).await;
        shard.agrees().await;
    }
    drop(shard.timers);
    let open = factory.reopen(open).await;
    ShardScene { timers: open.port.clone(), ..shard }.agrees().await;
}

pub async fn a_dropped_write_is_whole_or_absent(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.apply(some_holds()).await;
    for round in 0..20 {
        let write = shard.write((0..50).map(|n| HoldStep::Put(hold(&format!("hold-{n}"), n + round))).collect());
        {
            let mut dropped = shard.timers.apply(shard.number, write.clone());
            // Begins the write, and drops it before it can answer, unless it answers at once.
            poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready())).await;
        }
        match shard.offer(write.clone()).await {
            ApplyOutcome::Done => {}
            ApplyOutcome::Behind { at } => assert_eq!(at, write.applied, "the dropped write was done"),
            ApplyOutcome::OlderEpoch => panic!("no other owner has the shard"),
        }
        shard.follow(&write);
        shard.agrees().await;
    }
}
