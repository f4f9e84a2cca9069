//! Several shard owners as one: the node that owns a shard runs all of them.

use std::sync::Arc;

use futures_util::future::join_all;
use whimbrel_model::ports::{Membership, PortFuture};

use super::ShardOwner;

/// Begins all of them in order, and ends them concurrently: none depends on another to end.
pub struct ShardOwners(pub Vec<Arc<dyn ShardOwner>>);

impl ShardOwner for ShardOwners {
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>) {
        self.0.iter().for_each(|owner| owner.begin(shard, epoch, membership.clone()));
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        Box::pin(async move { drop(join_all(self.0.iter().map(|owner| owner.end(shard))).await) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::super::testing::{FakeCluster, FakeShardOwner, ServedShards, center};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_owners_begin_and_have_ended_when_end_returns() {
        let ledgers = [Arc::<ServedShards>::default(), Arc::<ServedShards>::default()];
        let takes = [Duration::from_secs(3), Duration::from_secs(1)];
        let owners = ledgers.iter().zip(takes).map(|(ledger, ending_takes)| {
            Arc::new(FakeShardOwner { node_name: 1, ledger: ledger.clone(), ending_takes }) as Arc<dyn ShardOwner>
        });
        let together = ShardOwners(owners.collect());
        let membership = FakeCluster::new().for_node().join(center(1), Some(1)).await.unwrap();
        together.begin(4, 9, membership);
        assert!(ledgers.iter().all(|ledger| ledger.serving().get(&4) == Some(&(1, 9))));
        let began = Instant::now();
        together.end(4).await;
        assert!(ledgers.iter().all(|ledger| ledger.serving().is_empty()));
        assert_eq!(began.elapsed(), Duration::from_secs(3), "they end at the same time");
    }
}
