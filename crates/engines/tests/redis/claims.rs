//! Claims that two nodes share: their holder, their lapse, and the actions of a slow holder.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use whimbrel_engines::needs_servers;
use whimbrel_engines::redis::{RedisReceipts, RedisSettings};
use whimbrel_engines::stores::ReceiptSettings;
use whimbrel_model::ports::{Claim, ClaimKind, ClaimState, PublishReceipt, Receipts as _, ReceiptsError};
use whimbrel_model::{Clock as _, PartitionId, SystemClock, Timestamp, TopicNumber};

use crate::services::{Outage as _, OwnRedis};
use crate::{LEASE, ONE, Shared, connect, open_receipts};

async fn two_nodes() -> (RedisReceipts, RedisReceipts) {
    let settings = Shared(ONE).settings();
    (open_receipts(settings.clone()).await, open_receipts(settings).await)
}

fn claim(partition: u32) -> Claim {
    let partition = PartitionId::new(TopicNumber(1), partition);
    let (owner, text) = (String::new(), "order-1".to_owned());
    Claim { owner, kind: ClaimKind::Id, text, topic: partition.topic, partition, fingerprint: 7 }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1000)
}

fn answer(offset: u64, at: Timestamp) -> PublishReceipt {
    PublishReceipt { id: "order-1".to_owned(), partition: claim(0).partition, offset, due: None, answered_at: at }
}

#[tokio::test]
async fn a_claim_of_one_node_and_its_answer_apply_to_all_nodes() {
    needs_servers!(ONE);
    let (first, second) = two_nodes().await;
    assert_eq!(first.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    assert_eq!(second.begin(&claim(0), 5, at(1)).await, Ok(ClaimState::UnderWay));
    assert_eq!(second.begin(&Claim { fingerprint: 8, ..claim(0) }, 5, at(1)).await, Ok(ClaimState::Different));
    first.finish(&claim(0), answer(6, at(1))).await.unwrap();
    assert_eq!(second.begin(&claim(0), 9, at(2)).await, Ok(ClaimState::Earlier(answer(6, at(1)))));
    assert_eq!(second.find("order-1").await, Ok(vec![answer(6, at(1))]));
}

#[tokio::test]
async fn a_claim_whose_append_takes_long_does_not_lapse_on_its_own_node() {
    needs_servers!(ONE);
    let (first, _) = two_nodes().await;
    assert_eq!(first.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    assert_eq!(first.begin(&claim(0), 6, at(50_000)).await, Ok(ClaimState::UnderWay));
}

async fn node(settings: &RedisSettings) -> RedisReceipts {
    let receipts = ReceiptSettings { lease: LEASE, ..ReceiptSettings::default() };
    RedisReceipts::new(connect(settings.clone()).await, receipts)
}

async fn two_nodes_with_a_short_lease() -> (RedisReceipts, RedisReceipts) {
    let settings = Shared(ONE).settings();
    (node(&settings).await, node(&settings).await)
}

const LAPSE: Duration = LEASE.saturating_add(Duration::from_millis(100));

#[tokio::test]
async fn a_claim_with_an_unknown_outcome_lapses_after_its_lease_with_all_its_places() {
    needs_servers!(ONE);
    let (first, second) = two_nodes_with_a_short_lease().await;
    assert_eq!(first.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    first.leave(&claim(0)).await.unwrap();
    assert_eq!(second.begin(&claim(1), 8, at(0)).await, Ok(ClaimState::UnderWay), "what was sent may still land");
    let (first_place, second_place) = ((claim(0).partition, 5), (claim(1).partition, 8));
    tokio::time::sleep(LAPSE).await;
    assert_eq!(second.begin(&claim(1), 8, at(1)).await, Ok(ClaimState::Lapsed { places: vec![first_place] }));
    second.leave(&claim(1)).await.unwrap();
    tokio::time::sleep(LAPSE).await;
    let both = ClaimState::Lapsed { places: vec![first_place, second_place] };
    assert_eq!(first.begin(&claim(2), 9, at(3)).await, Ok(both));
    first.leave(&claim(2)).await.unwrap();
    tokio::time::sleep(LAPSE).await;
    assert!(matches!(first.begin(&claim(2), 9, at(12 * 3600 - 100)).await, Ok(ClaimState::Lapsed { .. })));
    first.leave(&claim(2)).await.unwrap();
    tokio::time::sleep(LAPSE).await;
    assert_eq!(
        first.begin(&claim(2), 9, at(12 * 3600 + 61)).await,
        Ok(ClaimState::New),
        "the window is that of the first try"
    );
}

#[tokio::test]
async fn a_node_whose_clock_is_ahead_does_not_take_a_claim_over_before_its_lease_is_over() {
    needs_servers!(ONE);
    let (first, ahead) = two_nodes_with_a_short_lease().await;
    assert_eq!(first.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    assert_eq!(ahead.begin(&claim(0), 8, at(600)).await, Ok(ClaimState::UnderWay));
}

#[tokio::test]
async fn a_claim_of_a_node_whose_clock_is_ahead_lapses_after_its_lease() {
    needs_servers!(ONE);
    let (ahead, second) = two_nodes_with_a_short_lease().await;
    assert_eq!(ahead.begin(&claim(0), 5, at(600)).await, Ok(ClaimState::New));
    ahead.leave(&claim(0)).await.unwrap();
    tokio::time::sleep(LAPSE).await;
    let places = vec![(claim(0).partition, 5)];
    assert_eq!(second.begin(&claim(0), 8, at(0)).await, Ok(ClaimState::Lapsed { places }));
}

#[tokio::test]
async fn the_claim_of_a_node_that_died_lapses_for_the_others() {
    needs_servers!(ONE);
    let (first, second) = two_nodes_with_a_short_lease().await;
    assert_eq!(first.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    drop(first);
    assert_eq!(second.begin(&claim(0), 8, at(0)).await, Ok(ClaimState::UnderWay));
    tokio::time::sleep(LAPSE).await;
    let places = vec![(claim(0).partition, 5)];
    assert_eq!(second.begin(&claim(0), 8, at(1)).await, Ok(ClaimState::Lapsed { places }));
}

/// A node that runs only while [`Self::run`] does. At all other times it is paused, as by SIGSTOP.
struct PausedNode {
    runtime: Runtime,
    receipts: RedisReceipts,
}

impl PausedNode {
    fn start(settings: &RedisSettings) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let receipts = runtime.block_on(node(settings));
        Self { runtime, receipts }
    }

    fn run<T>(&self, call: impl Future<Output = T>) -> T {
        self.runtime.block_on(call)
    }
}

/// A node that is paused after it has claimed, and another one on the same Redis.
fn paused_holder() -> (PausedNode, PausedNode) {
    let settings = Shared(ONE).settings();
    let (paused, other) = (PausedNode::start(&settings), PausedNode::start(&settings));
    assert_eq!(paused.run(paused.receipts.begin(&claim(0), 5, at(0))), Ok(ClaimState::New));
    std::thread::sleep(LAPSE);
    (paused, other)
}

/// The same, after the other node has taken the claim over.
fn taken_over() -> (PausedNode, PausedNode) {
    let (paused, other) = paused_holder();
    assert!(matches!(other.run(other.receipts.begin(&claim(0), 8, at(1))), Ok(ClaimState::Lapsed { .. })));
    (paused, other)
}

#[test]
fn a_paused_node_detects_that_another_node_took_its_claim_over() {
    needs_servers!(ONE);
    let (paused, other) = taken_over();
    assert_eq!(paused.run(paused.receipts.still_holds(&claim(0))), Ok(false));
    assert_eq!(other.run(other.receipts.still_holds(&claim(0))), Ok(true));
    other.run(other.receipts.finish(&claim(0), answer(9, at(2)))).unwrap();
    assert_eq!(paused.run(paused.receipts.still_holds(&claim(0))), Ok(false));
}

#[test]
fn a_paused_node_keeps_a_claim_that_was_not_taken_over() {
    needs_servers!(ONE);
    let (paused, other) = paused_holder();
    assert_eq!(paused.run(paused.receipts.still_holds(&claim(0))), Ok(true));
    assert_eq!(other.run(other.receipts.begin(&claim(0), 8, at(1))), Ok(ClaimState::UnderWay));
}

#[test]
fn a_paused_node_without_redis_cannot_confirm_its_claim() {
    needs_servers!(ONE);
    let mut redis = OwnRedis::start();
    let paused = PausedNode::start(&redis.settings());
    assert_eq!(paused.run(paused.receipts.begin(&claim(0), 5, at(0))), Ok(ClaimState::New));
    redis.kill();
    assert_eq!(paused.run(paused.receipts.still_holds(&claim(0))), Ok(true), "the lease has just begun");
    std::thread::sleep(LAPSE);
    let unknown = paused.run(paused.receipts.still_holds(&claim(0)));
    assert!(matches!(unknown, Err(ReceiptsError::Unavailable(_))), "{unknown:?}");
}

#[test]
fn a_slow_holder_cannot_give_up_a_claim_that_another_took_over() {
    needs_servers!(ONE);
    let (paused, _other) = taken_over();
    paused.run(paused.receipts.abandon(&claim(0))).unwrap();
    assert_eq!(paused.run(paused.receipts.begin(&claim(0), 9, at(1))), Ok(ClaimState::UnderWay));
}

#[test]
fn the_first_answer_stays_when_a_slow_holder_finishes_too() {
    needs_servers!(ONE);
    let (paused, other) = taken_over();
    other.run(other.receipts.finish(&claim(0), answer(9, at(2)))).unwrap();
    paused.run(paused.receipts.finish(&claim(0), answer(7, at(3)))).unwrap();
    assert_eq!(paused.run(paused.receipts.begin(&claim(0), 9, at(4))), Ok(ClaimState::Earlier(answer(9, at(2)))));
    let lasting = paused.run(paused.receipts.find("order-1")).unwrap();
    let lasting: Vec<u64> = lasting.iter().map(|found| found.offset).collect();
    assert_eq!(lasting, [9, 7], "both messages are there and both are found");
}

#[tokio::test]
async fn a_claim_is_renewed_while_its_append_is_in_progress() {
    needs_servers!(ONE);
    let (first, second) = two_nodes_with_a_short_lease().await;
    assert_eq!(first.begin(&claim(0), 5, at(0)).await, Ok(ClaimState::New));
    let began = Instant::now();
    while began.elapsed() < 2 * LEASE {
        assert_eq!(second.begin(&claim(0), 8, at(0)).await, Ok(ClaimState::UnderWay), "asking does not renew it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn every_key_of_a_claim_expires() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let receipts = open_receipts(redis.settings()).await;
    let key = |text: &str| Claim { kind: ClaimKind::Key, text: text.to_owned(), ..claim(0) };
    let now = SystemClock.now();
    for claim in [claim(0), key("finished"), key("left"), key("under way")] {
        assert_eq!(receipts.begin(&claim, 5, now).await, Ok(ClaimState::New));
    }
    receipts.finish(&claim(0), answer(6, now)).await.unwrap();
    receipts.finish(&key("finished"), answer(7, now)).await.unwrap();
    receipts.leave(&key("left")).await.unwrap();
    let keys = redis.cli(&["keys", "*"]);
    assert_eq!(keys.lines().count(), 5, "{keys}");
    for key in keys.lines() {
        let expires_in_ms: i64 = redis.cli(&["pttl", key]).parse().unwrap();
        assert!(expires_in_ms > 0, "{key} expires in {expires_in_ms} ms");
    }
}
