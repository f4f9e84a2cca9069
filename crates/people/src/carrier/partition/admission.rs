//! Admission: which sessions may connect, which ones they replace, where they resume. In order with all other work of the user.

use std::sync::Arc;

use whimbrel_model::people::{CloseCode, GatewayId, Platform, PlatformSettings, Uid};
use whimbrel_model::ports::{Admitted, AnnouncedSession, Arrival, ToGateway};
use whimbrel_model::{SessionsRule, Timestamp};

use super::{LiveSession, LoadedUser, PushPartition};
use crate::carrier::user_box::{InboxSlot, SEATS_MAX, Seat, seat_device};

pub(super) const REPLACED: &str = "another session of this platform took its place";
const REJECTED: &str = "this platform already has a session and rejects a second one";
const TOO_MANY: &str = "the user has too many sessions, and this one is the oldest";
const OTHER_EPOCH: &str = "the epoch of the inbox has changed; connect again and resume";

impl PushPartition {
    pub(super) fn arrive(&mut self, gateway: GatewayId, arrival: Arrival, now: Timestamp) {
        self.note_gateway(gateway, now);
        let settings = (self.rules)(&arrival.platform);
        let Arrival { session, uid, platform, device, resume, at: arrived } = arrival;
        let seat_device = seat_device(&settings, &device);
        if settings.sessions == SessionsRule::Reject
            && self.users.get(uid.as_str()).is_some_and(|user| {
                user.sessions.iter().any(|live| live.platform == platform && !live.is(gateway, session))
            })
        {
            let rejected = ToGateway::Rejected { session, code: CloseCode::Rejected, reason: REJECTED.into() };
            self.gateways.tell(gateway, rejected);
            return self.release(uid.as_str());
        }
        let live = LiveSession::new(gateway, session, platform, seat_device, arrived, now);
        self.end_rivals(&uid, &live, &settings, now);
        while let Some(user) = self.users.get_mut(uid.as_str())
            && user.sessions.len() >= SEATS_MAX
        {
            // The number of sessions of one user is bounded, over all platforms.
            let oldest = user.sessions.iter().enumerate().min_by_key(|(_, live)| live.arrived).map_or(0, |(at, _)| at);
            let old = user.sessions.remove(oldest);
            self.gateways.kick(&old, CloseCode::Replaced, TOO_MANY);
        }
        let rules = Arc::clone(&self.rules);
        let end = self.position.folded.max(self.position.began_at);
        let epoch = self.epoch_of(&uid);
        let expiry_now = self.clock.expiry_now(now);
        let Some((user, seat, mut gone)) = self.take_seat(&uid, &live.platform, &device, now) else { return };
        let mut cursor = user.state.seats[seat].cursor;
        let (mut resumed, mut why) = (false, None);
        let expired = user.state.expire(&*rules, expiry_now);
        gone.extend(expired.gone);
        if let Some(resume) = resume {
            if *resume.epoch != *epoch {
                why = Some("other_epoch");
            } else if resume.cursor > end {
                // No message has this number yet.
                why = Some("cursor_ahead");
            } else {
                // The device has acknowledged up to its cursor. Earlier messages are not sent again, even if the device has lost them.
                resumed = true;
                cursor = resume.cursor;
                gone.extend(user.state.acknowledge(seat, cursor, &*rules));
            }
        }
        let head = user.state.head(&user.state.seats[seat]);
        self.write_dead_letters(&uid, expired.exhausted);
        let admitted = Admitted { session, epoch, head, cursor, resumed, why };
        self.gateways.tell(gateway, ToGateway::Admitted(Box::new(admitted)));
        self.add_session(&uid, LiveSession { sent: cursor, ..live }, gone, now);
    }

    /// Takes the seat of an arriving session. Returns also the slots that no seat waits for any more. Old seats are removed only after
    /// every gateway had time to announce its sessions.
    fn take_seat(
        &mut self,
        uid: &Uid,
        platform: &Platform,
        device: &str,
        now: Timestamp,
    ) -> Option<(&mut LoadedUser, usize, Vec<InboxSlot>)> {
        let knows_all = self.clock.has_waited(self.settings.announce_wait, now);
        let since =
            if knows_all { now.saturating_sub(self.settings.keep_seats) } else { Timestamp::from_millis(i64::MIN) };
        let user = self.users.get_mut(uid.as_str())?;
        let sessions = &user.sessions;
        let is_taken = |seat: &Seat| sessions.iter().any(|live| live.is_on(seat));
        let (seat, gone) = user.state.seat_for(platform, device, now, since, &*self.rules, is_taken);
        user.state.seats[seat].seen_at = now;
        Some((user, seat, gone))
    }

    /// Adds the session to its user and sends what is next for it.
    fn add_session(&mut self, uid: &Uid, live: LiveSession, gone: Vec<InboxSlot>, now: Timestamp) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        user.sessions.reserve_exact(1);
        user.sessions.push(live);
        let at = user.sessions.len() - 1;
        self.unsaved.note(uid, user);
        self.unsaved.drop_rows(uid, gone);
        self.send_next(uid, at, now);
    }

    /// Ends the sessions that an arriving session replaces.
    fn end_rivals(&mut self, uid: &Uid, newcomer: &LiveSession, settings: &PlatformSettings, now: Timestamp) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        // Marks the seats as seen now, before their sessions end.
        user.mark_seen(now);
        let (code, reason) = replacement_code(settings);
        let gateways = &mut self.gateways;
        let mut kick = |live: &LiveSession| gateways.kick(live, code, reason);
        user.sessions.retain(|live| {
            // A second arrival of the same session only replaces that session, on any seat.
            let is_itself = live.is(newcomer.gateway, newcomer.session);
            let must_leave = live.is_rival(&newcomer.platform, &newcomer.device, settings);
            if must_leave && !is_itself {
                kick(live);
            }
            !(must_leave || is_itself)
        });
        if let SessionsRule::Many(most) = settings.sessions {
            let count =
                |sessions: &[LiveSession]| sessions.iter().filter(|live| live.platform == newcomer.platform).count();
            while count(&user.sessions) >= (most as usize).max(1) {
                let of_platform =
                    user.sessions.iter().enumerate().filter(|(_, live)| live.platform == newcomer.platform);
                let Some(oldest) = of_platform.min_by_key(|(_, live)| live.arrived).map(|(at, _)| at) else { break };
                kick(&user.sessions[oldest]);
                user.sessions.remove(oldest);
            }
        }
    }

    /// Takes a session that an earlier owner admitted. Of two that exclude each other the newer one stays; under `reject`, the older one.
    pub(super) fn announce(&mut self, gateway: GatewayId, announced: AnnouncedSession, now: Timestamp) {
        self.note_gateway(gateway, now);
        let AnnouncedSession { arrival, epoch, sent, acked } = announced;
        let settings = (self.rules)(&arrival.platform);
        let seat_name = seat_device(&settings, &arrival.device);
        if let Some((code, reason)) = self.must_end(gateway, &arrival, &epoch, &seat_name, &settings, now) {
            let kick = ToGateway::Kick { session: arrival.session, code, reason };
            self.gateways.tell(gateway, kick);
            // An earlier announcement may have been accepted under the previous rule.
            self.end_session(gateway, arrival.session, &arrival.uid, now);
            return self.release(arrival.uid.as_str());
        }
        let Arrival { session, uid, platform, device, at: arrived, .. } = arrival;
        let mut live = LiveSession::new(gateway, session, platform, seat_name, arrived, now);
        (live.sent, live.was_announced) = (sent, true);
        // An announcement does not reset the attempts, however often lost messages cause one.
        let before =
            self.users.get(uid.as_str()).and_then(|user| user.sessions.iter().find(|it| it.is(gateway, session)));
        live.attempt = before.map_or(0, |before| before.attempt);
        self.end_rivals(&uid, &live, &settings, now);
        let rules = Arc::clone(&self.rules);
        let expiry_now = self.clock.expiry_now(now);
        let Some((user, seat, mut gone)) = self.take_seat(&uid, &live.platform, &device, now) else { return };
        gone.extend(user.state.acknowledge(seat, acked.min(sent), &*rules));
        let expired = user.state.expire(&*rules, expiry_now);
        gone.extend(expired.gone);
        let state = &user.state.seats[seat];
        for slot in user.state.slots.iter().filter(|slot| slot.seq <= sent && state.waits_for(slot)) {
            live.window.push(slot.seq, slot.bytes);
        }
        self.write_dead_letters(&uid, expired.exhausted);
        self.add_session(&uid, live, gone, now);
    }

    /// The reason why an announced session must end, if it must.
    fn must_end(
        &self,
        gateway: GatewayId,
        arrival: &Arrival,
        epoch: &str,
        seat_name: &str,
        settings: &PlatformSettings,
        now: Timestamp,
    ) -> Option<(CloseCode, Arc<str>)> {
        let user = self.users.get(arrival.uid.as_str())?;
        let kicked = user.state.kicked(&arrival.platform, gateway, arrival.session, arrival.at, now);
        if let Some(reason) = kicked {
            return Some((CloseCode::Kicked, reason));
        }
        if *epoch != *self.epoch_of(&arrival.uid) {
            return Some((CloseCode::EpochChanged, OTHER_EPOCH.into()));
        }
        let goes_before_it = |live: &LiveSession| match settings.sessions {
            SessionsRule::Reject => live.arrived <= arrival.at,
            SessionsRule::Replace | SessionsRule::Many(_) => live.arrived > arrival.at,
        };
        let must_leave = user.sessions.iter().any(|live| {
            live.is_rival(&arrival.platform, seat_name, settings)
                && !live.is(gateway, arrival.session)
                && goes_before_it(live)
        });
        let (code, reason) = replacement_code(settings);
        must_leave.then(|| (code, reason.into()))
    }
}

impl LiveSession {
    /// Whether it excludes another session of that platform and seat.
    fn is_rival(&self, platform: &Platform, seat_name: &str, settings: &PlatformSettings) -> bool {
        let is_one_seat = !matches!(settings.sessions, SessionsRule::Many(_));
        self.platform == *platform && (is_one_seat || *self.device == *seat_name)
    }
}

/// The close code for a session that loses to another one of its platform.
fn replacement_code(settings: &PlatformSettings) -> (CloseCode, &'static str) {
    match settings.sessions {
        SessionsRule::Reject => (CloseCode::Rejected, REJECTED),
        SessionsRule::Replace | SessionsRule::Many(_) => (CloseCode::Replaced, REPLACED),
    }
}
