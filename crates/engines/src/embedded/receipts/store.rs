//! The LSM of the receipts: answers and ids in time slices, and the offsets up to which the store is complete.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use fjall::{Database, Keyspace};
use whimbrel_model::ports::{ClaimKind, PublishReceipt};
use whimbrel_model::{PartitionId, Timestamp};

use super::keys::{applied_key, decode_backlog, encode_backlog, id_key, id_prefix, partition_of};
use crate::embedded::lsm::LsmStore;
use crate::embedded::slices::{Slices, small_database, small_keyspace};
use crate::stores::publish_answer::{decode_answer, encode_answer};

/// Memory for cached blocks of the LSM.
const CACHE_BYTES: u64 = 8 << 20;

pub(super) struct ReceiptStore {
    database: Database,
    answers: Slices,
    ids: Slices,
    /// For each partition, the offset up to which every answer is in the store.
    applied: Keyspace,
    /// For each partition, the offsets of older records whose ids are not in the store yet.
    backlogs: Keyspace,
}

/// An answer with the keys under which it is stored.
#[derive(Debug, Clone)]
pub(super) struct Receipt {
    pub kind: ClaimKind,
    pub text: String,
    pub key: Vec<u8>,
    pub fingerprint: u64,
    pub answer: PublishReceipt,
}

impl LsmStore for ReceiptStore {
    fn database(&self) -> &Database {
        &self.database
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        let slices = self.answers.newest_first().into_iter().chain(self.ids.newest_first());
        slices.chain([self.applied.clone(), self.backlogs.clone()]).collect()
    }
}

impl ReceiptStore {
    pub fn open(path: &Path, window: Duration, id_window: Duration) -> fjall::Result<Self> {
        let database = small_database(path, CACHE_BYTES).open()?;
        Ok(Self {
            applied: database.keyspace("applied", small_keyspace)?,
            backlogs: database.keyspace("backlogs", small_keyspace)?,
            answers: Slices::open(&database, "answers", window)?,
            ids: Slices::open(&database, "ids", id_window)?,
            database,
        })
    }

    /// The answer to a claim, with its fingerprint, unless it is older than this.
    pub fn answer(&self, key: &[u8], not_before: Timestamp) -> fjall::Result<Option<(u64, PublishReceipt)>> {
        for slice in self.answers.newest_first() {
            if let Some(found) = slice.get(key)?.as_deref().and_then(decode_answer)
                && found.1.answered_at >= not_before
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub fn keep(&self, receipt: &Receipt) -> fjall::Result<()> {
        let Receipt { kind, text, key, fingerprint, answer } = receipt;
        let value = encode_answer(*fingerprint, answer);
        if *kind == ClaimKind::Id {
            self.ids.at(answer.answered_at)?.insert(id_key(text, answer), value.clone())?;
        }
        self.answers.at(answer.answered_at)?.insert(&key[..], value)
    }

    /// Saves an answer under the publisher's id only, if it has one. The answer is too old to recognise a repeat.
    pub fn keep_id(&self, receipt: &Receipt) -> fjall::Result<()> {
        let Receipt { kind, text, fingerprint, answer, .. } = receipt;
        match kind {
            ClaimKind::Key => Ok(()),
            ClaimKind::Id => {
                let value = encode_answer(*fingerprint, answer);
                self.ids.at(answer.answered_at)?.insert(id_key(text, answer), value)
            }
        }
    }

    /// The answers under an id, oldest first.
    pub fn find(&self, id: &str) -> fjall::Result<Vec<PublishReceipt>> {
        let mut answers = Vec::new();
        for slice in self.ids.newest_first().into_iter().rev() {
            for entry in slice.prefix(id_prefix(id)) {
                answers.extend(decode_answer(&entry.value()?).map(|(_, answer)| answer));
            }
        }
        Ok(answers)
    }

    pub fn applied(&self, partition: PartitionId) -> fjall::Result<Option<u64>> {
        let noted = self.applied.get(applied_key(partition))?;
        Ok(noted.and_then(|bytes| bytes.first_chunk().copied().map(u64::from_le_bytes)))
    }

    pub fn set_applied(&self, partition: PartitionId, offset: u64) -> fjall::Result<()> {
        self.applied.insert(applied_key(partition), offset.to_le_bytes())
    }

    pub fn backlogs(&self) -> fjall::Result<Vec<(PartitionId, Range<u64>)>> {
        let mut found = Vec::new();
        for entry in self.backlogs.iter() {
            let (key, value) = entry.into_inner()?;
            found.extend(partition_of(&key).zip(decode_backlog(&value)));
        }
        Ok(found)
    }

    /// Saves the backlog of a partition. An empty range removes it.
    pub fn set_backlog(&self, partition: PartitionId, left: &Range<u64>) -> fjall::Result<()> {
        let key = applied_key(partition);
        if left.is_empty() { self.backlogs.remove(key) } else { self.backlogs.insert(key, encode_backlog(left)) }
    }

    pub fn drop_before(&self, now: Timestamp) -> fjall::Result<()> {
        self.answers.drop_before(now)?;
        self.ids.drop_before(now)
    }
}
