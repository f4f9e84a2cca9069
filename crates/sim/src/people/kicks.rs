//! Kicks: the sessions that they must end, and the check that none of these remain.

use bytes::Bytes;
use whimbrel_model::people::{CloseCode, Uid};
use whimbrel_model::ports::ToGateway;
use whimbrel_model::push::{PushKick, PushTask};
use whimbrel_people::gateway::{SessionPhase, SessionState};

use super::gateway::SimGateway;
use super::world::{PeopleWorld, ScheduledEvent};
use crate::CheckResult;

impl PeopleWorld {
    /// Kicks sessions. The sessions that are admitted by now must end. Later ones are not affected.
    pub fn kick(&mut self, kick: PushKick, uid: &Uid) {
        let now = self.clock();
        let is_meant = |session: &SessionState| {
            let is_in = session.phase == SessionPhase::Admitted;
            session.identity.as_ref().is_some_and(|identity| {
                let is_named = kick.platform.as_ref().is_none_or(|platform| *platform == identity.platform);
                is_in && is_named && identity.uid == *uid && identity.at <= now
            })
        };
        let sessions = self.gateways.iter().flat_map(SimGateway::states);
        let meant: Vec<u64> = sessions.filter(|(_, state)| is_meant(state)).map(|(number, _)| number).collect();
        self.sessions.kicked.extend(meant);
        self.append(&PushTask::Kick(kick), uid, Bytes::new());
    }

    pub fn was_kicked(&self, session: u64) -> bool {
        self.sessions.kicked.contains(&session)
    }

    pub fn no_kicked_session_remains(&self) -> CheckResult {
        match self.sessions.kicked.iter().find(|session| self.gateway_of(**session).is_some()) {
            Some(session) => Err(format!("session {session} was kicked, and is still connected")),
            None => Ok(()),
        }
    }

    /// Whether a kick of that owner is still in transit to a gateway.
    pub(super) fn has_kick_in_transit(&self, owner: u64) -> bool {
        let is_kick = |news: &ToGateway| matches!(news, ToGateway::Kick { code: CloseCode::Kicked, .. });
        self.schedule.events().any(
            |event| matches!(event, ScheduledEvent::Down { epoch, news, .. } if *epoch == owner && news.iter().any(is_kick)),
        )
    }
}
