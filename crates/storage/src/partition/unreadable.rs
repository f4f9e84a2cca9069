//! Places of segments that the disk cannot read. A place that stays unreadable counts as damaged, and readers continue behind it.
//!
//! A cable, a controller or a disk can fail for a moment. A place therefore counts as damaged only after several failures in a row over
//! some time, and only if the disk works elsewhere (`read.rs` probes it). Without this rule, a reader that retries forever would stop a
//! shard, a subscription or a trim. The partition removes a place from the list as soon as the disk can read it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures in a row before a place counts as damaged.
const UNREADABLE_AFTER: u32 = 3;
/// Limit of recorded places of one partition. At the limit, all counts restart from zero.
const PLACES_MAX: usize = 256;

/// The base offset of a segment, and the part of it that the disk failed to read.
pub(super) type DiskPlace = (u64, BadPart);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BadPart {
    /// The file cannot be opened.
    Whole,
    Position(u64),
}

/// The next readable place: the offset, and its position if it is in the same segment.
pub(super) type ReadableAt = (u64, Option<u64>);

pub(super) struct UnreadablePlaces {
    unreadable_for: Duration,
    places: Mutex<HashMap<DiskPlace, Failures>>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    since: Instant,
    in_a_row: u32,
    /// The next readable place, if it was found. Only for sealed segments.
    onwards: Option<ReadableAt>,
}

impl Failures {
    /// Whether the other place lies behind this one, and before the next readable place.
    fn covers(&self, this: DiskPlace, other: DiskPlace) -> bool {
        match (this, other, self.onwards) {
            ((base, BadPart::Position(from)), (of, BadPart::Position(at)), Some((_, end))) => {
                base == of && from < at && end.is_none_or(|end| at < end)
            }
            _ => false,
        }
    }
}

impl UnreadablePlaces {
    pub fn new(unreadable_for: Duration) -> Self {
        Self { unreadable_for, places: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DiskPlace, Failures>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure. Returns whether the place counts as damaged now. A place within a stretch that counts as damaged does so at once.
    pub fn failed(&self, place: DiskPlace) -> bool {
        let mut places = self.lock();
        if places.iter().any(|(known, failures)| failures.covers(*known, place)) {
            return true;
        }
        if places.len() >= PLACES_MAX && !places.contains_key(&place) {
            places.clear();
        }
        let new = || Failures { since: Instant::now(), in_a_row: 0, onwards: None };
        let failures = places.entry(place).or_insert_with(new);
        failures.in_a_row = failures.in_a_row.saturating_add(1);
        failures.in_a_row >= UNREADABLE_AFTER && failures.since.elapsed() >= self.unreadable_for
    }

    /// The next readable place behind this one, if an earlier search found it.
    pub fn onwards(&self, place: DiskPlace) -> Option<ReadableAt> {
        self.lock().get(&place)?.onwards
    }

    pub fn set_onwards(&self, place: DiskPlace, onwards: ReadableAt) {
        if let Some(failures) = self.lock().get_mut(&place) {
            failures.onwards = Some(onwards);
        }
    }

    /// Removes a place that the disk could read.
    pub fn succeeded(&self, place: DiskPlace) {
        let mut places = self.lock();
        if !places.is_empty() {
            places.remove(&place);
        }
    }
}
