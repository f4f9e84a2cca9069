//! Kicks: whom they are for, and that nobody of those is there in the end, whoever was to tell them.

use bytes::Bytes;
use whimbrel_model::people::{CloseCode, Uid};
use whimbrel_model::ports::ToGateway;
use whimbrel_model::push::{PushKick, PushTask};
use whimbrel_people::gateway::{Phase, State};

use super::Check;
use super::gateway::SimGateway;
use super::world::{Event, World};

impl World {
    /// Somebody ends sessions. Those that are let in by now must not outlive it; who is only on the way in comes after it.
    pub fn kick(&mut self, kick: PushKick, uid: &Uid) {
        let now = self.clock();
        let is_meant = |session: &State| {
            let is_in = session.phase == Phase::Admitted;
            session.who.as_ref().is_some_and(|who| {
                let is_named = kick.platform.as_ref().is_none_or(|platform| *platform == who.platform);
                is_in && is_named && who.uid == *uid && who.at <= now
            })
        };
        let sessions = self.gateways.iter().flat_map(SimGateway::states);
        let meant: Vec<u64> = sessions.filter(|(_, state)| is_meant(state)).map(|(number, _)| number).collect();
        self.kicked.extend(meant);
        self.append(&PushTask::Kick(kick), uid, Bytes::new());
    }

    pub fn was_kicked(&self, session: u64) -> bool {
        self.kicked.contains(&session)
    }

    pub fn nobody_is_there_who_was_kicked(&self) -> Check {
        match self.kicked.iter().find(|session| self.gateway_of(**session).is_some()) {
            Some(session) => Err(format!("session {session} was kicked, and is still there")),
            None => Ok(()),
        }
    }

    /// Whether a gateway will hear from that owner that somebody was kicked, and has not yet.
    pub(super) fn has_a_kick_under_way(&self, owner: u64) -> bool {
        let is_kick = |news: &ToGateway| matches!(news, ToGateway::Kick { code: CloseCode::Kicked, .. });
        self.events.values().any(
            |event| matches!(event, Event::Down { epoch, news, .. } if *epoch == owner && news.iter().any(is_kick)),
        )
    }
}
