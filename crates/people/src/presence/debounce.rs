//! Which changes of users are told to the world, and when. Pure.
//!
//! A user's first change waits; whatever else happens to the user meanwhile is folded into it. When the time is over, the user is told of
//! as it is then, or not at all where that is as it was.

use std::collections::{HashMap, VecDeque};

use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::UserChange;

use super::limits::PENDING_EVENTS_MAX;

/// A user who is online now, or is not any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub uid: Uid,
    pub online: bool,
    pub version: u64,
    pub at: Timestamp,
}

pub struct Debounce {
    wait_ms: u64,
    pending: HashMap<Uid, Pending>,
    /// Users by when they are due: all wait equally long.
    due: VecDeque<(u64, Uid)>,
}

struct Pending {
    was_online: bool,
    is_online: bool,
    version: u64,
    at: Timestamp,
}

impl Debounce {
    pub fn new(wait_ms: u64) -> Self {
        Self { wait_ms, pending: HashMap::new(), due: VecDeque::new() }
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// A user changed, now.
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
            self.pending.insert(uid, Pending { was_online, is_online, version, at });
        }
    }

    /// What is due, at most so many; earlier where too many wait.
    pub fn take_due(&mut self, now_ms: u64, limit: usize) -> Vec<Turn> {
        let mut turns = Vec::new();
        while turns.len() < limit {
            let is_crowded = self.pending.len() > PENDING_EVENTS_MAX;
            let Some((_, uid)) = self.due.pop_front_if(|(due, _)| *due <= now_ms || is_crowded) else { break };
            let Some(pending) = self.pending.remove(&uid) else { continue };
            if pending.was_online != pending.is_online {
                let Pending { is_online, version, at, .. } = pending;
                turns.push(Turn { uid, online: is_online, version, at });
            }
        }
        turns
    }

    /// These could not be told: they wait again, ahead of all others. Returns how many there is no room for.
    pub fn put_back(&mut self, turns: Vec<Turn>, retry_at_ms: u64) -> usize {
        let mut lost = 0;
        for Turn { uid, online, version, at } in turns.into_iter().rev() {
            if let Some(pending) = self.pending.get_mut(&uid) {
                // It changed since; the world knows it as it was before the change that could not be told.
                pending.was_online = !online;
            } else if self.pending.len() > PENDING_EVENTS_MAX {
                lost += 1;
            } else {
                self.due.push_front((retry_at_ms, uid.clone()));
                self.pending.insert(uid, Pending { was_online: !online, is_online: online, version, at });
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

    fn told(debounce: &mut Debounce, now_ms: u64) -> Vec<(String, bool, u64)> {
        let turns = debounce.take_due(now_ms, usize::MAX);
        turns.into_iter().map(|turn| (turn.uid.to_string(), turn.online, turn.version)).collect()
    }

    #[test]
    fn a_user_that_flaps_is_told_of_once_as_it_is_in_the_end() {
        let mut debounce = Debounce::new(1_000);
        debounce.note(change("eva", false, true, 1), at(0), 0);
        debounce.note(change("eva", true, false, 2), at(10), 10);
        debounce.note(change("eva", false, true, 3), at(20), 20);
        assert_eq!(told(&mut debounce, 999), []);
        assert_eq!(told(&mut debounce, 1_000), [("eva".to_owned(), true, 3)]);
        assert!(debounce.is_empty());
    }

    #[test]
    fn a_user_that_is_as_before_is_not_told_of() {
        let mut debounce = Debounce::new(1_000);
        debounce.note(change("eva", true, false, 4), at(0), 0);
        debounce.note(change("eva", false, true, 5), at(10), 10);
        assert_eq!(told(&mut debounce, 5_000), []);
    }

    #[test]
    fn a_second_device_is_no_news_about_the_user() {
        let mut debounce = Debounce::new(0);
        debounce.note(change("eva", true, true, 4), at(0), 0);
        assert_eq!(told(&mut debounce, 0), []);
    }

    #[test]
    fn what_could_not_be_told_is_told_later_or_folded_into_what_came_since() {
        let mut debounce = Debounce::new(0);
        debounce.note(change("eva", false, true, 1), at(0), 0);
        debounce.note(change("kim", false, true, 1), at(0), 0);
        let turns = debounce.take_due(0, 10);
        debounce.note(change("eva", true, false, 2), at(5), 5);
        debounce.put_back(turns, 100);
        // The world never heard that eva was there.
        assert_eq!(told(&mut debounce, 100), [("kim".to_owned(), true, 1)]);
    }
}
