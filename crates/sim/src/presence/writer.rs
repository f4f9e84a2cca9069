//! A writer's shard: the real ledger, and a store that believes everything. So whatever the ledger tells wrongly shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_people::presence::ledger::{Ledger, LedgerCounts, LedgerTimes, Question, Todo};
use whimbrel_people::presence::packet::{News, Packet, shard_of};

use super::Check;
use super::gateway::{There, Truth};
use super::profile::PresenceProfile;

pub struct SimWriter {
    pub centre: u32,
    pub shard: u32,
    pub shards: u32,
    /// Grows with each restart: what was meant for an earlier life is lost.
    pub life: u64,
    /// Until when it is down.
    pub down_until: Option<u64>,
    pub ledger: Ledger,
    /// Sessions by their gateway.
    pub store: BTreeMap<GatewayId, There>,
    /// As of when the store was told to be fresh.
    pub vouched: Option<u64>,
    /// What this life was told to be void, by node.
    voided: BTreeMap<u16, u64>,
    /// The last number that was told of each gateway.
    told: BTreeMap<GatewayId, u64>,
    breakage: PresenceProfile,
    /// Of all lives.
    pub counts: LedgerCounts,
}

impl SimWriter {
    pub fn new(centre: u32, shard: u32, shards: u32, breakage: PresenceProfile) -> Self {
        Self {
            centre,
            shard,
            shards,
            life: 0,
            down_until: None,
            ledger: Ledger::new(LedgerTimes::default()),
            store: BTreeMap::new(),
            vouched: None,
            voided: BTreeMap::new(),
            told: BTreeMap::new(),
            breakage,
            counts: LedgerCounts::default(),
        }
    }

    /// It is gone, and its store with it or not.
    pub fn stop(&mut self, until: u64, keeps_store: bool) {
        self.life += 1;
        self.down_until = Some(until);
        if !keeps_store {
            self.store.clear();
            self.vouched = None;
        }
    }

    /// It starts, as the shell does: what the store has of gateways that do not live is void.
    pub fn start(&mut self, living: &[(GatewayId, Arc<str>)], now_ms: u64, truth: &Truth) -> Check<Vec<Question>> {
        self.down_until = None;
        self.add_counts();
        self.ledger = Ledger::new(LedgerTimes::default());
        self.voided.clear();
        self.told.clear();
        let mut todo = Vec::new();
        for known in self.store.keys().filter(|known| living.iter().all(|(id, _)| id != *known)) {
            todo.extend(self.ledger.void(*known));
        }
        todo.extend(self.ledger.living(living, now_ms));
        self.carry_out(todo, truth)
    }

    pub fn packet(&mut self, packet: Packet, now_ms: u64, truth: &Truth) -> Check<Vec<Question>> {
        let gateway = packet.gateway;
        let standing = self.ledger.standing(gateway.node).filter(|(id, ..)| *id == gateway);
        let complete = standing.map_or(0, |(_, complete, _)| complete);
        let mut todo = Vec::new();
        if self.breakage == PresenceProfile::NoDedupe && packet.number <= complete && !packet.news.is_empty() {
            put(self.store.entry(gateway).or_default(), &packet.news);
        }
        if self.breakage == PresenceProfile::NoGaps && self.told.contains_key(&gateway) {
            for number in complete + 1..packet.number {
                todo.extend(self.ledger.packet(Packet { number, news: Vec::new(), ..packet.clone() }, now_ms));
            }
        }
        todo.extend(self.ledger.packet(packet, now_ms));
        self.carry_out(todo, truth)
    }

    /// Does what the ledger says, and hands out what is to be asked.
    pub fn carry_out(&mut self, todo: Vec<Todo>, truth: &Truth) -> Check<Vec<Question>> {
        let mut questions = Vec::new();
        for todo in todo {
            match todo {
                Todo::Ask(question) => questions.push(question),
                Todo::Void(gateway) => {
                    self.voided.insert(gateway.node, gateway.incarnation);
                    if self.breakage != PresenceProfile::NoVoid {
                        self.store.retain(|id, _| id.node != gateway.node || id.incarnation > gateway.incarnation);
                    }
                }
                Todo::Apply { gateway, number, news } => {
                    if self.told.get(&gateway).is_none_or(|told| number <= *told) {
                        return Err(format!("{self:?} is told packet {number} of {gateway} out of turn"));
                    }
                    put(self.store.entry(gateway).or_default(), &news);
                    self.stands_at(gateway, number, truth)?;
                }
                Todo::Replace { gateway, as_of, sessions } => {
                    if self.told.get(&gateway).is_some_and(|told| as_of < *told) {
                        return Err(format!("{self:?} is told an old picture of {gateway}"));
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

    /// Tells the store how fresh it is, as the shell does.
    pub fn vouch(&mut self, now_ms: u64) {
        let fresh_at = match self.breakage {
            PresenceProfile::OldNews => self.ledger.undrawn().next().is_none().then_some(now_ms),
            _ => self.ledger.fresh_at(now_ms),
        };
        self.vouched = fresh_at.or(self.vouched);
    }

    /// Of every gateway the store shows who was there at some moment from `since_ms` on.
    pub fn is_true_since(&self, since_ms: u64, truth: &Truth) -> Check {
        let is_old = |id: &GatewayId| !truth.was_so(*id, since_ms, |there| self.shows(*id, there));
        match truth.ids().find(is_old) {
            None => Ok(()),
            Some(id) => {
                Err(format!("{self:?} is fresh as of {:?}, and shows of {id} who was there before", self.vouched))
            }
        }
    }

    /// The store has exactly what was true of that gateway at that number.
    fn stands_at(&mut self, gateway: GatewayId, number: u64, truth: &Truth) -> Check {
        self.told.insert(gateway, number);
        let Some(there) = truth.at(gateway, number) else {
            return Err(format!("{self:?} is told number {number} of {gateway}, which never was"));
        };
        self.has_exactly(gateway, there)
    }

    pub fn has_exactly(&self, gateway: GatewayId, there: &There) -> Check {
        if self.shows(gateway, there) {
            return Ok(());
        }
        let wanted: Vec<&u64> = there.iter().filter(|(_, uid)| self.is_mine(uid)).map(|(number, _)| number).collect();
        let shown: Vec<&u64> = self.store.get(&gateway).into_iter().flat_map(There::keys).collect();
        Err(format!("{self:?} shows {shown:?} of {gateway}, not {wanted:?}"))
    }

    fn shows(&self, gateway: GatewayId, there: &There) -> bool {
        let wanted = there.iter().filter(|(_, uid)| self.is_mine(uid)).map(|(number, _)| number);
        wanted.eq(self.store.get(&gateway).into_iter().flat_map(There::keys))
    }

    fn shows_nothing_void(&self) -> Check {
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

    fn add_counts(&mut self) {
        let (sum, life) = (&mut self.counts, self.ledger.counts);
        sum.repeated += life.repeated;
        sum.refused += life.refused;
        sum.overflowed += life.overflowed;
        sum.gaps += life.gaps;
        sum.asks += life.asks;
        sum.pictures += life.pictures;
        sum.unanswered += life.unanswered;
    }

    /// What all lives together counted.
    pub fn all_counts(&mut self) -> LedgerCounts {
        self.add_counts();
        self.ledger.counts = LedgerCounts::default();
        self.counts
    }
}

impl std::fmt::Debug for SimWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "writer {}/{}", self.centre, self.shard)
    }
}

fn put(there: &mut There, news: &[News]) {
    for news in news {
        match news.gone_at {
            None => drop(there.insert(news.session.session.number, news.uid.clone())),
            Some(_) => drop(there.remove(&news.session.session.number)),
        }
    }
}
