//! What a partition left behind when it was emptied is deleted bit by bit, while nobody writes.
//!
//! Which generations are to be erased is noted in the write that emptied the partition, so a restart goes on with them.

use std::collections::VecDeque;

use super::keys::Place;
use super::{Fault, Inner};
use crate::embedded::lsm::StoreHandle;

/// Keys that are deleted in one batch.
const ERASED_AT_ONCE: usize = 2_000;

/// How far it has come.
#[derive(Default)]
pub(super) struct Eraser {
    /// The opening of the store that the places are of.
    opening: u64,
    places: VecDeque<Place>,
    /// Of the first place: which keyspace, and behind which key. Deleted keys are never passed again.
    keyspace: usize,
    after: Option<Vec<u8>>,
}

impl Eraser {
    /// Does a bit, and says whether there is more.
    pub fn step(&mut self, store: &StoreHandle<Inner>) -> bool {
        let stepped = store.run(|inner| -> Result<bool, Fault> {
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
                tracing::warn!(%error, ?place, "cannot tidy up the store of inboxes; the next opening repeats it");
            }
            *self = Self::default();
            false
        })
    }

    fn erase(&mut self, inner: &Inner, place: Place) -> fjall::Result<()> {
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
        // The next step begins behind the last one that was deleted.
        if let Some(after) = &mut self.after {
            after.push(0);
        }
        batch.commit()
    }
}

/// Generations that were emptied and not erased yet.
pub(super) fn noted(inner: &Inner) -> fjall::Result<Vec<Place>> {
    let mut places = Vec::new();
    for entry in inner.partitions.iter() {
        let key = entry.key()?;
        if let Ok(prefix) = <[u8; 8]>::try_from(&key[..]) {
            places.push(Place::of_prefix(prefix));
        }
    }
    Ok(places)
}
