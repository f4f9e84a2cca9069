//! Delivery of stored messages: sends a seat its next messages in order, within its window. Live delivery, resuming after a reconnect
//! and draining a backlog all end here.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Platform, Uid};
use whimbrel_model::ports::{AtOffset, Delivery, DeliveryPosition, InboxError, OutMessage, RowKey, ToGateway};
use whimbrel_model::push::expiry;

use super::super::rows::decode_row;
use super::super::settings::CarrierSettings;
use super::super::user_box::Seat;
use super::box_loader::not_behind;
use super::fold::row_key;
use super::{CarrierEffect, CarrierIncident, LiveSession, PushPartition, RowPurpose, RowsToken, unsaved_message};

impl LiveSession {
    /// A session that was sent nothing yet. `device` is the seat's.
    pub(super) fn new(
        gateway: GatewayId,
        session: u64,
        platform: Platform,
        device: Box<str>,
        arrived: Timestamp,
        now: Timestamp,
    ) -> Self {
        Self {
            gateway,
            session,
            platform,
            device,
            arrived,
            was_announced: false,
            sent: 0,
            unacked: VecDeque::new(),
            unacked_bytes: 0,
            since: now,
            attempt: 0,
            is_watched: false,
            is_held: false,
            reading: None,
            is_behind: true,
        }
    }

    pub(super) fn is_on(&self, seat: &Seat) -> bool {
        self.platform == seat.platform && self.device == seat.device
    }

    pub(super) fn is(&self, gateway: GatewayId, session: u64) -> bool {
        self.gateway == gateway && self.session == session
    }

    /// Whether the window has room. One message is always allowed, whatever its size.
    pub(super) fn has_room(&self, bytes: u32, settings: &CarrierSettings) -> bool {
        self.unacked.is_empty()
            || (self.unacked.len() < settings.window_messages
                && self.unacked_bytes + bytes as usize <= settings.window_bytes)
    }

    /// Records that a message is sent, and returns the number of the message before it.
    pub(super) fn sends(&mut self, seq: u64, bytes: u32, now: Timestamp) -> u64 {
        if self.unacked.is_empty() {
            self.since = now;
        }
        self.unacked.push_back((seq, bytes));
        self.unacked_bytes += bytes as usize;
        std::mem::replace(&mut self.sent, seq)
    }
}

impl PushPartition {
    /// Sends a session its next messages, up to its window. Requests the rows that only the store has.
    pub(super) fn send_next(&mut self, uid: &Uid, at: usize, now: Timestamp) {
        let rules = Arc::clone(&self.rules);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(live) = user.sessions.get_mut(at) else { return };
        if live.reading.is_some() {
            return;
        }
        let settings = rules(&live.platform);
        if !settings.store {
            // The platform stores nothing; slots for other platforms are not for it.
            live.is_behind = false;
            return;
        }
        // Losses by expiry are reported before the messages that follow.
        self.expire_of(uid, now);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(live) = user.sessions.get_mut(at) else { return };
        let Some(seat) = user.state.seats.iter().find(|seat| live.is_on(seat)) else { return };
        let mut wanted: Vec<(u64, RowKey)> = Vec::new();
        let (mut planned, mut planned_bytes) = (0, 0);
        let news = self.news.entry(live.gateway).or_default();
        let mut is_done = true;
        let from = user.state.slots.partition_point(|slot| slot.seq <= live.sent);
        for slot in user.state.slots.range(from..) {
            if !seat.waits_for(slot) || slot.is_expired_for(&settings, now) {
                continue;
            }
            let fits = live.unacked.len() + planned < self.settings.window_messages
                && live.unacked_bytes + planned_bytes + slot.bytes as usize <= self.settings.window_bytes;
            if !(fits || live.unacked.is_empty() && planned == 0) || planned >= self.settings.page_messages {
                is_done = false;
                break;
            }
            let key = row_key(uid, slot);
            let message =
                if wanted.is_empty() { unsaved_message(&self.unsaved, self.in_flight.as_ref(), &key) } else { None };
            match message {
                Some(message) => {
                    report_losses(live, seat, slot.seq, news);
                    deliver(live, slot.seq, slot.bytes, message, now, news);
                    self.counts.delivered_stored += 1;
                }
                None => {
                    planned += 1;
                    planned_bytes += slot.bytes as usize;
                    wanted.push((slot.seq, key));
                }
            }
        }
        if wanted.is_empty() {
            live.is_behind = !is_done;
            if is_done {
                report_losses(live, seat, u64::MAX, news);
            }
        } else {
            live.is_behind = true;
            self.next_token += 1;
            live.reading = Some(self.next_token);
            let (seqs, keys) = wanted.into_iter().unzip();
            let (gateway, session) = (live.gateway, live.session);
            let page = RowPurpose::Page { uid: uid.clone(), gateway, session, seqs, again: false };
            self.row_purposes.insert(self.next_token, (self.unsaved.saved, page));
            self.effects.push(CarrierEffect::Rows { token: self.next_token, keys, is_page: true });
        }
        if news.is_empty() {
            let gateway = live.gateway;
            self.news.remove(&gateway);
        }
        self.watch(uid, at);
    }

    /// Sends the unacknowledged messages again.
    pub(super) fn send_again(&mut self, uid: &Uid, at: usize, now: Timestamp) {
        // Expired messages are not retried.
        self.expire_of(uid, now);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(live) = user.sessions.get_mut(at) else { return };
        live.since = now;
        let waits =
            |seq: u64| user.state.seats.iter().any(|seat| live.is_on(seat) && seq > seat.cursor.max(seat.floor));
        let slots = user.state.slots.iter().filter(|slot| live.unacked.iter().any(|(seq, _)| *seq == slot.seq));
        let slots = slots.filter(|slot| waits(slot.seq));
        let (seqs, keys): (Vec<u64>, Vec<RowKey>) = slots.map(|slot| (slot.seq, row_key(uid, slot))).unzip();
        // Messages that are no longer stored (expired, replaced) need no acknowledgement.
        live.unacked.retain(|(seq, _)| seqs.contains(seq));
        live.unacked_bytes = live.unacked.iter().map(|(_, bytes)| *bytes as usize).sum();
        if seqs.is_empty() {
            // The window is free again.
            live.attempt = 0;
            return self.send_next(uid, at, now);
        }
        self.next_token += 1;
        let (gateway, session) = (live.gateway, live.session);
        let page = RowPurpose::Page { uid: uid.clone(), gateway, session, seqs, again: true };
        self.row_purposes.insert(self.next_token, (self.unsaved.saved, page));
        self.effects.push(CarrierEffect::Rows { token: self.next_token, keys, is_page: true });
        self.watch(uid, at);
    }

    pub(super) fn rows_found(
        &mut self,
        token: RowsToken,
        found: Result<AtOffset<Vec<Option<Bytes>>>, InboxError>,
        now: Timestamp,
    ) {
        let Some((least, purpose)) = self.row_purposes.remove(&token) else { return };
        let read_at = found.as_ref().map_or(0, |at| at.applied);
        let found = found.and_then(|at| not_behind(at, least));
        let rows = match found {
            Ok(rows) => rows,
            Err(error) => {
                if let RowPurpose::Ask(view) = purpose {
                    self.effects.push(view.failed(error.to_string()));
                }
                return self.resign(error.to_string());
            }
        };
        match purpose {
            RowPurpose::Page { uid, gateway, session, seqs, again } => {
                self.page_found(token, &uid, gateway, session, &seqs, &rows, read_at, again, now);
            }
            RowPurpose::Ask(view) => self.effects.push(view.answer(&rows)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one page and its recipient")]
    fn page_found(
        &mut self,
        token: RowsToken,
        uid: &Uid,
        gateway: GatewayId,
        session: u64,
        seqs: &[u64],
        rows: &[Option<Bytes>],
        read_at: u64,
        again: bool,
        now: Timestamp,
    ) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(at) = user.sessions.iter().position(|live| live.is(gateway, session)) else { return };
        let live = &mut user.sessions[at];
        let Some(seat) = user.state.seats.iter().find(|seat| live.is_on(seat)) else { return };
        if !again {
            // After another announcement the session reads from its new position; this page is obsolete.
            if live.reading != Some(token) {
                return;
            }
            live.reading = None;
        }
        let news = self.news.entry(gateway).or_default();
        for (seq, row) in seqs.iter().zip(rows) {
            // A slot that was removed meanwhile is skipped: it was acknowledged, or its loss is reported.
            let place = user.state.slots.binary_search_by_key(seq, |slot| slot.seq).ok();
            let Some(slot) = place.map(|place| &user.state.slots[place]).filter(|slot| seat.waits_for(slot)) else {
                continue;
            };
            let key = row_key(uid, slot);
            let unsaved = unsaved_message(&self.unsaved, self.in_flight.as_ref(), &key);
            let Some(message) = row.as_ref().and_then(decode_row).or(unsaved) else {
                // The row was saved after the store was read. This one and the following ones are read again.
                if *seq > read_at {
                    break;
                }
                self.effects.push(CarrierEffect::Report(CarrierIncident::RowMissing { uid: uid.clone(), seq: *seq }));
                continue;
            };
            if again {
                // This owner did not send it, or it was acknowledged meanwhile.
                if !live.unacked.iter().any(|(unacked, _)| unacked == seq) {
                    continue;
                }
                let prev = live.unacked.iter().rev().map(|(seq, _)| *seq).find(|earlier| earlier < seq);
                let prev = prev.unwrap_or(seat.cursor);
                let place = DeliveryPosition::Stored { seq: *seq, prev };
                news.push(ToGateway::Deliver(Delivery { session, place, again: true, message }));
            } else if *seq > live.sent {
                report_losses(live, seat, *seq, news);
                deliver(live, *seq, slot.bytes, message, now, news);
            } else {
                continue;
            }
            self.counts.delivered_stored += 1;
        }
        if again {
            self.watch(uid, at);
        } else {
            self.send_next(uid, at, now);
        }
    }

    /// Sets the acknowledgement deadline of a session that has unacknowledged messages.
    pub(super) fn watch(&mut self, uid: &Uid, at: usize) {
        let Some(live) = self.users.get_mut(uid.as_str()).and_then(|user| user.sessions.get_mut(at)) else { return };
        if live.unacked.is_empty() || live.is_watched || live.is_held {
            return;
        }
        live.is_watched = true;
        let deadline = expiry(live.since, (self.rules)(&live.platform).ack_timeout_ms);
        self.deadlines.push(std::cmp::Reverse((deadline, uid.clone(), live.gateway, live.session)));
    }
}

fn deliver(
    live: &mut LiveSession,
    seq: u64,
    bytes: u32,
    message: Arc<OutMessage>,
    now: Timestamp,
    news: &mut Vec<ToGateway>,
) {
    let prev = live.sends(seq, bytes, now);
    let place = DeliveryPosition::Stored { seq, prev };
    news.push(ToGateway::Deliver(Delivery { session: live.session, place, again: false, message }));
}

/// Reports the losses of a seat below that number that were not reported yet.
fn report_losses(live: &mut LiveSession, seat: &Seat, before: u64, news: &mut Vec<ToGateway>) {
    for (from, to) in &seat.lost {
        if *to > live.sent && *to < before {
            let prev = std::mem::replace(&mut live.sent, *to);
            news.push(ToGateway::Truncated { session: live.session, from: *from, to: *to, prev });
        }
    }
}
