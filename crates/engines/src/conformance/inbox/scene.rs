//! A partition with its owner, whose reference model has the expected state of the store.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::timers::ApplyOutcome;
use whimbrel_model::ports::{Inbox, InboxChange, InboxWrite, RowKey};

use super::naive::NaiveInbox;
use super::{InboxFactory, OpenInbox};

pub const HOUR_MS: i64 = 3_600_000;
pub const START_HOUR: i64 = 500_000;
/// The numbers of users and rows in random walks. They are small, so that steps meet the same ones again.
pub const USERS: u64 = 12;
pub const NUMBERS: u64 = 20;

pub struct InboxScene {
    pub inbox: Arc<dyn Inbox>,
    pub partition: u32,
    pub naive: NaiveInbox,
}

pub async fn new_owner(factory: &InboxFactory) -> (OpenInbox, InboxScene) {
    let open = factory.open().await;
    let owner = take(&open, 0).await;
    (open, owner)
}

pub async fn take(open: &OpenInbox, partition: u32) -> InboxScene {
    let mut owner = InboxScene { inbox: Arc::clone(&open.port), partition, naive: NaiveInbox::default() };
    owner.open(3).await;
    owner
}

pub fn uid(number: u64) -> Uid {
    Uid::new(&format!("user-{number}")).expect("it is a good id")
}

/// A time, in hours after the start of the suite.
pub fn hour(hours: i64) -> Timestamp {
    Timestamp::from_millis((START_HOUR + hours) * HOUR_MS)
}

pub fn own(user: u64, seq: u64) -> RowKey {
    RowKey::Own { uid: uid(user), seq }
}

pub fn shared(seq: u64) -> RowKey {
    RowKey::Shared { seq }
}

pub fn put_own(user: u64, seq: u64, row: &str) -> InboxChange {
    InboxChange::PutOwn { uid: uid(user), seq, row: Bytes::copy_from_slice(row.as_bytes()) }
}

pub fn put_shared(seq: u64, row: &str, references: u32) -> InboxChange {
    InboxChange::PutShared { seq, row: Bytes::copy_from_slice(row.as_bytes()), references }
}

pub fn drop_own(user: u64, seq: u64) -> InboxChange {
    InboxChange::DropOwn { uid: uid(user), seq }
}

pub fn release(seq: u64, references: u32) -> InboxChange {
    InboxChange::ReleaseShared { seq, references }
}

impl InboxScene {
    pub async fn open(&mut self, epoch: u64) {
        let expected = self.naive.open(epoch);
        assert_eq!(self.inbox.open(self.partition, epoch).await, Ok(expected));
    }

    /// A change of a box to this state. The previous state is that of the model.
    pub fn put_box(&self, user: u64, state: Option<&str>, reclaim_at: Option<Timestamp>) -> InboxChange {
        let state = state.map(|state| Bytes::copy_from_slice(state.as_bytes()));
        InboxChange::PutBox { uid: uid(user), state, reclaim_at, was: self.naive.reclaim_at(&uid(user)) }
    }

    pub fn write(&self, changes: Vec<InboxChange>) -> InboxWrite {
        let NaiveInbox { epoch, applied, .. } = self.naive;
        InboxWrite { epoch, expected: applied, reset: false, changes, applied: applied + 10, synced: false }
    }

    /// Applies a write to the store and to the model. Both must return the same result.
    pub async fn offer(&mut self, write: InboxWrite) -> ApplyOutcome {
        let expected = self.naive.apply(&write);
        assert_eq!(self.inbox.apply(self.partition, write).await, Ok(expected));
        expected
    }

    pub async fn apply(&mut self, changes: Vec<InboxChange>) {
        let write = self.write(changes);
        assert_eq!(self.offer(write).await, ApplyOutcome::Done);
    }

    pub async fn row(&self, key: RowKey) -> Option<Bytes> {
        self.inbox.rows(self.partition, vec![key]).await.expect("rows can be read").found.remove(0)
    }

    pub async fn reclaimable(&self, before: Timestamp, limit: usize) -> Vec<Uid> {
        self.inbox.reclaimable(self.partition, before, limit).await.expect("the index can be read").found
    }

    /// Asserts that all reads return the state of the model, at its applied offset.
    pub async fn agrees(&self) {
        let (inbox, partition, naive) = (&self.inbox, self.partition, &self.naive);
        let uids: Vec<Uid> = (0..USERS).map(uid).collect();
        let read = inbox.boxes(partition, uids.clone()).await.expect("boxes can be read");
        assert_eq!((read.applied, read.found), (naive.applied, naive.boxes(&uids)));
        let keys = (0..NUMBERS).flat_map(|seq| (0..USERS).map(move |user| own(user, seq)).chain([shared(seq)]));
        let keys: Vec<RowKey> = keys.collect();
        let read = inbox.rows(partition, keys.clone()).await.expect("rows can be read");
        assert_eq!((read.applied, read.found), (naive.applied, naive.rows(&keys)));
        for hours in [-100, 1, 3, 100] {
            let read = inbox.reclaimable(partition, hour(hours), 100).await.expect("the index can be read");
            assert_eq!((read.applied, read.found), (naive.applied, naive.reclaimable(hour(hours), 100)));
        }
    }
}
