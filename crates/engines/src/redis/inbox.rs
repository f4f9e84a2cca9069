//! The `Inbox` port on Redis: the inboxes of a partition. Each step is one script, which also returns the applied offset of the store.
//!
//! | key | content |
//! | --- | --- |
//! | `meta` | a hash: the epoch, the applied offset, and the number of writes |
//! | `boxes` | a hash: user → box |
//! | `rows` | a hash: the number (8 bytes, big-endian) and the user → row |
//! | `shared`, `references` | hashes: number → row, and the number of references to it |
//! | `reclaim` | a sorted set: user, by the hour from which the box may be reclaimed |
//!
//! Writes that contain only acknowledgements do not move the applied offset. So the offset does not show that Redis lost such writes; the
//! number of writes does. A process that has taken a partition compares both.
//!
//! Every key is `<prefix>:{push:<partition>}:<name>`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use redis::{Cmd, Value};
use tokio::sync::Semaphore;
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::timers::{ApplyOutcome, AtOffset};
use whimbrel_model::ports::{Inbox, InboxError, InboxRead, InboxWrite, PortFuture, RowKey, reclaim_hour};

use super::connection::{RedisCallError, RedisConnection, Script};
use super::reply::ReplyParts;
use super::write::{ARGUMENTS_MAX, decimal};
use crate::stores::inbox_fold::{FoldedWrite, SharedStep};

/// The maximum number of writes in flight to Redis. Further writes wait in this process, so that a read does not wait behind all of them.
const WRITES_AT_ONCE: usize = 4;
/// The approximate number of arguments of a write besides its changes.
const HEADER_ARGUMENTS: usize = 32;

pub struct RedisInbox {
    connection: RedisConnection,
    writes: Semaphore,
    /// For each partition that this process took: the epoch, and the number of writes as Redis last reported it. A partition whose last
    /// write has an unknown outcome has no entry.
    written: Mutex<HashMap<u32, (u64, Bytes)>>,
    open: Script,
    apply: Script,
    get: Script,
    reclaimable: Script,
}

/// Every key of a partition, in the order in which `inbox_apply.lua` expects them.
const NAMES: [&str; 6] = ["meta", "boxes", "rows", "shared", "references", "reclaim"];

impl RedisInbox {
    pub fn new(connection: RedisConnection) -> Self {
        Self {
            connection,
            writes: Semaphore::new(WRITES_AT_ONCE),
            written: Mutex::default(),
            open: Script::new(include_str!("lua/inbox_open.lua")),
            apply: Script::new(include_str!("lua/inbox_apply.lua")),
            get: Script::new(include_str!("lua/inbox_get.lua")),
            reclaimable: Script::new(include_str!("lua/inbox_reclaimable.lua")),
        }
    }

    fn keys(&self, partition: u32, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("{}:{{push:{partition}}}:{name}", self.connection.prefix())).collect()
    }

    fn written(&self) -> MutexGuard<'_, HashMap<u32, (u64, Bytes)>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the number of writes of the partition. It is empty if the epoch differs, and from the start of a write until its
    /// answer.
    fn take_written(&self, partition: u32, epoch: u64) -> Bytes {
        let mut written = self.written();
        let is_its_own = written.get(&partition).is_some_and(|(of, _)| *of == epoch);
        if is_its_own { written.remove(&partition).map(|(_, writes)| writes).unwrap_or_default() } else { Bytes::new() }
    }

    /// Reads fields of hashes in one step, and the applied offset with them.
    async fn fields(
        &self,
        partition: u32,
        hashes: &[(&str, Vec<Vec<u8>>)],
    ) -> Result<AtOffset<Vec<Option<Bytes>>>, InboxError> {
        let names: Vec<&str> = std::iter::once("meta").chain(hashes.iter().map(|(name, _)| *name)).collect();
        let mut call = self.get.on(self.keys(partition, &names).iter());
        for (_, fields) in hashes {
            call.arg(fields.len());
            fields.iter().for_each(|field| {
                call.arg(field);
            });
        }
        let mut answer = ReplyParts::of(self.connection.run(&self.get, call).await?)?;
        let applied = answer.number()?;
        let asked = hashes.iter().map(|(_, fields)| fields.len()).sum();
        let found = (0..asked).map(|_| answer.optional()).collect::<Result<_, _>>()?;
        Ok(AtOffset { applied, found })
    }
}

fn own_field(uid: &str, seq: u64) -> Vec<u8> {
    [&seq.to_be_bytes(), uid.as_bytes()].concat()
}

fn shared_field(seq: u64) -> Vec<u8> {
    seq.to_be_bytes().to_vec()
}

/// Adds the arguments of `inbox_apply.lua` to the call.
fn add_arguments(call: &mut Cmd, write: &InboxWrite, writes: &[u8]) -> Result<(), RedisCallError> {
    let folded = FoldedWrite::of(write);
    let (mut put_boxes, mut dropped_boxes) = (Vec::new(), Vec::new());
    let (mut noted, mut forgotten) = (Vec::new(), Vec::new());
    for (uid, after) in &folded.boxes {
        let uid = uid.as_bytes();
        match after.state {
            Some(state) => put_boxes.extend([uid, &state[..]]),
            None => dropped_boxes.push(uid),
        }
        match after.hour {
            Some(hour) => noted.extend([hour.to_string().into_bytes(), uid.to_vec()]),
            None => forgotten.push(uid),
        }
    }
    let (mut put_rows, mut dropped_rows) = (Vec::new(), Vec::new());
    for ((uid, seq), row) in &folded.own {
        match row {
            Some(row) => put_rows.push((own_field(uid, *seq), &row[..])),
            None => dropped_rows.push(own_field(uid, *seq)),
        }
    }
    let steps = folded.shared.values().map(|after| after.steps.len()).sum::<usize>();
    let boxes = put_boxes.len() + dropped_boxes.len() + noted.len() + forgotten.len();
    let arguments = HEADER_ARGUMENTS + boxes + put_rows.len() * 2 + dropped_rows.len() + steps * 3;
    if arguments > ARGUMENTS_MAX {
        return Err(RedisCallError::TooLarge { changes: write.changes.len() });
    }
    call.arg(decimal(write.epoch)).arg(decimal(write.expected)).arg(decimal(write.applied)).arg(u8::from(write.reset));
    call.arg(writes);
    call.arg(put_boxes.len()).arg(dropped_boxes.len()).arg(noted.len()).arg(forgotten.len());
    call.arg(put_rows.len() * 2).arg(dropped_rows.len());
    call.arg(&put_boxes).arg(&dropped_boxes).arg(&noted).arg(&forgotten);
    for (field, row) in &put_rows {
        call.arg(field).arg(*row);
    }
    call.arg(&dropped_rows);
    for (seq, after) in &folded.shared {
        for step in &after.steps {
            call.arg(shared_field(*seq));
            match step {
                SharedStep::Add { row, references } => call.arg(i64::from(*references)).arg(&row[..]),
                SharedStep::Release(references) => call.arg(-i64::from(*references)).arg(""),
            };
        }
    }
    Ok(())
}

impl From<RedisCallError> for InboxError {
    fn from(error: RedisCallError) -> Self {
        match error {
            RedisCallError::UnexpectedReply => Self::Damaged(error.to_string()),
            RedisCallError::Failed(_) | RedisCallError::TooLarge { .. } => Self::Unavailable(error.to_string()),
        }
    }
}

impl Inbox for RedisInbox {
    fn open(&self, partition: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, InboxError>> {
        Box::pin(async move {
            let mut call = self.open.on(self.keys(partition, &["meta"]).iter());
            call.arg(decimal(epoch));
            let answer = self.connection.run(&self.open, call).await?;
            if matches!(answer, Value::Nil) {
                return Ok(None);
            }
            let mut answer = ReplyParts::of(answer)?;
            let (applied, writes) = (answer.number()?, answer.bytes()?);
            self.written().insert(partition, (epoch, writes));
            Ok(Some(applied))
        })
    }

    fn apply(&self, partition: u32, write: InboxWrite) -> PortFuture<'_, Result<ApplyOutcome, InboxError>> {
        Box::pin(async move {
            let _turn = self.connection.acquire_turn(&self.writes).await?;
            let mut call = self.apply.on(self.keys(partition, &NAMES).iter());
            let (epoch, writes) = (write.epoch, self.take_written(partition, write.epoch));
            add_arguments(&mut call, &write, &writes)?;
            // The call has a copy of the rows: free them before waiting for the answer.
            drop(write);
            let mut answer = ReplyParts::of(self.connection.run(&self.apply, call).await?)?;
            match &*answer.bytes()? {
                b"done" => {
                    self.written().insert(partition, (epoch, answer.bytes()?));
                    Ok(ApplyOutcome::Done)
                }
                b"behind" => Ok(ApplyOutcome::Behind { at: answer.number()? }),
                b"older_epoch" => Ok(ApplyOutcome::OlderEpoch),
                _ => Err(RedisCallError::UnexpectedReply.into()),
            }
        })
    }

    fn boxes(&self, partition: u32, uids: Vec<Uid>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        Box::pin(async move {
            let fields = uids.iter().map(|uid| uid.as_str().into()).collect();
            self.fields(partition, &[("boxes", fields)]).await
        })
    }

    fn rows(&self, partition: u32, keys: Vec<RowKey>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        Box::pin(async move {
            let (mut own, mut shared) = (Vec::new(), Vec::new());
            for key in &keys {
                match key {
                    RowKey::Own { uid, seq } => own.push(own_field(uid.as_str(), *seq)),
                    RowKey::Shared { seq } => shared.push(shared_field(*seq)),
                }
            }
            let first_shared = own.len();
            let read = self.fields(partition, &[("rows", own), ("shared", shared)]).await?;
            let mut own = read.found;
            let shared = own.split_off(first_shared);
            let (mut own, mut shared) = (own.into_iter(), shared.into_iter());
            let of_key = |key: &RowKey| match key {
                RowKey::Own { .. } => own.next().flatten(),
                RowKey::Shared { .. } => shared.next().flatten(),
            };
            Ok(AtOffset { applied: read.applied, found: keys.iter().map(of_key).collect() })
        })
    }

    fn reclaimable(&self, partition: u32, before: Timestamp, limit: usize) -> InboxRead<'_, Vec<Uid>> {
        Box::pin(async move {
            let mut call = self.reclaimable.on(self.keys(partition, &["meta", "reclaim"]).iter());
            call.arg(reclaim_hour(before)).arg(limit);
            let mut answer = ReplyParts::of(self.connection.run(&self.reclaimable, call).await?)?;
            let (applied, mut found) = (answer.number()?, Vec::new());
            while !answer.is_over() {
                let uid = answer.bytes()?;
                let uid = std::str::from_utf8(&uid).ok().and_then(|uid| Uid::new(uid).ok());
                found.push(uid.ok_or(RedisCallError::UnexpectedReply)?);
            }
            Ok(AtOffset { applied, found })
        })
    }
}
