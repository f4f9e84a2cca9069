//! Sets due holds aside if their topic or partition cannot accept messages now, retries them after a pause, and reads those that do not
//! fit into memory from the store again.
//!
//! All other pending holds that are due up to the window's horizon are in memory. So a hold in a page of the store that is due up to there
//! and is not in memory is one that was set aside.

use std::sync::Arc;

use whimbrel_model::ports::{AtOffset, HoldsError, TimersError};
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::super::settings::RETRY_AFTER;
use super::super::window::place_of;
use super::request_queues::WaitingRequest;
use super::{CallToken, Decision, HoldEffect, HoldShard, StoreRead, after};

/// Holds that were set aside get at most 1/4 of a commit. The rest is for other holds.
pub(super) const COMMIT_PART: usize = 4;

impl HoldShard {
    /// Postpones a message whose topic cannot accept messages now. It is retried soon, and other messages do not wait for it.
    pub(super) fn postpone(
        &mut self,
        decision: &Decision,
        waiting: Option<WaitingRequest>,
        effects: &mut Vec<HoldEffect>,
    ) {
        self.memory.deciding.remove(decision.id());
        let now = self.time.now();
        // A hold that is not due yet was fired by a command. It stays in the window.
        if let Decision::Fire(hold) = decision
            && hold.due <= now
            && self.memory.window.get(&hold.id).is_some_and(|known| known.version == hold.version)
        {
            self.memory.window.remove(&hold.id);
            let is_stored = self.memory.unsaved.get(&hold.id).is_none();
            self.memory.aside.put(Arc::clone(hold), after(now, RETRY_AFTER), is_stored);
        }
        if let Some(waiting) = waiting {
            let why = "the topic or partition cannot accept messages now; try again".to_owned();
            self.answer(waiting, Err(HoldsError::Unavailable(why)), effects);
        }
    }

    /// Puts holds in memory back into the window when their pause is over.
    pub(super) fn retry_aside(&mut self, now: Timestamp) {
        for hold in self.memory.aside.take_due(now, (self.settings.commit_holds / COMMIT_PART).max(1)) {
            self.memory.window.insert(hold);
        }
    }

    /// Asks the store for the next page of holds that are not in memory.
    pub(super) fn scan_aside(&mut self, effects: &mut Vec<HoldEffect>) {
        if self.scanning.is_some() || self.commits.pending.is_some() || self.store.has_fallen {
            return;
        }
        let now = self.time.now();
        let window = &self.memory.window;
        let is_waiting = |id: &HoldId, version| window.get(id).is_some_and(|hold| hold.version == version);
        let Some(stretch) = self.memory.aside.next_page(now, after(now, RETRY_AFTER), is_waiting) else { return };
        let token = self.token();
        self.scanning = Some((token, self.store.saves));
        let until = Timestamp::from_millis(stretch.upto.due.as_millis().saturating_add(1));
        effects.push(HoldEffect::Due { token, after: Some(stretch.after), until });
    }

    /// Processes the store's reply to [`Self::scan_aside`]. Returns false if the reply belongs to another call.
    pub(super) fn scanned(&mut self, token: CallToken, found: &Result<AtOffset<Vec<Arc<Hold>>>, TimersError>) -> bool {
        let Some((_, saves)) = self.scanning.take_if(|(asked, _)| *asked == token) else { return false };
        let again_at = after(self.time.now(), RETRY_AFTER);
        match found {
            Ok(page) => match self.store.check_read(page.applied, saves) {
                StoreRead::Sound => self.take_page_aside(&page.found, again_at),
                StoreRead::AskAgain => {}
                StoreRead::Fallen => self.store.has_fallen = true,
            },
            Err(error) => {
                self.memory.aside.page_failed(again_at);
                self.store.failed(error);
            }
        }
        true
    }

    /// Puts holds of a page into the window, as many as may be set aside in memory.
    fn take_page_aside(&mut self, page: &[Arc<Hold>], again_at: Timestamp) {
        let (mut tried, mut bytes, mut next) = (Vec::new(), 0, None);
        for hold in page {
            let place = place_of(hold);
            // The window itself reads the holds beyond its horizon.
            if place > *self.memory.window.horizon() {
                next = None;
                break;
            }
            next = Some(place);
            if self.memory.is_only_stored(&hold.id) {
                bytes += hold.size();
                tried.push((hold.id.clone(), hold.version));
                self.memory.window.insert(Arc::clone(hold));
            }
            if bytes >= self.memory.aside.bytes_max() {
                break;
            }
        }
        self.memory.aside.page_read(tried, next, again_at);
    }
}
