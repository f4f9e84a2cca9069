//! Counts of pending holds by due time.

use std::time::Duration;

use whimbrel_model::TopicNumber;
use whimbrel_model::ports::CountQuery;

use super::TimersFactory;
use super::scene::{MINUTE_MS, at, fired, hold, hold_of, minutes, new_shard};

pub async fn holds_are_counted_by_the_minute(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 0), hold("b", MINUTE_MS - 1), hold("c", MINUTE_MS), hold("d", 5 * MINUTE_MS + 7)]).await;
    let expected = [(at(0), 2), (at(MINUTE_MS), 1), (at(5 * MINUTE_MS), 1)];
    assert_eq!(shard.count(minutes()).await, expected);
}

pub async fn buckets_of_many_minutes_begin_at_their_multiples(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..200).map(|n| hold(&format!("hold-{n}"), n * MINUTE_MS / 3)).collect()).await;
    for bucket_minutes in [2, 7, 60, 1440] {
        let query = CountQuery { bucket: Duration::from_secs(60 * bucket_minutes), ..minutes() };
        let counted = shard.count(query.clone()).await;
        assert_eq!(counted, shard.naive.count(&query), "buckets of {bucket_minutes} minutes");
        assert_eq!(counted.iter().map(|(_, count)| count).sum::<u64>(), 200);
    }
}

pub async fn bounds_of_a_count_are_widened_to_whole_minutes(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..40).map(|n| hold(&format!("hold-{n}"), n * MINUTE_MS / 4)).collect()).await;
    for (from, to) in [(MINUTE_MS + 1, 3 * MINUTE_MS + 1), (2 * MINUTE_MS, 4 * MINUTE_MS), (MINUTE_MS - 1, MINUTE_MS)] {
        let both = CountQuery { from: Some(at(from)), to: Some(at(to)), ..minutes() };
        for query in [both.clone(), CountQuery { from: None, ..both.clone() }, CountQuery { to: None, ..both }] {
            assert_eq!(shard.count(query.clone()).await, shard.naive.count(&query), "{query:?}");
        }
    }
    let query = CountQuery { from: Some(at(MINUTE_MS + 1)), to: Some(at(2 * MINUTE_MS + 1)), ..minutes() };
    assert_eq!(shard.count(query).await, [(at(MINUTE_MS), 4), (at(2 * MINUTE_MS), 4)]);
}

pub async fn a_count_of_one_topic_leaves_the_others_out(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..30).map(|n| hold_of(&format!("hold-{n}"), i64::from(n) * 9000, n % 3, b"")).collect()).await;
    for topic in 0..4 {
        let query = CountQuery { topic: Some(TopicNumber(topic)), ..minutes() };
        assert_eq!(shard.count(query.clone()).await, shard.naive.count(&query), "topic {topic}");
    }
}

pub async fn moved_or_ended_holds_are_not_counted(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 0), hold("b", 1), hold("c", 2)]).await;
    shard.put(vec![hold("b", 3 * MINUTE_MS)]).await;
    assert_eq!(shard.count(minutes()).await, [(at(0), 2), (at(3 * MINUTE_MS), 1)]);
    shard.end("a", fired(0)).await;
    shard.end("c", fired(2)).await;
    assert_eq!(shard.count(minutes()).await, [(at(3 * MINUTE_MS), 1)], "an empty bucket is left out");
    shard.end("never-put", fired(3 * MINUTE_MS)).await;
    shard.end("b", fired(3 * MINUTE_MS)).await;
    assert_eq!(shard.count(minutes()).await, []);
}

pub async fn a_hold_put_again_at_the_same_time_is_counted_once(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    for _ in 0..3 {
        shard.put(vec![hold("a", 10)]).await;
    }
    assert_eq!(shard.count(minutes()).await, [(at(0), 1)]);
}
