//! The shell around a [`SubscriptionRunner`]: one task on one thread. It executes the runner's effects beside each other, passes their
//! results back as inputs, and answers requests. It decides nothing about messages.
//!
//! The shell passes the topics of the catalogue to the runner before the result of a read: the runner must follow a growth before it takes
//! in messages from after the growth.

mod background;
mod call_targets;
mod dead_letters;
mod retry_holds;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{
    Callbacks, DispatchError, DispatchReply, DispatchRequest, Holds, LogError, PortFuture, ProgressError, ProgressRow,
    ReadLimits,
};

use super::DispatchPorts;
use super::line_set::OutgoingMessage;
use super::pending_appends::{AppendDone, Settlement};
use super::runner::{
    CallDone, DeliveryCount, RETRY_AFTER, ReadDone, RequestId, RunEnd, RunnerEffect, RunnerInput, RunnerStart,
    SaveDone, SubscriptionRunner,
};
use super::settings::DispatchSettings;
use super::source_topics::SubscriptionTopics;
use super::subscription_metrics::SubscriptionMetrics;
use super::window::ReadRequest;
use call_targets::CallTargets;
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_cluster::Machine as _;
use whimbrel_cluster::owner_clock::ClockReading;

/// How often the topics are checked.
const TOPICS_EVERY: Duration = Duration::from_millis(500);
/// The most finished calls that are processed before new ones are started.
const TAKEN_AT_ONCE: usize = 256;
/// Timeout of the last save when a subscription is given up.
const LAST_SAVE_WITHIN: Duration = Duration::from_secs(3);
/// How long a read waits at the end of the log before it is repeated.
const READ_WAIT: Duration = Duration::from_secs(10);
const READ_RECORDS: usize = 4096;

pub struct DispatchContext {
    pub ports: DispatchPorts,
    pub settings: DispatchSettings,
    pub began: Instant,
}

impl DispatchContext {
    fn reading(&self) -> ClockReading {
        let steady_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        ClockReading { wall: self.ports.clock.now(), expiry: self.ports.clock.expiry_now(), steady_ms }
    }

    fn topics(&self, subscription: &Subscription) -> SubscriptionTopics {
        SubscriptionTopics::of(subscription, |name| self.ports.registry.get(name))
    }
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

/// An operation that ends with an input.
type Operation<T = RunnerInput> = PortFuture<'static, T>;

struct SubscriptionShell {
    context: Arc<DispatchContext>,
    joined: JoinedPorts,
    epoch: u64,
    subscription: Arc<Subscription>,
    topics: SubscriptionTopics,
    topics_checked_at: Instant,
    runner: SubscriptionRunner,
    targets: CallTargets,
    metrics: SubscriptionMetrics,
    replies: HashMap<RequestId, DispatchReplySender>,
    last_request: RequestId,
    reads: FuturesUnordered<Operation>,
    calls: FuturesUnordered<Operation>,
    appends: FuturesUnordered<Operation>,
    saving: FuturesUnordered<Operation>,
    background: FuturesUnordered<Operation<Option<RunnerInput>>>,
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
    let mut changes = context.ports.subscriptions.changes();
    let mut shell = match open(&context, number, epoch, &stop).await {
        Ok((rows, subscription)) => SubscriptionShell::new(context, joined, epoch, subscription, rows),
        Err(end) => return end,
    };
    let end = shell.run(&mut requests, &mut changes, &stop).await;
    shell.hand_over(&end).await;
    end
}

/// Opens the progress of a subscription, and reads its entry.
async fn open(
    context: &DispatchContext,
    number: SubscriptionNumber,
    epoch: u64,
    stop: &CancellationToken,
) -> Result<(Vec<ProgressRow>, Arc<Subscription>), RunEnd> {
    let rows = loop {
        match context.ports.progress.open(number, epoch).await {
            Ok(rows) => break rows,
            Err(ProgressError::Unavailable(why)) => {
                tracing::warn!(subscription = number.0, why, "the store of progress does not answer; retrying");
            }
            Err(error) => return Err(RunEnd::Failed(error.to_string())),
        }
        pause(stop).await?;
    };
    // The previous owner may have followed a catalogue entry that this node does not have yet: a pause or a seek.
    loop {
        match context.ports.subscriptions.refresh(number).await {
            Ok(Some(subscription)) => return Ok((rows, subscription)),
            Ok(None) => return Err(RunEnd::Deleted),
            Err(error) => tracing::warn!(subscription = number.0, %error, "the catalogue does not answer; retrying"),
        }
        pause(stop).await?;
    }
}

async fn pause(stop: &CancellationToken) -> Result<(), RunEnd> {
    tokio::select! {
        () = tokio::time::sleep(RETRY_AFTER) => Ok(()),
        () = stop.cancelled() => Err(RunEnd::Stopped),
    }
}

impl SubscriptionShell {
    fn new(
        context: Arc<DispatchContext>,
        joined: JoinedPorts,
        epoch: u64,
        subscription: Arc<Subscription>,
        rows: Vec<ProgressRow>,
    ) -> Self {
        let topics = context.topics(&subscription);
        let start = RunnerStart {
            settings: context.settings.clone(),
            epoch,
            subscription: Arc::clone(&subscription),
            topics: topics.clone(),
            rows,
        };
        Self {
            runner: SubscriptionRunner::new(start, context.reading()),
            metrics: SubscriptionMetrics::of(&subscription.name),
            targets: CallTargets::default(),
            topics,
            topics_checked_at: Instant::now(),
            replies: HashMap::new(),
            last_request: 0,
            reads: FuturesUnordered::new(),
            calls: FuturesUnordered::new(),
            appends: FuturesUnordered::new(),
            saving: FuturesUnordered::new(),
            background: FuturesUnordered::new(),
            context,
            joined,
            epoch,
            subscription,
        }
    }

    async fn run(
        &mut self,
        requests: &mut mpsc::Receiver<SubscriptionRequest>,
        changes: &mut watch::Receiver<u64>,
        stop: &CancellationToken,
    ) -> RunEnd {
        let mut inputs = Vec::new();
        loop {
            if let Some(end) = self.step(std::mem::take(&mut inputs)) {
                return end;
            }
            let wake = self.until_wake();
            tokio::select! {
                () = stop.cancelled() => return RunEnd::Stopped,
                Some(done) = self.calls.next() => inputs.push(done),
                Some(done) = self.reads.next() => inputs.push(done),
                Some(done) = self.appends.next() => inputs.push(done),
                Some(done) = self.saving.next() => inputs.push(done),
                Some(done) = self.background.next() => inputs.extend(done),
                Some(request) = requests.recv() => inputs.extend(self.asked(request)),
                Ok(()) = changes.changed() => match self.context.ports.subscriptions.by_number(self.subscription.number()) {
                    Some(subscription) if subscription.version != self.subscription.version => {
                        self.subscription = subscription;
                        self.topics = self.context.topics(&self.subscription);
                        inputs.push(self.catalogue());
                    }
                    Some(_) => {}
                    None => return RunEnd::Deleted,
                },
                () = tokio::time::sleep(wake) => {}
            }
            self.take_finished(&mut inputs);
            self.check_topics(&mut inputs);
            // If the log has everything in memory, no await here ever pends, which would starve other tasks on this thread.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Passes inputs to the runner and executes its effects.
    fn step(&mut self, mut inputs: Vec<RunnerInput>) -> Option<RunEnd> {
        // First, so that no message is leased to a consumer that has left.
        let left: Vec<_> = self.replies.extract_if(|_, reply| reply.is_closed()).map(|(request, _)| request).collect();
        if !left.is_empty() {
            inputs.retain(|input| {
                !matches!(input, RunnerInput::Asked { request, ask: DispatchRequest::Pull { .. } } if left.contains(request))
            });
            inputs.splice(0..0, left.into_iter().map(RunnerInput::Abandoned));
        }
        let effects = self.runner.step(self.context.reading(), inputs);
        effects.into_iter().fold(None, |end, effect| self.perform(effect).or(end))
    }

    fn until_wake(&self) -> Duration {
        let Some(wake_at) = self.runner.wake_at() else { return TOPICS_EVERY };
        let wait_ms = wake_at.as_millis().saturating_sub(self.runner.now().as_millis());
        Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0))
    }

    /// Takes everything else that has finished, so that new work takes all of it into account.
    fn take_finished(&mut self, inputs: &mut Vec<RunnerInput>) {
        for _ in 0..TAKEN_AT_ONCE {
            let Some(Some(done)) = self.calls.next().now_or_never() else { break };
            inputs.push(done);
        }
        for operations in [&mut self.reads, &mut self.appends] {
            while let Some(Some(done)) = operations.next().now_or_never() {
                inputs.push(done);
            }
        }
    }

    /// Passes the topics first if they changed: every 500 ms, and before results and requests that depend on them.
    fn check_topics(&mut self, inputs: &mut Vec<RunnerInput>) {
        let is_due = |input: &RunnerInput| match input {
            RunnerInput::Read(done) => {
                let topic = self.context.ports.registry.by_number(done.wanted.partition.topic);
                topic.is_none_or(|topic| !self.topics.reads(&topic))
            }
            RunnerInput::Asked { ask, .. } => {
                matches!(ask, DispatchRequest::Status | DispatchRequest::DeadLetters { .. })
            }
            _ => false,
        };
        if !inputs.iter().any(is_due) && self.topics_checked_at.elapsed() < TOPICS_EVERY {
            return;
        }
        self.topics_checked_at = Instant::now();
        let topics = self.context.topics(&self.subscription);
        if !topics.is_same(&self.topics) {
            self.topics = topics;
            // An older view must not follow this one: it would undo a growth.
            inputs.retain(|input| !matches!(input, RunnerInput::Catalogue { .. }));
            inputs.insert(0, self.catalogue());
        }
    }

    fn catalogue(&mut self) -> RunnerInput {
        self.targets.clear();
        RunnerInput::Catalogue { subscription: Arc::clone(&self.subscription), topics: self.topics.clone() }
    }

    fn asked(&mut self, request: SubscriptionRequest) -> Option<RunnerInput> {
        // A consumer that has left gets no messages: their leases would have to expire.
        if matches!(request.ask, DispatchRequest::Pull { .. }) && request.reply.is_closed() {
            return None;
        }
        self.last_request += 1;
        self.replies.insert(self.last_request, request.reply);
        Some(RunnerInput::Asked { request: self.last_request, ask: request.ask })
    }

    fn perform(&mut self, effect: RunnerEffect) -> Option<RunEnd> {
        match effect {
            RunnerEffect::End(end) => return Some(end),
            RunnerEffect::Read { line, incarnation, wanted } => self.read(line, incarnation, wanted),
            RunnerEffect::Call(outgoing) => self.call(outgoing),
            RunnerEffect::Append(settlements) => self.append(settlements),
            RunnerEffect::Save(rows) => self.save(rows),
            RunnerEffect::RecordAttempts(records) => self.context.ports.notebook.note(records),
            RunnerEffect::Publish(event) => (self.context.ports.events)(event),
            RunnerEffect::Count(count) => self.count(count),
            RunnerEffect::Gauges(gauges) => self.metrics.set(gauges),
            RunnerEffect::Reply { request, answer } => {
                if let Some(reply) = self.replies.remove(&request) {
                    // The caller may have left.
                    let _ = reply.send(answer);
                }
            }
            RunnerEffect::SkippedRetry { topic, offset } => {
                tracing::warn!(offset, %topic, "skipped a record without an origin");
            }
            RunnerEffect::BehindSeek => tracing::warn!(
                subscription = %self.subscription.name,
                "the saved progress belongs to a seek that this node has not seen yet"
            ),
            effect => self.perform_in_background(effect),
        }
        None
    }

    fn count(&self, count: DeliveryCount) {
        self.metrics.count(count);
        match count {
            DeliveryCount::Delivered { topic, delay_ms, callback_us } => {
                self.context.ports.stats.delivered(topic, delay_ms.saturating_mul(1000), callback_us);
            }
            DeliveryCount::Failed { topic, callback_us } => self.context.ports.stats.failed(topic, callback_us),
            DeliveryCount::Gone | DeliveryCount::Buried | DeliveryCount::Dropped => {}
        }
    }

    fn read(&self, line: u32, incarnation: u64, wanted: ReadRequest) {
        let context = Arc::clone(&self.context);
        let wait = if wanted.again { Duration::ZERO } else { READ_WAIT };
        let limits = ReadLimits { max_records: READ_RECORDS, max_bytes: wanted.max_bytes, wait };
        self.reads.push(Box::pin(async move {
            let outcome = context.ports.log.read(wanted.partition, wanted.from, limits).await;
            // The messages may be behind barriers that this node has not read yet.
            context.ports.registry.wait_for_barriers(wanted.partition.topic).await;
            let is_known = matches!(outcome, Ok(_) | Err(LogError::Trimmed { .. } | LogError::Damaged { .. }));
            if !is_known && let Err(error) = &outcome {
                tracing::debug!(%error, partition = %wanted.partition, "a read for a subscription failed");
            }
            // A store that lost writes may not have the bodies again yet. They are requested again after a pause.
            let is_empty = wanted.again && matches!(&outcome, Ok(batch) if batch.next <= wanted.from);
            if !is_known || is_empty {
                tokio::time::sleep(RETRY_AFTER).await;
            }
            RunnerInput::Read(ReadDone { line, incarnation, wanted, outcome })
        }));
    }

    fn call(&mut self, outgoing: OutgoingMessage) {
        let target = self.targets.of(&self.subscription, &outgoing.message.topic, &self.context.ports.registry);
        let call = call_targets::call(&outgoing, target);
        let callbacks = Arc::clone(&self.joined.callbacks);
        self.calls.push(Box::pin(async move {
            let called = callbacks.call(call).await;
            RunnerInput::Called(CallDone { outgoing, called })
        }));
    }

    fn append(&self, settlements: Vec<Settlement>) {
        let (log, name) = (Arc::clone(&self.context.ports.log), Arc::clone(&self.subscription.name));
        let entries: Vec<_> = settlements.iter().filter_map(|each| each.entry.clone()).collect();
        self.appends.push(Box::pin(async move {
            let mut appended = if entries.is_empty() { Vec::new() } else { log.append(entries).await }.into_iter();
            let no_topic =
                || Err(LogError::Unavailable("the topic of the retry or dead letter does not exist".to_owned()));
            let outcome_of = |each: &Settlement| match each.entry {
                Some(_) => appended.next().unwrap_or_else(no_topic),
                None => no_topic(),
            };
            let outcomes: Vec<_> = settlements.iter().map(outcome_of).collect();
            for (settlement, outcome) in settlements.iter().zip(&outcomes) {
                if let Err(error) = outcome
                    && settlement.is_repeated_after(error)
                {
                    tracing::warn!(%error, subscription = %name, "cannot append a retry or dead letter; retrying");
                }
            }
            if outcomes.iter().any(Result::is_err) {
                tokio::time::sleep(RETRY_AFTER).await;
            }
            RunnerInput::Appended(AppendDone { settlements, outcomes })
        }));
    }

    fn save(&self, rows: Vec<ProgressRow>) {
        let (progress, epoch) = (Arc::clone(&self.context.ports.progress), self.epoch);
        let subscription = Arc::clone(&self.subscription);
        self.saving.push(Box::pin(async move {
            let outcome = progress.save(subscription.number(), epoch, rows.clone()).await;
            match &outcome {
                Err(error @ ProgressError::NewerRun { .. }) => {
                    tracing::debug!(%error, "the store rejected progress of an earlier run");
                }
                Err(ProgressError::Unavailable(why)) => {
                    tracing::warn!(why, subscription = %subscription.name, "cannot save the progress; retrying");
                }
                Ok(()) | Err(ProgressError::Fenced { .. }) => {}
            }
            RunnerInput::Saved(SaveDone { rows, outcome })
        }));
    }

    /// Starts no new work, waits for work in progress, then saves everything.
    async fn hand_over(&mut self, end: &RunEnd) {
        let until = tokio::time::Instant::now() + self.context.settings.handover_wait;
        self.step(vec![RunnerInput::HandOver]);
        if *end == RunEnd::Stopped {
            while !(self.calls.is_empty() && self.runner.has_appended_all()) {
                let done = tokio::select! {
                    Some(done) = self.calls.next() => done,
                    Some(done) = self.appends.next() => done,
                    () = tokio::time::sleep_until(until) => break,
                };
                self.step(vec![done]);
            }
        }
        self.step(vec![RunnerInput::RecordAttempts]);
        self.metrics.clear();
        if *end != RunEnd::Stopped {
            return;
        }
        let saved = tokio::time::timeout(LAST_SAVE_WITHIN, async {
            while let Some(done) = self.saving.next().await {
                self.step(vec![done]);
            }
            self.step(vec![RunnerInput::SaveNow]);
            while let Some(done) = self.saving.next().await {
                self.step(vec![done]);
            }
        });
        if saved.await.is_err() {
            tracing::warn!(subscription = %self.subscription.name, "the last save of the progress timed out");
        }
    }
}
