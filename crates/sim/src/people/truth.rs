//! The messages that each seat must receive, and the check of each frame that a device receives.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::push::{PushMessage, seq_of};
use whimbrel_people::carrier::user_box::UserBox;

use crate::CheckResult;

/// The platform of a user, and the device if the platform has many sessions.
pub type SeatKey = (Uid, Platform, String);

/// An accepted message.
struct AcceptedPush {
    message: PushMessage,
    expires_at: i64,
    /// The users that received an earlier message with the same publisher's id.
    repeated_for: Vec<String>,
}

impl AcceptedPush {
    /// Whether the message is stored for the user's platform.
    fn is_for(&self, uid: &Uid, platform: &Platform) -> bool {
        let Self { message, .. } = self;
        message.store
            && message.is_for(platform)
            && message.uids.iter().any(|of| of == uid.as_str())
            && !self.is_repeat(uid)
    }

    /// Whether the user received an earlier message with the same publisher's id.
    fn is_repeat(&self, uid: &Uid) -> bool {
        self.repeated_for.iter().any(|of| of == uid.as_str())
    }
}

fn have_a_name_in_common(one: &PushMessage, other: &PushMessage) -> bool {
    let names = |message: &PushMessage| std::iter::once(message.id.clone()).chain(message.also.clone());
    names(one).any(|name| names(other).any(|of_other| name == of_other))
}

#[derive(Debug, Default)]
struct SeatTruth {
    /// The end of the log when the store first had the seat. All later messages are for it.
    from: Option<u64>,
    seen: BTreeSet<u64>,
    truncated: Vec<(u64, u64)>,
    /// The messages that the store had for the seat.
    stored: BTreeSet<u64>,
    /// The highest number that any of its devices received.
    received: u64,
}

impl SeatTruth {
    fn has(&self, seq: u64) -> bool {
        self.seen.contains(&seq) || self.truncated.iter().any(|(from, to)| (*from..=*to).contains(&seq))
    }
}

#[derive(Default)]
pub struct PeopleTruth {
    accepted: BTreeMap<u64, AcceptedPush>,
    seats: BTreeMap<SeatKey, SeatTruth>,
    /// The latest time of any clock.
    latest: i64,
}

impl PeopleTruth {
    pub fn accept(&mut self, offset: u64, message: PushMessage, expires_at: i64) {
        let earlier = self.accepted.values().map(|earlier| &earlier.message);
        let same =
            earlier.filter(|earlier| message.brought && earlier.brought && have_a_name_in_common(earlier, &message));
        let repeated_for = same.flat_map(|earlier| earlier.uids.iter().cloned()).collect();
        self.accepted.insert(seq_of(offset), AcceptedPush { message, expires_at, repeated_for });
    }

    pub fn clock(&mut self, now: i64) {
        self.latest = self.latest.max(now);
    }

    /// Checks the stored box of a user after a write or a fallback of the store. `end` is the end of the log.
    pub fn stored(&mut self, uid: &Uid, user: Option<&UserBox>, applied: u64, end: u64) -> CheckResult {
        let Self { seats, accepted, latest } = self;
        for ((_, platform, device), truth) in seats.iter_mut().filter(|((of, ..), _)| of == uid) {
            let seat =
                user.and_then(|user| user.seats.iter().find(|s| s.platform == *platform && *s.device == **device));
            let (Some(seat), Some(user)) = (seat, user) else {
                truth.from = None;
                continue;
            };
            let from = *truth.from.get_or_insert(end);
            if seat.cursor > truth.received {
                return Err(format!(
                    "{uid} on {platform} {device} has acknowledged {} in its box, and has received {}",
                    seat.cursor, truth.received
                ));
            }
            truth.stored.extend(user.slots.iter().filter(|slot| seat.waits_for(slot)).map(|slot| slot.seq));
            for (seq, one) in accepted.range(seq_of(from)..seq_of(applied).max(seq_of(from))) {
                let is_noted = seat.lost.iter().any(|(from, to)| (*from..=*to).contains(seq));
                let is_there = user.slots.iter().any(|slot| slot.seq == *seq && seat.waits_for(slot));
                let may_go = one.expires_at <= *latest || truth.has(*seq) || !one.is_for(uid, platform);
                if !is_noted && !is_there && !may_go {
                    return Err(format!("{seq} is no longer stored, and {uid} on {platform} {device} waits for it"));
                }
            }
        }
        Ok(())
    }

    /// The store has fallen back to an earlier state.
    pub fn store_fell_back(&mut self) {
        self.seats.values_mut().for_each(|truth| truth.stored.clear());
    }

    pub fn add_seat(&mut self, key: SeatKey) {
        self.seats.entry(key).or_default();
    }

    /// Checks a stored message that a device of the seat receives. Returns `true` for the first time.
    pub fn sees(&mut self, key: &SeatKey, seq: u64, id: &str, body: &[u8]) -> CheckResult<bool> {
        let (uid, platform, _) = key;
        let one = self.accepted.get(&seq).ok_or_else(|| format!("{seq} was never sent, and {key:?} receives it"))?;
        if !one.message.uids.iter().any(|of| of == uid.as_str()) || !one.message.is_for(platform) || !one.message.store
        {
            return Err(format!("{seq} is not for {key:?}"));
        }
        if one.message.id != id || body != seq.to_string().as_bytes() {
            return Err(format!("{seq} arrives as `{id}` with another body"));
        }
        if one.is_repeat(uid) {
            return Err(format!("{seq} repeats `{id}`, and {key:?} receives it"));
        }
        self.is_next(key, seq)?;
        let truth = self.seats.entry(key.clone()).or_default();
        truth.received = truth.received.max(seq);
        Ok(truth.seen.insert(seq))
    }

    pub fn is_truncated(&mut self, key: &SeatKey, from: u64, to: u64) -> CheckResult {
        if from > to {
            return Err(format!("{key:?} receives the invalid lost range {from} to {to}"));
        }
        self.is_next(key, from)?;
        let truth = self.seats.entry(key.clone()).or_default();
        truth.truncated.push((from, to));
        truth.received = truth.received.max(to);
        Ok(())
    }

    /// Checks that the seat has everything below a number. A returning device reports its cursor, so unacknowledged messages count too.
    fn is_next(&self, key: &SeatKey, before: u64) -> CheckResult {
        match self.missing(key, before) {
            Some(missing) => Err(format!("{key:?} receives {before} and has not received {missing}")),
            None => Ok(()),
        }
    }

    /// The first message below a number that the seat must have and does not have.
    pub fn missing(&self, key: &SeatKey, below: u64) -> Option<u64> {
        let (uid, platform, _) = key;
        let truth = self.seats.get(key)?;
        let from = seq_of(truth.from?);
        if from >= below {
            return None;
        }
        let is_missing = |(seq, one): (&u64, &AcceptedPush)| {
            let never_was = one.expires_at <= self.latest && !truth.stored.contains(seq);
            let is_missing = !never_was && one.is_for(uid, platform) && !truth.has(*seq);
            is_missing.then_some(*seq)
        };
        self.accepted.range(from..below).find_map(is_missing)
    }

    pub fn seats(&self) -> Vec<SeatKey> {
        self.seats.keys().cloned().collect()
    }
}
