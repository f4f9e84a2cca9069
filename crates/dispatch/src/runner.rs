//! One subscription as a state machine: what to read, whom to call, which failed message becomes a hold or a dead letter, what to save and
//! to answer. Pure: [`SubscriptionRunner::step`] takes readings of the clocks and inputs, and returns effects.
//!
//! It owns the subscription while this node owns its shard. Each step handles all inputs and then starts all work that can start, so that
//! new work takes all of them into account. The shell executes the effects beside each other; their results may come in any order.

mod calls;
mod catalogue_sync;
mod effect;
mod input;
mod leases;
mod log_reads;
mod progress_save;
mod requests;
mod settlement;

use std::sync::Arc;
use std::time::Duration;

use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_model::ports::{DispatchError, DispatchReply, ProgressRow};
use whimbrel_model::{Event, Timestamp};

use super::attempt_history::AttemptHistory;
use super::catalogue_changes::CatalogueChanges;
use super::endpoint_health::EndpointHealth;
use super::incidents::{Incidents, StallReason};
use super::line_set::LineSet;
use super::pending_appends::PendingAppends;
use super::redriven_letters::RedrivenLetters;
use super::retry_hold_count::{COUNT_EVERY, RetryHoldCount};
use super::runner_clock::RunnerClock;
use super::saved_progress::SavedProgress;
use super::settings::DispatchSettings;
use super::source_topics::{SourceTopics, SubscriptionTopics};
pub use effect::{DeliveryCount, RunEnd, RunnerEffect, RunnerGauges};
pub use input::{CallDone, ReadDone, RequestId, RunnerInput, SaveDone};
use leases::Leases;
use whimbrel_cluster::Machine;

/// The pause before a delivery that was not attempted, and after a failure of the log, the store or the catalogue.
pub const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The beginning of a runner.
pub struct RunnerStart {
    pub settings: DispatchSettings,
    pub epoch: u64,
    pub subscription: Arc<Subscription>,
    pub topics: SubscriptionTopics,
    pub rows: Vec<ProgressRow>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunnerPhase {
    Running,
    /// No new work starts, except appends.
    HandingOver,
    Ended,
}

pub struct SubscriptionRunner {
    settings: DispatchSettings,
    epoch: u64,
    subscription: Arc<Subscription>,
    lines: LineSet,
    sources: SourceTopics,
    rows: SavedProgress,
    health: EndpointHealth,
    retry_holds: RetryHoldCount,
    redriven: RedrivenLetters,
    changes: CatalogueChanges<RequestId>,
    pending: PendingAppends,
    leases: Leases,
    clock: RunnerClock,
    random: u64,
    history: AttemptHistory,
    incidents: Incidents,
    phase: RunnerPhase,
    /// The effects of the present step.
    effects: Vec<RunnerEffect>,
}

impl Machine for SubscriptionRunner {
    type Now = ClockReading;
    type Input = Vec<RunnerInput>;
    type Effect = RunnerEffect;

    fn step(&mut self, now: ClockReading, inputs: Vec<RunnerInput>) -> Vec<RunnerEffect> {
        if let Some(by) = self.clock.read(now) {
            self.lines.set_back(by);
            self.health.set_back(by);
            self.leases.set_back(by);
            self.retry_holds.check_at(self.clock.steady());
        }
        inputs.into_iter().for_each(|input| self.take(input));
        self.turn();
        std::mem::take(&mut self.effects)
    }

    fn wake_at(&self) -> Option<Timestamp> {
        let times = self.lines.next_time().into_iter().chain(self.health.times()).chain(self.leases.next_time());
        Some(self.clock.next_time(times))
    }
}

impl SubscriptionRunner {
    pub fn new(start: RunnerStart, now: ClockReading) -> Self {
        let RunnerStart { settings, epoch, subscription, topics, rows } = start;
        let clock = RunnerClock::new(now, settings.save_interval);
        let number = u64::from(subscription.number().0);
        let mut runner = Self {
            lines: LineSet::default(),
            sources: SourceTopics::new(topics),
            rows: SavedProgress::new(rows),
            health: EndpointHealth::new(&subscription.stored, settings.breaker),
            retry_holds: RetryHoldCount::new(settings.retry_holds, clock.steady()),
            redriven: RedrivenLetters::default(),
            changes: CatalogueChanges::default(),
            pending: PendingAppends::default(),
            leases: Leases::new(epoch, now.wall),
            clock,
            random: (now.wall.as_millis() as u64) ^ (number << 32) ^ epoch | 1,
            history: AttemptHistory::default(),
            incidents: Incidents::default(),
            phase: RunnerPhase::Running,
            effects: Vec::new(),
            settings,
            epoch,
            subscription,
        };
        runner.follow();
        runner
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn lines(&self) -> &LineSet {
        &self.lines
    }

    /// Whether no retry or dead letter waits to be appended, or is part of an append in progress.
    pub fn has_appended_all(&self) -> bool {
        self.pending.is_empty()
    }

    fn take(&mut self, input: RunnerInput) {
        match input {
            RunnerInput::Catalogue { subscription, topics } => self.catalogue_changed(subscription, topics),
            RunnerInput::Called(done) => self.answered(done),
            RunnerInput::Read(done) => self.was_read(done),
            RunnerInput::Appended(done) => self.appended(done),
            RunnerInput::Saved(done) => self.was_saved(done),
            RunnerInput::Reopened(outcome) => self.reopened(outcome),
            RunnerInput::Asked { request, ask } => self.answer(request, ask),
            RunnerInput::Abandoned(request) => {
                self.leases.abandon(request);
                self.changes.drop_waiting(|waiting| *waiting == request);
            }
            RunnerInput::Ends { request, ends, dead } => self.reply_status(request, &ends, dead),
            RunnerInput::Message { request, partition, offset, attempts, record } => {
                self.reply_message(request, (partition, offset), attempts, record);
            }
            RunnerInput::Redriven { request, done, is_saved, outcome } => {
                self.redriven.end(done, is_saved);
                self.reply(request, outcome);
            }
            RunnerInput::Disabled => {
                self.changes.disabled();
                // The failing time starts again when an operator resumes the subscription.
                self.fails_no_more();
            }
            RunnerInput::ReplayEnded(run) => self.changes.ended(run),
            RunnerInput::RetryHoldsCounted(count) => self.retry_holds.counted(count),
            RunnerInput::RetryHoldsChecked(is_done) => {
                if !is_done {
                    self.retry_holds.check_at(self.clock.steady() + COUNT_EVERY);
                }
            }
            RunnerInput::HandOver => self.phase = RunnerPhase::HandingOver,
            RunnerInput::RecordAttempts => self.record_attempts(),
            RunnerInput::SaveNow => self.start_save(),
        }
    }

    /// Starts all work that can start now.
    fn turn(&mut self) {
        match self.phase {
            RunnerPhase::Running => self.end_if_over(),
            RunnerPhase::HandingOver => return self.start_appends(),
            RunnerPhase::Ended => {}
        }
        if self.phase == RunnerPhase::Ended {
            return;
        }
        let now = self.now();
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
        if self.clock.takes_save(self.settings.save_interval) {
            self.start_save();
        }
        if self.history.is_full() {
            self.record_attempts();
        }
    }

    fn end_if_over(&mut self) {
        let end = match self.incidents.take_failure() {
            Some(why) => RunEnd::Failed(why),
            None if self.subscription.stored.deleting => RunEnd::Deleted,
            None => return,
        };
        self.phase = RunnerPhase::Ended;
        self.effects.push(RunnerEffect::End(end));
    }

    fn keep_house(&mut self) {
        self.count_retry_holds();
        self.check_retry_holds();
        self.end_replays();
        self.record_attempts();
        self.effects.push(RunnerEffect::Gauges(RunnerGauges {
            in_flight: self.lines.in_flight(),
            parked: self.lines.parked().1,
            prefetched_bytes: self.lines.body_bytes(),
            is_breaker_closed: self.health.breaker() == "closed",
        }));
        self.check_limits();
        let buried = self.incidents.take_buried(&self.subscription.name);
        self.publish(buried);
    }

    /// Counts the retries that wait as holds. The count between two counts drifts when holds are withdrawn.
    fn count_retry_holds(&mut self) {
        if self.subscription.stored.spec.retries_in_place() || !self.retry_holds.is_count_due(self.clock.steady()) {
            return;
        }
        let Some((topic, _)) = self.sources.retry() else { return };
        self.retry_holds.count_began(self.clock.steady());
        self.effects.push(RunnerEffect::CountRetryHolds(topic));
    }

    /// Checks whether retries are due too late because the clock was ahead when they were made.
    fn check_retry_holds(&mut self) {
        if self.subscription.stored.spec.retries_in_place() || !self.retry_holds.is_check_due(self.clock.steady()) {
            return;
        }
        let (Some((topic, _)), Some(line)) = (self.sources.retry(), self.lines.cursor()) else { return };
        self.retry_holds.check_began();
        self.effects.push(RunnerEffect::CheckRetryHolds { topic, rules: line.rules.clone() });
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

    fn publish(&mut self, event: Option<Event>) {
        self.effects.extend(event.map(RunnerEffect::Publish));
    }

    fn reply(&mut self, request: RequestId, answer: Result<DispatchReply, DispatchError>) {
        self.effects.push(RunnerEffect::Reply { request, answer });
    }

    fn record_attempts(&mut self) {
        self.effects.extend(self.history.take_records().map(RunnerEffect::RecordAttempts));
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Records a failed attempt. If all attempts have failed for `disable_after_ms`, the subscription is disabled. Without attempts, this
    /// time does not run.
    fn fails_since(&mut self, now: Timestamp) {
        let after = self.subscription.stored.spec.disable_after_ms;
        if self.health.fails_for_ms(now) >= after as i64 && after > 0 {
            let after = whimbrel_model::format_duration(Duration::from_millis(after));
            self.disable(format!("all attempts failed for {after}"));
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
        if self.subscription.stored.is_active() && self.changes.begin_disable() {
            self.effects.push(RunnerEffect::Disable { reason });
        }
    }
}
