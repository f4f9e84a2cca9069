//! Queries about a user's inbox: what is stored, and for which seats.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{
    InboxMessage, InboxView, OutMessage, PeopleError, PeopleQuery, PeopleReply, RowKey, SeatView,
};

use super::fold::row_key;
use super::row_requests::RowPurpose;
use super::{CarrierEffect, PushPartition, QueryId};
use crate::carrier::rows::decode_row;
use crate::carrier::user_box::InboxSlot;

/// An answer that waits for its rows.
pub(super) struct PendingView {
    ask: QueryId,
    view: InboxView,
    messages: Vec<ViewEntry>,
}

struct ViewEntry {
    seq: u64,
    expires_at: Timestamp,
    /// `None`: taken from the requested rows, in order.
    message: Option<Arc<OutMessage>>,
}

impl PendingView {
    /// Completes the answer with the requested rows, in order. Leaves out messages whose row no longer exists.
    pub(super) fn answer(mut self, rows: &[Option<Bytes>]) -> CarrierEffect {
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
        CarrierEffect::Answer { ask: self.ask, told: Ok(PeopleReply::Inbox(self.view)) }
    }

    pub(super) fn failed(self, why: String) -> CarrierEffect {
        CarrierEffect::Answer { ask: self.ask, told: Err(PeopleError::Unavailable(why)) }
    }
}

impl PushPartition {
    pub(super) fn show(&mut self, ask: QueryId, what: PeopleQuery, now: Timestamp) {
        let PeopleQuery::Inbox { uid, platform, after, limit } = what;
        let mut view = InboxView { epoch: self.epoch_of(&uid), ..InboxView::default() };
        self.expire_of(&uid, now);
        let (mut messages, mut keys): (Vec<ViewEntry>, Vec<RowKey>) = (Vec::new(), Vec::new());
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
                    online: user.sessions.iter().any(|live| live.is_on(seat)),
                    seen_at: seat.seen_at,
                })
                .collect();
            let is_asked = |slot: &&InboxSlot| match &platform {
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
                let message = self.unsaved.message(&key);
                if message.is_none() {
                    keys.push(key);
                }
                messages.push(ViewEntry { seq: slot.seq, expires_at: slot.expires_at, message });
            }
        }
        let view = Box::new(PendingView { ask, view, messages });
        if keys.is_empty() {
            self.effects.push(view.answer(&[]));
        } else {
            let (_, effect) = self.rows.request(self.unsaved.saved, RowPurpose::Ask(view), keys);
            self.effects.push(effect);
        }
        self.release(uid.as_str());
    }
}
