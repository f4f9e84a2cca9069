//! Whether people can be reached from this process, as far as its roles have a part in it: what `/readyz` and the page for people say.
//!
//! It looks at what the roles show of themselves and changes nothing. What was there once counts as there for good: a partition that moves to
//! another owner or a store that pauses comes back by itself, pushes are accepted meanwhile, and every node taken out of service for it would
//! only make it worse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Carriers, Presence};

/// How long presence is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
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
    /// Where it has the role `gateway`.
    pub entrance: Option<Arc<dyn Entrance>>,
    /// Whether it is of no use without owners of users: as one of them, or as a gateway.
    pub needs_owners: bool,
    /// The same for presence.
    pub needs_presence: bool,
}

pub struct Reachability {
    parts: ReachParts,
    was_ready: AtomicBool,
}

impl Reachability {
    pub fn new(parts: ReachParts) -> Self {
        Self { parts, was_ready: AtomicBool::new(false) }
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
        if parts.needs_presence
            && let Err(why) = self.presence_as_of().await
        {
            reasons.push(why);
        }
        if reasons.is_empty() {
            self.was_ready.store(true, Ordering::Relaxed);
        }
        reasons
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
    }

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
        })
    }

    fn reach(others: &Arc<Others>, needs_people: bool) -> Reachability {
        Reachability::new(ReachParts {
            carriers: others.clone(),
            presence: others.clone(),
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
        assert!(reasons[1].contains("9000 ms ago"), "{reasons:?}");
        others.tenures.send_replace(Arc::new(vec![OWNED; 4]));
        others.presence_ago_ms.store(0, Ordering::Relaxed);
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
        assert!(reach.reasons_not_ready().await.is_empty());
        others.tenures.send_replace(Arc::new(vec![None; 4]));
        others.presence_ago_ms.store(9_000, Ordering::Relaxed);
        assert!(reach.reasons_not_ready().await.is_empty());
        assert!(reach.presence_as_of().await.is_err(), "what the page shows is as of now");
    }

    #[tokio::test]
    async fn a_process_without_a_part_in_it_is_ready_without_people() {
        let reach = reach(&nobody_yet(), false);
        assert!(reach.reasons_not_ready().await.is_empty());
        assert_eq!(reach.connections(), None);
    }
}
