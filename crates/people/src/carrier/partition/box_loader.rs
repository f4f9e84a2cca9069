//! Loads the boxes of users from the store before the work that needs them.
//!
//! A store of another log is emptied before the first read: its cursors refer to numbers that the new log assigns again.

use std::collections::HashSet;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{Uid, check_uid};
use whimbrel_model::ports::{AtOffset, InboxError, PeopleQuery};
use whimbrel_model::push::PushTask;

use super::super::settings::LOAD_USERS;
use super::super::user_box::{BadBox, Expired, UserBox};
use super::{CarrierEffect, CarrierIncident, LoadedUser, PushPartition, QueuedWork};

impl PushPartition {
    /// Whether reads may still return contents of another log. No work is handled meanwhile.
    pub(super) fn is_emptying(&self) -> bool {
        self.unsaved.wants_reset || self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_reset)
    }

    /// Calls `each` with the users whose boxes the work needs in memory.
    pub(super) fn each_needed_user(&self, work: &QueuedWork, each: &mut dyn FnMut(&str)) {
        // An invalid name has no box.
        let mut named = |uid: &String| {
            if check_uid(uid).is_ok() {
                each(uid);
            }
        };
        match work {
            QueuedWork::Record { task: Ok(task), .. } => match &**task {
                // An ephemeral message concerns only users with a session, who are in memory.
                PushTask::Message(message) if message.store => message.uids.iter().for_each(named),
                PushTask::NoticeDue(due) => due.uids.iter().for_each(named),
                PushTask::Wipe { uid } => named(uid),
                PushTask::Kick(kick) => named(&kick.uid),
                PushTask::Message(_) | PushTask::Retry(_) => {}
            },
            QueuedWork::Record { task: Err(_), .. } => {}
            QueuedWork::Arrive { arrival, .. } => each(arrival.uid.as_str()),
            QueuedWork::Announce { announced, .. } => each(announced.arrival.uid.as_str()),
            QueuedWork::Ask { what: PeopleQuery::Inbox { uid, .. }, .. } | QueuedWork::Reclaim(uid) => {
                each(uid.as_str())
            }
        }
    }

    pub(super) fn load(&mut self) {
        let mut wanted: HashSet<Uid> = HashSet::new();
        for work in &self.work {
            if wanted.len() >= LOAD_USERS {
                break;
            }
            self.each_needed_user(work, &mut |uid| {
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
        self.effects.push(CarrierEffect::Load { uids: self.loading.clone() });
    }

    pub(super) fn loaded(&mut self, loaded: Result<AtOffset<Vec<Option<Bytes>>>, InboxError>, now: Timestamp) {
        let loading = std::mem::take(&mut self.loading);
        let loaded = loaded.and_then(|at| not_behind(at, self.loading_at));
        let found = match loaded {
            Ok(found) if found.len() == loading.len() => found,
            Ok(_) => return self.resign("the store returned a wrong number of boxes".to_owned()),
            Err(error) => return self.resign(error.to_string()),
        };
        for (uid, bytes) in loading.into_iter().zip(found) {
            let is_stored = bytes.is_some();
            let state = match bytes.as_deref().map(UserBox::decode) {
                None => UserBox::default(),
                Some(Ok(state)) => state,
                // Written by a later binary before a downgrade. This binary must not reset the box.
                Some(Err(error @ BadBox::OtherVersion(_))) => {
                    return self.resign(format!("the inbox of user {uid} cannot be read: {error}"));
                }
                Some(Err(error)) => {
                    self.effects.push(CarrierEffect::Report(CarrierIncident::BadBox {
                        uid: uid.clone(),
                        why: error.to_string(),
                    }));
                    UserBox::default()
                }
            };
            let mut user = LoadedUser { state, is_stored, ..LoadedUser::default() };
            if is_stored && user.state.found_under.is_none() {
                // An earlier format did not contain the time.
                user.state.found_under = self.reclaim_at(&user.state);
            }
            let Expired { gone, exhausted } = user.state.expire(&*self.rules, self.expiry_now(now));
            self.write_dead_letters(&uid, exhausted);
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

/// The result of a read. An error if the store is behind its earlier offset: it has lost writes.
pub(super) fn not_behind<T>(at: AtOffset<T>, least: u64) -> Result<T, InboxError> {
    if at.applied < least {
        return Err(InboxError::Damaged(format!("it is at {}, and was at {least} before", at.applied)));
    }
    Ok(at.found)
}
