//! Erases the rows of emptied partitions in small steps, while no writes wait.
//!
//! The write that emptied a partition stores which generation must be erased, so a restart continues the erasing.

use std::collections::VecDeque;

use super::{InboxFault, InboxStore};
use crate::embedded::lsm::{Generation, StoreHandle};

/// The number of keys in one batch of deletions.
const ERASED_AT_ONCE: usize = 2_000;

/// The progress of the erasing.
#[derive(Default)]
pub(super) struct PartitionEraser {
    /// The opening of the store to which the places belong.
    opening: u64,
    places: VecDeque<Generation>,
    /// The position in the first place: the keyspace, and the last deleted key. The eraser never scans deleted keys again.
    keyspace: usize,
    after: Option<Vec<u8>>,
}

impl PartitionEraser {
    /// Executes one step. Returns whether there may be more.
    pub fn step(&mut self, store: &StoreHandle<InboxStore>) -> bool {
        let stepped = store.run(|inner| -> Result<bool, InboxFault> {
            if self.opening != inner.opening {
                *self = Self { opening: inner.opening, ..Self::default() };
            }
            self.places.extend(inner.take_emptied());
            let Some(place) = self.places.front().copied() else { return Ok(false) };
            self.erase(inner, place)?;
            Ok(true)
        });
        stepped.unwrap_or_else(|error| {
            if let Some(place) = self.places.front() {
                tracing::warn!(%error, ?place, "cannot erase old rows of the store of inboxes; retrying at the next opening");
            }
            *self = Self::default();
            false
        })
    }

    fn erase(&mut self, inner: &InboxStore, place: Generation) -> fjall::Result<()> {
        let prefix = place.prefix();
        let mut batch = inner.database.batch();
        let Some(keyspace) = inner.erased().get(self.keyspace).copied() else {
            batch.remove(&inner.partitions, prefix);
            batch.commit()?;
            self.places.pop_front();
            self.keyspace = 0;
            return Ok(());
        };
        let from = self.after.take().unwrap_or_else(|| prefix.to_vec());
        for entry in keyspace.range(from..).take(ERASED_AT_ONCE) {
            let key = entry.key()?;
            if !key.starts_with(&prefix) {
                break;
            }
            self.after = Some(key.to_vec());
            batch.remove(keyspace, key);
        }
        if batch.is_empty() {
            (self.keyspace, self.after) = (self.keyspace + 1, None);
        }
        // The next step starts after the last deleted key.
        if let Some(after) = &mut self.after {
            after.push(0);
        }
        batch.commit()
    }
}
