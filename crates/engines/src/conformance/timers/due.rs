//! Reads of due holds, in order, page by page.

use whimbrel_model::ports::{DueCursor, TimersWrite};
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::TimersFactory;
use super::naive::cursor_of;
use super::scene::{HoldStep, MANY_BYTES, START_MS, at, fired, hold, hold_of, ids_of, new_shard};

pub async fn holds_are_returned_in_due_order_and_then_by_id(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("d", 20), hold("c", 10), hold("b2", 20), hold("a", 300_000), hold("b", 20)]).await;
    shard.put(vec![hold("e", 9), hold("B", 20)]).await;
    assert_eq!(ids_of(&shard.due_all().await), ["e", "c", "B", "b", "b2", "d", "a"]);
}

pub async fn holds_are_returned_as_they_were_put(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    let moved = hold("moved", 1).moved(at(2), Some("again"), 77).moved(at(9), None, 78);
    let plain = Hold { fresh: false, ..hold_of("plain", 3, 1, b"") };
    let mut binary = hold_of("binary", 4, 1, &[0, 255, 10, 13, 0, 128]);
    binary.message.key = None;
    binary.message.headers = whimbrel_model::Headers::EMPTY;
    shard.put(vec![moved, plain, binary]).await;
    shard.agrees().await;
}

pub async fn reading_on_from_a_cursor_misses_and_repeats_nothing(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    // Many holds have the same due time, so that pages end between them.
    shard.put((0..100).map(|n| hold(&format!("hold-{n}"), n % 7)).collect()).await;
    for limit in [1, 2, 7, 33] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = shard.due_page(after, i64::MAX, limit, MANY_BYTES).await;
            let Some(last) = page.last() else { break };
            after = Some(cursor_of(last));
            found.extend(page);
        }
        assert_eq!(found, shard.naive.pending(), "pages of {limit}");
    }
}

pub async fn a_cursor_need_not_be_a_hold(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("c", 10), hold("a", 11)]).await;
    shard.put(vec![hold("early", 10)]).await;
    for (due, id, expected) in [
        (9, "z", &["c", "early", "a"][..]),
        (10, "", &["c", "early", "a"]),
        (10, "b", &["c", "early", "a"]),
        (10, "c", &["early", "a"]),
        (10, "zz", &["a"]),
        (11, "a", &[]),
    ] {
        let after = DueCursor { due: at(due), id: HoldId::new(id) };
        let page = shard.due_page(Some(after), i64::MAX, 100, MANY_BYTES).await;
        assert_eq!(ids_of(&page), expected, "after ({due}, {id})");
    }
}

pub async fn until_is_not_included(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 10), hold("b", 11), hold("c", 12)]).await;
    for (until, expected) in [(10, 0), (11, 1), (12, 2), (13, 3)] {
        assert_eq!(shard.due_page(None, START_MS + until, 100, MANY_BYTES).await.len(), expected, "until {until}");
    }
    let after = DueCursor { due: at(10), id: HoldId::new("a") };
    assert_eq!(ids_of(&shard.due_page(Some(after.clone()), START_MS + 12, 100, MANY_BYTES).await), ["b"]);
    assert!(
        shard.due_page(Some(after), START_MS + 5, 100, MANY_BYTES).await.is_empty(),
        "until lies before the cursor"
    );
}

pub async fn a_page_has_no_more_than_its_limit(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..10).map(|n| hold(&format!("hold-{n}"), n)).collect()).await;
    for limit in [1, 9, 10, 11] {
        assert_eq!(shard.due_page(None, i64::MAX, limit, MANY_BYTES).await, shard.naive.due(None, at(1 << 30), limit));
    }
}

pub async fn a_page_has_no_more_than_its_bytes_but_one_hold_at_least(factory: &dyn TimersFactory) {
    const LARGE: usize = 100_000;
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..8).map(|n| hold_of(&format!("hold-{n}"), n, 7, &[b'x'; LARGE])).collect()).await;
    assert_eq!(shard.due_page(None, i64::MAX, 100, LARGE * 7 / 2).await.len(), 3);
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = shard.due_page(after, i64::MAX, 100, 1).await;
        let Some(last) = page.last() else { break };
        assert_eq!(page.len(), 1);
        after = Some(cursor_of(last));
        found.extend(page);
    }
    assert_eq!(found, shard.naive.pending());
}

pub async fn a_put_below_the_earlier_floor_is_found_without_a_cursor(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("far", 500_000)]).await;
    shard.put(vec![hold("near", 3)]).await;
    assert_eq!(ids_of(&shard.due_all().await), ["near", "far"]);
    shard.put(vec![hold("far", 1)]).await;
    assert_eq!(ids_of(&shard.due_all().await), ["far", "near"]);
    shard.agrees().await;
}

pub async fn a_put_below_the_floor_of_its_own_write_is_found_without_a_cursor(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("far", 500_000)]).await;
    let write = TimersWrite { floor: at(400_000), ..shard.write(vec![HoldStep::Put(hold("near", 3))]) };
    shard.done(write).await;
    shard.agrees().await;
}

pub async fn a_cursor_below_the_floor_finds_all(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put(vec![hold("a", 500_000), hold("b", 500_001)]).await;
    let after = DueCursor { due: Timestamp::from_millis(0), id: HoldId::new("z") };
    assert_eq!(ids_of(&shard.due_page(Some(after), i64::MAX, 100, MANY_BYTES).await), ["a", "b"]);
}

pub async fn ended_holds_below_the_floor_are_not_returned(factory: &dyn TimersFactory) {
    let (_open, mut shard) = new_shard(factory).await;
    shard.put((0..50).map(|n| hold(&format!("hold-{n:02}"), n)).collect()).await;
    let ends = (0..40).map(|n| HoldStep::End(HoldId::new(&format!("hold-{n:02}")), fired(n))).collect();
    shard.apply(ends).await;
    assert_eq!(shard.due_all().await.len(), 10);
    // The floor decreases, and with it the start of every read.
    shard.put(vec![hold("back", 0)]).await;
    assert_eq!(shard.due_all().await.len(), 11);
    shard.agrees().await;
}
