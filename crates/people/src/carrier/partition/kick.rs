//! Kicks: end sessions of a user.
//!
//! A kick is folded in order with all other work of the user. But a gateway may announce a session only later, to a new owner or after a
//! reconnect. So the user's box stores kicks for a while ([`StoredKick`]), and they end such a session when it is announced. A session that
//! arrives after the kick is admitted.

use whimbrel_model::people::{CloseCode, SessionId};
use whimbrel_model::push::{PushKick, expiry};
use whimbrel_model::{Record, Timestamp};

use super::PushPartition;
use super::fold::millis;
use crate::carrier::user_box::{KICK_KEPT, StoredKick};

impl PushPartition {
    pub(super) fn fold_kick(&mut self, offset: u64, record: &Record, kick: PushKick, now: Timestamp) {
        let session = kick.session.as_deref().map(SessionId::parse);
        let Some((uid, user)) = self.users.named_mut(&kick.uid) else { return };
        if session == Some(None) {
            // No session can have this id.
            return self.release(uid.as_str());
        }
        let (platform, session, reason) = (kick.platform, session.flatten(), kick.reason.into());
        let kick =
            StoredKick { at: record.timestamp, until: expiry(now, millis(KICK_KEPT)), platform, session, reason };
        // An earlier owner may have executed the kick, and sessions announced since may be newer. Later records are in the queue's order.
        let may_be_late = offset < self.position.began_at;
        user.mark_seen(now);
        self.unsaved.note(&uid, user);
        let gateways = &mut self.gateways;
        user.sessions.retain(|live| {
            let must_end =
                kick.means(&live.platform, live.gateway, live.session) && (!may_be_late || kick.is_after(live.arrived));
            if must_end {
                gateways.kick(live, CloseCode::Kicked, kick.reason.clone());
            }
            !must_end
        });
        user.state.forget_kicks(now);
        user.state.remember_kick(kick);
    }
}
