//! Reading on: a seat is sent what it has not been sent yet, in order, within its window. Live delivery, resuming after a reconnect and
//! draining after an absence all end here.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Platform, Uid};
use whimbrel_model::ports::{At, Delivery, DeliveryPlace, InboxError, OutMessage, RowKey, ToGateway};
use whimbrel_model::push::expiry;

use super::super::rows::decode_row;
use super::super::settings::CarrierSettings;
use super::super::user_box::Seat;
use super::folding::row_key;
use super::loading::not_behind;
use super::{Effect, Live, Partition, Purpose, RowsToken, Trouble, unsaved_message};

impl Live {
    /// A session that was sent nothing yet. `device` is its seat's.
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

    /// One message may always be on its way, whatever its size.
    pub(super) fn has_room(&self, bytes: u32, settings: &CarrierSettings) -> bool {
        self.unacked.is_empty()
            || (self.unacked.len() < settings.window_messages
                && self.unacked_bytes + bytes as usize <= settings.window_bytes)
    }

    /// Notes that it is sent, and answers with the number before it.
    pub(super) fn sends(&mut self, seq: u64, bytes: u32, now: Timestamp) -> u64 {
        if self.unacked.is_empty() {
            self.since = now;
        }
        self.unacked.push_back((seq, bytes));
        self.unacked_bytes += bytes as usize;
        std::mem::replace(&mut self.sent, seq)
    }
}

impl Partition {
    /// Sends a session what is next for it, as far as its window goes; what is only in the store is asked for.
    pub(super) fn read_on(&mut self, uid: &Uid, at: usize, now: Timestamp) {
        let rules = Arc::clone(&self.rules);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(live) = user.lives.get_mut(at) else { return };
        if live.reading.is_some() {
            return;
        }
        let settings = rules(&live.platform);
        if !settings.store {
            // Nothing is kept for it: what others still wait for is not for it.
            live.is_behind = false;
            return;
        }
        // What has expired meanwhile is told before what comes after it.
        self.expire_of(uid, now);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(live) = user.lives.get_mut(at) else { return };
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
                    tell_lost(live, seat, slot.seq, news);
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
                tell_lost(live, seat, u64::MAX, news);
            }
        } else {
            live.is_behind = true;
            self.next_token += 1;
            live.reading = Some(self.next_token);
            let (seqs, keys) = wanted.into_iter().unzip();
            let (gateway, session) = (live.gateway, live.session);
            let page = Purpose::Page { uid: uid.clone(), gateway, session, seqs, again: false };
            self.row_purposes.insert(self.next_token, (self.unsaved.saved, page));
            self.effects.push(Effect::Rows { token: self.next_token, keys, is_page: true });
        }
        if news.is_empty() {
            let gateway = live.gateway;
            self.news.remove(&gateway);
        }
        self.watch(uid, at);
    }

    /// Sends again what was sent and not acknowledged.
    pub(super) fn send_again(&mut self, uid: &Uid, at: usize, now: Timestamp) {
        // What is of no use any more is not tried again.
        self.expire_of(uid, now);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(live) = user.lives.get_mut(at) else { return };
        live.since = now;
        let waits =
            |seq: u64| user.state.seats.iter().any(|seat| live.is_on(seat) && seq > seat.cursor.max(seat.floor));
        let slots = user.state.slots.iter().filter(|slot| live.unacked.iter().any(|(seq, _)| *seq == slot.seq));
        let slots = slots.filter(|slot| waits(slot.seq));
        let (seqs, keys): (Vec<u64>, Vec<RowKey>) = slots.map(|slot| (slot.seq, row_key(uid, slot))).unzip();
        // What it was sent and is stored no more (expired, replaced) does not have to be acknowledged.
        live.unacked.retain(|(seq, _)| seqs.contains(seq));
        live.unacked_bytes = live.unacked.iter().map(|(_, bytes)| *bytes as usize).sum();
        if seqs.is_empty() {
            // Its window is free again: it goes on with what is next.
            live.attempt = 0;
            return self.read_on(uid, at, now);
        }
        self.next_token += 1;
        let (gateway, session) = (live.gateway, live.session);
        let page = Purpose::Page { uid: uid.clone(), gateway, session, seqs, again: true };
        self.row_purposes.insert(self.next_token, (self.unsaved.saved, page));
        self.effects.push(Effect::Rows { token: self.next_token, keys, is_page: true });
        self.watch(uid, at);
    }

    pub(super) fn rows_found(
        &mut self,
        token: RowsToken,
        found: Result<At<Vec<Option<Bytes>>>, InboxError>,
        now: Timestamp,
    ) {
        let Some((least, purpose)) = self.row_purposes.remove(&token) else { return };
        let read_at = found.as_ref().map_or(0, |at| at.applied);
        let found = found.and_then(|at| not_behind(at, least));
        let rows = match found {
            Ok(rows) => rows,
            Err(error) => {
                if let Purpose::Ask(showing) = purpose {
                    self.effects.push(showing.failed(error.to_string()));
                }
                return self.resign(error.to_string());
            }
        };
        match purpose {
            Purpose::Page { uid, gateway, session, seqs, again } => {
                self.page_found(token, &uid, gateway, session, &seqs, &rows, read_at, again, now);
            }
            Purpose::Ask(showing) => self.effects.push(showing.answer(&rows)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are one page and whom it is for")]
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
        let Some(at) = user.lives.iter().position(|live| live.is(gateway, session)) else { return };
        let live = &mut user.lives[at];
        let Some(seat) = user.state.seats.iter().find(|seat| live.is_on(seat)) else { return };
        if !again {
            // A session that was announced again reads anew, from what it has: what it was reading before is not what comes next.
            if live.reading != Some(token) {
                return;
            }
            live.reading = None;
        }
        let news = self.news.entry(gateway).or_default();
        for (seq, row) in seqs.iter().zip(rows) {
            // What has gone meanwhile is not sent: it was acknowledged, or the seat is told that it lost it.
            let place = user.state.slots.binary_search_by_key(seq, |slot| slot.seq).ok();
            let Some(slot) = place.map(|place| &user.state.slots[place]).filter(|slot| seat.waits_for(slot)) else {
                continue;
            };
            let key = row_key(uid, slot);
            let unsaved = unsaved_message(&self.unsaved, self.in_flight.as_ref(), &key);
            let Some(message) = row.as_ref().and_then(decode_row).or(unsaved) else {
                // It was saved after the store had been read: it is read again, and so is what comes after it.
                if *seq > read_at {
                    break;
                }
                self.effects.push(Effect::Report(Trouble::RowMissing { uid: uid.clone(), seq: *seq }));
                continue;
            };
            if again {
                // Not sent by this owner, or acknowledged meanwhile.
                if !live.unacked.iter().any(|(unacked, _)| unacked == seq) {
                    continue;
                }
                let prev = live.unacked.iter().rev().map(|(seq, _)| *seq).find(|earlier| earlier < seq);
                let prev = prev.unwrap_or(seat.cursor);
                let place = DeliveryPlace::Stored { seq: *seq, prev };
                news.push(ToGateway::Deliver(Delivery { session, place, again: true, message }));
            } else if *seq > live.sent {
                tell_lost(live, seat, *seq, news);
                deliver(live, *seq, slot.bytes, message, now, news);
            } else {
                continue;
            }
            self.counts.delivered_stored += 1;
        }
        if again {
            self.watch(uid, at);
        } else {
            self.read_on(uid, at, now);
        }
    }

    /// Sees to it that somebody looks after the session when its time for an acknowledgement is over.
    pub(super) fn watch(&mut self, uid: &Uid, at: usize) {
        let Some(live) = self.users.get_mut(uid.as_str()).and_then(|user| user.lives.get_mut(at)) else { return };
        if live.unacked.is_empty() || live.is_watched || live.is_held {
            return;
        }
        live.is_watched = true;
        let deadline = expiry(live.since, (self.rules)(&live.platform).ack_timeout_ms);
        self.deadlines.push(std::cmp::Reverse((deadline, uid.clone(), live.gateway, live.session)));
    }
}

fn deliver(live: &mut Live, seq: u64, bytes: u32, message: Arc<OutMessage>, now: Timestamp, news: &mut Vec<ToGateway>) {
    let prev = live.sends(seq, bytes, now);
    let place = DeliveryPlace::Stored { seq, prev };
    news.push(ToGateway::Deliver(Delivery { session: live.session, place, again: false, message }));
}

/// Tells a session what it lost before that number and was not told yet.
fn tell_lost(live: &mut Live, seat: &Seat, before: u64, news: &mut Vec<ToGateway>) {
    for (from, to) in &seat.lost {
        if *to > live.sent && *to < before {
            let prev = std::mem::replace(&mut live.sent, *to);
            news.push(ToGateway::Truncated { session: live.session, from: *from, to: *to, prev });
        }
    }
}
