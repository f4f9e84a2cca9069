//! What every [`Coordination`] must hold.
//!
//! An engine takes part by a [`Factory`]. Each property has a cluster of its own. An engine whose sessions can end by
//! themselves offers [`Factory::open_cut_off`]; for one whose sessions cannot, those properties hold by themselves.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use whimbrel_model::ports::{Coordination, CoordinationError, Member, Membership, Owner, Picture, PortFuture};

/// Every property.
#[doc(hidden)]
#[macro_export]
macro_rules! coordination_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                members_have_node_numbers_of_their_own,
                a_wanted_number_is_given_where_it_is_free,
                a_number_that_is_taken_is_not_given_twice,
                the_name_of_a_living_member_is_refused,
                one_of_many_who_take_a_name_at_once_owns_it,
                taking_what_is_ones_own_answers_with_the_same_epoch,
                epochs_grow_over_a_release,
                epochs_grow_over_a_departure,
                epochs_grow_over_a_restart,
                what_is_owned_is_asked_of_the_engine,
                what_another_owns_cannot_be_released,
                who_leaves_frees_everything_at_once,
                a_membership_that_was_left_is_lost,
                the_picture_shows_who_is_there_and_who_owns_what,
                a_watcher_of_the_picture_is_woken,
                a_watcher_of_the_picture_without_news_waits,
                a_session_that_is_cut_off_is_lost_before_another_can_own,
                a_session_that_is_cut_off_does_not_come_back,
            ]
        }
    };
}

crate::coordination_properties! { conformance_exports }

/// Makes clusters of one engine for the suite.
pub trait Factory: Send + Sync {
    /// An empty cluster.
    fn open(&self) -> PortFuture<'_, OpenCoordination>;

    /// The same cluster as another process of it sees it.
    fn open_beside<'a>(&'a self, first: &'a OpenCoordination) -> PortFuture<'a, OpenCoordination>;

    /// Ends the instance, of which the suite has dropped every other handle, and opens the same cluster anew.
    fn reopen(&self, coordination: OpenCoordination) -> PortFuture<'_, OpenCoordination>;

    /// The same cluster as a process sees it that can be cut off from it.
    fn open_cut_off<'a>(
        &'a self,
        _first: &'a OpenCoordination,
    ) -> PortFuture<'a, Option<(OpenCoordination, Box<dyn Switch>)>> {
        Box::pin(async { None })
    }

    /// Why the suite cannot run here, where that is so and is allowed.
    fn skip(&self) -> Option<String> {
        None
    }
}

/// Cuts an instance off from its engine: what it sends does not arrive and gets no answer.
pub trait Switch: Send + Sync {
    fn cut(&self);

    fn mend(&self);
}

/// One open instance. What its factory needs to open it again is in `store`.
pub struct OpenCoordination {
    pub coordination: Arc<dyn Coordination>,
    pub store: Arc<dyn Any + Send + Sync>,
}

/// How long a property waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a watcher that must wait is watched.
const STILLNESS: Duration = Duration::from_millis(200);

mod properties {
    use super::*;

    pub async fn members_have_node_numbers_of_their_own(factory: &dyn Factory) {
        let first = factory.open().await;
        let second = factory.open_beside(&first).await;
        let names = ["a", "b", "c", "d", "e", "f"];
        let joins = (0..).zip(names).map(|(n, name)| join(if n % 2 == 0 { &first } else { &second }, name));
        let members = join_all(joins).await;
        let mut numbers: Vec<u16> = members.iter().map(|member| member.node()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), names.len());
        assert!(numbers.iter().all(|number| *number < 1 << 12), "it must fit into a minted id");
    }

    pub async fn a_wanted_number_is_given_where_it_is_free(factory: &dyn Factory) {
        let open = factory.open().await;
        let membership = open.coordination.join(member("a"), Some(1234)).await.expect("it can join");
        assert_eq!(membership.node(), 1234);
    }

    pub async fn a_number_that_is_taken_is_not_given_twice(factory: &dyn Factory) {
        let open = factory.open().await;
        let first = open.coordination.join(member("a"), Some(7)).await.expect("it can join");
        let second = open.coordination.join(member("b"), Some(7)).await.expect("it can join");
        assert_ne!(first.node(), second.node());
    }

    pub async fn the_name_of_a_living_member_is_refused(factory: &dyn Factory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let first = join(&open, "a").await;
        let refused = beside.coordination.join(member("a"), None).await.err();
        assert!(matches!(refused, Some(CoordinationError::Refused(_))), "{refused:?}");
        first.leave().await;
        join(&beside, "a").await;
    }

    pub async fn one_of_many_who_take_a_name_at_once_owns_it(factory: &dyn Factory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let members = join_all([join(&open, "a"), join(&beside, "b"), join(&open, "c"), join(&beside, "d")]).await;
        let outcomes = join_all(members.iter().map(|member| member.own("holds/0"))).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        let refused = CoordinationError::Owned("holds/0".to_owned());
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Err(refused.clone())).count(), 3, "{outcomes:?}");
    }

    pub async fn taking_what_is_ones_own_answers_with_the_same_epoch(factory: &dyn Factory) {
        let open = factory.open().await;
        let membership = join(&open, "a").await;
        let epoch = own(&membership, "holds/0").await;
        own(&membership, "holds/1").await;
        assert_eq!(own(&membership, "holds/0").await, epoch);
    }

    pub async fn epochs_grow_over_a_release(factory: &dyn Factory) {
        let open = factory.open().await;
        let (first, second) = (join(&open, "a").await, join(&open, "b").await);
        let mut last = own(&first, "holds/0").await;
        for _ in 0..3 {
            for (from, to) in [(&first, &second), (&second, &first)] {
                from.release("holds/0").await.expect("it can be released");
                let epoch = own(to, "holds/0").await;
                assert!(epoch > last, "{epoch} does not follow {last}");
                last = epoch;
            }
        }
    }

    pub async fn epochs_grow_over_a_departure(factory: &dyn Factory) {
        let open = factory.open().await;
        let first = join(&open, "a").await;
        let epoch = own(&first, "holds/0").await;
        first.leave().await;
        assert!(own(&join(&open, "b").await, "holds/0").await > epoch);
    }

    pub async fn epochs_grow_over_a_restart(factory: &dyn Factory) {
        let mut open = factory.open().await;
        let mut last = 0;
        for _ in 0..3 {
            let membership = join(&open, "a").await;
            let epoch = own(&membership, "holds/0").await;
            assert!(epoch > last, "{epoch} does not follow {last}");
            last = epoch;
            membership.leave().await;
            drop(membership);
            open = factory.reopen(open).await;
        }
    }

    pub async fn what_is_owned_is_asked_of_the_engine(factory: &dyn Factory) {
        let open = factory.open().await;
        let (first, second) = (join(&open, "a").await, join(&open, "b").await);
        let epoch = own(&first, "holds/0").await;
        assert_eq!(first.owns("holds/0", epoch).await, Ok(true));
        assert_eq!(first.owns("holds/0", epoch + 1).await, Ok(false));
        assert_eq!(first.owns("holds/1", epoch).await, Ok(false));
        assert_eq!(second.owns("holds/0", epoch).await, Ok(false));
        first.release("holds/0").await.expect("it can be released");
        assert_eq!(first.owns("holds/0", epoch).await, Ok(false));
        let newer = own(&first, "holds/0").await;
        assert_eq!(first.owns("holds/0", epoch).await, Ok(false), "that was an earlier time");
        assert_eq!(first.owns("holds/0", newer).await, Ok(true));
    }

    pub async fn what_another_owns_cannot_be_released(factory: &dyn Factory) {
        let open = factory.open().await;
        let (first, second) = (join(&open, "a").await, join(&open, "b").await);
        let epoch = own(&first, "holds/0").await;
        assert_eq!(second.release("holds/0").await, Ok(()));
        assert_eq!(second.release("holds/1").await, Ok(()), "what is not owned is no error");
        assert_eq!(first.owns("holds/0", epoch).await, Ok(true));
    }

    pub async fn who_leaves_frees_everything_at_once(factory: &dyn Factory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let first = open.coordination.join(member("a"), Some(9)).await.expect("it can join");
        own(&first, "holds/0").await;
        own(&first, "holds/1").await;
        first.leave().await;
        let second = beside.coordination.join(member("a"), Some(9)).await.expect("the name is free");
        assert_eq!(second.node(), 9, "the number is free");
        own(&second, "holds/0").await;
        own(&second, "holds/1").await;
    }

    pub async fn a_membership_that_was_left_is_lost(factory: &dyn Factory) {
        let open = factory.open().await;
        let membership = join(&open, "a").await;
        assert!(membership.stands());
        assert!(timeout(STILLNESS, membership.lost()).await.is_err(), "a session that stands is not lost");
        membership.leave().await;
        assert!(!membership.stands());
        timeout(PATIENCE, membership.lost()).await.expect("it is told");
        assert!(matches!(membership.own("holds/0").await, Err(CoordinationError::Lost(_))));
        membership.leave().await;
    }

    pub async fn the_picture_shows_who_is_there_and_who_owns_what(factory: &dyn Factory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let first = open.coordination.join(member("a"), Some(3)).await.expect("it can join");
        let second = open.coordination.join(member("b"), Some(2)).await.expect("it can join");
        let epoch = own(&first, "holds/11").await;
        own(&second, "holds/2").await;
        let owner = Owner { node: 3, epoch };
        let seen = |picture: &Picture| picture.owners.len() == 2 && picture.nodes.len() == 2;
        let picture = picture_where(&beside, seen).await;
        assert!(picture.owners.contains(&("holds/11".to_owned(), owner)));
        let nodes: Vec<_> = picture.nodes.iter().map(|node| (node.number, node.member.clone())).collect();
        assert_eq!(nodes, [(2, member("b")), (3, member("a"))], "by number");
    }

    pub async fn a_watcher_of_the_picture_is_woken(factory: &dyn Factory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let first = join(&open, "a").await;
        picture_where(&beside, |picture| picture.nodes.len() == 1).await;
        let epoch = own(&first, "holds/0").await;
        let owned = [("holds/0".to_owned(), Owner { node: first.node(), epoch })];
        picture_where(&beside, |picture| picture.owners == owned).await;
        first.release("holds/0").await.expect("it can be released");
        picture_where(&beside, |picture| picture.owners.is_empty()).await;
        own(&first, "holds/1").await;
        first.leave().await;
        picture_where(&beside, |picture| picture.owners.is_empty() && picture.nodes.is_empty()).await;
    }

    pub async fn a_watcher_of_the_picture_without_news_waits(factory: &dyn Factory) {
        let open = factory.open().await;
        let _first = join(&open, "a").await;
        let seen = picture_where(&open, |picture| picture.nodes.len() == 1).await;
        if let Ok(woken) = timeout(STILLNESS, open.coordination.picture(seen.revision)).await {
            assert!(woken.expect("it can be watched").revision > seen.revision, "woken without news");
        }
    }

    pub async fn a_session_that_is_cut_off_is_lost_before_another_can_own(factory: &dyn Factory) {
        let open = factory.open().await;
        let Some((apart, switch)) = factory.open_cut_off(&open).await else { return };
        let (victim, heir) = (join(&apart, "a").await, join(&open, "b").await);
        let epoch = own(&victim, "holds/0").await;
        switch.cut();
        let inherits = async {
            loop {
                match heir.own("holds/0").await {
                    Ok(newer) => break newer,
                    Err(CoordinationError::Owned(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(other) => panic!("the heir is not cut off: {other}"),
                }
            }
        };
        let newer = timeout(PATIENCE, inherits).await.expect("a session that is cut off ends");
        assert!(!victim.stands(), "another owns what the victim still believes to be its own");
        timeout(STILLNESS, victim.lost()).await.expect("it was told");
        assert!(newer > epoch, "epochs grow over a lapse");
        assert!(heir.stands(), "a session that is kept alive outlives its lease");
        assert!(matches!(victim.own("holds/1").await, Err(CoordinationError::Lost(_))));
    }

    pub async fn a_session_that_is_cut_off_does_not_come_back(factory: &dyn Factory) {
        let open = factory.open().await;
        let Some((apart, switch)) = factory.open_cut_off(&open).await else { return };
        let victim = join(&apart, "a").await;
        own(&victim, "holds/0").await;
        switch.cut();
        timeout(PATIENCE, victim.lost()).await.expect("it is told by its own clock");
        switch.mend();
        picture_where(&open, |picture| picture.nodes.is_empty()).await;
        assert!(!victim.stands());
        let again = async {
            loop {
                match apart.coordination.join(member("a"), None).await {
                    Ok(membership) => break membership,
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let again = timeout(PATIENCE, again).await.expect("who was cut off can join again");
        own(&again, "holds/0").await;
        assert!(!victim.stands());
    }
}

fn member(name: &str) -> Member {
    let roles = vec!["receive".to_owned(), "center".to_owned()];
    let (address, key_check) = (format!("{name}.example:7601"), format!("check of {name}"));
    let (name, key_check_previous) = (name.to_owned(), format!("previous check of {name}"));
    Member { name, roles, address, incarnation: 1_800_000_000_000, key_check, key_check_previous }
}

async fn join(open: &OpenCoordination, name: &str) -> Arc<dyn Membership> {
    open.coordination.join(member(name), None).await.expect("it can join")
}

async fn own(membership: &Arc<dyn Membership>, name: &str) -> u64 {
    membership.own(name).await.expect("the name is free")
}

/// Watches until the picture is so.
async fn picture_where(open: &OpenCoordination, is_so: impl Fn(&Picture) -> bool) -> Picture {
    let watched = async {
        let mut seen = 0;
        loop {
            let picture = open.coordination.picture(seen).await.expect("it can be watched");
            assert!(picture.revision > seen);
            if is_so(&picture) {
                break picture;
            }
            seen = picture.revision;
        }
    };
    timeout(PATIENCE, watched).await.expect("the picture comes to be so")
}
