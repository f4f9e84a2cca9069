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

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{
    AttemptStore, CallTarget, Callbacks, DispatchError, DispatchReply, DispatchRequest, Holds, Log, PortFuture,
    Progress, ProgressError, ProgressRow,
};
use whimbrel_model::{Clock, Event, EventSink, HOLDS_TOPIC, PartitionId, SubscriptionNumber, Timestamp};

use super::attempt_history::AttemptHistory;
use super::catalogue_changes::CatalogueChanges;
use super::endpoint_health::EndpointHealth;
use super::incidents::{Incidents, StallReason};
use super::line_set::LineSet;
use super::pending_appends::{AppendDone, PendingAppends};
use super::redriven_letters::RedrivenLetters;
use super::retry_hold_count::RetryHoldCount;
use super::runner_clock::RunnerClock;
use super::saved_progress::SavedProgress;
use super::settings::DispatchSettings;
use super::source_topics::SourceTopics;
use super::subscription_metrics::SubscriptionMetrics;
use calls::CallDone;
use leases::Leases;
use log_reads::ReadDone;
use progress_save::SaveDone;
use whimbrel_catalogue::subscriptions::{Subscription, SubscriptionRegistry};
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::owner_clock::ClockReading;

const RETRY_AFTER: Duration = Duration::from_millis(500);
/// The most finished calls that are processed before new ones are started.
const TAKEN_AT_ONCE: usize = 256;
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
    pub reply: DispatchReplySender,
}

type DispatchReplySender = oneshot::Sender<Result<DispatchReply, DispatchError>>;

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
    lines: LineSet,
    sources: SourceTopics,
    rows: SavedProgress,
    targets: HashMap<Arc<str>, Arc<CallTarget>>,
    health: EndpointHealth,
    retry_holds: RetryHoldCount,
    redriven: RedrivenLetters,
    changes: CatalogueChanges<DispatchReplySender>,
    pending: PendingAppends,
    work: WorkInProgress,
    leases: Leases,
    clock: RunnerClock,
    random: u64,
    history: AttemptHistory,
    metrics: SubscriptionMetrics,
    incidents: Incidents,
}

/// The operations that run beside the task.
#[derive(Default)]
struct WorkInProgress {
    reads: FuturesUnordered<PortFuture<'static, ReadDone>>,
    calls: FuturesUnordered<PortFuture<'static, CallDone>>,
    appends: FuturesUnordered<PortFuture<'static, AppendDone>>,
    saving: FuturesUnordered<PortFuture<'static, SaveDone>>,
    background: FuturesUnordered<BackgroundTask>,
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
        if let Some(why) = runner.incidents.take_failure() {
            break RunEnd::Failed(why);
        }
        if runner.subscription.stored.deleting {
            break RunEnd::Deleted;
        }
        let wake = runner.turn();
        tokio::select! {
            () = stop.cancelled() => break RunEnd::Stopped,
            Some(done) = runner.work.calls.next() => runner.answered(done),
            Some(done) = runner.work.reads.next() => runner.was_read(done),
            Some(done) = runner.work.appends.next() => runner.appended(done),
            Some(done) = runner.work.saving.next() => runner.was_saved(done),
            Some(done) = runner.work.background.next() => done(&mut runner),
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
        let clock = RunnerClock::new(reading, context.settings.save_interval);
        let number = subscription.number();
        Self {
            epoch,
            began_at_ms: reading.wall.as_millis(),
            lines: LineSet::default(),
            sources: SourceTopics::default(),
            rows: SavedProgress::new(rows),
            targets: HashMap::new(),
            health: EndpointHealth::new(&subscription.stored, context.settings.breaker),
            retry_holds: RetryHoldCount::new(context.settings.retry_holds, clock.steady()),
            redriven: RedrivenLetters::default(),
            changes: CatalogueChanges::default(),
            pending: PendingAppends::default(),
            work: WorkInProgress::default(),
            leases: Leases::default(),
            clock,
            random: (reading.wall.as_millis() as u64) ^ (u64::from(number.0) << 32) ^ epoch | 1,
            history: AttemptHistory::default(),
            metrics: SubscriptionMetrics::of(&subscription.name),
            incidents: Incidents::default(),
            context,
            joined,
            subscription,
        }
    }

    /// Starts all work that can start now. Returns when to run again if nothing happens before.
    fn turn(&mut self) -> Instant {
        let now = self.now();
        let instant = Instant::now();
        if self.clock.takes_housekeeping() {
            self.keep_house();
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
        if self.work.saving.is_empty() && self.clock.takes_save(self.context.settings.save_interval) {
            self.start_save();
        }
        if self.history.is_full() {
            self.record_attempts();
        }
        let times = self.lines.next_time().into_iter().chain(self.health.times()).chain(self.leases.next_time());
        let next = self.clock.next_time(times);
        instant + Duration::from_millis((next.as_millis() - now.as_millis()) as u64)
    }

    /// Processes everything else that has finished, so that new work takes all of it into account.
    fn take_what_ended(&mut self) {
        for _ in 0..TAKEN_AT_ONCE {
            let Some(Some(done)) = self.work.calls.next().now_or_never() else { break };
            self.answered(done);
        }
        while let Some(Some(done)) = self.work.reads.next().now_or_never() {
            self.was_read(done);
        }
        while let Some(Some(done)) = self.work.appends.next().now_or_never() {
            self.appended(done);
        }
    }

    fn now(&mut self) -> Timestamp {
        if let Some(by) = self.clock.read(reading(&self.context)) {
            self.lines.set_back(by);
            self.health.set_back(by);
            self.leases.set_back(by);
            self.retry_holds.check_at(self.clock.steady());
        }
        self.clock.now()
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
        self.record_attempts();
        self.metrics.in_flight.set(self.lines.in_flight() as f64);
        self.metrics.parked.set(self.lines.parked().1 as f64);
        self.metrics.prefetched.set(self.lines.body_bytes() as f64);
        self.metrics.breaker.set(if self.health.breaker() == "closed" { 0.0 } else { 1.0 });
        self.check_limits();
        let buried = self.incidents.take_buried(&self.subscription.name);
        self.publish(buried);
    }

    fn check_limits(&mut self) {
        let are_retries_full = !self.subscription.stored.spec.retries_in_place() && self.retry_holds.is_full();
        let at_limit = if self.lines.are_full() {
            Some(StallReason::ParkedFull)
        } else {
            are_retries_full.then_some(StallReason::RetriesFull)
        };
        let event = self.incidents.check_limits(at_limit, &self.subscription.name);
        self.publish(event);
    }

    fn publish(&self, event: Option<Event>) {
        event.into_iter().for_each(|event| (self.context.events)(event));
    }

    /// Records a failed attempt. If all attempts have failed for `disable_after_ms`, the subscription is disabled. Without attempts, this
    /// time does not run.
    fn fails_since(&mut self, now: Timestamp) {
        let after = self.subscription.stored.spec.disable_after_ms;
        if self.health.fails_for_ms(now) >= after as i64 && after > 0 {
            self.disable(format!(
                "all attempts failed for {}",
                whimbrel_model::format_duration(Duration::from_millis(after))
            ));
        }
    }

    /// Clears the time since which all attempts have failed. Rows that were saved meanwhile contain it, so all rows are saved again.
    /// Otherwise a later owner would read it from the row of an idle partition.
    fn fails_no_more(&mut self) {
        if self.health.fails_no_more() {
            self.lines.save_all();
        }
    }

    fn disable(&mut self, reason: String) {
        if !self.subscription.stored.is_active() || !self.changes.begin_disable() {
            return;
        }
        let (subscriptions, number) = (Arc::clone(&self.context.subscriptions), self.subscription.number());
        self.work.background.push(Box::pin(async move {
            let outcome = subscriptions.disable(number, &reason).await;
            let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| {
                runner.changes.disabled();
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

    fn record_attempts(&mut self) {
        if let Some(records) = self.history.take_records() {
            self.context.notebook.note(records);
        }
    }

    /// Starts no new work, waits for work in progress, then saves everything.
    async fn hand_over(&mut self, ended: &RunEnd) {
        let until = tokio::time::Instant::now() + self.context.settings.handover_wait;
        while *ended == RunEnd::Stopped && !(self.work.calls.is_empty() && self.pending.is_empty()) {
            self.start_appends();
            tokio::select! {
                Some(done) = self.work.calls.next() => self.answered(done),
                Some(done) = self.work.appends.next() => self.appended(done),
                () = tokio::time::sleep_until(until) => break,
            }
        }
        self.record_attempts();
        self.metrics.clear();
        if *ended != RunEnd::Stopped {
            return;
        }
        let saved = tokio::time::timeout(LAST_SAVE_WITHIN, async {
            while let Some(done) = self.work.saving.next().await {
                self.was_saved(done);
            }
            self.start_save();
            while let Some(done) = self.work.saving.next().await {
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
