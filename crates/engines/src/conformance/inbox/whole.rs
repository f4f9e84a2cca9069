//! All calls together: against the reference model, concurrently, and over a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::timers::ApplyOutcome;
use whimbrel_model::ports::{InboxChange, InboxWrite};

use super::scene::{
    HOUR_MS, InboxScene, NUMBERS, USERS, drop_own, hour, new_owner, own, put_own, put_shared, release, shared, take,
    uid,
};
use super::{InboxFactory, OpenInbox};
use crate::conformance::seeded_random::SeededRandom;

const ROUNDS: usize = 150;
const SEED: u64 = 0x0069_6e62_6f78_6573;

pub async fn a_random_walk_agrees_with_a_naive_model(factory: &InboxFactory) {
    let (mut open, mut owner) = new_owner(factory).await;
    let mut dice = SeededRandom(SEED);
    for round in 0..ROUNDS {
        let write = random_write(&owner, &mut dice);
        match dice.below(12) {
            0 => {
                let behind = InboxWrite { expected: write.expected + 1, ..write };
                assert_eq!(owner.offer(behind).await, ApplyOutcome::Behind { at: owner.naive.applied });
            }
            1 => {
                let older = InboxWrite { epoch: write.epoch - 1, ..write };
                assert_eq!(owner.offer(older).await, ApplyOutcome::OlderEpoch);
            }
            2 => owner.open(owner.naive.epoch + dice.below(2)).await,
            3 if dice.below(3) == 0 => (open, owner) = opened_again(factory, open, owner).await,
            _ => {
                owner.offer(write).await;
            }
        }
        if round % 4 == 0 {
            owner.agrees().await;
        }
    }
    owner.agrees().await;
    drop(open);
}

fn random_write(owner: &InboxScene, dice: &mut SeededRandom) -> InboxWrite {
    let changes = (0..dice.below(25)).map(|_| random_change(owner, dice)).collect();
    let (reset, synced) = (dice.below(20) == 0, dice.below(10) == 0);
    let applied = if reset { dice.below(50) } else { owner.naive.applied + dice.below(3) };
    InboxWrite { reset, synced, applied, ..owner.write(changes) }
}

fn random_change(owner: &InboxScene, dice: &mut SeededRandom) -> InboxChange {
    let (user, seq) = (dice.below(USERS), dice.below(NUMBERS));
    let text = format!("{}", dice.below(1 << 40));
    match dice.below(8) {
        0 | 1 => {
            let at = Timestamp::from_millis(hour(0).as_millis() + dice.below(6) as i64 * HOUR_MS / 2);
            owner.put_box(user, Some(&text), (dice.below(4) > 0).then_some(at))
        }
        2 => owner.put_box(user, None, None),
        3 | 4 => put_own(user, seq, &text),
        5 => drop_own(user, seq),
        6 => put_shared(seq, &text, dice.below(4) as u32),
        _ => release(seq, dice.below(4) as u32),
    }
}

async fn opened_again(factory: &InboxFactory, open: OpenInbox, owner: InboxScene) -> (OpenInbox, InboxScene) {
    let InboxScene { inbox, partition, naive } = owner;
    drop(inbox);
    let open = factory.reopen(open).await;
    let owner = InboxScene { inbox: Arc::clone(&open.port), partition, naive };
    (open, owner)
}

pub async fn partitions_do_not_see_each_other(factory: &InboxFactory) {
    let (open, mut first) = new_owner(factory).await;
    let (mut second, mut third) = (take(&open, 1).await, take(&open, 256).await);
    for (owner, text) in [(&mut first, "first"), (&mut second, "second"), (&mut third, "third")] {
        let box_put = owner.put_box(1, Some(text), Some(hour(1)));
        owner.apply(vec![box_put, put_own(1, 1, text), put_shared(2, text, 2)]).await;
    }
    let reset = InboxWrite { reset: true, ..first.write(vec![]) };
    first.offer(reset).await;
    second.apply(vec![release(2, 2)]).await;
    for owner in [&first, &second, &third] {
        owner.agrees().await;
    }
}

pub async fn a_large_row_is_returned_whole(factory: &InboxFactory) {
    let (_open, mut owner) = new_owner(factory).await;
    let row: Bytes = (0..2_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let put = InboxChange::PutOwn { uid: uid(1), seq: 1, row: row.clone() };
    let share = InboxChange::PutShared { seq: 1, row: row.clone(), references: 1 };
    owner.apply(vec![put, share]).await;
    assert!(owner.row(own(1, 1)).await.as_ref() == Some(&row) && owner.row(shared(1)).await == Some(row));
}

pub async fn thousands_of_changes_are_one_write(factory: &InboxFactory) {
    const CHANGED: u64 = 12_000;
    let (_open, mut owner) = new_owner(factory).await;
    let mut changes: Vec<_> = (0..CHANGED).map(|user| owner.put_box(user, Some("box"), Some(hour(1)))).collect();
    changes.extend((0..CHANGED).map(|user| put_own(user, user, "row")));
    owner.apply(changes).await;
    let uids: Vec<_> = (0..CHANGED).map(uid).collect();
    let read = owner.inbox.boxes(0, uids.clone()).await.expect("boxes can be read");
    assert!(read.found == owner.naive.boxes(&uids), "all boxes are there");
    let keys: Vec<_> = (0..CHANGED).map(|user| own(user, user)).collect();
    let read = owner.inbox.rows(0, keys.clone()).await.expect("rows can be read");
    assert!(read.found == owner.naive.rows(&keys), "all rows are there");
    assert_eq!(owner.reclaimable(hour(2), CHANGED as usize + 1).await.len() as u64, CHANGED);
    let mut changes: Vec<_> = (0..CHANGED).map(|user| owner.put_box(user, None, None)).collect();
    changes.extend((0..CHANGED).map(|user| drop_own(user, user)));
    owner.apply(changes).await;
    let read = owner.inbox.rows(0, keys).await.expect("rows can be read");
    assert_eq!(read.found.iter().flatten().count(), 0);
    assert_eq!(owner.reclaimable(hour(2), 10).await, []);
}

pub async fn a_store_opened_again_is_as_it_was(factory: &InboxFactory) {
    let (open, mut owner) = new_owner(factory).await;
    let mut changes: Vec<_> =
        (0..USERS).map(|user| owner.put_box(user, Some("box"), Some(hour(user as i64)))).collect();
    changes.extend((0..NUMBERS).map(|seq| put_own(seq % USERS, seq, "row")));
    changes.extend((0..NUMBERS).map(|seq| put_shared(seq, "shared", 2)));
    owner.apply(changes).await;
    let (_open, mut owner) = opened_again(factory, open, owner).await;
    owner.agrees().await;
    owner.open(owner.naive.epoch).await;
    owner.apply((0..NUMBERS).map(|seq| release(seq, 1 + seq as u32 % 2)).collect()).await;
    owner.agrees().await;
}

pub async fn reads_beside_writes_see_whole_writes_only(factory: &InboxFactory) {
    let (open, mut owner) = new_owner(factory).await;
    let stop = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (inbox, stop) = (Arc::clone(&open.port), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::Relaxed) {
                // Every write puts its own number into every row and box.
                let keys = (0..USERS).map(|user| own(user, 1)).collect();
                let rows = inbox.rows(0, keys).await.expect("rows can be read");
                let boxes = inbox.boxes(0, (0..USERS).map(uid).collect()).await.expect("boxes can be read");
                for read in [rows, boxes] {
                    let expected = (read.applied > 0).then(|| Bytes::from((read.applied / 10).to_string()));
                    assert!(read.found.iter().all(|found| *found == expected), "{read:?}");
                }
            }
        }
    });
    for round in 1..=100u64 {
        let text = round.to_string();
        let boxes = (0..USERS).map(|user| owner.put_box(user, Some(&text), None));
        let changes = boxes.chain((0..USERS).map(|user| put_own(user, 1, &text))).collect();
        owner.apply(changes).await;
    }
    stop.store(true, Ordering::Relaxed);
    reader.await.expect("the reader saw whole writes only");
}
