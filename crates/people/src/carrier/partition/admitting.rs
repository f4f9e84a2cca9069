//! Admitting: who may come in, who must leave for it, and where the newcomer reads on. It is decided here, in order with everything else
//! about the user, and nowhere else.

use std::sync::Arc;

use whimbrel_model::people::{CloseCode, GatewayId, Platform, PlatformSettings, Uid};
use whimbrel_model::ports::{Admitted, Announced, Arrival, ToGateway};
use whimbrel_model::push::expiry;
use whimbrel_model::{SessionsRule, Timestamp};

use super::super::user_box::{SEATS_MAX, Seat, Slot, seat_device};
use super::folding::millis;
use super::{Live, Partition, User};

pub(super) const REPLACED: &str = "another session of this platform took its place";
const REJECTED: &str = "this platform has a session already, and lets no second one in";
const TOO_MANY: &str = "the user has as many sessions as one may have, and this was the oldest";
const OTHER_EPOCH: &str = "the inbox is another than the one that this session began with; resume";

impl Partition {
    pub(super) fn arrive(&mut self, gateway: GatewayId, arrival: Arrival, now: Timestamp) {
        self.heard_from(gateway, now);
        let settings = (self.rules)(&arrival.platform);
        let Arrival { session, uid, platform, device, resume, at: arrived } = arrival;
        let seat_device = seat_device(&settings, &device);
        if settings.sessions == SessionsRule::Reject
            && self.users.get(uid.as_str()).is_some_and(|user| {
                user.lives.iter().any(|live| live.platform == platform && !live.is(gateway, session))
            })
        {
            let rejected = ToGateway::Rejected { session, code: CloseCode::Rejected, reason: REJECTED.into() };
            self.news.entry(gateway).or_default().push(rejected);
            return self.release(uid.as_str());
        }
        let live = Live::new(gateway, session, platform, seat_device, arrived, now);
        self.make_way(&uid, &live, &settings, now);
        while let Some(user) = self.users.get_mut(uid.as_str())
            && user.lives.len() >= SEATS_MAX
        {
            // However many platforms a device may name: one user has so many sessions at once.
            let oldest = user.lives.iter().enumerate().min_by_key(|(_, live)| live.arrived).map_or(0, |(at, _)| at);
            let old = user.lives.remove(oldest);
            let kick = ToGateway::Kick { session: old.session, code: CloseCode::Replaced, reason: TOO_MANY.into() };
            self.news.entry(old.gateway).or_default().push(kick);
        }
        let rules = Arc::clone(&self.rules);
        let end = self.folded.max(self.began_at);
        let epoch = self.epoch_of(&uid);
        let expiry_now = self.expiry_now(now);
        let Some((user, seat, mut gone)) = self.take_seat(&uid, &live.platform, &device, now) else { return };
        let mut cursor = user.state.seats[seat].cursor;
        let (mut resumed, mut why) = (false, None);
        let expired = user.state.expire(&*rules, expiry_now);
        gone.extend(expired.gone);
        if let Some(resume) = resume {
            if *resume.epoch != *epoch {
                why = Some("other_epoch");
            } else if resume.cursor > end {
                // A number that nobody was given yet.
                why = Some("cursor_ahead");
            } else {
                // What the device has it has acknowledged. What it acknowledged earlier and has lost since does not come again.
                resumed = true;
                cursor = resume.cursor;
                gone.extend(user.state.acknowledge(seat, cursor, &*rules));
            }
        }
        let head = user.state.head(&user.state.seats[seat]);
        self.bury(&uid, expired.exhausted);
        let admitted = Admitted { session, epoch, head, cursor, resumed, why };
        self.news.entry(gateway).or_default().push(ToGateway::Admitted(Box::new(admitted)));
        self.sit_down(&uid, Live { sent: cursor, ..live }, gone, now);
    }

    /// The seat of a newcomer, with its user and with what nobody waits for any more. Long forgotten ones go only when every gateway had
    /// the time to say who sits on them.
    fn take_seat(
        &mut self,
        uid: &Uid,
        platform: &Platform,
        device: &str,
        now: Timestamp,
    ) -> Option<(&mut User, usize, Vec<Slot>)> {
        let knows_all = now >= expiry(self.began, millis(self.settings.announce_wait));
        let since =
            if knows_all { now.saturating_sub(self.settings.keep_seats) } else { Timestamp::from_millis(i64::MIN) };
        let user = self.users.get_mut(uid.as_str())?;
        let lives = &user.lives;
        let is_taken = |seat: &Seat| lives.iter().any(|live| live.is_on(seat));
        let (seat, gone) = user.state.seat_for(platform, device, now, since, &*self.rules, is_taken);
        user.state.seats[seat].seen_at = now;
        Some((user, seat, gone))
    }

    /// The session is in, and reads on from what it has.
    fn sit_down(&mut self, uid: &Uid, live: Live, gone: Vec<Slot>, now: Timestamp) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        user.lives.reserve_exact(1);
        user.lives.push(live);
        let at = user.lives.len() - 1;
        user.is_dirty = true;
        self.unsaved.dirty.insert(uid.clone());
        self.unsaved.drop_rows(uid, gone);
        self.read_on(uid, at, now);
    }

    /// Whoever must leave for a newcomer is told so.
    fn make_way(&mut self, uid: &Uid, newcomer: &Live, settings: &PlatformSettings, now: Timestamp) {
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        // Who is there is seen, whoever of them has to leave now.
        user.see(now);
        let news = &mut self.news;
        let (code, reason) = over_for(settings);
        let mut kick = |live: &Live| {
            let kick = ToGateway::Kick { session: live.session, code, reason: reason.into() };
            news.entry(live.gateway).or_default().push(kick);
        };
        user.lives.retain(|live| {
            // The same session, arriving a second time, only takes its own place, on whatever seat it was.
            let is_itself = live.is(newcomer.gateway, newcomer.session);
            let must_leave = live.is_rival(&newcomer.platform, &newcomer.device, settings);
            if must_leave && !is_itself {
                kick(live);
            }
            !(must_leave || is_itself)
        });
        if let SessionsRule::Many(most) = settings.sessions {
            let count = |lives: &[Live]| lives.iter().filter(|live| live.platform == newcomer.platform).count();
            while count(&user.lives) >= (most as usize).max(1) {
                let of_platform = user.lives.iter().enumerate().filter(|(_, live)| live.platform == newcomer.platform);
                let Some(oldest) = of_platform.min_by_key(|(_, live)| live.arrived).map(|(at, _)| at) else { break };
                kick(&user.lives[oldest]);
                user.lives.remove(oldest);
            }
        }
    }

    /// A session that an earlier owner admitted. Of two that cannot both be, the newer one stays; where a second one is rejected, the older.
    pub(super) fn announce(&mut self, gateway: GatewayId, announced: Announced, now: Timestamp) {
        self.heard_from(gateway, now);
        let Announced { arrival, epoch, sent, acked } = announced;
        let settings = (self.rules)(&arrival.platform);
        let seat_name = seat_device(&settings, &arrival.device);
        if let Some((code, reason)) = self.why_over(gateway, &arrival, &epoch, &seat_name, &settings, now) {
            let kick = ToGateway::Kick { session: arrival.session, code, reason };
            self.news.entry(gateway).or_default().push(kick);
            // It may have been there, under a rule that has changed since.
            self.is_over(gateway, arrival.session, &arrival.uid, now);
            return self.release(arrival.uid.as_str());
        }
        let Arrival { session, uid, platform, device, at: arrived, .. } = arrival;
        let mut live = Live::new(gateway, session, platform, seat_name, arrived, now);
        (live.sent, live.was_announced) = (sent, true);
        // What it had of its tries it has had, however often it asks for what was lost on the way.
        let before = self.users.get(uid.as_str()).and_then(|user| user.lives.iter().find(|it| it.is(gateway, session)));
        live.attempt = before.map_or(0, |before| before.attempt);
        self.make_way(&uid, &live, &settings, now);
        let rules = Arc::clone(&self.rules);
        let expiry_now = self.expiry_now(now);
        let Some((user, seat, mut gone)) = self.take_seat(&uid, &live.platform, &device, now) else { return };
        gone.extend(user.state.acknowledge(seat, acked.min(sent), &*rules));
        let expired = user.state.expire(&*rules, expiry_now);
        gone.extend(expired.gone);
        let state = &user.state.seats[seat];
        for slot in user.state.slots.iter().filter(|slot| slot.seq <= sent && state.waits_for(slot)) {
            live.unacked.push_back((slot.seq, slot.bytes));
            live.unacked_bytes += slot.bytes as usize;
        }
        self.bury(&uid, expired.exhausted);
        self.sit_down(&uid, live, gone, now);
    }

    /// Why a session that is announced cannot go on, where it cannot.
    fn why_over(
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
        let goes_before_it = |live: &Live| match settings.sessions {
            SessionsRule::Reject => live.arrived <= arrival.at,
            SessionsRule::Replace | SessionsRule::Many(_) => live.arrived > arrival.at,
        };
        let must_leave = user.lives.iter().any(|live| {
            live.is_rival(&arrival.platform, seat_name, settings)
                && !live.is(gateway, arrival.session)
                && goes_before_it(live)
        });
        let (code, reason) = over_for(settings);
        must_leave.then(|| (code, reason.into()))
    }
}

impl Live {
    /// Whether it cannot be there together with another of that platform and seat.
    fn is_rival(&self, platform: &Platform, seat_name: &str, settings: &PlatformSettings) -> bool {
        let is_one_seat = !matches!(settings.sessions, SessionsRule::Many(_));
        self.platform == *platform && (is_one_seat || *self.device == *seat_name)
    }
}

/// What a session is told that must leave for another of its platform.
fn over_for(settings: &PlatformSettings) -> (CloseCode, &'static str) {
    match settings.sessions {
        SessionsRule::Reject => (CloseCode::Rejected, REJECTED),
        SessionsRule::Replace | SessionsRule::Many(_) => (CloseCode::Replaced, REPLACED),
    }
}
