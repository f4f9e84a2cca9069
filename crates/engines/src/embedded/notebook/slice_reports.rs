//! Reports each damaged place of a slice once, although every look-up finds it again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::slice::SliceDamage;
use crate::embedded::lsm::fault::FaultKind;
use crate::embedded::lsm::report::{StoreDamage, StoreReport};

/// The maximum number of damaged places that a process reports.
const REPORTED_MAX: usize = 64;

/// The reports of all slices. Clones share the list of reported places.
#[derive(Clone)]
pub struct SliceReports {
    report: StoreReport,
    reported: Arc<Mutex<HashSet<(PathBuf, u64)>>>,
}

impl SliceReports {
    pub fn new(report: StoreReport) -> Self {
        Self { report, reported: Arc::default() }
    }

    pub fn damaged(&self, slice: &Path, damage: &SliceDamage) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= REPORTED_MAX || !reported.insert((slice.to_owned(), damage.position)) {
            return;
        }
        drop(reported);
        let (file, position) = (slice.display().to_string(), Some(damage.position));
        self.report.skipped(&StoreDamage { file, position, reason: damage.reason.clone(), kind: FaultKind::Damage });
    }
}
