//! Folding: the records of the shard, one after the other, into memory.

use std::collections::HashMap;
use std::sync::Arc;

use whimbrel_model::hold::MalformedHold;
use whimbrel_model::ports::{At, Known, LogError, ReadBatch, Row, TimersError};
use whimbrel_model::{Ending, Hold, HoldId, HoldRecord, Timestamp};

use super::super::settings::RETRY_AFTER;
use super::super::unsaved::row_of;
use super::{Effect, Folded, Judged, Shard, Token, after};

/// A page of records that waits for what the store knows of some of their ids.
#[derive(Debug)]
pub(super) struct Page {
    records: Vec<Folded>,
    next: u64,
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

/// Nothing can be known of its id yet.
fn is_new(record: &HoldRecord) -> bool {
    matches!(record, HoldRecord::Held(hold) if hold.fresh)
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
                let mut records = Vec::with_capacity(batch.records.len());
                for stored in &batch.records {
                    match HoldRecord::of(&stored.record, stored.offset) {
                        Ok(record) => records.push((stored.offset, record)),
                        Err(MalformedHold::OtherFormat(format)) => {
                            let why = format!("the record at offset {} has format {format}", stored.offset);
                            effects.push(Effect::Resign { why });
                            return;
                        }
                        Err(error) => effects.push(Effect::Report { offset: stored.offset, why: error.to_string() }),
                    }
                }
                self.page = Some(Page { records, next: batch.next, asked: None });
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
        let from_store = self.deciding.get(id).and_then(Option::as_ref).or_else(|| self.window.get(id))?;
        Some(Resolved::from_store(Some(Known::Pending(Arc::clone(from_store)))))
    }

    fn fold_page(&mut self, effects: &mut Vec<Effect>) {
        let Some(page) = &self.page else { return };
        let mut unknown: Vec<HoldId> = Vec::new();
        for (_, record) in &page.records {
            if !is_new(record) && self.resolve(record.id()).is_none() {
                unknown.push(record.id().clone());
            }
        }
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            let token = self.token();
            if let Some(page) = &mut self.page {
                page.asked = Some((token, self.saves, unknown.clone()));
            }
            effects.push(Effect::Get { token, ids: unknown });
            return;
        }
        self.fold_with(HashMap::new(), effects);
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
                    let known = ids.into_iter().zip(at.found.iter().cloned()).collect();
                    self.fold_with(known, effects);
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

    /// Folds the page with what the store has of the ids that memory did not know when the page came.
    fn fold_with(&mut self, mut known: HashMap<HoldId, Option<Known>>, effects: &mut Vec<Effect>) {
        let Some(page) = self.page.take() else { return };
        // Memory may have let go of an id since, by a checkpoint, and may while the page is folded, by the window's bound. What is
        // not known now must be asked for, or an ended hold would be taken for a new one.
        for (_, record) in &page.records {
            let id = record.id();
            if is_new(record) || self.unsaved.get(id).is_some() || known.contains_key(id) {
                continue;
            }
            let Some(resolved) = self.resolve(id) else {
                self.page = Some(page);
                return self.fold_page(effects);
            };
            known.insert(id.clone(), resolved.state);
        }
        for (offset, record) in page.records {
            let resolved = match self.unsaved.get(record.id()) {
                Some(state) => Resolved { state: Some(state.clone()), stored: None },
                None => Resolved::from_store(known.get(record.id()).cloned().flatten()),
            };
            self.fold_one(offset, record, resolved);
        }
        self.folded = page.next.max(self.folded);
        self.folded_on(effects);
    }

    fn fold_one(&mut self, offset: u64, record: HoldRecord, now: Resolved) {
        let stored = now.stored;
        match record {
            // A second one of an id that is known is ignored.
            HoldRecord::Held(hold) if now.state.is_none() => self.set_pending(hold.compact().into(), stored),
            HoldRecord::Held(_) => {}
            HoldRecord::Moved { due, key, .. } => {
                if let Some(Known::Pending(hold)) = now.state {
                    self.set_pending(hold.moved(due, key.as_deref(), offset).into(), stored);
                }
            }
            HoldRecord::Carried(hold) => self.set_pending(hold.compact().into(), stored),
            HoldRecord::Ended { id, end } | HoldRecord::CarriedEnd { id, end } => {
                if matches!(end.how, Ending::Fired { .. }) {
                    self.clock.no_lower_than(end.at, self.wall);
                }
                self.window.remove(&id);
                self.unsaved.set(id, Known::Ended(end), stored);
            }
        }
    }

    fn set_pending(&mut self, hold: Arc<Hold>, stored: Option<Row>) {
        self.unsaved.set(hold.id.clone(), Known::Pending(Arc::clone(&hold)), stored);
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
