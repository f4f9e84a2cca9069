//! Loads the boxes of users from the store before the work that needs them.
//!
//! A store of another log is emptied before the first read: its cursors refer to numbers that the new log assigns again.

use std::collections::HashSet;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{AtOffset, InboxError};

use super::{CarrierEffect, CarrierIncident, LoadedUser, PushPartition};
use crate::carrier::settings::LOAD_USERS;
use crate::carrier::user_box::{BadBox, Expired, UserBox};

/// A load of boxes in progress.
pub(super) struct BoxLoad {
    uids: Vec<Uid>,
    /// The offset of the store when the load was requested. A result at a lower offset has lost writes.
    saved: u64,
}

impl PushPartition {
    pub(super) fn load(&mut self) {
        let mut wanted: HashSet<Uid> = HashSet::new();
        for work in self.queue.iter() {
            if wanted.len() >= LOAD_USERS {
                break;
            }
            work.each_needed_user(&mut |uid| {
                if !self.users.contains(uid)
                    && let Ok(uid) = Uid::new(uid)
                {
                    wanted.insert(uid);
                }
            });
        }
        let mut uids: Vec<Uid> = wanted.into_iter().collect();
        uids.sort_unstable();
        self.effects.push(CarrierEffect::Load { uids: uids.clone() });
        self.loading = Some(BoxLoad { uids, saved: self.unsaved.saved });
    }

    pub(super) fn loaded(&mut self, loaded: Result<AtOffset<Vec<Option<Bytes>>>, InboxError>, now: Timestamp) {
        let Some(BoxLoad { uids, saved }) = self.loading.take() else { return };
        let found = match loaded.and_then(|at| not_behind(at, saved)) {
            Ok(found) if found.len() == uids.len() => found,
            Ok(_) => return self.resign("the store returned a wrong number of boxes".to_owned()),
            Err(error) => return self.resign(error.to_string()),
        };
        for (uid, bytes) in uids.into_iter().zip(found) {
            let is_stored = bytes.is_some();
            let state = match bytes.as_deref().map(UserBox::decode) {
                None => UserBox::default(),
                Some(Ok(state)) => state,
                // Written by a later binary before a downgrade. This binary must not reset the box.
                Some(Err(error @ BadBox::OtherVersion(_))) => {
                    return self.resign(format!("the inbox of user {uid} cannot be read: {error}"));
                }
                Some(Err(error)) => {
                    self.report(CarrierIncident::BadBox { uid: uid.clone(), why: error.to_string() });
                    UserBox::default()
                }
            };
            let mut user = LoadedUser { state, is_stored, ..LoadedUser::default() };
            if is_stored && user.state.found_under.is_none() {
                // An earlier format did not contain the time.
                user.state.found_under = user.state.reclaim_at(self.keep_seats_ms());
            }
            let Expired { gone, exhausted } = user.state.expire(&*self.rules, self.clock.expiry_now(now));
            self.write_dead_letters(&uid, exhausted);
            self.counts.expired += gone.len() as u64;
            if !gone.is_empty() {
                self.unsaved.note(&uid, &mut user);
            }
            self.unsaved.drop_rows(&uid, gone);
            self.users.insert(uid, user);
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
