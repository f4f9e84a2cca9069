//! The window is filled from the store, page by page, in due order.

use std::sync::Arc;

use whimbrel_model::ports::{AtOffset, DueCursor, TimersError};
use whimbrel_model::{Hold, Timestamp};

use super::super::settings::RETRY_AFTER;
use super::super::window::{HoldWindow, before, place_of};
use super::{CallToken, HoldEffect, HoldShard, StoreRead, after};

/// The read that fills the window.
#[derive(Debug)]
pub(super) struct WindowFill {
    /// The read in progress, and the number of saves before it.
    pub(super) reading: Option<(CallToken, u64)>,
    /// The range that the read covers: after a place, until a time.
    after: DueCursor,
    until: Timestamp,
    pub(super) again_at: Option<Timestamp>,
}

impl WindowFill {
    pub(super) fn new(window: &HoldWindow) -> Self {
        let after = window.horizon().clone();
        Self { reading: None, until: after.due, after, again_at: None }
    }

    pub(super) fn forget(&mut self) {
        (self.reading, self.again_at) = (None, None);
    }
}

impl HoldShard {
    pub(super) fn fill_at(&self) -> Option<Timestamp> {
        if self.filling.reading.is_some() || !self.memory.window.has_room() {
            return None;
        }
        if self.filling.again_at.is_some() {
            return self.filling.again_at;
        }
        // The window is refilled when a quarter of it has passed.
        let horizon = self.memory.window.horizon().due.as_millis();
        let window = i64::try_from(self.settings.window.as_millis()).unwrap_or(i64::MAX);
        Some(Timestamp::from_millis(horizon.saturating_sub(window / 4 * 3)))
    }

    /// Reads the next holds in due order, from the horizon on.
    pub(super) fn fill(&mut self, effects: &mut Vec<HoldEffect>) {
        let now = self.time.now();
        if self.store.has_fallen || self.fill_at().is_none_or(|at| now < at) {
            return;
        }
        self.filling.again_at = None;
        let token = self.token();
        self.filling.reading = Some((token, self.store.saves));
        let horizon = self.memory.window.horizon();
        let after_place = (horizon.due.as_millis() != i64::MIN).then(|| horizon.clone());
        effects.push(HoldEffect::Due { token, after: after_place, until: after(now, self.settings.window) });
        self.filling.after = horizon.clone();
        self.filling.until = after(now, self.settings.window);
    }

    pub(super) fn filled(
        &mut self,
        token: CallToken,
        found: Result<AtOffset<Vec<Arc<Hold>>>, TimersError>,
        _: &mut Vec<HoldEffect>,
    ) {
        let Some((_, saves)) = self.filling.reading.take_if(|(asked, _)| *asked == token) else { return };
        let page = match found {
            Ok(page) => page,
            Err(error) => {
                self.filling.again_at = Some(after(self.time.now(), RETRY_AFTER));
                return self.store.failed(&error);
            }
        };
        match self.store.check_read(page.applied, saves) {
            StoreRead::Sound => {}
            StoreRead::AskAgain => return,
            StoreRead::Fallen => {
                self.store.has_fallen = true;
                return;
            }
        }
        // The window dropped holds after the query: this page would leave a gap.
        if *self.memory.window.horizon() != self.filling.after {
            return;
        }
        let horizon = page.found.last().map_or_else(|| before(self.filling.until), |last| place_of(last));
        let unsaved = self.memory.unsaved.take_near(&horizon, self.memory.window.room());
        // If not all of them fit, those after the last one wait for the next page.
        let horizon =
            if self.memory.unsaved.has_near(&horizon) { unsaved.last().map(|last| place_of(last)) } else { None }
                .unwrap_or(horizon);
        let mut near: Vec<Arc<Hold>> =
            page.found.into_iter().filter(|hold| self.memory.is_new_to_window(&hold.id)).collect();
        near.extend(unsaved);
        near.retain(|hold| place_of(hold) <= horizon);
        near.sort_unstable_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
        self.fill_with(near, horizon);
    }

    /// Inserts holds in due order while there is room. A window filled beyond its bound would drop all of them and be filled again,
    /// endlessly.
    fn fill_with(&mut self, near: Vec<Arc<Hold>>, horizon: DueCursor) {
        let mut near = near.into_iter();
        while let Some(hold) = near.next() {
            let place = place_of(&hold);
            self.memory.window.insert(hold);
            if self.memory.window.room() == 0 {
                self.memory.window.reach(place);
                for left in near.filter(|left| self.memory.unsaved.get(&left.id).is_some()).collect::<Vec<_>>() {
                    self.memory.unsaved.note_far(&left);
                }
                return;
            }
        }
        self.memory.window.reach(horizon);
    }
}
