//! Several processes, two writers in one data centre and one in another, two paths, and a network that loses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use whimbrel_model::ports::PresenceError;
use whimbrel_model::{Clock as _, SystemClock};
use whimbrel_people::presence::{Living, PresenceSettings};

use super::network::{Line, Network};
use super::store::MemoryStore;
use super::town::{House, counts, gateway, living, uid, wait_until};

const HOUSES: [&str; 3] = ["a", "b", "c"];

struct Town {
    network: Arc<Network>,
    stores: Vec<Arc<MemoryStore>>,
    houses: Vec<House>,
    living: watch::Sender<Arc<Living>>,
}

fn settings(house: usize) -> PresenceSettings {
    let writers = vec![vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]];
    PresenceSettings { writers, here: usize::from(house == 2), ..PresenceSettings::default() }
}

fn all_living() -> Arc<Living> {
    living(&[(gateway(1, 10), "a"), (gateway(2, 10), "b"), (gateway(3, 10), "c")], &HOUSES)
}

fn town() -> Town {
    let network = Network::new();
    let (sender, receiver) = watch::channel(all_living());
    let (mut houses, mut stores) = (Vec::new(), Vec::new());
    for (index, me) in HOUSES.into_iter().enumerate() {
        let store = MemoryStore::new();
        let house = open(me, index, &store, &network, receiver.clone());
        house.station.reporter().reincarnate(gateway(index as u16 + 1, 10));
        houses.push(house);
        stores.push(store);
    }
    Town { network, stores, houses, living: sender }
}

fn open(
    me: &str,
    index: usize,
    store: &Arc<MemoryStore>,
    network: &Arc<Network>,
    living: watch::Receiver<Arc<Living>>,
) -> House {
    let house = House::open(me, settings(index), store.clone(), Arc::new(Line(network.clone(), me.to_owned())), living);
    network.add(me, house.station.clone());
    house
}

/// Users come to and go from all houses for a while; who is there in the end.
async fn busy_time(houses: &[House]) -> BTreeMap<String, usize> {
    let mut there: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..600u64 {
        let user = format!("user-{}", number % 97);
        let house = &houses[number as usize % houses.len()];
        house.come(&user, number);
        *there.entry(user).or_default() += 1;
        if number % 3 != 0 {
            let gone = number - number % 3;
            let (user, house) = (format!("user-{}", gone % 97), &houses[gone as usize % houses.len()]);
            if number % 3 == 1 {
                house.go(&user, gone);
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
async fn every_data_centre_shows_the_truth_although_the_network_loses_a_third() {
    let Town { network, houses, .. } = town();
    network.loses.store(33, Ordering::SeqCst);
    let there = busy_time(&houses).await;
    for house in &houses {
        house.wait_to_see(&there).await;
    }
    let (lost, repeated) = (network.lost.load(Ordering::SeqCst), network.repeated.load(Ordering::SeqCst));
    assert!(lost > 100 && repeated > 50, "{lost} lost, {repeated} repeated");
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_restarts_with_an_empty_store_draws_its_picture_from_the_gateways() {
    let Town { network, mut houses, living: cluster, .. } = town();
    network.loses.store(20, Ordering::SeqCst);
    let there = busy_time(&houses).await;
    houses[0].wait_to_see(&there).await;
    network.remove("b");
    houses.remove(1).close().await;
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(3, 10), "c")], &["a", "c"]));
    let store = MemoryStore::new();
    let again = open("b", 1, &store, &network, cluster.subscribe());
    again.station.reporter().reincarnate(gateway(2, 11));
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(2, 11), "b"), (gateway(3, 10), "c")], &HOUSES));
    again.come("late", 1);
    // The other data centre, which did not restart, is the measure.
    again.wait_to_see(&counts(&[("late", 1)])).await;
    houses[1].wait_to_see(&counts(&[("late", 1)])).await;
    let users: Vec<String> = there.keys().cloned().collect();
    let measure = houses[1].sees(&users).await.expect("a fresh answer");
    assert!(measure.iter().sum::<usize>() > 0 && measure.iter().sum::<usize>() < there.values().sum());
    again.wait_to_see(&users.into_iter().zip(measure).collect()).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_before_the_picture_of_every_gateway_has_come() {
    let Town { network, mut houses, living: cluster, .. } = town();
    // Enough of them that both shards of the data centre have some.
    let there: BTreeMap<String, usize> = (0..16).map(|number| (format!("user-{number}"), 1)).collect();
    let users: Vec<String> = there.keys().cloned().collect();
    users.iter().zip(1..).for_each(|(user, number)| houses[2].come(user, number));
    houses[0].wait_to_see(&there).await;
    network.remove("a");
    network.remove("b");
    houses.drain(..2).for_each(drop);
    // Nobody can be asked or heard from: the store of the new process is empty and it knows that it is.
    network.loses.store(100, Ordering::SeqCst);
    let store = MemoryStore::new();
    cluster.send_replace(living(&[(gateway(1, 11), "a"), (gateway(3, 10), "c")], &["a", "c"]));
    let again = open("a", 0, &store, &network, cluster.subscribe());
    again.station.reporter().reincarnate(gateway(1, 11));
    // However long that lasts: the gateway has its lease, and its users are where they were.
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for user in &users {
            if let Ok(seen) = again.sees(std::slice::from_ref(user)).await {
                // What it cannot say, the other data centre can while what that heard is fresh.
                assert_eq!(seen, [1], "{user}");
            }
        }
    }
    network.loses.store(0, Ordering::SeqCst);
    again.wait_to_see(&there).await;
}

/// How fresh a house says that what it knows of the user is.
async fn age_of(house: &House, user: &str) -> Result<Duration, PresenceError> {
    let answer = house.station.reader().of(vec![uid(user)]).await?;
    Ok(Duration::from_millis((SystemClock.now().as_millis() - answer.fresh_as_of.as_millis()).max(0) as u64))
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_cut_off_with_its_lease_makes_everything_not_fresh_until_it_is_heard_again() {
    let Town { network, houses, living: _cluster, .. } = town();
    let there: BTreeMap<String, usize> = (0..16).map(|number| (format!("user-{number}"), 1)).collect();
    let users: Vec<String> = there.keys().cloned().collect();
    users.iter().zip(1..).for_each(|(user, number)| houses[2].come(user, number));
    for house in &houses {
        house.wait_to_see(&there).await;
    }
    network.cut_off("c");
    houses[2].go(&users[0], 1);
    houses[2].come(&users[1], 100);
    let cut_at = Instant::now();
    let stale_after = PresenceSettings::default().stale_after;
    // What is said meanwhile is what was true when it was cut off, and as old as it says.
    while cut_at.elapsed() <= stale_after {
        for user in &users {
            if let Ok(age) = age_of(&houses[0], user).await {
                assert!(age + Duration::from_millis(200) >= cut_at.elapsed(), "{age:?} after {:?}", cut_at.elapsed());
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // However long that lasts.
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for house in &houses {
            let seen = house.sees(&users[..1]).await;
            assert!(matches!(seen, Err(PresenceError::NotFresh { ago_ms: Some(_) })), "{seen:?}");
        }
    }
    network.heal();
    let mut there = there;
    there.insert(users[0].clone(), 0);
    there.insert(users[1].clone(), 2);
    for house in &houses {
        house.wait_to_see(&there).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_cut_off_and_loses_its_lease_is_waited_for_by_nobody() {
    let Town { network, houses, living: cluster, .. } = town();
    houses[2].come("eva", 1);
    houses[0].come("kim", 1);
    houses[0].wait_to_see(&counts(&[("eva", 1), ("kim", 1)])).await;
    network.cut_off("c");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(houses[0].sees(&["kim".to_owned()]).await.is_err());
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(2, 10), "b")], &["a", "b"]));
    houses[0].wait_to_see(&counts(&[("eva", 0), ("kim", 1)])).await;
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_lost_makes_nothing_stale() {
    let Town { network, houses, living: cluster, .. } = town();
    houses[2].come("eva", 1);
    houses[2].wait_to_see(&counts(&[("eva", 1)])).await;
    // The second path of whoever goes through b, and whatever b writes.
    network.cut_off("b");
    cluster.send_replace(living(&[(gateway(1, 10), "a"), (gateway(3, 10), "c")], &HOUSES));
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(houses[2].sees(&["eva".to_owned()]).await, Ok(vec![1]));
    }
}

#[tokio::test(start_paused = true)]
async fn where_this_data_centre_cannot_answer_another_does() {
    let Town { houses, stores, .. } = town();
    houses[1].come("eva", 1);
    for house in &houses {
        house.wait_to_see(&counts(&[("eva", 1)])).await;
    }
    stores[0].fails.store(true, Ordering::SeqCst);
    stores[1].fails.store(true, Ordering::SeqCst);
    assert_eq!(houses[0].sees(&["eva".to_owned()]).await, Ok(vec![1]));
    stores[2].fails.store(true, Ordering::SeqCst);
    assert!(matches!(houses[0].sees(&["eva".to_owned()]).await, Err(PresenceError::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn each_data_centre_tells_of_each_user_once() {
    let Town { network, houses, .. } = town();
    network.loses.store(33, Ordering::SeqCst);
    for number in 0..50 {
        houses[number as usize % 3].come(&format!("user-{number}"), number);
    }
    let first = |house: &House| house.diary.told().len();
    wait_until("all are told of", || first(&houses[0]) + first(&houses[1]) >= 50 && first(&houses[2]) >= 50).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((first(&houses[0]) + first(&houses[1]), first(&houses[2])), (50, 50));
}
