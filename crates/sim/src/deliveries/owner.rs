//! One owner of the subscription: the real line, and its operations in progress. It does the work of the shell around a line, step by step.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use whimbrel_dispatch::delivery_line::DeliveryLine;
use whimbrel_dispatch::outbound_message::OutboundMessage;
use whimbrel_dispatch::progress_format;
use whimbrel_dispatch::window::{DeliveryTicket, PartitionResume, ReadRequest};
use whimbrel_model::ports::CallOutcome;
use whimbrel_model::{Hold, PartitionId, Record, Timestamp};

use super::log::RETRIES;
use super::store::{OwnerMemory, SavedRow, SavedRows};
use super::truth::Starts;

/// The entry of the catalogue: the run of the cursor, and its start offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimCatalogue {
    pub run: u32,
    pub starts: Starts,
}

/// A message in flight.
#[derive(Debug, Clone)]
pub struct OpenDelivery {
    pub incarnation: u64,
    pub run: u32,
    pub ticket: DeliveryTicket,
    /// The place where it was read: its own, or one in the retry topic.
    pub read_at: (PartitionId, u64),
    pub attempt: u32,
    pub parcel: OutboundMessage,
}

/// A call with its outcome, and the time at which the outcome arrives.
#[derive(Debug, Clone)]
pub struct OpenCall {
    pub out: OpenDelivery,
    pub outcome: CallOutcome,
    pub answered_at: i64,
}

#[derive(Debug, Clone)]
pub enum AppendBody {
    Hold(Box<Hold>),
    Dead(Box<Record>),
}

/// A hold or a dead letter that is being appended to the log.
#[derive(Debug, Clone)]
pub struct OpenAppend {
    pub out: OpenDelivery,
    pub letter: AppendBody,
}

pub struct DeliveryOwner {
    pub epoch: u64,
    pub followed: SimCatalogue,
    pub line: DeliveryLine<Record>,
    pub reads: Vec<(u64, ReadRequest)>,
    pub calls: Vec<OpenCall>,
    pub settling: Vec<OpenAppend>,
    pub save_due: i64,
    /// Saved rows that are not used yet.
    pub rows: SavedRows,
    /// The record that the owner keeps of each partition, apart from the line.
    pub memory: HashMap<PartitionId, OwnerMemory>,
    /// The end of the last check of each watermark.
    pub looked_at: HashMap<PartitionId, u64>,
}

impl DeliveryOwner {
    /// Opens a partition if it is not open.
    pub fn open(&mut self, id: PartitionId) {
        let is_ahead = progress_format::are_ahead(self.rows.values().map(|row| row.run), self.followed.run);
        if is_ahead || self.line.window.has(id) {
            return;
        }
        let is_retry = id == RETRIES;
        let start = self.followed.starts.get(&id).copied().unwrap_or(0);
        let row = self.rows.remove(&id).filter(|row| progress_format::counts(row.run, self.followed.run, is_retry));
        let (resume, memory) = match row {
            Some(row) => {
                let (resume, _) = progress_format::decode(&row.state).expect("a saved row can be decoded");
                (resume, OwnerMemory::clone(&row.memory))
            }
            None => (PartitionResume::at(start), OwnerMemory::default()),
        };
        self.memory.insert(id, memory);
        self.looked_at.remove(&id);
        self.line.window.open(id, resume, None, is_retry);
    }

    /// The changed rows, to be saved.
    pub fn unsaved(&mut self) -> SavedRows {
        let rows = self.line.window.unsaved().into_iter().map(|(id, standing)| {
            let memory = Arc::new(self.memory.get(&id).cloned().unwrap_or_default());
            (id, SavedRow { run: self.line.run, state: progress_format::encode(&standing, None).into(), memory })
        });
        rows.collect()
    }

    /// Switches to another entry of the catalogue. A seek begins a new line; the retries continue.
    pub fn follow(&mut self, catalogue: &SimCatalogue, make: impl FnOnce(u32, u64) -> DeliveryLine<Record>) {
        if self.followed == *catalogue {
            return;
        }
        self.line.window.not_saved([RETRIES]);
        let retries = self.unsaved().remove(&RETRIES);
        self.rows.extend(retries.map(|row| (RETRIES, SavedRow { run: catalogue.run, ..row })));
        self.line = make(catalogue.run, self.line.incarnation + 1);
        self.memory.clear();
        self.looked_at.clear();
        self.followed = catalogue.clone();
    }

    pub fn is_current(&self, out: &OpenDelivery) -> bool {
        self.line.incarnation == out.incarnation
    }

    /// Records that a message is done.
    pub fn remember_done(&mut self, (id, offset): (PartitionId, u64)) {
        let memory = self.memory.entry(id).or_default();
        memory.done.insert(offset);
        memory.tries.remove(&offset);
    }

    pub fn remember_try(&mut self, (id, offset): (PartitionId, u64), counts: bool, until: Timestamp) {
        let tries = &mut self.memory.entry(id).or_default().tries;
        let attempts = tries.get(&offset).map_or(0, |(attempts, _)| *attempts) + u32::from(counts);
        if attempts > 0 {
            tries.insert(offset, (attempts, until.as_millis()));
        }
    }

    /// The recorded attempts of a message, and the earliest time of the next one.
    pub fn tries_of(&self, (id, offset): (PartitionId, u64)) -> (u32, i64) {
        self.memory.get(&id).and_then(|memory| memory.tries.get(&offset)).copied().unwrap_or((0, 0))
    }

    /// The watermark of each partition.
    pub fn watermarks(&self) -> BTreeMap<PartitionId, u64> {
        let ids = self.line.window.partition_ids().into_iter();
        ids.filter_map(|id| Some((id, self.line.window.watermark(id)?))).collect()
    }
}
