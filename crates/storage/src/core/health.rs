//! The condition of the log: why it rejects appends, and the incidents that operators receive.
//!
//! A poisoned log stays poisoned until a restart. A full disk is temporary. An incident that lasts is reported once.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock;
use crate::PartitionKey;
use crate::disk::{is_full, is_passing};
use crate::error::{AppendError, LogDamage};
use crate::fallback::Replacement;
use crate::partition::BadSegment;

/// Limit of reported damaged places, each reported once. More reports do not help: the disk is broken.
const REPORTED_MAX: usize = 1000;

/// An incident for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// Damage, with its partition if that is known.
    Damaged(LogDamage, Option<PartitionKey>),
    /// Retention could not read, seal or remove a segment, and continued with the others. Emitted once until it is readable again.
    SegmentUnreadable {
        key: PartitionKey,
        file: PathBuf,
        error: String,
    },
    /// A small file was damaged or missing at the start. Its second file is used.
    FileReplaced(Replacement),
    DiskFull(String),
    DiskHasRoom,
    /// File descriptors or memory are short, so segments or a checkpoint could not be written. Emitted once until a checkpoint succeeds.
    Delayed(String),
    Poisoned(String),
}

/// The receiver of events. It must not block.
pub type OnEvent = Box<dyn Fn(LogEvent) + Send + Sync>;

pub(super) struct LogHealth {
    /// The error of all appends: `Poisoned` is permanent, `DiskFull` is temporary.
    refusal: Mutex<Option<AppendError>>,
    /// The delay of writes was reported.
    delay_reported: AtomicBool,
    /// Reported damage. A reader that meets it again does not report it again.
    reported: Mutex<HashSet<(String, u64)>>,
    /// Files that the last retention pass could not read.
    unreadable: Mutex<HashSet<PathBuf>>,
    on_event: OnEvent,
}

impl LogHealth {
    pub fn new(on_event: OnEvent) -> Self {
        Self {
            refusal: Mutex::default(),
            delay_reported: AtomicBool::new(false),
            reported: Mutex::default(),
            unreadable: Mutex::default(),
            on_event,
        }
    }

    /// The reason why the log rejects appends now.
    pub fn refusal(&self) -> Option<AppendError> {
        lock(&self.refusal).clone()
    }

    /// Closes the log for writing, permanently: after a failed sync the contents of the disk are unknown.
    pub fn poison(&self, what: &str, error: &io::Error) -> String {
        let why = format!("{what} failed: {error}; restart to recover");
        *lock(&self.refusal) = Some(AppendError::Poisoned(why.clone()));
        (self.on_event)(LogEvent::Poisoned(why.clone()));
        why
    }

    /// Reports a temporary shortage. Nothing was written, and the next round retries.
    pub fn delay(&self, what: &str, error: &io::Error) -> AppendError {
        let why = format!("{what}: {error}");
        if !self.delay_reported.swap(true, Ordering::Relaxed) {
            (self.on_event)(LogEvent::Delayed(why.clone()));
        }
        AppendError::Delayed(why)
    }

    /// Ends a reported shortage, so that the next one is reported again.
    pub fn end_delay(&self) {
        self.delay_reported.store(false, Ordering::Relaxed);
    }

    pub fn set_full(&self, why: String) {
        let mut refusal = lock(&self.refusal);
        if refusal.is_none() {
            *refusal = Some(AppendError::DiskFull(why.clone()));
            drop(refusal);
            (self.on_event)(LogEvent::DiskFull(why));
        }
    }

    pub fn clear_full(&self) {
        let mut refusal = lock(&self.refusal);
        if matches!(*refusal, Some(AppendError::DiskFull(_))) {
            *refusal = None;
            drop(refusal);
            (self.on_event)(LogEvent::DiskHasRoom);
        }
    }

    /// Notes a failure of the keeper. A full disk and a shortage of file descriptors or memory are temporary. After other errors, the
    /// contents of the disk are unknown.
    pub fn keeping_failed(&self, what: &str, error: &io::Error) -> AppendError {
        if is_full(error) {
            let why = format!("{what}: {error}");
            self.set_full(why.clone());
            AppendError::DiskFull(why)
        } else if is_passing(error) {
            self.delay(what, error)
        } else {
            AppendError::Poisoned(self.poison(what, error))
        }
    }

    pub fn report_damage(&self, damage: &LogDamage, partition: Option<PartitionKey>) {
        let mut reported = lock(&self.reported);
        if reported.len() < REPORTED_MAX && reported.insert((damage.file.clone(), damage.position)) {
            drop(reported);
            (self.on_event)(LogEvent::Damaged(damage.clone(), partition));
        }
    }

    pub fn report_replaced(&self, file: Replacement) {
        (self.on_event)(LogEvent::FileReplaced(file));
    }

    /// Takes all unreadable segments of one retention pass and reports those that the last pass could read.
    pub fn report_unreadable(&self, unreadable: Vec<BadSegment>) {
        let mut files = HashSet::new();
        let mut known = lock(&self.unreadable);
        let mut news = Vec::new();
        for BadSegment { key, file, error } in unreadable {
            // A segment that cannot be read may also be one that cannot be removed, so a file is reported once.
            if files.insert(file.clone()) && !known.contains(&file) {
                news.push(LogEvent::SegmentUnreadable { key, file, error });
            }
        }
        *known = files;
        drop(known);
        news.into_iter().for_each(&self.on_event);
    }
}
