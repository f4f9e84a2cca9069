//! The kicks that a box stores.
//!
//! The message of a kick to a gateway may be lost together with its owner, or the gateway may be disconnected from every owner. So the
//! kick is stored with the user, in the same write that moves the partition beyond the kick's record. It ends the sessions that it
//! selects when they are announced, to any later owner.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Platform, SessionId};
use whimbrel_model::push::expiry;

use super::UserBox;

/// How long a kick is stored after its fold. By then every live gateway has announced its sessions, even if all carriers were down for
/// most of that time.
pub const KICK_KEPT: Duration = Duration::from_secs(3_600);
/// Kicks in a box, at most; beyond, the oldest is removed. A kick replaces those that it covers, so only kicks of sessions can be many.
pub const KICKS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKick {
    /// Sessions that arrived later are not selected, unless the kick names the session.
    pub at: Timestamp,
    /// The kick is stored until this time.
    pub until: Timestamp,
    pub platform: Option<Platform>,
    pub session: Option<SessionId>,
    pub reason: Arc<str>,
}

impl StoredKick {
    /// Whether it selects that session, regardless of the time.
    pub fn means(&self, platform: &Platform, gateway: GatewayId, number: u64) -> bool {
        self.platform.as_ref().is_none_or(|meant| meant == platform)
            && self.session.is_none_or(|session| session == SessionId { gateway, number })
    }

    /// Whether it applies to a session that it selects and that arrived at `arrived`.
    pub fn is_after(&self, arrived: Timestamp) -> bool {
        arrived <= self.at || self.session.is_some()
    }

    /// Whether it ends every session that the other kick ends.
    fn covers(&self, other: &Self) -> bool {
        self.session == other.session
            && (self.platform.is_none() || self.platform == other.platform)
            && self.is_after(other.at)
    }
}

impl UserBox {
    pub fn remember_kick(&mut self, kick: StoredKick) {
        self.kicks.retain(|earlier| !kick.covers(earlier));
        if self.kicks.len() >= KICKS_MAX {
            self.kicks.remove(0);
        }
        self.kicks.reserve_exact(1);
        self.kicks.push(kick);
    }

    /// The reason why a session that is announced now, and arrived at `arrived`, must end, if a kick ends it.
    pub fn kicked(
        &self,
        platform: &Platform,
        gateway: GatewayId,
        session: u64,
        arrived: Timestamp,
        now: Timestamp,
    ) -> Option<Arc<str>> {
        let is_over =
            |kick: &&StoredKick| kick.until > now && kick.means(platform, gateway, session) && kick.is_after(arrived);
        self.kicks.iter().find(is_over).map(|kick| Arc::clone(&kick.reason))
    }

    /// Removes kicks whose time is over. If the clock was set back, the others expire at most [`KICK_KEPT`] from now.
    pub fn forget_kicks(&mut self, now: Timestamp) {
        let latest = expiry(now, u64::try_from(KICK_KEPT.as_millis()).unwrap_or(u64::MAX));
        self.kicks.iter_mut().for_each(|kick| kick.until = kick.until.min(latest));
        self.kicks.retain(|kick| kick.until > now);
    }
}
