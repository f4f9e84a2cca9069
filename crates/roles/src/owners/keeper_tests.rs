//! What a keeper holds, whatever happens to its session, its owners and its clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Event;
use whimbrel_model::ports::Member;

use super::keeper::{JoinError, Keeper, KeeperParts, KeeperSettings, Resign, resignations};
use super::sight::Sight;
use super::testing::{FakeClock, FakeClocks, FakeCluster, FakeDuties, Ledger, center};

const SHARDS: u32 = 16;

/// A cluster whose nodes a test starts and ends.
struct Scene {
    cluster: Arc<FakeCluster>,
    ledger: Arc<Ledger>,
    clocks: Arc<FakeClocks>,
    events: Arc<Mutex<Vec<&'static str>>>,
}

/// A node that runs.
struct Running {
    resign: Resign,
    sight: Sight,
    clock: Arc<FakeClock>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Scene {
    fn new() -> Self {
        Self { cluster: FakeCluster::new(), ledger: Arc::default(), clocks: Arc::default(), events: Arc::default() }
    }

    async fn try_start(&self, number: u16, member: Member, off_ms: i64) -> Result<Running, JoinError> {
        let clock = FakeClock::new(off_ms);
        self.clocks.clocks.lock().unwrap().insert(member.address.clone(), clock.clone());
        let ending_takes = Duration::from_millis(30);
        let duties = Arc::new(FakeDuties { node_name: number, ledger: self.ledger.clone(), ending_takes });
        let (resign, resignations) = resignations();
        let events = self.events.clone();
        let parts = KeeperParts {
            coordination: self.cluster.for_node(),
            duties,
            resignations,
            clocks: self.clocks.clone(),
            clock: clock.clone(),
            events: Arc::new(move |event: Event| events.lock().unwrap().push(event.kind)),
        };
        let settings = KeeperSettings { wanted: Some(number), ..KeeperSettings::new(member, SHARDS) };
        let keeper = Keeper::join(settings, parts).await?;
        assert_eq!(keeper.node(), number);
        let (sight, shutdown) = (keeper.sight(), CancellationToken::new());
        let task = tokio::spawn(keeper.run(shutdown.clone()));
        Ok(Running { resign, sight, clock, shutdown, task })
    }

    async fn start(&self, number: u16) -> Running {
        self.try_start(number, center(number), 0).await.unwrap()
    }

    async fn wait_for_event(&self, kind: &'static str) {
        self.cluster.wait_until(kind, |_| self.events.lock().unwrap().contains(&kind)).await;
    }
}

impl Running {
    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_alone_serves_every_shard() {
    let scene = Scene::new();
    let _node = scene.start(3).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
}

#[tokio::test(start_paused = true)]
async fn shards_are_shared_with_who_comes_and_no_shard_is_ever_served_twice() {
    let scene = Scene::new();
    let _first = scene.start(1).await;
    scene.cluster.wait_for_shares(&[(1, 16)]).await;
    let _second = scene.start(2).await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    let _third = scene.start(3).await;
    scene.cluster.wait_for_shares(&[(1, 6), (2, 5), (3, 5)]).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
}

#[tokio::test(start_paused = true)]
async fn who_stops_ends_its_shards_first_and_the_others_take_them() {
    let scene = Scene::new();
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
async fn who_loses_its_session_ends_everything_before_another_can_take_it_and_joins_again() {
    let scene = Scene::new();
    let mut first = scene.start(1).await;
    let _second = scene.start(2).await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
    let session = scene.cluster.tell_lost(1);
    scene.ledger.wait_until("the first serves nothing", |serving| serving.values().all(|(node, _)| *node == 2)).await;
    assert_eq!(scene.ledger.serving().len(), 8, "the second goes on as before");
    assert_eq!(first.sight.me_changed().await, None);
    scene.cluster.let_go(session);
    scene.wait_for_event("joined_again").await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    assert_eq!(first.sight.me(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_resigns_is_ended_and_begun_anew_under_a_higher_epoch() {
    let scene = Scene::new();
    let node = scene.start(1).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
    let (_, epoch) = scene.ledger.serving()[&5];
    node.resign.resign(5, epoch);
    let is_begun_anew = |serving: &std::collections::BTreeMap<u32, (u16, u64)>| {
        serving.get(&5).is_some_and(|(_, newer)| *newer > epoch)
    };
    scene.ledger.wait_until("it is begun anew", is_begun_anew).await;
}

#[tokio::test(start_paused = true)]
async fn a_resignation_of_an_earlier_epoch_changes_nothing() {
    let scene = Scene::new();
    let node = scene.start(1).await;
    scene.ledger.wait_until("all is served", |serving| serving.len() == SHARDS as usize).await;
    let before = scene.ledger.serving();
    node.resign.resign(5, before[&5].1 - 1);
    node.resign.resign(SHARDS + 7, 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.ledger.serving(), before);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_no_center_owns_nothing_and_sees_everything() {
    let scene = Scene::new();
    let _center = scene.start(1).await;
    let door = Member { roles: vec!["receive".to_owned()], ..center(2) };
    let door = scene.try_start(2, door, 0).await.unwrap();
    scene.cluster.wait_for_shares(&[(1, 16), (2, 0)]).await;
    let mut views = door.sight.views.clone();
    views.wait_for(|view| view.owners.iter().all(|owner| *owner == Some(1))).await.unwrap();
    assert_eq!(door.sight.view().address_of(1), Some("n1:1"));
}

#[tokio::test(start_paused = true)]
async fn a_start_under_the_name_of_a_session_that_still_ends_waits_for_its_end() {
    let scene = Scene::new();
    let first = scene.start(1).await;
    scene.cluster.wait_for_shares(&[(1, 16)]).await;
    first.task.abort();
    assert!(first.task.await.is_err(), "it was killed");
    let session = scene.cluster.tell_lost(1);
    let ends = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.cluster.let_go(session);
    };
    let fresh = Scene {
        ledger: Arc::default(),
        cluster: scene.cluster.clone(),
        clocks: scene.clocks.clone(),
        events: Arc::default(),
    };
    let (_again, ()) = tokio::join!(fresh.start(1), ends);
    fresh.cluster.wait_for_shares(&[(1, 16)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_with_a_clock_that_is_apart_is_refused() {
    let scene = Scene::new();
    let _first = scene.start(1).await;
    let refused = scene.try_start(2, center(2), 501).await.err().expect("it is refused");
    assert!(matches!(refused, JoinError::ClocksApart(_)), "{refused}");
    scene.try_start(3, center(3), 500).await.expect("that is near enough");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_clock_goes_astray_gives_its_shards_up_and_gets_them_back_when_it_is_set() {
    let scene = Scene::new();
    let _first = scene.start(1).await;
    let second = scene.start(2).await;
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    second.clock.set(-2000);
    scene.cluster.wait_for_shares(&[(1, 16), (2, 0)]).await;
    assert_eq!(scene.cluster.member(2).unwrap().roles, Vec::<String>::new(), "it is a member and no center");
    assert!(scene.events.lock().unwrap().contains(&"clocks_apart"));
    second.clock.set(0);
    scene.cluster.wait_for_shares(&[(1, 8), (2, 8)]).await;
    assert!(scene.events.lock().unwrap().contains(&"clocks_agree"));
}
