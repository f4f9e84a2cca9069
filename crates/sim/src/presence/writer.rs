//! A shard of a presence writer: the real tracker, and a store that applies every order. Wrong orders become visible.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_people::presence::gateway_tracker::{
    GatewayTracker, QueryAttempt, TrackerCounts, TrackerEffect, TrackerTimes,
};
use whimbrel_people::presence::packet::{Packet, SessionChange, shard_of};

use super::gateway::{Online, PresenceTruth};
use super::profile::PresenceProfile;
use crate::CheckResult;

pub struct SimWriter {
    pub centre: u32,
    pub shard: u32,
    pub shards: u32,
    /// Increases with each restart. Messages for an earlier process are lost.
    pub life: u64,
    /// The end of the downtime.
    pub down_until: Option<u64>,
    pub tracker: GatewayTracker,
    /// The sessions of each gateway.
    pub store: BTreeMap<GatewayId, Online>,
    /// The time as of which the store was reported as fresh.
    pub vouched: Option<u64>,
    /// The incarnations that this process was told are void, by node.
    voided: BTreeMap<u16, u64>,
    /// The last number applied for each gateway.
    applied: BTreeMap<GatewayId, u64>,
    breakage: PresenceProfile,
    /// The counts of all earlier processes.
    pub counts: TrackerCounts,
}

impl SimWriter {
    pub fn new(centre: u32, shard: u32, shards: u32, breakage: PresenceProfile) -> Self {
        Self {
            centre,
            shard,
            shards,
            life: 0,
            down_until: None,
            tracker: GatewayTracker::new(TrackerTimes::default()),
            store: BTreeMap::new(),
            vouched: None,
            voided: BTreeMap::new(),
            applied: BTreeMap::new(),
            breakage,
            counts: TrackerCounts::default(),
        }
    }

    /// Stops the process, with or without its store.
    pub fn stop(&mut self, until: u64, keeps_store: bool) {
        self.life += 1;
        self.down_until = Some(until);
        if !keeps_store {
            self.store.clear();
            self.vouched = None;
        }
    }

    /// Starts like the shell: stored sessions of gateways that are not alive are void.
    pub fn start(
        &mut self,
        living: &[(GatewayId, Arc<str>)],
        now_ms: u64,
        truth: &PresenceTruth,
    ) -> CheckResult<Vec<QueryAttempt>> {
        self.down_until = None;
        self.counts = self.all_counts();
        self.tracker = GatewayTracker::new(TrackerTimes::default());
        self.voided.clear();
        self.applied.clear();
        let mut todo = Vec::new();
        for known in self.store.keys().filter(|known| living.iter().all(|(id, _)| id != *known)) {
            todo.extend(self.tracker.void(*known));
        }
        todo.extend(self.tracker.living(living, now_ms));
        self.carry_out(todo, truth)
    }

    pub fn packet(&mut self, packet: Packet, now_ms: u64, truth: &PresenceTruth) -> CheckResult<Vec<QueryAttempt>> {
        let gateway = packet.gateway;
        let standing = self.tracker.position_of(gateway.node).filter(|(id, ..)| *id == gateway);
        let complete = standing.map_or(0, |(_, complete, _)| complete);
        let mut todo = Vec::new();
        if self.breakage == PresenceProfile::NoDedupe && packet.number <= complete && !packet.news.is_empty() {
            put(self.store.entry(gateway).or_default(), &packet.news);
        }
        if self.breakage == PresenceProfile::NoGaps && self.applied.contains_key(&gateway) {
            for number in complete + 1..packet.number {
                todo.extend(self.tracker.packet(Packet { number, news: Vec::new(), ..packet.clone() }, now_ms));
            }
        }
        todo.extend(self.tracker.packet(packet, now_ms));
        self.carry_out(todo, truth)
    }

    /// Executes the orders of the tracker, and returns the requests to send.
    pub fn carry_out(&mut self, todo: Vec<TrackerEffect>, truth: &PresenceTruth) -> CheckResult<Vec<QueryAttempt>> {
        let mut questions = Vec::new();
        for todo in todo {
            match todo {
                TrackerEffect::Ask(question) => questions.push(question),
                TrackerEffect::Void(gateway) => {
                    self.voided.insert(gateway.node, gateway.incarnation);
                    if self.breakage != PresenceProfile::NoVoid {
                        self.store.retain(|id, _| id.node != gateway.node || id.incarnation > gateway.incarnation);
                    }
                }
                TrackerEffect::Apply { gateway, number, news } => {
                    if self.applied.get(&gateway).is_none_or(|applied| number <= *applied) {
                        return Err(format!("{self:?} applies packet {number} of {gateway} out of order"));
                    }
                    put(self.store.entry(gateway).or_default(), &news);
                    self.stands_at(gateway, number, truth)?;
                }
                TrackerEffect::Replace { gateway, as_of, sessions } => {
                    if self.applied.get(&gateway).is_some_and(|applied| as_of < *applied) {
                        return Err(format!("{self:?} applies an old snapshot of {gateway}"));
                    }
                    let there = sessions.into_iter().map(|(uid, session)| (session.session.number, uid)).collect();
                    self.store.insert(gateway, there);
                    self.stands_at(gateway, as_of, truth)?;
                }
            }
            self.shows_nothing_void()?;
        }
        Ok(questions)
    }

    /// Records the freshness of the store, like the shell.
    pub fn vouch(&mut self, now_ms: u64) {
        let fresh_at = match self.breakage {
            PresenceProfile::OldNews => self.tracker.without_snapshot().next().is_none().then_some(now_ms),
            _ => self.tracker.fresh_at(now_ms),
        };
        self.vouched = fresh_at.or(self.vouched);
    }

    /// Checks that the store shows each gateway as it was at some moment from `since_ms` on.
    pub fn is_true_since(&self, since_ms: u64, truth: &PresenceTruth) -> CheckResult {
        let is_old = |id: &GatewayId| !truth.was_so(*id, since_ms, |there| self.shows(*id, there));
        match truth.ids().find(is_old) {
            None => Ok(()),
            Some(id) => Err(format!("{self:?} is fresh as of {:?}, and shows an older state of {id}", self.vouched)),
        }
    }

    /// Checks that the store has exactly the true sessions of the gateway at that number.
    fn stands_at(&mut self, gateway: GatewayId, number: u64, truth: &PresenceTruth) -> CheckResult {
        self.applied.insert(gateway, number);
        let Some(there) = truth.at(gateway, number) else {
            return Err(format!("{self:?} applies number {number} of {gateway}, which never existed"));
        };
        self.has_exactly(gateway, there)
    }

    pub fn has_exactly(&self, gateway: GatewayId, there: &Online) -> CheckResult {
        if self.shows(gateway, there) {
            return Ok(());
        }
        let wanted: Vec<&u64> = there.iter().filter(|(_, uid)| self.is_mine(uid)).map(|(number, _)| number).collect();
        let shown: Vec<&u64> = self.store.get(&gateway).into_iter().flat_map(Online::keys).collect();
        Err(format!("{self:?} shows {shown:?} of {gateway}, not {wanted:?}"))
    }

    fn shows(&self, gateway: GatewayId, there: &Online) -> bool {
        let wanted = there.iter().filter(|(_, uid)| self.is_mine(uid)).map(|(number, _)| number);
        wanted.eq(self.store.get(&gateway).into_iter().flat_map(Online::keys))
    }

    fn shows_nothing_void(&self) -> CheckResult {
        for (id, there) in &self.store {
            if !there.is_empty() && self.voided.get(&id.node).is_some_and(|voided| *voided >= id.incarnation) {
                return Err(format!("{self:?} shows sessions of {id}, which is void"));
            }
        }
        Ok(())
    }

    fn is_mine(&self, uid: &Uid) -> bool {
        shard_of(uid, self.shards) == self.shard
    }

    /// The counts of all processes together.
    pub fn all_counts(&self) -> TrackerCounts {
        let (mut sum, life) = (self.counts, self.tracker.counts);
        sum.repeated += life.repeated;
        sum.refused += life.refused;
        sum.overflowed += life.overflowed;
        sum.gaps += life.gaps;
        sum.asks += life.asks;
        sum.snapshots += life.snapshots;
        sum.unanswered += life.unanswered;
        sum
    }
}

impl std::fmt::Debug for SimWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "writer {}/{}", self.centre, self.shard)
    }
}

fn put(there: &mut Online, news: &[SessionChange]) {
    for news in news {
        match news.gone_at {
            None => drop(there.insert(news.session.session.number, news.uid.clone())),
            Some(_) => drop(there.remove(&news.session.session.number)),
        }
    }
}
