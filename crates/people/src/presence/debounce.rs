//! Debouncing of presence events: which changes of users are published, and when. Pure.
//!
//! The first change of a user starts a wait, and later changes update it. After the wait the user's current state is published, unless it
//! equals the state before the first change.

use std::collections::{HashMap, VecDeque};

use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::UserChange;

use super::limits::PENDING_EVENTS_MAX;

/// A user who is online now, or no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnlineChange {
    pub uid: Uid,
    pub online: bool,
    pub version: u64,
    pub at: Timestamp,
}

pub struct EventDebouncer {
    wait_ms: u64,
    pending: HashMap<Uid, PendingChange>,
    /// Users by due time; all wait equally long.
    due: VecDeque<(u64, Uid)>,
}

struct PendingChange {
    was_online: bool,
    is_online: bool,
    version: u64,
    at: Timestamp,
}

impl EventDebouncer {
    pub fn new(wait_ms: u64) -> Self {
        Self { wait_ms, pending: HashMap::new(), due: VecDeque::new() }
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn note(&mut self, change: UserChange, at: Timestamp, now_ms: u64) {
        let UserChange { uid, was_online, is_online, version } = change;
        if let Some(pending) = self.pending.get_mut(&uid) {
            if version >= pending.version {
                (pending.is_online, pending.version, pending.at) = (is_online, version, at);
            }
            return;
        }
        if was_online != is_online {
            self.due.push_back((now_ms + self.wait_ms, uid.clone()));
            self.pending.insert(uid, PendingChange { was_online, is_online, version, at });
        }
    }

    /// Takes up to `limit` due changes. If too many wait, the oldest are due early.
    pub fn take_due(&mut self, now_ms: u64, limit: usize) -> Vec<OnlineChange> {
        let mut turns = Vec::new();
        while turns.len() < limit {
            let is_crowded = self.pending.len() > PENDING_EVENTS_MAX;
            let Some((_, uid)) = self.due.pop_front_if(|(due, _)| *due <= now_ms || is_crowded) else { break };
            let Some(pending) = self.pending.remove(&uid) else { continue };
            if pending.was_online != pending.is_online {
                let PendingChange { is_online, version, at, .. } = pending;
                turns.push(OnlineChange { uid, online: is_online, version, at });
            }
        }
        turns
    }

    /// Puts unpublished changes back, ahead of all others. Returns how many were dropped for lack of room.
    pub fn put_back(&mut self, turns: Vec<OnlineChange>, retry_at_ms: u64) -> usize {
        let mut lost = 0;
        for OnlineChange { uid, online, version, at } in turns.into_iter().rev() {
            if let Some(pending) = self.pending.get_mut(&uid) {
                // Another change came since. The published state is still the one before the failed change.
                pending.was_online = !online;
            } else if self.pending.len() > PENDING_EVENTS_MAX {
                lost += 1;
            } else {
                self.due.push_front((retry_at_ms, uid.clone()));
                self.pending.insert(uid, PendingChange { was_online: !online, is_online: online, version, at });
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(uid: &str, was_online: bool, is_online: bool, version: u64) -> UserChange {
        UserChange { uid: Uid::new(uid).unwrap(), was_online, is_online, version }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn told(debounce: &mut EventDebouncer, now_ms: u64) -> Vec<(String, bool, u64)> {
        let turns = debounce.take_due(now_ms, usize::MAX);
        turns.into_iter().map(|turn| (turn.uid.to_string(), turn.online, turn.version)).collect()
    }

    #[test]
    fn a_flapping_user_causes_one_event_with_the_final_state() {
        let mut debounce = EventDebouncer::new(1_000);
        debounce.note(change("eva", false, true, 1), at(0), 0);
        debounce.note(change("eva", true, false, 2), at(10), 10);
        debounce.note(change("eva", false, true, 3), at(20), 20);
        assert_eq!(told(&mut debounce, 999), []);
        assert_eq!(told(&mut debounce, 1_000), [("eva".to_owned(), true, 3)]);
        assert!(debounce.is_empty());
    }

    #[test]
    fn a_user_that_returns_to_the_earlier_state_causes_no_event() {
        let mut debounce = EventDebouncer::new(1_000);
        debounce.note(change("eva", true, false, 4), at(0), 0);
        debounce.note(change("eva", false, true, 5), at(10), 10);
        assert_eq!(told(&mut debounce, 5_000), []);
    }

    #[test]
    fn a_second_device_causes_no_event() {
        let mut debounce = EventDebouncer::new(0);
        debounce.note(change("eva", true, true, 4), at(0), 0);
        assert_eq!(told(&mut debounce, 0), []);
    }

    #[test]
    fn an_unpublished_change_is_retried_or_merged_with_a_later_one() {
        let mut debounce = EventDebouncer::new(0);
        debounce.note(change("eva", false, true, 1), at(0), 0);
        debounce.note(change("kim", false, true, 1), at(0), 0);
        let turns = debounce.take_due(0, 10);
        debounce.note(change("eva", true, false, 2), at(5), 5);
        debounce.put_back(turns, 100);
        // No event about eva was ever published.
        assert_eq!(told(&mut debounce, 100), [("kim".to_owned(), true, 1)]);
    }
}
