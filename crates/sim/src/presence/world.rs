//! The world of presence: gateways, proxies, writers of two data centres, and the network between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_people::presence::gateway_tracker::QueryAttempt;
use whimbrel_people::presence::packet::{GatewayQuery, GatewayReply, Packet};
use whimbrel_people::presence::proxy::spread;
use whimbrel_people::presence::settings::{Layout, PresenceSettings};

use super::gateway::{PresenceGateway, PresenceTruth};
use super::profile::{PresenceFaults, PresenceProfile};
use super::report::PresenceCounts;
use super::writer::SimWriter;
use crate::trace::Trace;
use crate::{CheckResult, Rng};

/// The interval at which gateways cut packets and writers check the time.
pub const TICK_MS: u64 = 50;
/// The number of users: few, so that they have several sessions and come back.
const USERS: u64 = 12;
/// The shards of two data centres of different sizes.
const SHARDS: [u32; 2] = [2, 3];
/// The maximum time of a message in transit; and of a slow one.
const WAY_MS_MAX: u64 = 20;
const SLOW_WAY_MS_MAX: u64 = 3_000;
/// The time for which a lease outlives its gateway, and the maximum delay of a view.
const LEASE_MS: (u64, u64) = (200, 3_000);
const VIEW_MS_MAX: u64 = 300;
/// The age beyond which a reader rejects a store.
const STALE_AFTER_MS: u64 = 3_000;

/// A message in transit.
enum NetworkMessage {
    Report {
        writer: usize,
        life: u64,
        packet: Packet,
    },
    Relay {
        path: usize,
        packet: Arc<Packet>,
    },
    Ask {
        writer: usize,
        life: u64,
        ask: u64,
        asked: GatewayQuery,
    },
    Answer {
        writer: usize,
        life: u64,
        ask: u64,
        of: GatewayId,
        answer: GatewayReply,
    },
    View {
        writer: usize,
        life: u64,
        revision: u64,
        living: Arc<Vec<(GatewayId, Arc<str>)>>,
    },
    /// A lease ends.
    Lapse {
        id: GatewayId,
    },
    /// A process starts, or joins again after it lost its lease.
    Join {
        gateway: usize,
    },
}

pub struct PresenceWorld {
    pub now: u64,
    pub rng: Rng,
    pub trace: Trace,
    pub faults: PresenceFaults,
    /// `None` while the gateway is dead.
    pub gateways: Vec<Option<PresenceGateway>>,
    pub writers: Vec<SimWriter>,
    truth: PresenceTruth,
    layout: Layout,
    living: Vec<(GatewayId, Arc<str>)>,
    incarnations: u64,
    on_the_way: BTreeMap<(u64, u64), NetworkMessage>,
    sent: u64,
    /// The number of changes of the live gateways, and the last change that each writer has seen: views never go back.
    revision: u64,
    seen: Vec<u64>,
    /// The end of the outage of each of the two paths, and of requests.
    pub cut_until: [u64; 3],
    /// The end of the time for which each gateway is unreachable.
    pub unreachable_until: Vec<u64>,
    /// The maximum by which a fresh store may be older than it reports: a change waits for its packet, then for its way to a proxy and a
    /// writer, and views are late.
    allowed_ms: u64,
    pub counts: PresenceCounts,
}

impl PresenceWorld {
    pub fn new(
        gateways: usize,
        faults: PresenceFaults,
        profile: PresenceProfile,
        rng: Rng,
        trace: Trace,
    ) -> CheckResult<Self> {
        let writers = SHARDS.iter().enumerate();
        let address = |centre: usize, shard: u32| format!("w{centre}/{shard}");
        let addresses =
            writers.clone().map(|(centre, shards)| (0..*shards).map(|shard| address(centre, shard)).collect());
        let settings = PresenceSettings { writers: addresses.collect(), ..PresenceSettings::default() };
        let writers = writers.flat_map(|(centre, shards)| {
            (0..*shards).map(move |shard| SimWriter::new(centre as u32, shard, *shards, profile))
        });
        let writers: Vec<SimWriter> = writers.collect();
        let longest_way_ms = if faults.slow == 0 { WAY_MS_MAX } else { SLOW_WAY_MS_MAX };
        let mut world = Self {
            now: 1,
            rng,
            trace,
            faults,
            gateways: (0..gateways).map(|_| None).collect(),
            revision: 0,
            seen: vec![0; writers.len()],
            writers,
            truth: PresenceTruth::default(),
            layout: Layout::of(&settings, "none of the writers"),
            living: Vec::new(),
            incarnations: 0,
            on_the_way: BTreeMap::new(),
            sent: 0,
            cut_until: [0; 3],
            unreachable_until: vec![0; gateways],
            allowed_ms: TICK_MS + 2 * longest_way_ms + VIEW_MS_MAX,
            counts: PresenceCounts::default(),
        };
        for gateway in 0..gateways {
            world.join(gateway)?;
        }
        for writer in 0..world.writers.len() {
            world.start(writer)?;
        }
        Ok(world)
    }

    fn note(&mut self, step: impl FnOnce() -> String) {
        let now = self.now;
        self.trace.note(|| format!("{now:6} {}", step()));
    }

    /// Lets time pass to the next tick, and delivers the messages that arrive until then.
    pub fn tick(&mut self) -> CheckResult {
        let until = self.now + TICK_MS;
        while let Some(entry) = self.on_the_way.first_entry().filter(|entry| entry.key().0 <= until) {
            self.now = self.now.max(entry.key().0);
            let message = entry.remove();
            self.arrive(message)?;
        }
        self.now = until;
        for gateway in 0..self.gateways.len() {
            self.cut(gateway)?;
        }
        for writer in 0..self.writers.len() {
            if self.writers[writer].down_until.is_some_and(|until| self.now >= until) {
                self.start(writer)?;
            }
            if self.writers[writer].down_until.is_none() {
                let todo = self.writers[writer].tracker.tick(self.now);
                let questions = self.writers[writer].carry_out(todo, &self.truth)?;
                self.ask(writer, questions);
                self.writers[writer].vouch(self.now);
            }
        }
        self.is_true_where_fresh()
    }

    /// Checks that every store that a reader would accept now was true at its reported time, or later.
    fn is_true_where_fresh(&mut self) -> CheckResult {
        for writer in &self.writers {
            match writer.vouched.filter(|vouched| self.now <= vouched + STALE_AFTER_MS) {
                None => self.counts.not_fresh += 1,
                Some(vouched) => {
                    self.counts.fresh += 1;
                    writer.is_true_since(vouched.saturating_sub(self.allowed_ms), &self.truth)?;
                }
            }
        }
        Ok(())
    }

    /// Begins or ends a session at a gateway.
    pub fn live(&mut self, gateway: usize) {
        let Some(at) = &mut self.gateways[gateway] else { return };
        let goes = !at.there.is_empty() && (at.there.len() > 8 || self.rng.one_in(2));
        if goes {
            let numbers: Vec<u64> = at.there.keys().copied().collect();
            at.go(*self.rng.pick(&numbers));
        } else {
            let uid = Uid::new(&format!("u{}", self.rng.below(USERS))).expect("a valid name");
            at.come(&uid);
        }
        self.counts.news += 1;
    }

    /// Ends the process of a gateway. Its lease lasts for a while.
    pub fn kill(&mut self, gateway: usize) {
        let Some(dead) = self.gateways[gateway].take() else { return };
        self.counts.deaths += 1;
        self.note(|| format!("gateway {} dies", dead.id));
        self.truth.ends(dead.id, self.now);
        let lapse = self.now + self.rng.between(LEASE_MS.0, LEASE_MS.1);
        self.later(lapse, NetworkMessage::Lapse { id: dead.id });
        let back = lapse + self.rng.below(3_000);
        self.later(back, NetworkMessage::Join { gateway });
    }

    /// Takes the lease of a running gateway.
    pub fn lose_lease(&mut self, gateway: usize) {
        let Some(id) = self.gateways[gateway].as_ref().map(|at| at.id) else { return };
        if !self.living.iter().any(|(living, _)| *living == id) {
            return;
        }
        self.counts.leases_lost += 1;
        self.lapse(id);
        let back = self.now + self.rng.below(3_000);
        self.later(back, NetworkMessage::Join { gateway });
    }

    pub fn restart(&mut self, writer: usize) {
        if self.writers[writer].down_until.is_none() {
            self.counts.restarts += 1;
            let (until, keeps_store) = (self.now + self.rng.below(8_000), self.rng.one_in(2));
            self.writers[writer].stop(until, keeps_store);
            self.note(|| format!("writer {writer} is down until {until}, its store stays: {keeps_store}"));
        }
    }

    fn start(&mut self, writer: usize) -> CheckResult {
        self.note(|| format!("writer {writer} starts"));
        self.seen[writer] = self.revision;
        let questions = self.writers[writer].start(&self.living, self.now, &self.truth)?;
        self.ask(writer, questions);
        Ok(())
    }

    fn join(&mut self, gateway: usize) -> CheckResult {
        let present = self.gateways[gateway].as_ref().map(|at| at.id);
        if self.living.iter().any(|(id, _)| Some(*id) == present) {
            return Ok(());
        }
        // The node number of a live lease is taken. A process that only lost its lease gets any free number.
        let taken = |node: u16| self.living.iter().any(|(id, _)| id.node == node);
        let free: Vec<u16> = (1..=6).filter(|node| !taken(*node)).collect();
        if free.is_empty() {
            self.later(self.now + TICK_MS, NetworkMessage::Join { gateway });
            return Ok(());
        }
        self.incarnations += 1;
        let id = GatewayId { node: *self.rng.pick(&free), incarnation: self.incarnations };
        let address: Arc<str> = format!("g{gateway}").into();
        match &mut self.gateways[gateway] {
            Some(at) => at.reincarnate(id, self.now),
            None => self.gateways[gateway] = Some(PresenceGateway::new(id, &address, self.now)),
        }
        self.note(|| format!("gateway {gateway} is {id}"));
        self.living.push((id, address));
        self.living.sort();
        self.show();
        self.cut(gateway)
    }

    fn lapse(&mut self, id: GatewayId) {
        self.note(|| format!("the lease of {id} is over"));
        self.living.retain(|(living, _)| *living != id);
        // Stores may show a gateway without a lease until all writers have seen the change.
        self.truth.ends(id, self.now + VIEW_MS_MAX);
        self.show();
    }

    /// Sends the live gateways to the writers, each with its own delay.
    fn show(&mut self) {
        self.revision += 1;
        let (revision, living) = (self.revision, Arc::new(self.living.clone()));
        for writer in 0..self.writers.len() {
            let at = self.now + self.rng.below(VIEW_MS_MAX);
            let life = self.writers[writer].life;
            self.later(at, NetworkMessage::View { writer, life, revision, living: living.clone() });
        }
    }

    fn cut(&mut self, gateway: usize) -> CheckResult {
        let Some(at) = &mut self.gateways[gateway] else { return Ok(()) };
        let packets = at.cut(self.now, &mut self.truth)?;
        self.report(gateway, packets);
        Ok(())
    }

    /// Sends each packet on both paths.
    fn report(&mut self, gateway: usize, packets: Vec<Arc<Packet>>) {
        for packet in packets {
            self.counts.packets += 1;
            if self.is_unreachable(gateway) {
                self.counts.lost += 2;
                continue;
            }
            for path in 0..2 {
                self.send(path, || NetworkMessage::Relay { path, packet: packet.clone() });
            }
        }
    }

    fn ask(&mut self, writer: usize, questions: Vec<QueryAttempt>) {
        for QueryAttempt { ask, gateway, address, wanted, attempt } in questions {
            let SimWriter { shard, shards, life, .. } = self.writers[writer];
            self.note(|| format!("writer {writer} asks {gateway} for {wanted:?}, attempt {attempt}"));
            let asked = GatewayQuery { gateway, address, shard, shards, wanted };
            self.send(2, || NetworkMessage::Ask { writer, life, ask, asked: asked.clone() });
        }
    }

    /// Sends a message: it may be lost, repeated or late.
    fn send(&mut self, path: usize, message: impl Fn() -> NetworkMessage) {
        let copies = 1 + usize::from(self.rng.one_in(self.faults.repeated));
        for _ in 0..copies {
            if self.now < self.cut_until[path] || self.rng.one_in(self.faults.lost) {
                self.counts.lost += 1;
                continue;
            }
            let longest = if self.rng.one_in(self.faults.slow) { SLOW_WAY_MS_MAX } else { WAY_MS_MAX };
            let at = self.now + self.rng.between(1, longest);
            self.later(at, message());
        }
    }

    fn later(&mut self, at: u64, message: NetworkMessage) {
        self.sent += 1;
        self.on_the_way.insert((at, self.sent), message);
    }

    fn arrive(&mut self, message: NetworkMessage) -> CheckResult {
        match message {
            NetworkMessage::Relay { path, packet } => {
                for part in spread(&packet, &self.layout).into_iter().flatten() {
                    let writer = self.writers.iter().position(|w| (w.centre, w.shard) == (part.centre, part.shard));
                    let writer = writer.ok_or("a part without a writer")?;
                    let life = self.writers[writer].life;
                    self.send(path, || NetworkMessage::Report { writer, life, packet: part.packet.clone() });
                }
            }
            NetworkMessage::Report { writer, life, packet } if self.is_up(writer, life) => {
                let (id, number) = (packet.gateway, packet.number);
                self.note(|| format!("writer {writer} gets {number} of {id}"));
                let questions = self.writers[writer].packet(packet, self.now, &self.truth)?;
                self.ask(writer, questions);
            }
            NetworkMessage::Ask { writer, life, ask, asked } => {
                // The gateway that is at the address now answers.
                let index = asked.address.strip_prefix('g').and_then(|number| number.parse::<usize>().ok());
                let index = index.filter(|index| !self.is_unreachable(*index)).unwrap_or(usize::MAX);
                let Some(at) = self.gateways.get_mut(index).and_then(Option::as_mut) else { return Ok(()) };
                let (answer, packets) = at.answer(&asked, self.now, &mut self.truth)?;
                self.report(index, packets);
                let of = asked.gateway;
                self.send(2, || NetworkMessage::Answer { writer, life, ask, of, answer: answer.clone() });
            }
            NetworkMessage::Answer { writer, life, ask, of, answer } if self.is_up(writer, life) => {
                self.note(|| format!("writer {writer} receives from {of}: {}", short(&answer)));
                let todo = self.writers[writer].tracker.answered(ask, of, answer, self.now);
                let questions = self.writers[writer].carry_out(todo, &self.truth)?;
                self.ask(writer, questions);
            }
            NetworkMessage::View { writer, life, revision, living }
                if self.is_up(writer, life) && revision > self.seen[writer] =>
            {
                self.seen[writer] = revision;
                let todo = self.writers[writer].tracker.living(&living, self.now);
                let questions = self.writers[writer].carry_out(todo, &self.truth)?;
                self.ask(writer, questions);
            }
            NetworkMessage::Lapse { id } => self.lapse(id),
            NetworkMessage::Join { gateway } => self.join(gateway)?,
            NetworkMessage::Report { .. } | NetworkMessage::Answer { .. } | NetworkMessage::View { .. } => {}
        }
        Ok(())
    }

    fn is_unreachable(&self, gateway: usize) -> bool {
        self.unreachable_until.get(gateway).is_some_and(|until| self.now < *until)
    }

    fn is_up(&self, writer: usize, life: u64) -> bool {
        self.writers[writer].life == life && self.writers[writer].down_until.is_none()
    }

    /// Checks that every writer of every data centre shows exactly the connected sessions, and is fresh.
    pub fn is_true_everywhere(&self) -> CheckResult {
        for writer in &self.writers {
            if writer.vouched.is_none_or(|vouched| self.now > vouched + STALE_AFTER_MS) {
                return Err(format!("{writer:?} is not fresh, although there are no faults"));
            }
            for gateway in self.gateways.iter().flatten() {
                writer.has_exactly(gateway.id, &gateway.there)?;
            }
            for (id, there) in &writer.store {
                if !there.is_empty() && !self.gateways.iter().flatten().any(|gateway| gateway.id == *id) {
                    return Err(format!("{writer:?} shows sessions of {id}, which is gone"));
                }
            }
        }
        Ok(())
    }
}

fn short(answer: &GatewayReply) -> String {
    match answer {
        GatewayReply::Packets(packets) => format!("{} packets", packets.len()),
        GatewayReply::Snapshot { as_of, .. } => format!("the snapshot as of {as_of}"),
        GatewayReply::OtherIncarnation(now) => format!("it is {now:?}"),
    }
}
