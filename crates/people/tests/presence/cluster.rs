//! Several processes: two writers in one data centre, one in another, two paths, and a lossy network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use whimbrel_engines::memory::MemorySessions;
use whimbrel_model::ports::PresenceError;
use whimbrel_model::{Clock as _, SystemClock};
use whimbrel_people::presence::{LiveMembers, PresenceSettings};

use super::network::{Line, Network};
use super::process::{PresenceProcess, counts, gateway, living, memory_sessions, uid, wait_until};

const ADDRESSES: [&str; 3] = ["a", "b", "c"];

struct PresenceCluster {
    network: Arc<Network>,
    stores: Vec<Arc<MemorySessions>>,
    processes: Vec<PresenceProcess>,
    living: watch::Sender<Arc<LiveMembers>>,
}

fn settings(process: usize) -> PresenceSettings {
    let writers = vec![vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]];
    PresenceSettings { writers, here: usize::from(process == 2), ..PresenceSettings::default() }
}

fn all_living() -> Arc<LiveMembers> {
    living(&[(gateway(1, 10), "a"), (gateway(2, 10), "b"), (gateway(3, 10), "c")], &ADDRESSES)
}

fn cluster_of_three() -> PresenceCluster {
    let network = Network::new();
    let (sender, receiver) = watch::channel(all_living());
    let (mut processes, mut stores) = (Vec::new(), Vec::new());
    for (index, me) in ADDRESSES.into_iter().enumerate() {
        let store = memory_sessions();
        let process = open(me, index, &store, &network, receiver.clone());
        process.node.reporter().reincarnate(gateway(index as u16 + 1, 10));
        processes.push(process);
        stores.push(store);
    }
    PresenceCluster { network, stores, processes, living: sender }
}

fn open(
    me: &str,
    index: usize,
    store: &Arc<MemorySessions>,
    network: &Arc<Network>,
    living: watch::Receiver<Arc<LiveMembers>>,
) -> PresenceProcess {
    let process = PresenceProcess::open(
        me,
        settings(index),
        store.clone(),
        Arc::new(Line(network.clone(), me.to_owned())),
        living,
    );
    network.add(me, process.node.clone());
    process
}

/// Users come and go at all processes for a while. Returns the final number of sessions of each user.
async fn busy_time(processes: &[PresenceProcess]) -> BTreeMap<String, usize> {
    let mut there: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..600u64 {
        let user = format!("user-{}", number % 97);
        let process = &processes[number as usize % processes.len()];
        process.come(&user, number);
        *there.entry(user).or_default() += 1;
        if number % 3 != 0 {
            let gone = number - number % 3;
            let (user, process) = (format!("user-{}", gone % 97), &processes[gone as usize % processes.len()]);
            if number % 3 == 1 {
                process.go(&user, gone);
                *there.entry(user).or_default() -= 1;
            }
        }
        if number % 5 == 0 {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    there
}

#[tokio::test(start_paused = true)]
async fn every_data_centre_converges_although_the_network_loses_a_third() {
    let PresenceCluster { network, processes, .. } = cluster_of_three();
    network.loses.store(33, Ordering::SeqCst);
    let there = busy_time(&processes).await;
    for process in &processes {
        process.wait_to_see(&there).await;
    }
    let (lost, repeated) = (network.lost.load(Ordering::SeqCst), network.repeated.load(Ordering::SeqCst));
    assert!(lost > 100 && repeated > 50, "{lost} lost, {repeated} repeated");
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_restarts_with_an_empty_store_rebuilds_it_from_the_gateways() {
    let PresenceCluster { network, mut processes, living: cluster, .. } = cluster_of_three();
    network.loses.store(20, Ordering::SeqCst);
    let there = busy_time(&processes).await;
    processes[0].wait_to_see(&there).await;
    network.remove("b");
    processes.remove(1).close().await;
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(3, 10), "c")], &["a", "c"]));
    let store = memory_sessions();
    let again = open("b", 1, &store, &network, cluster.subscribe());
    again.node.reporter().reincarnate(gateway(2, 11));
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(2, 11), "b"), (gateway(3, 10), "c")], &ADDRESSES));
    again.come("late", 1);
    // The other data centre, which did not restart, is the reference.
    again.wait_to_see(&counts(&[("late", 1)])).await;
    processes[1].wait_to_see(&counts(&[("late", 1)])).await;
    let users: Vec<String> = there.keys().cloned().collect();
    let measure = processes[1].sees(&users).await.expect("a fresh answer");
    assert!(measure.iter().sum::<usize>() > 0 && measure.iter().sum::<usize>() < there.values().sum());
    again.wait_to_see(&users.into_iter().zip(measure).collect()).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_rejects_queries_until_every_gateway_has_sent_its_snapshot() {
    let PresenceCluster { network, mut processes, living: cluster, .. } = cluster_of_three();
    // Enough users that both shards of the data centre have some.
    let there: BTreeMap<String, usize> = (0..16).map(|number| (format!("user-{number}"), 1)).collect();
    let users: Vec<String> = there.keys().cloned().collect();
    users.iter().zip(1..).for_each(|(user, number)| processes[2].come(user, number));
    processes[0].wait_to_see(&there).await;
    network.remove("a");
    network.remove("b");
    processes.drain(..2).for_each(drop);
    // No gateway can be reached: the store of the new process is empty and must not count as fresh.
    network.loses.store(100, Ordering::SeqCst);
    let store = memory_sessions();
    cluster.send_replace(living(&[(gateway(1, 11), "a"), (gateway(3, 10), "c")], &["a", "c"]));
    let again = open("a", 0, &store, &network, cluster.subscribe());
    again.node.reporter().reincarnate(gateway(1, 11));
    // For any length of time: the gateway has its lease and its users are connected.
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for user in &users {
            if let Ok(seen) = again.sees(std::slice::from_ref(user)).await {
                // The other data centre may answer while its state is fresh.
                assert_eq!(seen, [1], "{user}");
            }
        }
    }
    network.loses.store(0, Ordering::SeqCst);
    again.wait_to_see(&there).await;
}

/// The age of the process's answer about the user.
async fn age_of(process: &PresenceProcess, user: &str) -> Result<Duration, PresenceError> {
    let answer = process.node.reader().of(vec![uid(user)]).await?;
    Ok(Duration::from_millis((SystemClock.now().as_millis() - answer.fresh_as_of.as_millis()).max(0) as u64))
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_cut_off_with_its_lease_makes_all_shards_stale_until_it_returns() {
    let PresenceCluster { network, processes, living: _cluster, .. } = cluster_of_three();
    let there: BTreeMap<String, usize> = (0..16).map(|number| (format!("user-{number}"), 1)).collect();
    let users: Vec<String> = there.keys().cloned().collect();
    users.iter().zip(1..).for_each(|(user, number)| processes[2].come(user, number));
    for process in &processes {
        process.wait_to_see(&there).await;
    }
    network.cut_off("c");
    processes[2].go(&users[0], 1);
    processes[2].come(&users[1], 100);
    let cut_at = Instant::now();
    let stale_after = PresenceSettings::default().stale_after;
    // Answers in this time are as of the cut, and their age says so.
    while cut_at.elapsed() <= stale_after {
        for user in &users {
            if let Ok(age) = age_of(&processes[0], user).await {
                assert!(age + Duration::from_millis(200) >= cut_at.elapsed(), "{age:?} after {:?}", cut_at.elapsed());
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // For any length of time.
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for process in &processes {
            let seen = process.sees(&users[..1]).await;
            assert!(matches!(seen, Err(PresenceError::NotFresh { ago_ms: Some(_) })), "{seen:?}");
        }
    }
    network.heal();
    let mut there = there;
    there.insert(users[0].clone(), 0);
    there.insert(users[1].clone(), 2);
    for process in &processes {
        process.wait_to_see(&there).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_cut_off_and_loses_its_lease_delays_no_answer() {
    let PresenceCluster { network, processes, living: cluster, .. } = cluster_of_three();
    processes[2].come("eva", 1);
    processes[0].come("kim", 1);
    processes[0].wait_to_see(&counts(&[("eva", 1), ("kim", 1)])).await;
    network.cut_off("c");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(processes[0].sees(&["kim".to_owned()]).await.is_err());
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(2, 10), "b")], &["a", "b"]));
    processes[0].wait_to_see(&counts(&[("eva", 0), ("kim", 1)])).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_path_makes_nothing_stale() {
    let PresenceCluster { network, processes, living: cluster, .. } = cluster_of_three();
    processes[2].come("eva", 1);
    processes[2].wait_to_see(&counts(&[("eva", 1)])).await;
    // Cuts the second path of gateways that use b as their proxy, and the shards that b writes.
    network.cut_off("b");
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(3, 10), "c")], &ADDRESSES));
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(processes[2].sees(&["eva".to_owned()]).await, Ok(vec![1]));
    }
}

#[tokio::test(start_paused = true)]
async fn another_data_centre_answers_if_this_one_cannot() {
    let PresenceCluster { processes, stores, .. } = cluster_of_three();
    processes[1].come("eva", 1);
    for process in &processes {
        process.wait_to_see(&counts(&[("eva", 1)])).await;
    }
    stores[0].is_down.store(true, Ordering::SeqCst);
    stores[1].is_down.store(true, Ordering::SeqCst);
    assert_eq!(processes[0].sees(&["eva".to_owned()]).await, Ok(vec![1]));
    stores[2].is_down.store(true, Ordering::SeqCst);
    assert!(matches!(processes[0].sees(&["eva".to_owned()]).await, Err(PresenceError::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn each_data_centre_publishes_one_event_per_user() {
    let PresenceCluster { network, processes, .. } = cluster_of_three();
    network.loses.store(33, Ordering::SeqCst);
    for number in 0..50 {
        processes[number as usize % 3].come(&format!("user-{number}"), number);
    }
    let first = |process: &PresenceProcess| process.recorder.told().len();
    wait_until("all arrivals are published", || {
        first(&processes[0]) + first(&processes[1]) >= 50 && first(&processes[2]) >= 50
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((first(&processes[0]) + first(&processes[1]), first(&processes[2])), (50, 50));
}
