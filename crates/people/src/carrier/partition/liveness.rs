//! Liveness of sessions: acknowledgements, departures, dead gateways and deadlines.

use std::cmp::Reverse;
use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, GatewayId, Uid};
use whimbrel_model::ports::{ToCarrier, ToGateway};
use whimbrel_model::push::{PushRetry, PushTask, expiry};

use super::fold::{hash_of, millis};
use super::{CarrierEffect, CarrierIncident, CarrierRecord, KnownGateway, LoadedUser, PushPartition, QueuedWork};

const NO_ACK: &str = "messages were not acknowledged in time; connect again and resume";

/// Smaller backward steps of the wall clock are ignored: they delay nothing for long.
const CLOCK_BACK_MS: i64 = 1_000;

/// An acknowledgement updates the seat's `seen_at` only after this part of `keep_seats`. Otherwise each acknowledgement would move the
/// time in the store at which the box may be reclaimed.
const SEEN_ANEW_PART: u32 = 8;

impl LoadedUser {
    /// Marks every seat with a session as seen now. Must precede the end of a session: `seen_at` may date from the session's start.
    pub(super) fn mark_seen(&mut self, now: Timestamp) {
        let Self { state, sessions, .. } = self;
        for seat in state.seats.iter_mut().filter(|seat| sessions.iter().any(|live| live.is_on(seat))) {
            seat.seen_at = now;
        }
    }
}

impl PushPartition {
    pub(super) fn told(&mut self, gateway: GatewayId, messages: Vec<ToCarrier>, now: Timestamp) {
        for message in messages {
            match message {
                ToCarrier::Arrive(arrival) => {
                    self.pending_arrivals.queued(gateway, arrival.session);
                    self.work.push_back(QueuedWork::Arrive { gateway, arrival });
                }
                ToCarrier::Announce(announced) => {
                    self.pending_arrivals.queued(gateway, announced.arrival.session);
                    self.work.push_back(QueuedWork::Announce { gateway, announced });
                }
                ToCarrier::Ack { session, uid, upto } => self.acknowledged(gateway, session, &uid, upto, now),
                ToCarrier::Gone { session, uid } => self.gone(gateway, session, &uid, now),
            }
        }
    }

    fn acknowledged(&mut self, gateway: GatewayId, session: u64, uid: &Uid, upto: u64, now: Timestamp) {
        let rules = Arc::clone(&self.rules);
        // The session's announcement may still be queued.
        self.pending_arrivals.acknowledged(gateway, session, upto);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(at) = user.sessions.iter().position(|live| live.is(gateway, session)) else { return };
        let live = &mut user.sessions[at];
        // The gateway verified that the message was sent. An earlier owner that had not noticed its replacement may have sent it.
        live.sent = live.sent.max(upto);
        let before = live.unacked.len();
        while live.unacked.front().is_some_and(|(seq, _)| *seq <= upto) {
            let bytes = live.unacked.pop_front().map_or(0, |(_, bytes)| bytes);
            live.unacked_bytes -= bytes as usize;
        }
        self.counts.acknowledged += (before - live.unacked.len()) as u64;
        if before > live.unacked.len() {
            // The device makes progress: pending holds of retries no longer apply.
            live.since = now;
            live.attempt = 0;
            live.is_held = false;
        }
        let is_behind = live.is_behind;
        let seat = user.state.seats.iter().position(|seat| live.is_on(seat));
        if let Some(seat) = seat.filter(|seat| user.state.seats[*seat].cursor < upto) {
            let gone = user.state.acknowledge(seat, upto, &*rules);
            if user.state.seats[seat].seen_at < now.saturating_sub(self.settings.keep_seats / SEEN_ANEW_PART) {
                user.mark_seen(now);
            }
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            self.unsaved.drop_rows(uid, gone);
        }
        if is_behind {
            self.send_next(uid, at, now);
        }
        // Some messages may remain unacknowledged, and the hold for their retry no longer applies.
        self.watch(uid, at);
    }

    fn gone(&mut self, gateway: GatewayId, session: u64, uid: &Uid, now: Timestamp) {
        // Its arrival may still be queued.
        self.pending_arrivals.left(gateway, session);
        self.is_over(gateway, session, uid, now);
    }

    /// Ends a session, if it exists.
    pub(super) fn is_over(&mut self, gateway: GatewayId, session: u64, uid: &Uid, now: Timestamp) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(at) = user.sessions.iter().position(|live| live.is(gateway, session)) else { return };
        user.mark_seen(now);
        user.sessions.remove(at);
        user.is_dirty = true;
        self.unsaved.dirty.insert(uid.clone());
        self.release(uid.as_str());
    }

    /// Ends the sessions of gateways that are not in the list of live gateways.
    ///
    /// A gateway may send before a list contains it. It counts as dead only after `announce_wait` without appearing in a list.
    pub(super) fn living(&mut self, living: &[GatewayId], now: Timestamp) {
        let wait = millis(self.settings.announce_wait);
        let is_dead = |(id, known): &(&GatewayId, &KnownGateway)| {
            !living.contains(id) && (known.was_seen || expiry(known.heard_at, wait) <= now)
        };
        let dead: Vec<GatewayId> = self.gateways.iter().filter(is_dead).map(|(id, _)| *id).collect();
        for id in living {
            self.gateways.entry(*id).or_insert(KnownGateway { heard_at: now, was_seen: true }).was_seen = true;
        }
        self.gateways_died(&dead, now);
    }

    /// Notes a message of a gateway. Earlier incarnations of that gateway have ended, whatever the list contains.
    pub(super) fn note_gateway(&mut self, gateway: GatewayId, now: Timestamp) {
        self.gateways.entry(gateway).or_insert(KnownGateway { heard_at: now, was_seen: false });
        let is_earlier = |id: &&GatewayId| id.node == gateway.node && id.incarnation < gateway.incarnation;
        let earlier: Vec<GatewayId> = self.gateways.keys().filter(is_earlier).copied().collect();
        self.gateways_died(&earlier, now);
    }

    pub(super) fn gateways_died(&mut self, dead: &[GatewayId], now: Timestamp) {
        if dead.is_empty() {
            return;
        }
        self.gateways.retain(|id, _| !dead.contains(id));
        self.work.retain(|work| match work {
            QueuedWork::Arrive { gateway, .. } | QueuedWork::Announce { gateway, .. } => !dead.contains(gateway),
            _ => true,
        });
        self.pending_arrivals.died(dead);
        for (uid, user) in &mut self.users {
            if user.sessions.iter().any(|live| dead.contains(&live.gateway)) {
                user.mark_seen(now);
                user.sessions.retain(|live| !dead.contains(&live.gateway));
                // The next save removes it from memory.
                user.is_dirty = true;
                self.unsaved.dirty.insert(uid.clone());
            }
        }
    }

    /// After a large backward step of the wall clock, all waits restart from the new time. Otherwise they would last as long as the step.
    pub(super) fn handle_clock_step(&mut self, now: Timestamp) {
        let was = std::mem::replace(&mut self.clock, now);
        if was.as_millis().saturating_sub(now.as_millis()) < CLOCK_BACK_MS {
            return;
        }
        self.began = self.began.min(now);
        self.unsaved.last = self.unsaved.last.min(now);
        self.gateways.values_mut().for_each(|known| known.heard_at = known.heard_at.min(now));
        self.deadlines.clear();
        for (uid, user) in &mut self.users {
            user.state.forget_kicks(now);
            for live in &mut user.sessions {
                live.since = live.since.min(now);
                if live.is_watched {
                    let at = expiry(live.since, (self.rules)(&live.platform).ack_timeout_ms);
                    self.deadlines.push(Reverse((at, uid.clone(), live.gateway, live.session)));
                }
            }
        }
    }

    /// Handles the sessions whose acknowledgement deadline has passed.
    pub(super) fn watch_deadlines(&mut self, now: Timestamp) {
        while let Some(Reverse((at, ..))) = self.deadlines.peek()
            && *at <= now
        {
            let Some(Reverse((_, uid, gateway, session))) = self.deadlines.pop() else { return };
            self.deadline(&uid, gateway, session, now);
        }
    }

    fn deadline(&mut self, uid: &Uid, gateway: GatewayId, session: u64, now: Timestamp) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(at) = user.sessions.iter().position(|live| live.is(gateway, session)) else { return };
        let live = &mut user.sessions[at];
        if live.is_held {
            // The entry precedes a new announcement, which has handled this deadline.
            return;
        }
        live.is_watched = false;
        let (Some((first, _)), Some((last, _))) = (live.unacked.front().copied(), live.unacked.back().copied()) else {
            return;
        };
        let timeout = (self.rules)(&live.platform).ack_timeout_ms;
        if expiry(live.since, timeout) > now {
            return self.watch(uid, at);
        }
        let Some(pause) = self.settings.retry_after.get(live.attempt as usize).copied() else {
            self.counts.no_acks += 1;
            let platform = live.platform.clone();
            if let Some(seat) = user.state.seats.iter_mut().find(|seat| live.is_on(seat)) {
                seat.exhausted = seat.exhausted.max(last);
            }
            let kick = ToGateway::Kick { session, code: CloseCode::NoAck, reason: NO_ACK.into() };
            self.news.entry(gateway).or_default().push(kick);
            user.mark_seen(now);
            user.sessions.remove(at);
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            self.effects.push(CarrierEffect::Report(CarrierIncident::NoAck { uid: uid.clone(), platform }));
            return self.release(uid.as_str());
        };
        live.attempt += 1;
        live.is_held = true;
        let (platform, device, attempt) = (live.platform.clone(), String::from(&*live.device), live.attempt);
        // The id contains the time: an id that fired is not held again, and any owner may have used the same numbers before.
        let id = format!(
            "push-{:016x}-{platform}-{:016x}-{first}-{last}-{attempt}-{session:x}-{:x}-{:x}",
            hash_of(uid.as_str()),
            hash_of(&device),
            gateway.incarnation,
            now.as_millis()
        );
        let task = PushRetry { uid: uid.as_str().to_owned(), platform, device, upto: last, attempt };
        let due = expiry(now, millis(pause));
        self.outbound.push(CarrierRecord::Hold { id, uid: uid.clone(), task: PushTask::Retry(task), due });
    }
}
