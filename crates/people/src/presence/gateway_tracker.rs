//! A writer's view of every gateway: what has arrived, what is missing, and how fresh it is.
//!
//! Pure: packets, answers and the time are passed in; the result says what to apply, which gateway to query, and which one is void. It
//! never returns a packet twice, before an earlier one, or of a void incarnation. So a writer that applies the results in order has the
//! gateway's own session table. It returns nothing about a gateway before the cluster view has contained it.
//!
//! For each gateway it has the number up to which all packets are complete, the highest number seen, the packets buffered behind a gap, and
//! one open query. A query requests the missing packets first. It requests a snapshot if there is none yet, if too much is missing, or
//! after [`ASKS_MAX`] unanswered attempts.
//!
//! It also computes as of when its state is true ([`GatewayTracker::fresh_at`]), by the writer's clock only. The state of a gateway is true
//! as of the first arrival of the number up to which all is complete, or as of the request for its snapshot. Packets behind a gap, repeats,
//! and answers with requested packets do not advance that time, because their contents may be older.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use whimbrel_model::people::{GatewayId, OnlineSession, Uid};

use super::limits::{ASKED_NUMBERS_MAX, ASKS_MAX, BUFFERED_NEWS_MAX, BUFFERED_PACKETS_MAX};
use super::packet::{GatewayReply, Packet, QueryKind, SessionChange};

/// The timeouts of a tracker, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerTimes {
    /// The age of a gap after which its packets are requested. Before, they may arrive on the slower path.
    pub ask_after_ms: u64,
    /// After this time an unanswered query is repeated.
    pub ask_again_ms: u64,
    /// The same for a query for a snapshot, which takes longer.
    pub snapshot_again_ms: u64,
    /// Pause after a gateway has not answered all attempts.
    pub rest_ms: u64,
    /// If the state of a live gateway does not advance for this time, its snapshot is requested: its last packets may be lost.
    pub silent_after_ms: u64,
    /// After this time a gateway that sends packets but is not in the cluster view is dropped.
    pub unseen_after_ms: u64,
}

impl Default for TrackerTimes {
    fn default() -> Self {
        Self {
            ask_after_ms: 100,
            ask_again_ms: 300,
            snapshot_again_ms: 1_000,
            rest_ms: 2_000,
            silent_after_ms: 2_000,
            unseen_after_ms: 10_000,
        }
    }
}

/// An action for the writer. Actions must be performed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackerEffect {
    Apply {
        gateway: GatewayId,
        number: u64,
        news: Vec<SessionChange>,
    },
    Replace {
        gateway: GatewayId,
        as_of: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    },
    Ask(QueryAttempt),
    /// That incarnation and every earlier one of its node are void.
    Void(GatewayId),
}

/// A query that must be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryAttempt {
    /// The id, which the answer repeats.
    pub ask: u64,
    pub gateway: GatewayId,
    pub address: Arc<str>,
    pub wanted: QueryKind,
    /// Zero-based. Even attempts go directly to the gateway, odd ones through a detour.
    pub attempt: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackerCounts {
    pub repeated: u64,
    /// Packets of void incarnations.
    pub refused: u64,
    /// Packets dropped because the buffer was full.
    pub overflowed: u64,
    /// Gaps for which packets were requested.
    pub gaps: u64,
    pub asks: u64,
    pub snapshots: u64,
    /// Queries that failed after all attempts.
    pub unanswered: u64,
}

pub struct GatewayTracker {
    times: TrackerTimes,
    /// By node: a node has one incarnation at a time.
    known: BTreeMap<u16, TrackedGateway>,
    /// By node: this incarnation and all earlier ones are void. At most as many entries as node numbers.
    voided: BTreeMap<u16, u64>,
    last_ask: u64,
    pub counts: TrackerCounts,
}

struct TrackedGateway {
    id: GatewayId,
    address: Arc<str>,
    /// All packets up to this number were returned.
    complete: u64,
    highest: u64,
    /// Packets behind a gap, by number.
    buffered: BTreeMap<u64, BufferedPacket>,
    buffered_news: usize,
    /// A snapshot has arrived; before that, the state is unknown.
    has_snapshot: bool,
    /// A snapshot is needed, the first one or another.
    wants_snapshot: bool,
    /// When the gap was detected.
    gap_since: Option<u64>,
    asking: Option<OpenQuery>,
    rest_until: u64,
    /// As of when the returned state is true. `None`: unknown.
    fresh_at: Option<u64>,
    first_heard_at: u64,
    was_seen: bool,
}

/// A packet that waits for earlier ones.
struct BufferedPacket {
    news: Vec<SessionChange>,
    /// The time of its first arrival on a path. `None` for a requested packet, whose contents may be older.
    came_at: Option<u64>,
}

/// An open query.
struct OpenQuery {
    /// The id of the first attempt; each further one has the next id.
    ask: u64,
    wanted: QueryKind,
    attempt: u32,
    asked_at: [u64; ASKS_MAX as usize],
    again_at: u64,
}

impl GatewayTracker {
    pub fn new(times: TrackerTimes) -> Self {
        Self { times, known: BTreeMap::new(), voided: BTreeMap::new(), last_ask: 0, counts: TrackerCounts::default() }
    }

    /// Takes a packet, from either path.
    pub fn packet(&mut self, packet: Packet, now_ms: u64) -> Vec<TrackerEffect> {
        let mut todo = Vec::new();
        let Some(known) = self.meet(packet.gateway, &packet.address, now_ms, &mut todo) else {
            self.counts.refused += 1;
            return todo;
        };
        let took = known.take(packet.number, BufferedPacket { news: packet.news, came_at: Some(now_ms) });
        match took {
            PacketOutcome::New => {}
            PacketOutcome::Repeated => self.counts.repeated += 1,
            PacketOutcome::NoRoom => self.counts.overflowed += 1,
        }
        self.advance(packet.gateway.node, now_ms, &mut todo);
        todo
    }

    pub fn answered(&mut self, ask: u64, of: GatewayId, answer: GatewayReply, now_ms: u64) -> Vec<TrackerEffect> {
        let mut todo = Vec::new();
        let Some(known) = self.known.get_mut(&of.node).filter(|known| known.id == of) else { return todo };
        match answer {
            GatewayReply::Packets(packets) => {
                for packet in packets.into_iter().filter(|packet| packet.gateway == of) {
                    known.take(packet.number, BufferedPacket { news: packet.news, came_at: None });
                }
                if let Some(asking) = known.asking.take_if(|asking| asking.asked_at(ask).is_some()) {
                    // Requested packets that the answer lacks will not arrive. A snapshot includes them.
                    let is_short = matches!(&asking.wanted, QueryKind::Packets(numbers) if numbers.iter().any(|number| known.lacks(*number)));
                    known.wants_snapshot |= is_short;
                }
            }
            GatewayReply::Snapshot { as_of, sessions } => {
                // An older snapshot is the late answer to an earlier query.
                if as_of >= known.complete {
                    let asked_at = known.asking.as_ref().and_then(|asking| asking.asked_at(ask));
                    known.fresh_at = known.fresh_at.max(asked_at);
                }
                if as_of >= known.complete && (known.wants_snapshot || as_of > known.complete) {
                    known.snapshot(as_of);
                    self.counts.snapshots += 1;
                    todo.push(TrackerEffect::Replace { gateway: of, as_of, sessions });
                }
            }
            GatewayReply::OtherIncarnation(now) => {
                if now.is_some_and(|now| now.node != of.node || now.incarnation > of.incarnation) {
                    self.void_one(of, &mut todo);
                    return todo;
                }
                // The gateway has not started this incarnation yet. The query is repeated later.
            }
        }
        self.advance(of.node, now_ms, &mut todo);
        todo
    }

    pub fn tick(&mut self, now_ms: u64) -> Vec<TrackerEffect> {
        let mut todo = Vec::new();
        let nodes: Vec<u16> = self.known.keys().copied().collect();
        for node in nodes {
            let Some(known) = self.known.get(&node) else { continue };
            if !known.was_seen && now_ms >= known.first_heard_at + self.times.unseen_after_ms {
                // Nothing of it was returned, so nothing must be undone.
                self.known.remove(&node);
                continue;
            }
            self.advance(node, now_ms, &mut todo);
        }
        todo
    }

    /// Takes the complete list of live gateways. A gateway that disappeared from the list is void at once.
    pub fn living(&mut self, living: &[(GatewayId, Arc<str>)], now_ms: u64) -> Vec<TrackerEffect> {
        let mut todo = Vec::new();
        let ids: HashSet<GatewayId> = living.iter().map(|(id, _)| *id).collect();
        let gone = self.known.values().filter(|known| known.was_seen && !ids.contains(&known.id));
        let gone: Vec<GatewayId> = gone.map(|known| known.id).collect();
        gone.into_iter().for_each(|id| self.void_one(id, &mut todo));
        for (id, address) in living {
            if let Some(known) = self.meet(*id, address, now_ms, &mut todo) {
                known.was_seen = true;
                self.advance(id.node, now_ms, &mut todo);
            }
        }
        todo
    }

    /// Marks that incarnation and every earlier one of its node as void.
    pub fn void(&mut self, gateway: GatewayId) -> Vec<TrackerEffect> {
        let mut todo = Vec::new();
        self.void_one(gateway, &mut todo);
        todo
    }

    /// As of when the state of all gateways in the cluster view is true. `now_ms` if there are none; `None` while the state of one of them
    /// is unknown.
    pub fn fresh_at(&self, now_ms: u64) -> Option<u64> {
        let seen = self.known.values().filter(|known| known.was_seen);
        seen.map(TrackedGateway::fresh_at).fold(Some(now_ms), Ord::min)
    }

    /// Gateways in the cluster view without a snapshot so far.
    pub fn without_snapshot(&self) -> impl Iterator<Item = GatewayId> {
        self.known.values().filter(|known| known.was_seen && !known.has_snapshot).map(|known| known.id)
    }

    /// Gateways in the cluster view whose state is older than `since_ms`.
    pub fn stale_gateways(&self, since_ms: u64) -> impl Iterator<Item = GatewayId> {
        let seen = self.known.values().filter(|known| known.was_seen);
        seen.filter(move |known| known.fresh_at().is_none_or(|at| at < since_ms)).map(|known| known.id)
    }

    /// The gateway of that node: incarnation, number up to which it is complete, highest number seen.
    pub fn position_of(&self, node: u16) -> Option<(GatewayId, u64, u64)> {
        self.known.get(&node).map(|known| (known.id, known.complete, known.highest))
    }

    /// The number of packets that wait behind gaps.
    pub fn buffered(&self) -> usize {
        self.known.values().map(|known| known.buffered.len()).sum()
    }

    /// Finds or adds a gateway. `None`: it is void.
    fn meet(
        &mut self,
        id: GatewayId,
        address: &Arc<str>,
        now_ms: u64,
        todo: &mut Vec<TrackerEffect>,
    ) -> Option<&mut TrackedGateway> {
        if self.voided.get(&id.node).is_some_and(|voided| *voided >= id.incarnation) {
            return None;
        }
        if let Some(earlier) = self.known.get(&id.node).map(|known| known.id) {
            if earlier.incarnation > id.incarnation {
                return None;
            }
            if earlier != id {
                self.void_one(earlier, todo);
            }
        }
        let known = self.known.entry(id.node).or_insert_with(|| TrackedGateway::new(id, address.clone(), now_ms));
        if known.address != *address && !address.is_empty() {
            known.address = address.clone();
        }
        Some(known)
    }

    fn void_one(&mut self, id: GatewayId, todo: &mut Vec<TrackerEffect>) {
        let voided = self.voided.entry(id.node).or_insert(0);
        if *voided >= id.incarnation {
            return;
        }
        *voided = id.incarnation;
        if self.known.get(&id.node).is_some_and(|known| known.id.incarnation <= id.incarnation) {
            self.known.remove(&id.node);
        }
        todo.push(TrackerEffect::Void(id));
    }

    /// Returns what has become complete, and queries what is missing when it is due.
    fn advance(&mut self, node: u16, now_ms: u64, todo: &mut Vec<TrackerEffect>) {
        let Some(known) = self.known.get_mut(&node).filter(|known| known.was_seen) else { return };
        let mut came_at = None;
        while known.has_snapshot {
            let Some(next) = known.next_complete() else { break };
            came_at = next.came_at;
            if !next.news.is_empty() {
                todo.push(TrackerEffect::Apply { gateway: known.id, number: known.complete, news: next.news });
            }
        }
        // Only the last one counts: an earlier number that arrived later has no newer contents.
        known.fresh_at = known.fresh_at.max(came_at);
        let missing = known.missing();
        known.gap_since = if missing == 0 { None } else { known.gap_since.or(Some(now_ms)) };
        let is_silent = now_ms >= known.fresh_at.unwrap_or(known.first_heard_at) + self.times.silent_after_ms;
        // No snapshot is needed if all missing packets have arrived after all.
        known.wants_snapshot = is_silent || (known.wants_snapshot && (missing > 0 || !known.has_snapshot));
        if let Some(asking) = &mut known.asking {
            let is_settled = match &asking.wanted {
                QueryKind::Snapshot => !known.wants_snapshot,
                QueryKind::Packets(numbers) => {
                    known.wants_snapshot || numbers.iter().all(|number| *number <= known.complete)
                }
            };
            if !is_settled && now_ms < asking.again_at {
                return;
            }
            if !is_settled && asking.attempt + 1 < ASKS_MAX {
                asking.attempt += 1;
                asking.asked_at[asking.attempt as usize] = now_ms;
                asking.again_at = now_ms + self.times.again_after(&asking.wanted);
                self.counts.asks += 1;
                todo.push(TrackerEffect::Ask(known.question()));
                return;
            }
            if !is_settled {
                self.counts.unanswered += 1;
                if asking.wanted == QueryKind::Snapshot {
                    known.rest_until = now_ms + self.times.rest_ms;
                }
                known.wants_snapshot = true;
            }
            known.asking = None;
        }
        if now_ms < known.rest_until {
            return;
        }
        let is_due = known.gap_since.is_some_and(|since| now_ms >= since + self.times.ask_after_ms);
        known.wants_snapshot |= is_due && missing > ASKED_NUMBERS_MAX as u64;
        let wanted = if known.wants_snapshot {
            QueryKind::Snapshot
        } else if is_due {
            self.counts.gaps += 1;
            QueryKind::Packets(known.missing_numbers())
        } else {
            return;
        };
        self.last_ask += u64::from(ASKS_MAX);
        self.counts.asks += 1;
        let again_at = now_ms + self.times.again_after(&wanted);
        let asked_at = [now_ms; ASKS_MAX as usize];
        known.asking = Some(OpenQuery { ask: self.last_ask, wanted, attempt: 0, asked_at, again_at });
        todo.push(TrackerEffect::Ask(known.question()));
    }
}

impl TrackerTimes {
    fn again_after(&self, wanted: &QueryKind) -> u64 {
        match wanted {
            QueryKind::Packets(_) => self.ask_again_ms,
            QueryKind::Snapshot => self.snapshot_again_ms,
        }
    }
}

impl OpenQuery {
    /// The time of the attempt with that id; `None` if it belongs to another query.
    fn asked_at(&self, ask: u64) -> Option<u64> {
        let attempt = ask.checked_sub(self.ask).filter(|attempt| *attempt <= u64::from(self.attempt))?;
        self.asked_at.get(usize::try_from(attempt).ok()?).copied()
    }
}

enum PacketOutcome {
    New,
    Repeated,
    NoRoom,
}

impl TrackedGateway {
    fn new(id: GatewayId, address: Arc<str>, now_ms: u64) -> Self {
        Self {
            id,
            address,
            complete: 0,
            highest: 0,
            buffered: BTreeMap::new(),
            buffered_news: 0,
            wants_snapshot: true,
            has_snapshot: false,
            gap_since: None,
            asking: None,
            rest_until: 0,
            fresh_at: None,
            first_heard_at: now_ms,
            was_seen: false,
        }
    }

    fn lacks(&self, number: u64) -> bool {
        number > self.complete && !self.buffered.contains_key(&number)
    }

    /// As of when its state is true; `None` before its first snapshot.
    fn fresh_at(&self) -> Option<u64> {
        self.fresh_at.filter(|_| self.has_snapshot)
    }

    fn take(&mut self, number: u64, packet: BufferedPacket) -> PacketOutcome {
        self.highest = self.highest.max(number);
        if !self.lacks(number) {
            return PacketOutcome::Repeated;
        }
        let is_next = number == self.complete + 1 && self.has_snapshot;
        let is_full = self.buffered.len() >= BUFFERED_PACKETS_MAX || self.buffered_news >= BUFFERED_NEWS_MAX;
        if is_full && !is_next {
            return PacketOutcome::NoRoom;
        }
        self.buffered_news += packet.news.len();
        self.buffered.insert(number, packet);
        PacketOutcome::New
    }

    /// Takes the next packet, if it has arrived.
    fn next_complete(&mut self) -> Option<BufferedPacket> {
        let next = self.buffered.remove(&(self.complete + 1))?;
        self.complete += 1;
        self.buffered_news -= next.news.len();
        Some(next)
    }

    /// Applies a snapshot: buffered packets up to its number are obsolete.
    fn snapshot(&mut self, as_of: u64) {
        self.complete = as_of;
        self.buffered = self.buffered.split_off(&(as_of + 1));
        // Numbers too far ahead of the snapshot are not from this gateway.
        self.buffered.retain(|number, _| *number <= as_of + BUFFERED_PACKETS_MAX as u64);
        self.buffered_news = self.buffered.values().map(|packet| packet.news.len()).sum();
        // If a higher number was seen, the next packet shows the gap again.
        self.highest = self.buffered.last_key_value().map_or(as_of, |(number, _)| *number);
        self.wants_snapshot = false;
        self.has_snapshot = true;
        self.gap_since = None;
        self.rest_until = 0;
    }

    /// The number of missing packets up to the highest.
    fn missing(&self) -> u64 {
        self.highest - self.complete - self.buffered.len() as u64
    }

    fn missing_numbers(&self) -> Vec<u64> {
        let numbers = self.complete + 1..=self.highest;
        numbers.filter(|number| !self.buffered.contains_key(number)).take(ASKED_NUMBERS_MAX).collect()
    }

    fn question(&self) -> QueryAttempt {
        let asking = self.asking.as_ref().expect("a question is under way");
        QueryAttempt {
            ask: asking.ask + u64::from(asking.attempt),
            gateway: self.id,
            address: self.address.clone(),
            wanted: asking.wanted.clone(),
            attempt: asking.attempt,
        }
    }
}

#[cfg(test)]
#[path = "gateway_tracker_tests.rs"]
mod tests;
