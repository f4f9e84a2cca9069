//! Applies the records of the shard to memory, in order.

use std::collections::VecDeque;

use whimbrel_model::hold::MalformedHold;
use whimbrel_model::ports::{AtOffset, LogError, ReadBatch, StoredHold, TimersError};
use whimbrel_model::{HoldEndKind, HoldId, HoldRecord, StoredRecord, Timestamp};

use super::super::IdMap;
use super::super::settings::RETRY_AFTER;
use super::super::unsaved_holds::row_of;
use super::memory::KnownHold;
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

/// How far the log is folded, and the read and the page that are in progress.
#[derive(Debug, Default)]
pub(super) struct ShardFold {
    /// The offset up to which the log is folded without a gap.
    pub(super) folded: u64,
    is_reading: bool,
    page: Option<FoldPage>,
    pub(super) again_at: Timestamp,
}

impl ShardFold {
    pub(super) fn forget(&mut self) {
        (self.is_reading, self.page) = (false, None);
    }
}

impl HoldShard {
    pub(super) fn read_on(&mut self, effects: &mut Vec<HoldEffect>) {
        let is_full =
            self.memory.unsaved.bytes_in_all() > self.settings.unsaved_bytes && self.memory.unsaved.is_sealed();
        if self.fold.is_reading || self.fold.page.is_some() || self.store.must_reset || is_full || self.store.has_fallen
        {
            return;
        }
        self.fold.is_reading = true;
        effects.push(HoldEffect::Read { from: self.fold.folded });
    }

    pub(super) fn read(&mut self, read: Result<ReadBatch, LogError>, effects: &mut Vec<HoldEffect>) {
        self.fold.is_reading = false;
        match read {
            Ok(batch) => {
                let (records, next) = (batch.records.into(), batch.next);
                self.fold.page = Some(FoldPage { records, next, known: IdMap::default(), asked: None });
                self.fold_page(effects);
            }
            // The store is behind the kept log, or this is not the log that was folded.
            Err(LogError::Trimmed { .. } | LogError::BeyondEnd { .. }) => self.store.has_fallen = true,
            Err(LogError::Damaged { resume_at, what, .. }) if resume_at > self.fold.folded => {
                effects.push(HoldEffect::Report { offset: self.fold.folded, why: what });
                self.fold.folded = resume_at;
                self.folded_on(effects);
            }
            // The shell delays transient errors; `read_on` reads again.
            Err(_) => {}
        }
    }

    /// Folds the page record by record, each against the state at that moment, until the store must be queried about one. The records
    /// folded before that count: a checkpoint at that time contains exactly those.
    fn fold_page(&mut self, effects: &mut Vec<HoldEffect>) {
        let Some(mut page) = self.fold.page.take() else { return };
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
            self.fold.folded = offset + 1;
            page.records.pop_front();
        }
        self.fold.folded = page.next.max(self.fold.folded);
        self.folded_on(effects);
    }

    /// Queries the store about all ids in the rest of the page that memory does not have.
    fn ask_for_page(&mut self, mut page: FoldPage, effects: &mut Vec<HoldEffect>) {
        let records = page.records.iter().filter_map(|stored| HoldRecord::of(&stored.record, stored.offset).ok());
        let old = records.filter(|record| !matches!(record, HoldRecord::Held(hold) if hold.fresh));
        let mut ids: Vec<HoldId> =
            old.map(|record| record.id().clone()).filter(|id| self.memory.resolve(id).is_none()).collect();
        ids.sort_unstable();
        ids.dedup();
        let token = self.token();
        page.known.clear();
        page.asked = Some((token, self.store.saves, ids.clone()));
        self.fold.page = Some(page);
        effects.push(HoldEffect::Get { token, ids });
    }

    /// Takes the store's reply about the ids of the page. Returns false if the reply belongs to another call.
    pub(super) fn page_got(
        &mut self,
        token: CallToken,
        found: &Result<AtOffset<Vec<Option<StoredHold>>>, TimersError>,
        effects: &mut Vec<HoldEffect>,
    ) -> bool {
        let Some(page) = &mut self.fold.page else { return false };
        let Some((_, saves, ids)) = page.asked.take_if(|(asked, ..)| *asked == token) else { return false };
        match found {
            Ok(at) => match self.store.check_read(at.applied, saves) {
                StoreRead::Sound => {
                    page_known(&mut self.fold.page, ids, &at.found);
                    self.fold_page(effects);
                }
                StoreRead::AskAgain => self.fold_page(effects),
                StoreRead::Fallen => self.store.has_fallen = true,
            },
            Err(error) => {
                self.fold.again_at = after(self.time.now(), RETRY_AFTER);
                self.store.failed(error);
            }
        }
        true
    }

    pub(super) fn page_at(&self) -> Option<Timestamp> {
        self.fold.page.as_ref().filter(|page| page.asked.is_none()).map(|_| self.fold.again_at)
    }

    /// Queries the store again after a failed query about the page.
    pub(super) fn ask_for_page_again(&mut self, effects: &mut Vec<HoldEffect>) {
        if self.page_at().is_some_and(|at| self.time.now() >= at) {
            self.fold_page(effects);
        }
    }

    /// The state of an id, from memory or from the store's reply for this page.
    fn look_up(&self, id: &HoldId, known: &IdMap<Option<StoredHold>>) -> Option<KnownHold> {
        self.memory.resolve(id).or_else(|| known.get(id).cloned().map(KnownHold::from_store))
    }

    /// Folds a record. Returns false if the store must be queried about its id first.
    fn fold_one(&mut self, offset: u64, record: HoldRecord, known: &IdMap<Option<StoredHold>>) -> bool {
        match record {
            HoldRecord::Held(hold) => {
                let now = match hold.fresh {
                    // Only a repeat of this very record can have been folded before.
                    true => KnownHold { state: self.memory.unsaved.get(&hold.id).cloned(), stored: None },
                    false => match self.look_up(&hold.id, known) {
                        Some(now) => now,
                        None => return false,
                    },
                };
                // A second `held` of a known id is ignored.
                if now.state.is_none() {
                    self.memory.set_pending(hold.compact().into(), now.stored);
                }
            }
            HoldRecord::Moved { id, due, key } => {
                let Some(now) = self.look_up(&id, known) else { return false };
                if let Some(StoredHold::Pending(hold)) = now.state {
                    self.memory.set_pending(hold.moved(due, key.as_deref(), offset).into(), now.stored);
                }
            }
            HoldRecord::Carried(hold) => {
                let Some(now) = self.look_up(&hold.id, known) else { return false };
                self.memory.set_pending(hold.compact().into(), now.stored);
            }
            HoldRecord::Ended { id, end } | HoldRecord::CarriedEnd { id, end } => {
                // Nearly all ended holds come from the window. An unsaved change of the id has its row already.
                let (near, aside) = (self.memory.window.remove(&id), self.memory.aside.remove(&id));
                let stored = match near.or(aside) {
                    Some(hold) => Some(row_of(&hold)),
                    None => match self.look_up(&id, known) {
                        Some(now) => now.stored,
                        None => return false,
                    },
                };
                if matches!(end.how, HoldEndKind::Fired { .. }) {
                    self.time.no_lower_than(end.at);
                }
                self.memory.unsaved.set(id, StoredHold::Ended(end), stored);
            }
        }
        true
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
