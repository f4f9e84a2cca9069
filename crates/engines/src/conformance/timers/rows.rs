//! Rows of pending holds: one per id, the same by id and in due order.

use whimbrel_model::ports::{HoldQuery, StoredHold};
use whimbrel_model::{Hold, HoldId};

use super::TimersFactory;
use super::scene::{HoldStep, MINUTE_MS, at, everything, fired, hold, hold_of, ids_of, minutes, new_shard};

pub async fn a_moved_hold_leaves_no_stale_row(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 10), hold("b", 20)]).await;
    for due in [30, 5 * MINUTE_MS, 1, -MINUTE_MS] {
        shard.put(vec![hold("a", due)]).await;
        assert_eq!(shard.due_all().await.len(), 2, "moved to {due}");
        shard.agrees().await;
    }
}

pub async fn a_hold_put_where_all_others_have_ended_is_found(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    let past = |millis: i64| millis - 2 * MINUTE_MS;
    let id = |n: i64| format!("hold-{n:02}");
    shard.put((0..20).map(|n| hold(&id(n), past(n * 1000))).collect()).await;
    shard.put(vec![hold("far", 5 * MINUTE_MS)]).await;
    shard.apply((0..20).map(|n| HoldStep::End(HoldId::new(&id(n)), fired(past(n * 1000)))).collect()).await;
    shard.agrees().await;
    // Between ended holds. Some have an id and a time that existed before.
    let others = [hold("hold-07", past(7000)), hold_of("of-another-topic", past(7002), 8, b"")];
    shard.put([hold("late", past(7001))].into_iter().chain(others).collect()).await;
    shard.agrees().await;
    shard.put(vec![hold("late", past(7003)), hold("hold-07", 9 * MINUTE_MS)]).await;
    shard.agrees().await;
    shard.put(vec![hold("far", past(6999))]).await;
    shard.agrees().await;
    shard.end("late", fired(past(7003))).await;
    shard.end("far", fired(past(6999))).await;
    shard.agrees().await;
    shard.end("of-another-topic", fired(past(7002))).await;
    shard.agrees().await;
}

pub async fn a_hold_put_again_at_the_same_time_is_replaced(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold_of("a", 10, 7, b"first")]).await;
    let second = Hold { version: 99, ..hold_of("a", 10, 7, b"second") };
    shard.put(vec![second.clone()]).await;
    assert_eq!(shard.get("a").await, Some(StoredHold::Pending(second.into())));
    shard.agrees().await;
}

pub async fn a_hold_that_changes_its_topic_leaves_no_stale_row(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold_of("a", 10, 7, b"")]).await;
    shard.put(vec![hold_of("a", 10, 8, b"")]).await;
    let of_seven = HoldQuery { topic: Some(whimbrel_model::TopicNumber(7)), ..everything() };
    assert!(shard.list(of_seven).await.is_empty());
    shard.agrees().await;
}

pub async fn a_hold_found_by_its_id_is_the_one_found_by_its_time(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..30).map(|n| hold(&format!("hold-{n}"), 1000 - n)).collect()).await;
    for found in shard.due_all().await {
        assert_eq!(shard.get(found.id.as_str()).await, Some(StoredHold::Pending(found)));
    }
}

pub async fn ids_are_answered_in_the_order_of_the_question(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..40).map(|n| hold(&format!("hold-{n}"), n)).collect()).await;
    shard.end("hold-7", fired(7)).await;
    let asked = ["hold-30", "missing", "hold-7", "hold-2", "hold-30", "hold", "hold-39"];
    let found = shard.get_many(&asked).await;
    let expected: Vec<_> = asked.iter().map(|id| shard.naive.get(&HoldId::new(id))).collect();
    assert_eq!(found, expected);
    assert!(shard.get_many(&[]).await.is_empty());
    let many: Vec<_> = (0..500).map(|n| format!("hold-{}", n % 50)).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let known = shard.get_many(&many).await.into_iter().flatten().count();
    assert_eq!(known, 400);
}

pub async fn an_id_that_begins_another_is_another(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("order-1", 10), hold("order-11", 10), hold("order-1:x", 10), hold("é{}*\u{1f426}", 10)]).await;
    shard.agrees().await;
    assert_eq!(shard.get_many(&["order-", "order-111", "ORDER-1"]).await, [None, None, None]);
    shard.end("order-1", fired(10)).await;
    assert_eq!(ids_of(&shard.due_all().await), ["order-11", "order-1:x", "é{}*\u{1f426}"]);
    shard.agrees().await;
}

pub async fn every_read_returns_the_applied_offset(factory: &dyn TimersFactory) {
    let (open, mut shard) = new_shard(factory).await;
    for round in 1..4 {
        shard.put(vec![hold("a", round)]).await;
        let (timers, at_now) = (&open, shard.applied);
        assert_eq!(timers.due(0, None, at(0), 1, 1).await.expect("it reads").applied, at_now, "an empty page");
        assert_eq!(timers.due(0, None, at(100), 1, 1).await.expect("it reads").applied, at_now);
        assert_eq!(timers.get(0, Vec::new()).await.expect("it reads").applied, at_now, "no ids");
        assert_eq!(timers.get(0, vec![HoldId::new("x")]).await.expect("it reads").applied, at_now);
        assert_eq!(timers.list(0, everything()).await.expect("it reads").applied, at_now);
        assert_eq!(timers.dead(0, everything()).await.expect("it reads").applied, at_now);
        assert_eq!(timers.count(0, minutes()).await.expect("it reads").applied, at_now);
        assert_eq!(timers.due(1, None, at(100), 1, 1).await.expect("it reads").applied, 0, "another shard");
    }
}
