//! Kicking: somebody ends a user's sessions.
//!
//! A kick is folded in order with everything else about the user, but a session may be told to an owner only later: by a gateway that
//! announces it to a new owner, or anew after the way between them broke. So the user's box remembers kicks for a while
//! ([`Kick`]), and they end such a session when it is announced. One that arrives comes after the kick, and is let in.

use whimbrel_model::people::{CloseCode, SessionId};
use whimbrel_model::ports::ToGateway;
use whimbrel_model::push::{PushKick, expiry};
use whimbrel_model::{Record, Timestamp};

use super::super::user_box::{KICK_KEPT, Kick};
use super::Partition;
use super::folding::millis;

impl Partition {
    pub(super) fn fold_kick(&mut self, offset: u64, record: &Record, kick: PushKick, now: Timestamp) {
        let session = kick.session.as_deref().map(SessionId::parse);
        let uid = self.users.get_key_value(kick.uid.as_str()).map(|(uid, _)| uid.clone());
        let Some((uid, user)) = uid.zip(self.users.get_mut(kick.uid.as_str())) else { return };
        if session == Some(None) {
            // It names one that cannot be any.
            return self.release(uid.as_str());
        }
        let (platform, session, reason) = (kick.platform, session.flatten(), kick.reason.into());
        let kick = Kick { at: record.timestamp, until: expiry(now, millis(KICK_KEPT)), platform, session, reason };
        // An earlier owner may have done it, and somebody who is told to this one may have come since. Of what comes while it is the owner
        // the order says who was there before.
        let may_be_late = offset < self.began_at;
        user.see(now);
        user.is_dirty = true;
        self.unsaved.dirty.insert(uid.clone());
        let news = &mut self.news;
        user.lives.retain(|live| {
            let is_over =
                kick.means(&live.platform, live.gateway, live.session) && (!may_be_late || kick.is_after(live.arrived));
            if is_over {
                let (session, reason) = (live.session, kick.reason.clone());
                news.entry(live.gateway).or_default().push(ToGateway::Kick {
                    session,
                    code: CloseCode::Kicked,
                    reason,
                });
            }
            !is_over
        });
        user.state.forget_kicks(now);
        user.state.remember_kick(kick);
    }
}
