//! Whether this process can deliver pushes and answer presence requests, as far as its roles need it. `/readyz` and the page for people
//! show it.
//!
//! It only reads the state of the roles. A condition that was met once counts as met: a partition that moves to another owner and a store
//! that pauses recover without help, and pushes are accepted meanwhile. Taking nodes out of service for that would make it worse.
//!
//! Only the capabilities of this process count. A stale shard of presence that another process writes is a warning: a machine that is
//! down must not keep every restarting one out of service.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Carriers, Presence};
use whimbrel_model::{EventSink, Timestamp};

use crate::presence_shards::{PresenceShardState, PresenceShards, ShardFreshness, StaleReports, listed};

/// Timeout of a presence request.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const SHARDS_CHECKED_EVERY: Duration = Duration::from_secs(5);
/// How long after its start a process waits until the shards that it writes are fresh. Later, an unreachable gateway of another process
/// must not keep this process out of service.
const OWN_SHARDS_WAIT: Duration = Duration::from_secs(15);
/// The number of users in a presence request that covers every shard. They need not exist.
const ASKED_USERS: usize = 64;

pub trait GatewayStatus: Send + Sync {
    /// Whether the gateway accepts devices: they wait until it has joined the cluster.
    fn has_joined(&self) -> bool;

    fn connections(&self) -> usize;
}

/// The roles and ports of this process that reachability depends on.
pub struct ReachabilityParts {
    pub carriers: Arc<dyn Carriers>,
    pub presence: Arc<dyn Presence>,
    pub presence_shards: Arc<dyn PresenceShards>,
    /// Present if the process has the role `gateway`.
    pub gateway: Option<Arc<dyn GatewayStatus>>,
    /// Whether the process needs owners of users: a carrier or a gateway does.
    pub needs_owners: bool,
    pub needs_presence: bool,
}

pub struct Reachability {
    parts: ReachabilityParts,
    started_at: Instant,
    was_ready: AtomicBool,
    /// The number of shards, and the stale ones that other processes write, at the last check.
    stale_elsewhere: Mutex<(usize, BTreeSet<u32>)>,
}

impl Reachability {
    pub fn new(parts: ReachabilityParts) -> Self {
        let started_at = Instant::now();
        Self { parts, started_at, was_ready: AtomicBool::new(false), stale_elsewhere: Mutex::default() }
    }

    /// Why this process must not get requests yet. Empty if it is ready.
    pub async fn reasons_not_ready(&self) -> Vec<String> {
        if self.was_ready.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let parts = &self.parts;
        let mut reasons = Vec::new();
        if parts.gateway.as_ref().is_some_and(|gateway| !gateway.has_joined()) {
            reasons.push("the gateway has not joined the others yet".to_owned());
        }
        if parts.needs_owners {
            let owner_links = Arc::clone(&parts.carriers.owner_links().borrow());
            let (all, missing) =
                (owner_links.len(), owner_links.iter().filter(|owner_link| owner_link.is_none()).count());
            if missing > 0 {
                reasons.push(format!("{missing} of {all} partitions of pushes have no owner yet"));
            }
        }
        if parts.needs_presence {
            reasons.extend(self.own_shards_missing(&self.look_at_shards().await));
        }
        if reasons.is_empty() {
            self.was_ready.store(true, Ordering::Relaxed);
        }
        reasons
    }

    /// Conditions that operators should see although this process is ready.
    pub fn warnings(&self) -> Vec<String> {
        let last = self.stale_elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, stale) = &*last;
        if stale.is_empty() {
            return Vec::new();
        }
        let (count, shards) = (stale.len(), listed(stale));
        vec![format!("{count} of {all} shards of presence are stale, written by other processes: {shards}")]
    }

    /// Checks the shards of presence every 5 s, and reports stale shards that other processes write.
    pub async fn watch(&self, events: EventSink, ends: CancellationToken) {
        let mut reports = StaleReports::default();
        loop {
            tokio::select! {
                () = ends.cancelled() => return,
                () = sleep(SHARDS_CHECKED_EVERY) => {}
            }
            if let Some(event) = reports.update(&self.look_at_shards().await) {
                events(event);
            }
        }
    }

    async fn look_at_shards(&self) -> Vec<ShardFreshness> {
        let found = self.parts.presence_shards.look().await;
        let is_stale = |shard: &&ShardFreshness| shard.is_remote() && !shard.is_fresh();
        let stale: BTreeSet<u32> = found.iter().filter(is_stale).map(|shard| shard.shard).collect();
        metrics::gauge!("whimbrel_presence_remote_stale_shards").set(stale.len() as f64);
        *self.stale_elsewhere.lock().unwrap_or_else(PoisonError::into_inner) = (found.len(), stale);
        found
    }

    /// Why the shards that this process writes are not usable yet.
    fn own_shards_missing(&self, found: &[ShardFreshness]) -> Option<String> {
        let own = || found.iter().filter(|shard| !shard.is_remote());
        let unreadable = own().find_map(|shard| match &shard.state {
            PresenceShardState::Unreadable(why) => {
                Some(format!("shard {} of presence cannot be read: {why}", shard.shard))
            }
            _ => None,
        });
        let (all, missing) = (own().count(), own().filter(|shard| !shard.is_fresh()).count());
        let waits = missing > 0 && self.started_at.elapsed() < OWN_SHARDS_WAIT;
        unreadable.or_else(|| {
            waits.then(|| format!("{missing} of {all} shards of presence of this process are not fresh yet"))
        })
    }

    /// The number of devices connected to the gateway of this process, if it has one.
    pub fn connections(&self) -> Option<usize> {
        self.parts.gateway.as_ref().map(|gateway| gateway.connections())
    }

    /// The time at which presence was true at the latest, over all shards.
    pub async fn presence_as_of(&self) -> Result<Timestamp, String> {
        let uids = (0..ASKED_USERS).filter_map(|number| Uid::new(&number.to_string()).ok()).collect();
        match tokio::time::timeout(ANSWER_WITHIN, self.parts.presence.of(uids)).await {
            Ok(Ok(answer)) => Ok(answer.fresh_as_of),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("presence does not answer".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::watch;
    use whimbrel_model::people::GatewayId;
    use whimbrel_model::ports::{
        NoCarrier, OwnerLink, PeopleError, PeopleQuery, PeopleReply, PortFuture, PresenceAnswer, PresenceError,
        ToCarrier, UserSessions,
    };

    use super::*;

    const OWNED: Option<OwnerLink> = Some(OwnerLink { number: 1, epoch: 1 });

    /// All other components, with a state that the test sets.
    struct FakeComponents {
        owner_links: watch::Sender<Arc<Vec<Option<OwnerLink>>>>,
        has_joined: AtomicBool,
        /// How stale presence is, in milliseconds.
        presence_ago_ms: AtomicUsize,
        /// The result of a check of the shards of presence.
        shards: Mutex<Vec<ShardFreshness>>,
    }

    impl PresenceShards for FakeComponents {
        fn look(&self) -> PortFuture<'_, Vec<ShardFreshness>> {
            Box::pin(async { self.shards.lock().unwrap().clone() })
        }
    }

    fn shard(shard: u32, writer: Option<&str>, state: PresenceShardState) -> ShardFreshness {
        ShardFreshness { shard, writer: writer.map(str::to_owned), state }
    }

    const STALE: PresenceShardState = PresenceShardState::Stale { ago_ms: Some(9_000) };

    impl Carriers for FakeComponents {
        fn partitions(&self) -> u32 {
            self.owner_links.borrow().len() as u32
        }

        fn tell(&self, partition: u32, _: GatewayId, _: Vec<ToCarrier>) -> Result<(), NoCarrier> {
            Err(NoCarrier(partition))
        }

        fn owner_links(&self) -> watch::Receiver<Arc<Vec<Option<OwnerLink>>>> {
            self.owner_links.subscribe()
        }

        fn ask(&self, partition: u32, _: PeopleQuery) -> PortFuture<'_, Result<PeopleReply, PeopleError>> {
            Box::pin(async move { Err(PeopleError::NoOwner(partition)) })
        }
    }

    impl Presence for FakeComponents {
        fn of(&self, uids: Vec<Uid>) -> PortFuture<'_, Result<PresenceAnswer, PresenceError>> {
            Box::pin(async move {
                match self.presence_ago_ms.load(Ordering::Relaxed) {
                    0 => Ok(PresenceAnswer {
                        users: vec![UserSessions::default(); uids.len()],
                        fresh_as_of: Timestamp::from_millis(7),
                    }),
                    ago_ms => Err(PresenceError::NotFresh { ago_ms: Some(ago_ms as u64) }),
                }
            })
        }
    }

    impl GatewayStatus for FakeComponents {
        fn has_joined(&self) -> bool {
            self.has_joined.load(Ordering::Relaxed)
        }

        fn connections(&self) -> usize {
            3
        }
    }

    fn not_ready() -> Arc<FakeComponents> {
        Arc::new(FakeComponents {
            owner_links: watch::channel(Arc::new(vec![None; 4])).0,
            has_joined: AtomicBool::new(false),
            presence_ago_ms: AtomicUsize::new(9_000),
            shards: Mutex::new(vec![shard(0, None, STALE)]),
        })
    }

    fn reach(others: &Arc<FakeComponents>, needs_people: bool) -> Reachability {
        Reachability::new(ReachabilityParts {
            carriers: others.clone(),
            presence: others.clone(),
            presence_shards: others.clone(),
            gateway: needs_people.then(|| others.clone() as Arc<dyn GatewayStatus>),
            needs_owners: needs_people,
            needs_presence: needs_people,
        })
    }

    #[tokio::test]
    async fn each_missing_condition_is_a_reason_and_without_reasons_it_is_ready() {
        let others = not_ready();
        let reach = reach(&others, true);
        let reasons = reach.reasons_not_ready().await;
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        others.has_joined.store(true, Ordering::Relaxed);
        others.owner_links.send_replace(Arc::new(vec![OWNED, None, OWNED, None]));
        let reasons = reach.reasons_not_ready().await;
        assert_eq!(reasons[0], "2 of 4 partitions of pushes have no owner yet");
        assert_eq!(reasons[1], "1 of 1 shards of presence of this process are not fresh yet");
        others.owner_links.send_replace(Arc::new(vec![OWNED; 4]));
        others.presence_ago_ms.store(0, Ordering::Relaxed);
        others.shards.lock().unwrap()[0].state = PresenceShardState::Fresh;
        assert!(reach.reasons_not_ready().await.is_empty());
        assert_eq!((reach.connections(), reach.presence_as_of().await), (Some(3), Ok(Timestamp::from_millis(7))));
    }

    #[tokio::test]
    async fn a_later_interruption_of_an_owner_or_store_takes_no_node_out_of_service() {
        let others = not_ready();
        let reach = reach(&others, true);
        others.has_joined.store(true, Ordering::Relaxed);
        others.owner_links.send_replace(Arc::new(vec![OWNED; 4]));
        others.presence_ago_ms.store(0, Ordering::Relaxed);
        others.shards.lock().unwrap()[0].state = PresenceShardState::Fresh;
        assert!(reach.reasons_not_ready().await.is_empty());
        others.owner_links.send_replace(Arc::new(vec![None; 4]));
        others.presence_ago_ms.store(9_000, Ordering::Relaxed);
        others.shards.lock().unwrap()[0].state = STALE;
        assert!(reach.reasons_not_ready().await.is_empty());
        assert!(reach.presence_as_of().await.is_err(), "the page shows the current state");
    }

    /// Everything is ready except the shards of presence.
    fn ready_but_for(shards: Vec<ShardFreshness>) -> Arc<FakeComponents> {
        let others = not_ready();
        others.has_joined.store(true, Ordering::Relaxed);
        others.owner_links.send_replace(Arc::new(vec![OWNED; 4]));
        *others.shards.lock().unwrap() = shards;
        others
    }

    #[tokio::test]
    async fn a_stale_shard_of_another_process_is_a_warning_and_keeps_no_node_out_of_service() {
        for state in [STALE, PresenceShardState::Unreadable("connection refused".to_owned())] {
            let others =
                ready_but_for(vec![shard(0, None, PresenceShardState::Fresh), shard(1, Some("b:7601"), state)]);
            let reach = reach(&others, true);
            assert_eq!(reach.reasons_not_ready().await, Vec::<String>::new());
            assert_eq!(reach.warnings(), ["1 of 2 shards of presence are stale, written by other processes: 1"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_own_stale_shard_delays_readiness_for_a_limited_time() {
        let others = ready_but_for(vec![shard(0, None, STALE)]);
        let reach = reach(&others, true);
        assert_eq!(reach.reasons_not_ready().await.len(), 1);
        tokio::time::advance(OWN_SHARDS_WAIT).await;
        assert!(reach.reasons_not_ready().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_own_unreadable_shard_is_a_reason_without_a_time_limit() {
        let others =
            ready_but_for(vec![shard(0, None, PresenceShardState::Unreadable("Redis is unavailable".to_owned()))]);
        let reach = reach(&others, true);
        tokio::time::advance(OWN_SHARDS_WAIT).await;
        assert_eq!(reach.reasons_not_ready().await, ["shard 0 of presence cannot be read: Redis is unavailable"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_shard_of_another_process_is_reported_while_the_process_runs() {
        let others = ready_but_for(vec![shard(1, Some("b:7601"), STALE)]);
        let (reports, mut events) = tokio::sync::mpsc::unbounded_channel();
        let ends = CancellationToken::new();
        let (watched, watch_ends) = (Arc::new(reach(&others, true)), ends.clone());
        let sink: EventSink = Arc::new(move |event| reports.send(event).unwrap());
        let watch = tokio::spawn(async move { watched.watch(sink, watch_ends).await });
        assert_eq!(events.recv().await.unwrap().kind, "presence_shards_stale");
        others.shards.lock().unwrap()[0].state = PresenceShardState::Fresh;
        assert_eq!(events.recv().await.unwrap().kind, "presence_shards_fresh");
        ends.cancel();
        watch.await.unwrap();
    }

    #[tokio::test]
    async fn a_process_without_these_roles_is_ready() {
        let reach = reach(&not_ready(), false);
        assert!(reach.reasons_not_ready().await.is_empty());
        assert_eq!(reach.connections(), None);
    }
}
