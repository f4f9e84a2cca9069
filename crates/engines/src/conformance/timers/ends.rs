//! The ends of holds, and the time for which they are remembered.

use std::time::Duration;

use whimbrel_model::ports::{DueCursor, HoldQuery, StoredHold};
use whimbrel_model::{HoldEnd, HoldEndKind, HoldId, Timestamp, TopicNumber};

use super::TimersFactory;
use super::scene::{HoldStep, MINUTE_MS, START_MS, ShardScene, at, dead, ended, everything, fired, hold, new_shard};

/// The timeout for an engine to forget an end in the background. It bounds a failure, not a success.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn an_ended_hold_is_found_by_its_id_alone(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 10), hold("b", 10)]).await;
    shard.end("a", fired(10)).await;
    assert_eq!(shard.get("a").await, Some(StoredHold::Ended(fired(10))));
    assert_eq!(shard.due_all().await.len(), 1);
    shard.agrees().await;
}

pub async fn every_kind_of_end_is_returned_as_written(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    let fingerprint = Some(u64::MAX - 3);
    for (n, how) in [
        HoldEndKind::Fired { partition: u32::MAX },
        HoldEndKind::Withdrawn,
        HoldEndKind::Dead { reason: "too large: é".into() },
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("hold-{n}");
        shard.put(vec![hold(&id, 10)]).await;
        shard.end(&id, HoldEnd { fingerprint, ..ended(how, 10, 7) }).await;
    }
    shard.agrees().await;
}

pub async fn an_end_of_an_id_that_was_never_put_is_remembered(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.end("a", fired(10)).await;
    shard.end("b", dead(10, 3)).await;
    shard.agrees().await;
}

pub async fn an_end_replaces_an_earlier_end_whatever_their_times(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    let far = i64::try_from(factory.remember().as_millis()).expect("it is at most a day") * 3 / 4;
    for millis in [0, -far, -MINUTE_MS / 2, far - MINUTE_MS, -far / 2] {
        shard.end("a", HoldEnd { at: at(millis), ..ended(HoldEndKind::Withdrawn, 10, 7) }).await;
        shard.agrees().await;
    }
}

pub async fn a_hold_put_again_after_its_end_is_pending(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 10)]).await;
    shard.end("a", fired(10)).await;
    shard.put(vec![hold("a", 20)]).await;
    assert_eq!(shard.get("a").await, Some(StoredHold::Pending(hold("a", 20).into())));
    shard.agrees().await;
}

pub async fn a_hold_that_ends_twice_keeps_its_latest_end(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 10)]).await;
    shard.end("a", fired(10)).await;
    shard.put(vec![hold("a", 20)]).await;
    shard.end("a", HoldEnd { at: at(-3), ..ended(HoldEndKind::Withdrawn, 20, 7) }).await;
    shard.agrees().await;
}

pub async fn dead_ends_are_listed_in_due_order(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("c", 10), hold("a", 30), hold("b", 10), hold("x", 5), hold("pending", 1)]).await;
    for (id, due) in [("a", 30), ("c", 10), ("b", 10)] {
        shard.end(id, dead(due, 7)).await;
    }
    shard.end("x", fired(5)).await;
    let ids: Vec<_> = shard.dead(everything()).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["b", "c", "a"].map(HoldId::new));
    shard.agrees().await;
}

pub async fn dead_ends_are_listed_by_topic_range_and_cursor(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    let ends = (0..30_u32).map(|n| {
        let end = HoldEnd { at: at(-i64::from(n) * 700), ..dead(i64::from(n / 4), n % 3) };
        HoldStep::End(HoldId::new(&format!("hold-{n}")), end)
    });
    shard.apply(ends.collect()).await;
    let queries = [
        HoldQuery { topic: Some(TopicNumber(1)), ..everything() },
        HoldQuery { topic: Some(TopicNumber(9)), ..everything() },
        HoldQuery { from: Some(at(2)), to: Some(at(5)), ..everything() },
        HoldQuery { from: Some(at(2)), topic: Some(TopicNumber(2)), limit: 3, ..everything() },
        HoldQuery { after: Some(DueCursor { due: at(3), id: HoldId::new("hold-13") }), limit: 5, ..everything() },
        HoldQuery {
            after: Some(DueCursor { due: at(3), id: HoldId::new("hold-13") }),
            topic: Some(TopicNumber(0)),
            to: Some(at(6)),
            ..everything()
        },
    ];
    for query in queries {
        assert_eq!(shard.dead(query.clone()).await, shard.naive.dead(&query), "{query:?}");
    }
}

pub async fn a_dead_hold_that_is_put_again_is_not_listed(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.end("a", dead(10, 7)).await;
    shard.put(vec![hold("a", 10)]).await;
    assert!(shard.dead(everything()).await.is_empty());
    shard.end("a", dead(10, 7)).await;
    assert_eq!(shard.dead(everything()).await.len(), 1);
    shard.agrees().await;
}

pub async fn a_dead_hold_that_ended_otherwise_is_not_listed(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.end("a", dead(10, 7)).await;
    shard.end("b", dead(10, 7)).await;
    shard.end("a", fired(10)).await;
    shard.end("b", dead(20, 8)).await;
    assert_eq!(shard.dead(everything()).await, [(HoldId::new("b"), dead(20, 8))]);
    shard.agrees().await;
}

pub async fn an_end_is_remembered_for_its_time(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.end("a", fired(10)).await;
    shard.end("b", dead(10, 7)).await;
    let remember = i64::try_from(factory.remember().as_millis()).expect("it is at most a day");
    for late in [remember / 4, remember / 2, remember * 3 / 4, remember - 1000] {
        shard.now = at(late);
        shard.end("other", fired(1)).await;
        shard.agrees().await;
    }
}

pub async fn an_end_is_forgotten_after_its_time(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.end("a", fired(10)).await;
    shard.put(vec![hold("b", 10), hold("pending", 10)]).await;
    shard.end("b", dead(10, 7)).await;
    let remember = i64::try_from(factory.remember().as_millis()).expect("it is at most a day");
    let forgotten = async {
        for round in 0.. {
            shard.now = Timestamp::from_millis(START_MS + remember * 2 + round * 1000);
            shard.end("fresh", HoldEnd { at: shard.now, ..fired(1) }).await;
            if is_forgotten(&shard).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, forgotten).await.expect("an expired end is forgotten");
    assert!(matches!(shard.get("pending").await, Some(StoredHold::Pending(_))), "a pending hold is never forgotten");
    assert!(matches!(shard.get("fresh").await, Some(StoredHold::Ended(_))), "a newer end is remembered");
}

async fn is_forgotten(shard: &ShardScene) -> bool {
    shard.get_many(&["a", "b"]).await == [None, None] && shard.dead(everything()).await.is_empty()
}
