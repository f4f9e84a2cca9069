//! The writer of a shard, the shell of the tracker: takes packets, queries gateways, writes the shard's store and publishes events.
//!
//! A shard has one writer, and one task does all of its work, in order. If the store fails, the writer drops its state and starts again:
//! dead gateways are void, and the live ones are asked for snapshots.
//!
//! The writer reports freshness to its store only as far as the tracker confirms it: the time of the least fresh gateway that has a lease,
//! and nothing while a snapshot is missing. So no reader takes outdated state for current, or users of an unknown gateway for offline. The
//! log and a metric name the gateways that delay it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::Clock;
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{SessionUpdate, Sessions, SessionsError, UserChange};

use super::debounce::{EventDebouncer, OnlineChange};
use super::events::{PresenceEvent, PresenceEvents};
use super::gateway_tracker::{GatewayTracker, QueryAttempt, TrackerCounts, TrackerEffect};
use super::limits::{ANSWERS_QUEUED_MAX, EVENTS_PER_APPEND_MAX, STEPS_AT_ONCE_MAX, WRITER_QUEUE_MAX};
use super::live_members::LiveMembers;
use super::metrics::PresenceMetrics;
use super::packet::{GatewayQuery, GatewayReply, Packet, ShardPacket, as_session_news, version_of_snapshot};
use super::remote::Remote;
use super::reporter::GatewayReporter;
use super::settings::PresenceSettings;
use super::staleness::StalenessMonitor;

/// The interval of a writer's periodic work.
const TICK: Duration = Duration::from_millis(50);
/// Timeout of one append of events, and the delay before a failed one is retried.
const PUBLISH_WITHIN: Duration = Duration::from_secs(5);
const PUBLISH_AGAIN_MS: u64 = 500;

pub struct WriterQueues {
    centre: u32,
    queues: HashMap<u32, mpsc::Sender<TimedPacket>>,
    metrics: Arc<PresenceMetrics>,
}

/// A packet with its arrival time: it may wait while the writer waits for its store.
pub struct TimedPacket {
    packet: Packet,
    at: Instant,
}

impl WriterQueues {
    /// Creates the queues, and each shard's receiving end.
    pub fn new(
        centre: u32,
        shards: &[u32],
        metrics: Arc<PresenceMetrics>,
    ) -> (Self, Vec<(u32, mpsc::Receiver<TimedPacket>)>) {
        let (mut queues, mut ends) = (HashMap::new(), Vec::new());
        for shard in shards {
            let (sender, receiver) = mpsc::channel(WRITER_QUEUE_MAX);
            queues.insert(*shard, sender);
            ends.push((*shard, receiver));
        }
        (Self { centre, queues, metrics }, ends)
    }

    pub fn has(&self, centre: u32, shard: u32) -> bool {
        centre == self.centre && self.queues.contains_key(&shard)
    }

    /// Queues a packet. Never waits: a packet without room or without a writer is lost.
    pub fn take(&self, ShardPacket { centre, shard, packet }: ShardPacket) {
        let queue = self.queues.get(&shard).filter(|_| centre == self.centre);
        if queue.is_none_or(|queue| queue.try_send(TimedPacket { packet, at: Instant::now() }).is_err()) {
            self.metrics.packets_lost.increment(1);
        }
    }
}

pub struct WriterParts {
    pub shard: u32,
    /// The number of shards of the data centre.
    pub shards: u32,
    pub settings: Arc<PresenceSettings>,
    /// This process's internal address.
    pub me: String,
    pub sessions: Arc<dyn Sessions>,
    pub living: watch::Receiver<Arc<LiveMembers>>,
    pub remote: Arc<dyn Remote>,
    /// The gateway of this process, which is called directly.
    pub reporter: Arc<GatewayReporter>,
    pub events: Arc<dyn PresenceEvents>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<PresenceMetrics>,
}

/// Writes a shard until `shutdown`.
pub async fn write(parts: WriterParts, packets: mpsc::Receiver<TimedPacket>, shutdown: CancellationToken) {
    let writing = ShardWriter::new(parts).run(packets);
    shutdown.run_until_cancelled(writing).await;
}

type QueryResult = (u64, GatewayId, GatewayReply);

struct ShardWriter {
    parts: WriterParts,
    tracker: GatewayTracker,
    counted: TrackerCounts,
    debounce: EventDebouncer,
    began: Instant,
    /// When the writer last read the store for void gateways. `None`: not yet, or the store has failed since.
    begun_at_ms: Option<u64>,
    has_snapshot: bool,
    /// As of when the store was last reported as fresh.
    reported_fresh_ms: Option<u64>,
    staleness: StalenessMonitor,
    /// The store may have sessions of void gateways.
    is_sweeping: bool,
    asks: JoinSet<()>,
    answers: mpsc::Sender<QueryResult>,
    answered: Option<mpsc::Receiver<QueryResult>>,
    /// One append at a time, so that a user's events keep their order.
    publishing: JoinSet<(Vec<OnlineChange>, Result<(), String>)>,
    has_failed: bool,
}

impl ShardWriter {
    fn new(parts: WriterParts) -> Self {
        let (answers, answered) = mpsc::channel(ANSWERS_QUEUED_MAX);
        Self {
            tracker: GatewayTracker::new(parts.settings.tracker),
            counted: TrackerCounts::default(),
            debounce: EventDebouncer::new(parts.settings.debounce.as_millis() as u64),
            began: Instant::now(),
            begun_at_ms: None,
            has_snapshot: false,
            reported_fresh_ms: None,
            staleness: StalenessMonitor::new(parts.shard, &parts.settings),
            is_sweeping: false,
            asks: JoinSet::new(),
            answers,
            answered: Some(answered),
            publishing: JoinSet::new(),
            has_failed: false,
            parts,
        }
    }

    async fn run(mut self, mut packets: mpsc::Receiver<TimedPacket>) {
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
                    let todo = self.tracker.answered(ask, gateway, answer, now_ms);
                    self.perform(todo).await;
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

    async fn take(&mut self, packets: impl Iterator<Item = TimedPacket>) {
        let mut todo = Vec::new();
        for TimedPacket { packet, at } in packets {
            self.parts.metrics.packets_taken.increment(1);
            // Before the start is complete, packets add nothing that the snapshot will not have.
            if self.begun_at_ms.is_some() {
                let came_ms = at.saturating_duration_since(self.began).as_millis() as u64;
                todo.extend(self.tracker.packet(packet, came_ms));
            }
        }
        self.perform(todo).await;
    }

    async fn look(&mut self, living: Arc<LiveMembers>) {
        if self.begun_at_ms.is_some() {
            let todo = self.tracker.living(&living.gateways, self.now_ms());
            self.perform(todo).await;
        }
    }

    async fn tick(&mut self) {
        while self.asks.try_join_next().is_some() {}
        if self.begun_at_ms.is_none() {
            self.begin().await;
        }
        let todo = self.tracker.tick(self.now_ms());
        self.perform(todo).await;
        if self.begun_at_ms.is_some()
            && let Err(error) = self.keep().await
        {
            self.begin_again(&error);
        }
        self.publish().await;
        self.count();
    }

    /// Reads the gateways in the store: those that are not live are void.
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
        let mut todo: Vec<TrackerEffect> = dead.flat_map(|gateway| self.tracker.void(gateway)).collect();
        todo.extend(self.tracker.living(&living.gateways, now_ms));
        self.perform(todo).await;
    }

    /// Starts again after a failure of the store: its contents are unknown.
    fn begin_again(&mut self, error: &SessionsError) {
        self.count();
        if !self.has_failed {
            tracing::warn!(shard = self.parts.shard, %error, "the presence store failed; the writer starts again");
            self.has_failed = true;
        }
        self.parts.metrics.store_failures.increment(1);
        if std::mem::take(&mut self.has_snapshot) {
            self.parts.metrics.shards_drawn.decrement(1.0);
        }
        self.tracker = GatewayTracker::new(self.parts.settings.tracker);
        self.counted = TrackerCounts::default();
        (self.begun_at_ms, self.reported_fresh_ms) = (None, None);
    }

    async fn perform(&mut self, todo: Vec<TrackerEffect>) {
        if let Err(error) = self.try_perform(todo).await {
            self.begin_again(&error);
        }
    }

    async fn try_perform(&mut self, todo: Vec<TrackerEffect>) -> Result<(), SessionsError> {
        let shard = self.parts.shard;
        let mut news: Vec<SessionUpdate> = Vec::new();
        for todo in todo {
            match todo {
                // Adjacent packets are one write to the store.
                TrackerEffect::Apply { number, news: more, .. } => news.extend(as_session_news(number, more)),
                TrackerEffect::Replace { gateway, as_of, sessions } => {
                    self.put(std::mem::take(&mut news)).await?;
                    let version = version_of_snapshot(as_of);
                    let changes = self.parts.sessions.replace(shard, gateway, version, sessions).await?;
                    self.note(changes);
                }
                TrackerEffect::Void(gateway) => {
                    self.put(std::mem::take(&mut news)).await?;
                    self.parts.sessions.void(shard, gateway).await?;
                    self.parts.metrics.voided.increment(1);
                    self.is_sweeping = true;
                }
                TrackerEffect::Ask(question) => self.ask(question),
            }
        }
        self.put(news).await
    }

    async fn put(&mut self, news: Vec<SessionUpdate>) -> Result<(), SessionsError> {
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

    /// Reports the freshness to the store, and removes a few sessions of void gateways.
    async fn keep(&mut self) -> Result<(), SessionsError> {
        let (settings, shard, now_ms) = (self.parts.settings.clone(), self.parts.shard, self.now_ms());
        self.update_snapshot_state(now_ms);
        let fresh_ms = self.tracker.fresh_at(now_ms);
        let due_ms = self
            .reported_fresh_ms
            .map_or(0, |reported_fresh_ms| reported_fresh_ms + settings.keep_alive.as_millis() as u64);
        if let Some(fresh_ms) = fresh_ms.filter(|fresh_ms| *fresh_ms >= due_ms) {
            self.reported_fresh_ms = Some(fresh_ms);
            self.parts.sessions.keep_alive(shard, now_ms - fresh_ms.min(now_ms)).await?;
        }
        if self.is_sweeping {
            let limit = (u64::from(settings.sweep_per_second) * TICK.as_millis() as u64 / 1_000).max(1);
            let at = self.parts.clock.now();
            let swept = self.parts.sessions.sweep(shard, limit as usize, at).await?;
            self.is_sweeping = !swept.is_empty();
            self.parts.metrics.swept.increment(swept.len() as u64);
            // Users with swept sessions were online according to the last events.
            self.note(swept.into_iter().map(|change| UserChange { was_online: true, ..change }).collect());
        }
        Ok(())
    }

    /// Updates whether every live gateway has a snapshot, and which ones make the shard stale.
    fn update_snapshot_state(&mut self, now_ms: u64) {
        let metrics = &self.parts.metrics;
        let has_snapshot = self.tracker.without_snapshot().next().is_none();
        match (std::mem::replace(&mut self.has_snapshot, has_snapshot), has_snapshot) {
            (false, true) => {
                self.has_failed = false;
                metrics.shards_drawn.increment(1.0);
            }
            (true, false) => metrics.shards_drawn.decrement(1.0),
            _ => {}
        }
        self.staleness.update(&self.tracker, now_ms);
    }

    fn ask(&mut self, question: QueryAttempt) {
        let QueryAttempt { ask, gateway, address, wanted, attempt } = question;
        let parts = &self.parts;
        let (shard, shards) = (parts.shard, parts.shards);
        let asked = GatewayQuery { gateway, address: address.clone(), shard, shards, wanted };
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
                // The tracker repeats the query when it is due.
                Err(failure) => tracing::debug!(%gateway, attempt, failure, "the query to a gateway failed"),
            }
        });
    }

    /// Publishes due events, unless an append is in progress.
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
            (turns, outcome.unwrap_or_else(|_| Err("timeout while appending to the log".to_owned())))
        });
    }

    fn published(&mut self, outcome: Option<(Vec<OnlineChange>, Result<(), String>)>) {
        match outcome {
            Some((turns, Ok(()))) => self.parts.metrics.events.increment(turns.len() as u64),
            Some((turns, Err(error))) => {
                tracing::debug!(shard = self.parts.shard, error, "cannot publish presence events; retrying");
                self.put_back(turns);
            }
            None => {}
        }
    }

    fn put_back(&mut self, turns: Vec<OnlineChange>) {
        let lost = self.debounce.put_back(turns, self.now_ms() + PUBLISH_AGAIN_MS);
        self.parts.metrics.events_lost.increment(lost as u64);
    }

    /// Adds the tracker's counters since the last call to the metrics.
    fn count(&mut self) {
        let (metrics, now, before) = (&self.parts.metrics, self.tracker.counts, self.counted);
        metrics.packets_repeated.increment(now.repeated - before.repeated);
        metrics.packets_refused.increment(now.refused - before.refused);
        metrics.packets_lost.increment(now.overflowed - before.overflowed);
        metrics.gaps.increment(now.gaps - before.gaps);
        metrics.asks.increment(now.asks - before.asks);
        metrics.snapshots.increment(now.snapshots - before.snapshots);
        metrics.unanswered.increment(now.unanswered - before.unanswered);
        self.counted = now;
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}
