//! What every seat must have seen, and the judgement about each frame that a device gets.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::push::{PushMessage, seq_of};
use whimbrel_people::carrier::user_box::UserBox;

use super::Check;

/// A user's platform, and the device where that may have many.
pub type SeatKey = (Uid, Platform, String);

/// A message as it was accepted.
struct Accepted {
    message: PushMessage,
    expires_at: i64,
    /// Users who were sent something under the same brought id before.
    repeated_for: Vec<String>,
}

impl Accepted {
    /// Whether it concerns the user's platform, which keeps what is stored.
    fn is_for(&self, uid: &Uid, platform: &Platform) -> bool {
        let Self { message, .. } = self;
        message.store
            && message.is_for(platform)
            && message.uids.iter().any(|of| of == uid.as_str())
            && !self.is_repeat(uid)
    }

    /// Whether the user was sent something under the same brought id before.
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
    /// The store has the seat since the log ended there: everything from there on is for it.
    from: Option<u64>,
    seen: BTreeSet<u64>,
    truncated: Vec<(u64, u64)>,
    /// What the store was seen to have for it.
    stored: BTreeSet<u64>,
    /// The highest number that any of its devices was told.
    told: u64,
}

impl SeatTruth {
    fn has(&self, seq: u64) -> bool {
        self.seen.contains(&seq) || self.truncated.iter().any(|(from, to)| (*from..=*to).contains(&seq))
    }
}

#[derive(Default)]
pub struct Truth {
    accepted: BTreeMap<u64, Accepted>,
    seats: BTreeMap<SeatKey, SeatTruth>,
    /// The latest time that any clock has shown.
    latest: i64,
}

impl Truth {
    pub fn accept(&mut self, offset: u64, message: PushMessage, expires_at: i64) {
        let earlier = self.accepted.values().map(|earlier| &earlier.message);
        let same =
            earlier.filter(|earlier| message.brought && earlier.brought && have_a_name_in_common(earlier, &message));
        let repeated_for = same.flat_map(|earlier| earlier.uids.iter().cloned()).collect();
        self.accepted.insert(seq_of(offset), Accepted { message, expires_at, repeated_for });
    }

    pub fn clock(&mut self, now: i64) {
        self.latest = self.latest.max(now);
    }

    /// What is stored for a user after a write, or after the store fell back to it; `end` is where the log ends.
    pub fn stored(&mut self, uid: &Uid, user: Option<&UserBox>, applied: u64, end: u64) -> Check {
        let Self { seats, accepted, latest } = self;
        for ((_, platform, device), truth) in seats.iter_mut().filter(|((of, ..), _)| of == uid) {
            let seat =
                user.and_then(|user| user.seats.iter().find(|s| s.platform == *platform && *s.device == **device));
            let (Some(seat), Some(user)) = (seat, user) else {
                truth.from = None;
                continue;
            };
            let from = *truth.from.get_or_insert(end);
            if seat.cursor > truth.told {
                return Err(format!(
                    "{uid} on {platform} {device} has acknowledged {} by its box, and was told {}",
                    seat.cursor, truth.told
                ));
            }
            truth.stored.extend(user.slots.iter().filter(|slot| seat.waits_for(slot)).map(|slot| slot.seq));
            for (seq, one) in accepted.range(seq_of(from)..seq_of(applied).max(seq_of(from))) {
                let is_noted = seat.lost.iter().any(|(from, to)| (*from..=*to).contains(seq));
                let is_there = user.slots.iter().any(|slot| slot.seq == *seq && seat.waits_for(slot));
                let may_go = one.expires_at <= *latest || truth.has(*seq) || !one.is_for(uid, platform);
                if !is_noted && !is_there && !may_go {
                    return Err(format!("{seq} is not stored any more, and {uid} on {platform} {device} waits for it"));
                }
            }
        }
        Ok(())
    }

    /// The store is not what it was.
    pub fn store_fell_back(&mut self) {
        self.seats.values_mut().for_each(|truth| truth.stored.clear());
    }

    pub fn add_seat(&mut self, key: SeatKey) {
        self.seats.entry(key).or_default();
    }

    /// A device of the seat gets a stored message. `true`: for the first time.
    pub fn sees(&mut self, key: &SeatKey, seq: u64, id: &str, body: &[u8]) -> Check<bool> {
        let (uid, platform, _) = key;
        let one = self.accepted.get(&seq).ok_or_else(|| format!("{seq} was never sent, and {key:?} sees it"))?;
        if !one.message.uids.iter().any(|of| of == uid.as_str()) || !one.message.is_for(platform) || !one.message.store
        {
            return Err(format!("{seq} is not for {key:?}"));
        }
        if one.message.id != id || body != seq.to_string().as_bytes() {
            return Err(format!("{seq} comes as `{id}` with another body"));
        }
        if one.is_repeat(uid) {
            return Err(format!("{seq} repeats `{id}`, and {key:?} sees it"));
        }
        self.is_next(key, seq)?;
        let truth = self.seats.entry(key.clone()).or_default();
        truth.told = truth.told.max(seq);
        Ok(truth.seen.insert(seq))
    }

    pub fn is_truncated(&mut self, key: &SeatKey, from: u64, to: u64) -> Check {
        if from > to {
            return Err(format!("{key:?} is told to have lost {from} to {to}"));
        }
        self.is_next(key, from)?;
        let truth = self.seats.entry(key.clone()).or_default();
        truth.truncated.push((from, to));
        truth.told = truth.told.max(to);
        Ok(())
    }

    /// A device that comes back says what it has: what it has not acknowledged counts so.
    fn is_next(&self, key: &SeatKey, before: u64) -> Check {
        match self.missing(key, before) {
            Some(missing) => Err(format!("{key:?} sees {before} and has not seen {missing}")),
            None => Ok(()),
        }
    }

    /// The first that the seat must have and has not, below that number.
    pub fn missing(&self, key: &SeatKey, below: u64) -> Option<u64> {
        let (uid, platform, _) = key;
        let truth = self.seats.get(key)?;
        let from = seq_of(truth.from?);
        if from >= below {
            return None;
        }
        let is_missing = |(seq, one): (&u64, &Accepted)| {
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
