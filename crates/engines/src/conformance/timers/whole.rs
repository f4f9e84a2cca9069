//! All calls together: against the reference model, concurrently, and over a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use whimbrel_model::ports::{ApplyOutcome, CountQuery, DueCursor, HoldQuery, TimersWrite};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, HoldId, Timestamp, TopicNumber};

use super::scene::{
    HoldStep, MANY_BYTES, MINUTE_MS, START_MS, ShardScene, at, dead, ended, fired, hold, hold_of, new_shard, take_shard,
};
use super::{OpenTimers, TimersFactory};
use crate::conformance::seeded_random::SeededRandom;

/// The number of rounds of the walk. Each round is one write and every kind of read.
const ROUNDS: usize = 200;
const SEED: u64 = 0x0068_6f6c_6473;

pub async fn a_random_walk_agrees_with_a_naive_model(factory: &dyn TimersFactory) {
    let (mut open, mut shard) = new_shard(factory).await;
    let mut dice = SeededRandom(SEED);
    for round in 0..ROUNDS {
        // The present time is in the middle of the due times, so that some steps change overdue holds.
        shard.now = at(round as i64 * 10);
        match dice.below(12) {
            0 => refused(&shard, &mut dice).await,
            1 => {
                let epoch = shard.epoch + dice.below(2);
                assert_eq!(shard.timers.open(shard.number, epoch).await, Ok(Some(shard.applied)), "round {round}");
                shard.epoch = epoch;
            }
            2 if dice.below(3) == 0 => {
                let reset = shard.reset(random_steps(&mut dice), dice.below(50));
                shard.done(reset).await;
            }
            3 if dice.below(3) == 0 => (open, shard) = opened_again(factory, open, shard).await,
            4 | 5 => {
                let steps = everything_due(&shard, random_due(&mut dice));
                shard.apply(steps).await;
            }
            _ => {
                let steps = random_steps(&mut dice);
                shard.apply(steps).await;
            }
        }
        let query = random_query(&mut dice, shard.now);
        assert_eq!(shard.list(query.clone()).await, shard.naive.list(&query), "round {round}: {query:?}");
        assert_eq!(shard.dead(query.clone()).await, shard.naive.dead(&query), "round {round}: {query:?}");
        let until = random_due(&mut dice);
        let page = shard.due_page(query.after.clone(), until.as_millis(), query.limit, MANY_BYTES).await;
        assert_eq!(page, shard.naive.due(query.after.as_ref(), until, query.limit), "round {round}: until {until}");
        let bucket = Duration::from_secs(60 * (1 + dice.below(5)));
        let count = CountQuery { topic: query.topic, from: query.from, to: query.to, bucket };
        assert_eq!(shard.count(count.clone()).await, shard.naive.count(&count), "round {round}: {count:?}");
        if round % 8 == 0 {
            shard.agrees().await;
        }
    }
    shard.agrees().await;
    drop(open);
}

async fn opened_again(factory: &dyn TimersFactory, open: OpenTimers, shard: ShardScene) -> (OpenTimers, ShardScene) {
    let ShardScene { timers, number, epoch, applied, now, naive } = shard;
    drop(timers);
    let open = factory.reopen(open).await;
    let shard = ShardScene { timers: Arc::clone(&open.port), number, epoch, applied, now, naive };
    (open, shard)
}

/// A write that must be rejected, for one of several reasons.
async fn refused(shard: &ShardScene, dice: &mut SeededRandom) {
    let write = shard.write(random_steps(dice));
    let behind = TimersWrite { expected: write.expected + 1 + dice.below(9), ..write.clone() };
    assert_eq!(shard.offer(behind).await, ApplyOutcome::Behind { at: shard.applied });
    let older = TimersWrite { epoch: shard.epoch - 1, reset: dice.below(2) == 0, ..write };
    assert_eq!(shard.offer(older).await, ApplyOutcome::OlderEpoch);
}

/// Changes of up to thirty ids from a small set, so that steps meet the same ids again.
fn random_steps(dice: &mut SeededRandom) -> Vec<HoldStep> {
    let mut ids: Vec<u64> = (0..60).collect();
    let count = dice.below(30) as usize;
    let mut steps = Vec::new();
    for _ in 0..count {
        let number = ids.swap_remove(dice.below(ids.len() as u64) as usize);
        let (id, due, topic) = (format!("hold-{number}"), random_due(dice), dice.below(3) as u32 + 1);
        let due = due.as_millis() - START_MS;
        let value = vec![b'x'; dice.below(300) as usize];
        let version = dice.below(1 << 40);
        steps.push(match dice.below(6) {
            0..3 => HoldStep::Put(Hold { version, ..hold_of(&id, due, topic, &value) }),
            3 => HoldStep::End(HoldId::new(&id), dead(due, topic)),
            4 => HoldStep::End(HoldId::new(&id), ended(HoldEndKind::Withdrawn, due, topic)),
            _ => HoldStep::End(HoldId::new(&id), HoldEnd { at: at(-(dice.below(30_000) as i64)), ..fired(due) }),
        });
    }
    steps
}

/// Ends every hold that is due before `until`.
fn everything_due(shard: &ShardScene, until: Timestamp) -> Vec<HoldStep> {
    let due = shard.naive.due(None, until, usize::MAX);
    due.iter()
        .map(|hold| HoldStep::End(hold.id.clone(), hold.ended(HoldEndKind::Fired { partition: 1 }, at(0))))
        .collect()
}

/// A time within ten minutes of the start of the suite, before or after it. It is coarse, so that many holds have the same due time.
fn random_due(dice: &mut SeededRandom) -> Timestamp {
    at((dice.below(60) as i64 - 30) * MINUTE_MS / 3)
}

fn random_query(dice: &mut SeededRandom, now: Timestamp) -> HoldQuery {
    let topic = (dice.below(2) == 0).then(|| TopicNumber(dice.below(4) as u32 + 1));
    let from = (dice.below(3) == 0).then(|| random_due(dice));
    let to = (dice.below(3) == 0).then(|| Timestamp::from_millis(random_due(dice).as_millis() + now.as_millis() % 2));
    let id = HoldId::new(&format!("hold-{}", dice.below(60)));
    let after = (dice.below(2) == 0).then(|| DueCursor { due: random_due(dice), id });
    HoldQuery { topic, from, to, after, limit: 1 + dice.below(40) as usize }
}

pub async fn shards_do_not_see_each_other(factory: &dyn TimersFactory) {
    let (open, mut first) = new_shard(factory).await;
    let mut second = take_shard(&open, 1).await;
    let mut third = take_shard(&open, 256).await;
    first.put(vec![hold("a", 10), hold("b", 20)]).await;
    second.put(vec![hold("a", 30)]).await;
    second.end("b", dead(20, 7)).await;
    third.put(vec![hold_of("c", 10, 8, b"third")]).await;
    for shard in [&first, &second, &third] {
        shard.agrees().await;
    }
    let reset = first.reset(Vec::new(), 5);
    first.done(reset).await;
    for shard in [&first, &second, &third] {
        shard.agrees().await;
    }
}

pub async fn a_large_payload_is_returned_whole(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    let value: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    shard.put(vec![hold_of("large", 10, 7, &value), hold("small", 11)]).await;
    shard.agrees().await;
    shard.put(vec![hold_of("large", 20, 7, &value[1..])]).await;
    shard.agrees().await;
}

pub async fn thousands_of_holds_of_one_write_are_returned_in_order(factory: &dyn TimersFactory) {
    const HOLDS: i64 = 10_000;
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..HOLDS).map(|n| hold(&format!("hold-{n}"), n * 7919 % HOLDS)).collect()).await;
    let pending = shard.naive.pending();
    let found = shard.due_all().await;
    assert!(found == pending, "all come back, in due order");
    let ends = pending[..9000].iter().map(|hold| HoldStep::End(hold.id.clone(), fired(0))).collect();
    shard.apply(ends).await;
    let found = shard.due_all().await;
    assert!(found == pending[9000..], "only the ended holds are removed");
}

pub async fn a_store_opened_again_is_as_it_was(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    shard.put((0..300).map(|n| hold(&format!("hold-{n}"), n * 1000)).collect()).await;
    shard.put((0..50).map(|n| hold(&format!("hold-{n}"), n * 3000)).collect()).await;
    shard
        .apply((100..150).map(|n| HoldStep::End(HoldId::new(&format!("hold-{n}")), dead(n * 1000, 7))).collect())
        .await;
    let (open, mut shard) = opened_again(factory, open, shard).await;
    shard.agrees().await;
    assert_eq!(open.open(0, shard.epoch).await, Ok(Some(shard.applied)));
    shard.put(vec![hold("one-more", 1)]).await;
    shard.agrees().await;
}

pub async fn reads_beside_writes_see_whole_writes_only(factory: &dyn TimersFactory) {
    const HOLDS: i64 = 20;
    let (open, mut shard) = new_shard(factory).await;
    let stop = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (timers, stop) = (Arc::clone(&open.port), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::Relaxed) {
                let page = timers.due(0, None, at(1 << 30), 1000, MANY_BYTES).await.expect("the store can be read");
                // Every write moves all holds to the millisecond of its number.
                let write = page.applied as i64 / 10;
                assert_eq!(page.found.len() as i64, if write == 0 { 0 } else { HOLDS });
                assert!(page.found.iter().all(|hold| hold.due == at(write)), "write {write}: {:?}", page.found);
                let found = timers.get(0, vec![HoldId::new("hold-3"), HoldId::new("hold-9")]).await;
                let found = found.expect("the store can be read").found;
                assert_eq!(found[0].is_some(), found[1].is_some());
            }
        }
    });
    for round in 1..=100 {
        shard.put((0..HOLDS).map(|n| hold(&format!("hold-{n}"), round)).collect()).await;
    }
    stop.store(true, Ordering::Relaxed);
    reader.await.expect("the reader saw whole writes only");
}
