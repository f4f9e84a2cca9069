//! A user's box: what is stored for the user, and how far each seat has come. Pure.
//!
//! A box has *slots*, one for each stored message that somebody still waits for, in the order of their numbers, and *seats*. The messages
//! themselves are rows beside it. A slot goes when every seat that it is for has acknowledged it (a platform that the message names and that
//! has no seat yet has not), or by age, bound or collapse key; what a seat loses so is noted, to be told. And it has the user's latest kicks.

pub(super) mod coding;
mod exhausted;
mod kicks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use whimbrel_model::people::{Platform, PlatformSettings};
use whimbrel_model::push::PushMessage;
use whimbrel_model::{SessionsRule, Timestamp};

pub use coding::BadBox;
pub use exhausted::{Exhausted, Expired};
pub use kicks::{KICK_KEPT, KICKS_MAX, Kick};

/// Seats of one user; beyond, the one that was not seen for the longest time is forgotten.
pub const SEATS_MAX: usize = 32;
/// Ids of their senders' own that a box remembers, so that a repeat is seen as one. A push that has an origin beside its id takes two: of
/// the latest half as many pushes that brought an id each is known, which is what is promised.
pub const IDS_REMEMBERED: usize = 128;

/// The seat of a device that says no name, where there may be many: no device can have it as its name, and it is not the name of the one seat
/// that a platform may have had before.
const NAMELESS: &str = "\0";

/// Messages for a user of whom no device was ever seen: as for a platform that nobody configured.
const UNSEEN_BOUND: usize = whimbrel_model::people::MAX_STORED_DEFAULT as usize;

/// How platforms keep things.
pub type PlatformRules = dyn Fn(&Platform) -> Arc<PlatformSettings> + Send + Sync;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserBox {
    pub seats: Vec<Seat>,
    /// By number.
    pub slots: VecDeque<Slot>,
    /// Hashes of the latest brought ids, the oldest first.
    pub ids: VecDeque<u64>,
    /// The oldest first.
    pub kicks: Vec<Kick>,
    /// The time by which the store finds it among those of no use any more: what it was when it was written, whatever is set now.
    pub found_under: Option<Timestamp>,
}

/// What a platform, or one of its devices, has of the box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    pub platform: Platform,
    /// What [`seat_device`] says: empty where the platform has one seat.
    pub device: Box<str>,
    /// It has acknowledged everything up to here.
    pub cursor: u64,
    /// Nothing up to here is for it any more: beyond its bound.
    pub floor: u64,
    pub seen_at: Timestamp,
    /// It was sent everything up to here, did not acknowledge all of it, and has no retries left. Zero: there was no such message.
    pub exhausted: u64,
    /// What it lost above its cursor, both ends included, in order. Between two ranges something waits for it: so there is at most one more
    /// of them than what waits, which its platform's `max_stored` bounds.
    pub lost: Vec<(u64, u64)>,
}

/// A stored message in a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub seq: u64,
    pub sent_at: Timestamp,
    pub expires_at: Timestamp,
    /// Of which platforms; `None`: all.
    pub filter: Option<Arc<Filter>>,
    /// The hash of its collapse key; zero: none.
    pub collapse: u64,
    /// Bytes of its row.
    pub bytes: u32,
    /// Its row is shared with other users.
    pub shared: bool,
}

/// Which platforms a message is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Filter {
    pub only: Option<Vec<Platform>>,
    pub except: Vec<Platform>,
}

impl Filter {
    pub fn of(message: &PushMessage) -> Option<Arc<Self>> {
        let is_for_all = message.platforms.is_none() && message.except_platforms.is_empty();
        (!is_for_all)
            .then(|| Arc::new(Self { only: message.platforms.clone(), except: message.except_platforms.clone() }))
    }

    fn lets(&self, platform: &Platform) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(platform)) && !self.except.contains(platform)
    }
}

impl Slot {
    pub fn is_for(&self, platform: &Platform) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.lets(platform))
    }

    /// Whether it is of no use to a platform any more: the message's own time is over, or the platform's.
    pub fn is_expired_for(&self, settings: &PlatformSettings, now: Timestamp) -> bool {
        let age = now.as_millis().saturating_sub(self.sent_at.as_millis());
        self.expires_at <= now || u64::try_from(age).is_ok_and(|age| age >= settings.ttl_ms)
    }
}

impl Seat {
    pub fn new(platform: Platform, device: &str, now: Timestamp) -> Self {
        Self { platform, device: device.into(), cursor: 0, floor: 0, seen_at: now, exhausted: 0, lost: Vec::new() }
    }

    /// Its device's own name, where it has one.
    pub fn device_name(&self) -> &str {
        device_name(&self.device)
    }

    /// Whether the message of that slot still waits for this seat.
    pub fn waits_for(&self, slot: &Slot) -> bool {
        slot.seq > self.cursor.max(self.floor) && slot.is_for(&self.platform)
    }
}

/// The device that a seat of a platform has: its own name only where there may be many.
pub fn seat_device(settings: &PlatformSettings, device: &str) -> Box<str> {
    match settings.sessions {
        SessionsRule::Many(_) => among_many(device).into(),
        SessionsRule::Replace | SessionsRule::Reject => Box::default(),
    }
}

/// The device's own name, of what [`seat_device`] says; empty where there is none.
pub fn device_name(seat_device: &str) -> &str {
    if seat_device == NAMELESS { "" } else { seat_device }
}

fn among_many(device: &str) -> &str {
    if device.is_empty() { NAMELESS } else { device }
}

impl UserBox {
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty() && self.slots.is_empty() && self.ids.is_empty() && self.kicks.is_empty()
    }

    pub fn seat(&self, platform: &Platform, device: &str) -> Option<usize> {
        self.seats.iter().position(|seat| seat.platform == *platform && *seat.device == *device)
    }

    /// The seat of a device that comes, and what nobody waits for any more then.
    ///
    /// Where the platform's rule has changed since, a seat is left that bears no name of the rule as it is now: the one seat of a platform
    /// that may have many by now, or those of the devices of one that has one by now. Whoever comes and has no seat takes it over with all
    /// that it waits for, rather its own. A platform that has one seat keeps no other. A new seat has acknowledged nothing: it starts with
    /// what is still stored for it. `is_taken` says which seats must stay; of the others those not seen since `since` are forgotten.
    pub fn seat_for(
        &mut self,
        platform: &Platform,
        device: &str,
        now: Timestamp,
        since: Timestamp,
        rules: &PlatformRules,
        is_taken: impl Fn(&Seat) -> bool,
    ) -> (usize, Vec<Slot>) {
        let settings = rules(platform);
        let name = seat_device(&settings, device);
        let has_one = !matches!(settings.sessions, SessionsRule::Many(_));
        let is_left = |seat: &Seat| {
            seat.platform == *platform && seat.device.is_empty() != has_one && seat.device != name && !is_taken(seat)
        };
        let seats_before = self.seats.len();
        if self.seat(platform, &name).is_none() {
            let left = self.seats.iter().enumerate().filter(|(_, seat)| is_left(seat));
            let heir =
                left.min_by_key(|(_, seat)| (*seat.device != *among_many(device), seat.cursor)).map(|(at, _)| at);
            if let Some(heir) = heir {
                self.seats[heir].device.clone_from(&name);
            }
        }
        let is_own = |seat: &Seat| seat.platform == *platform && seat.device == name;
        self.seats
            .retain(|seat| is_own(seat) || is_taken(seat) || (seat.seen_at >= since && !(has_one && is_left(seat))));
        let seats_kept = self.seats.len();
        let at = self.seat_or_new(platform, &name, now, is_taken);
        // A seat that went, here or for the new one, may have been the last that waited.
        let has_gone = seats_kept < seats_before || self.seats.len() == seats_kept && seats_kept == SEATS_MAX;
        (at, if has_gone { self.settle(rules, u64::MAX) } else { Vec::new() })
    }

    /// The seat of that name, made where it is not there.
    fn seat_or_new(
        &mut self,
        platform: &Platform,
        device: &str,
        now: Timestamp,
        is_taken: impl Fn(&Seat) -> bool,
    ) -> usize {
        if let Some(at) = self.seat(platform, device) {
            return at;
        }
        while self.seats.len() >= SEATS_MAX {
            // Rather one that waits for nothing, rather one of the same platform, rather the one longest away.
            let rank = |seat: &Seat| (self.waiting(seat) > 0, seat.platform != *platform, seat.seen_at);
            let away = self.seats.iter().enumerate().filter(|(_, seat)| !is_taken(seat));
            let Some(at) = away.min_by_key(|(_, seat)| rank(seat)).map(|(at, _)| at) else { break };
            self.seats.remove(at);
        }
        // Most users have one, and there are many users.
        self.seats.reserve_exact(1);
        self.seats.push(Seat::new(platform.clone(), device, now));
        self.seats.len() - 1
    }

    /// Whether a message under one of these brought ids was taken lately. They are remembered in any case: what comes under another one
    /// of them next is a repeat too.
    pub fn is_repeat(&mut self, ids: impl Iterator<Item = u64> + Clone) -> bool {
        let is_repeat = ids.clone().any(|id| self.ids.contains(&id));
        for id in ids {
            if !self.ids.contains(&id) {
                if self.ids.len() >= IDS_REMEMBERED {
                    self.ids.pop_front();
                }
                self.ids.push_back(id);
            }
        }
        is_repeat
    }

    /// Stores a message whose number is above all others. What must go for it (an older one under its collapse key, what is beyond a
    /// bound) is taken out and handed over: its rows go too.
    pub fn store(&mut self, slot: Slot, rules: &PlatformRules) -> Vec<Slot> {
        let mut gone = Vec::new();
        if self.slots.back().is_some_and(|last| last.seq >= slot.seq) {
            return gone;
        }
        if slot.collapse != 0
            // One for other platforms is another matter: who waits for it would get nothing in its place.
            && let Some(at) = self
                .slots
                .iter()
                .position(|older| older.collapse == slot.collapse && older.filter == slot.filter)
        {
            gone.extend(self.lose(at, rules));
        }
        // A device that resumed may have it already: an earlier owner sent it.
        let keeps = |seat: &Seat| slot.is_for(&seat.platform) && rules(&seat.platform).store;
        let has_it = !self.is_awaited_by_a_seat(&slot, rules) && self.seats.iter().any(keeps);
        self.slots.push_back(slot);
        if has_it {
            gone.extend(self.settle(rules, u64::MAX));
        }
        self.keep_bounds(rules, &mut gone);
        gone
    }

    /// Notes that a message is not stored, or not any more, for whoever would have waited for it. Answers whether anybody would have.
    pub fn miss(&mut self, slot: &Slot, rules: &PlatformRules) -> bool {
        let mut is_missed = false;
        for place in 0..self.seats.len() {
            if self.seats[place].waits_for(slot) && rules(&self.seats[place].platform).store {
                self.note_loss(place, slot.seq);
                is_missed = true;
            }
        }
        is_missed
    }

    /// Takes a slot out although somebody may wait for it; who does has lost it.
    fn lose(&mut self, at: usize, rules: &PlatformRules) -> Option<Slot> {
        let slot = self.slots.remove(at)?;
        self.miss(&slot, rules);
        Some(slot)
    }

    fn note_loss(&mut self, seat: usize, seq: u64) {
        let Self { seats, slots, .. } = self;
        let seat = &mut seats[seat];
        let at = seat.lost.partition_point(|(from, _)| *from <= seq);
        if at > 0 && seat.lost[at - 1].1 >= seq {
            return;
        }
        seat.lost.insert(at, (seq, seq));
        // A range never spans what the seat still gets: its end would run ahead of that.
        let is_apart = |seat: &Seat, low: u64, high: u64| {
            let from = slots.partition_point(|slot| slot.seq <= low);
            slots.range(from..).take_while(|slot| slot.seq < high).any(|slot| seat.waits_for(slot))
        };
        if at + 1 < seat.lost.len() && !is_apart(seat, seq, seat.lost[at + 1].0) {
            seat.lost[at].1 = seat.lost.remove(at + 1).1;
        }
        if at > 0 && !is_apart(seat, seat.lost[at - 1].1, seq) {
            seat.lost[at - 1].1 = seat.lost.remove(at).1;
        }
    }

    /// Each seat waits for at most what its platform says, and the box has at most what its seats and the platforms without one may have.
    /// A box that is within all bounds, as nearly all are, is not looked through.
    fn keep_bounds(&mut self, rules: &PlatformRules, gone: &mut Vec<Slot>) {
        let (mut most, mut has_given_up) = (0, false);
        for place in 0..self.seats.len() {
            let bound = rules(&self.seats[place].platform).max_stored as usize;
            most += bound;
            if self.slots.len() <= bound {
                continue;
            }
            let seat = &self.seats[place];
            let waiting: Vec<u64> =
                self.slots.iter().filter(|slot| seat.waits_for(slot)).map(|slot| slot.seq).collect();
            if waiting.len() > bound {
                has_given_up = true;
                self.give_up(place, &waiting[..waiting.len() - bound]);
            }
        }
        if has_given_up {
            gone.extend(self.settle(rules, u64::MAX));
        }
        if self.slots.len() <= most || (self.seats.is_empty() && self.slots.len() <= UNSEEN_BOUND) {
            return;
        }
        let most = (most + self.unseated_bound(rules)).max(1);
        while self.slots.len() > most {
            // The seats are within their bounds: rather what none of them waits for.
            let at = self.slots.iter().position(|slot| !self.is_awaited_by_a_seat(slot, rules)).unwrap_or(0);
            gone.extend(self.lose(at, rules));
        }
    }

    fn is_awaited_by_a_seat(&self, slot: &Slot, rules: &PlatformRules) -> bool {
        self.seats.iter().any(|seat| seat.waits_for(slot) && rules(&seat.platform).store)
    }

    /// These, the oldest that the seat waits for, are not for it any more.
    fn give_up(&mut self, seat: usize, seqs: &[u64]) {
        for seq in seqs {
            // First below the floor, so that nothing before it counts as still to come.
            self.seats[seat].floor = *seq;
            self.note_loss(seat, *seq);
        }
    }

    /// How many slots may wait for platforms that have no seat.
    fn unseated_bound(&self, rules: &PlatformRules) -> usize {
        let named = self.slots.iter().filter_map(|slot| slot.filter.as_ref()?.only.as_ref()).flatten();
        let without_seat = named.filter(|platform| !self.seats.iter().any(|seat| seat.platform == **platform));
        let bound = without_seat.map(|platform| rules(platform).max_stored).max();
        let default = if self.seats.is_empty() { UNSEEN_BOUND } else { 0 };
        (bound.unwrap_or(0) as usize).max(default)
    }

    /// Removes what has expired; a seat that waited for it has lost it.
    pub fn expire(&mut self, rules: &PlatformRules, now: Timestamp) -> Expired {
        self.forget_kicks(now);
        let exhausted = self.expiring_exhausted(rules, now);
        let mut gone = Vec::new();
        while let Some(at) = self.slots.iter().position(|slot| slot.expires_at <= now) {
            gone.extend(self.lose(at, rules));
        }
        let mut has_given_up = !gone.is_empty();
        for place in 0..self.seats.len() {
            let seat = &self.seats[place];
            let settings = rules(&seat.platform);
            // A platform's own time may be shorter. What it is too old for is its oldest, as long as clocks do not jump.
            let waits = self.slots.iter().filter(|slot| seat.waits_for(slot));
            let old: Vec<u64> =
                waits.take_while(|slot| slot.is_expired_for(&settings, now)).map(|slot| slot.seq).collect();
            has_given_up |= !old.is_empty();
            self.give_up(place, &old);
        }
        if has_given_up {
            gone.extend(self.settle(rules, u64::MAX));
        }
        Expired { gone, exhausted }
    }

    /// The seat has everything up to there. Only forwards.
    pub fn acknowledge(&mut self, seat: usize, upto: u64, rules: &PlatformRules) -> Vec<Slot> {
        let Some(seat) = self.seats.get_mut(seat) else { return Vec::new() };
        if upto <= seat.cursor {
            return Vec::new();
        }
        seat.cursor = upto;
        seat.lost.retain(|(_, to)| *to > upto);
        self.settle(rules, upto)
    }

    /// Takes out what nobody waits for any more, up to that number.
    fn settle(&mut self, rules: &PlatformRules, upto: u64) -> Vec<Slot> {
        let Self { seats, slots, .. } = self;
        let keeping: Vec<(&Seat, bool)> = seats.iter().map(|seat| (seat, rules(&seat.platform).store)).collect();
        let is_awaited = |slot: &Slot| {
            let mut is_for_any = false;
            for (seat, stores) in &keeping {
                if *stores && slot.is_for(&seat.platform) {
                    is_for_any = true;
                    if seat.waits_for(slot) {
                        return true;
                    }
                }
            }
            let named = slot.filter.as_ref().and_then(|filter| filter.only.as_ref());
            match named {
                // A platform that is named and has no seat yet has not acknowledged.
                Some(named) => named.iter().any(|platform| {
                    slot.is_for(platform)
                        && rules(platform).store
                        && !keeping.iter().any(|(seat, _)| seat.platform == *platform)
                }),
                None => !is_for_any,
            }
        };
        let mut gone = Vec::new();
        // Nearly always it is the oldest that go.
        while slots.front().is_some_and(|slot| slot.seq <= upto && !is_awaited(slot)) {
            gone.extend(slots.pop_front());
        }
        let looked_at = slots.partition_point(|slot| slot.seq <= upto);
        if slots.range(..looked_at).all(&is_awaited) {
            return gone;
        }
        let later = slots.split_off(looked_at);
        let kept = std::mem::take(slots).into_iter().filter_map(|slot| {
            if is_awaited(&slot) {
                return Some(slot);
            }
            gone.push(slot);
            None
        });
        let mut kept: VecDeque<Slot> = kept.collect();
        if kept.is_empty() {
            kept = later;
        } else {
            kept.extend(later);
        }
        *slots = kept;
        gone
    }

    /// Everything that is stored goes, unread.
    pub fn wipe(&mut self) -> Vec<Slot> {
        self.seats.iter_mut().for_each(|seat| seat.lost.clear());
        std::mem::take(&mut self.slots).into()
    }

    /// Seats that were not seen since then are forgotten.
    pub fn forget_seats(&mut self, since: Timestamp) {
        self.seats.retain(|seat| seat.seen_at >= since);
        if self.seats.is_empty() && self.slots.is_empty() {
            self.ids.clear();
        }
    }

    /// When nothing in it is of use any more, where a seat counts for so long after it was last seen. `None`: it has nothing but names.
    pub fn reclaim_at(&self, seat_kept_ms: i64) -> Option<Timestamp> {
        let slots = self.slots.iter().map(|slot| slot.expires_at);
        let seats =
            self.seats.iter().map(|seat| Timestamp::from_millis(seat.seen_at.as_millis().saturating_add(seat_kept_ms)));
        let last = slots.chain(seats).chain(self.kicks.iter().map(|kick| kick.until)).max();
        // A message without retries becomes a dead letter when it expires, and not when its seat is forgotten.
        let exhausted = self.slots.iter().filter(|slot| self.seats.iter().any(|seat| seat.is_exhausted(slot)));
        exhausted.map(|slot| slot.expires_at).chain(last).min()
    }

    /// How many messages wait for a seat.
    pub fn waiting(&self, seat: &Seat) -> usize {
        self.slots.iter().filter(|slot| seat.waits_for(slot)).count()
    }

    /// The highest number stored for a seat, or what it has.
    pub fn head(&self, seat: &Seat) -> u64 {
        let last = self.slots.iter().rev().find(|slot| slot.is_for(&seat.platform)).map_or(0, |slot| slot.seq);
        last.max(seat.cursor)
    }
}
