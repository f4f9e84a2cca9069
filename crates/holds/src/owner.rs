//! The edge around a shard: what its requests, effects, start and ending mean in log, store and cluster.
//!
//! Calls to the log and the store run concurrently, but there is at most one read, one checkpoint and one commit at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};
use whimbrel_model::ports::{
    Fence, HoldReply, HoldRequest, HoldsError, Log, LogError, Membership, ReadLimits, Timers, TimersError,
};
use whimbrel_model::{Clock, Event, EventSink, HOLDS_TOPIC, PartitionId, Timestamp, format_duration};

use super::blocked::BlockedPartitions;
use super::commit::{CommitTarget, commit};
use super::hold_metrics::HoldMetrics;
use super::log_calls::{cut, read, walk};
use super::settings::{HoldsSettings, PAGE_BYTES, PAGE_HOLDS, RETRY_AFTER};
use super::shard::{CommitResult, Decision, HoldEffect, HoldInput, HoldRequestId, HoldShard};
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::line_limit::LineLimit;
use whimbrel_cluster::machine::{Edge, MachineStart, Performed};
use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_cluster::shell::{Calls, MachineCall};
use whimbrel_cluster::{HOLDS_FAMILY, LocalHoldsError, shard_name};

/// How long a read waits at the end of the log before it is repeated.
const READ_WAIT: Duration = Duration::from_secs(10);
/// The pause before a read when records arrive one by one, faster than this. It gathers a few records, because a wake-up costs more than
/// folding one record.
const GATHER: Duration = Duration::from_millis(1);
const METRICS_EVERY: Duration = Duration::from_millis(100);

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
    pub(crate) fn reading(&self) -> ClockReading {
        let steady_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        ClockReading { wall: self.clock.now(), expiry: self.clock.expiry_now(), steady_ms }
    }
}

pub(crate) struct QueuedRequest {
    pub(crate) ask: HoldRequest,
    pub(crate) reply: oneshot::Sender<Result<HoldReply, LocalHoldsError>>,
}

/// The shard that an owner owns, and the epoch of its ownership.
pub(crate) struct OwnedShard {
    pub(crate) number: u32,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: u64,
    pub(crate) membership: Arc<dyn Membership>,
}

pub(crate) struct HoldEdge {
    context: Arc<CenterContext>,
    owned: Arc<OwnedShard>,
    requests: mpsc::Receiver<QueuedRequest>,
    replies: HashMap<HoldRequestId, oneshot::Sender<Result<HoldReply, LocalHoldsError>>>,
    next_ask: HoldRequestId,
    fence: Option<Fence>,
    /// The shard starts or ends: no effect but answers is performed.
    only_answers: bool,
    /// Topic partitions that a recent commit could not write to.
    blocked: Arc<Mutex<BlockedPartitions>>,
    /// Notified when a read must not wait for more records to gather.
    urgent: Arc<Notify>,
    last_read: Option<Instant>,
    metrics_at: Instant,
}

impl HoldEdge {
    pub(crate) fn new(context: Arc<CenterContext>, owned: OwnedShard, requests: mpsc::Receiver<QueuedRequest>) -> Self {
        Self {
            context,
            owned: Arc::new(owned),
            requests,
            replies: HashMap::new(),
            next_ask: 0,
            fence: None,
            only_answers: true,
            blocked: Arc::default(),
            urgent: Arc::default(),
            last_read: None,
            metrics_at: Instant::now(),
        }
    }

    fn answer(&mut self, ask: HoldRequestId, told: Result<HoldReply, HoldsError>) {
        let told = match told {
            Err(HoldsError::Overloaded(_)) => Err(HoldsError::Overloaded(self.owned.number)),
            told => told,
        };
        if let Some(reply) = self.replies.remove(&ask) {
            // The caller may have disconnected. The decision stands.
            let _ = reply.send(told.map_err(LocalHoldsError::Owner));
        }
    }

    /// Reads the next records. When records arrive one by one and nothing is urgent, the read waits for a few.
    fn read(&mut self, shard: &HoldShard, from: u64) -> MachineCall<HoldInput> {
        let (context, partition) = (Arc::clone(&self.context), self.owned.partition);
        let (urgent, last_read) = (Arc::clone(&self.urgent), self.last_read.replace(Instant::now()));
        let is_crowd = last_read.is_some_and(|last| last.elapsed() < GATHER);
        let gathers = is_crowd && !shard.is_urgent();
        Box::pin(async move {
            if gathers {
                let _ = tokio::time::timeout(GATHER, urgent.notified()).await;
            }
            let limits = ReadLimits { max_records: PAGE_HOLDS, max_bytes: PAGE_BYTES, wait: READ_WAIT };
            HoldInput::Read(read(&*context.log, partition, from, limits).await)
        })
    }

    fn report_skipped(&self, offset: u64, why: &str) {
        let detail = format!("a record of the holds cannot be decoded and was skipped: {why}");
        let event = Event::failure("hold_record_skipped", detail);
        (self.context.events)(event.with("shard", self.owned.number).with("offset", offset));
    }

    fn report_not_trimmed(&self, why: String) {
        let (number, every) = (self.owned.number, format_duration(self.context.settings.trim_interval));
        let detail = format!(
            "the log of shard {number} of the holds cannot be trimmed and keeps growing: {why}. The next attempt follows after \
             {every}"
        );
        (self.context.events)(Event::warning("holds_not_trimmed", detail).with("shard", number).with("error", why));
    }
}

impl Edge for HoldEdge {
    type Machine = HoldShard;
    type Request = QueuedRequest;
    type Started = (Fence, HoldInput);
    type Done = HoldInput;

    /// An owner reads its clock at least this often, so that it notices clock steps in time.
    const STEP_EVERY: Duration = Duration::from_secs(1);
    const ANSWERS_WHILE_STARTING: bool = true;

    fn clock(&self) -> &dyn Clock {
        &*self.context.clock
    }

    fn now(&self) -> ClockReading {
        self.context.reading()
    }

    fn time_of(shard: &HoldShard) -> Timestamp {
        shard.now()
    }

    fn tick() -> HoldInput {
        HoldInput::Tick
    }

    fn start(&mut self, start: MachineStart) -> MachineCall<Result<Self::Started, String>> {
        self.only_answers = true;
        let fence = self.fence.take().filter(|_| start == MachineStart::Again);
        Box::pin(find_start(Arc::clone(&self.context), Arc::clone(&self.owned), fence))
    }

    fn started(&mut self, (fence, input): Self::Started, _: &mut Calls<HoldInput>) -> Vec<HoldInput> {
        self.fence = Some(fence);
        self.only_answers = false;
        vec![input]
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Option<QueuedRequest>> {
        self.requests.poll_recv(context)
    }

    fn try_request(&mut self) -> Option<QueuedRequest> {
        self.requests.try_recv().ok()
    }

    fn request(&mut self, request: QueuedRequest, _: &mut Calls<HoldInput>) -> Option<HoldInput> {
        self.next_ask += 1;
        self.replies.insert(self.next_ask, request.reply);
        Some(HoldInput::Asked { ask: self.next_ask, what: request.ask })
    }

    fn perform(&mut self, shard: &HoldShard, effect: HoldEffect, calls: &mut Calls<HoldInput>) -> Performed<HoldInput> {
        if self.only_answers && !matches!(effect, HoldEffect::Answer { .. }) {
            return Performed::Done;
        }
        let context = Arc::clone(&self.context);
        let (number, partition) = (self.owned.number, self.owned.partition);
        let call: MachineCall<HoldInput> = match effect {
            HoldEffect::Read { from } => self.read(shard, from),
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
                calls.begin_write(Box::pin(apply));
                return Performed::Done;
            }
            HoldEffect::Commit { decisions, at } => {
                let Some(fence) = self.fence.clone() else { return Performed::Done };
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
            HoldEffect::Answer { ask, told } => {
                self.answer(ask, told);
                return Performed::Done;
            }
            HoldEffect::Report { offset, why } => {
                self.report_skipped(offset, &why);
                return Performed::Done;
            }
            HoldEffect::NotTrimmed { why } => {
                self.report_not_trimmed(why);
                return Performed::Done;
            }
            HoldEffect::StartOver => return Performed::StartOver(MachineStart::Again),
            HoldEffect::OpenFence => return Performed::StartOver(MachineStart::Fenced),
            HoldEffect::Resign { why } => return Performed::Resign(why),
        };
        calls.begin(call);
        Performed::Done
    }

    fn finished(&mut self, input: HoldInput, _: &mut Calls<HoldInput>) -> Option<HoldInput> {
        Some(input)
    }

    fn turned(&mut self, shard: &mut HoldShard, _: &mut Calls<HoldInput>) -> Option<HoldInput> {
        if shard.is_urgent() {
            self.urgent.notify_one();
        }
        if self.metrics_at.elapsed() >= METRICS_EVERY {
            self.metrics_at = Instant::now();
            let metrics = shard.metrics();
            if let Some(holds) = self.context.registry.get(HOLDS_TOPIC) {
                holds.counters.fold_backlog.folded(self.owned.number, metrics.folded);
            }
            self.context.metrics.of_shard(self.owned.number, metrics);
        }
        None
    }

    fn ending(&mut self, _: bool) -> Option<HoldInput> {
        self.requests.close();
        self.only_answers = true;
        None
    }

    /// A commit in progress: its requests get the outcome.
    fn awaits_calls(&self, shard: &HoldShard) -> bool {
        shard.is_committing()
    }

    fn settled(&mut self, shard: &HoldShard, _: bool) {
        for ask in shard.asks_in_doubt() {
            let why = "the owner of the hold changed during the commit".to_owned();
            self.answer(ask, Err(HoldsError::OutcomeUnknown(why)));
        }
    }

    /// The last checkpoint.
    fn last_write(&mut self, shard: &mut HoldShard) -> Option<MachineCall<()>> {
        let (context, number, write) = (Arc::clone(&self.context), self.owned.number, shard.last_checkpoint()?);
        Some(Box::pin(async move { drop(context.timers.apply(number, write).await) }))
    }

    fn ended(&mut self, _: &mut HoldShard) {
        self.requests.close();
        for (_, reply) in self.replies.drain() {
            let _ = reply.send(Err(LocalHoldsError::NotHere));
        }
        while let Ok(request) = self.requests.try_recv() {
            let _ = request.reply.send(Err(LocalHoldsError::NotHere));
        }
    }
}

/// Opens the fence if there is none, checks the ownership after that, and reads the offsets of store and log. A call that fails is
/// retried while the node has its session.
async fn find_start(
    context: Arc<CenterContext>,
    owned: Arc<OwnedShard>,
    fence: Option<Fence>,
) -> Result<(Fence, HoldInput), String> {
    let OwnedShard { number, partition, epoch, ref membership } = *owned;
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
