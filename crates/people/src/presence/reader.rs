//! The reader: the port `Presence`. It reads a user's shard, and rejects the query if the writer has not confirmed the shard's freshness
//! recently. It is stateless; any number of readers may run.
//!
//! Every data centre has all sessions. If this one cannot answer, the reader asks the others, in order.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::time::timeout;
use whimbrel_model::Clock;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{PortFuture, Presence, PresenceAnswer, PresenceError, Sessions, UserSessions};

use super::metrics::PresenceMetrics;
use super::packet::shard_of;
use super::remote::{Remote, ShardUsers};
use super::settings::{Layout, NodeLocation, PresenceSettings};
use whimbrel_cluster::presence_shards::{PresenceShardState, PresenceShards, ShardFreshness};

pub struct PresenceReader {
    pub(super) layout: Arc<Layout>,
    pub(super) settings: Arc<PresenceSettings>,
    pub(super) sessions: Arc<dyn Sessions>,
    /// All processes of the data centre share the store, so a reader needs no remote writer.
    pub(super) is_shared: bool,
    pub(super) remote: Arc<dyn Remote>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<PresenceMetrics>,
}

impl Presence for PresenceReader {
    fn of(&self, uids: Vec<Uid>) -> PortFuture<'_, Result<PresenceAnswer, PresenceError>> {
        Box::pin(async move {
            let here = self.layout.here();
            let mut answer = self.ask_centre(here, &uids).await;
            for centre in (0..self.layout.centres().len()).filter(|centre| *centre != here) {
                if answer.is_ok() {
                    break;
                }
                // If no data centre can answer, the caller gets the error of this one.
                answer = self.ask_centre(centre, &uids).await.or(answer);
            }
            if answer.is_err() {
                self.metrics.reads_refused.increment(1);
            }
            answer
        })
    }
}

impl PresenceShards for PresenceReader {
    fn look(&self) -> PortFuture<'_, Vec<ShardFreshness>> {
        let here = self.layout.here();
        let looks = (0..self.layout.shards(here)).map(move |shard| async move {
            let writer = match self.layout.place_of(here, shard) {
                NodeLocation::ThisProcess => None,
                NodeLocation::At(address) => Some(address.clone()),
            };
            let state = match self.read(here, shard, Vec::new()).await {
                Ok(heard) if self.is_fresh(heard.ago_ms) => PresenceShardState::Fresh,
                Ok(heard) => PresenceShardState::Stale { ago_ms: heard.ago_ms },
                Err(error) => PresenceShardState::Unreadable(error.to_string()),
            };
            ShardFreshness { shard, writer, state }
        });
        Box::pin(join_all(looks))
    }
}

impl PresenceReader {
    fn is_fresh(&self, ago_ms: Option<u64>) -> bool {
        ago_ms.is_some_and(|ago_ms| u128::from(ago_ms) <= self.settings.stale_after.as_millis())
    }

    async fn ask_centre(&self, centre: usize, uids: &[Uid]) -> Result<PresenceAnswer, PresenceError> {
        let shards = self.layout.shards(centre);
        // For each shard, the indexes of its users in the query.
        let mut asked: Vec<Vec<usize>> = vec![Vec::new(); shards as usize];
        for (place, uid) in uids.iter().enumerate() {
            asked[shard_of(uid, shards) as usize].push(place);
        }
        let reads = asked.iter().enumerate().filter(|(_, places)| !places.is_empty()).map(async |(shard, places)| {
            let uids = places.iter().map(|place| uids[*place].clone()).collect();
            Ok::<_, PresenceError>((places, self.read(centre, shard as u32, uids).await?))
        });
        // Ages are relative to the time of the reads, which is after this.
        let asked_at = self.clock.now();
        let mut users = vec![UserSessions::default(); uids.len()];
        let mut oldest_ms = 0;
        for (places, heard) in try_join_all(reads).await? {
            let Some(ago_ms) = heard.ago_ms.filter(|_| self.is_fresh(heard.ago_ms)) else {
                return Err(PresenceError::NotFresh { ago_ms: heard.ago_ms });
            };
            if heard.found.len() != places.len() {
                return Err(PresenceError::Unavailable("a store returned a wrong number of users".to_owned()));
            }
            oldest_ms = oldest_ms.max(ago_ms);
            for (place, found) in places.iter().zip(heard.found) {
                users[*place] = found;
            }
        }
        let fresh_as_of = asked_at.saturating_sub(Duration::from_millis(oldest_ms));
        Ok(PresenceAnswer { users, fresh_as_of })
    }

    async fn read(&self, centre: usize, shard: u32, uids: Vec<Uid>) -> Result<ShardUsers, PresenceError> {
        let within = self.settings.answer_within;
        let is_own_store = self.is_shared && centre == self.layout.here();
        let read = match self.layout.place_of(centre, shard) {
            NodeLocation::At(address) if !is_own_store => {
                timeout(within, self.remote.read(address, centre as u32, shard, uids)).await
            }
            _ => timeout(within, self.sessions.of(shard, uids)).await.map(|read| read.map_err(|e| e.to_string())),
        };
        let read = read.unwrap_or_else(|_| Err(format!("shard {shard} did not answer within {within:?}")));
        read.map_err(PresenceError::Unavailable)
    }
}
