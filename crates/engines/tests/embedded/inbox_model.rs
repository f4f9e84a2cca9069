//! Inboxes against a reference model, after any writes.

use bytes::Bytes;
use proptest::prelude::*;
use whimbrel_engines::conformance::inbox::naive::NaiveInbox;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{InboxChange, InboxWrite, RowKey};

use super::*;

const USERS: u8 = 4;
const NUMBERS: u64 = 4;

fn uid(number: u8) -> Uid {
    Uid::new(&"u".repeat(usize::from(number) + 1)).unwrap()
}

fn half_hours(count: i64) -> Timestamp {
    Timestamp::from_millis(count * 1_800_000)
}

/// A change whose `was` is filled in when it is applied.
fn any_change() -> impl Strategy<Value = InboxChange> {
    let row = || proptest::collection::vec(any::<u8>(), 0..5).prop_map(Bytes::from);
    let time = || proptest::option::of((0..6i64).prop_map(half_hours));
    prop_oneof![
        (0..USERS, proptest::option::of(row()), time()).prop_map(|(user, state, reclaim_at)| InboxChange::PutBox {
            uid: uid(user),
            state,
            reclaim_at,
            was: None
        }),
        (0..USERS, 0..NUMBERS, row()).prop_map(|(user, seq, row)| InboxChange::PutOwn { uid: uid(user), seq, row }),
        (0..USERS, 0..NUMBERS).prop_map(|(user, seq)| InboxChange::DropOwn { uid: uid(user), seq }),
        (0..NUMBERS, row(), 0..4u32).prop_map(|(seq, row, references)| InboxChange::PutShared { seq, row, references }),
        (0..NUMBERS, 0..4u32).prop_map(|(seq, references)| InboxChange::ReleaseShared { seq, references }),
    ]
}

fn any_write() -> impl Strategy<Value = InboxWrite> {
    let changes = proptest::collection::vec(any_change(), 0..12);
    (0..4u64, 0..4u64, proptest::bool::weighted(0.1), changes, 0..4u64).prop_map(
        |(epoch, expected, reset, changes, applied)| InboxWrite {
            epoch,
            expected,
            reset,
            changes,
            applied,
            synced: false,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Epochs and offsets have few values, so that some writes are rejected for their epoch, some for their offset, and some are done.
    #[test]
    fn reads_match_the_model_after_any_writes(writes in proptest::collection::vec(any_write(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let open = Opens::<dyn Inbox>::open(&Embedded).await;
            let mut naive = NaiveInbox::default();
            for (number, mut write) in writes.into_iter().enumerate() {
                // Half of the writes have the right offset.
                if number % 2 == 0 {
                    (write.epoch, write.expected) = (naive.epoch, naive.applied);
                }
                for change in &mut write.changes {
                    if let InboxChange::PutBox { uid, was, .. } = change {
                        *was = naive.reclaim_at(uid);
                    }
                }
                let expected = naive.apply(&write);
                assert_eq!(open.apply(0, write).await, Ok(expected));
                agrees(&*open, &naive).await;
            }
            let open = Embedded.reopen(open).await;
            agrees(&*open, &naive).await;
        });
    }
}

async fn agrees(inbox: &dyn Inbox, naive: &NaiveInbox) {
    let uids: Vec<_> = (0..USERS).map(uid).collect();
    let boxes = inbox.boxes(0, uids.clone()).await.unwrap();
    assert_eq!((boxes.applied, boxes.found), (naive.applied, naive.boxes(&uids)));
    let own = |seq| (0..USERS).map(move |user| RowKey::Own { uid: uid(user), seq });
    let keys: Vec<_> = (0..NUMBERS).flat_map(|seq| own(seq).chain([RowKey::Shared { seq }])).collect();
    let rows = inbox.rows(0, keys.clone()).await.unwrap();
    assert_eq!((rows.applied, rows.found), (naive.applied, naive.rows(&keys)));
    for before in [1, 2, 7] {
        let found = inbox.reclaimable(0, half_hours(before), 3).await.unwrap().found;
        assert_eq!(found, naive.reclaimable(half_hours(before), 3));
    }
}
