//! Loading: the boxes of users that something is about are read from the store before it is their turn.
//!
//! A store of another log is emptied before anything is read from it: its boxes say of numbers that are given anew that devices have them.

use std::collections::HashSet;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{Uid, check_uid};
use whimbrel_model::ports::{At, InboxError, PeopleAsk};
use whimbrel_model::push::PushTask;

use super::super::settings::LOAD_USERS;
use super::super::user_box::{BadBox, Expired, UserBox};
use super::{Effect, Partition, Trouble, User, Work};

impl Partition {
    /// Whether what the store answers may still be of another log. Nothing is handled for so long.
    pub(super) fn is_emptying(&self) -> bool {
        self.unsaved.wants_reset || self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_reset)
    }

    /// The users whose boxes must be in memory for it.
    pub(super) fn needed(&self, work: &Work, each: &mut dyn FnMut(&str)) {
        // Nobody has a box under a name that is none.
        let mut named = |uid: &String| {
            if check_uid(uid).is_ok() {
                each(uid);
            }
        };
        match work {
            Work::Record { task: Ok(task), .. } => match &**task {
                // What is not stored concerns only those who are there, and those are in memory.
                PushTask::Message(message) if message.store => message.uids.iter().for_each(named),
                PushTask::NoticeDue(due) => due.uids.iter().for_each(named),
                PushTask::Wipe { uid } => named(uid),
                PushTask::Kick(kick) => named(&kick.uid),
                PushTask::Message(_) | PushTask::Retry(_) => {}
            },
            Work::Record { task: Err(_), .. } => {}
            Work::Arrive { arrival, .. } => each(arrival.uid.as_str()),
            Work::Announce { announced, .. } => each(announced.arrival.uid.as_str()),
            Work::Ask { what: PeopleAsk::Inbox { uid, .. }, .. } | Work::Reclaim(uid) => each(uid.as_str()),
        }
    }

    pub(super) fn load(&mut self) {
        let mut wanted: HashSet<Uid> = HashSet::new();
        for work in &self.work {
            if wanted.len() >= LOAD_USERS {
                break;
            }
            self.needed(work, &mut |uid| {
                if !self.users.contains_key(uid)
                    && let Ok(uid) = Uid::new(uid)
                {
                    wanted.insert(uid);
                }
            });
        }
        self.loading = wanted.into_iter().collect();
        self.loading.sort_unstable();
        self.loading_at = self.unsaved.saved;
        self.effects.push(Effect::Load { uids: self.loading.clone() });
    }

    pub(super) fn loaded(&mut self, loaded: Result<At<Vec<Option<Bytes>>>, InboxError>, now: Timestamp) {
        let loading = std::mem::take(&mut self.loading);
        let loaded = loaded.and_then(|at| not_behind(at, self.loading_at));
        let found = match loaded {
            Ok(found) if found.len() == loading.len() => found,
            Ok(_) => return self.resign("the store answered another question".to_owned()),
            Err(error) => return self.resign(error.to_string()),
        };
        for (uid, bytes) in loading.into_iter().zip(found) {
            let is_stored = bytes.is_some();
            let state = match bytes.as_deref().map(UserBox::decode) {
                None => UserBox::default(),
                Some(Ok(state)) => state,
                // A later binary wrote it, and somebody went back to this one: it is not this one's to begin anew.
                Some(Err(error @ BadBox::OtherVersion(_))) => {
                    return self.resign(format!("the inbox of user {uid} cannot be read: {error}"));
                }
                Some(Err(error)) => {
                    self.effects.push(Effect::Report(Trouble::BadBox { uid: uid.clone(), why: error.to_string() }));
                    UserBox::default()
                }
            };
            let mut user = User { state, is_stored, ..User::default() };
            if is_stored && user.state.found_under.is_none() {
                // It was written before boxes said it themselves.
                user.state.found_under = self.reclaim_at(&user.state);
            }
            let Expired { gone, exhausted } = user.state.expire(&*self.rules, self.expiry_now(now));
            self.bury(&uid, exhausted);
            user.is_dirty = !gone.is_empty();
            self.counts.expired += gone.len() as u64;
            if user.is_dirty {
                self.unsaved.dirty.insert(uid.clone());
            }
            self.unsaved.drop_rows(&uid, gone);
            self.users.insert(uid, Box::new(user));
        }
    }
}

/// What was found, unless the store has fallen back behind where it was: then it does not have what it is believed to have.
pub(super) fn not_behind<T>(at: At<T>, least: u64) -> Result<T, InboxError> {
    if at.applied < least {
        return Err(InboxError::Damaged(format!("it is at {}, and was at {least} before", at.applied)));
    }
    Ok(at.found)
}
