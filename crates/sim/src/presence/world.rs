//! The world of presence: gateways, proxies, writers of two data centres, and the network between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_people::presence::ledger::Question;
use whimbrel_people::presence::packet::{Answer, AskGateway, Packet};
use whimbrel_people::presence::proxy::spread;
use whimbrel_people::presence::settings::{Layout, PresenceSettings};

use super::Check;
use super::gateway::{SimGateway, Truth};
use super::profile::{PresenceProfile, Trouble};
use super::writer::SimWriter;
use crate::Rng;
use crate::trace::Trace;

/// How often gateways gather and writers look at the time.
pub const TICK_MS: u64 = 50;
/// Users, so few that they have several sessions and come back.
const USERS: u64 = 12;
/// Two data centres of different size.
const SHARDS: [u32; 2] = [2, 3];
/// What a message takes on its way, at most; and a slow one.
const WAY_MS_MAX: u64 = 20;
const SLOW_WAY_MS_MAX: u64 = 3_000;
/// How long a lease outlives its gateway, and a view the change that it shows.
const LEASE_MS: (u64, u64) = (200, 3_000);
const VIEW_MS_MAX: u64 = 300;
/// Beyond this age a reader refuses to answer.
const STALE_AFTER_MS: u64 = 3_000;

/// Something on its way.
enum Message {
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
        asked: AskGateway,
    },
    Answer {
        writer: usize,
        life: u64,
        ask: u64,
        of: GatewayId,
        answer: Answer,
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
    /// A process starts, or one whose lease was lost joins again.
    Join {
        gateway: usize,
    },
}

pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub trace: Trace,
    pub trouble: Trouble,
    /// `None`: dead.
    pub gateways: Vec<Option<SimGateway>>,
    pub writers: Vec<SimWriter>,
    truth: Truth,
    layout: Layout,
    living: Vec<(GatewayId, Arc<str>)>,
    incarnations: u64,
    on_the_way: BTreeMap<(u64, u64), Message>,
    sent: u64,
    /// How often it changed who lives, and as of which change each writer knows: views never go back.
    revision: u64,
    seen: Vec<u64>,
    /// Until when each of the two paths, and questions, do not come through.
    pub cut_until: [u64; 3],
    /// Until when nothing comes from or to each gateway.
    pub unheard_until: Vec<u64>,
    /// How much older what is told as fresh may be: what happened is gathered, then on its way to a proxy and to a writer; and who lives is
    /// seen late.
    allowed_ms: u64,
    pub news: u64,
    pub packets: u64,
    pub lost: u64,
    pub restarts: u64,
    pub deaths: u64,
    pub leases_lost: u64,
    pub fresh: u64,
    pub not_fresh: u64,
}

impl World {
    pub fn new(gateways: usize, trouble: Trouble, profile: PresenceProfile, rng: Rng, trace: Trace) -> Check<Self> {
        let writers = SHARDS.iter().enumerate();
        let address = |centre: usize, shard: u32| format!("w{centre}/{shard}");
        let addresses =
            writers.clone().map(|(centre, shards)| (0..*shards).map(|shard| address(centre, shard)).collect());
        let settings = PresenceSettings { writers: addresses.collect(), ..PresenceSettings::default() };
        let writers = writers.flat_map(|(centre, shards)| {
            (0..*shards).map(move |shard| SimWriter::new(centre as u32, shard, *shards, profile))
        });
        let writers: Vec<SimWriter> = writers.collect();
        let longest_way_ms = if trouble.slow == 0 { WAY_MS_MAX } else { SLOW_WAY_MS_MAX };
        let mut world = Self {
            now: 1,
            rng,
            trace,
            trouble,
            gateways: (0..gateways).map(|_| None).collect(),
            revision: 0,
            seen: vec![0; writers.len()],
            writers,
            truth: Truth::default(),
            layout: Layout::of(&settings, "nobody"),
            living: Vec::new(),
            incarnations: 0,
            on_the_way: BTreeMap::new(),
            sent: 0,
            cut_until: [0; 3],
            unheard_until: vec![0; gateways],
            allowed_ms: TICK_MS + 2 * longest_way_ms + VIEW_MS_MAX,
            news: 0,
            packets: 0,
            lost: 0,
            restarts: 0,
            deaths: 0,
            leases_lost: 0,
            fresh: 0,
            not_fresh: 0,
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

    /// Lets time pass to the next tick; everything that arrives until then does.
    pub fn tick(&mut self) -> Check {
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
                let todo = self.writers[writer].ledger.tick(self.now);
                let questions = self.writers[writer].carry_out(todo, &self.truth)?;
                self.ask(writer, questions);
                self.writers[writer].vouch(self.now);
            }
        }
        self.is_true_where_fresh()
    }

    /// Whatever a reader would answer now was true when it says, or later.
    fn is_true_where_fresh(&mut self) -> Check {
        for writer in &self.writers {
            match writer.vouched.filter(|vouched| self.now <= vouched + STALE_AFTER_MS) {
                None => self.not_fresh += 1,
                Some(vouched) => {
                    self.fresh += 1;
                    writer.is_true_since(vouched.saturating_sub(self.allowed_ms), &self.truth)?;
                }
            }
        }
        Ok(())
    }

    /// Somebody comes to a gateway, or goes.
    pub fn live(&mut self, gateway: usize) {
        let Some(at) = &mut self.gateways[gateway] else { return };
        let goes = !at.there.is_empty() && (at.there.len() > 8 || self.rng.one_in(2));
        if goes {
            let numbers: Vec<u64> = at.there.keys().copied().collect();
            at.go(*self.rng.pick(&numbers));
        } else {
            let uid = Uid::new(&format!("u{}", self.rng.below(USERS))).expect("a good name");
            at.come(&uid);
        }
        self.news += 1;
    }

    /// A gateway's process is gone; its lease lasts for a while.
    pub fn kill(&mut self, gateway: usize) {
        let Some(dead) = self.gateways[gateway].take() else { return };
        self.deaths += 1;
        self.note(|| format!("gateway {} dies", dead.id));
        self.truth.ends(dead.id, self.now);
        let lapse = self.now + self.rng.between(LEASE_MS.0, LEASE_MS.1);
        self.later(lapse, Message::Lapse { id: dead.id });
        let back = lapse + self.rng.below(3_000);
        self.later(back, Message::Join { gateway });
    }

    /// A gateway lives on and its lease is lost.
    pub fn lose_lease(&mut self, gateway: usize) {
        let Some(id) = self.gateways[gateway].as_ref().map(|at| at.id) else { return };
        if !self.living.iter().any(|(living, _)| *living == id) {
            return;
        }
        self.leases_lost += 1;
        self.lapse(id);
        let back = self.now + self.rng.below(3_000);
        self.later(back, Message::Join { gateway });
    }

    pub fn restart(&mut self, writer: usize) {
        if self.writers[writer].down_until.is_none() {
            self.restarts += 1;
            let (until, keeps_store) = (self.now + self.rng.below(8_000), self.rng.one_in(2));
            self.writers[writer].stop(until, keeps_store);
            self.note(|| format!("writer {writer} is down until {until}, its store stays: {keeps_store}"));
        }
    }

    fn start(&mut self, writer: usize) -> Check {
        self.note(|| format!("writer {writer} starts"));
        self.seen[writer] = self.revision;
        let questions = self.writers[writer].start(&self.living, self.now, &self.truth)?;
        self.ask(writer, questions);
        Ok(())
    }

    fn join(&mut self, gateway: usize) -> Check {
        let present = self.gateways[gateway].as_ref().map(|at| at.id);
        if self.living.iter().any(|(id, _)| Some(*id) == present) {
            return Ok(());
        }
        // The lease of an earlier one under the number must be over; a process that only lost its lease gets any free number.
        let taken = |node: u16| self.living.iter().any(|(id, _)| id.node == node);
        let free: Vec<u16> = (1..=6).filter(|node| !taken(*node)).collect();
        if free.is_empty() {
            self.later(self.now + TICK_MS, Message::Join { gateway });
            return Ok(());
        }
        self.incarnations += 1;
        let id = GatewayId { node: *self.rng.pick(&free), incarnation: self.incarnations };
        let address: Arc<str> = format!("g{gateway}").into();
        match &mut self.gateways[gateway] {
            Some(at) => at.reincarnate(id, self.now),
            None => self.gateways[gateway] = Some(SimGateway::new(id, &address, self.now)),
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
        // A gateway that lives on is believed until everybody has seen it.
        self.truth.ends(id, self.now + VIEW_MS_MAX);
        self.show();
    }

    /// The writers see who lives, each in its time.
    fn show(&mut self) {
        self.revision += 1;
        let (revision, living) = (self.revision, Arc::new(self.living.clone()));
        for writer in 0..self.writers.len() {
            let at = self.now + self.rng.below(VIEW_MS_MAX);
            let life = self.writers[writer].life;
            self.later(at, Message::View { writer, life, revision, living: living.clone() });
        }
    }

    fn cut(&mut self, gateway: usize) -> Check {
        let Some(at) = &mut self.gateways[gateway] else { return Ok(()) };
        let packets = at.cut(self.now, &mut self.truth)?;
        self.report(gateway, packets);
        Ok(())
    }

    /// Each packet goes on both paths.
    fn report(&mut self, gateway: usize, packets: Vec<Arc<Packet>>) {
        for packet in packets {
            self.packets += 1;
            if self.is_unheard(gateway) {
                self.lost += 2;
                continue;
            }
            for path in 0..2 {
                self.send(path, || Message::Relay { path, packet: packet.clone() });
            }
        }
    }

    fn ask(&mut self, writer: usize, questions: Vec<Question>) {
        for Question { ask, gateway, address, wanted, attempt } in questions {
            let SimWriter { shard, shards, life, .. } = self.writers[writer];
            self.note(|| format!("writer {writer} asks {gateway} for {wanted:?}, attempt {attempt}"));
            let asked = AskGateway { gateway, address, shard, shards, wanted };
            self.send(2, || Message::Ask { writer, life, ask, asked: asked.clone() });
        }
    }

    /// Puts a message on its way: it may be lost, come twice, or late.
    fn send(&mut self, path: usize, message: impl Fn() -> Message) {
        let copies = 1 + usize::from(self.rng.one_in(self.trouble.repeated));
        for _ in 0..copies {
            if self.now < self.cut_until[path] || self.rng.one_in(self.trouble.lost) {
                self.lost += 1;
                continue;
            }
            let longest = if self.rng.one_in(self.trouble.slow) { SLOW_WAY_MS_MAX } else { WAY_MS_MAX };
            let at = self.now + self.rng.between(1, longest);
            self.later(at, message());
        }
    }

    fn later(&mut self, at: u64, message: Message) {
        self.sent += 1;
        self.on_the_way.insert((at, self.sent), message);
    }

    fn arrive(&mut self, message: Message) -> Check {
        match message {
            Message::Relay { path, packet } => {
                for part in spread(&packet, &self.layout).into_iter().flatten() {
                    let writer = self.writers.iter().position(|w| (w.centre, w.shard) == (part.centre, part.shard));
                    let writer = writer.ok_or("a part for nobody")?;
                    let life = self.writers[writer].life;
                    self.send(path, || Message::Report { writer, life, packet: part.packet.clone() });
                }
            }
            Message::Report { writer, life, packet } if self.is_up(writer, life) => {
                let (id, number) = (packet.gateway, packet.number);
                self.note(|| format!("writer {writer} gets {number} of {id}"));
                let questions = self.writers[writer].packet(packet, self.now, &self.truth)?;
                self.ask(writer, questions);
            }
            Message::Ask { writer, life, ask, asked } => {
                // Who is at that address answers, whoever it is by now.
                let index = asked.address.strip_prefix('g').and_then(|number| number.parse::<usize>().ok());
                let index = index.filter(|index| !self.is_unheard(*index)).unwrap_or(usize::MAX);
                let Some(at) = self.gateways.get_mut(index).and_then(Option::as_mut) else { return Ok(()) };
                let (answer, packets) = at.answer(&asked, self.now, &mut self.truth)?;
                self.report(index, packets);
                let of = asked.gateway;
                self.send(2, || Message::Answer { writer, life, ask, of, answer: answer.clone() });
            }
            Message::Answer { writer, life, ask, of, answer } if self.is_up(writer, life) => {
                self.note(|| format!("writer {writer} hears from {of}: {}", short(&answer)));
                let todo = self.writers[writer].ledger.answered(ask, of, answer, self.now);
                let questions = self.writers[writer].carry_out(todo, &self.truth)?;
                self.ask(writer, questions);
            }
            Message::View { writer, life, revision, living }
                if self.is_up(writer, life) && revision > self.seen[writer] =>
            {
                self.seen[writer] = revision;
                let todo = self.writers[writer].ledger.living(&living, self.now);
                let questions = self.writers[writer].carry_out(todo, &self.truth)?;
                self.ask(writer, questions);
            }
            Message::Lapse { id } => self.lapse(id),
            Message::Join { gateway } => self.join(gateway)?,
            Message::Report { .. } | Message::Answer { .. } | Message::View { .. } => {}
        }
        Ok(())
    }

    fn is_unheard(&self, gateway: usize) -> bool {
        self.unheard_until.get(gateway).is_some_and(|until| self.now < *until)
    }

    fn is_up(&self, writer: usize, life: u64) -> bool {
        self.writers[writer].life == life && self.writers[writer].down_until.is_none()
    }

    /// Every writer of every data centre shows who is there, and nobody else, and can tell that this is so.
    pub fn is_true_everywhere(&self) -> Check {
        for writer in &self.writers {
            if writer.vouched.is_none_or(|vouched| self.now > vouched + STALE_AFTER_MS) {
                return Err(format!("{writer:?} is not fresh, and nothing is the matter"));
            }
            for gateway in self.gateways.iter().flatten() {
                writer.has_exactly(gateway.id, &gateway.there)?;
            }
            for (id, there) in &writer.store {
                if !there.is_empty() && !self.gateways.iter().flatten().any(|gateway| gateway.id == *id) {
                    return Err(format!("{writer:?} shows sessions of {id}, which is no more"));
                }
            }
        }
        Ok(())
    }
}

fn short(answer: &Answer) -> String {
    match answer {
        Answer::Packets(packets) => format!("{} packets", packets.len()),
        Answer::Picture { as_of, .. } => format!("the picture as of {as_of}"),
        Answer::Other(now) => format!("it is {now:?}"),
    }
}
