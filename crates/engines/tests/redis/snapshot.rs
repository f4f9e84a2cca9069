//! A Redis that lost its last writes: the offset that it reports to readers, and to a writer that continues.

use std::sync::Arc;

use whimbrel_engines::conformance::timers::{self, at};
use whimbrel_engines::needs_servers;
use whimbrel_engines::redis::remove_holds;
use whimbrel_model::ports::{ApplyOutcome, CountQuery, HoldQuery, TimerChange, Timers, TimersWrite};
use whimbrel_model::{Hold, HoldEndKind, HoldId, TopicNumber};

use crate::services::{Outage as _, OwnRedis};
use crate::{ONE, connect, open_timers};

const SHARD: u32 = 3;
const EPOCH: u64 = 5;

fn hold(id: &str) -> Arc<Hold> {
    Arc::new(timers::hold(id, 1000))
}

fn put(id: &str, expected: u64, applied: u64) -> TimersWrite {
    let changes = vec![TimerChange::Put { hold: hold(id), was: None }];
    TimersWrite { epoch: EPOCH, expected, reset: false, changes, applied, floor: at(0), now: at(0), synced: false }
}

/// The applied offset that every kind of read returns.
async fn offsets_of_reads(timers: &dyn Timers) -> Vec<u64> {
    let listed = HoldQuery { topic: None, from: None, to: None, after: None, limit: 10 };
    let counted = CountQuery { topic: None, from: None, to: None, bucket: std::time::Duration::from_secs(60) };
    vec![
        timers.due(SHARD, None, at(2000), 10, 1 << 20).await.unwrap().applied,
        timers.get(SHARD, vec![HoldId::new("first")]).await.unwrap().applied,
        timers.list(SHARD, listed.clone()).await.unwrap().applied,
        timers.dead(SHARD, listed).await.unwrap().applied,
        timers.count(SHARD, counted).await.unwrap().applied,
    ]
}

async fn ids_due(timers: &dyn Timers) -> Vec<String> {
    let due = timers.due(SHARD, None, at(2000), 10, 1 << 20).await.unwrap();
    due.found.iter().map(|hold| hold.id.to_string()).collect()
}

/// A connection notices a restart by its next call, which fails; the call after that reaches the new server.
async fn until_it_answers(timers: &dyn Timers) {
    while timers.get(SHARD, Vec::new()).await.is_err() {}
}

#[tokio::test]
async fn a_store_that_lost_writes_reports_its_offset_to_every_reader_and_to_the_writer() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await;
    assert_eq!(timers.open(SHARD, EPOCH).await, Ok(Some(0)));
    assert_eq!(timers.apply(SHARD, put("first", 0, 10)).await, Ok(ApplyOutcome::Done));
    let earlier = redis.copy_of_disk();
    assert_eq!(timers.apply(SHARD, put("second", 10, 20)).await, Ok(ApplyOutcome::Done));
    let end = hold("first").ended(HoldEndKind::Withdrawn, at(1));
    let was = Some(whimbrel_model::ports::DueKey { due: at(1000), topic: TopicNumber(7) });
    let withdrawn = vec![TimerChange::End { id: HoldId::new("first"), end, was }];
    assert_eq!(
        timers.apply(SHARD, TimersWrite { changes: withdrawn, ..put("", 20, 30) }).await,
        Ok(ApplyOutcome::Done)
    );
    assert_eq!(offsets_of_reads(&*timers).await, [30; 5]);

    redis.fall_back_to(&earlier);
    until_it_answers(&*timers).await;
    assert_eq!(offsets_of_reads(&*timers).await, [10; 5], "a withdrawn hold is not believed to be pending");
    assert_eq!(timers.apply(SHARD, put("third", 30, 40)).await, Ok(ApplyOutcome::Behind { at: 10 }));
    assert_eq!(ids_due(&*timers).await, ["first"], "nothing was written");

    assert_eq!(
        timers.apply(SHARD, put("second", 10, 20)).await,
        Ok(ApplyOutcome::Done),
        "it is folded again from there"
    );
    assert_eq!(ids_due(&*timers).await, ["first", "second"]);
}

#[tokio::test]
async fn a_lost_store_is_at_zero_and_can_be_rebuilt() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start_with(&["--appendonly", "no"]);
    let timers = open_timers(redis.settings()).await;
    assert_eq!(timers.open(SHARD, EPOCH).await, Ok(Some(0)));
    assert_eq!(timers.apply(SHARD, put("first", 0, 10)).await, Ok(ApplyOutcome::Done));
    redis.kill();
    redis.start_again();
    until_it_answers(&*timers).await;
    assert_eq!(timers.apply(SHARD, put("second", 10, 20)).await, Ok(ApplyOutcome::Behind { at: 0 }));
    let rebuilt = TimersWrite { reset: true, ..put("second", 0, 20) };
    assert_eq!(timers.apply(SHARD, rebuilt).await, Ok(ApplyOutcome::Done));
    assert_eq!(ids_due(&*timers).await, ["second"]);
}

#[tokio::test]
async fn an_acknowledged_write_survives_a_crash_of_redis_with_an_append_only_file() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await;
    assert_eq!(timers.apply(SHARD, put("first", 0, 10)).await, Ok(ApplyOutcome::Done));
    redis.kill();
    redis.start_again();
    until_it_answers(&*timers).await;
    assert_eq!(timers.open(SHARD, EPOCH - 1).await, Ok(None), "the epoch too");
    assert_eq!(timers.open(SHARD, EPOCH).await, Ok(Some(10)));
    assert_eq!(ids_due(&*timers).await, ["first"]);
}

#[tokio::test]
async fn removed_holds_leave_no_keys() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await;
    let ended = |id: &str, how| {
        let end = hold(id).ended(how, at(1));
        TimerChange::End { id: HoldId::new(id), end, was: None }
    };
    let dead = HoldEndKind::Dead { reason: "the topic is gone".into() };
    let changes = vec![
        TimerChange::Put { hold: hold("pending"), was: None },
        ended("withdrawn", HoldEndKind::Withdrawn),
        ended("dead", dead),
    ];
    assert_eq!(timers.apply(SHARD, TimersWrite { changes, ..put("", 0, 10) }).await, Ok(ApplyOutcome::Done));
    let before = redis.cli(&["keys", "*"]).lines().count();
    let removed = remove_holds(&connect(redis.settings()).await, SHARD + 1).await;
    assert_eq!(removed, Ok(before as u64));
    assert_eq!(redis.cli(&["keys", "*"]), "");
    assert_eq!(timers.open(SHARD, 1).await, Ok(Some(0)), "it is as if nobody had written");
}
