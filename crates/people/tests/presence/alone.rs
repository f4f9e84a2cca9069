//! One process: reporter, proxy, writers and reader in it, through the same code as anywhere.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use whimbrel_model::ports::PresenceError;
use whimbrel_people::presence::{Living, PresenceSettings};

use super::network::{Line, Network};
use super::store::MemoryStore;
use super::town::{House, counts, gateway, living, uid, wait_until};

struct Alone {
    house: House,
    store: Arc<MemoryStore>,
    living: watch::Sender<Arc<Living>>,
}

fn alone(settings: PresenceSettings) -> Alone {
    let (sender, receiver) = watch::channel(living(&[(gateway(1, 10), "me")], &["me"]));
    let store = MemoryStore::new();
    let house = House::open("me", settings, store.clone(), Arc::new(Line(Network::new(), "me".to_owned())), receiver);
    house.station.reporter().reincarnate(gateway(1, 10));
    Alone { house, store, living: sender }
}

#[tokio::test(start_paused = true)]
async fn who_comes_is_shown_and_who_goes_is_not() {
    let Alone { house, .. } = alone(PresenceSettings::default());
    house.come("eva", 1);
    house.come("eva", 2);
    house.come("kim", 3);
    house.wait_to_see(&counts(&[("eva", 2), ("kim", 1), ("nobody", 0)])).await;
    house.go("eva", 1);
    house.go("kim", 3);
    house.wait_to_see(&counts(&[("eva", 1), ("kim", 0)])).await;
    house.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_user_that_flaps_is_told_of_once() {
    let Alone { house, .. } = alone(PresenceSettings::default());
    house.come("eva", 1);
    house.wait_to_see(&counts(&[("eva", 1)])).await;
    house.go("eva", 1);
    house.wait_to_see(&counts(&[("eva", 0)])).await;
    house.come("eva", 2);
    house.come("kim", 3);
    wait_until("both are told of", || house.diary.told().len() >= 2).await;
    house.go("kim", 3);
    wait_until("kim's going is told", || house.diary.told().len() >= 3).await;
    let told = house.diary.told();
    assert_eq!(told.iter().filter(|(uid, _)| uid == "eva").count(), 1, "{told:?}");
    let kim: Vec<bool> = told.iter().filter(|(uid, _)| uid == "kim").map(|(_, online)| *online).collect();
    assert_eq!(kim, [true, false]);
    let events = house.diary.events.lock().unwrap().clone();
    assert_eq!(events.iter().map(|event| event.sessions).collect::<Vec<_>>(), [1, 1, 0]);
    house.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_void_at_once_and_its_users_are_told_of_at_a_bounded_rate() {
    let settings = PresenceSettings { shards: 1, sweep_per_second: 20, ..PresenceSettings::default() };
    let Alone { house, living: cluster, .. } = alone(settings);
    let users: Vec<String> = (0..100).map(|number| format!("user-{number}")).collect();
    (0..).zip(&users).for_each(|(number, user)| house.come(user, number));
    let wanted = users.iter().map(|user| (user.clone(), 1)).collect();
    house.wait_to_see(&wanted).await;
    wait_until("all are told of", || house.diary.told().len() == 100).await;
    cluster.send_replace(living(&[], &["me"]));
    // One look of the writer, not one for each user.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(house.sees(&users).await, Ok(vec![0; 100]));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let told = house.diary.told().len() - 100;
    assert!((1..=70).contains(&told), "{told} goings were told within 3 s, at 20 a second");
    wait_until("all goings are told", || house.diary.told().len() == 200).await;
    assert!(house.diary.told()[100..].iter().all(|(_, online)| !online));
    house.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_comes_back_under_a_new_lease_shows_the_users_that_it_still_has() {
    let Alone { house, living: cluster, .. } = alone(PresenceSettings::default());
    house.come("eva", 1);
    house.come("kim", 2);
    house.wait_to_see(&counts(&[("eva", 1), ("kim", 1)])).await;
    cluster.send_replace(living(&[], &["me"]));
    house.wait_to_see(&counts(&[("eva", 0), ("kim", 0)])).await;
    house.go("kim", 2);
    cluster.send_replace(living(&[(gateway(1, 11), "me")], &["me"]));
    house.station.reporter().reincarnate(gateway(1, 11));
    house.wait_to_see(&counts(&[("eva", 1), ("kim", 0)])).await;
    house.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_not_heard_from_is_not_believed() {
    let Alone { house, store, .. } = alone(PresenceSettings::default());
    house.come("eva", 1);
    house.wait_to_see(&counts(&[("eva", 1)])).await;
    store.fails.store(true, Ordering::SeqCst);
    assert!(matches!(house.sees(&["eva".to_owned()]).await, Err(PresenceError::Unavailable(_))));
    house.come("eva", 2);
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Nothing was lost: when the store is there again, the writer draws its picture anew.
    store.fails.store(false, Ordering::SeqCst);
    house.wait_to_see(&counts(&[("eva", 2)])).await;
    house.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_stopped_makes_its_reader_refuse() {
    let Alone { house, living: cluster, store } = alone(PresenceSettings::default());
    house.come("eva", 1);
    house.wait_to_see(&counts(&[("eva", 1)])).await;
    let station = house.station.clone();
    house.close().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(station.reader().of(vec![uid("eva")]).await.is_ok());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let answer = station.reader().of(vec![uid("eva")]).await;
    assert!(matches!(answer, Err(PresenceError::NotFresh { ago_ms: Some(ago) }) if ago > 3_000), "{answer:?}");
    drop((cluster, store));
}
