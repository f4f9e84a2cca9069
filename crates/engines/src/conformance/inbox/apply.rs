//! Epochs, offsets, resets, and the order of changes.

use futures_util::future::join_all;
use whimbrel_model::ports::InboxWrite;
use whimbrel_model::ports::timers::ApplyOutcome;

use super::InboxFactory;
use super::scene::{drop_own, hour, new_owner, own, put_own, put_shared, release, shared};

pub async fn a_partition_that_was_never_written_is_empty_at_zero(factory: &InboxFactory) {
    let open = factory.open().await;
    let read = open.rows(0, vec![own(1, 1), shared(1)]).await.expect("rows can be read");
    assert_eq!((read.applied, read.found), (0, vec![None, None]));
    assert_eq!(open.open(0, 7).await, Ok(Some(0)));
}

pub async fn an_older_epoch_cannot_open_a_partition(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.open(5).await;
    owner.open(4).await;
    assert_eq!(owner.inbox.open(0, 4).await, Ok(None));
    owner.open(5).await;
}

pub async fn a_newer_epoch_takes_a_partition_and_gets_its_offset(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 1, "a")]).await;
    assert_eq!(owner.inbox.open(0, 9).await, Ok(Some(10)));
    let write = owner.write(vec![put_own(1, 2, "b")]);
    assert_eq!(owner.inbox.apply(0, write).await, Ok(ApplyOutcome::OlderEpoch));
}

pub async fn an_epoch_is_remembered_before_anything_is_written(factory: &InboxFactory) {
    let (open, owner) = new_owner(factory).await;
    drop(owner);
    let open = factory.reopen(open).await;
    assert_eq!(open.open(0, 2).await, Ok(None));
}

pub async fn epochs_and_offsets_of_many_digits_compare_as_numbers(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.open(9).await;
    owner.open(10).await;
    owner.open((1 << 53) + 1).await;
    owner.open(1 << 53).await;
    let far = InboxWrite { applied: u64::MAX - 100, ..owner.write(vec![]) };
    owner.offer(far).await;
    let near = InboxWrite { expected: u64::MAX - 101, ..owner.write(vec![]) };
    assert_eq!(owner.offer(near).await, ApplyOutcome::Behind { at: u64::MAX - 100 });
}

pub async fn a_write_moves_the_store_to_its_offset(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let box_put = owner.put_box(1, Some("box"), Some(hour(1)));
    owner.apply(vec![box_put, put_own(1, 1, "a"), put_shared(2, "s", 2)]).await;
    owner.agrees().await;
    let synced = InboxWrite { synced: true, ..owner.write(vec![]) };
    assert_eq!(owner.offer(synced).await, ApplyOutcome::Done);
    owner.agrees().await;
}

pub async fn acknowledgements_alone_do_not_move_the_offset(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 1, "a")]).await;
    for _ in 0..2 {
        let box_put = owner.put_box(1, Some("acknowledged"), None);
        let write = InboxWrite { applied: owner.naive.applied, ..owner.write(vec![box_put, drop_own(1, 1)]) };
        assert_eq!(owner.offer(write).await, ApplyOutcome::Done);
    }
    owner.agrees().await;
}

pub async fn a_write_from_elsewhere_is_told_where_the_store_is_and_changes_nothing(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 1, "a")]).await;
    for expected in [0, 9, 11] {
        let write = InboxWrite { expected, ..owner.write(vec![drop_own(1, 1), put_shared(3, "s", 1)]) };
        assert_eq!(owner.offer(write).await, ApplyOutcome::Behind { at: 10 });
    }
    owner.agrees().await;
}

pub async fn a_write_of_an_older_epoch_is_refused_and_changes_nothing(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 1, "a")]).await;
    let write = InboxWrite { epoch: 2, ..owner.write(vec![drop_own(1, 1)]) };
    assert_eq!(owner.offer(write).await, ApplyOutcome::OlderEpoch);
    owner.agrees().await;
}

pub async fn one_of_many_writes_at_the_same_offset_is_done(factory: &InboxFactory) {
    let (_open, owner) = new_owner(factory).await;
    let writes = (0..8).map(|user| owner.inbox.apply(0, owner.write(vec![put_own(user, 1, "a")])));
    let judged = join_all(writes).await;
    assert_eq!(judged.iter().filter(|each| **each == Ok(ApplyOutcome::Done)).count(), 1, "{judged:?}");
    let rows = owner.inbox.rows(0, (0..8).map(|user| own(user, 1)).collect()).await.expect("rows can be read");
    assert_eq!(rows.found.iter().flatten().count(), 1);
}

pub async fn a_reset_empties_the_partition_and_its_own_changes_stay(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let boxes = [owner.put_box(1, Some("a"), Some(hour(1))), owner.put_box(2, Some("b"), Some(hour(1)))];
    owner.apply(vec![boxes[0].clone(), boxes[1].clone(), put_own(1, 1, "a"), put_shared(2, "s", 5)]).await;
    let kept = owner.put_box(2, Some("c"), Some(hour(2)));
    let changes = vec![kept, put_own(2, 3, "new"), put_shared(2, "t", 1)];
    let reset = InboxWrite { reset: true, applied: 4, ..owner.write(changes) };
    assert_eq!(owner.offer(reset).await, ApplyOutcome::Done);
    owner.agrees().await;
    owner.apply(vec![release(2, 1)]).await;
    assert_eq!(owner.row(shared(2)).await, None, "references from before the reset do not count");
}

pub async fn rows_from_before_a_reset_are_never_visible_again(factory: &InboxFactory) {
    let (open, mut owner) = new_owner(factory).await;
    for round in 0..4 {
        let box_put = owner.put_box(round, Some("a"), Some(hour(1)));
        owner.apply(vec![box_put, put_own(round, round, "a"), put_shared(round, "s", 2)]).await;
        let reset = InboxWrite { reset: true, ..owner.write(vec![]) };
        owner.offer(reset).await;
        owner.agrees().await;
    }
    let naive = owner.naive.clone();
    drop(owner);
    let open = factory.reopen(open).await;
    let mut owner = super::scene::InboxScene { inbox: open.port.clone(), partition: 0, naive };
    owner.agrees().await;
    owner.apply(vec![put_own(1, 1, "b")]).await;
    owner.agrees().await;
}

pub async fn a_reset_that_is_refused_empties_nothing(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 1, "a"), put_shared(2, "s", 1)]).await;
    let elsewhere = InboxWrite { reset: true, expected: 3, ..owner.write(vec![]) };
    owner.offer(elsewhere).await;
    let older = InboxWrite { reset: true, epoch: 1, ..owner.write(vec![]) };
    owner.offer(older).await;
    owner.agrees().await;
}

pub async fn changes_of_one_write_take_effect_in_order(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    owner.apply(vec![put_own(1, 1, "a"), drop_own(1, 1), put_own(1, 2, "b"), put_own(1, 2, "c")]).await;
    owner.agrees().await;
    owner
        .apply(vec![drop_own(1, 2), put_own(1, 2, "d"), put_shared(5, "s", 1), release(5, 3), put_shared(5, "t", 2)])
        .await;
    owner.agrees().await;
    let put = owner.put_box(1, Some("a"), Some(hour(1)));
    let again = owner.put_box(1, Some("b"), Some(hour(3)));
    let dropped = owner.put_box(2, None, None);
    let put_two = owner.put_box(2, Some("x"), Some(hour(2)));
    owner.apply(vec![put, again, put_two, dropped]).await;
    owner.agrees().await;
}
