//! Folding: the records of the shard, one after the other, into memory.

use std::collections::VecDeque;
use std::sync::Arc;

use whimbrel_model::hold::MalformedHold;
use whimbrel_model::ports::{At, Known, LogError, ReadBatch, Row, TimersError};
use whimbrel_model::{Ending, Hold, HoldId, HoldRecord, StoredRecord, Timestamp};

use super::super::IdMap;
use super::super::settings::RETRY_AFTER;
use super::super::unsaved::row_of;
use super::{Effect, Judged, Shard, Token, after};

/// A page of records on its way into memory. It waits where the store must be asked about some of its ids.
#[derive(Debug)]
pub(super) struct Page {
    records: VecDeque<StoredRecord>,
    next: u64,
    /// What the store has of ids that memory did not know when it was asked.
    known: IdMap<Option<Known>>,
    /// The call that asks for them, with the number of saves when it was made.
    asked: Option<(Token, u64, Vec<HoldId>)>,
}

/// What is known of an id: its state, and the row that the store has where it is not among the unsaved.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    pub(super) state: Option<Known>,
    pub(super) stored: Option<Row>,
}

impl Resolved {
    pub(super) fn from_store(found: Option<Known>) -> Self {
        let stored = match &found {
            Some(Known::Pending(hold)) => Some(row_of(hold)),
            _ => None,
        };
        Self { state: found, stored }
    }
}

impl Shard {
    pub(super) fn read_on(&mut self, effects: &mut Vec<Effect>) {
        let is_full = self.unsaved.bytes_in_all() > self.settings.unsaved_bytes && self.unsaved.is_sealed();
        if self.is_reading || self.page.is_some() || self.must_reset || is_full || self.has_fallen {
            return;
        }
        self.is_reading = true;
        effects.push(Effect::Read { from: self.folded });
    }

    pub(super) fn read(&mut self, read: Result<ReadBatch, LogError>, effects: &mut Vec<Effect>) {
        self.is_reading = false;
        match read {
            Ok(batch) => {
                let (records, next) = (batch.records.into(), batch.next);
                self.page = Some(Page { records, next, known: IdMap::default(), asked: None });
                self.fold_page(effects);
            }
            // The store is behind the kept log, or the log is not the one that was folded.
            Err(LogError::Trimmed { .. } | LogError::BeyondEnd { .. }) => self.has_fallen = true,
            Err(LogError::Damaged { resume_at, what, .. }) if resume_at > self.folded => {
                effects.push(Effect::Report { offset: self.folded, why: what });
                self.folded = resume_at;
                self.folded_on(effects);
            }
            // The shell waits before it answers with an error that may pass; `read_on` asks again.
            Err(_) => {}
        }
    }

    /// What memory knows of an id; `None` where the store must be asked.
    pub(super) fn resolve(&self, id: &HoldId) -> Option<Resolved> {
        if let Some(state) = self.unsaved.get(id) {
            return Some(Resolved { state: Some(state.clone()), stored: None });
        }
        let from_store = self.deciding.get(id).and_then(Option::as_ref).or_else(|| self.window.get(id));
        let from_store = from_store.or_else(|| self.aside.get(id))?;
        Some(Resolved::from_store(Some(Known::Pending(Arc::clone(from_store)))))
    }

    /// Folds the page record by record, each against what is known at that moment, until the store must be asked about one. What was
    /// folded up to there counts: a checkpoint meanwhile has exactly that.
    fn fold_page(&mut self, effects: &mut Vec<Effect>) {
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
                    effects.push(Effect::Resign { why });
                    return;
                }
                Err(error) => effects.push(Effect::Report { offset, why: error.to_string() }),
            }
            self.folded = offset + 1;
            page.records.pop_front();
        }
        self.folded = page.next.max(self.folded);
        self.folded_on(effects);
    }

    /// Asks the store about every id of the rest of the page that memory does not know.
    fn ask_for_page(&mut self, mut page: Page, effects: &mut Vec<Effect>) {
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
        effects.push(Effect::Get { token, ids });
    }

    /// The store answered about the ids of the page, if the call was for that.
    pub(super) fn page_got(
        &mut self,
        token: Token,
        found: &Result<At<Vec<Option<Known>>>, TimersError>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(page) = &mut self.page else { return false };
        let Some((_, saves, ids)) = page.asked.take_if(|(asked, ..)| *asked == token) else { return false };
        match found {
            Ok(at) => match self.judge(at.applied, saves) {
                Judged::Sound => {
                    page_known(&mut self.page, ids, &at.found);
                    self.fold_page(effects);
                }
                Judged::AskAgain => self.fold_page(effects),
                Judged::Fallen => self.has_fallen = true,
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

    /// Asks again about a page whose call to the store failed.
    pub(super) fn ask_for_page_again(&mut self, effects: &mut Vec<Effect>) {
        if self.page_at().is_some_and(|at| self.clock.now() >= at) {
            self.fold_page(effects);
        }
    }

    /// What is known of an id: by memory, or by what the store had for this page.
    fn look_up(&self, id: &HoldId, known: &IdMap<Option<Known>>) -> Option<Resolved> {
        self.resolve(id).or_else(|| known.get(id).cloned().map(Resolved::from_store))
    }

    /// Folds a record; false where the store must be asked about its id first.
    fn fold_one(&mut self, offset: u64, record: HoldRecord, known: &IdMap<Option<Known>>) -> bool {
        match record {
            HoldRecord::Held(hold) => {
                let now = match hold.fresh {
                    // Only a repeat of the very record could be known.
                    true => Resolved { state: self.unsaved.get(&hold.id).cloned(), stored: None },
                    false => match self.look_up(&hold.id, known) {
                        Some(now) => now,
                        None => return false,
                    },
                };
                // A second one of an id that is known is ignored.
                if now.state.is_none() {
                    self.set_pending(hold.compact().into(), now.stored);
                }
            }
            HoldRecord::Moved { id, due, key } => {
                let Some(now) = self.look_up(&id, known) else { return false };
                if let Some(Known::Pending(hold)) = now.state {
                    self.set_pending(hold.moved(due, key.as_deref(), offset).into(), now.stored);
                }
            }
            HoldRecord::Carried(hold) => {
                let Some(now) = self.look_up(&hold.id, known) else { return false };
                self.set_pending(hold.compact().into(), now.stored);
            }
            HoldRecord::Ended { id, end } | HoldRecord::CarriedEnd { id, end } => {
                // Nearly all that end come from the window. What is unsaved too knows its row itself.
                let (near, aside) = (self.window.remove(&id), self.aside.remove(&id));
                let stored = match near.or(aside) {
                    Some(hold) => Some(row_of(&hold)),
                    None => match self.look_up(&id, known) {
                        Some(now) => now.stored,
                        None => return false,
                    },
                };
                if matches!(end.how, Ending::Fired { .. }) {
                    self.clock.no_lower_than(end.at, self.wall);
                }
                self.unsaved.set(id, Known::Ended(end), stored);
            }
        }
        true
    }

    fn set_pending(&mut self, hold: Arc<Hold>, stored: Option<Row>) {
        self.unsaved.set(hold.id.clone(), Known::Pending(Arc::clone(&hold)), stored);
        self.aside.remove(&hold.id);
        if self.window.covers(&hold) {
            self.window.insert(hold);
            self.shrink_window();
        } else {
            self.window.remove(&hold.id);
            self.unsaved.note_far(&hold);
        }
    }

    /// The window lets its latest go where it is too large; those that only memory has are remembered as far.
    pub(super) fn shrink_window(&mut self) {
        for gone in self.window.shrink() {
            if let Some(Known::Pending(hold)) = self.unsaved.get(&gone.id) {
                let hold = Arc::clone(hold);
                self.unsaved.note_far(&hold);
            }
        }
    }

    /// More is folded: what waited for it goes on.
    fn folded_on(&mut self, effects: &mut Vec<Effect>) {
        self.is_ready_now();
        self.commit_is_folded();
        self.commands_folded(effects);
    }
}

fn page_known(page: &mut Option<Page>, ids: Vec<HoldId>, found: &[Option<Known>]) {
    if let Some(page) = page {
        page.known = ids.into_iter().zip(found.iter().cloned()).collect();
    }
}
