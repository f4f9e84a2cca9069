//! Lists of pending holds, by topic and range.

use whimbrel_model::ports::HoldQuery;
use whimbrel_model::{Hold, TopicNumber};

use super::TimersFactory;
use super::naive::cursor_of;
use super::scene::{at, everything, hold_of, new_shard};

const TOPICS: [u32; 4] = [0, 7, 8, 256];

/// Sixty holds of four topics. Several have the same due time.
fn several() -> Vec<Hold> {
    let of = |n: u32| hold_of(&format!("hold-{n}"), i64::from(n * 7 % 20), TOPICS[n as usize % 4], &n.to_be_bytes());
    (0..60).map(of).collect()
}

pub async fn a_list_of_a_topic_has_its_holds_in_due_order(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(several()).await;
    for topic in TOPICS {
        let query = HoldQuery { topic: Some(TopicNumber(topic)), ..everything() };
        let listed = shard.list(query.clone()).await;
        assert_eq!(listed.len(), 15);
        assert_eq!(listed, shard.naive.list(&query), "topic {topic}");
    }
}

pub async fn a_list_of_all_topics_has_all_in_due_order(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(several()).await;
    assert_eq!(shard.list(everything()).await, shard.naive.pending());
    assert_eq!(shard.list(HoldQuery { limit: 7, ..everything() }).await, shard.naive.pending()[..7]);
}

pub async fn a_list_keeps_to_its_range(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(several()).await;
    for topic in [None, Some(TopicNumber(8))] {
        for (from, to) in
            [(None, Some(at(5))), (Some(at(5)), None), (Some(at(5)), Some(at(6))), (Some(at(9)), Some(at(3)))]
        {
            let query = HoldQuery { topic, from, to, ..everything() };
            assert_eq!(shard.list(query.clone()).await, shard.naive.list(&query), "{query:?}");
        }
    }
}

pub async fn listing_on_from_a_cursor_misses_and_repeats_nothing(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(several()).await;
    for topic in [None, Some(TopicNumber(7))] {
        let whole = HoldQuery { topic, from: Some(at(2)), to: Some(at(18)), ..everything() };
        let mut page = HoldQuery { limit: 4, ..whole.clone() };
        let mut found = Vec::new();
        loop {
            let listed = shard.list(page.clone()).await;
            assert_eq!(listed, shard.naive.list(&page), "{page:?}");
            let Some(last) = listed.last() else { break };
            page.after = Some(cursor_of(last));
            found.extend(listed);
        }
        assert_eq!(found, shard.naive.list(&whole));
    }
}

pub async fn a_list_of_an_unknown_topic_is_empty(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(several()).await;
    for topic in [1, 9, 255, 257] {
        assert!(shard.list(HoldQuery { topic: Some(TopicNumber(topic)), ..everything() }).await.is_empty());
    }
}
