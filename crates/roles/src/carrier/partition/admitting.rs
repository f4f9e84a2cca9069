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
        let Some((user, seat, mut gone)) = self.take_seat(&uid, &live.platform, &device, now) else { return };
        let mut cursor = user.state.seats[seat].cursor;
        let (mut resumed, mut why) = (false, None);
        gone.extend(user.state.expire(&*rules, now));
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
        let mut kick = |live: &Live| {
            // The same session, arriving a second time, only takes its own place.
            if !live.is(newcomer.gateway, newcomer.session) {
                let (session, reason) = (live.session, REPLACED.into());
                let kick = ToGateway::Kick { session, code: CloseCode::Replaced, reason };
                news.entry(live.gateway).or_default().push(kick);
            }
        };
        let is_rival = |live: &Live| live.platform == newcomer.platform && live.device == newcomer.device;
        user.lives.retain(|live| {
            let must_leave = match settings.sessions {
                SessionsRule::Many(_) => is_rival(live),
                SessionsRule::Replace | SessionsRule::Reject => live.platform == newcomer.platform,
            };
            if must_leave {
                kick(live);
            }
            !must_leave
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

    /// A session that an earlier owner admitted. Of two that cannot both be, the newer one stays.
    pub(super) fn announce(&mut self, gateway: GatewayId, announced: Announced, now: Timestamp) {
        self.heard_from(gateway, now);
        let Announced { arrival, epoch, sent, acked } = announced;
        let Arrival { session, uid, platform, device, at: arrived, .. } = arrival;
        if *epoch != *self.epoch_of(&uid) {
            let kick = ToGateway::Kick { session, code: CloseCode::EpochChanged, reason: OTHER_EPOCH.into() };
            self.news.entry(gateway).or_default().push(kick);
            return self.release(uid.as_str());
        }
        let settings = (self.rules)(&platform);
        let seat_name = seat_device(&settings, &device);
        let is_older = self.users.get(uid.as_str()).is_some_and(|user| {
            user.lives.iter().any(|live| {
                live.platform == platform
                    && live.device == seat_name
                    && !live.is(gateway, session)
                    && live.arrived > arrived
            })
        });
        if is_older {
            let kick = ToGateway::Kick { session, code: CloseCode::Replaced, reason: REPLACED.into() };
            self.news.entry(gateway).or_default().push(kick);
            return self.release(uid.as_str());
        }
        let mut live = Live::new(gateway, session, platform, seat_name, arrived, now);
        live.sent = sent;
        self.make_way(&uid, &live, &settings, now);
        let rules = Arc::clone(&self.rules);
        let Some((user, seat, mut gone)) = self.take_seat(&uid, &live.platform, &device, now) else { return };
        gone.extend(user.state.acknowledge(seat, acked.min(sent), &*rules));
        gone.extend(user.state.expire(&*rules, now));
        let state = &user.state.seats[seat];
        for slot in user.state.slots.iter().filter(|slot| slot.seq <= sent && state.waits_for(slot)) {
            live.unacked.push_back((slot.seq, slot.bytes));
            live.unacked_bytes += slot.bytes as usize;
        }
        self.sit_down(&uid, live, gone, now);
    }
}
