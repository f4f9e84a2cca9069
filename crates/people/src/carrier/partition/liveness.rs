//! Liveness of sessions: acknowledgements, departures, dead gateways and deadlines.

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, GatewayId, Uid};
use whimbrel_model::ports::ToCarrier;
use whimbrel_model::push::{PushRetry, PushTask, expiry};

use super::fold::{hash_of, millis};
use super::{CarrierIncident, CarrierRecord, PushPartition};

const NO_ACK: &str = "messages were not acknowledged in time; connect again and resume";

/// An acknowledgement updates the seat's `seen_at` only after this part of `keep_seats`. Otherwise each acknowledgement would move the
/// time in the store at which the box may be reclaimed.
const SEEN_ANEW_PART: u32 = 8;

impl PushPartition {
    pub(super) fn told(&mut self, gateway: GatewayId, messages: Vec<ToCarrier>, now: Timestamp) {
        for message in messages {
            match self.queue.take_from(gateway, message) {
                Some(ToCarrier::Ack { session, uid, upto }) => self.acknowledged(gateway, session, &uid, upto, now),
                Some(ToCarrier::Gone { session, uid }) => self.end_session(gateway, session, &uid, now),
                Some(ToCarrier::Arrive(_) | ToCarrier::Announce(_)) | None => {}
            }
        }
    }

    fn acknowledged(&mut self, gateway: GatewayId, session: u64, uid: &Uid, upto: u64, now: Timestamp) {
        let Some((user, at)) = self.users.session_mut(uid, gateway, session) else { return };
        let live = &mut user.sessions[at];
        // The gateway verified that the message was sent. An earlier owner that had not noticed its replacement may have sent it.
        live.sent = live.sent.max(upto);
        let acknowledged = live.window.acknowledge(upto);
        self.counts.acknowledged += acknowledged as u64;
        if acknowledged > 0 {
            live.since = now;
            live.reset_retries();
        }
        let is_behind = live.is_behind;
        let seat = user.state.seats.iter().position(|seat| live.is_on(seat));
        if let Some(seat) = seat.filter(|seat| user.state.seats[*seat].cursor < upto) {
            let gone = user.state.acknowledge(seat, upto, &*self.rules);
            if user.state.seats[seat].seen_at < now.saturating_sub(self.settings.keep_seats / SEEN_ANEW_PART) {
                user.mark_seen(now);
            }
            self.unsaved.note(uid, user);
            self.unsaved.drop_rows(uid, gone);
        }
        if is_behind {
            self.send_next(uid, at, now);
        }
        // Some messages may remain unacknowledged, and the hold for their retry no longer applies.
        self.watch(uid, at);
    }

    /// Ends a session, if it exists.
    pub(super) fn end_session(&mut self, gateway: GatewayId, session: u64, uid: &Uid, now: Timestamp) {
        let Some((user, at)) = self.users.session_mut(uid, gateway, session) else { return };
        user.mark_seen(now);
        user.sessions.remove(at);
        self.unsaved.note(uid, user);
        self.release(uid.as_str());
    }

    /// Notes a message of a gateway.
    pub(super) fn note_gateway(&mut self, gateway: GatewayId, now: Timestamp) {
        let earlier = self.gateways.heard(gateway, now);
        self.gateways_died(&earlier, now);
    }

    pub(super) fn gateways_died(&mut self, dead: &[GatewayId], now: Timestamp) {
        if dead.is_empty() {
            return;
        }
        self.gateways.forget(dead);
        self.queue.remove_gateways(dead);
        for (uid, user) in self.users.iter_mut() {
            if user.sessions.iter().any(|live| dead.contains(&live.gateway)) {
                user.mark_seen(now);
                user.sessions.retain(|live| !dead.contains(&live.gateway));
                // The next save removes it from memory.
                self.unsaved.note(uid, user);
            }
        }
    }

    /// After a large backward step of the wall clock, all waits restart from the new time. Otherwise they would last as long as the step.
    pub(super) fn handle_clock_step(&mut self, now: Timestamp) {
        if !self.clock.goes_back(now) {
            return;
        }
        self.unsaved.restart_wait(now);
        self.gateways.restart_waits(now);
        self.deadlines.clear();
        for (uid, user) in self.users.iter_mut() {
            user.state.forget_kicks(now);
            for live in &mut user.sessions {
                live.since = live.since.min(now);
                if live.is_watched {
                    let at = expiry(live.since, (self.rules)(&live.platform).ack_timeout_ms);
                    self.deadlines.push(at, uid, live);
                }
            }
        }
    }

    /// Handles the sessions whose acknowledgement deadline has passed.
    pub(super) fn watch_deadlines(&mut self, now: Timestamp) {
        while let Some((uid, gateway, session)) = self.deadlines.pop_due(now) {
            self.deadline(&uid, gateway, session, now);
        }
    }

    fn deadline(&mut self, uid: &Uid, gateway: GatewayId, session: u64, now: Timestamp) {
        let Some((user, at)) = self.users.session_mut(uid, gateway, session) else { return };
        let live = &mut user.sessions[at];
        if live.is_held {
            // The entry precedes a new announcement, which has handled this deadline.
            return;
        }
        live.is_watched = false;
        let (Some(first), Some(last)) = (live.window.first(), live.window.last()) else { return };
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
            self.gateways.kick(live, CloseCode::NoAck, NO_ACK);
            self.report(CarrierIncident::NoAck { uid: uid.clone(), platform });
            return self.end_session(gateway, session, uid, now);
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
