//! A Redis that is down, frozen or full: calls end in bounded time with an error, and succeed again after Redis has recovered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_engines::needs_servers;
use whimbrel_engines::redis::RedisReceipts;
use whimbrel_engines::stores::ReceiptSettings;
use whimbrel_model::ports::{
    ApplyOutcome, Claim, ClaimKind, ClaimState, PublishReceipt, Receipts as _, ReceiptsError, Timers, TimersError,
    TimersWrite,
};
use whimbrel_model::{Clock as _, PartitionId, SystemClock, Timestamp, TopicNumber};

use crate::services::{Outage as _, OwnRedis};
use crate::{ONE, connect, open_receipts, open_timers};

/// The sum of both timeouts of the settings, and a margin for a busy machine.
const PATIENCE_MAX: Duration = Duration::from_secs(3);

pub fn empty_write(expected: u64, applied: u64) -> TimersWrite {
    let zero = Timestamp::from_millis(0);
    TimersWrite {
        epoch: 1,
        expected,
        reset: false,
        changes: Vec::new(),
        applied,
        floor: zero,
        now: zero,
        synced: false,
    }
}

/// A Redis with a write that moved its timers to offset 10.
async fn with_a_write() -> (OwnRedis, Arc<dyn Timers>) {
    let redis = OwnRedis::start();
    let timers = open_timers(redis.settings()).await;
    assert_eq!(timers.apply(0, empty_write(0, 10)).await, Ok(ApplyOutcome::Done));
    (redis, timers)
}

fn claim() -> Claim {
    let partition = PartitionId::new(TopicNumber(1), 0);
    let (owner, text) = (String::new(), "order-1".to_owned());
    Claim { owner, kind: ClaimKind::Key, text, topic: partition.topic, partition, fingerprint: 7 }
}

#[tokio::test]
async fn a_killed_redis_is_unavailable_at_once_and_used_again_after_its_restart() {
    needs_servers!(ONE);
    let (mut redis, timers) = with_a_write().await;
    let receipts = open_receipts(redis.settings()).await;
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
    while receipts.begin(&claim(), 0, Timestamp::from_millis(0)).await != Ok(ClaimState::New) {
        assert!(back.elapsed() < PATIENCE_MAX, "it does not come back");
    }
}

#[tokio::test]
async fn a_call_to_a_frozen_redis_times_out_and_the_offset_shows_its_outcome() {
    needs_servers!(ONE);
    let (redis, timers) = with_a_write().await;
    redis.freeze();
    let began = Instant::now();
    let outcome = timers.apply(0, empty_write(10, 20)).await;
    let waited = began.elapsed();
    redis.go_on();
    assert!(matches!(outcome, Err(TimersError::Unavailable(_))), "{outcome:?}");
    assert!(waited < PATIENCE_MAX, "it took {waited:?}");
    // The write waited in the frozen server's socket: the server executes it when it continues, and only once.
    loop {
        match timers.apply(0, empty_write(10, 20)).await {
            Err(TimersError::Unavailable(_)) if began.elapsed() < 3 * PATIENCE_MAX => {}
            done => break assert_eq!(done, Ok(ApplyOutcome::Behind { at: 20 })),
        }
    }
}

#[tokio::test]
async fn a_full_redis_rejects_a_whole_write_and_accepts_it_when_it_has_space() {
    needs_servers!(ONE);
    let (redis, timers) = with_a_write().await;
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "1"]), "OK");
    let refused = timers.apply(0, empty_write(10, 20)).await;
    assert!(matches!(refused, Err(TimersError::Unavailable(_))), "{refused:?}");
    assert_eq!(timers.get(0, Vec::new()).await.map(|at| at.applied), Ok(10), "it still reads");
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "0"]), "OK");
    assert_eq!(timers.apply(0, empty_write(10, 20)).await, Ok(ApplyOutcome::Done));
}

#[tokio::test]
async fn evicted_scripts_are_sent_again() {
    needs_servers!(ONE);
    let (redis, timers) = with_a_write().await;
    assert_eq!(redis.cli(&["script", "flush"]), "OK");
    assert_eq!(timers.apply(0, empty_write(10, 20)).await, Ok(ApplyOutcome::Done));
}

/// Far less than a lease: a longer wait would show that the claim lapsed.
const MUCH_LESS_THAN_A_LEASE: Duration = Duration::from_secs(30);
/// Tests wait for its end. Within it, the process sends Redis the outcome of a claim that reached Redis late.
const SHORT_LEASE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

async fn two_nodes(redis: &OwnRedis) -> (RedisReceipts, RedisReceipts) {
    two_nodes_with(redis, ReceiptSettings::default().lease).await
}

/// Two nodes whose scripts Redis has cached, so that it executes a late call.
async fn two_nodes_with(redis: &OwnRedis, lease: Duration) -> (RedisReceipts, RedisReceipts) {
    let receipts = ReceiptSettings { lease, ..ReceiptSettings::default() };
    let node = async || RedisReceipts::new(connect(redis.settings()).await, receipts.clone());
    let (first, second) = (node().await, node().await);
    let warming_up = Claim { text: "warming up".to_owned(), ..claim() };
    assert_eq!(first.begin(&warming_up, 0, SystemClock.now()).await, Ok(ClaimState::New));
    first.finish(&warming_up, answer(SystemClock.now())).await.unwrap();
    (first, second)
}

fn answer(answered_at: Timestamp) -> PublishReceipt {
    PublishReceipt { id: "m1".to_owned(), partition: claim().partition, offset: 6, due: None, answered_at }
}

/// Begins a claim that times out at the node and reaches Redis afterwards.
async fn begin_late(redis: &OwnRedis, node: &RedisReceipts, end: u64, now: Timestamp) {
    redis.freeze();
    let stalled = node.begin(&claim(), end, now).await;
    redis.go_on();
    assert!(matches!(stalled, Err(ReceiptsError::Unavailable(_))), "{stalled:?}");
}

/// Begins at a node until Redis answers something else than that the claim is in progress.
async fn begin_until_known(node: &RedisReceipts, now: Timestamp) -> ClaimState {
    let began = Instant::now();
    loop {
        match node.begin(&claim(), 0, now).await {
            Ok(begun) if begun != ClaimState::UnderWay => return begun,
            waits => assert!(began.elapsed() < MUCH_LESS_THAN_A_LEASE, "still {waits:?}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test]
async fn a_claim_that_reaches_redis_late_is_taken_over_by_a_repeat_at_the_same_node() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    begin_late(&redis, &first, 0, now).await;
    loop {
        match first.begin(&claim(), 0, now).await {
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            begun => break assert_eq!(begun, Ok(ClaimState::New), "nothing was written under the first claim"),
        }
    }
    assert_eq!(second.begin(&claim(), 0, now).await, Ok(ClaimState::UnderWay), "the repeat has the claim");
    first.finish(&claim(), answer(now)).await.unwrap();
    assert_eq!(begin_until_known(&second, now).await, ClaimState::Earlier(answer(now)));
}

#[tokio::test]
async fn a_claim_that_reaches_redis_late_is_released_for_the_other_nodes_too() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    begin_late(&redis, &first, 0, now).await;
    assert_eq!(begin_until_known(&second, now).await, ClaimState::New);
}

#[tokio::test]
async fn an_unconfirmed_answer_is_used_here_at_once_and_by_other_nodes_soon() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    assert_eq!(first.begin(&claim(), 0, now).await, Ok(ClaimState::New));
    // A Redis that is down gets no late call: the node must send the answer again.
    redis.kill();
    assert!(first.finish(&claim(), answer(now)).await.is_err());
    assert_eq!(first.begin(&claim(), 0, now).await, Ok(ClaimState::Earlier(answer(now))));
    let other_body = Claim { fingerprint: 8, ..claim() };
    assert_eq!(first.begin(&other_body, 0, now).await, Ok(ClaimState::Different));
    redis.start_again();
    assert_eq!(begin_until_known(&second, now).await, ClaimState::Earlier(answer(now)));
}

#[tokio::test]
async fn a_claim_that_could_not_be_released_is_released_after_redis_is_back() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    assert_eq!(first.begin(&claim(), 0, now).await, Ok(ClaimState::New));
    redis.kill();
    assert!(first.abandon(&claim()).await.is_err());
    redis.start_again();
    assert_eq!(begin_until_known(&second, now).await, ClaimState::New);
}

#[tokio::test]
async fn a_released_late_claim_keeps_the_places_of_earlier_tries() {
    needs_servers!(ONE);
    for is_repeated_here in [false, true] {
        let redis = OwnRedis::start();
        let (first, second) = two_nodes_with(&redis, SHORT_LEASE).await;
        earlier_tries_stay(&redis, &first, &second, is_repeated_here).await;
    }
}

/// The first node abandons the claim. The first or the second node repeats it.
async fn earlier_tries_stay(redis: &OwnRedis, first: &RedisReceipts, second: &RedisReceipts, is_repeated_here: bool) {
    let now = SystemClock.now();
    assert_eq!(second.begin(&claim(), 5, now).await, Ok(ClaimState::New));
    second.leave(&claim()).await.unwrap();
    tokio::time::sleep(SHORT_LEASE + POLL_INTERVAL).await;
    begin_late(redis, first, 9, now).await;
    let places = vec![(claim().partition, 5)];
    let repeater = if is_repeated_here { first } else { second };
    if is_repeated_here {
        // Time for the release of the late claim to arrive: with and without it the answer is the same.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(begin_until_known(repeater, now).await, ClaimState::Lapsed { places });
}
