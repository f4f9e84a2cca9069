//! The writer of a shard: the ledger's hands. It takes packets, asks gateways, writes the shard's store and publishes who came and went.
//!
//! A shard has one writer, and everything about it happens in one task, in order. Where the store fails, the writer forgets everything and
//! begins again as if it had just started: gateways that died are void, the pictures of the living are asked for.
//!
//! What it tells its store to be fresh is what the ledger vouches for, and never more: as of when the gateway that was heard from the longest
//! ago was, of all that have their lease; nothing while the picture of one of them has not come. So no reader takes old news for new, or whom
//! the writer has not heard of for offline. Which gateway it waits for is logged and counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::Clock;
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{SessionNews, Sessions, SessionsError, UserChange};

use super::debounce::{Debounce, Turn};
use super::events::{PresenceEvent, PresenceEvents};
use super::figures::Figures;
use super::ledger::{Ledger, LedgerCounts, Question, Todo};
use super::limits::{ANSWERS_QUEUED_MAX, EVENTS_PER_APPEND_MAX, STEPS_AT_ONCE_MAX, WRITER_QUEUE_MAX};
use super::living::Living;
use super::packet::{Answer, AskGateway, Packet, ShardPacket, as_session_news, version_of_picture};
use super::remote::Remote;
use super::reporter::GatewayReporter;
use super::settings::PresenceSettings;
use super::watch::Watch;

/// How often a writer looks at the time.
const TICK: Duration = Duration::from_millis(50);
/// What one append of events may take, and how long those that failed wait.
const PUBLISH_WITHIN: Duration = Duration::from_secs(5);
const PUBLISH_AGAIN_MS: u64 = 500;

/// Where packets for the writers of this process are put.
pub struct WriterDesk {
    centre: u32,
    queues: HashMap<u32, mpsc::Sender<Arrived>>,
    figures: Arc<Figures>,
}

/// A packet, and when it was put there: while the writer waits for its store, packets grow old.
pub struct Arrived {
    packet: Packet,
    at: Instant,
}

impl WriterDesk {
    /// The desk, and each shard's end of it.
    pub fn new(centre: u32, shards: &[u32], figures: Arc<Figures>) -> (Self, Vec<(u32, mpsc::Receiver<Arrived>)>) {
        let (mut queues, mut ends) = (HashMap::new(), Vec::new());
        for shard in shards {
            let (sender, receiver) = mpsc::channel(WRITER_QUEUE_MAX);
            queues.insert(*shard, sender);
            ends.push((*shard, receiver));
        }
        (Self { centre, queues, figures }, ends)
    }

    pub fn has(&self, centre: u32, shard: u32) -> bool {
        centre == self.centre && self.queues.contains_key(&shard)
    }

    /// Never waits. A packet that there is no room for, or no writer, is lost.
    pub fn take(&self, ShardPacket { centre, shard, packet }: ShardPacket) {
        let queue = self.queues.get(&shard).filter(|_| centre == self.centre);
        if queue.is_none_or(|queue| queue.try_send(Arrived { packet, at: Instant::now() }).is_err()) {
            self.figures.packets_lost.increment(1);
        }
    }
}

/// What a writer works with.
pub struct WriterParts {
    pub shard: u32,
    /// Shards of the data centre.
    pub shards: u32,
    pub settings: Arc<PresenceSettings>,
    /// This process's internal address.
    pub me: String,
    pub sessions: Arc<dyn Sessions>,
    pub living: watch::Receiver<Arc<Living>>,
    pub remote: Arc<dyn Remote>,
    /// The gateway of this process, which is asked directly.
    pub reporter: Arc<GatewayReporter>,
    pub events: Arc<dyn PresenceEvents>,
    pub clock: Arc<dyn Clock>,
    pub figures: Arc<Figures>,
}

/// Writes a shard until `shutdown`.
pub async fn write(parts: WriterParts, packets: mpsc::Receiver<Arrived>, shutdown: CancellationToken) {
    let writing = Writer::new(parts).run(packets);
    shutdown.run_until_cancelled(writing).await;
}

type Told = (u64, GatewayId, Answer);

struct Writer {
    parts: WriterParts,
    ledger: Ledger,
    counted: LedgerCounts,
    debounce: Debounce,
    began: Instant,
    /// When the store was last looked through for the dead; `None`: not yet, or it failed since.
    begun_at_ms: Option<u64>,
    is_drawn: bool,
    /// As of when the store was told to be fresh.
    vouched_ms: Option<u64>,
    watch: Watch,
    /// There may be sessions of void gateways.
    is_sweeping: bool,
    asks: JoinSet<()>,
    answers: mpsc::Sender<Told>,
    answered: Option<mpsc::Receiver<Told>>,
    /// One append at a time, so that a user's events keep their order.
    publishing: JoinSet<(Vec<Turn>, Result<(), String>)>,
    has_failed: bool,
}

impl Writer {
    fn new(parts: WriterParts) -> Self {
        let (answers, answered) = mpsc::channel(ANSWERS_QUEUED_MAX);
        Self {
            ledger: Ledger::new(parts.settings.ledger),
            counted: LedgerCounts::default(),
            debounce: Debounce::new(parts.settings.debounce.as_millis() as u64),
            began: Instant::now(),
            begun_at_ms: None,
            is_drawn: false,
            vouched_ms: None,
            watch: Watch::new(parts.shard, &parts.settings),
            is_sweeping: false,
            asks: JoinSet::new(),
            answers,
            answered: Some(answered),
            publishing: JoinSet::new(),
            has_failed: false,
            parts,
        }
    }

    async fn run(mut self, mut packets: mpsc::Receiver<Arrived>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut living = self.parts.living.clone();
        let Some(mut answered) = self.answered.take() else { return };
        let mut taken = Vec::with_capacity(STEPS_AT_ONCE_MAX);
        loop {
            tokio::select! {
                count = packets.recv_many(&mut taken, STEPS_AT_ONCE_MAX) => {
                    if count == 0 {
                        return;
                    }
                    self.take(taken.drain(..)).await;
                }
                Some((ask, gateway, answer)) = answered.recv() => {
                    let now_ms = self.now_ms();
                    let todo = self.ledger.answered(ask, gateway, answer, now_ms);
                    self.carry_out(todo).await;
                }
                Ok(()) = living.changed() => {
                    let seen = living.borrow_and_update().clone();
                    self.look(seen).await;
                }
                Some(published) = self.publishing.join_next() => self.published(published.ok()),
                _ = ticks.tick() => self.tick().await,
            }
        }
    }

    async fn take(&mut self, packets: impl Iterator<Item = Arrived>) {
        let mut todo = Vec::new();
        for Arrived { packet, at } in packets {
            self.parts.figures.packets_taken.increment(1);
            // Before the writer has begun, a packet tells nothing that the picture will not.
            if self.begun_at_ms.is_some() {
                let came_ms = at.saturating_duration_since(self.began).as_millis() as u64;
                todo.extend(self.ledger.packet(packet, came_ms));
            }
        }
        self.carry_out(todo).await;
    }

    async fn look(&mut self, living: Arc<Living>) {
        if self.begun_at_ms.is_some() {
            let todo = self.ledger.living(&living.gateways, self.now_ms());
            self.carry_out(todo).await;
        }
    }

    async fn tick(&mut self) {
        while self.asks.try_join_next().is_some() {}
        if self.begun_at_ms.is_none() {
            self.begin().await;
        }
        let todo = self.ledger.tick(self.now_ms());
        self.carry_out(todo).await;
        if self.begun_at_ms.is_some()
            && let Err(error) = self.keep().await
        {
            self.begin_again(&error);
        }
        self.publish().await;
        self.count();
    }

    /// Looks through the store: what is of gateways that do not live is void.
    async fn begin(&mut self) {
        let living = self.parts.living.borrow().clone();
        let known = match self.parts.sessions.gateways(self.parts.shard).await {
            Ok(known) => known,
            Err(error) => return self.begin_again(&error),
        };
        let dead = known.into_iter().filter(|gateway| living.gateways.iter().all(|(id, _)| id != gateway));
        let now_ms = self.now_ms();
        self.begun_at_ms = Some(now_ms);
        self.is_sweeping = true;
        let mut todo: Vec<Todo> = dead.flat_map(|gateway| self.ledger.void(gateway)).collect();
        todo.extend(self.ledger.living(&living.gateways, now_ms));
        self.carry_out(todo).await;
    }

    /// The store failed: what it knows is not known any more.
    fn begin_again(&mut self, error: &SessionsError) {
        self.count();
        if !self.has_failed {
            tracing::warn!(shard = self.parts.shard, %error, "a writer of presence begins again: its store failed");
            self.has_failed = true;
        }
        self.parts.figures.store_failures.increment(1);
        if std::mem::take(&mut self.is_drawn) {
            self.parts.figures.shards_drawn.decrement(1.0);
        }
        self.ledger = Ledger::new(self.parts.settings.ledger);
        self.counted = LedgerCounts::default();
        (self.begun_at_ms, self.vouched_ms) = (None, None);
    }

    async fn carry_out(&mut self, todo: Vec<Todo>) {
        if let Err(error) = self.try_carry_out(todo).await {
            self.begin_again(&error);
        }
    }

    async fn try_carry_out(&mut self, todo: Vec<Todo>) -> Result<(), SessionsError> {
        let shard = self.parts.shard;
        let mut news: Vec<SessionNews> = Vec::new();
        for todo in todo {
            match todo {
                // Adjacent packets are one step for the store.
                Todo::Apply { number, news: more, .. } => news.extend(as_session_news(number, more)),
                Todo::Replace { gateway, as_of, sessions } => {
                    self.put(std::mem::take(&mut news)).await?;
                    let version = version_of_picture(as_of);
                    let changes = self.parts.sessions.replace(shard, gateway, version, sessions).await?;
                    self.note(changes);
                }
                Todo::Void(gateway) => {
                    self.put(std::mem::take(&mut news)).await?;
                    self.parts.sessions.void(shard, gateway).await?;
                    self.parts.figures.voided.increment(1);
                    self.is_sweeping = true;
                }
                Todo::Ask(question) => self.ask(question),
            }
        }
        self.put(news).await
    }

    async fn put(&mut self, news: Vec<SessionNews>) -> Result<(), SessionsError> {
        if !news.is_empty() {
            let changes = self.parts.sessions.put(self.parts.shard, news).await?;
            self.note(changes);
        }
        Ok(())
    }

    fn note(&mut self, changes: Vec<UserChange>) {
        let (at, now_ms) = (self.parts.clock.now(), self.now_ms());
        changes.into_iter().for_each(|change| self.debounce.note(change, at, now_ms));
    }

    /// Tells the store that the writer lives and as of when its picture is true, and clears away a little of what is void.
    async fn keep(&mut self) -> Result<(), SessionsError> {
        let (settings, shard, now_ms) = (self.parts.settings.clone(), self.parts.shard, self.now_ms());
        self.look_at_picture(now_ms);
        let fresh_ms = self.ledger.fresh_at(now_ms);
        let due_ms = self.vouched_ms.map_or(0, |vouched_ms| vouched_ms + settings.keep_alive.as_millis() as u64);
        if let Some(fresh_ms) = fresh_ms.filter(|fresh_ms| *fresh_ms >= due_ms) {
            self.vouched_ms = Some(fresh_ms);
            self.parts.sessions.keep_alive(shard, now_ms - fresh_ms.min(now_ms)).await?;
        }
        if self.is_sweeping {
            let limit = (u64::from(settings.sweep_per_second) * TICK.as_millis() as u64 / 1_000).max(1);
            let at = self.parts.clock.now();
            let swept = self.parts.sessions.sweep(shard, limit as usize, at).await?;
            self.is_sweeping = !swept.is_empty();
            self.parts.figures.swept.increment(swept.len() as u64);
            // Whoever had a session that is swept was online, as far as the world was told.
            self.note(swept.into_iter().map(|change| UserChange { was_online: true, ..change }).collect());
        }
        Ok(())
    }

    /// Whether the picture is whole, and who keeps it from being fresh.
    fn look_at_picture(&mut self, now_ms: u64) {
        let figures = &self.parts.figures;
        let is_drawn = self.ledger.undrawn().next().is_none();
        match (std::mem::replace(&mut self.is_drawn, is_drawn), is_drawn) {
            (false, true) => {
                self.has_failed = false;
                figures.shards_drawn.increment(1.0);
            }
            (true, false) => figures.shards_drawn.decrement(1.0),
            _ => {}
        }
        self.watch.look(&self.ledger, now_ms);
    }

    fn ask(&mut self, question: Question) {
        let Question { ask, gateway, address, wanted, attempt } = question;
        let parts = &self.parts;
        let (shard, shards) = (parts.shard, parts.shards);
        let asked = AskGateway { gateway, address: address.clone(), shard, shards, wanted };
        let detour = (attempt % 2 == 1)
            .then(|| parts.living.borrow().detour(&parts.me, &address, attempt / 2).map(str::to_owned))
            .flatten();
        let is_here = *address == *parts.me && detour.is_none();
        let (remote, reporter, answers) = (parts.remote.clone(), parts.reporter.clone(), self.answers.clone());
        let within = parts.settings.answer_within;
        self.asks.spawn(async move {
            let answer = if is_here {
                Ok(reporter.answer(&asked))
            } else {
                let to = detour.as_deref().unwrap_or(&address);
                let answer = timeout(within, remote.ask(to, asked, detour.is_some())).await;
                answer.unwrap_or_else(|_| Err(format!("no answer within {within:?}")))
            };
            match answer {
                Ok(answer) => drop(answers.send((ask, gateway, answer)).await),
                // The ledger asks again when it is time to.
                Err(failure) => tracing::debug!(%gateway, attempt, failure, "a gateway could not be asked"),
            }
        });
    }

    /// Publishes what is due, unless something is being published.
    async fn publish(&mut self) {
        if !self.publishing.is_empty() {
            return;
        }
        let turns = self.debounce.take_due(self.now_ms(), EVENTS_PER_APPEND_MAX);
        if turns.is_empty() || !self.parts.settings.events {
            return;
        }
        let uids: Vec<Uid> = turns.iter().map(|turn| turn.uid.clone()).collect();
        let found = self.parts.sessions.of(self.parts.shard, uids).await;
        let counts: Vec<usize> = match found {
            Ok(found) => found.found.iter().map(|user| user.sessions.len()).collect(),
            Err(error) => {
                self.put_back(turns);
                return self.begin_again(&error);
            }
        };
        let events = turns.iter().zip(counts).map(|(turn, sessions)| PresenceEvent {
            uid: turn.uid.clone(),
            online: turn.online,
            version: turn.version,
            at: turn.at,
            sessions,
        });
        let (events, sink) = (events.collect(), self.parts.events.clone());
        self.publishing.spawn(async move {
            let outcome = timeout(PUBLISH_WITHIN, sink.publish(events)).await;
            (turns, outcome.unwrap_or_else(|_| Err("the log did not answer".to_owned())))
        });
    }

    fn published(&mut self, outcome: Option<(Vec<Turn>, Result<(), String>)>) {
        match outcome {
            Some((turns, Ok(()))) => self.parts.figures.events.increment(turns.len() as u64),
            Some((turns, Err(error))) => {
                tracing::debug!(shard = self.parts.shard, error, "events of presence are published later");
                self.put_back(turns);
            }
            None => {}
        }
    }

    fn put_back(&mut self, turns: Vec<Turn>) {
        let lost = self.debounce.put_back(turns, self.now_ms() + PUBLISH_AGAIN_MS);
        self.parts.figures.events_lost.increment(lost as u64);
    }

    /// Hands on what the ledger counted since the last time.
    fn count(&mut self) {
        let (figures, now, before) = (&self.parts.figures, self.ledger.counts, self.counted);
        figures.packets_repeated.increment(now.repeated - before.repeated);
        figures.packets_refused.increment(now.refused - before.refused);
        figures.packets_lost.increment(now.overflowed - before.overflowed);
        figures.gaps.increment(now.gaps - before.gaps);
        figures.asks.increment(now.asks - before.asks);
        figures.pictures.increment(now.pictures - before.pictures);
        figures.unanswered.increment(now.unanswered - before.unanswered);
        self.counted = now;
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}
