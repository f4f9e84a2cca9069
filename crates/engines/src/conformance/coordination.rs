//! The contract of [`Coordination`], as properties that every engine must have.
//!
//! Each property has a cluster of its own. An engine whose sessions can expire provides
//! [`CoordinationFactory::open_cut_off`]. Other engines pass those properties without a check.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use whimbrel_model::ports::{ClusterSnapshot, Coordination, CoordinationError, Member, Membership, Owner, PortFuture};

use super::{Opened, Opens};

#[doc(hidden)]
#[macro_export]
macro_rules! coordination_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                members_have_node_numbers_of_their_own,
                a_requested_node_number_is_given_if_it_is_free,
                a_node_number_in_use_is_not_given_twice,
                the_name_of_a_live_member_is_rejected,
                one_of_many_concurrent_requests_gets_a_name,
                owning_a_name_again_returns_the_same_epoch,
                epochs_increase_after_a_release,
                epochs_increase_after_a_member_leaves,
                epochs_increase_after_a_restart,
                ownership_is_checked_with_the_engine,
                a_name_of_another_owner_cannot_be_released,
                a_member_that_leaves_releases_everything_at_once,
                a_membership_that_was_left_is_lost,
                the_picture_lists_members_and_owners,
                a_watcher_of_the_picture_is_woken,
                a_watcher_of_the_picture_without_news_waits,
                a_session_that_is_cut_off_is_lost_before_another_can_own,
                a_session_that_is_cut_off_does_not_come_back,
            ]
        }
    };
}

crate::coordination_properties! { conformance_exports }

/// An engine for the suite.
pub trait CoordinationFactory: Opens<dyn Coordination> {
    /// The same cluster, from a process that the test can cut off from the engine.
    fn open_cut_off<'a>(
        &'a self,
        _first: &'a OpenCoordination,
    ) -> PortFuture<'a, Option<(OpenCoordination, Box<dyn Switch>)>> {
        Box::pin(async { None })
    }
}

/// Cuts an instance off from its engine: its requests do not arrive and get no answer.
pub trait Switch: Send + Sync {
    fn cut(&self);

    fn mend(&self);
}

pub type OpenCoordination = Opened<dyn Coordination>;

/// The timeout of a condition that must become true.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time for which a test observes a watcher that must keep waiting.
const STILLNESS: Duration = Duration::from_millis(200);

mod properties {
    use super::*;

    pub async fn members_have_node_numbers_of_their_own(factory: &dyn CoordinationFactory) {
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

    pub async fn a_requested_node_number_is_given_if_it_is_free(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let membership = open.join(member("a"), Some(1234)).await.expect("it can join");
        assert_eq!(membership.node(), 1234);
    }

    pub async fn a_node_number_in_use_is_not_given_twice(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let first = open.join(member("a"), Some(7)).await.expect("it can join");
        let second = open.join(member("b"), Some(7)).await.expect("it can join");
        assert_ne!(first.node(), second.node());
    }

    pub async fn the_name_of_a_live_member_is_rejected(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let first = join(&open, "a").await;
        let refused = beside.join(member("a"), None).await.err();
        assert!(matches!(refused, Some(CoordinationError::Refused(_))), "{refused:?}");
        first.leave().await;
        join(&beside, "a").await;
    }

    pub async fn one_of_many_concurrent_requests_gets_a_name(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let members = join_all([join(&open, "a"), join(&beside, "b"), join(&open, "c"), join(&beside, "d")]).await;
        let outcomes = join_all(members.iter().map(|member| member.own("holds/0"))).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        let refused = CoordinationError::Owned("holds/0".to_owned());
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Err(refused.clone())).count(), 3, "{outcomes:?}");
    }

    pub async fn owning_a_name_again_returns_the_same_epoch(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let membership = join(&open, "a").await;
        let epoch = own(&membership, "holds/0").await;
        own(&membership, "holds/1").await;
        assert_eq!(own(&membership, "holds/0").await, epoch);
    }

    pub async fn epochs_increase_after_a_release(factory: &dyn CoordinationFactory) {
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

    pub async fn epochs_increase_after_a_member_leaves(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let first = join(&open, "a").await;
        let epoch = own(&first, "holds/0").await;
        first.leave().await;
        assert!(own(&join(&open, "b").await, "holds/0").await > epoch);
    }

    pub async fn epochs_increase_after_a_restart(factory: &dyn CoordinationFactory) {
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

    pub async fn ownership_is_checked_with_the_engine(factory: &dyn CoordinationFactory) {
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
        assert_eq!(first.owns("holds/0", epoch).await, Ok(false), "the epoch is an earlier one");
        assert_eq!(first.owns("holds/0", newer).await, Ok(true));
    }

    pub async fn a_name_of_another_owner_cannot_be_released(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let (first, second) = (join(&open, "a").await, join(&open, "b").await);
        let epoch = own(&first, "holds/0").await;
        assert_eq!(second.release("holds/0").await, Ok(()));
        assert_eq!(second.release("holds/1").await, Ok(()), "releasing a name without an owner is no error");
        assert_eq!(first.owns("holds/0", epoch).await, Ok(true));
    }

    pub async fn a_member_that_leaves_releases_everything_at_once(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let first = open.join(member("a"), Some(9)).await.expect("it can join");
        own(&first, "holds/0").await;
        own(&first, "holds/1").await;
        first.leave().await;
        let second = beside.join(member("a"), Some(9)).await.expect("the name is free");
        assert_eq!(second.node(), 9, "the number is free");
        own(&second, "holds/0").await;
        own(&second, "holds/1").await;
    }

    pub async fn a_membership_that_was_left_is_lost(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let membership = join(&open, "a").await;
        assert!(membership.is_valid());
        assert!(timeout(STILLNESS, membership.lost()).await.is_err(), "a valid session is not lost");
        membership.leave().await;
        assert!(!membership.is_valid());
        timeout(PATIENCE, membership.lost()).await.expect("the loss is reported");
        assert!(matches!(membership.own("holds/0").await, Err(CoordinationError::Lost(_))));
        membership.leave().await;
    }

    pub async fn the_picture_lists_members_and_owners(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let beside = factory.open_beside(&open).await;
        let first = open.join(member("a"), Some(3)).await.expect("it can join");
        let second = open.join(member("b"), Some(2)).await.expect("it can join");
        let epoch = own(&first, "holds/11").await;
        own(&second, "holds/2").await;
        let owner = Owner { node: 3, epoch };
        let seen = |picture: &ClusterSnapshot| picture.owners.len() == 2 && picture.nodes.len() == 2;
        let picture = picture_where(&beside, seen).await;
        assert!(picture.owners.contains(&("holds/11".to_owned(), owner)));
        let nodes: Vec<_> = picture.nodes.iter().map(|node| (node.number, node.member.clone())).collect();
        assert_eq!(nodes, [(2, member("b")), (3, member("a"))], "by number");
    }

    pub async fn a_watcher_of_the_picture_is_woken(factory: &dyn CoordinationFactory) {
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

    pub async fn a_watcher_of_the_picture_without_news_waits(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let _first = join(&open, "a").await;
        let seen = picture_where(&open, |picture| picture.nodes.len() == 1).await;
        if let Ok(woken) = timeout(STILLNESS, open.snapshot(seen.revision)).await {
            assert!(woken.expect("it can be watched").revision > seen.revision, "woken without a change");
        }
    }

    pub async fn a_session_that_is_cut_off_is_lost_before_another_can_own(factory: &dyn CoordinationFactory) {
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
                    Err(other) => panic!("the successor is not cut off: {other}"),
                }
            }
        };
        let newer = timeout(PATIENCE, inherits).await.expect("a session that is cut off ends");
        assert!(!victim.is_valid(), "another member owns a name that the victim still owns by its own clock");
        timeout(STILLNESS, victim.lost()).await.expect("the loss was reported");
        assert!(newer > epoch, "epochs grow over a lapse");
        assert!(heir.is_valid(), "a session that is kept alive outlives its lease");
        assert!(matches!(victim.own("holds/1").await, Err(CoordinationError::Lost(_))));
    }

    pub async fn a_session_that_is_cut_off_does_not_come_back(factory: &dyn CoordinationFactory) {
        let open = factory.open().await;
        let Some((apart, switch)) = factory.open_cut_off(&open).await else { return };
        let victim = join(&apart, "a").await;
        own(&victim, "holds/0").await;
        switch.cut();
        timeout(PATIENCE, victim.lost()).await.expect("its own clock reports the loss");
        switch.mend();
        picture_where(&open, |picture| picture.nodes.is_empty()).await;
        assert!(!victim.is_valid());
        let again = async {
            loop {
                match apart.join(member("a"), None).await {
                    Ok(membership) => break membership,
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let again = timeout(PATIENCE, again).await.expect("a member that was cut off can join again");
        own(&again, "holds/0").await;
        assert!(!victim.is_valid());
    }
}

fn member(name: &str) -> Member {
    let roles = vec!["receive".to_owned(), "center".to_owned()];
    let (address, key_check) = (format!("{name}.example:7601"), format!("check of {name}"));
    let (name, key_check_previous) = (name.to_owned(), format!("previous check of {name}"));
    Member { name, roles, address, incarnation: 1_800_000_000_000, key_check, key_check_previous }
}

async fn join(open: &OpenCoordination, name: &str) -> Arc<dyn Membership> {
    open.join(member(name), None).await.expect("it can join")
}

async fn own(membership: &Arc<dyn Membership>, name: &str) -> u64 {
    membership.own(name).await.expect("the name is free")
}

/// Watches until the picture satisfies the condition.
async fn picture_where(open: &OpenCoordination, is_so: impl Fn(&ClusterSnapshot) -> bool) -> ClusterSnapshot {
    let watched = async {
        let mut seen = 0;
        loop {
            let picture = open.snapshot(seen).await.expect("it can be watched");
            assert!(picture.revision > seen);
            if is_so(&picture) {
                break picture;
            }
            seen = picture.revision;
        }
    };
    timeout(PATIENCE, watched).await.expect("the picture satisfies the condition")
}
