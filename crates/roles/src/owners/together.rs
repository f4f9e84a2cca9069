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
