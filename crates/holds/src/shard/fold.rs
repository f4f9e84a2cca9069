//! Applies the records of the shard to memory, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use whimbrel_model::hold::MalformedHold;
use whimbrel_model::ports::{AtOffset, DueKey, LogError, ReadBatch, StoredHold, TimersError};
use whimbrel_model::{Hold, HoldEndKind, HoldId, HoldRecord, StoredRecord, Timestamp};

use super::super::IdMap;
use super::super::settings::RETRY_AFTER;
use super::super::unsaved_holds::row_of;
use super::{CallToken, HoldEffect, HoldShard, StoreRead, after};

/// A page of records that is being folded. The fold pauses if the store must be queried about some of its ids.
#[derive(Debug)]
pub(super) struct FoldPage {
    records: VecDeque<StoredRecord>,
    next: u64,
    /// The store's states of ids that memory did not have when the store was queried.
    known: IdMap<Option<StoredHold>>,
    /// The query in progress: its token, the number of saves at that time, and its ids.
    asked: Option<(CallToken, u64, Vec<HoldId>)>,
}

/// The state of an id, and the row that the store has unless the id is among the unsaved changes.
#[derive(Debug, Clone)]
pub(super) struct KnownHold {
    pub(super) state: Option<StoredHold>,
    pub(super) stored: Option<DueKey>,
}

impl KnownHold {
    pub(super) fn from_store(found: Option<StoredHold>) -> Self {
        let stored = match &found {
            Some(StoredHold::Pending(hold)) => Some(row_of(hold)),
            _ => None,
        };
        Self { state: found, stored }
    }
}

impl HoldShard {
    pub(super) fn read_on(&mut self, effects: &mut Vec<HoldEffect>) {
        let is_full = self.unsaved.bytes_in_all() > self.settings.unsaved_bytes && self.unsaved.is_sealed();
        if self.is_reading || self.page.is_some() || self.must_reset || is_full || self.has_fallen {
            return;
        }
        self.is_reading = true;
        effects.push(HoldEffect::Read { from: self.folded });
    }

    pub(super) fn read(&mut self, read: Result<ReadBatch, LogError>, effects: &mut Vec<HoldEffect>) {
        self.is_reading = false;
        match read {
            Ok(batch) => {
                let (records, next) = (batch.records.into(), batch.next);
                self.page = Some(FoldPage { records, next, known: IdMap::default(), asked: None });
                self.fold_page(effects);
            }
            // The store is behind the kept log, or this is not the log that was folded.
            Err(LogError::Trimmed { .. } | LogError::BeyondEnd { .. }) => self.has_fallen = true,
            Err(LogError::Damaged { resume_at, what, .. }) if resume_at > self.folded => {
                effects.push(HoldEffect::Report { offset: self.folded, why: what });
                self.folded = resume_at;
                self.folded_on(effects);
            }
            // The shell delays transient errors; `read_on` reads again.
            Err(_) => {}
        }
    }

    /// The state of an id in memory. `None`: the store must be queried.
    pub(super) fn resolve(&self, id: &HoldId) -> Option<KnownHold> {
        if let Some(state) = self.unsaved.get(id) {
            return Some(KnownHold { state: Some(state.clone()), stored: None });
        }
        let from_store = self.deciding.get(id).and_then(Option::as_ref).or_else(|| self.window.get(id));
        let from_store = from_store.or_else(|| self.aside.get(id))?;
        Some(KnownHold::from_store(Some(StoredHold::Pending(Arc::clone(from_store)))))
    }

    /// Folds the page record by record, each against the state at that moment, until the store must be queried about one. The records
    /// folded before that count: a checkpoint at that time contains exactly those.
    fn fold_page(&mut self, effects: &mut Vec<HoldEffect>) {
        let Some(mut page) = self.page.take() else { return };
        while let Some(stored) = page.records.front() {
            let offset = stored.offset;
            match HoldRecord::of(&stored.record, offset) {
                Ok(record) => {
                    if !self.fold_one(offset, record, &page.known) {
                        return self.ask_for_page(page, effects);
                    }
                }
                Err(MalformedHold::OtherFormat(format)) => {
                    let why = format!("the record at offset {offset} has format {format}");
                    effects.push(HoldEffect::Resign { why });
                    return;
                }
                Err(error) => effects.push(HoldEffect::Report { offset, why: error.to_string() }),
            }
            self.folded = offset + 1;
            page.records.pop_front();
        }
        self.folded = page.next.max(self.folded);
        self.folded_on(effects);
    }

    /// Queries the store about all ids in the rest of the page that memory does not have.
    fn ask_for_page(&mut self, mut page: FoldPage, effects: &mut Vec<HoldEffect>) {
        let records = page.records.iter().filter_map(|stored| HoldRecord::of(&stored.record, stored.offset).ok());
        let old = records.filter(|record| !matches!(record, HoldRecord::Held(hold) if hold.fresh));
        let mut ids: Vec<HoldId> =
            old.map(|record| record.id().clone()).filter(|id| self.resolve(id).is_none()).collect();
        ids.sort_unstable();
        ids.dedup();
        let token = self.token();
        page.known.clear();
        page.asked = Some((token, self.saves, ids.clone()));
        self.page = Some(page);
        effects.push(HoldEffect::Get { token, ids });
    }

    /// Takes the store's reply about the ids of the page. Returns false if the reply belongs to another call.
    pub(super) fn page_got(
        &mut self,
        token: CallToken,
        found: &Result<AtOffset<Vec<Option<StoredHold>>>, TimersError>,
        effects: &mut Vec<HoldEffect>,
    ) -> bool {
        let Some(page) = &mut self.page else { return false };
        let Some((_, saves, ids)) = page.asked.take_if(|(asked, ..)| *asked == token) else { return false };
        match found {
            Ok(at) => match self.check_read(at.applied, saves) {
                StoreRead::Sound => {
                    page_known(&mut self.page, ids, &at.found);
                    self.fold_page(effects);
                }
                StoreRead::AskAgain => self.fold_page(effects),
                StoreRead::Fallen => self.has_fallen = true,
            },
            Err(error) => {
                self.page_again_at = after(self.clock.now(), RETRY_AFTER);
                self.store_failed(error);
            }
        }
        true
    }

    pub(super) fn page_at(&self) -> Option<Timestamp> {
        self.page.as_ref().filter(|page| page.asked.is_none()).map(|_| self.page_again_at)
    }

    /// Queries the store again after a failed query about the page.
    pub(super) fn ask_for_page_again(&mut self, effects: &mut Vec<HoldEffect>) {
        if self.page_at().is_some_and(|at| self.clock.now() >= at) {
            self.fold_page(effects);
        }
    }

    /// The state of an id, from memory or from the store's reply for this page.
    fn look_up(&self, id: &HoldId, known: &IdMap<Option<StoredHold>>) -> Option<KnownHold> {
        self.resolve(id).or_else(|| known.get(id).cloned().map(KnownHold::from_store))
    }

    /// Folds a record. Returns false if the store must be queried about its id first.
    fn fold_one(&mut self, offset: u64, record: HoldRecord, known: &IdMap<Option<StoredHold>>) -> bool {
        match record {
            HoldRecord::Held(hold) => {
                let now = match hold.fresh {
                    // Only a repeat of this very record can have been folded before.
                    true => KnownHold { state: self.unsaved.get(&hold.id).cloned(), stored: None },
                    false => match self.look_up(&hold.id, known) {
                        Some(now) => now,
                        None => return false,
                    },
                };
                // A second `held` of a known id is ignored.
                if now.state.is_none() {
                    self.set_pending(hold.compact().into(), now.stored);
                }
            }
            HoldRecord::Moved { id, due, key } => {
                let Some(now) = self.look_up(&id, known) else { return false };
                if let Some(StoredHold::Pending(hold)) = now.state {
                    self.set_pending(hold.moved(due, key.as_deref(), offset).into(), now.stored);
                }
            }
            HoldRecord::Carried(hold) => {
                let Some(now) = self.look_up(&hold.id, known) else { return false };
                self.set_pending(hold.compact().into(), now.stored);
            }
            HoldRecord::Ended { id, end } | HoldRecord::CarriedEnd { id, end } => {
                // Nearly all ended holds come from the window. An unsaved change of the id has its row already.
                let (near, aside) = (self.window.remove(&id), self.aside.remove(&id));
                let stored = match near.or(aside) {
                    Some(hold) => Some(row_of(&hold)),
                    None => match self.look_up(&id, known) {
                        Some(now) => now.stored,
                        None => return false,
                    },
                };
                if matches!(end.how, HoldEndKind::Fired { .. }) {
                    self.clock.no_lower_than(end.at, self.wall);
                }
                self.unsaved.set(id, StoredHold::Ended(end), stored);
            }
        }
        true
    }

    fn set_pending(&mut self, hold: Arc<Hold>, stored: Option<DueKey>) {
        self.unsaved.set(hold.id.clone(), StoredHold::Pending(Arc::clone(&hold)), stored);
        self.aside.remove(&hold.id);
        if self.window.covers(&hold) {
            self.window.insert(hold);
            self.shrink_window();
        } else {
            self.window.remove(&hold.id);
            self.unsaved.note_far(&hold);
        }
    }

    /// Drops the latest holds of a window that is too large. Holds that only memory has are noted as far.
    pub(super) fn shrink_window(&mut self) {
        for gone in self.window.shrink() {
            if let Some(StoredHold::Pending(hold)) = self.unsaved.get(&gone.id) {
                let hold = Arc::clone(hold);
                self.unsaved.note_far(&hold);
            }
        }
    }

    /// Resumes everything that waited for the log to be folded further.
    fn folded_on(&mut self, effects: &mut Vec<HoldEffect>) {
        self.is_ready_now();
        self.commit_is_folded();
        self.commands_folded(effects);
    }
}

fn page_known(page: &mut Option<FoldPage>, ids: Vec<HoldId>, found: &[Option<StoredHold>]) {
    if let Some(page) = page {
        page.known = ids.into_iter().zip(found.iter().cloned()).collect();
    }
}
