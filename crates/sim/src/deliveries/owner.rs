//! One owner of the subscription: the real runner, and its operations in progress. It keeps a record of its own of each message, which the
//! runner's calls and saved rows are compared with.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use whimbrel_dispatch::delivery_line::DeliveryLine;
use whimbrel_dispatch::line_set::{DeliveryRef, OutgoingMessage};
use whimbrel_dispatch::pending_appends::Settlement;
use whimbrel_dispatch::runner::SubscriptionRunner;
use whimbrel_dispatch::source_topics::SubscriptionTopics;
use whimbrel_dispatch::window::ReadRequest;
use whimbrel_model::ports::{CallOutcome, ProgressRow};
use whimbrel_model::{PartitionId, Record, Timestamp};

use super::log::RETRIES;
use super::store::{OwnerMemory, SavedRow, SavedRows};
use super::truth::Starts;

/// The entry of the catalogue: the run of the cursor, and its start offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimCatalogue {
    pub run: u32,
    pub starts: Starts,
}

/// The place where a message was read: its own, or one in the retry topic.
pub type ReadPlace = (PartitionId, u64);

/// A call with its outcome, and the time at which the outcome arrives.
#[derive(Debug, Clone)]
pub struct OpenCall {
    pub outgoing: OutgoingMessage,
    pub read_at: ReadPlace,
    pub outcome: CallOutcome,
    pub answered_at: i64,
}

/// Holds and dead letters that are being appended to the log, each with the place of its message.
pub struct OpenAppend {
    pub settlements: Vec<Settlement>,
    pub read_at: Vec<ReadPlace>,
}

/// A save that is in progress, with the owner's memory at its beginning.
pub struct OpenSave {
    pub rows: Vec<ProgressRow>,
    pub saved: SavedRows,
}

/// A call whose answer is being handled.
pub struct AnsweredCall {
    pub read_at: ReadPlace,
    pub run: u32,
    pub message: usize,
    pub is_recorded: bool,
}

pub struct DeliveryOwner {
    pub epoch: u64,
    pub runner: SubscriptionRunner,
    pub followed: SimCatalogue,
    pub topics: SubscriptionTopics,
    /// Reads of the cursor, each with the incarnation of its line.
    pub reads: Vec<(u64, ReadRequest)>,
    pub calls: Vec<OpenCall>,
    pub settling: Vec<OpenAppend>,
    pub saving: Option<OpenSave>,
    pub save_due: i64,
    /// Saved rows that are not used yet.
    pub rows: SavedRows,
    /// The record that the owner keeps of each partition, apart from the runner.
    pub memory: HashMap<PartitionId, OwnerMemory>,
    /// The end of the last check of each watermark.
    pub looked_at: HashMap<PartitionId, u64>,
    /// The incarnation of the line that has opened each partition.
    pub opened: HashMap<PartitionId, u64>,
    pub answering: Option<AnsweredCall>,
}

impl DeliveryOwner {
    pub fn line(&self) -> &DeliveryLine<Record> {
        self.runner.lines().cursor().expect("the cursor has a line")
    }

    /// Notes partitions that the runner has opened, with the memory that belongs to the saved row that counts. Retries belong to no run.
    pub fn load_memory(&mut self) {
        let line = self.runner.lines().cursor().expect("the cursor has a line");
        for id in line.window.partition_ids() {
            if self.opened.insert(id, line.incarnation) == Some(line.incarnation) {
                continue;
            }
            let row = self.rows.remove(&id).filter(|row| row.run == line.run || id == RETRIES);
            let kept = self.memory.remove(&id).filter(|_| id == RETRIES);
            let memory = row.map(|row| OwnerMemory::clone(&row.memory)).or(kept).unwrap_or_default();
            self.memory.insert(id, memory);
            self.looked_at.remove(&id);
        }
    }

    /// The rows of a save, with the present memory.
    pub fn saved(&self, rows: &[ProgressRow]) -> SavedRows {
        let saved = rows.iter().map(|row| {
            let id = row.place.partition;
            let memory = Arc::new(self.memory.get(&id).cloned().unwrap_or_default());
            (id, SavedRow { run: row.run, state: row.state.clone(), memory })
        });
        saved.collect()
    }

    pub fn is_current(&self, out: DeliveryRef) -> bool {
        self.line().incarnation == out.incarnation
    }

    /// Whether an answer to this delivery still counts.
    pub fn is_in_flight(&self, out: DeliveryRef) -> bool {
        self.is_current(out) && self.line().window.is_in_flight(out.ticket)
    }

    /// Records that a message is done.
    pub fn remember_done(&mut self, (id, offset): ReadPlace) {
        let memory = self.memory.entry(id).or_default();
        memory.done.insert(offset);
        memory.tries.remove(&offset);
    }

    pub fn remember_try(&mut self, (id, offset): ReadPlace, counts: bool, until: Timestamp) {
        let tries = &mut self.memory.entry(id).or_default().tries;
        let attempts = tries.get(&offset).map_or(0, |(attempts, _)| *attempts) + u32::from(counts);
        if attempts > 0 {
            tries.insert(offset, (attempts, until.as_millis()));
        }
    }

    /// The recorded attempts of a message, and the earliest time of the next one.
    pub fn tries_of(&self, (id, offset): ReadPlace) -> (u32, i64) {
        self.memory.get(&id).and_then(|memory| memory.tries.get(&offset)).copied().unwrap_or((0, 0))
    }

    /// The watermark of each partition.
    pub fn watermarks(&self) -> BTreeMap<PartitionId, u64> {
        let window = &self.line().window;
        let ids = window.partition_ids().into_iter();
        ids.filter_map(|id| Some((id, window.watermark(id)?))).collect()
    }
}
