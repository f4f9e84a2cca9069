//! A Redis that is gone, frozen or full: calls end in bounded time with an error, and work again when it does.

use std::time::{Duration, Instant};

use whimbrel_engines::embedded::ReceiptSettings;
use whimbrel_engines::redis::RedisReceipts;
use whimbrel_model::ports::{
    Answer, Applied, Begun, Claim, ClaimKind, Receipts as _, ReceiptsError, TimersError, Write,
};
use whimbrel_model::{Clock as _, PartitionId, SystemClock, Timestamp, TopicNumber};

use crate::needs_redis;
use crate::server::OwnRedis;
use crate::{connect, open_receipts, open_timers};

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

/// Less than a lease, by far: what takes longer waited for the lease.
const MUCH_LESS_THAN_A_LEASE: Duration = Duration::from_secs(30);
/// A test waits for its end. The process tells Redis the outcome of a claim that Redis got late well within it.
const SHORT_LEASE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

async fn two_nodes(redis: &OwnRedis) -> (RedisReceipts, RedisReceipts) {
    two_nodes_with(redis, ReceiptSettings::default().lease).await
}

/// Two nodes whose scripts Redis knows, so that a call that it gets late is executed.
async fn two_nodes_with(redis: &OwnRedis, lease: Duration) -> (RedisReceipts, RedisReceipts) {
    let receipts = ReceiptSettings { lease, ..ReceiptSettings::default() };
    let node = async || RedisReceipts::new(connect(redis.settings()).await, receipts.clone());
    let (first, second) = (node().await, node().await);
    let warming_up = Claim { text: "warming up".to_owned(), ..claim() };
    assert_eq!(first.begin(&warming_up, 0, SystemClock.now()).await, Ok(Begun::New));
    first.finish(&warming_up, answer(SystemClock.now())).await.unwrap();
    (first, second)
}

fn answer(answered_at: Timestamp) -> Answer {
    Answer { id: "m1".to_owned(), partition: claim().partition, offset: 6, due: None, answered_at }
}

/// Begins at a node until Redis answers something else than that the claim is under way.
async fn begin_until_known(node: &RedisReceipts, now: Timestamp) -> Begun {
    let began = Instant::now();
    loop {
        match node.begin(&claim(), 0, now).await {
            Ok(begun) if begun != Begun::UnderWay => return begun,
            waits => assert!(began.elapsed() < MUCH_LESS_THAN_A_LEASE, "still {waits:?}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test]
async fn a_claim_that_a_stalled_redis_gets_late_is_taken_over_by_a_repeat_at_the_same_node() {
    needs_redis!();
    let redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    redis.freeze(true);
    let stalled = first.begin(&claim(), 0, now).await;
    redis.freeze(false);
    assert!(matches!(stalled, Err(ReceiptsError::Unavailable(_))), "{stalled:?}");
    loop {
        match first.begin(&claim(), 0, now).await {
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            begun => break assert_eq!(begun, Ok(Begun::New), "nothing was written under the first claim"),
        }
    }
    assert_eq!(second.begin(&claim(), 0, now).await, Ok(Begun::UnderWay), "the repeat has the claim");
    first.finish(&claim(), answer(now)).await.unwrap();
    assert_eq!(begin_until_known(&second, now).await, Begun::Earlier(answer(now)));
}

#[tokio::test]
async fn a_claim_that_a_stalled_redis_gets_late_is_given_up_for_the_other_nodes_too() {
    needs_redis!();
    let redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    redis.freeze(true);
    let stalled = first.begin(&claim(), 0, now).await;
    redis.freeze(false);
    assert!(matches!(stalled, Err(ReceiptsError::Unavailable(_))), "{stalled:?}");
    assert_eq!(begin_until_known(&second, now).await, Begun::New);
}

#[tokio::test]
async fn an_answer_that_a_stalled_redis_did_not_take_is_known_here_at_once_and_elsewhere_soon() {
    needs_redis!();
    let mut redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    assert_eq!(first.begin(&claim(), 0, now).await, Ok(Begun::New));
    // A Redis that is gone gets no call late: somebody must bring the answer again.
    redis.kill();
    assert!(first.finish(&claim(), answer(now)).await.is_err());
    assert_eq!(first.begin(&claim(), 0, now).await, Ok(Begun::Earlier(answer(now))));
    let other_body = Claim { fingerprint: 8, ..claim() };
    assert_eq!(first.begin(&other_body, 0, now).await, Ok(Begun::Different));
    redis.start_again();
    assert_eq!(begin_until_known(&second, now).await, Begun::Earlier(answer(now)));
}

#[tokio::test]
async fn a_claim_that_could_not_be_given_up_is_given_up_when_redis_is_back() {
    needs_redis!();
    let mut redis = OwnRedis::start();
    let (first, second) = two_nodes(&redis).await;
    let now = SystemClock.now();
    assert_eq!(first.begin(&claim(), 0, now).await, Ok(Begun::New));
    redis.kill();
    assert!(first.abandon(&claim()).await.is_err());
    redis.start_again();
    assert_eq!(begin_until_known(&second, now).await, Begun::New);
}

#[tokio::test]
async fn a_late_claim_that_is_given_up_leaves_earlier_tries_to_be_looked_for() {
    needs_redis!();
    for is_repeated_here in [false, true] {
        let redis = OwnRedis::start();
        let (first, second) = two_nodes_with(&redis, SHORT_LEASE).await;
        earlier_tries_stay(&redis, &first, &second, is_repeated_here).await;
    }
}

/// The claim is given up by the first node, and repeated by it or by the other one.
async fn earlier_tries_stay(redis: &OwnRedis, first: &RedisReceipts, second: &RedisReceipts, is_repeated_here: bool) {
    let now = SystemClock.now();
    assert_eq!(second.begin(&claim(), 5, now).await, Ok(Begun::New));
    second.leave(&claim()).await.unwrap();
    tokio::time::sleep(SHORT_LEASE + POLL_INTERVAL).await;
    redis.freeze(true);
    let stalled = first.begin(&claim(), 9, now).await;
    redis.freeze(false);
    assert!(stalled.is_err(), "{stalled:?}");
    let places = vec![(claim().partition, 5)];
    let repeater = if is_repeated_here { first } else { second };
    if is_repeated_here {
        // Time for the release of the late claim to arrive: with and without it the answer is the same.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(begin_until_known(repeater, now).await, Begun::Lapsed { places });
}
