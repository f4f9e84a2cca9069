//! The shell around one subscription: reads for its lines, makes calls, settles failed messages, saves progress, answers requests. One
//! task on one thread.
//!
//! It owns the subscription while this node owns its shard. It follows the subscription's entry in the catalogue; the pure modules
//! classify answers. Slow operations run beside the task: reads, calls, appends, one save, background tasks.

mod calls;
mod catalogue_sync;
mod dead_letters;
mod leases;
mod log_reads;
mod progress_save;
mod requests;
mod retry_holds;
mod settlement;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use roaring::RoaringTreemap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{
    AttemptRecord, AttemptStore, CallTarget, Callbacks, DispatchError, DispatchReply, DispatchRequest, Holds,
    LastError, Log, PortFuture, Progress, ProgressError, ProgressKey, ProgressRow,
};
use whimbrel_model::{
    Clock, Event, EventSink, HOLDS_TOPIC, PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber,
};

use super::breaker::Breaker;
use super::concurrency_limit::ConcurrencyLimit;
use super::delivery_line::DeliveryLine;
use super::settings::DispatchSettings;
use super::subscription_metrics::SubscriptionMetrics;
use super::throttle::Throttle;
use calls::CallDone;
use catalogue_sync::SourceTopic;
use leases::Leases;
use log_reads::ReadDone;
use progress_save::SaveDone;
use settlement::{AppendDone, Settlement};
use whimbrel_catalogue::subscriptions::{Subscription, SubscriptionRegistry};
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::{Registry, rate_meter::RateMeter};
use whimbrel_cluster::owner_clock::{ClockReading, OwnerClock};

/// How far the process's clock may be behind before times are planned again. Up to that, the owner's clock runs at half speed.
const CLOCK_SLACK_MS: i64 = 500;
/// How often topics are checked and metrics are updated.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// The most finished calls that are processed before new ones are started.
const TAKEN_AT_ONCE: usize = 256;
/// The number of attempts that are gathered before they are recorded.
const NOTES_AT_ONCE: usize = 4096;
/// Timeout of the last save when a subscription is given up.
const LAST_SAVE_WITHIN: Duration = Duration::from_secs(3);

pub struct DispatchContext {
    pub log: Arc<dyn Log>,
    pub registry: Arc<Registry>,
    pub subscriptions: Arc<SubscriptionRegistry>,
    pub progress: Arc<dyn Progress>,
    pub notebook: Arc<dyn AttemptStore>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub stats: Arc<TopicStats>,
    pub settings: DispatchSettings,
    pub began: Instant,
}

/// Ports that are available once the node has joined the cluster.
#[derive(Clone)]
pub struct JoinedPorts {
    pub holds: Arc<dyn Holds>,
    pub callbacks: Arc<dyn Callbacks>,
}

pub struct SubscriptionRequest {
    pub ask: DispatchRequest,
    pub reply: oneshot::Sender<Result<DispatchReply, DispatchError>>,
}

/// Why a subscription stopped running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    Stopped,
    /// The subscription was deleted, or is being deleted.
    Deleted,
    /// Another node owns the subscription, or its progress cannot be used.
    Failed(String),
}

/// A background task. It returns a function that applies its result.
type BackgroundTask = PortFuture<'static, Box<dyn FnOnce(&mut SubscriptionRunner) + Send>>;

pub struct SubscriptionRunner {
    context: Arc<DispatchContext>,
    joined: JoinedPorts,
    epoch: u64,
    /// Distinguishes this runner from others of its epoch.
    began_at_ms: i64,
    subscription: Arc<Subscription>,
    lines: BTreeMap<u32, DeliveryLine<Record>>,
    last_incarnation: u64,
    last_line: u32,
    sources: HashMap<TopicNumber, SourceTopic>,
    /// Saved rows that are not used yet.
    rows: HashMap<ProgressKey, ProgressRow>,
    targets: HashMap<Arc<str>, Arc<CallTarget>>,

    was_active: bool,
    /// The URL to which the breaker and the concurrency limit apply.
    called_url: Option<String>,
    breaker: Breaker,
    concurrency: ConcurrencyLimit,
    throttle: Option<Throttle>,
    /// Until when the endpoint requested that no calls are made.
    held_off: Option<Timestamp>,
    failing_since: Option<Timestamp>,
    /// The approximate number of retries that wait as holds.
    retry_holds: u64,
    counted_at: Option<Instant>,
    /// When to check the due times of retries that wait as holds: once after the takeover, and after each backward step of the clock.
    retry_check_at: Option<Instant>,
    /// Offsets of redriven dead letters, and whether they changed since the last save.
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
    background: FuturesUnordered<BackgroundTask>,
    save_due: Instant,
    housekeeping_due: Instant,
    leases: Leases,
    /// Requests that wait until the runner follows that version of the catalogue's entry.
    catching_up: Vec<(u64, oneshot::Sender<Result<DispatchReply, DispatchError>>)>,

    clock: OwnerClock,
    random: u64,
    notes: Vec<AttemptRecord>,
    metrics: SubscriptionMetrics,
    delivered: RateMeter,
    failed: RateMeter,
    last_error: Option<LastError>,
    /// The number of signed callbacks whose body is not UTF-8.
    unverifiable: u64,
    stalled: Option<&'static str>,
    buried_unsaid: u64,
    /// The reason of the last unreported dead letter.
    buried_lastly: String,
    failure: Option<String>,
}

/// Runs a subscription until it is stopped, is deleted, or has another owner.
pub async fn run(
    context: Arc<DispatchContext>,
    mut joined: watch::Receiver<Option<JoinedPorts>>,
    number: SubscriptionNumber,
    epoch: u64,
    mut requests: mpsc::Receiver<SubscriptionRequest>,
    stop: CancellationToken,
) -> RunEnd {
    let joined = tokio::select! {
        found = joined.wait_for(Option::is_some) => match found {
            Ok(found) => found.clone().expect("the value is present"),
            Err(_) => return RunEnd::Stopped,
        },
        () = stop.cancelled() => return RunEnd::Stopped,
    };
    let mut changes = context.subscriptions.changes();
    let rows = loop {
        match context.progress.open(number, epoch).await {
            Ok(rows) => break rows,
            Err(ProgressError::Unavailable(why)) => {
                tracing::warn!(subscription = number.0, why, "the store of progress does not answer; retrying");
            }
            Err(error) => return RunEnd::Failed(error.to_string()),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_AFTER) => {}
            () = stop.cancelled() => return RunEnd::Stopped,
        }
    };
    // The previous owner may have followed a catalogue entry that this node does not have yet: a pause or a seek.
    let subscription = loop {
        match context.subscriptions.refresh(number).await {
            Ok(Some(subscription)) => break subscription,
            Ok(None) => return RunEnd::Deleted,
            Err(error) => tracing::warn!(subscription = number.0, %error, "the catalogue does not answer; retrying"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_AFTER) => {}
            () = stop.cancelled() => return RunEnd::Stopped,
        }
    };
    let mut runner = SubscriptionRunner::new(context, joined, epoch, subscription, rows);
    runner.follow();
    let ended = loop {
        if let Some(why) = runner.failure.take() {
            break RunEnd::Failed(why);
        }
        if runner.subscription.stored.deleting {
            break RunEnd::Deleted;
        }
        let wake = runner.turn();
        tokio::select! {
            () = stop.cancelled() => break RunEnd::Stopped,
            Some(done) = runner.calls.next() => runner.answered(done),
            Some(done) = runner.reads.next() => runner.was_read(done),
            Some(done) = runner.appends.next() => runner.appended(done),
            Some(done) = runner.saving.next() => runner.was_saved(done),
            Some(done) = runner.background.next() => done(&mut runner),
            Some(request) = requests.recv() => runner.answer(request),
            Ok(()) = changes.changed() => match runner.context.subscriptions.by_number(number) {
                Some(subscription) if subscription.version != runner.subscription.version => {
                    runner.subscription = subscription;
                    runner.follow();
                }
                Some(_) => {}
                None => break RunEnd::Deleted,
            },
            () = tokio::time::sleep_until(wake.into()) => {}
        }
        runner.take_what_ended();
        // If the log has everything in memory, no await here ever pends, which would starve other tasks on this thread.
        tokio::task::coop::consume_budget().await;
    };
    runner.hand_over(&ended).await;
    ended
}

impl SubscriptionRunner {
    fn new(
        context: Arc<DispatchContext>,
        joined: JoinedPorts,
        epoch: u64,
        subscription: Arc<Subscription>,
        rows: Vec<ProgressRow>,
    ) -> Self {
        let reading = reading(&context);
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
            breaker: Breaker::new(context.settings.breaker),
            concurrency: ConcurrencyLimit::new(spec.concurrency),
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
            background: FuturesUnordered::new(),
            save_due: Instant::now() + context.settings.save_interval,
            housekeeping_due: Instant::now(),
            leases: Leases::default(),
            catching_up: Vec::new(),
            clock: OwnerClock::new(reading, CLOCK_SLACK_MS),
            random: (reading.wall.as_millis() as u64) ^ (u64::from(number.0) << 32) ^ epoch | 1,
            notes: Vec::new(),
            metrics: SubscriptionMetrics::of(&subscription.name),
            delivered: RateMeter::default(),
            failed: RateMeter::default(),
            last_error: None,
            unverifiable: 0,
            stalled: None,
            buried_unsaid: 0,
            buried_lastly: String::new(),
            failure: None,
            context,
            joined,
            subscription,
        }
    }

    /// Starts all work that can start now. Returns when to run again if nothing happens before.
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
            // Delivered messages have freed space in the window.
            self.start_reads();
        }
        self.start_appends();
        if instant >= self.save_due && self.saving.is_empty() {
            self.start_save();
            self.save_due = instant + self.context.settings.save_interval;
        }
        if self.notes.len() >= NOTES_AT_ONCE {
            self.flush_notes();
        }
        let times = self.lines.values().filter_map(|line| line.window.next_time());
        let times = times.chain(self.breaker.next_time()).chain(self.held_off).chain(self.leases.next_time());
        let times = times.chain(self.throttle.as_ref().and_then(Throttle::next_time));
        // A time that has passed had its chance in this turn.
        let next = times.filter(|time| *time > now).min();
        let next = next.map(|time| instant + Duration::from_millis((time.as_millis() - now.as_millis()) as u64));
        next.into_iter()
            .chain([self.housekeeping_due, self.save_due.max(instant + Duration::from_millis(1))])
            .min()
            .unwrap_or(instant)
    }

    /// Processes everything else that has finished, so that new work takes all of it into account.
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
        // After a forward step, waiting work is due at once, as after the machine was suspended.
        if let Some(step_ms) = self.clock.read(reading(&self.context)).filter(|step_ms| *step_ms < 0) {
            self.set_back(step_ms.unsigned_abs());
        }
        self.clock.now()
    }

    /// Moves planned times after the clock was set back by `by_ms`.
    fn set_back(&mut self, by_ms: u64) {
        let by = Duration::from_millis(by_ms);
        self.lines.values_mut().for_each(|line| line.window.set_back(by));
        self.breaker.set_back(by);
        self.leases.set_back(by);
        self.held_off = self.held_off.map(|until| until.saturating_sub(by));
        self.failing_since = self.failing_since.map(|since| since.saturating_sub(by));
        self.retry_check_at = Some(Instant::now());
    }

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
        self.metrics.in_flight.set(in_flight as f64);
        let parked: u64 = self.lines.values().map(|line| line.window.parked().1).sum();
        self.metrics.parked.set(parked as f64);
        let prefetched: usize = self.lines.values().map(|line| line.window.body_bytes()).sum();
        self.metrics.prefetched.set(prefetched as f64);
        self.metrics.breaker.set(if self.breaker.word() == "closed" { 0.0 } else { 1.0 });
        self.note_stall();
        self.report_dead_letters();
    }

    /// Reports once that the subscription is stalled, and once that it is not any more.
    fn note_stall(&mut self) {
        let full = self.lines.values().any(|line| line.window.is_full());
        let retries_full =
            !self.subscription.stored.spec.retries_in_place() && self.retry_holds >= self.context.settings.retry_holds;
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
                Event::warning("subscription_stalled", format!("subscription `{name}` is stalled: {why}"))
                    .with("reason", word)
            }
            None => Event::new("subscription_goes_on", format!("subscription `{name}` resumes")),
        };
        (self.context.events)(event.with("subscription", name));
    }

    /// Records a failed attempt. If all attempts have failed for `disable_after_ms`, the subscription is disabled. Without attempts, this
    /// time does not run.
    fn fails_since(&mut self, now: Timestamp) {
        let after = self.subscription.stored.spec.disable_after_ms;
        let since = *self.failing_since.get_or_insert(now);
        if after > 0 && now.as_millis() - since.as_millis() >= after as i64 {
            self.disable(format!(
                "all attempts failed for {}",
                whimbrel_model::format_duration(Duration::from_millis(after))
            ));
        }
    }

    /// Clears the time since which all attempts have failed. Rows that were saved meanwhile contain it, so all rows are saved again.
    /// Otherwise a later owner would read it from the row of an idle partition.
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
        let (subscriptions, number) = (Arc::clone(&self.context.subscriptions), self.subscription.number());
        self.background.push(Box::pin(async move {
            let outcome = subscriptions.disable(number, &reason).await;
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| {
                runner.disabling = false;
                // The failing time starts again when an operator resumes the subscription.
                runner.fails_no_more();
                if let Err(error) = outcome {
                    tracing::error!(%error, subscription = %runner.subscription.name, "cannot disable the subscription");
                }
            });
            after
        }));
    }

    fn holds_partition(&self, hold_id: &whimbrel_model::HoldId) -> Option<PartitionId> {
        let topic = self.context.registry.get(HOLDS_TOPIC)?;
        Some(topic.partition(hold_id.shard(topic.partitions())))
    }

    fn flush_notes(&mut self) {
        if !self.notes.is_empty() {
            self.context.notebook.note(std::mem::take(&mut self.notes));
        }
    }

    /// Starts no new work, waits for work in progress, then saves everything.
    async fn hand_over(&mut self, ended: &RunEnd) {
        let until = tokio::time::Instant::now() + self.context.settings.handover_wait;
        while *ended == RunEnd::Stopped
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
        self.metrics.clear();
        if *ended != RunEnd::Stopped {
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
            tracing::warn!(subscription = %self.subscription.name, "the last save of the progress timed out");
        }
    }
}

fn reading(context: &DispatchContext) -> ClockReading {
    let steady_ms = u64::try_from(context.began.elapsed().as_millis()).unwrap_or(u64::MAX);
    ClockReading { wall: context.clock.now(), expiry: context.clock.expiry_now(), steady_ms }
}
