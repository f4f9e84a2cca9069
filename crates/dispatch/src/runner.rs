//! The shell around one subscription: reads for its lines, calls, settles, saves, answers questions. One task, on one thread.
//!
//! It owns the subscription while its shard is owned. What people decide comes from the catalogue and is followed; what an answer means is
//! decided by the pure parts. Everything that takes time is under way beside the task: reads, calls, appends, one save, chores.

mod answering;
mod calling;
mod following;
mod letters;
mod pulling;
mod reading;
mod retry_holds;
mod saving;
mod settling;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use roaring::RoaringTreemap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{
    AttemptNote, CallTarget, Callbacks, DispatchAsk, DispatchError, DispatchTold, Holds, LastError, Log, Notebook,
    PortFuture, Progress, ProgressError, ProgressPlace, ProgressRow,
};
use whimbrel_model::{
    Clock, Event, EventSink, HOLDS_TOPIC, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber,
};

use super::breaker::Breaker;
use super::figures::SubscriptionFigures;
use super::line::Line;
use super::pace::Pace;
use super::settings::DispatchSettings;
use super::throttle::Throttle;
use calling::CallDone;
use following::Source;
use pulling::Leases;
use reading::ReadDone;
use saving::SaveDone;
use settling::{AppendDone, Settlement};
use whimbrel_catalogue::subscriptions::{Subscription, Subscriptions};
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::{Registry, rates::Meter};
use whimbrel_cluster::owner_clock::{OwnerClock, Reading};

/// The process's clock may fall behind by this much without anything being planned again; it is caught up with at half speed.
const CLOCK_SLACK_MS: i64 = 500;
/// How often topics are looked at and figures are noted.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// How long what failed rests before it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Things that were under way and ended, taken in before new ones are begun.
const TAKEN_AT_ONCE: usize = 256;
/// Attempts that are gathered before they are noted, and how long.
const NOTES_AT_ONCE: usize = 4096;
/// How long the last save may take when a subscription is given up.
const LAST_SAVE_WITHIN: Duration = Duration::from_secs(3);

/// What all subscriptions work with.
pub struct Tools {
    pub log: Arc<dyn Log>,
    pub registry: Arc<Registry>,
    pub subscriptions: Arc<Subscriptions>,
    pub progress: Arc<dyn Progress>,
    pub notebook: Arc<dyn Notebook>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub stats: Arc<TopicStats>,
    pub settings: DispatchSettings,
    pub began: Instant,
}

/// What is reached only once the node has joined the others.
#[derive(Clone)]
pub struct Reach {
    pub holds: Arc<dyn Holds>,
    pub callbacks: Arc<dyn Callbacks>,
}

/// A question and where its answer goes.
pub struct Question {
    pub ask: DispatchAsk,
    pub reply: oneshot::Sender<Result<DispatchTold, DispatchError>>,
}

/// Why a subscription is no longer run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop.
    Stopped,
    /// It is no more, or is being deleted.
    Deleted,
    /// Somebody else owns it, or its progress cannot be used.
    Failed(String),
}

/// Something that was done beside, and what to do with what came of it.
type Chore = PortFuture<'static, Box<dyn FnOnce(&mut Runner) + Send>>;

pub struct Runner {
    tools: Arc<Tools>,
    reach: Reach,
    epoch: u64,
    /// Tells this runner from others of its epoch.
    began_at_ms: i64,
    subscription: Arc<Subscription>,
    lines: BTreeMap<u32, Line<Record>>,
    last_incarnation: u64,
    last_line: u32,
    /// What partitions belong to.
    sources: HashMap<TopicNumber, Source>,
    /// Rows that were saved and not used yet.
    rows: HashMap<ProgressPlace, ProgressRow>,
    targets: HashMap<Arc<str>, Arc<CallTarget>>,

    was_active: bool,
    /// What breaker and pace were learned of.
    called_url: Option<String>,
    breaker: Breaker,
    pace: Pace,
    throttle: Option<Throttle>,
    /// The endpoint asked everybody to wait until then.
    held_off: Option<Timestamp>,
    failing_since: Option<Timestamp>,
    /// Retries that wait as holds, about.
    retry_holds: u64,
    counted_at: Option<Instant>,
    /// When to check the due times of retries that wait as holds: once after the takeover, and after each backward step of the clock.
    retry_check_at: Option<Instant>,
    /// Offsets of dead letters that were redriven, and whether that is not saved yet.
    redriven: RoaringTreemap,
    redriven_changed: bool,
    redriving: bool,
    disabling: bool,
    ending_replays: Vec<u32>,

    reads: FuturesUnordered<PortFuture<'static, ReadDone>>,
    calls: FuturesUnordered<PortFuture<'static, CallDone>>,
    to_append: Vec<Settlement>,
    appends: FuturesUnordered<PortFuture<'static, AppendDone>>,
    saving: FuturesUnordered<PortFuture<'static, SaveDone>>,
    chores: FuturesUnordered<Chore>,
    save_due: Instant,
    housekeeping_due: Instant,
    leases: Leases,
    /// Questions that wait until the catalogue's entry of that version is followed.
    catching_up: Vec<(u64, oneshot::Sender<Result<DispatchTold, DispatchError>>)>,

    clock: OwnerClock,
    random: u64,
    notes: Vec<AttemptNote>,
    figures: SubscriptionFigures,
    delivered: Meter,
    failed: Meter,
    last_error: Option<LastError>,
    /// Signed callbacks whose body is not UTF-8.
    unverifiable: u64,
    stalled: Option<&'static str>,
    buried_unsaid: u64,
    /// Why the last of them died.
    buried_lastly: String,
    failure: Option<String>,
}

/// Runs a subscription until it is told to stop, is no more, or belongs to somebody else.
pub async fn run(
    tools: Arc<Tools>,
    mut reach: watch::Receiver<Option<Reach>>,
    number: SubscriptionNumber,
    epoch: u64,
    mut questions: mpsc::Receiver<Question>,
    stop: CancellationToken,
) -> Ended {
    let reach = tokio::select! {
        found = reach.wait_for(Option::is_some) => match found {
            Ok(found) => found.clone().expect("it was waited for"),
            Err(_) => return Ended::Stopped,
        },
        () = stop.cancelled() => return Ended::Stopped,
    };
    let mut changes = tools.subscriptions.changes();
    let rows = loop {
        match tools.progress.open(number, epoch).await {
            Ok(rows) => break rows,
            Err(ProgressError::Unavailable(why)) => {
                tracing::warn!(subscription = number.0, why, "the store of progress does not answer; trying on");
            }
            Err(error) => return Ended::Failed(error.to_string()),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_AFTER) => {}
            () = stop.cancelled() => return Ended::Stopped,
        }
    };
    // The owner before may have followed what this node has not seen yet: a pause, a seek.
    let subscription = loop {
        match tools.subscriptions.look_again(number).await {
            Ok(Some(subscription)) => break subscription,
            Ok(None) => return Ended::Deleted,
            Err(error) => tracing::warn!(subscription = number.0, %error, "the catalogue does not answer; trying on"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_AFTER) => {}
            () = stop.cancelled() => return Ended::Stopped,
        }
    };
    let mut runner = Runner::new(tools, reach, epoch, subscription, rows);
    runner.follow();
    let ended = loop {
        if let Some(why) = runner.failure.take() {
            break Ended::Failed(why);
        }
        if runner.subscription.stored.deleting {
            break Ended::Deleted;
        }
        let wake = runner.turn();
        tokio::select! {
            () = stop.cancelled() => break Ended::Stopped,
            Some(done) = runner.calls.next() => runner.answered(done),
            Some(done) = runner.reads.next() => runner.was_read(done),
            Some(done) = runner.appends.next() => runner.appended(done),
            Some(done) = runner.saving.next() => runner.was_saved(done),
            Some(done) = runner.chores.next() => done(&mut runner),
            Some(question) = questions.recv() => runner.answer(question),
            Ok(()) = changes.changed() => match runner.tools.subscriptions.by_number(number) {
                Some(subscription) if subscription.version != runner.subscription.version => {
                    runner.subscription = subscription;
                    runner.follow();
                }
                Some(_) => {}
                None => break Ended::Deleted,
            },
            () = tokio::time::sleep_until(wake.into()) => {}
        }
        runner.take_what_ended();
        // Where the log has everything in memory nothing here ever waits, and the others on this thread would.
        tokio::task::coop::consume_budget().await;
    };
    runner.hand_over(&ended).await;
    ended
}

impl Runner {
    fn new(
        tools: Arc<Tools>,
        reach: Reach,
        epoch: u64,
        subscription: Arc<Subscription>,
        rows: Vec<ProgressRow>,
    ) -> Self {
        let reading = reading(&tools);
        let spec = &subscription.stored.spec;
        let number = subscription.number();
        Self {
            epoch,
            began_at_ms: reading.wall.as_millis(),
            lines: BTreeMap::new(),
            last_incarnation: 0,
            last_line: 0,
            sources: HashMap::new(),
            rows: rows.into_iter().map(|row| (row.place, row)).collect(),
            targets: HashMap::new(),
            was_active: subscription.stored.is_active(),
            called_url: spec.endpoint.as_ref().and_then(|endpoint| endpoint.url.clone()),
            breaker: Breaker::new(tools.settings.breaker),
            pace: Pace::new(spec.concurrency),
            throttle: spec.rate.map(Throttle::new),
            held_off: None,
            failing_since: None,
            retry_holds: 0,
            counted_at: None,
            retry_check_at: Some(Instant::now()),
            redriven: RoaringTreemap::new(),
            redriven_changed: false,
            redriving: false,
            disabling: false,
            ending_replays: Vec::new(),
            reads: FuturesUnordered::new(),
            calls: FuturesUnordered::new(),
            to_append: Vec::new(),
            appends: FuturesUnordered::new(),
            saving: FuturesUnordered::new(),
            chores: FuturesUnordered::new(),
            save_due: Instant::now() + tools.settings.save_interval,
            housekeeping_due: Instant::now(),
            leases: Leases::default(),
            catching_up: Vec::new(),
            clock: OwnerClock::new(reading, CLOCK_SLACK_MS),
            random: (reading.wall.as_millis() as u64) ^ (u64::from(number.0) << 32) ^ epoch | 1,
            notes: Vec::new(),
            figures: SubscriptionFigures::of(&subscription.name),
            delivered: Meter::default(),
            failed: Meter::default(),
            last_error: None,
            unverifiable: 0,
            stalled: None,
            buried_unsaid: 0,
            buried_lastly: String::new(),
            failure: None,
            tools,
            reach,
            subscription,
        }
    }

    /// Begins everything that can be begun now. Answers with when to look again, whatever happens until then.
    fn turn(&mut self) -> Instant {
        let now = self.now();
        let instant = Instant::now();
        if instant >= self.housekeeping_due {
            self.keep_house();
            self.housekeeping_due = instant + HOUSEKEEPING;
        }
        self.expire_leases(now);
        if self.subscription.stored.is_active() {
            self.start_reads();
            self.start_calls(now);
            self.serve_pulls(now);
            // What was handed out has made room.
            self.start_reads();
        }
        self.start_appends();
        if instant >= self.save_due && self.saving.is_empty() {
            self.start_save();
            self.save_due = instant + self.tools.settings.save_interval;
        }
        if self.notes.len() >= NOTES_AT_ONCE {
            self.flush_notes();
        }
        let times = self.lines.values().filter_map(|line| line.window.next_time());
        let times = times.chain(self.breaker.next_time()).chain(self.held_off).chain(self.leases.next_time());
        let times = times.chain(self.throttle.as_ref().and_then(Throttle::next_time));
        // What is past has had its turn, and waits for something else.
        let next = times.filter(|time| *time > now).min();
        let next = next.map(|time| instant + Duration::from_millis((time.as_millis() - now.as_millis()) as u64));
        next.into_iter()
            .chain([self.housekeeping_due, self.save_due.max(instant + Duration::from_millis(1))])
            .min()
            .unwrap_or(instant)
    }

    /// Takes in what else has ended by now, so that what is begun next knows of all of it.
    fn take_what_ended(&mut self) {
        for _ in 0..TAKEN_AT_ONCE {
            let Some(Some(done)) = self.calls.next().now_or_never() else { break };
            self.answered(done);
        }
        while let Some(Some(done)) = self.reads.next().now_or_never() {
            self.was_read(done);
        }
        while let Some(Some(done)) = self.appends.next().now_or_never() {
            self.appended(done);
        }
    }

    fn now(&mut self) -> Timestamp {
        // A step forwards makes what waits come at once, as after a machine was suspended.
        if let Some(step_ms) = self.clock.read(reading(&self.tools)).filter(|step_ms| *step_ms < 0) {
            self.set_back(step_ms.unsigned_abs());
        }
        self.clock.now()
    }

    /// The clock was set back: what was planned by it comes as much earlier.
    fn set_back(&mut self, by_ms: u64) {
        let by = Duration::from_millis(by_ms);
        self.lines.values_mut().for_each(|line| line.window.set_back(by));
        self.breaker.set_back(by);
        self.leases.set_back(by);
        self.held_off = self.held_off.map(|until| until.saturating_sub(by));
        self.failing_since = self.failing_since.map(|since| since.saturating_sub(by));
        self.retry_check_at = Some(Instant::now());
    }

    /// A number that nobody can foresee, and that need not be better than that.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn keep_house(&mut self) {
        self.follow_topics();
        self.count_retry_holds();
        self.check_retry_holds();
        self.end_replays();
        self.flush_notes();
        let in_flight: usize = self.lines.values().map(|line| line.window.in_flight()).sum();
        self.figures.in_flight.set(in_flight as f64);
        let parked: u64 = self.lines.values().map(|line| line.window.parked().1).sum();
        self.figures.parked.set(parked as f64);
        let prefetched: usize = self.lines.values().map(|line| line.window.body_bytes()).sum();
        self.figures.prefetched.set(prefetched as f64);
        self.figures.breaker.set(if self.breaker.word() == "closed" { 0.0 } else { 1.0 });
        self.note_stall();
        self.say_buried();
    }

    /// Says once why the subscription does not go on, and once that it does again.
    fn note_stall(&mut self) {
        let full = self.lines.values().any(|line| line.window.is_full());
        let retries_full =
            !self.subscription.stored.spec.retries_in_place() && self.retry_holds >= self.tools.settings.retry_holds;
        let stalled = match self.stalled {
            Some(word @ ("log_unavailable" | "store_unavailable")) => Some(word),
            _ if full => Some("parked_full"),
            _ if retries_full => Some("retries_full"),
            _ => None,
        };
        self.set_stalled(stalled);
    }

    fn set_stalled(&mut self, stalled: Option<&'static str>) {
        if self.stalled == stalled {
            return;
        }
        self.stalled = stalled;
        let name = &self.subscription.name;
        let event = match stalled {
            Some(word) => {
                let why = match word {
                    "parked_full" => "as much is parked behind failing messages as `subscriptions.parked_bytes` allows",
                    "retries_full" => "as many retries wait as `subscriptions.retry_holds` allows",
                    "log_unavailable" => "the log does not answer",
                    _ => "its progress cannot be saved",
                };
                Event::warning("subscription_stalled", format!("subscription `{name}` slows down: {why}"))
                    .with("reason", word)
            }
            None => Event::new("subscription_goes_on", format!("subscription `{name}` goes on")),
        };
        (self.tools.events)(event.with("subscription", name));
    }

    /// An attempt failed. Where all have for too long, the subscription is disabled; while nothing is tried, nothing fails.
    fn fails_since(&mut self, now: Timestamp) {
        let after = self.subscription.stored.spec.disable_after_ms;
        let since = *self.failing_since.get_or_insert(now);
        if after > 0 && now.as_millis() - since.as_millis() >= after as i64 {
            self.disable(format!(
                "it failed for {} without one success",
                whimbrel_model::format_duration(Duration::from_millis(after))
            ));
        }
    }

    /// Every row that was saved meanwhile says that it fails: they are saved once more, or a later owner would believe the one whose
    /// partition has been silent since.
    fn fails_no_more(&mut self) {
        if self.failing_since.take().is_none() {
            return;
        }
        for line in self.lines.values_mut() {
            let all = line.window.partition_ids();
            line.window.not_saved(all);
        }
    }

    fn disable(&mut self, reason: String) {
        if !self.subscription.stored.is_active() || std::mem::replace(&mut self.disabling, true) {
            return;
        }
        let (subscriptions, number) = (Arc::clone(&self.tools.subscriptions), self.subscription.number());
        self.chores.push(Box::pin(async move {
            let outcome = subscriptions.disable(number, &reason).await;
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| {
                runner.disabling = false;
                // It begins to count anew when somebody resumes it.
                runner.fails_no_more();
                if let Err(error) = outcome {
                    tracing::error!(%error, subscription = %runner.subscription.name, "it could not be disabled");
                }
            });
            after
        }));
    }

    fn holds_partition(&self, hold_id: &whimbrel_model::HoldId) -> Option<PartitionId> {
        let topic = self.tools.registry.get(HOLDS_TOPIC)?;
        Some(topic.partition(hold_id.shard(topic.partitions())))
    }

    fn flush_notes(&mut self) {
        if !self.notes.is_empty() {
            self.tools.notebook.note(std::mem::take(&mut self.notes));
        }
    }

    /// Nothing is begun any more; what is under way may still end, then everything is saved.
    async fn hand_over(&mut self, ended: &Ended) {
        let until = tokio::time::Instant::now() + self.tools.settings.handover_wait;
        while *ended == Ended::Stopped
            && !(self.calls.is_empty() && self.appends.is_empty() && self.to_append.is_empty())
        {
            self.start_appends();
            tokio::select! {
                Some(done) = self.calls.next() => self.answered(done),
                Some(done) = self.appends.next() => self.appended(done),
                () = tokio::time::sleep_until(until) => break,
            }
        }
        self.flush_notes();
        self.figures.clear();
        if *ended != Ended::Stopped {
            return;
        }
        let saved = tokio::time::timeout(LAST_SAVE_WITHIN, async {
            while let Some(done) = self.saving.next().await {
                self.was_saved(done);
            }
            self.start_save();
            while let Some(done) = self.saving.next().await {
                self.was_saved(done);
            }
        });
        if saved.await.is_err() {
            tracing::warn!(subscription = %self.subscription.name, "its last progress could not be saved in time");
        }
    }
}

fn reading(tools: &Tools) -> Reading {
    let steady_ms = u64::try_from(tools.began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Reading { wall: tools.clock.now(), expiry: tools.clock.expiry_now(), steady_ms }
}
