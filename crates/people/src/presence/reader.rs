//! The reader: the port `Presence`. It finds a user's shard, reads it, and refuses where the shard's writer has not vouched for it for too
//! long. It keeps nothing; any number of them may run.
//!
//! Every data centre has the whole picture: where this one cannot answer, the others are asked, in order.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::time::timeout;
use whimbrel_model::Clock;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Heard, PortFuture, Presence, PresenceAnswer, PresenceError, Sessions, UserSessions};

use super::figures::Figures;
use super::packet::shard_of;
use super::remote::Remote;
use super::settings::{Layout, Place, PresenceSettings};
use whimbrel_cluster::presence_shards::{PresenceShards, ShardFreshness, ShardState};

pub struct Reader {
    pub(super) layout: Arc<Layout>,
    pub(super) settings: Arc<PresenceSettings>,
    pub(super) sessions: Arc<dyn Sessions>,
    /// Every process of the data centre reads the same store, so that no writer need be asked.
    pub(super) is_shared: bool,
    pub(super) remote: Arc<dyn Remote>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) figures: Arc<Figures>,
}

impl Presence for Reader {
    fn of(&self, uids: Vec<Uid>) -> PortFuture<'_, Result<PresenceAnswer, PresenceError>> {
        Box::pin(async move {
            let here = self.layout.here();
            let mut answer = self.ask_centre(here, &uids).await;
            for centre in (0..self.layout.centres().len()).filter(|centre| *centre != here) {
                if answer.is_ok() {
                    break;
                }
                // What this data centre said is what the caller hears if nobody can answer.
                answer = self.ask_centre(centre, &uids).await.or(answer);
            }
            if answer.is_err() {
                self.figures.reads_refused.increment(1);
            }
            answer
        })
    }
}

impl PresenceShards for Reader {
    fn look(&self) -> PortFuture<'_, Vec<ShardFreshness>> {
        let here = self.layout.here();
        let looks = (0..self.layout.shards(here)).map(move |shard| async move {
            let writer = match self.layout.place_of(here, shard) {
                Place::ThisProcess => None,
                Place::At(address) => Some(address.clone()),
            };
            let state = match self.read(here, shard, Vec::new()).await {
                Ok(heard) if self.is_fresh(heard.ago_ms) => ShardState::Fresh,
                Ok(heard) => ShardState::Stale { ago_ms: heard.ago_ms },
                Err(error) => ShardState::Unreadable(error.to_string()),
            };
            ShardFreshness { shard, writer, state }
        });
        Box::pin(join_all(looks))
    }
}

impl Reader {
    fn is_fresh(&self, ago_ms: Option<u64>) -> bool {
        ago_ms.is_some_and(|ago_ms| u128::from(ago_ms) <= self.settings.stale_after.as_millis())
    }

    async fn ask_centre(&self, centre: usize, uids: &[Uid]) -> Result<PresenceAnswer, PresenceError> {
        let shards = self.layout.shards(centre);
        // For each shard that is asked, the places of its users in the question.
        let mut asked: Vec<Vec<usize>> = vec![Vec::new(); shards as usize];
        for (place, uid) in uids.iter().enumerate() {
            asked[shard_of(uid, shards) as usize].push(place);
        }
        let reads = asked.iter().enumerate().filter(|(_, places)| !places.is_empty()).map(async |(shard, places)| {
            let uids = places.iter().map(|place| uids[*place].clone()).collect();
            Ok::<_, PresenceError>((places, self.read(centre, shard as u32, uids).await?))
        });
        // Whatever the stores say is how long ago it was when they were read, which is after this.
        let asked_at = self.clock.now();
        let mut users = vec![UserSessions::default(); uids.len()];
        let mut oldest_ms = 0;
        for (places, heard) in try_join_all(reads).await? {
            let Some(ago_ms) = heard.ago_ms.filter(|_| self.is_fresh(heard.ago_ms)) else {
                return Err(PresenceError::NotFresh { ago_ms: heard.ago_ms });
            };
            if heard.found.len() != places.len() {
                return Err(PresenceError::Unavailable("a store answered with other users than asked".to_owned()));
            }
            oldest_ms = oldest_ms.max(ago_ms);
            for (place, found) in places.iter().zip(heard.found) {
                users[*place] = found;
            }
        }
        let fresh_as_of = asked_at.saturating_sub(Duration::from_millis(oldest_ms));
        Ok(PresenceAnswer { users, fresh_as_of })
    }

    async fn read(&self, centre: usize, shard: u32, uids: Vec<Uid>) -> Result<Heard<Vec<UserSessions>>, PresenceError> {
        let within = self.settings.answer_within;
        let is_own_store = self.is_shared && centre == self.layout.here();
        let read = match self.layout.place_of(centre, shard) {
            Place::At(address) if !is_own_store => {
                timeout(within, self.remote.read(address, centre as u32, shard, uids)).await
            }
            _ => timeout(within, self.sessions.of(shard, uids)).await.map(|read| read.map_err(|e| e.to_string())),
        };
        let read = read.unwrap_or_else(|_| Err(format!("shard {shard} did not answer within {within:?}")));
        read.map_err(PresenceError::Unavailable)
    }
}
