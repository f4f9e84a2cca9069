//! Delivery of stored messages: sends a seat its next messages in order, within its window. Live delivery, resuming after a reconnect
//! and draining a backlog all end here.

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{AtOffset, Delivery, DeliveryPosition, InboxError, OutMessage, RowKey, ToGateway};
use whimbrel_model::push::expiry;

use super::box_loader::not_behind;
use super::fold::row_key;
use super::row_requests::{RowPurpose, RowRequest, SessionPage};
use super::{AckDeadlines, CarrierEffect, CarrierIncident, KnownGateways, LiveSession, PushPartition, RowsToken};
use crate::carrier::rows::decode_row;
use crate::carrier::user_box::{InboxSlot, PlatformRules, Seat};

impl PushPartition {
    /// Sends a session its next messages, up to its window. Requests the rows that only the store has.
    pub(super) fn send_next(&mut self, uid: &Uid, at: usize, now: Timestamp) {
        let Some(live) = self.users.get_mut(uid.as_str()).and_then(|user| user.sessions.get_mut(at)) else { return };
        if live.reading.is_some() {
            return;
        }
        let settings = (self.rules)(&live.platform);
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
        let mut is_done = true;
        let from = user.state.slots.partition_point(|slot| slot.seq <= live.sent);
        for slot in user.state.slots.range(from..) {
            if !seat.waits_for(slot) || slot.is_expired_for(&settings, now) {
                continue;
            }
            let bytes = planned_bytes + slot.bytes as usize;
            if !live.window.fits(planned + 1, bytes, &self.settings) || planned >= self.settings.page_messages {
                is_done = false;
                break;
            }
            let key = row_key(uid, slot);
            match self.unsaved.message(&key).filter(|_| wanted.is_empty()) {
                Some(message) => {
                    report_losses(live, seat, slot.seq, &mut self.gateways);
                    deliver(live, slot, message, now, &mut self.gateways);
                    self.counts.delivered_stored += 1;
                }
                None => {
                    (planned, planned_bytes) = (planned + 1, bytes);
                    wanted.push((slot.seq, key));
                }
            }
        }
        live.is_behind = !is_done || !wanted.is_empty();
        if !live.is_behind {
            report_losses(live, seat, u64::MAX, &mut self.gateways);
        }
        if !wanted.is_empty() {
            let (seqs, keys) = wanted.into_iter().unzip();
            let (gateway, session) = (live.gateway, live.session);
            let page = SessionPage { uid: uid.clone(), gateway, session, seqs, is_again: false };
            let (token, effect) = self.rows.request(self.unsaved.saved, RowPurpose::Page(page), keys);
            live.reading = Some(token);
            self.effects.push(effect);
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
        let slots = user.state.slots.iter().filter(|slot| live.window.contains(slot.seq));
        let slots = slots.filter(|slot| waits(slot.seq));
        let (seqs, keys): (Vec<u64>, Vec<RowKey>) = slots.map(|slot| (slot.seq, row_key(uid, slot))).unzip();
        // Messages that are no longer stored (expired, replaced) need no acknowledgement.
        live.window.retain(&seqs);
        if seqs.is_empty() {
            // The window is free again.
            live.attempt = 0;
            return self.send_next(uid, at, now);
        }
        let page = SessionPage { uid: uid.clone(), gateway: live.gateway, session: live.session, seqs, is_again: true };
        let (_, effect) = self.rows.request(self.unsaved.saved, RowPurpose::Page(page), keys);
        self.effects.push(effect);
        self.watch(uid, at);
    }

    pub(super) fn rows_found(
        &mut self,
        token: RowsToken,
        found: Result<AtOffset<Vec<Option<Bytes>>>, InboxError>,
        now: Timestamp,
    ) {
        let Some(RowRequest { saved, purpose }) = self.rows.take(token) else { return };
        let read_at = found.as_ref().map_or(0, |at| at.applied);
        let rows = match found.and_then(|at| not_behind(at, saved)) {
            Ok(rows) => rows,
            Err(error) => {
                if let RowPurpose::Ask(view) = purpose {
                    self.effects.push(view.failed(error.to_string()));
                }
                return self.resign(error.to_string());
            }
        };
        match purpose {
            RowPurpose::Page(page) => self.page_found(token, &page, &rows, read_at, now),
            RowPurpose::Ask(view) => self.effects.push(view.answer(&rows)),
        }
    }

    fn page_found(
        &mut self,
        token: RowsToken,
        page: &SessionPage,
        rows: &[Option<Bytes>],
        read_at: u64,
        now: Timestamp,
    ) {
        let SessionPage { uid, gateway, session, .. } = page;
        let Some((user, at)) = self.users.session_mut(uid, *gateway, *session) else { return };
        let live = &mut user.sessions[at];
        let Some(seat) = user.state.seats.iter().find(|seat| live.is_on(seat)) else { return };
        if !page.is_again {
            // After another announcement the session reads from its new position; this page is obsolete.
            if live.reading != Some(token) {
                return;
            }
            live.reading = None;
        }
        let mut again = Vec::new();
        for (seq, row) in page.seqs.iter().zip(rows) {
            // A slot that was removed meanwhile is skipped: it was acknowledged, or its loss is reported.
            let place = user.state.slots.binary_search_by_key(seq, |slot| slot.seq).ok();
            let Some(slot) = place.map(|place| &user.state.slots[place]).filter(|slot| seat.waits_for(slot)) else {
                continue;
            };
            let unsaved = || self.unsaved.message(&row_key(uid, slot));
            let Some(message) = row.as_ref().and_then(decode_row).or_else(unsaved) else {
                // The row was saved after the store was read. This one and the following ones are read again.
                if *seq > read_at {
                    break;
                }
                self.effects.push(CarrierEffect::Report(CarrierIncident::RowMissing { uid: uid.clone(), seq: *seq }));
                continue;
            };
            if page.is_again {
                // This owner did not send it, or it was acknowledged meanwhile.
                if !live.window.contains(*seq) {
                    continue;
                }
                let place =
                    DeliveryPosition::Stored { seq: *seq, prev: live.window.before(*seq).unwrap_or(seat.cursor) };
                let delivery = Delivery { session: *session, place, again: true, message };
                again.push(ToGateway::Deliver(delivery));
            } else if *seq > live.sent {
                report_losses(live, seat, *seq, &mut self.gateways);
                deliver(live, slot, message, now, &mut self.gateways);
            } else {
                continue;
            }
            self.counts.delivered_stored += 1;
        }
        if page.is_again {
            self.gateways.tell_all(*gateway, again);
            self.watch(uid, at);
        } else {
            self.send_next(uid, at, now);
        }
    }

    /// Sets the acknowledgement deadline of a session that has unacknowledged messages.
    pub(super) fn watch(&mut self, uid: &Uid, at: usize) {
        let Some(live) = self.users.get_mut(uid.as_str()).and_then(|user| user.sessions.get_mut(at)) else { return };
        let since = live.since;
        if !live.window.is_empty() {
            watch_from(live, since, uid, &*self.rules, &mut self.deadlines);
        }
    }
}

/// Sets the acknowledgement deadline of a session from that time, unless it has a deadline or a pending retry.
pub(super) fn watch_from(
    live: &mut LiveSession,
    since: Timestamp,
    uid: &Uid,
    rules: &PlatformRules,
    deadlines: &mut AckDeadlines,
) {
    if !live.is_watched && !live.is_held {
        live.is_watched = true;
        deadlines.push(expiry(since, rules(&live.platform).ack_timeout_ms), uid, live);
    }
}

/// Sends a stored message to a session.
pub(super) fn deliver(
    live: &mut LiveSession,
    slot: &InboxSlot,
    message: Arc<OutMessage>,
    now: Timestamp,
    gateways: &mut KnownGateways,
) {
    let prev = live.sends(slot.seq, slot.bytes, now);
    let place = DeliveryPosition::Stored { seq: slot.seq, prev };
    let delivery = Delivery { session: live.session, place, again: false, message };
    gateways.tell(live.gateway, ToGateway::Deliver(delivery));
}

/// Reports the losses of a seat below that number that were not reported yet.
fn report_losses(live: &mut LiveSession, seat: &Seat, before: u64, gateways: &mut KnownGateways) {
    for (from, to) in &seat.lost {
        if *to > live.sent && *to < before {
            let prev = std::mem::replace(&mut live.sent, *to);
            gateways.tell(live.gateway, ToGateway::Truncated { session: live.session, from: *from, to: *to, prev });
        }
    }
}
