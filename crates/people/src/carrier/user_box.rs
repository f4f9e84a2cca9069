//! A user's box: the messages stored for the user, and the position of each seat. Pure.
//!
//! A box has *slots*, one for each stored message that a seat still waits for, in the order of their numbers, and *seats*. The messages
//! themselves are rows beside the box. A slot is removed when every seat that it is for has acknowledged it, or by age, bound or collapse
//! key; the seats that lose it so keep a note. A named platform without a seat counts as waiting. The box also stores the latest kicks.

pub(super) mod codec;
mod exhausted;
mod kicks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use whimbrel_model::people::{Platform, PlatformSettings};
use whimbrel_model::push::PushMessage;
use whimbrel_model::{SessionsRule, Timestamp};

pub use codec::BadBox;
pub use exhausted::{Exhausted, Expired};
pub use kicks::{KICK_KEPT, KICKS_MAX, StoredKick};

/// Seats of one user, at most. Beyond, the seat that was not seen for the longest time is removed.
pub const SEATS_MAX: usize = 32;
/// Hashes of publishers' ids in a box, at most, for the detection of repeats. A push with an origin beside its id takes two. So the latest
/// 64 pushes with ids are always recognised.
pub const IDS_REMEMBERED: usize = 128;

/// The seat of a device without a name, on a platform with many sessions. No device can have this name, and it differs from the empty name
/// of a platform's single seat.
const NAMELESS: &str = "\0";

/// The bound for users without any seat. It is the default of unconfigured platforms.
const UNSEEN_BOUND: usize = whimbrel_model::people::MAX_STORED_DEFAULT as usize;

pub type PlatformRules = dyn Fn(&Platform) -> Arc<PlatformSettings> + Send + Sync;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserBox {
    pub seats: Vec<Seat>,
    pub slots: VecDeque<InboxSlot>,
    /// Hashes of the latest ids of publishers, oldest first.
    pub ids: VecDeque<u64>,
    /// Oldest first.
    pub kicks: Vec<StoredKick>,
    /// The time under which the store's index lists the box, as of the last write.
    pub found_under: Option<Timestamp>,
}

/// The position of a platform, or of one of its devices, in the box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    pub platform: Platform,
    /// The result of [`seat_device`]: empty on a platform with one seat.
    pub device: Box<str>,
    /// All messages up to this number are acknowledged.
    pub cursor: u64,
    /// All messages up to this number are beyond the seat's bound or expired for it.
    pub floor: u64,
    pub seen_at: Timestamp,
    /// Messages up to this number were sent, have no retries left, and some are unacknowledged. Zero: no such message.
    pub exhausted: u64,
    /// Losses above the cursor: ascending ranges, both ends included. A waiting message separates two ranges, so there is at most one range
    /// more than waiting messages, which the platform's `max_stored` bounds.
    pub lost: Vec<(u64, u64)>,
}

/// A stored message in a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxSlot {
    pub seq: u64,
    pub sent_at: Timestamp,
    pub expires_at: Timestamp,
    /// The platforms that the message is for. `None`: all.
    pub filter: Option<Arc<PlatformFilter>>,
    /// The hash of the collapse key. Zero: none.
    pub collapse: u64,
    /// Size of the row in bytes.
    pub bytes: u32,
    /// The row is shared with other users.
    pub shared: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlatformFilter {
    pub only: Option<Vec<Platform>>,
    pub except: Vec<Platform>,
}

impl PlatformFilter {
    pub fn of(message: &PushMessage) -> Option<Arc<Self>> {
        let is_for_all = message.platforms.is_none() && message.except_platforms.is_empty();
        (!is_for_all)
            .then(|| Arc::new(Self { only: message.platforms.clone(), except: message.except_platforms.clone() }))
    }

    fn lets(&self, platform: &Platform) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(platform)) && !self.except.contains(platform)
    }
}

impl InboxSlot {
    pub fn is_for(&self, platform: &Platform) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.lets(platform))
    }

    /// Whether the message's TTL, or the platform's, has expired.
    pub fn is_expired_for(&self, settings: &PlatformSettings, now: Timestamp) -> bool {
        let age = now.as_millis().saturating_sub(self.sent_at.as_millis());
        self.expires_at <= now || u64::try_from(age).is_ok_and(|age| age >= settings.ttl_ms)
    }
}

impl Seat {
    pub fn new(platform: Platform, device: &str, now: Timestamp) -> Self {
        Self { platform, device: device.into(), cursor: 0, floor: 0, seen_at: now, exhausted: 0, lost: Vec::new() }
    }

    /// The device's own name, or empty.
    pub fn device_name(&self) -> &str {
        device_name(&self.device)
    }

    /// Whether the slot's message still waits for this seat.
    pub fn waits_for(&self, slot: &InboxSlot) -> bool {
        slot.seq > self.cursor.max(self.floor) && slot.is_for(&self.platform)
    }
}

/// The seat's device name: the device's own name on a platform with many sessions, otherwise empty.
pub fn seat_device(settings: &PlatformSettings, device: &str) -> Box<str> {
    match settings.sessions {
        SessionsRule::Many(_) => among_many(device).into(),
        SessionsRule::Replace | SessionsRule::Reject => Box::default(),
    }
}

/// The device's own name, from the result of [`seat_device`]. Empty if there is none.
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

    /// Finds or creates the seat of an arriving device. Returns also the slots that no seat waits for any more.
    ///
    /// After a change of the platform's rule, seats of the earlier rule are left: the single seat of a platform that may now have many,
    /// or the device seats of a platform that now has one. An arriving device without a seat takes over such a seat with all its waiting
    /// messages, preferably its own. A platform with one seat keeps no other. A new seat starts with everything still stored for it. Seats
    /// for which `is_taken` holds stay; others are removed if they were not seen since `since`.
    pub fn seat_for(
        &mut self,
        platform: &Platform,
        device: &str,
        now: Timestamp,
        since: Timestamp,
        rules: &PlatformRules,
        is_taken: impl Fn(&Seat) -> bool,
    ) -> (usize, Vec<InboxSlot>) {
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
        // A removed seat may have been the last one that waited for a slot.
        let has_gone = seats_kept < seats_before || self.seats.len() == seats_kept && seats_kept == SEATS_MAX;
        (at, if has_gone { self.settle(rules, u64::MAX) } else { Vec::new() })
    }

    /// Finds the seat of that name, or creates it.
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
            // Order of removal: seats that wait for nothing, seats of the same platform, the longest unseen.
            let rank = |seat: &Seat| (self.waiting(seat) > 0, seat.platform != *platform, seat.seen_at);
            let away = self.seats.iter().enumerate().filter(|(_, seat)| !is_taken(seat));
            let Some(at) = away.min_by_key(|(_, seat)| rank(seat)).map(|(at, _)| at) else { break };
            self.seats.remove(at);
        }
        // Exact capacity saves memory: most of the many users have one seat.
        self.seats.reserve_exact(1);
        self.seats.push(Seat::new(platform.clone(), device, now));
        self.seats.len() - 1
    }

    /// Whether a message with one of these ids was taken recently. Remembers all of them: a repeat may come under any.
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

    /// Stores a message with a number above all others. Returns the slots removed for it (collapse key, bounds); their rows must go too.
    pub fn store(&mut self, slot: InboxSlot, rules: &PlatformRules) -> Vec<InboxSlot> {
        let mut gone = Vec::new();
        if self.slots.back().is_some_and(|last| last.seq >= slot.seq) {
            return gone;
        }
        if slot.collapse != 0
            // A message for other platforms is no replacement: their seats would get nothing for the removed one.
            && let Some(at) = self
                .slots
                .iter()
                .position(|older| older.collapse == slot.collapse && older.filter == slot.filter)
        {
            gone.extend(self.lose(at, rules));
        }
        // A resumed device may have it already, from an earlier owner.
        let keeps = |seat: &Seat| slot.is_for(&seat.platform) && rules(&seat.platform).store;
        let has_it = !self.is_awaited_by_a_seat(&slot, rules) && self.seats.iter().any(keeps);
        self.slots.push_back(slot);
        if has_it {
            gone.extend(self.settle(rules, u64::MAX));
        }
        self.keep_bounds(rules, &mut gone);
        gone
    }

    /// Notes the loss of a message for every seat that waits for it. Returns whether there is such a seat.
    pub fn miss(&mut self, slot: &InboxSlot, rules: &PlatformRules) -> bool {
        let mut is_missed = false;
        for place in 0..self.seats.len() {
            if self.seats[place].waits_for(slot) && rules(&self.seats[place].platform).store {
                self.note_loss(place, slot.seq);
                is_missed = true;
            }
        }
        is_missed
    }

    /// Removes a slot, and notes the loss for the seats that wait for it.
    fn lose(&mut self, at: usize, rules: &PlatformRules) -> Option<InboxSlot> {
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
        // A range never spans a message that the seat still gets: its end would overtake that message.
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

    /// Applies the bounds: of each seat, and of the box (the sum for its seats and for platforms without one). Skips the search if the box
    /// is within all bounds, as nearly all boxes are.
    fn keep_bounds(&mut self, rules: &PlatformRules, gone: &mut Vec<InboxSlot>) {
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
            // The seats are within their bounds: slots that no seat waits for are removed first.
            let at = self.slots.iter().position(|slot| !self.is_awaited_by_a_seat(slot, rules)).unwrap_or(0);
            gone.extend(self.lose(at, rules));
        }
    }

    fn is_awaited_by_a_seat(&self, slot: &InboxSlot, rules: &PlatformRules) -> bool {
        self.seats.iter().any(|seat| seat.waits_for(slot) && rules(&seat.platform).store)
    }

    /// Drops these messages, the oldest that the seat waits for, from the seat.
    fn give_up(&mut self, seat: usize, seqs: &[u64]) {
        for seq in seqs {
            // The floor moves first, so that earlier messages no longer count as waiting.
            self.seats[seat].floor = *seq;
            self.note_loss(seat, *seq);
        }
    }

    /// The bound of slots for platforms without a seat.
    fn unseated_bound(&self, rules: &PlatformRules) -> usize {
        let named = self.slots.iter().filter_map(|slot| slot.filter.as_ref()?.only.as_ref()).flatten();
        let without_seat = named.filter(|platform| !self.seats.iter().any(|seat| seat.platform == **platform));
        let bound = without_seat.map(|platform| rules(platform).max_stored).max();
        let default = if self.seats.is_empty() { UNSEEN_BOUND } else { 0 };
        (bound.unwrap_or(0) as usize).max(default)
    }

    /// Removes expired messages, and notes the loss for the seats that wait for them.
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
            // A platform's TTL may be shorter. It expires the oldest messages first, unless clocks jump.
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

    /// Moves the cursor of a seat, only forwards. Returns the slots that no seat waits for any more.
    pub fn acknowledge(&mut self, seat: usize, upto: u64, rules: &PlatformRules) -> Vec<InboxSlot> {
        let Some(seat) = self.seats.get_mut(seat) else { return Vec::new() };
        if upto <= seat.cursor {
            return Vec::new();
        }
        seat.cursor = upto;
        seat.lost.retain(|(_, to)| *to > upto);
        self.settle(rules, upto)
    }

    /// Removes the slots up to that number that no seat waits for.
    fn settle(&mut self, rules: &PlatformRules, upto: u64) -> Vec<InboxSlot> {
        let Self { seats, slots, .. } = self;
        let keeping: Vec<(&Seat, bool)> = seats.iter().map(|seat| (seat, rules(&seat.platform).store)).collect();
        let is_awaited = |slot: &InboxSlot| {
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
                // A named platform without a seat has not acknowledged.
                Some(named) => named.iter().any(|platform| {
                    slot.is_for(platform)
                        && rules(platform).store
                        && !keeping.iter().any(|(seat, _)| seat.platform == *platform)
                }),
                None => !is_for_any,
            }
        };
        let mut gone = Vec::new();
        // Nearly always only the oldest slots go.
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
        let mut kept: VecDeque<InboxSlot> = kept.collect();
        if kept.is_empty() {
            kept = later;
        } else {
            kept.extend(later);
        }
        *slots = kept;
        gone
    }

    /// Removes all slots without noting losses.
    pub fn wipe(&mut self) -> Vec<InboxSlot> {
        self.seats.iter_mut().for_each(|seat| seat.lost.clear());
        std::mem::take(&mut self.slots).into()
    }

    /// Removes the seats that were not seen since then.
    pub fn forget_seats(&mut self, since: Timestamp) {
        self.seats.retain(|seat| seat.seen_at >= since);
        if self.seats.is_empty() && self.slots.is_empty() {
            self.ids.clear();
        }
    }

    /// The time at which the box has no more use, if seats are kept for `seat_kept_ms` after they were last seen. `None`: it has only ids.
    pub fn reclaim_at(&self, seat_kept_ms: i64) -> Option<Timestamp> {
        let slots = self.slots.iter().map(|slot| slot.expires_at);
        let seats =
            self.seats.iter().map(|seat| Timestamp::from_millis(seat.seen_at.as_millis().saturating_add(seat_kept_ms)));
        let last = slots.chain(seats).chain(self.kicks.iter().map(|kick| kick.until)).max();
        // A message without retries must become a dead letter when it expires, not when its seat is removed.
        let exhausted = self.slots.iter().filter(|slot| self.seats.iter().any(|seat| seat.is_exhausted(slot)));
        exhausted.map(|slot| slot.expires_at).chain(last).min()
    }

    /// The number of messages that wait for a seat.
    pub fn waiting(&self, seat: &Seat) -> usize {
        self.slots.iter().filter(|slot| seat.waits_for(slot)).count()
    }

    /// The highest number stored for a seat, or its cursor.
    pub fn head(&self, seat: &Seat) -> u64 {
        let last = self.slots.iter().rev().find(|slot| slot.is_for(&seat.platform)).map_or(0, |slot| slot.seq);
        last.max(seat.cursor)
    }
}
