//! Whether people can be reached from this process, as far as its roles have a part in it: what `/readyz` and the page for people say.
//!
//! It looks at what the roles show of themselves and changes nothing. What was there once counts as there for good: a partition that moves to
//! another owner or a store that pauses comes back by itself, pushes are accepted meanwhile, and every node taken out of service for it would
//! only make it worse.
//!
//! Only what this process itself can do counts. A shard of presence that another process writes and that is stale is a warning: a machine
//! that is down must not keep every other one that restarts out of service.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Carriers, Presence};
use whimbrel_model::{EventSink, Timestamp};

use crate::presence_shards::{PresenceShards, ShardFreshness, ShardState, StaleReports, listed};

/// How long presence is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How often the shards of presence are looked at.
const SHARDS_CHECKED_EVERY: Duration = Duration::from_secs(5);
/// How long after its start a process waits for the shards that it writes itself to become fresh. Later, a gateway of another process that
/// is not heard must not keep this one out of service.
const OWN_SHARDS_WAIT: Duration = Duration::from_secs(15);
/// Users that presence is asked for, so many that every shard is meant. They need not exist.
const ASKED_USERS: usize = 64;

/// What the gateway of a process shows of itself.
pub trait Entrance: Send + Sync {
    /// Whether devices are let in: before it has joined the others they wait.
    fn has_joined(&self) -> bool;

    /// Connections that are open.
    fn connections(&self) -> usize;
}

/// What of reaching people this process has a part in.
pub struct ReachParts {
    pub carriers: Arc<dyn Carriers>,
    pub presence: Arc<dyn Presence>,
    pub presence_shards: Arc<dyn PresenceShards>,
    /// Where it has the role `gateway`.
    pub entrance: Option<Arc<dyn Entrance>>,
    /// Whether it is of no use without owners of users: as one of them, or as a gateway.
    pub needs_owners: bool,
    /// The same for presence.
    pub needs_presence: bool,
}

pub struct Reachability {
    parts: ReachParts,
    started_at: Instant,
    was_ready: AtomicBool,
    /// How many shards there are and which of those that other processes write were not fresh, when they were last looked at.
    stale_elsewhere: Mutex<(usize, BTreeSet<u32>)>,
}

impl Reachability {
    pub fn new(parts: ReachParts) -> Self {
        let started_at = Instant::now();
        Self { parts, started_at, was_ready: AtomicBool::new(false), stale_elsewhere: Mutex::default() }
    }

    /// Why this process should get no requests yet: nothing, where it should.
    pub async fn reasons_not_ready(&self) -> Vec<String> {
        if self.was_ready.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let parts = &self.parts;
        let mut reasons = Vec::new();
        if parts.entrance.as_ref().is_some_and(|entrance| !entrance.has_joined()) {
            reasons.push("the gateway has not joined the others yet".to_owned());
        }
        if parts.needs_owners {
            let tenures = Arc::clone(&parts.carriers.tenures().borrow());
            let (all, missing) = (tenures.len(), tenures.iter().filter(|tenure| tenure.is_none()).count());
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

    /// What an operator should know although this process should get requests.
    pub fn warnings(&self) -> Vec<String> {
        let last = self.stale_elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, stale) = &*last;
        if stale.is_empty() {
            return Vec::new();
        }
        let (count, shards) = (stale.len(), listed(stale));
        vec![format!("{count} of {all} shards of presence are stale, written by other processes: {shards}")]
    }

    /// Looks at the shards of presence from time to time, and reports those of other processes that are stale.
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

    /// Why the shards that this process writes do not do yet.
    fn own_shards_missing(&self, found: &[ShardFreshness]) -> Option<String> {
        let own = || found.iter().filter(|shard| !shard.is_remote());
        let unreadable = own().find_map(|shard| match &shard.state {
            ShardState::Unreadable(why) => Some(format!("shard {} of presence cannot be read: {why}", shard.shard)),
            _ => None,
        });
        let (all, missing) = (own().count(), own().filter(|shard| !shard.is_fresh()).count());
        let waits = missing > 0 && self.started_at.elapsed() < OWN_SHARDS_WAIT;
        unreadable.or_else(|| {
            waits.then(|| format!("{missing} of {all} shards of presence of this process are not fresh yet"))
        })
    }

    /// Devices at the gateway of this process, where it has one.
    pub fn connections(&self) -> Option<usize> {
        self.parts.entrance.as_ref().map(|entrance| entrance.connections())
    }

    /// The moment that presence is right as of, all shards together; or why nobody can say.
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
        NoCarrier, PeopleAsk, PeopleError, PeopleTold, PortFuture, PresenceAnswer, PresenceError, Tenure, ToCarrier,
        UserSessions,
    };

    use super::*;

    const OWNED: Option<Tenure> = Some(Tenure { number: 1, epoch: 1 });

    /// All the others, as far as they are there.
    struct Others {
        tenures: watch::Sender<Arc<Vec<Option<Tenure>>>>,
        has_joined: AtomicBool,
        /// Milliseconds since the store of presence was heard from.
        presence_ago_ms: AtomicUsize,
        /// The shards of presence, as they are found.
        shards: Mutex<Vec<ShardFreshness>>,
    }

    impl PresenceShards for Others {
        fn look(&self) -> PortFuture<'_, Vec<ShardFreshness>> {
            Box::pin(async { self.shards.lock().unwrap().clone() })
        }
    }

    fn shard(shard: u32, writer: Option<&str>, state: ShardState) -> ShardFreshness {
        ShardFreshness { shard, writer: writer.map(str::to_owned), state }
    }

    const STALE: ShardState = ShardState::Stale { ago_ms: Some(9_000) };

    impl Carriers for Others {
        fn partitions(&self) -> u32 {
            self.tenures.borrow().len() as u32
        }

        fn tell(&self, partition: u32, _: GatewayId, _: Vec<ToCarrier>) -> Result<(), NoCarrier> {
            Err(NoCarrier(partition))
        }

        fn tenures(&self) -> watch::Receiver<Arc<Vec<Option<Tenure>>>> {
            self.tenures.subscribe()
        }

        fn ask(&self, partition: u32, _: PeopleAsk) -> PortFuture<'_, Result<PeopleTold, PeopleError>> {
            Box::pin(async move { Err(PeopleError::NoOwner(partition)) })
        }
    }

    impl Presence for Others {
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

    impl Entrance for Others {
        fn has_joined(&self) -> bool {
            self.has_joined.load(Ordering::Relaxed)
        }

        fn connections(&self) -> usize {
            3
        }
    }

    fn nobody_yet() -> Arc<Others> {
        Arc::new(Others {
            tenures: watch::channel(Arc::new(vec![None; 4])).0,
            has_joined: AtomicBool::new(false),
            presence_ago_ms: AtomicUsize::new(9_000),
            shards: Mutex::new(vec![shard(0, None, STALE)]),
        })
    }

    fn reach(others: &Arc<Others>, needs_people: bool) -> Reachability {
        Reachability::new(ReachParts {
            carriers: others.clone(),
            presence: others.clone(),
            presence_shards: others.clone(),
            entrance: needs_people.then(|| others.clone() as Arc<dyn Entrance>),
            needs_owners: needs_people,
            needs_presence: needs_people,
        })
    }

    #[tokio::test]
    async fn each_thing_that_is_missing_is_a_reason_and_none_is_ready() {
        let others = nobody_yet();
        let reach = reach(&others, true);
        let reasons = reach.reasons_not_ready().await;
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        others.has_joined.store(true, Ordering::Relaxed);
        others.tenures.send_replace(Arc::new(vec![OWNED, None, OWNED, None]));
        let reasons = reach.reasons_not_ready().await;
        assert_eq!(reasons[0], "2 of 4 partitions of pushes have no owner yet");
        assert_eq!(reasons[1], "1 of 1 shards of presence of this process are not fresh yet");
        others.tenures.send_replace(Arc::new(vec![OWNED; 4]));
        others.presence_ago_ms.store(0, Ordering::Relaxed);
        others.shards.lock().unwrap()[0].state = ShardState::Fresh;
        assert!(reach.reasons_not_ready().await.is_empty());
        assert_eq!((reach.connections(), reach.presence_as_of().await), (Some(3), Ok(Timestamp::from_millis(7))));
    }

    #[tokio::test]
    async fn an_owner_or_a_store_that_pauses_later_takes_no_node_out_of_service() {
        let others = nobody_yet();
        let reach = reach(&others, true);
        others.has_joined.store(true, Ordering::Relaxed);
        others.tenures.send_replace(Arc::new(vec![OWNED; 4]));
        others.presence_ago_ms.store(0, Ordering::Relaxed);
        others.shards.lock().unwrap()[0].state = ShardState::Fresh;
        assert!(reach.reasons_not_ready().await.is_empty());
        others.tenures.send_replace(Arc::new(vec![None; 4]));
        others.presence_ago_ms.store(9_000, Ordering::Relaxed);
        others.shards.lock().unwrap()[0].state = STALE;
        assert!(reach.reasons_not_ready().await.is_empty());
        assert!(reach.presence_as_of().await.is_err(), "what the page shows is as of now");
    }

    /// All others are there, and so is the gateway; presence is as the shards say.
    fn ready_but_for(shards: Vec<ShardFreshness>) -> Arc<Others> {
        let others = nobody_yet();
        others.has_joined.store(true, Ordering::Relaxed);
        others.tenures.send_replace(Arc::new(vec![OWNED; 4]));
        *others.shards.lock().unwrap() = shards;
        others
    }

    #[tokio::test]
    async fn a_stale_shard_of_another_process_is_a_warning_and_keeps_no_node_out_of_service() {
        for state in [STALE, ShardState::Unreadable("connection refused".to_owned())] {
            let others = ready_but_for(vec![shard(0, None, ShardState::Fresh), shard(1, Some("b:7601"), state)]);
            let reach = reach(&others, true);
            assert_eq!(reach.reasons_not_ready().await, Vec::<String>::new());
            assert_eq!(reach.warnings(), ["1 of 2 shards of presence are stale, written by other processes: 1"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_own_shard_is_waited_for_after_a_start_and_not_for_ever() {
        let others = ready_but_for(vec![shard(0, None, STALE)]);
        let reach = reach(&others, true);
        assert_eq!(reach.reasons_not_ready().await.len(), 1);
        tokio::time::advance(OWN_SHARDS_WAIT).await;
        assert!(reach.reasons_not_ready().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_own_shard_whose_store_does_not_answer_is_a_reason_for_as_long_as_that_lasts() {
        let others = ready_but_for(vec![shard(0, None, ShardState::Unreadable("Redis is away".to_owned()))]);
        let reach = reach(&others, true);
        tokio::time::advance(OWN_SHARDS_WAIT).await;
        assert_eq!(reach.reasons_not_ready().await, ["shard 0 of presence cannot be read: Redis is away"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_shard_of_another_process_is_reported_while_the_process_runs() {
        let others = ready_but_for(vec![shard(1, Some("b:7601"), STALE)]);
        let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
        let ends = CancellationToken::new();
        let (watched, watch_ends) = (Arc::new(reach(&others, true)), ends.clone());
        let sink: EventSink = Arc::new(move |event| told.send(event).unwrap());
        let watch = tokio::spawn(async move { watched.watch(sink, watch_ends).await });
        assert_eq!(events.recv().await.unwrap().kind, "presence_shards_stale");
        others.shards.lock().unwrap()[0].state = ShardState::Fresh;
        assert_eq!(events.recv().await.unwrap().kind, "presence_shards_fresh");
        ends.cancel();
        watch.await.unwrap();
    }

    #[tokio::test]
    async fn a_process_without_a_part_in_it_is_ready_without_people() {
        let reach = reach(&nobody_yet(), false);
        assert!(reach.reasons_not_ready().await.is_empty());
        assert_eq!(reach.connections(), None);
    }
}
