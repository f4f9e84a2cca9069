//! A simulated store of progress, fenced by epoch and by run, that can fall back to an earlier state.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use roaring::RoaringTreemap;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{ProgressError, ProgressKey};

/// The knowledge of the owner that saved a row, recorded apart from the row. Rows that are read back are compared with it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnerMemory {
    /// The offsets of done messages.
    pub done: RoaringTreemap,
    /// The attempts of unfinished messages, and the earliest times of their next ones.
    pub tries: BTreeMap<u64, (u32, i64)>,
}

#[derive(Debug, Clone)]
pub struct SavedRow {
    pub run: u32,
    pub state: Bytes,
    pub memory: Arc<OwnerMemory>,
}

pub type SavedRows = BTreeMap<PartitionId, SavedRow>;

#[derive(Debug, Default)]
pub struct SimProgress {
    noted: u64,
    rows: SavedRows,
    past: Vec<SavedRows>,
    pub is_away: bool,
}

impl SimProgress {
    pub fn open(&mut self, epoch: u64) -> Result<SavedRows, ProgressError> {
        self.fence(epoch)?;
        self.noted = epoch;
        Ok(self.rows.clone())
    }

    pub fn save(&mut self, epoch: u64, rows: SavedRows) -> Result<(), ProgressError> {
        self.fence(epoch)?;
        for (id, row) in &rows {
            if let Some(there) = self.rows.get(id).filter(|there| there.run > row.run) {
                let place = ProgressKey { line: 0, partition: *id };
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

    pub fn rows(&self) -> &SavedRows {
        &self.rows
    }

    /// Loses the last saves.
    pub fn fall_back(&mut self, saves: usize) {
        for _ in 0..saves {
            let Some(rows) = self.past.pop() else { return };
            self.rows = rows;
        }
    }
}
