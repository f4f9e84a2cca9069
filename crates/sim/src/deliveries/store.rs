//! A simulated store of progress, fenced by epoch and by run, that can fall back to what it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use roaring::RoaringTreemap;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{ProgressError, ProgressPlace};

/// What the owner that saved a row knew, told apart from the row itself: what is read back is held against it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Memory {
    /// Offsets that were done.
    pub done: RoaringTreemap,
    /// Attempts at what was not, and when the next may be.
    pub tries: BTreeMap<u64, (u32, i64)>,
}

#[derive(Debug, Clone)]
pub struct Row {
    pub run: u32,
    pub state: Bytes,
    pub memory: Arc<Memory>,
}

pub type Rows = BTreeMap<PartitionId, Row>;

#[derive(Debug, Default)]
pub struct SimProgress {
    noted: u64,
    rows: Rows,
    past: Vec<Rows>,
    pub is_away: bool,
}

impl SimProgress {
    pub fn open(&mut self, epoch: u64) -> Result<Rows, ProgressError> {
        self.fence(epoch)?;
        self.noted = epoch;
        Ok(self.rows.clone())
    }

    pub fn save(&mut self, epoch: u64, rows: Rows) -> Result<(), ProgressError> {
        self.fence(epoch)?;
        for (id, row) in &rows {
            if let Some(there) = self.rows.get(id).filter(|there| there.run > row.run) {
                let place = ProgressPlace { line: 0, partition: *id };
                return Err(ProgressError::NewerRun { place, run: there.run });
            }
        }
        self.past.push(self.rows.clone());
        self.rows.extend(rows);
        Ok(())
    }

    fn fence(&self, epoch: u64) -> Result<(), ProgressError> {
        if self.is_away {
            return Err(ProgressError::Unavailable("simulated".to_owned()));
        }
        if epoch < self.noted {
            return Err(ProgressError::Fenced { subscription: 1, epoch: self.noted });
        }
        Ok(())
    }

    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Loses its last saves.
    pub fn fall_back(&mut self, saves: usize) {
        for _ in 0..saves {
            let Some(rows) = self.past.pop() else { return };
            self.rows = rows;
        }
    }
}
