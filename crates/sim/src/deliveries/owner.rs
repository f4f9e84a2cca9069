//! One owner of the subscription: the real line, and what is under way for it. It does what the shell around a line does, one step at a
//! time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use whimbrel_dispatch::letters::Parcel;
use whimbrel_dispatch::line::Line;
use whimbrel_dispatch::saved;
use whimbrel_dispatch::window::{ReadWanted, Resume, Ticket};
use whimbrel_model::ports::CallOutcome;
use whimbrel_model::{Hold, PartitionId, Record, Timestamp};

use super::log::RETRIES;
use super::store::{Memory, Row, Rows};
use super::truth::Starts;

/// What people decided: the cursor's run, and where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    pub run: u32,
    pub starts: Starts,
}

/// A message that is out.
#[derive(Debug, Clone)]
pub struct Out {
    pub incarnation: u64,
    pub run: u32,
    pub ticket: Ticket,
    /// Where it was read: its own place, or one of the retry topic.
    pub read_at: (PartitionId, u64),
    pub attempt: u32,
    pub parcel: Parcel,
}

/// A call, and what will be heard of it when.
#[derive(Debug, Clone)]
pub struct Calling {
    pub out: Out,
    pub heard: CallOutcome,
    pub heard_at: i64,
}

#[derive(Debug, Clone)]
pub enum Letter {
    Hold(Box<Hold>),
    Dead(Box<Record>),
}

/// A hold or a dead letter on its way into the log.
#[derive(Debug, Clone)]
pub struct Settling {
    pub out: Out,
    pub letter: Letter,
}

pub struct Owner {
    pub epoch: u64,
    pub followed: Catalogue,
    pub line: Line<Record>,
    pub reads: Vec<(u64, ReadWanted)>,
    pub calls: Vec<Calling>,
    pub settling: Vec<Settling>,
    pub save_due: i64,
    /// Rows that were saved and not used yet.
    pub rows: Rows,
    /// What this owner knows of each partition, kept apart from the line.
    pub memory: HashMap<PartitionId, Memory>,
    /// How far each watermark was looked at.
    pub looked_at: HashMap<PartitionId, u64>,
}

impl Owner {
    /// Opens a partition that is not open yet.
    pub fn open(&mut self, id: PartitionId) {
        let is_ahead = saved::are_ahead(self.rows.values().map(|row| row.run), self.followed.run);
        if is_ahead || self.line.window.has(id) {
            return;
        }
        let is_retry = id == RETRIES;
        let start = self.followed.starts.get(&id).copied().unwrap_or(0);
        let row = self.rows.remove(&id).filter(|row| saved::counts(row.run, self.followed.run, is_retry));
        let (resume, memory) = match row {
            Some(row) => {
                let (resume, _) = saved::decode(&row.state).expect("what was saved can be read");
                (resume, Memory::clone(&row.memory))
            }
            None => (Resume::at(start), Memory::default()),
        };
        self.memory.insert(id, memory);
        self.looked_at.remove(&id);
        self.line.window.open(id, resume, None, is_retry);
    }

    /// What changed, as rows to save.
    pub fn unsaved(&mut self) -> Rows {
        let rows = self.line.window.unsaved().into_iter().map(|(id, standing)| {
            let memory = Arc::new(self.memory.get(&id).cloned().unwrap_or_default());
            (id, Row { run: self.line.run, state: saved::encode(&standing, None).into(), memory })
        });
        rows.collect()
    }

    /// Works by another entry of the catalogue: a seek makes a line of its own; its retries go on.
    pub fn follow(&mut self, catalogue: &Catalogue, make: impl FnOnce(u32, u64) -> Line<Record>) {
        if self.followed == *catalogue {
            return;
        }
        self.line.window.not_saved([RETRIES]);
        let retries = self.unsaved().remove(&RETRIES);
        self.rows.extend(retries.map(|row| (RETRIES, Row { run: catalogue.run, ..row })));
        self.line = make(catalogue.run, self.line.incarnation + 1);
        self.memory.clear();
        self.looked_at.clear();
        self.followed = catalogue.clone();
    }

    pub fn is_current(&self, out: &Out) -> bool {
        self.line.incarnation == out.incarnation
    }

    /// It is done, as far as this owner knows.
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

    /// What is remembered of a message before it goes out: attempts, and not before when.
    pub fn tries_of(&self, (id, offset): (PartitionId, u64)) -> (u32, i64) {
        self.memory.get(&id).and_then(|memory| memory.tries.get(&offset)).copied().unwrap_or((0, 0))
    }

    /// Watermarks by partition.
    pub fn watermarks(&self) -> BTreeMap<PartitionId, u64> {
        let ids = self.line.window.partition_ids().into_iter();
        ids.filter_map(|id| Some((id, self.line.window.watermark(id)?))).collect()
    }
}
