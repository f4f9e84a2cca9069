//! Progress on a Redis that is killed, emptied, full, or has lost its last writes: calls fail in bounded time, and an owner can continue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{Progress, ProgressError, ProgressKey, ProgressRow};
use whimbrel_model::{PartitionId, SubscriptionNumber, TopicNumber};

use crate::services::{Outage as _, OwnRedis};
use crate::{ONE, open_progress};

const SUB: SubscriptionNumber = SubscriptionNumber(7);
/// The sum of both timeouts of the settings, and a margin for a busy machine.
const PATIENCE_MAX: Duration = Duration::from_secs(3);

fn row(partition: u32, state: &'static str) -> ProgressRow {
    let place = ProgressKey { line: 0, partition: PartitionId::new(TopicNumber(3), partition) };
    ProgressRow { place, run: 1, state: Bytes::from_static(state.as_bytes()) }
}

/// A Redis whose subscription was opened by epoch 5 and has one row.
async fn with_a_row(state: &'static str) -> (OwnRedis, Arc<dyn Progress>) {
    let redis = OwnRedis::start();
    let progress = open_progress(redis.settings()).await;
    assert_eq!(progress.open(SUB, 5).await, Ok(vec![]));
    assert_eq!(progress.save(SUB, 5, vec![row(0, state)]).await, Ok(()));
    (redis, progress)
}

/// A connection notices a restart by its next call, which fails; the call after that reaches the new server.
async fn opened_when_it_answers(progress: &dyn Progress, epoch: u64) -> Vec<ProgressRow> {
    let began = Instant::now();
    loop {
        match progress.open(SUB, epoch).await {
            Ok(rows) => return rows,
            Err(error) => assert!(began.elapsed() < PATIENCE_MAX, "it does not come back: {error}"),
        }
    }
}

#[tokio::test]
async fn a_killed_redis_is_unavailable_at_once_and_has_every_acknowledged_save_after_its_restart() {
    needs_servers!(ONE);
    let (mut redis, progress) = with_a_row("a").await;
    redis.kill();
    let began = Instant::now();
    let refused = progress.save(SUB, 5, vec![row(0, "b")]).await;
    assert!(matches!(refused, Err(ProgressError::Unavailable(_))), "{refused:?}");
    assert!(began.elapsed() < PATIENCE_MAX, "it took {:?}", began.elapsed());
    redis.start_again();
    assert_eq!(opened_when_it_answers(&*progress, 5).await, [row(0, "a")]);
    assert_eq!(progress.save(SUB, 5, vec![row(0, "c")]).await, Ok(()));
    assert_eq!(progress.open(SUB, 4).await, Err(ProgressError::Fenced { subscription: SUB.0, epoch: 5 }));
}

#[tokio::test]
async fn an_emptied_redis_accepts_the_next_save_of_the_owner() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let progress = open_progress(redis.settings()).await;
    assert_eq!(progress.open(SUB, 5).await, Ok(vec![]));
    assert_eq!(progress.save(SUB, 5, vec![row(0, "a"), row(1, "b")]).await, Ok(()));
    assert_eq!(redis.cli(&["flushall"]), "OK");
    assert_eq!(redis.cli(&["script", "flush"]), "OK");
    assert_eq!(progress.save(SUB, 5, vec![row(0, "c")]).await, Ok(()));
    assert_eq!(progress.open(SUB, 6).await, Ok(vec![row(0, "c")]));
}

#[tokio::test]
async fn the_owner_opens_a_redis_again_that_lost_its_takeover() {
    needs_servers!(ONE);
    let (mut redis, progress) = with_a_row("earlier owner").await;
    let earlier = redis.copy_of_disk();
    assert_eq!(progress.open(SUB, 6).await, Ok(vec![row(0, "earlier owner")]));
    redis.fall_back_to(&earlier);
    let refused = loop {
        match progress.save(SUB, 6, vec![row(0, "owner")]).await {
            Err(ProgressError::Unavailable(_)) => {}
            other => break other,
        }
    };
    assert_eq!(refused, Err(ProgressError::Fenced { subscription: SUB.0, epoch: 5 }), "it says by which epoch");
    assert_eq!(progress.open(SUB, 6).await, Ok(vec![row(0, "earlier owner")]));
    assert_eq!(progress.save(SUB, 6, vec![row(0, "owner")]).await, Ok(()));
}

#[tokio::test]
async fn a_full_redis_rejects_a_whole_save_and_accepts_it_when_it_has_space() {
    needs_servers!(ONE);
    let (redis, progress) = with_a_row("a").await;
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "1"]), "OK");
    let refused = progress.save(SUB, 5, vec![row(0, "b"), row(1, "b")]).await;
    assert!(matches!(refused, Err(ProgressError::Unavailable(_))), "{refused:?}");
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "0"]), "OK");
    assert_eq!(progress.open(SUB, 5).await, Ok(vec![row(0, "a")]));
    assert_eq!(progress.save(SUB, 5, vec![row(0, "b"), row(1, "b")]).await, Ok(()));
}

#[tokio::test]
async fn a_forgotten_subscription_leaves_no_keys() {
    needs_servers!(ONE);
    let redis = OwnRedis::start();
    let progress = open_progress(redis.settings()).await;
    assert_eq!(progress.save(SUB, 5, vec![row(0, "a")]).await, Ok(()));
    assert_eq!(progress.forget(SUB).await, Ok(()));
    assert_eq!(redis.cli(&["keys", "*"]), "");
}
