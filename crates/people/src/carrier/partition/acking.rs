//! Acknowledging: what sessions have, who left, and who does not answer.

use std::cmp::Reverse;
use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, GatewayId, Uid};
use whimbrel_model::ports::{ToCarrier, ToGateway};
use whimbrel_model::push::{PushRetry, PushTask, expiry};

use super::folding::{hash_of, millis};
use super::{Effect, Known, Letter, Partition, Trouble, User, Work};

/// What a device that never acknowledges is told.
const NO_ACK: &str = "what you were sent was not acknowledged in time; connect again and resume";

/// A clock that was set back by less makes nobody wait for long.
const CLOCK_BACK_MS: i64 = 1_000;

/// A seat in use is noted as seen anew when this part of the time is over for which it is kept, and not at each acknowledgement: the store
/// would have to move the time at which it may be reclaimed each time.
const SEEN_ANEW_PART: u32 = 8;

impl User {
    /// Every seat that somebody is on counts as seen now. Whoever ends a session says so before, or its seat would count from when it began.
    pub(super) fn see(&mut self, now: Timestamp) {
        let Self { state, lives, .. } = self;
        for seat in state.seats.iter_mut().filter(|seat| lives.iter().any(|live| live.is_on(seat))) {
            seat.seen_at = now;
        }
    }
}

impl Partition {
    pub(super) fn told(&mut self, gateway: GatewayId, messages: Vec<ToCarrier>, now: Timestamp) {
        for message in messages {
            match message {
                ToCarrier::Arrive(arrival) => {
                    self.coming.queued(gateway, arrival.session);
                    self.work.push_back(Work::Arrive { gateway, arrival });
                }
                ToCarrier::Announce(announced) => {
                    self.coming.queued(gateway, announced.arrival.session);
                    self.work.push_back(Work::Announce { gateway, announced });
                }
                ToCarrier::Ack { session, uid, upto } => self.acknowledged(gateway, session, &uid, upto, now),
                ToCarrier::Gone { session, uid } => self.gone(gateway, session, &uid, now),
            }
        }
    }

    fn acknowledged(&mut self, gateway: GatewayId, session: u64, uid: &Uid, upto: u64, now: Timestamp) {
        let rules = Arc::clone(&self.rules);
        // Its announcement may still be on its way in.
        self.coming.acknowledged(gateway, session, upto);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(at) = user.lives.iter().position(|live| live.is(gateway, session)) else { return };
        let live = &mut user.lives[at];
        // The gateway has checked that it was sent: what goes beyond came from an earlier owner that did not know yet that it was none.
        live.sent = live.sent.max(upto);
        let before = live.unacked.len();
        while live.unacked.front().is_some_and(|(seq, _)| *seq <= upto) {
            let bytes = live.unacked.pop_front().map_or(0, |(_, bytes)| bytes);
            live.unacked_bytes -= bytes as usize;
        }
        self.counts.acknowledged += (before - live.unacked.len()) as u64;
        if before > live.unacked.len() {
            // It answers: what was held to try it again is of no use.
            live.since = now;
            live.attempt = 0;
            live.is_held = false;
        }
        let is_behind = live.is_behind;
        let seat = user.state.seats.iter().position(|seat| live.is_on(seat));
        if let Some(seat) = seat.filter(|seat| user.state.seats[*seat].cursor < upto) {
            let gone = user.state.acknowledge(seat, upto, &*rules);
            if user.state.seats[seat].seen_at < now.saturating_sub(self.settings.keep_seats / SEEN_ANEW_PART) {
                user.see(now);
            }
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            self.unsaved.drop_rows(uid, gone);
        }
        if is_behind {
            self.read_on(uid, at, now);
        }
        // It may not have acknowledged all, and what was held for that counts no more.
        self.watch(uid, at);
    }

    fn gone(&mut self, gateway: GatewayId, session: u64, uid: &Uid, now: Timestamp) {
        // It may still be on its way in.
        self.coming.left(gateway, session);
        self.is_over(gateway, session, uid, now);
    }

    /// The session is over, where it was among those that are there.
    pub(super) fn is_over(&mut self, gateway: GatewayId, session: u64, uid: &Uid, now: Timestamp) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Some(at) = user.lives.iter().position(|live| live.is(gateway, session)) else { return };
        user.see(now);
        user.lives.remove(at);
        user.is_dirty = true;
        self.unsaved.dirty.insert(uid.clone());
        self.release(uid.as_str());
    }

    /// Sessions of gateways that live no more are over, all at once.
    ///
    /// A gateway may speak before a picture shows it: one that no picture had yet is gone only when it has had the time to be shown.
    pub(super) fn living(&mut self, living: &[GatewayId], now: Timestamp) {
        let wait = millis(self.settings.announce_wait);
        let is_dead = |(id, known): &(&GatewayId, &Known)| {
            !living.contains(id) && (known.was_seen || expiry(known.heard_at, wait) <= now)
        };
        let dead: Vec<GatewayId> = self.gateways.iter().filter(is_dead).map(|(id, _)| *id).collect();
        for id in living {
            self.gateways.entry(*id).or_insert(Known { heard_at: now, was_seen: true }).was_seen = true;
        }
        self.gateways_died(&dead, now);
    }

    /// A gateway spoke. Earlier incarnations of it are over, whatever a picture says.
    pub(super) fn heard_from(&mut self, gateway: GatewayId, now: Timestamp) {
        self.gateways.entry(gateway).or_insert(Known { heard_at: now, was_seen: false });
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
            Work::Arrive { gateway, .. } | Work::Announce { gateway, .. } => !dead.contains(gateway),
            _ => true,
        });
        self.coming.died(dead);
        for (uid, user) in &mut self.users {
            if user.lives.iter().any(|live| dead.contains(&live.gateway)) {
                user.see(now);
                user.lives.retain(|live| !dead.contains(&live.gateway));
                // It leaves the memory when it is saved.
                user.is_dirty = true;
                self.unsaved.dirty.insert(uid.clone());
            }
        }
    }

    /// A wall clock that was set back by much would make everything wait for as long that waits for a time: it waits for a time from now on.
    pub(super) fn look_at_the_clock(&mut self, now: Timestamp) {
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
            for live in &mut user.lives {
                live.since = live.since.min(now);
                if live.is_watched {
                    let at = expiry(live.since, (self.rules)(&live.platform).ack_timeout_ms);
                    self.deadlines.push(Reverse((at, uid.clone(), live.gateway, live.session)));
                }
            }
        }
    }

    /// Those who had their time for an acknowledgement: tried again later, or closed.
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
        let Some(at) = user.lives.iter().position(|live| live.is(gateway, session)) else { return };
        let live = &mut user.lives[at];
        if live.is_held {
            // A deadline of before it was announced again: it has had this one.
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
            user.see(now);
            user.lives.remove(at);
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            self.effects.push(Effect::Report(Trouble::NoAck { uid: uid.clone(), platform }));
            return self.release(uid.as_str());
        };
        live.attempt += 1;
        live.is_held = true;
        let (platform, device, attempt) = (live.platform.clone(), String::from(&*live.device), live.attempt);
        // Of this moment: the same may have been tried again before, by this owner or another, and an id that fired is not held again.
        let id = format!(
            "push-{:016x}-{platform}-{:016x}-{first}-{last}-{attempt}-{session:x}-{:x}-{:x}",
            hash_of(uid.as_str()),
            hash_of(&device),
            gateway.incarnation,
            now.as_millis()
        );
        let task = PushRetry { uid: uid.as_str().to_owned(), platform, device, upto: last, attempt };
        let due = expiry(now, millis(pause));
        self.letters.push(Letter::Hold { id, uid: uid.clone(), task: PushTask::Retry(task), due });
    }
}
