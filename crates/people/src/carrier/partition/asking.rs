//! What people ask about a user: what is stored, and for whom it waits.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{
    InboxMessage, InboxView, OutMessage, PeopleAsk, PeopleError, PeopleTold, RowKey, SeatView,
};

use super::super::rows::decode_row;
use super::folding::row_key;
use super::{AskId, Effect, Partition, Purpose, unsaved_message};

/// An answer that waits for its rows.
pub(super) struct Showing {
    ask: AskId,
    view: InboxView,
    messages: Vec<Shown>,
}

struct Shown {
    seq: u64,
    expires_at: Timestamp,
    /// `None`: the next of the rows that were asked for.
    message: Option<Arc<OutMessage>>,
}

impl Showing {
    /// With the rows that were asked for, in their order. One that is not there any more is left out.
    pub(super) fn answer(mut self, rows: &[Option<Bytes>]) -> Effect {
        let mut rows = rows.iter();
        for shown in self.messages {
            let message = match shown.message {
                Some(message) => Some(message),
                None => rows.next().and_then(|row| row.as_ref().and_then(decode_row)),
            };
            if let Some(message) = message {
                self.view.messages.push(InboxMessage { seq: shown.seq, expires_at: shown.expires_at, message });
            }
        }
        Effect::Answer { ask: self.ask, told: Ok(PeopleTold::Inbox(self.view)) }
    }

    pub(super) fn failed(self, why: String) -> Effect {
        Effect::Answer { ask: self.ask, told: Err(PeopleError::Unavailable(why)) }
    }
}

impl Partition {
    pub(super) fn show(&mut self, ask: AskId, what: PeopleAsk, now: Timestamp) {
        let PeopleAsk::Inbox { uid, platform, after, limit } = what;
        let mut view = InboxView { epoch: self.epoch_of(&uid), ..InboxView::default() };
        self.expire_of(&uid, now);
        let (mut messages, mut keys): (Vec<Shown>, Vec<RowKey>) = (Vec::new(), Vec::new());
        if let Some(user) = self.users.get(uid.as_str()) {
            view.seats = user
                .state
                .seats
                .iter()
                .filter(|seat| platform.as_ref().is_none_or(|platform| seat.platform == *platform))
                .map(|seat| SeatView {
                    platform: seat.platform.clone(),
                    device: seat.device_name().into(),
                    cursor: seat.cursor,
                    waiting: user.state.waiting(seat) as u64,
                    online: user.lives.iter().any(|live| live.is_on(seat)),
                    seen_at: seat.seen_at,
                })
                .collect();
            let is_asked = |slot: &&super::super::user_box::Slot| match &platform {
                None => true,
                Some(platform) => {
                    let mut seats = user.state.seats.iter().filter(|seat| seat.platform == *platform).peekable();
                    if seats.peek().is_none() { slot.is_for(platform) } else { seats.any(|seat| seat.waits_for(slot)) }
                }
            };
            let slots = user.state.slots.iter().filter(is_asked);
            view.stored = slots.clone().count() as u64;
            let mut bytes = 0_usize;
            for slot in slots.filter(|slot| slot.seq > after) {
                bytes = bytes.saturating_add(slot.bytes as usize);
                let is_full = messages.len() >= limit || bytes > self.settings.shown_bytes;
                if let Some(last) = messages.last().filter(|_| is_full) {
                    view.next_after = Some(last.seq);
                    break;
                }
                let key = row_key(&uid, slot);
                let message = unsaved_message(&self.unsaved, self.in_flight.as_ref(), &key);
                if message.is_none() {
                    keys.push(key);
                }
                messages.push(Shown { seq: slot.seq, expires_at: slot.expires_at, message });
            }
        }
        let showing = Box::new(Showing { ask, view, messages });
        if keys.is_empty() {
            self.effects.push(showing.answer(&[]));
        } else {
            self.next_token += 1;
            self.row_purposes.insert(self.next_token, (self.unsaved.saved, Purpose::Ask(showing)));
            self.effects.push(Effect::Rows { token: self.next_token, keys, is_page: false });
        }
        self.release(uid.as_str());
    }
}
