//! The users in memory: their boxes and their sessions.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Uid};

use super::LiveSession;
use crate::carrier::user_box::UserBox;

#[derive(Debug, Default)]
pub(super) struct LoadedUser {
    pub state: UserBox,
    pub sessions: Vec<LiveSession>,
    pub is_stored: bool,
    /// The box has changed since the last save. Set by [`super::unsaved_changes::UnsavedChanges::note`].
    pub is_dirty: bool,
}

impl LoadedUser {
    /// Marks every seat with a session as seen now. Must precede the end of a session: `seen_at` may date from the session's start.
    pub fn mark_seen(&mut self, now: Timestamp) {
        let Self { state, sessions, .. } = self;
        for seat in state.seats.iter_mut().filter(|seat| sessions.iter().any(|live| live.is_on(seat))) {
            seat.seen_at = now;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct LoadedUsers {
    users: HashMap<Uid, Box<LoadedUser>, RandomState>,
}

impl LoadedUsers {
    pub fn len(&self) -> usize {
        self.users.len()
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.users.contains_key(uid)
    }

    pub fn get(&self, uid: &str) -> Option<&LoadedUser> {
        self.users.get(uid).map(|user| &**user)
    }

    pub fn get_mut(&mut self, uid: &str) -> Option<&mut LoadedUser> {
        self.users.get_mut(uid).map(|user| &mut **user)
    }

    /// The user with that name, which is checked only if the user is in memory.
    pub fn named_mut(&mut self, uid: &str) -> Option<(Uid, &mut LoadedUser)> {
        let uid = self.users.get_key_value(uid)?.0.clone();
        let user = self.users.get_mut(&uid)?;
        Some((uid, user))
    }

    /// The user of a session, and the session's index.
    pub fn session_mut(&mut self, uid: &Uid, gateway: GatewayId, session: u64) -> Option<(&mut LoadedUser, usize)> {
        let user = self.get_mut(uid.as_str())?;
        let at = user.sessions.iter().position(|live| live.is(gateway, session))?;
        Some((user, at))
    }

    pub fn insert(&mut self, uid: Uid, user: LoadedUser) {
        self.users.insert(uid, Box::new(user));
    }

    pub fn remove(&mut self, uid: &str) {
        self.users.remove(uid);
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Uid, &mut LoadedUser)> {
        self.users.iter_mut().map(|(uid, user)| (uid, &mut **user))
    }

    pub fn sessions(&self) -> impl Iterator<Item = &LiveSession> {
        self.users.values().flat_map(|user| &user.sessions)
    }
}
