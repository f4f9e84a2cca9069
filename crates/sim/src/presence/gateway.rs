//! The process of a gateway: its real packet log, and the true sessions at each packet number.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_people::presence::packet::{GatewayQuery, GatewayReply, Packet};
use whimbrel_people::presence::packet_log::{PacketLog, PacketLogLimits};

use crate::CheckResult;

/// The connected users, by session number.
pub type Online = BTreeMap<u64, Uid>;

/// Short, so that late requests find packets removed.
const LOG_LIMITS: PacketLogLimits = PacketLogLimits { keep_ms: 4_000, keep_bytes: 16_000, heartbeat_ms: 1_000 };

pub struct PresenceGateway {
    pub id: GatewayId,
    pub packet_log: PacketLog,
    pub there: Online,
    last_session: u64,
}

/// The true sessions at each number of each incarnation, and since when. The first number is 1.
#[derive(Default)]
pub struct PresenceTruth {
    at: BTreeMap<GatewayId, Vec<(u64, Online)>>,
    /// The time at which the process ended, or at which all writers have seen the end of its lease, whichever is first. No session counts
    /// later.
    ended: BTreeMap<GatewayId, u64>,
}

impl PresenceTruth {
    pub fn at(&self, id: GatewayId, number: u64) -> Option<&Online> {
        self.at.get(&id)?.get(usize::try_from(number.checked_sub(1)?).ok()?).map(|(_, there)| there)
    }

    pub fn ends(&mut self, id: GatewayId, at_ms: u64) {
        self.ended.entry(id).or_insert(at_ms);
    }

    /// All incarnations so far.
    pub fn ids(&self) -> impl Iterator<Item = GatewayId> {
        self.at.keys().copied()
    }

    /// Whether the sessions had this state at any moment from `since_ms` on.
    pub fn was_so(&self, id: GatewayId, since_ms: u64, is_that: impl Fn(&Online) -> bool) -> bool {
        let (empty, end) = (Online::new(), self.ended.get(&id).copied());
        if end.is_some() && is_that(&empty) {
            return true;
        }
        let end = end.unwrap_or(u64::MAX);
        // From the newest state on; each lasts until the next one.
        let mut until = end;
        for (at, there) in self.at.get(&id).into_iter().flatten().rev().filter(|(at, _)| *at <= end) {
            if until < since_ms {
                return false;
            }
            if is_that(there) {
                return true;
            }
            until = *at;
        }
        until >= since_ms && is_that(&empty)
    }
}

impl PresenceGateway {
    pub fn new(id: GatewayId, address: &str, now_ms: u64) -> Self {
        let mut packet_log = PacketLog::new(LOG_LIMITS, address);
        packet_log.reincarnate(id, now_ms);
        Self { id, packet_log, there: Online::new(), last_session: 0 }
    }

    pub fn come(&mut self, uid: &Uid) {
        self.last_session += 1;
        let session = OnlineSession {
            session: SessionId { gateway: self.id, number: self.last_session },
            platform: Platform::new("web").expect("a valid name"),
            device: "".into(),
            since: Timestamp::from_millis(0),
        };
        self.there.insert(self.last_session, uid.clone());
        self.packet_log.came(uid, session);
    }

    pub fn go(&mut self, number: u64) {
        self.there.remove(&number);
        self.packet_log.went(SessionId { gateway: self.id, number }, Timestamp::from_millis(0));
    }

    /// The gateway joined again under a new id.
    pub fn reincarnate(&mut self, id: GatewayId, now_ms: u64) {
        self.id = id;
        self.packet_log.reincarnate(id, now_ms);
    }

    /// Cuts the packets that are due, and records the true state at each.
    pub fn cut(&mut self, now_ms: u64, truth: &mut PresenceTruth) -> CheckResult<Vec<Arc<Packet>>> {
        let packets = self.packet_log.cut(now_ms);
        let history = truth.at.entry(self.id).or_default();
        for packet in &packets {
            // A packet log begins with the sessions of the incarnation before.
            let mut there = match history.last() {
                Some((_, there)) => there.clone(),
                None => self.before(&packets),
            };
            for news in &packet.news {
                match news.gone_at {
                    None => drop(there.insert(news.session.session.number, news.uid.clone())),
                    Some(_) => drop(there.remove(&news.session.session.number)),
                }
            }
            if packet.number != history.len() as u64 + 1 || packet.gateway != self.id {
                return Err(format!("packet {} of {} after {}", packet.number, packet.gateway, history.len()));
            }
            history.push((now_ms, there));
        }
        if !packets.is_empty() && history.last().map(|(_, there)| there) != Some(&self.there) {
            return Err(format!("the packets of {} do not match its sessions", self.id));
        }
        Ok(packets)
    }

    /// Answers a request, and returns the packets that the answer closed.
    pub fn answer(
        &mut self,
        ask: &GatewayQuery,
        now_ms: u64,
        truth: &mut PresenceTruth,
    ) -> CheckResult<(GatewayReply, Vec<Arc<Packet>>)> {
        let answer = self.packet_log.answer(ask, now_ms);
        Ok((answer, self.cut(now_ms, truth)?))
    }

    /// The sessions before the first of these packets: undoes the packets from the last to the first.
    fn before(&self, packets: &[Arc<Packet>]) -> Online {
        let mut there = self.there.clone();
        for news in packets.iter().flat_map(|packet| &packet.news).rev() {
            match news.gone_at {
                None => drop(there.remove(&news.session.session.number)),
                Some(_) => drop(there.insert(news.session.session.number, news.uid.clone())),
            }
        }
        there
    }
}
