//! A Redis that is gone, frozen or full: calls end in bounded time with an error, and work again when it does.

use std::time::{Duration, Instant};

use whimbrel_model::ports::{Applied, Begun, Claim, ClaimKind, Receipts as _, ReceiptsError, TimersError, Write};
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

use crate::needs_redis;
use crate::server::OwnRedis;
use crate::{open_receipts, open_timers};

/// Both timeouts of the settings together, and what a busy machine adds.
const PATIENCE_MAX: Duration = Duration::from_secs(3);

fn empty_write(expected: u64, applied: u64) -> Write {
    let zero = Timestamp::from_millis(0);
    Write { epoch: 1, expected, reset: false, changes: Vec::new(), applied, floor: zero, now: zero, synced: false }
}

fn claim() -> Claim {
    let partition = PartitionId::new(TopicNumber(1), 0);
    let (owner, text) = (String::new(), "order-1".to_owned());
    Claim { owner, kind: ClaimKind::Key, text, topic: partition.topic, partition, fingerprint: 7 }
}

#[tokio::test]
async fn a_redis_that_was_killed_is_unavailable_at_once_and_found_again_when_it_is_back() {
    needs_redis!();
    let mut redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await.timers;
    let receipts = open_receipts(redis.settings()).await;
    assert_eq!(timers.apply(0, empty_write(0, 10)).await, Ok(Applied::Done));
    redis.kill();
    let began = Instant::now();
    assert!(matches!(timers.apply(0, empty_write(10, 20)).await, Err(TimersError::Unavailable(_))));
    assert!(matches!(timers.open(0, 1).await, Err(TimersError::Unavailable(_))));
    let begun = receipts.begin(&claim(), 0, Timestamp::from_millis(0)).await;
    assert!(matches!(begun, Err(ReceiptsError::Unavailable(_))), "{begun:?}");
    assert!(began.elapsed() < PATIENCE_MAX, "it took {:?}", began.elapsed());

    redis.start_again();
    let back = Instant::now();
    while timers.open(0, 1).await != Ok(Some(10)) {
        assert!(back.elapsed() < PATIENCE_MAX, "it does not come back");
    }
    while receipts.begin(&claim(), 0, Timestamp::from_millis(0)).await != Ok(Begun::New) {
        assert!(back.elapsed() < PATIENCE_MAX, "it does not come back");
    }
}

#[tokio::test]
async fn a_redis_that_does_not_answer_costs_no_more_than_the_patience_and_the_offset_tells_what_it_did() {
    needs_redis!();
    let redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await.timers;
    assert_eq!(timers.apply(0, empty_write(0, 10)).await, Ok(Applied::Done));
    redis.freeze(true);
    let began = Instant::now();
    let outcome = timers.apply(0, empty_write(10, 20)).await;
    let waited = began.elapsed();
    redis.freeze(false);
    assert!(matches!(outcome, Err(TimersError::Unavailable(_))), "{outcome:?}");
    assert!(waited < PATIENCE_MAX, "it took {waited:?}");
    // The write lay in the frozen server's socket: it is done when the server goes on, and only once.
    loop {
        match timers.apply(0, empty_write(10, 20)).await {
            Err(TimersError::Unavailable(_)) if began.elapsed() < 3 * PATIENCE_MAX => {}
            done => break assert_eq!(done, Ok(Applied::Behind { at: 20 })),
        }
    }
}

#[tokio::test]
async fn a_full_redis_refuses_a_write_whole_and_takes_it_when_it_has_room() {
    needs_redis!();
    let redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await.timers;
    assert_eq!(timers.apply(0, empty_write(0, 10)).await, Ok(Applied::Done));
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "1"]), "OK");
    let refused = timers.apply(0, empty_write(10, 20)).await;
    assert!(matches!(refused, Err(TimersError::Unavailable(_))), "{refused:?}");
    assert_eq!(timers.get(0, Vec::new()).await.map(|at| at.applied), Ok(10), "it still reads");
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "0"]), "OK");
    assert_eq!(timers.apply(0, empty_write(10, 20)).await, Ok(Applied::Done));
}

#[tokio::test]
async fn a_redis_that_forgot_its_scripts_is_given_them_again() {
    needs_redis!();
    let redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await.timers;
    assert_eq!(timers.apply(0, empty_write(0, 10)).await, Ok(Applied::Done));
    assert_eq!(redis.cli(&["script", "flush"]), "OK");
    assert_eq!(timers.apply(0, empty_write(10, 20)).await, Ok(Applied::Done));
}
