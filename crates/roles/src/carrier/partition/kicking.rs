//! Kicking: somebody ends a user's sessions.
//!
//! A kick is folded in order with everything else about the user, but a session may be told to this owner only later: by a gateway that
//! announces it to a new owner, or anew after the way between them broke. So kicks are remembered for a while, and end such a session when
//! it is announced. One that arrives comes after the kick, and is let in.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use whimbrel_model::people::{CloseCode, GatewayId, Platform, SessionId};
use whimbrel_model::ports::{Arrival, ToGateway};
use whimbrel_model::push::{PushKick, expiry};
use whimbrel_model::{Record, Timestamp};

use super::Partition;
use super::folding::millis;

/// How long a kick is remembered after it was folded: gateways that can be reached have announced their sessions by then.
pub(super) const KICK_KEPT: Duration = Duration::from_secs(60);
/// How many kicks are remembered at most; beyond, the oldest is forgotten. One partition sees so many in a minute only when a long log is
/// folded again, and then the oldest were done long ago.
const KICKS_MAX: usize = 10_000;

/// The kicks that were folded lately.
#[derive(Default)]
pub(super) struct Kicks {
    by_user: HashMap<Arc<str>, VecDeque<Kept>, RandomState>,
    /// Whose kicks those are, and when each was folded: the oldest first.
    order: VecDeque<(Timestamp, Arc<str>)>,
}

struct Kept {
    /// Who came later than this is not meant, unless it is named.
    at: Timestamp,
    meant: Meant,
    reason: Arc<str>,
}

/// Whom of a user's sessions a kick is for.
struct Meant {
    platform: Option<Platform>,
    /// `Some(None)`: it names one that cannot be any.
    session: Option<Option<SessionId>>,
}

impl Meant {
    fn of(kick: &PushKick) -> Self {
        Self { platform: kick.platform.clone(), session: kick.session.as_deref().map(SessionId::parse) }
    }

    fn is(&self, platform: &Platform, gateway: GatewayId, number: u64) -> bool {
        self.platform.as_ref().is_none_or(|meant| meant == platform)
            && self.session.is_none_or(|session| session == Some(SessionId { gateway, number }))
    }
}

impl Kicks {
    fn remember(&mut self, uid: &str, kept: Kept, now: Timestamp) {
        if self.order.len() >= KICKS_MAX {
            self.forget_oldest();
        }
        let uid: Arc<str> = uid.into();
        self.order.push_back((now, Arc::clone(&uid)));
        self.by_user.entry(uid).or_default().push_back(kept);
    }

    /// Those that were folded long ago are forgotten.
    pub(super) fn forget(&mut self, now: Timestamp) {
        while self.order.front().is_some_and(|(folded, _)| expiry(*folded, millis(KICK_KEPT)) <= now) {
            self.forget_oldest();
        }
    }

    /// The clock was set back: they are remembered for a while from now on, and no longer.
    pub(super) fn clock_was_set_back(&mut self, now: Timestamp) {
        self.order.iter_mut().for_each(|(folded, _)| *folded = (*folded).min(now));
    }

    fn forget_oldest(&mut self) {
        let Some((_, uid)) = self.order.pop_front() else { return };
        if let Some(kicks) = self.by_user.get_mut(&uid) {
            kicks.pop_front();
            if kicks.is_empty() {
                self.by_user.remove(&uid);
            }
        }
    }

    /// Why a session that is announced only now is over, where it is.
    pub(super) fn reason(&self, gateway: GatewayId, arrival: &Arrival) -> Option<Arc<str>> {
        let kicks = self.by_user.get(arrival.uid.as_str())?;
        let is_over = |kick: &&Kept| {
            kick.meant.is(&arrival.platform, gateway, arrival.session)
                && (arrival.at <= kick.at || kick.meant.session.is_some())
        };
        kicks.iter().find(is_over).map(|kick| Arc::clone(&kick.reason))
    }
}

impl Partition {
    pub(super) fn fold_kick(&mut self, record: &Record, kick: &PushKick, now: Timestamp) {
        let (meant, reason): (_, Arc<str>) = (Meant::of(kick), kick.reason.as_str().into());
        let uid = self.users.get_key_value(kick.uid.as_str()).map(|(uid, _)| uid.clone());
        if let Some((uid, user)) = uid.zip(self.users.get_mut(kick.uid.as_str())) {
            user.see(now);
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            let news = &mut self.news;
            user.lives.retain(|live| {
                let is_meant = meant.is(&live.platform, live.gateway, live.session);
                if is_meant {
                    let (session, reason) = (live.session, Arc::clone(&reason));
                    let kick = ToGateway::Kick { session, code: CloseCode::Kicked, reason };
                    news.entry(live.gateway).or_default().push(kick);
                }
                !is_meant
            });
            self.release(uid.as_str());
        }
        self.kicks.remember(&kick.uid, Kept { at: record.timestamp, meant, reason }, now);
    }
}
