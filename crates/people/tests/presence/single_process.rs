//! A single process with reporter, proxy, writers and reader. It runs the same code as a cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use whimbrel_engines::memory::MemorySessions;
use whimbrel_model::ports::PresenceError;
use whimbrel_people::presence::{LiveMembers, PresenceSettings};

use super::network::{Line, Network};
use super::process::{PresenceProcess, counts, gateway, living, memory_sessions, uid, wait_until};

struct SingleProcess {
    process: PresenceProcess,
    store: Arc<MemorySessions>,
    living: watch::Sender<Arc<LiveMembers>>,
}

fn single_process(settings: PresenceSettings) -> SingleProcess {
    let (sender, receiver) = watch::channel(living(&[(gateway(1, 10), "me")], &["me"]));
    let store = memory_sessions();
    let process =
        PresenceProcess::open("me", settings, store.clone(), Arc::new(Line(Network::new(), "me".to_owned())), receiver);
    process.node.reporter().reincarnate(gateway(1, 10));
    SingleProcess { process, store, living: sender }
}

#[tokio::test(start_paused = true)]
async fn connected_users_are_online_and_departed_ones_are_not() {
    let SingleProcess { process, .. } = single_process(PresenceSettings::default());
    process.come("eva", 1);
    process.come("eva", 2);
    process.come("kim", 3);
    process.wait_to_see(&counts(&[("eva", 2), ("kim", 1), ("nobody", 0)])).await;
    process.go("eva", 1);
    process.go("kim", 3);
    process.wait_to_see(&counts(&[("eva", 1), ("kim", 0)])).await;
    process.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_flapping_user_causes_one_event() {
    let SingleProcess { process, .. } = single_process(PresenceSettings::default());
    process.come("eva", 1);
    process.wait_to_see(&counts(&[("eva", 1)])).await;
    process.go("eva", 1);
    process.wait_to_see(&counts(&[("eva", 0)])).await;
    process.come("eva", 2);
    process.come("kim", 3);
    wait_until("both arrivals are published", || process.recorder.told().len() >= 2).await;
    process.go("kim", 3);
    wait_until("kim's departure is published", || process.recorder.told().len() >= 3).await;
    let told = process.recorder.told();
    assert_eq!(told.iter().filter(|(uid, _)| uid == "eva").count(), 1, "{told:?}");
    let kim: Vec<bool> = told.iter().filter(|(uid, _)| uid == "kim").map(|(_, online)| *online).collect();
    assert_eq!(kim, [true, false]);
    let events = process.recorder.events.lock().unwrap().clone();
    assert_eq!(events.iter().map(|event| event.sessions).collect::<Vec<_>>(), [1, 1, 0]);
    process.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_void_at_once_and_its_events_have_a_bounded_rate() {
    let settings = PresenceSettings { shards: 1, sweep_per_second: 20, ..PresenceSettings::default() };
    let SingleProcess { process, living: cluster, .. } = single_process(settings);
    let users: Vec<String> = (0..100).map(|number| format!("user-{number}")).collect();
    (0..).zip(&users).for_each(|(number, user)| process.come(user, number));
    let wanted = users.iter().map(|user| (user.clone(), 1)).collect();
    process.wait_to_see(&wanted).await;
    wait_until("all arrivals are published", || process.recorder.told().len() == 100).await;
    cluster.send_replace(living(&[], &["me"]));
    // The time of one tick of the writer, independent of the number of users.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(process.sees(&users).await, Ok(vec![0; 100]));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let told = process.recorder.told().len() - 100;
    assert!((1..=70).contains(&told), "{told} departures were published within 3 s, at 20 per second");
    wait_until("all departures are published", || process.recorder.told().len() == 200).await;
    assert!(process.recorder.told()[100..].iter().all(|(_, online)| !online));
    process.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_with_a_new_lease_reports_its_remaining_users() {
    let SingleProcess { process, living: cluster, .. } = single_process(PresenceSettings::default());
    process.come("eva", 1);
    process.come("kim", 2);
    process.wait_to_see(&counts(&[("eva", 1), ("kim", 1)])).await;
    cluster.send_replace(living(&[], &["me"]));
    process.wait_to_see(&counts(&[("eva", 0), ("kim", 0)])).await;
    process.go("kim", 2);
    cluster.send_replace(living(&[(gateway(1, 11), "me")], &["me"]));
    process.node.reporter().reincarnate(gateway(1, 11));
    process.wait_to_see(&counts(&[("eva", 1), ("kim", 0)])).await;
    process.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_makes_presence_unavailable_until_it_recovers() {
    let SingleProcess { process, store, .. } = single_process(PresenceSettings::default());
    process.come("eva", 1);
    process.wait_to_see(&counts(&[("eva", 1)])).await;
    store.is_down.store(true, Ordering::SeqCst);
    assert!(matches!(process.sees(&["eva".to_owned()]).await, Err(PresenceError::Unavailable(_))));
    process.come("eva", 2);
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Nothing was lost: when the store works again, the writer requests snapshots.
    store.is_down.store(false, Ordering::SeqCst);
    process.wait_to_see(&counts(&[("eva", 2)])).await;
    process.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_writer_makes_its_reader_reject_queries() {
    let SingleProcess { process, living: cluster, store } = single_process(PresenceSettings::default());
    process.come("eva", 1);
    process.wait_to_see(&counts(&[("eva", 1)])).await;
    let node = process.node.clone();
    process.close().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(node.reader().of(vec![uid("eva")]).await.is_ok());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let answer = node.reader().of(vec![uid("eva")]).await;
    assert!(matches!(answer, Err(PresenceError::NotFresh { ago_ms: Some(ago) }) if ago > 3_000), "{answer:?}");
    drop((cluster, store));
}
