//! The kicks that a box remembers.
//!
//! What a gateway is told of a kick may be lost on the way, with the owner that told it, and a gateway may have had no way to any owner. So
//! the kick is kept with the user, in the same write that moves the partition beyond its record, and ends the sessions that it means when
//! they are announced, whoever owns the partition then.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Platform, SessionId};
use whimbrel_model::push::expiry;

use super::UserBox;

/// How long a kick is remembered after it was folded: by then every gateway that lives has announced its sessions to somebody, were all
/// carriers gone for most of that time.
pub const KICK_KEPT: Duration = Duration::from_secs(3_600);
/// Kicks that a box remembers; beyond, the oldest is forgotten. One that means all that an earlier one meant takes its place, so that only
/// those that name sessions can be many.
pub const KICKS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kick {
    /// Who came later than this is not meant, unless it is named.
    pub at: Timestamp,
    /// It is remembered until then.
    pub until: Timestamp,
    pub platform: Option<Platform>,
    pub session: Option<SessionId>,
    pub reason: Arc<str>,
}

impl Kick {
    /// Whether it is for that session, whenever that came.
    pub fn means(&self, platform: &Platform, gateway: GatewayId, number: u64) -> bool {
        self.platform.as_ref().is_none_or(|meant| meant == platform)
            && self.session.is_none_or(|session| session == SessionId { gateway, number })
    }

    /// Whether a session that it means, and that came at `arrived`, was there before it.
    pub fn is_after(&self, arrived: Timestamp) -> bool {
        arrived <= self.at || self.session.is_some()
    }

    /// Whether it ends every session that the other one does.
    fn covers(&self, other: &Self) -> bool {
        self.session == other.session
            && (self.platform.is_none() || self.platform == other.platform)
            && self.is_after(other.at)
    }
}

impl UserBox {
    pub fn remember_kick(&mut self, kick: Kick) {
        self.kicks.retain(|earlier| !kick.covers(earlier));
        if self.kicks.len() >= KICKS_MAX {
            self.kicks.remove(0);
        }
        self.kicks.reserve_exact(1);
        self.kicks.push(kick);
    }

    /// Why a session that is announced only now, and came at `arrived`, is over, where it is.
    pub fn kicked(
        &self,
        platform: &Platform,
        gateway: GatewayId,
        session: u64,
        arrived: Timestamp,
        now: Timestamp,
    ) -> Option<Arc<str>> {
        let is_over =
            |kick: &&Kick| kick.until > now && kick.means(platform, gateway, session) && kick.is_after(arrived);
        self.kicks.iter().find(is_over).map(|kick| Arc::clone(&kick.reason))
    }

    /// Those whose time is over are forgotten. Where the clock was set back, the others have a while from now on, and no longer.
    pub fn forget_kicks(&mut self, now: Timestamp) {
        let latest = expiry(now, u64::try_from(KICK_KEPT.as_millis()).unwrap_or(u64::MAX));
        self.kicks.iter_mut().for_each(|kick| kick.until = kick.until.min(latest));
        self.kicks.retain(|kick| kick.until > now);
    }
}
