//! Boxes, rows, references and reclaimable boxes.

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::InboxChange;

use super::InboxFactory;
use super::scene::{HOUR_MS, drop_own, hour, new_owner, own, put_own, put_shared, release, shared, uid};

fn text(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

pub async fn boxes_are_answered_in_the_order_of_the_question(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let boxes = vec![owner.put_box(1, Some("a"), None), owner.put_box(2, Some("b"), None)];
    owner.apply(boxes).await;
    let asked = vec![uid(2), uid(9), uid(1), uid(2)];
    let read = owner.inbox.boxes(0, asked).await.expect("boxes can be read");
    assert_eq!(read.found, [text("b"), None, text("a"), text("b")]);
}

pub async fn a_removed_box_is_absent(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let put = owner.put_box(1, Some("a"), Some(hour(1)));
    owner.apply(vec![put]).await;
    let gone = owner.put_box(1, None, None);
    owner.apply(vec![gone]).await;
    owner.agrees().await;
}

pub async fn own_and_shared_rows_of_one_number_are_separate(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 7, "one"), put_own(2, 7, "two"), put_shared(7, "all", 2)]).await;
    owner.agrees().await;
    owner.apply(vec![drop_own(1, 7)]).await;
    owner.agrees().await;
    owner.apply(vec![release(7, 2)]).await;
    owner.agrees().await;
}

pub async fn rows_are_answered_in_the_order_of_the_question(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 1, "a"), put_shared(2, "b", 1), put_own(1, 3, "c")]).await;
    let asked = vec![own(1, 3), shared(2), own(1, 2), own(1, 1), shared(1), own(1, 3)];
    let read = owner.inbox.rows(0, asked).await.expect("rows can be read");
    assert_eq!(read.found, [text("c"), text("b"), None, text("a"), None, text("c")]);
}

pub async fn a_dropped_row_is_removed_and_others_stay(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply((0..10).map(|seq| put_own(1, seq, "a")).collect()).await;
    owner.apply((0..9).map(|seq| drop_own(1, seq)).chain([drop_own(3, 9)]).collect()).await;
    owner.agrees().await;
}

pub async fn rows_may_be_empty_and_have_any_bytes(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let any = Bytes::from_iter(0..=255u8);
    let changes = vec![
        InboxChange::PutOwn { uid: uid(1), seq: 1, row: Bytes::new() },
        InboxChange::PutOwn { uid: uid(1), seq: 2, row: any.clone() },
        InboxChange::PutShared { seq: 3, row: Bytes::new(), references: 1 },
        InboxChange::PutBox { uid: uid(1), state: Some(any), reclaim_at: None, was: None },
        InboxChange::PutBox { uid: uid(2), state: Some(Bytes::new()), reclaim_at: None, was: None },
    ];
    owner.apply(changes).await;
    owner.agrees().await;
}

pub async fn a_shared_row_is_removed_with_its_last_reference(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_shared(4, "all", 3)]).await;
    owner.apply(vec![release(4, 1)]).await;
    owner.apply(vec![release(4, 1)]).await;
    assert_eq!(owner.row(shared(4)).await, text("all"));
    owner.apply(vec![release(4, 1)]).await;
    assert_eq!(owner.row(shared(4)).await, None);
}

pub async fn further_references_keep_the_stored_row(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_shared(4, "first", 2)]).await;
    owner.apply(vec![put_shared(4, "second", 3)]).await;
    owner.apply(vec![release(4, 4)]).await;
    assert_eq!(owner.row(shared(4)).await, text("first"));
    owner.apply(vec![release(4, 1)]).await;
    assert_eq!(owner.row(shared(4)).await, None);
}

pub async fn releasing_a_missing_row_is_no_error(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![release(4, 2)]).await;
    owner.apply(vec![put_shared(4, "all", 1)]).await;
    assert_eq!(owner.row(shared(4)).await, text("all"), "an early release does not count later");
    owner.apply(vec![put_shared(5, "none", 0)]).await;
    assert_eq!(owner.row(shared(5)).await, None, "a row without references is not stored");
}

pub async fn a_removed_shared_row_can_be_added_again(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_shared(4, "first", 1)]).await;
    owner.apply(vec![release(4, 9)]).await;
    owner.apply(vec![put_shared(4, "second", 1)]).await;
    assert_eq!(owner.row(shared(4)).await, text("second"));
}

pub async fn boxes_are_reclaimable_by_the_hour_the_earliest_first(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let late = Timestamp::from_millis(hour(2).as_millis() + 1);
    let boxes = vec![
        owner.put_box(1, Some("a"), Some(late)),
        owner.put_box(2, Some("b"), Some(hour(1))),
        owner.put_box(3, Some("c"), None),
        owner.put_box(4, Some("d"), Some(hour(0))),
        owner.put_box(5, Some("e"), Some(Timestamp::from_millis(hour(0).as_millis() + 5))),
    ];
    owner.apply(boxes).await;
    assert_eq!(owner.reclaimable(hour(0), 10).await, []);
    assert_eq!(owner.reclaimable(hour(1), 10).await, [uid(4)]);
    assert_eq!(owner.reclaimable(hour(2), 10).await, [uid(4), uid(2), uid(5)]);
    assert_eq!(owner.reclaimable(Timestamp::from_millis(late.as_millis() + HOUR_MS), 10).await.len(), 4);
    owner.agrees().await;
}

pub async fn a_moved_or_removed_box_is_not_reclaimable_by_its_earlier_hour(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let boxes = (1..=4).map(|user| owner.put_box(user, Some("a"), Some(hour(1)))).collect();
    owner.apply(boxes).await;
    let moved = owner.put_box(1, Some("a"), Some(hour(5)));
    let gone = owner.put_box(2, None, None);
    let forever = owner.put_box(3, Some("a"), None);
    owner.apply(vec![moved, gone, forever]).await;
    assert_eq!(owner.reclaimable(hour(2), 10).await, [uid(4)]);
    assert_eq!(owner.reclaimable(hour(9), 10).await, [uid(4), uid(1)]);
}

pub async fn no_more_boxes_are_reclaimable_than_asked_for(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let boxes = (0..10).map(|user| owner.put_box(user, Some("a"), Some(hour(user as i64)))).collect();
    owner.apply(boxes).await;
    assert_eq!(owner.reclaimable(hour(100), 3).await, [uid(0), uid(1), uid(2)]);
    assert_eq!(owner.reclaimable(hour(100), 0).await, []);
}

pub async fn every_read_returns_the_applied_offset(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    for _ in 0..3 {
        owner.apply(vec![]).await;
        let at = owner.naive.applied;
        assert_eq!(owner.inbox.boxes(0, vec![]).await.map(|read| read.applied), Ok(at));
        assert_eq!(owner.inbox.rows(0, vec![]).await.map(|read| read.applied), Ok(at));
        assert_eq!(owner.inbox.reclaimable(0, hour(0), 5).await.map(|read| read.applied), Ok(at));
    }
}
