//! Tests of the keeper across lost sessions, resigning owners and deviating clocks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Event;
use whimbrel_model::ports::Member;

use super::cluster_view::ClusterWatch;
use super::families::{CARRIER_ROLE, CENTER_ROLE, Family, HOLDS_FAMILY, PUSH_FAMILY};
use super::keeper::{ClusterKeeper, JoinError, KeeperParts, KeeperSettings, Resign, resignations};
use super::key_check::KeyCheck;
use super::testing::{FakeClock, FakeClocks, FakeCluster, FakeShardOwner, PATIENCE, ServedShards, center};

const SHARDS: u32 = 16;
const PUSH_PARTITIONS: u32 = 6;

/// A cluster whose nodes are started and stopped by a test.
struct KeeperScene {
    cluster: Arc<FakeCluster>,
    ledger: Arc<ServedShards>,
    push_ledger: Arc<ServedShards>,
    clocks: Arc<FakeClocks>,
    events: Arc<Mutex<Vec<&'static str>>>,
}

struct RunningNode {
    resign: Resign,
    resign_push: Resign,
    cluster: ClusterWatch,
    clock: Arc<FakeClock>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl KeeperScene {
    fn new() -> Self {
        Self::in_cluster(FakeCluster::new(), Arc::default())
    }

    fn in_cluster(cluster: Arc<FakeCluster>, clocks: Arc<FakeClocks>) -> Self {
        Self { cluster, clocks, ledger: Arc::default(), push_ledger: Arc::default(), events: Arc::default() }
    }

    async fn try_start(&self, number: u16, member: Member, off_ms: i64) -> Result<RunningNode, JoinError> {
        self.try_start_with_key(number, member, off_ms, "secret").await
    }

    async fn try_start_with_key(
        &self,
        number: u16,
        member: Member,
        off_ms: i64,
        key: &str,
    ) -> Result<RunningNode, JoinError> {
        self.try_start_with(number, member, off_ms, KeyCheck::new(Some(key))).await
    }

    async fn try_start_with(
        &self,
        number: u16,
        member: Member,
        off_ms: i64,
        key_check: KeyCheck,
    ) -> Result<RunningNode, JoinError> {
        let clock = FakeClock::new(off_ms);
        self.clocks.clocks.lock().unwrap().insert(member.address.clone(), clock.clone());
        let ending_takes = Duration::from_millis(30);
        let owner = |ledger: &Arc<ServedShards>| {
            Arc::new(FakeShardOwner { node_name: number, ledger: ledger.clone(), ending_takes })
        };
        let ((resign, holds), (resign_push, push)) = (resignations(), resignations());
        let families = vec![
            Family {
                name: HOLDS_FAMILY,
                role: CENTER_ROLE,
                shards: SHARDS,
                owner: owner(&self.ledger),
                resignations: holds,
            },
            Family {
                name: PUSH_FAMILY,
                role: CARRIER_ROLE,
                shards: PUSH_PARTITIONS,
                owner: owner(&self.push_ledger),
                resignations: push,
            },
        ];
        let events = self.events.clone();
        let parts = KeeperParts {
            coordination: self.cluster.for_node(),
            families,
            clocks: self.clocks.clone(),
            clock: clock.clone(),
            events: Arc::new(move |event: Event| events.lock().unwrap().push(event.kind)),
        };
        let settings = KeeperSettings { wanted: Some(number), key_check, ..KeeperSettings::new(member) };
        let keeper = ClusterKeeper::join(settings, parts).await?;
        assert_eq!(keeper.node(), number);
        let (cluster, shutdown) = (keeper.cluster(), CancellationToken::new());
        let task = tokio::spawn(keeper.run(shutdown.clone()));
        Ok(RunningNode { resign, resign_push, cluster, clock, shutdown, task })
    }

    async fn start(&self, number: u16) -> RunningNode {
        self.try_start(number, center(number), 0).await.unwrap()
    }

    fn has_event(&self, kind: &'static str) -> bool {
        self.events.lock().unwrap().contains(&kind)
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("timed out before {what}"));
    }

    async fn wait_for_event(&self, kind: &'static str) {
        self.cluster.wait_until(kind, |_| self.events.lock().unwrap().contains(&kind)).await;
    }
}

impl RunningNode {
    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_node_serves_all_shards() {
    let scene = KeeperScene::new();
    let _node = scene.start(3).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
}

#[tokio::test(start_paused = true)]
async fn shards_are_shared_with_new_nodes_and_no_shard_is_served_twice() {
    let scene = KeeperScene::new();
    let _first = scene.start(1).await;
    scene.cluster.wait_for_shares(&[(1, 16)]).await;
    let _second = scene.start(2).await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    let _third = scene.start(3).await;
    scene.cluster.wait_for_shares(&[(1, 6), (2, 5), (3, 5)]).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
}

#[tokio::test(start_paused = true)]
async fn a_stopping_node_ends_its_shards_before_others_take_them() {
    let scene = KeeperScene::new();
    let first = scene.start(1).await;
    let _second = scene.start(2).await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    first.stop().await;
    scene.cluster.wait_for_shares(&[(2, 16)]).await;
    scene
        .ledger
        .wait_until("all is served", |serving| serving.values().filter(|(node, _)| *node == 2).count() == 16)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_session_ends_its_shards_before_others_take_them_and_joins_again() {
    let scene = KeeperScene::new();
    let mut first = scene.start(1).await;
    let _second = scene.start(2).await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
    let session = scene.cluster.tell_lost(1);
    scene
        .ledger
        .wait_until("the first node serves no shard", |serving| serving.values().all(|(node, _)| *node == 2))
        .await;
    assert_eq!(scene.ledger.serving().len(), 8, "the second node continues");
    assert_eq!(first.cluster.me_changed().await, None);
    scene.cluster.let_go(session);
    scene.wait_for_event("session_recovered").await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    assert_eq!(first.cluster.me(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_resigns_is_ended_and_restarted_under_a_higher_epoch() {
    let scene = KeeperScene::new();
    let node = scene.start(1).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
    let (_, epoch) = scene.ledger.serving()[&5];
    node.resign.resign(5, epoch);
    let is_restarted = |serving: &std::collections::BTreeMap<u32, (u16, u64)>| {
        serving.get(&5).is_some_and(|(_, newer)| *newer > epoch)
    };
    scene.ledger.wait_until("the shard is restarted", is_restarted).await;
}

#[tokio::test(start_paused = true)]
async fn a_resignation_of_an_earlier_epoch_changes_nothing() {
    let scene = KeeperScene::new();
    let node = scene.start(1).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
    let before = scene.ledger.serving();
    node.resign.resign(5, before[&5].1 - 1);
    node.resign.resign(SHARDS + 7, 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.ledger.serving(), before);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_not_a_center_owns_no_shard_and_sees_all_owners() {
    let scene = KeeperScene::new();
    let _center = scene.start(1).await;
    let receiver = Member { roles: vec!["receive".to_owned()], ..center(2) };
    let receiver = scene.try_start(2, receiver, 0).await.unwrap();
    scene.cluster.wait_for_shares(&[(1, 16), (2, 0)]).await;
    let mut views = receiver.cluster.views.clone();
    views
        .wait_for(|view| view.owners_of(HOLDS_FAMILY).iter().all(|owner| owner.is_some_and(|owner| owner.node == 1)))
        .await
        .unwrap();
    assert_eq!(receiver.cluster.view().address_of(1), Some("n1:1"));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_node_waits_for_the_end_of_its_earlier_session() {
    let scene = KeeperScene::new();
    let first = scene.start(1).await;
    scene.cluster.wait_for_shares(&[(1, 16)]).await;
    first.task.abort();
    assert!(first.task.await.is_err(), "the task was aborted");
    let session = scene.cluster.tell_lost(1);
    let ends = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.cluster.let_go(session);
    };
    let fresh = KeeperScene::in_cluster(scene.cluster.clone(), scene.clocks.clone());
    let (_again, ()) = tokio::join!(fresh.start(1), ends);
    fresh.cluster.wait_for_shares(&[(1, 16)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_with_a_deviating_clock_is_rejected() {
    let scene = KeeperScene::new();
    let _first = scene.start(1).await;
    let refused = scene.try_start(2, center(2), 501).await.err().expect("the start is rejected");
    assert!(matches!(refused, JoinError::ClocksApart(_)), "{refused}");
    scene.try_start(3, center(3), 500).await.expect("the difference is within the limit");
}

#[tokio::test(start_paused = true)]
async fn a_start_with_another_internal_key_is_rejected_and_gets_no_shard() {
    let scene = KeeperScene::new();
    let _first = scene.start(1).await;
    scene.cluster.wait_for_shares(&[(1, 16)]).await;
    let refused = scene.try_start_with_key(2, center(2), 0, "other").await.err().expect("the start is rejected");
    assert!(matches!(refused, JoinError::KeyMismatch(_)), "{refused}");
    assert_eq!(scene.cluster.shares(HOLDS_FAMILY), [(1, 16)]);
    let _third = scene.start(3).await;
    scene.cluster.wait_for_shares(&[(1, 8), (3, 8)]).await;
}

#[tokio::test(start_paused = true)]
async fn the_key_can_be_changed_while_no_node_runs() {
    let scene = KeeperScene::new();
    let first = scene.start(1).await;
    first.stop().await;
    scene.try_start_with_key(1, center(1), 0, "new").await.expect("no node has the old key");
    assert!(scene.try_start_with_key(2, center(2), 0, "new").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn two_nodes_that_join_at_once_with_different_keys_do_not_both_stay() {
    let scene = KeeperScene::new();
    let (one, other) = tokio::join!(
        scene.try_start_with_key(1, center(1), 0, "one"),
        scene.try_start_with_key(2, center(2), 0, "other"),
    );
    let stayed = [&one, &other].into_iter().filter(|outcome| outcome.is_ok()).count();
    assert!(stayed <= 1, "both joined");
    scene
        .cluster
        .wait_until("the rejected node has left", |cluster| cluster.shares(HOLDS_FAMILY).len() == stayed)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_joins_again_publishes_its_key_check_again() {
    let scene = KeeperScene::new();
    let _first = scene.start(1).await;
    let session = scene.cluster.tell_lost(1);
    scene.cluster.let_go(session);
    scene.wait_for_event("session_recovered").await;
    let refused = scene.try_start_with_key(2, center(2), 0, "other").await.err().expect("the start is rejected");
    assert!(matches!(refused, JoinError::KeyMismatch(_)), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_running_node_whose_key_differs_does_not_join_again() {
    let scene = KeeperScene::new();
    let _first = scene.start(1).await;
    scene.cluster.wait_for_shares(&[(1, 16)]).await;
    let session = scene.cluster.tell_lost(1);
    scene.until("the session is lost", || scene.has_event("session_lost")).await;
    // The other nodes got another key while this node had no connection to the coordination service.
    scene.cluster.let_go(session);
    let second = scene.try_start_with_key(2, center(2), 0, "new").await.expect("no member has the old key");
    scene.until("the node reports the key", || scene.has_event("internal_key_differs")).await;
    scene.cluster.wait_for_shares(&[(2, 16)]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.cluster.shares(HOLDS_FAMILY), [(2, 16)]);
    assert_eq!(scene.events.lock().unwrap().iter().filter(|kind| **kind == "internal_key_differs").count(), 1);
    second.stop().await;
    scene.cluster.wait_for_shares(&[(1, 16)]).await;
}

#[tokio::test(start_paused = true)]
async fn the_key_can_be_changed_node_by_node_while_both_keys_are_accepted() {
    let scene = KeeperScene::new();
    let keys = |key: &str, previous: Option<&str>| KeyCheck::new(Some(key)).accepting(previous);
    let mut nodes = vec![];
    for number in [1, 2] {
        nodes.push(scene.try_start_with(number, center(number), 0, keys("old", None)).await.unwrap());
    }
    let skipped = scene.try_start_with(3, center(3), 0, keys("new", Some("old"))).await;
    assert!(matches!(skipped, Err(JoinError::KeyMismatch(_))), "the others do not accept the new key yet");
    for (key, previous) in [("old", Some("new")), ("new", Some("old")), ("new", None)] {
        for number in [1, 2] {
            nodes.remove(0).stop().await;
            nodes.push(scene.try_start_with(number, center(number), 0, keys(key, previous)).await.unwrap());
            scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_deviating_clock_gives_up_its_shards_until_the_clock_is_corrected() {
    let scene = KeeperScene::new();
    let _first = scene.start(1).await;
    let second = scene.start(2).await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    second.clock.set(-2000);
    scene.cluster.wait_for_shares(&[(1, 16), (2, 0)]).await;
    assert_eq!(scene.cluster.member(2).unwrap().roles, Vec::<String>::new(), "it stays a member without the role");
    assert!(scene.events.lock().unwrap().contains(&"clock_skew_exceeded"));
    second.clock.set(0);
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    assert!(scene.events.lock().unwrap().contains(&"clock_skew_recovered"));
}

fn with_roles(number: u16, roles: &[&str]) -> Member {
    Member { roles: roles.iter().map(|role| (*role).to_owned()).collect(), ..center(number) }
}

#[tokio::test(start_paused = true)]
async fn each_family_is_shared_among_the_members_of_its_role_alone() {
    let scene = KeeperScene::new();
    let _center = scene.start(1).await;
    let _carrier = scene.try_start(2, with_roles(2, &[CARRIER_ROLE]), 0).await.unwrap();
    let both = scene.try_start(3, with_roles(3, &[CENTER_ROLE, CARRIER_ROLE]), 0).await.unwrap();
    scene.cluster.wait_for_shares_of(HOLDS_FAMILY, &[(1, 8), (2, 0), (3, 8)]).await;
    scene.cluster.wait_for_shares_of(PUSH_FAMILY, &[(1, 0), (2, 3), (3, 3)]).await;
    scene.ledger.wait_until("all holds are served", |serving| serving.len() == SHARDS as usize).await;
    scene.push_ledger.wait_until("all of push is served", |serving| serving.len() == PUSH_PARTITIONS as usize).await;
    let serving = scene.push_ledger.serving();
    let mut views = both.cluster.views.clone();
    let is_seen = |view: &Arc<super::ClusterView>| {
        serving.iter().all(|(shard, (node, epoch))| {
            view.owner(PUSH_FAMILY, *shard).is_some_and(|owner| (owner.node, owner.epoch) == (*node, *epoch))
        })
    };
    views.wait_for(is_seen).await.unwrap();
    both.stop().await;
    scene.cluster.wait_for_shares_of(HOLDS_FAMILY, &[(1, 16), (2, 0)]).await;
    scene.cluster.wait_for_shares_of(PUSH_FAMILY, &[(1, 0), (2, 6)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_resignation_in_one_family_does_not_affect_another_family() {
    let scene = KeeperScene::new();
    let node = scene.try_start(1, with_roles(1, &[CENTER_ROLE, CARRIER_ROLE]), 0).await.unwrap();
    scene.ledger.wait_until("all holds are served", |serving| serving.len() == SHARDS as usize).await;
    scene.push_ledger.wait_until("all of push is served", |serving| serving.len() == PUSH_PARTITIONS as usize).await;
    let (holds, (_, epoch)) = (scene.ledger.serving(), scene.push_ledger.serving()[&4]);
    node.resign_push.resign(4, epoch);
    scene
        .push_ledger
        .wait_until("the shard is restarted", |serving| serving.get(&4).is_some_and(|(_, newer)| *newer > epoch))
        .await;
    assert_eq!(scene.ledger.serving(), holds);
}

#[tokio::test(start_paused = true)]
async fn a_carrier_with_a_deviating_clock_keeps_its_partitions() {
    let scene = KeeperScene::new();
    let _first = scene.start(1).await;
    let second = scene.try_start(2, with_roles(2, &[CENTER_ROLE, CARRIER_ROLE]), 0).await.unwrap();
    scene.cluster.wait_for_shares_of(HOLDS_FAMILY, &[(1, 8), (2, 8)]).await;
    second.clock.set(-2000);
    scene.wait_for_event("clock_skew_exceeded").await;
    scene.cluster.wait_for_shares_of(HOLDS_FAMILY, &[(1, 16), (2, 0)]).await;
    scene.cluster.wait_for_shares_of(PUSH_FAMILY, &[(1, 0), (2, 6)]).await;
}

#[tokio::test(start_paused = true)]
async fn each_join_has_a_greater_incarnation_even_after_the_clock_was_set_back() {
    let scene = KeeperScene::new();
    let node = scene.start(1).await;
    let first = scene.cluster.member(1).unwrap().incarnation;
    assert_eq!(node.cluster.identity().map(|identity| identity.incarnation), Some(first));
    node.clock.set(-3_600_000);
    let session = scene.cluster.tell_lost(1);
    scene.cluster.let_go(session);
    scene.wait_for_event("session_recovered").await;
    let second = scene.cluster.member(1).unwrap().incarnation;
    assert!(second > first);
    assert_eq!(node.cluster.identity().map(|identity| identity.incarnation), Some(second));
}
