//! The shell around a shard: it performs the shard's effects and passes the results back as inputs.
//!
//! One task runs each shard. Calls to the log and the store run concurrently, but there is at most one read, one checkpoint and one
//! commit at a time. When the shard starts over, the shell drops all calls in progress except a checkpoint, which it waits for.

use std::collections::HashMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{
    Fence, HoldReply, HoldRequest, HoldsError, Log, LogError, Membership, ReadLimits, Timers, TimersError,
};
use whimbrel_model::{Clock, Event, EventSink, HOLDS_TOPIC, PartitionId, Timestamp, format_duration};

use super::alarm::Alarm;
use super::blocked::BlockedPartitions;
use super::commit::{CommitTarget, commit};
use super::hold_metrics::HoldMetrics;
use super::log_calls::{cut, read, walk};
use super::settings::{HoldsSettings, PAGE_BYTES, PAGE_HOLDS, RETRY_AFTER};
use super::shard::{CommitResult, Decision, HoldEffect, HoldInput, HoldRequestId, HoldShard};
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::line_limit::LineLimit;
use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_cluster::{HOLDS_FAMILY, LocalHoldsError, shard_name};

/// How long a read waits at the end of the log before it is repeated.
const READ_WAIT: Duration = Duration::from_secs(10);
/// The pause before a read when records arrive one by one, faster than this. It gathers a few records, because a wake-up costs more than
/// folding one record.
const GATHER: Duration = Duration::from_millis(1);
const METRICS_EVERY: Duration = Duration::from_millis(100);
/// The most requests that are read from the queue at once.
const ASKS_AT_ONCE: usize = 256;
/// Alarms ring this much later than the due time, so that the wall clock has reached it. An alarm that rings too early would cost 1 ms.
const WAKE_MARGIN: Duration = Duration::from_micros(30);
/// An owner reads its clock at least this often, so that it notices clock steps in time.
const CLOCK_READ_EVERY: Duration = Duration::from_secs(1);
/// Timeout of the last checkpoint when a shard is given up.
const LAST_CHECKPOINT_WITHIN: Duration = Duration::from_secs(5);

pub struct CenterContext {
    pub log: Arc<dyn Log>,
    pub timers: Arc<dyn Timers>,
    pub registry: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub settings: Arc<HoldsSettings>,
    pub shards: u32,
    pub(crate) metrics: HoldMetrics,
    pub began: Instant,
}

impl CenterContext {
    fn reading(&self) -> ClockReading {
        let steady_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        ClockReading { wall: self.clock.now(), expiry: self.clock.expiry_now(), steady_ms }
    }
}

pub(crate) struct QueuedRequest {
    pub(crate) ask: HoldRequest,
    pub(crate) reply: oneshot::Sender<Result<HoldReply, LocalHoldsError>>,
}

type OwnerCall = Pin<Box<dyn Future<Output = HoldInput> + Send>>;

struct OwnerTask {
    context: Arc<CenterContext>,
    number: u32,
    partition: PartitionId,
    epoch: u64,
    membership: Arc<dyn Membership>,
    shard: HoldShard,
    fence: Option<Fence>,
    calls: FuturesUnordered<OwnerCall>,
    /// The checkpoint in progress.
    applying: Option<OwnerCall>,
    replies: HashMap<HoldRequestId, oneshot::Sender<Result<HoldReply, LocalHoldsError>>>,
    next_ask: HoldRequestId,
    /// Topic partitions that a recent commit could not write to.
    blocked: Arc<Mutex<BlockedPartitions>>,
    /// Notified when a read must not wait for more records to gather.
    urgent: Arc<Notify>,
    last_read: Option<Instant>,
    metrics_at: Instant,
}

/// Owns the shard until `stop` is cancelled. Returns a reason if the owner cannot continue.
pub(crate) async fn own(
    context: Arc<CenterContext>,
    number: u32,
    partition: PartitionId,
    epoch: u64,
    membership: Arc<dyn Membership>,
    mut requests: mpsc::Receiver<QueuedRequest>,
    stop: CancellationToken,
) -> Option<String> {
    let shard = HoldShard::new(Arc::clone(&context.settings), context.shards, epoch, context.reading());
    let mut owner = OwnerTask {
        number,
        partition,
        epoch,
        membership,
        shard,
        fence: None,
        calls: FuturesUnordered::new(),
        applying: None,
        replies: HashMap::new(),
        next_ask: 0,
        blocked: Arc::default(),
        urgent: Arc::default(),
        last_read: None,
        metrics_at: Instant::now(),
        context,
    };
    let ended = owner.run(&mut requests, &stop).await;
    owner.end(&mut requests, ended.is_none()).await;
    ended
}

impl OwnerTask {
    async fn run(&mut self, requests: &mut mpsc::Receiver<QueuedRequest>, stop: &CancellationToken) -> Option<String> {
        let mut alarm = match Alarm::new() {
            Ok(alarm) => alarm,
            Err(error) => return Some(format!("cannot create the timer: {error}")),
        };
        let mut inputs = match self.start(true, requests, stop).await {
            Ok(Some(input)) => vec![input],
            Ok(None) => return None,
            Err(why) => return Some(why),
        };
        loop {
            let mut was_idle = true;
            for input in inputs.drain(..) {
                let effects = self.shard.step(self.context.reading(), input);
                was_idle &= effects.is_empty();
                for effect in effects {
                    match effect {
                        HoldEffect::Resign { why } => return Some(why),
                        HoldEffect::StartOver | HoldEffect::OpenFence => {
                            let must_fence = matches!(effect, HoldEffect::OpenFence);
                            self.drop_calls().await;
                            match self.start(must_fence, requests, stop).await {
                                Ok(Some(input)) => self.calls.push(Box::pin(std::future::ready(input))),
                                Ok(None) => return None,
                                Err(why) => return Some(why),
                            }
                        }
                        effect => self.perform(effect),
                    }
                }
            }
            if self.shard.is_urgent() {
                self.urgent.notify_one();
            }
            if self.metrics_at.elapsed() >= METRICS_EVERY {
                self.metrics_at = Instant::now();
                let metrics = self.shard.metrics();
                if let Some(holds) = self.context.registry.get(HOLDS_TOPIC) {
                    holds.counters.fold_backlog.folded(self.number, metrics.folded);
                }
                self.context.metrics.of_shard(self.number, metrics);
            }
            let wake = self.until_wake(was_idle);
            // Requests are read on every turn: a stream of finished calls must not delay them.
            while inputs.len() < ASKS_AT_ONCE
                && let Ok(request) = requests.try_recv()
            {
                inputs.push(self.asked(request));
            }
            if !inputs.is_empty() {
                // Nor must many requests delay the calls. One call per turn, before the requests: if its result makes the shard start
                // over, inputs queued behind it are void, but requests are not.
                if let Some(input) = self.poll_calls() {
                    inputs.insert(0, input);
                }
                if stop.is_cancelled() {
                    return None;
                }
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                Some(input) = self.calls.next(), if !self.calls.is_empty() => inputs.push(input),
                input = under_way(&mut self.applying) => {
                    self.applying = None;
                    inputs.push(input);
                }
                Some(request) = requests.recv() => inputs.push(self.asked(request)),
                () = alarm.after(wake) => inputs.push(HoldInput::Tick),
            }
        }
    }

    fn poll_calls(&mut self) -> Option<HoldInput> {
        if let Some(Some(input)) = self.calls.next().now_or_never() {
            return Some(input);
        }
        let input = under_way(&mut self.applying).now_or_never()?;
        self.applying = None;
        Some(input)
    }

    /// How long the shard can sleep; at least 1 ms if the last step had no effects.
    fn until_wake(&self, was_idle: bool) -> Option<Duration> {
        let (wake_at, now) = (self.shard.wake_at()?.as_millis(), self.shard.now().as_millis());
        // If the owner's clock is the wall clock, the fraction of the current millisecond counts too.
        let fraction = self.context.clock.micros_into().min(999);
        let micros = wake_at.saturating_sub(now).saturating_mul(1000).saturating_sub(fraction.into());
        let micros = u64::try_from(micros).unwrap_or(0);
        let wait = Duration::from_micros(if was_idle { micros.max(1000) } else { micros }) + WAKE_MARGIN;
        Some(wait.min(CLOCK_READ_EVERY))
    }

    fn asked(&mut self, request: QueuedRequest) -> HoldInput {
        self.next_ask += 1;
        self.replies.insert(self.next_ask, request.reply);
        HoldInput::Asked { ask: self.next_ask, what: request.ask }
    }

    /// Drops all calls in progress, but waits for a checkpoint: the store must not change after its offset is read.
    async fn drop_calls(&mut self) {
        self.calls.clear();
        if let Some(applying) = self.applying.take() {
            let _ = applying.await;
        }
    }

    /// Reads the offsets of store and log. `must_fence`: opens a new fence first. Returns `None` if the owner is stopped. Requests are
    /// accepted meanwhile; a request that waits too long gets an error that nothing was done.
    async fn start(
        &mut self,
        must_fence: bool,
        requests: &mut mpsc::Receiver<QueuedRequest>,
        stop: &CancellationToken,
    ) -> Result<Option<HoldInput>, String> {
        let fence = self.fence.take().filter(|_| !must_fence);
        let (context, membership) = (Arc::clone(&self.context), Arc::clone(&self.membership));
        let starting = find_start(context, self.number, self.partition, self.epoch, membership, fence);
        tokio::pin!(starting);
        loop {
            let input = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                started = &mut starting => {
                    let (fence, input) = started?;
                    self.fence = Some(fence);
                    return Ok(Some(input));
                }
                Some(request) = requests.recv() => self.asked(request),
                () = tokio::time::sleep(RETRY_AFTER) => HoldInput::Tick,
            };
            for effect in self.shard.step(self.context.reading(), input) {
                if let HoldEffect::Answer { ask, told } = effect {
                    self.answer(ask, told);
                }
            }
        }
    }

    fn perform(&mut self, effect: HoldEffect) {
        let context = Arc::clone(&self.context);
        let (number, partition) = (self.number, self.partition);
        let call: OwnerCall = match effect {
            HoldEffect::Read { from } => {
                let (urgent, last_read) = (Arc::clone(&self.urgent), self.last_read.replace(Instant::now()));
                let is_crowd = last_read.is_some_and(|last| last.elapsed() < GATHER);
                let gathers = is_crowd && !self.shard.is_urgent();
                Box::pin(async move {
                    if gathers {
                        let _ = tokio::time::timeout(GATHER, urgent.notified()).await;
                    }
                    let limits = ReadLimits { max_records: PAGE_HOLDS, max_bytes: PAGE_BYTES, wait: READ_WAIT };
                    HoldInput::Read(read(&*context.log, partition, from, limits).await)
                })
            }
            HoldEffect::End { token } => Box::pin(async move {
                HoldInput::End { token, end: context.log.bounds(partition).await.map(|bounds| bounds.next) }
            }),
            HoldEffect::Get { token, ids } => {
                Box::pin(async move { HoldInput::Got { token, found: context.timers.get(number, ids).await } })
            }
            HoldEffect::Due { token, after, until } => Box::pin(async move {
                let found = context.timers.due(number, after, until, PAGE_HOLDS, PAGE_BYTES).await;
                HoldInput::Due { token, found }
            }),
            HoldEffect::List { token, query } => {
                Box::pin(async move { HoldInput::Listed { token, found: context.timers.list(number, query).await } })
            }
            HoldEffect::Dead { token, query } => {
                Box::pin(
                    async move { HoldInput::ListedDead { token, found: context.timers.dead(number, query).await } },
                )
            }
            HoldEffect::Count { token, query } => {
                Box::pin(async move { HoldInput::Counted { token, found: context.timers.count(number, query).await } })
            }
            HoldEffect::Apply(write) => {
                context.metrics.checkpoint(write.changes.len());
                let apply = async move { HoldInput::Applied(context.timers.apply(number, write).await) };
                self.applying = Some(Box::pin(apply));
                return;
            }
            HoldEffect::Commit { decisions, at } => {
                let Some(fence) = self.fence.clone() else { return };
                Box::pin(commit_and_count(context, fence, partition, Arc::clone(&self.blocked), decisions, at))
            }
            HoldEffect::Cut { kept_since } => {
                Box::pin(async move { HoldInput::Cut(cut(&*context.log, partition, kept_since).await) })
            }
            HoldEffect::Walk { from, upto } => {
                Box::pin(async move { HoldInput::Walked(walk(&*context.log, partition, from, upto).await) })
            }
            HoldEffect::Trim { before } => {
                Box::pin(async move { HoldInput::Trimmed(context.log.trim(partition, before).await) })
            }
            HoldEffect::Answer { ask, told } => return self.answer(ask, told),
            HoldEffect::Report { offset, why } => {
                let detail = format!("a record of the holds cannot be decoded and was skipped: {why}");
                let event = Event::failure("hold_record_passed_over", detail);
                (context.events)(event.with("shard", number).with("offset", offset));
                return;
            }
            HoldEffect::NotTrimmed { why } => {
                let every = format_duration(context.settings.trim_interval);
                let detail = format!(
                    "the log of shard {number} of the holds cannot be trimmed and keeps growing: {why}. The next attempt \
                     follows after {every}"
                );
                (context.events)(Event::warning("holds_not_trimmed", detail).with("shard", number).with("error", why));
                return;
            }
            // The main loop handles these.
            HoldEffect::StartOver | HoldEffect::OpenFence | HoldEffect::Resign { .. } => return,
        };
        self.calls.push(call);
    }

    fn answer(&mut self, ask: HoldRequestId, told: Result<HoldReply, HoldsError>) {
        let told = match told {
            Err(HoldsError::Overloaded(_)) => Err(HoldsError::Overloaded(self.number)),
            told => told,
        };
        if let Some(reply) = self.replies.remove(&ask) {
            // The caller may have disconnected. The decision stands.
            let _ = reply.send(told.map_err(LocalHoldsError::Holds));
        }
    }

    /// Gives up the shard. A last checkpoint shortens the successor's start. Waiting requests get `NotHere`, or `OutcomeUnknown` if their
    /// commit is in progress.
    async fn end(mut self, requests: &mut mpsc::Receiver<QueuedRequest>, with_checkpoint: bool) {
        requests.close();
        if self.shard.is_committing() {
            // Waits for the commit, so that its requests get the outcome.
            let waited = tokio::time::timeout(LAST_CHECKPOINT_WITHIN, async {
                while self.shard.is_committing()
                    && let Some(input) = self.calls.next().await
                {
                    let effects = self.shard.step(self.context.reading(), input);
                    for effect in effects {
                        if let HoldEffect::Answer { ask, told } = effect {
                            self.answer(ask, told);
                        }
                    }
                }
            });
            let _ = waited.await;
        }
        for ask in self.shard.asks_in_doubt() {
            let why = "the owner of the hold changed during the commit".to_owned();
            self.answer(ask, Err(HoldsError::OutcomeUnknown(why)));
        }
        if with_checkpoint {
            let last = async {
                if let Some(applying) = self.applying.take() {
                    let input = applying.await;
                    let _ = self.shard.step(self.context.reading(), input);
                }
                if let Some(write) = self.shard.last_checkpoint() {
                    let _ = self.context.timers.apply(self.number, write).await;
                }
            };
            let _ = tokio::time::timeout(LAST_CHECKPOINT_WITHIN, last).await;
        }
        for (_, reply) in self.replies.drain() {
            let _ = reply.send(Err(LocalHoldsError::NotHere));
        }
        while let Ok(request) = requests.try_recv() {
            let _ = request.reply.send(Err(LocalHoldsError::NotHere));
        }
    }
}

/// Opens the fence if there is none, checks the ownership after that, and reads the offsets of store and log. A call that fails is
/// retried while the node has its session.
async fn find_start(
    context: Arc<CenterContext>,
    number: u32,
    partition: PartitionId,
    epoch: u64,
    membership: Arc<dyn Membership>,
    fence: Option<Fence>,
) -> Result<(Fence, HoldInput), String> {
    let name = shard_name(HOLDS_FAMILY, number);
    let try_once = async || -> Result<(Fence, HoldInput), TakeoverError> {
        let fence = match &fence {
            Some(fence) => fence.clone(),
            None => {
                let opened = context.log.fence(&name, epoch).await?;
                let is_owner = membership.owns(&name, epoch).await;
                if !is_owner.map_err(|error| TakeoverError::Passing(error.to_string()))? {
                    return Err(TakeoverError::Over("another node owns the shard".to_owned()));
                }
                opened
            }
        };
        let Some(applied) = context.timers.open(number, epoch).await? else {
            return Err(TakeoverError::Over("a newer owner has the shard's store".to_owned()));
        };
        let bounds = context.log.bounds(partition).await?;
        Ok((fence, HoldInput::Started { applied, first: bounds.first, end: bounds.next }))
    };
    loop {
        if !membership.is_valid() {
            return Err("the session is lost".to_owned());
        }
        match try_once().await {
            Ok(started) => return Ok(started),
            Err(TakeoverError::Over(why)) => return Err(why),
            Err(TakeoverError::Passing(why)) => {
                static LINES: LineLimit = LineLimit::new();
                if let Some(left_out) = LINES.admit(&why) {
                    tracing::warn!(shard = number, %why, left_out, "cannot take over the shard of the holds; retrying");
                }
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

enum TakeoverError {
    Passing(String),
    Over(String),
}

impl From<LogError> for TakeoverError {
    fn from(error: LogError) -> Self {
        Self::Passing(error.to_string())
    }
}

impl From<TimersError> for TakeoverError {
    fn from(error: TimersError) -> Self {
        Self::Passing(error.to_string())
    }
}

async fn under_way(call: &mut Option<OwnerCall>) -> HoldInput {
    match call {
        Some(call) => call.await,
        None => pending().await,
    }
}

async fn commit_and_count(
    context: Arc<CenterContext>,
    fence: Fence,
    shard: PartitionId,
    blocked: Arc<Mutex<BlockedPartitions>>,
    decisions: Vec<Decision>,
    at: Timestamp,
) -> HoldInput {
    let began = Instant::now();
    let target = CommitTarget { log: &*context.log, fence: &fence, shard, blocked: &blocked };
    let outcome = commit(target, &context.registry, &decisions, at).await;
    if let CommitResult::Done(written) = &outcome {
        context.metrics.committed(&decisions, written, began.elapsed(), context.clock.now());
    }
    HoldInput::Committed(outcome)
}
