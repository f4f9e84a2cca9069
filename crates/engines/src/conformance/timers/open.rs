//! Taking a shard for an epoch.

use super::TimersFactory;
use super::scene::{ShardScene, hold, new_shard, take_shard};

pub async fn a_shard_that_was_never_written_is_empty_at_zero(factory: &dyn TimersFactory) {
    let (_open, shard) = new_shard(factory).await;
    assert_eq!(shard.get("a").await, None);
    shard.agrees().await;
}

pub async fn an_older_epoch_cannot_open_a_shard(factory: &dyn TimersFactory) {
    let (open, _shard) = new_shard(factory).await;
    assert_eq!(open.open(0, 5).await, Ok(Some(0)));
    assert_eq!(open.open(0, 4).await, Ok(None));
}

pub async fn the_same_epoch_opens_a_shard_again(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 1)]).await;
    assert_eq!(open.open(0, shard.epoch).await, Ok(Some(shard.applied)));
    shard.put(vec![hold("b", 1)]).await;
}

pub async fn a_newer_epoch_takes_a_shard_and_gets_its_offset(factory: &dyn TimersFactory) {
    let (open, mut first) = new_shard(factory).await;
    first.put(vec![hold("a", 1)]).await;
    assert_eq!(open.open(0, 2).await, Ok(Some(first.applied)));
    let mut second = ShardScene { epoch: 2, ..first };
    second.put(vec![hold("b", 2)]).await;
    second.agrees().await;
}

pub async fn an_epoch_is_remembered_before_anything_is_written(factory: &dyn TimersFactory) {
    let (open, shard) = new_shard(factory).await;
    assert_eq!(open.open(0, 9).await, Ok(Some(0)));
    drop(shard);
    let open = factory.reopen(open).await;
    assert_eq!(open.open(0, 8).await, Ok(None));
    assert_eq!(open.open(0, 9).await, Ok(Some(0)));
}

pub async fn shards_have_epochs_of_their_own(factory: &dyn TimersFactory) {
    let (open, _shard) = new_shard(factory).await;
    assert_eq!(open.open(0, 9).await, Ok(Some(0)));
    let mut other = take_shard(&open, 1).await;
    other.put(vec![hold("a", 1)]).await;
}
