//! Inboxes and devices of the embedded engine: the conformance suites of the ports, and inboxes against a reference model.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;
use whimbrel_engines::conformance;
use whimbrel_engines::conformance::devices::OpenDevices;
use whimbrel_engines::conformance::inbox::OpenInbox;
use whimbrel_engines::conformance::inbox::naive::NaiveInbox;
use whimbrel_engines::embedded::{LsmDevices, LsmInbox, StoreReports};
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Inbox, InboxChange, InboxWrite, PortFuture, RowKey};

whimbrel_engines::conformance_suite!(inbox, Embedded);
whimbrel_engines::conformance_suite!(devices, Embedded);

struct Embedded;

fn folder() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

fn folder_of(store: Arc<dyn Any + Send + Sync>) -> Arc<TempDir> {
    store.downcast::<TempDir>().unwrap()
}

fn open_inbox(store: Arc<TempDir>) -> OpenInbox {
    OpenInbox {
        inbox: Arc::new(LsmInbox::open(&store.path().join("inboxes"), StoreReports::default()).unwrap()),
        store,
    }
}

impl conformance::inbox::InboxFactory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenInbox> {
        Box::pin(async { open_inbox(folder()) })
    }

    fn reopen(&self, open: OpenInbox) -> PortFuture<'_, OpenInbox> {
        Box::pin(async {
            drop(open.inbox);
            open_inbox(folder_of(open.store))
        })
    }
}

fn open_devices(store: Arc<TempDir>) -> OpenDevices {
    OpenDevices {
        devices: Arc::new(LsmDevices::open(&store.path().join("devices"), StoreReports::default()).unwrap()),
        store,
    }
}

impl conformance::devices::DevicesFactory for Embedded {
    fn open(&self) -> PortFuture<'_, OpenDevices> {
        Box::pin(async { open_devices(folder()) })
    }

    fn reopen(&self, open: OpenDevices) -> PortFuture<'_, OpenDevices> {
        Box::pin(async {
            drop(open.devices);
            open_devices(folder_of(open.store))
        })
    }
}

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
            let open = open_inbox(folder());
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
                assert_eq!(open.inbox.apply(0, write).await, Ok(expected));
                agrees(&*open.inbox, &naive).await;
            }
            let open = conformance::inbox::InboxFactory::reopen(&Embedded, open).await;
            agrees(&*open.inbox, &naive).await;
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
