//! Several duties as one: whoever owns a shard does all of them.

use std::sync::Arc;

use futures_util::future::join_all;
use whimbrel_model::ports::{Membership, PortFuture};

use super::Duties;

/// Begins all of them in their order, and ends all of them at once: none of them needs another to end.
pub struct Together(pub Vec<Arc<dyn Duties>>);

impl Duties for Together {
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>) {
        self.0.iter().for_each(|duties| duties.begin(shard, epoch, membership.clone()));
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        Box::pin(async move { drop(join_all(self.0.iter().map(|duties| duties.end(shard))).await) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::super::testing::{FakeCluster, FakeDuties, Ledger, center};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_duties_begin_and_all_have_ended_when_the_end_returns() {
        let ledgers = [Arc::<Ledger>::default(), Arc::<Ledger>::default()];
        let takes = [Duration::from_secs(3), Duration::from_secs(1)];
        let duties = ledgers.iter().zip(takes).map(|(ledger, ending_takes)| {
            Arc::new(FakeDuties { node_name: 1, ledger: ledger.clone(), ending_takes }) as Arc<dyn Duties>
        });
        let together = Together(duties.collect());
        let membership = FakeCluster::new().for_node().join(center(1), Some(1)).await.unwrap();
        together.begin(4, 9, membership);
        assert!(ledgers.iter().all(|ledger| ledger.serving().get(&4) == Some(&(1, 9))));
        let began = Instant::now();
        together.end(4).await;
        assert!(ledgers.iter().all(|ledger| ledger.serving().is_empty()));
        assert_eq!(began.elapsed(), Duration::from_secs(3), "they end at the same time");
    }
}
