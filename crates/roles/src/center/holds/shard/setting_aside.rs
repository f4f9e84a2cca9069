//! Holds that are due and whose topic or partition takes nothing now: they are set aside, tried again after a pause, and where there are many,
//! read from the store again.
//!
//! Of everything pending up to the window's horizon, only these can be outside of memory. So whatever a page of the store has up to there that
//! memory does not know is one of them.

use std::sync::Arc;

use whimbrel_model::ports::{At, HoldsError, TimersError};
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::super::settings::RETRY_AFTER;
use super::super::window::place_of;
use super::commands::Waiting;
use super::{Decision, Effect, Judged, Shard, Token, after};

/// Holds that were set aside get this part of a commit, so that the others have the rest of it.
pub(super) const COMMIT_PART: usize = 4;
/// What is set aside in memory has this part of the bytes of the window, beside it.
pub(super) const WINDOW_PART: usize = 4;

impl Shard {
    /// A message whose topic takes nothing at this moment: it is tried again soon, and the others do not wait for it.
    pub(super) fn postpone(&mut self, decision: &Decision, waiting: Option<Waiting>, effects: &mut Vec<Effect>) {
        self.deciding.remove(decision.id());
        let now = self.clock.now();
        // One that is not due yet was fired by a command. It is where it was.
        if let Decision::Fire(hold) = decision
            && hold.due <= now
            && self.window.get(&hold.id).is_some_and(|known| known.version == hold.version)
        {
            self.window.remove(&hold.id);
            let is_stored = self.unsaved.get(&hold.id).is_none();
            self.aside.put(Arc::clone(hold), after(now, RETRY_AFTER), is_stored);
        }
        if let Some(waiting) = waiting {
            let why = "the topic takes nothing at this moment; this passes".to_owned();
            self.answer(waiting, Err(HoldsError::Unavailable(why)), effects);
        }
    }

    /// Those in memory whose pause is over are due again.
    pub(super) fn retry_aside(&mut self, now: Timestamp) {
        for hold in self.aside.take_due(now, (self.settings.commit_holds / COMMIT_PART).max(1)) {
            self.window.insert(hold);
        }
    }

    /// Asks the store for the next page of those that only it has.
    pub(super) fn scan_aside(&mut self, effects: &mut Vec<Effect>) {
        if self.scanning.is_some() || self.under_way.is_some() || self.has_fallen {
            return;
        }
        let now = self.clock.now();
        let window = &self.window;
        let is_waiting = |id: &HoldId, version| window.get(id).is_some_and(|hold| hold.version == version);
        let Some(stretch) = self.aside.next_page(now, after(now, RETRY_AFTER), is_waiting) else { return };
        let token = self.token();
        self.scanning = Some((token, self.saves));
        let until = Timestamp::from_millis(stretch.upto.due.as_millis().saturating_add(1));
        effects.push(Effect::Due { token, after: Some(stretch.after), until });
    }

    /// The store answered, if the call was for that.
    pub(super) fn scanned(&mut self, token: Token, found: &Result<At<Vec<Arc<Hold>>>, TimersError>) -> bool {
        let Some((_, saves)) = self.scanning.take_if(|(asked, _)| *asked == token) else { return false };
        let again_at = after(self.clock.now(), RETRY_AFTER);
        match found {
            Ok(page) => match self.judge(page.applied, saves) {
                Judged::Sound => self.take_page_aside(&page.found, again_at),
                Judged::AskAgain => {}
                Judged::Fallen => self.has_fallen = true,
            },
            Err(error) => {
                self.aside.page_failed(again_at);
                self.store_failed(error);
            }
        }
        true
    }

    /// The holds of a page are due again, as many as may be set aside in memory.
    fn take_page_aside(&mut self, page: &[Arc<Hold>], again_at: Timestamp) {
        let (mut tried, mut bytes, mut next) = (Vec::new(), 0, None);
        for hold in page {
            let place = place_of(hold);
            // Beyond the horizon the window reads them by itself.
            if place > *self.window.horizon() {
                next = None;
                break;
            }
            next = Some(place);
            if self.resolve(&hold.id).is_none() {
                bytes += hold.size();
                tried.push((hold.id.clone(), hold.version));
                self.window.insert(Arc::clone(hold));
            }
            if bytes >= self.aside.bytes_max() {
                break;
            }
        }
        self.aside.page_read(tried, next, again_at);
    }
}
