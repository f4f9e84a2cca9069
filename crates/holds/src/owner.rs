//! The shell around a shard: does what the shard says, and tells it what became of that.
//!
//! One task per shard. Calls to the log and the store are under way together, except that there is one read, one checkpoint and one
//! commit at a time. When the shard starts over, everything under way is dropped but a checkpoint, which is waited for.

use std::collections::HashMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Ask, Fence, HoldsError, Log, LogError, Membership, ReadLimits, Timers, TimersError, Told};
use whimbrel_model::{Clock, Event, EventSink, HOLDS_TOPIC, PartitionId, Timestamp, format_duration};

use super::alarm::Alarm;
use super::blocked::BlockedPartitions;
use super::commit::{CommitTarget, commit};
use super::figures::HoldFigures;
use super::log_calls::{cut, read, walk};
use super::settings::{HoldsSettings, PAGE_BYTES, PAGE_HOLDS, RETRY_AFTER};
use super::shard::{AskId, Committed, Decision, Effect, Input, Shard};
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::line_limit::LineLimit;
use whimbrel_cluster::owner_clock::Reading;
use whimbrel_cluster::{DeskError, HOLDS_FAMILY, shard_name};

/// How long a read waits at the tail before it is begun anew.
const READ_WAIT: Duration = Duration::from_secs(10);
/// Where records come faster than this, one by one, a read waits as long for a few to gather: waking up for each costs more than
/// folding it.
const GATHER: Duration = Duration::from_millis(1);
/// How often a shard's figures are noted.
const FIGURES_EVERY: Duration = Duration::from_millis(100);
/// Questions that are taken in at once.
const ASKS_AT_ONCE: usize = 256;
/// Alarms ring this much later than asked, so that the wall clock is surely there: a hair early would cost a millisecond.
const WAKE_MARGIN: Duration = Duration::from_micros(30);
/// An owner looks at its clock at least this often: a step of the clock that is followed is noticed in time.
const CLOCK_READ_EVERY: Duration = Duration::from_secs(1);
/// How long the last checkpoint may take when a shard is given up.
const LAST_CHECKPOINT_WITHIN: Duration = Duration::from_secs(5);

/// What the owners of all shards work with.
pub struct Tools {
    pub log: Arc<dyn Log>,
    pub timers: Arc<dyn Timers>,
    pub registry: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub settings: Arc<HoldsSettings>,
    pub shards: u32,
    pub(crate) figures: HoldFigures,
    /// Where the steady clock began.
    pub began: Instant,
}

impl Tools {
    fn reading(&self) -> Reading {
        let steady_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Reading { wall: self.clock.now(), expiry: self.clock.expiry_now(), steady_ms }
    }
}

/// A question and where its answer goes.
pub(crate) struct Question {
    pub(crate) ask: Ask,
    pub(crate) reply: oneshot::Sender<Result<Told, DeskError>>,
}

type Call = Pin<Box<dyn Future<Output = Input> + Send>>;

/// One shard with everything that is under way for it.
struct Owner {
    tools: Arc<Tools>,
    number: u32,
    partition: PartitionId,
    epoch: u64,
    membership: Arc<dyn Membership>,
    shard: Shard,
    fence: Option<Fence>,
    calls: FuturesUnordered<Call>,
    /// The checkpoint under way.
    applying: Option<Call>,
    replies: HashMap<AskId, oneshot::Sender<Result<Told, DeskError>>>,
    next_ask: AskId,
    /// Partitions of topics that could not be written a moment ago.
    blocked: Arc<Mutex<BlockedPartitions>>,
    /// Told when a read must not wait for more to gather.
    urgent: Arc<Notify>,
    last_read: Option<Instant>,
    figures_at: Instant,
}

/// Owns the shard until it is told to stop, or can go on no longer: then with the reason.
pub(crate) async fn own(
    tools: Arc<Tools>,
    number: u32,
    partition: PartitionId,
    epoch: u64,
    membership: Arc<dyn Membership>,
    mut questions: mpsc::Receiver<Question>,
    stop: CancellationToken,
) -> Option<String> {
    let shard = Shard::new(Arc::clone(&tools.settings), tools.shards, epoch, tools.reading());
    let mut owner = Owner {
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
        figures_at: Instant::now(),
        tools,
    };
    let ended = owner.run(&mut questions, &stop).await;
    owner.end(&mut questions, ended.is_none()).await;
    ended
}

impl Owner {
    async fn run(&mut self, questions: &mut mpsc::Receiver<Question>, stop: &CancellationToken) -> Option<String> {
        let mut alarm = match Alarm::new() {
            Ok(alarm) => alarm,
            Err(error) => return Some(format!("no timer could be had: {error}")),
        };
        let mut inputs = match self.start(true, questions, stop).await {
            Ok(Some(input)) => vec![input],
            Ok(None) => return None,
            Err(why) => return Some(why),
        };
        loop {
            let mut was_idle = true;
            for input in inputs.drain(..) {
                let effects = self.shard.step(self.tools.reading(), input);
                was_idle &= effects.is_empty();
                for effect in effects {
                    match effect {
                        Effect::Resign { why } => return Some(why),
                        Effect::StartOver | Effect::OpenAnew => {
                            let anew = matches!(effect, Effect::OpenAnew);
                            self.drop_calls().await;
                            match self.start(anew, questions, stop).await {
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
            if self.figures_at.elapsed() >= FIGURES_EVERY {
                self.figures_at = Instant::now();
                let figures = self.shard.figures();
                if let Some(holds) = self.tools.registry.get(HOLDS_TOPIC) {
                    holds.running.folding.folded(self.number, figures.folded);
                }
                self.tools.figures.of_shard(self.number, figures);
            }
            let wake = self.until_wake(was_idle);
            // Questions are taken in whatever else happens: many calls must not keep them waiting.
            while inputs.len() < ASKS_AT_ONCE
                && let Ok(question) = questions.try_recv()
            {
                inputs.push(self.asked(question));
            }
            if !inputs.is_empty() {
                // And many questions must not keep the calls waiting. One at a time, and first: what comes after it counts no more
                // where it makes the shard start over, and questions do.
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
                Some(question) = questions.recv() => inputs.push(self.asked(question)),
                () = alarm.after(wake) => inputs.push(Input::Tick),
            }
        }
    }

    /// What became of a call, where one has ended.
    fn poll_calls(&mut self) -> Option<Input> {
        if let Some(Some(input)) = self.calls.next().now_or_never() {
            return Some(input);
        }
        let input = under_way(&mut self.applying).now_or_never()?;
        self.applying = None;
        Some(input)
    }

    /// How long nothing is to do; at least a millisecond where the last look found nothing.
    fn until_wake(&self, was_idle: bool) -> Option<Duration> {
        let (wake_at, now) = (self.shard.wake_at()?.as_millis(), self.shard.now().as_millis());
        // Where the owner's clock is the wall clock, the fraction of the present millisecond counts too.
        let fraction = self.tools.clock.micros_into().min(999);
        let micros = wake_at.saturating_sub(now).saturating_mul(1000).saturating_sub(fraction.into());
        let micros = u64::try_from(micros).unwrap_or(0);
        let wait = Duration::from_micros(if was_idle { micros.max(1000) } else { micros }) + WAKE_MARGIN;
        Some(wait.min(CLOCK_READ_EVERY))
    }

    fn asked(&mut self, question: Question) -> Input {
        self.next_ask += 1;
        self.replies.insert(self.next_ask, question.reply);
        Input::Asked { ask: self.next_ask, what: question.ask }
    }

    /// Everything that was under way is forgotten, but a checkpoint: the store must not change any more when it is looked at.
    async fn drop_calls(&mut self) {
        self.calls.clear();
        if let Some(applying) = self.applying.take() {
            let _ = applying.await;
        }
    }

    /// Finds where store and log are, under a fence opened anew where that is due; `None` where it is told to stop. Questions are taken
    /// in meanwhile: who waits for too long hears that nothing was done.
    async fn start(
        &mut self,
        anew: bool,
        questions: &mut mpsc::Receiver<Question>,
        stop: &CancellationToken,
    ) -> Result<Option<Input>, String> {
        let fence = self.fence.take().filter(|_| !anew);
        let (tools, membership) = (Arc::clone(&self.tools), Arc::clone(&self.membership));
        let starting = find_start(tools, self.number, self.partition, self.epoch, membership, fence);
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
                Some(question) = questions.recv() => self.asked(question),
                () = tokio::time::sleep(RETRY_AFTER) => Input::Tick,
            };
            for effect in self.shard.step(self.tools.reading(), input) {
                if let Effect::Answer { ask, told } = effect {
                    self.answer(ask, told);
                }
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        let tools = Arc::clone(&self.tools);
        let (number, partition) = (self.number, self.partition);
        let call: Call = match effect {
            Effect::Read { from } => {
                let (urgent, last_read) = (Arc::clone(&self.urgent), self.last_read.replace(Instant::now()));
                let is_crowd = last_read.is_some_and(|last| last.elapsed() < GATHER);
                let gathers = is_crowd && !self.shard.is_urgent();
                Box::pin(async move {
                    if gathers {
                        let _ = tokio::time::timeout(GATHER, urgent.notified()).await;
                    }
                    let limits = ReadLimits { max_records: PAGE_HOLDS, max_bytes: PAGE_BYTES, wait: READ_WAIT };
                    Input::Read(read(&*tools.log, partition, from, limits).await)
                })
            }
            Effect::End { token } => Box::pin(async move {
                Input::End { token, end: tools.log.bounds(partition).await.map(|bounds| bounds.next) }
            }),
            Effect::Get { token, ids } => {
                Box::pin(async move { Input::Got { token, found: tools.timers.get(number, ids).await } })
            }
            Effect::Due { token, after, until } => Box::pin(async move {
                let found = tools.timers.due(number, after, until, PAGE_HOLDS, PAGE_BYTES).await;
                Input::Due { token, found }
            }),
            Effect::List { token, query } => {
                Box::pin(async move { Input::Listed { token, found: tools.timers.list(number, query).await } })
            }
            Effect::Dead { token, query } => {
                Box::pin(async move { Input::ListedDead { token, found: tools.timers.dead(number, query).await } })
            }
            Effect::Count { token, query } => {
                Box::pin(async move { Input::Counted { token, found: tools.timers.count(number, query).await } })
            }
            Effect::Apply(write) => {
                tools.figures.checkpoint(write.changes.len());
                let apply = async move { Input::Applied(tools.timers.apply(number, write).await) };
                self.applying = Some(Box::pin(apply));
                return;
            }
            Effect::Commit { decisions, at } => {
                let Some(fence) = self.fence.clone() else { return };
                Box::pin(commit_and_count(tools, fence, partition, Arc::clone(&self.blocked), decisions, at))
            }
            Effect::Cut { kept_since } => {
                Box::pin(async move { Input::Cut(cut(&*tools.log, partition, kept_since).await) })
            }
            Effect::Walk { from, upto } => {
                Box::pin(async move { Input::Walked(walk(&*tools.log, partition, from, upto).await) })
            }
            Effect::Trim { before } => Box::pin(async move { Input::Trimmed(tools.log.trim(partition, before).await) }),
            Effect::Answer { ask, told } => return self.answer(ask, told),
            Effect::Report { offset, why } => {
                let detail = format!("a record of the holds cannot be understood and was passed over: {why}");
                let event = Event::failure("hold_record_passed_over", detail);
                (tools.events)(event.with("shard", number).with("offset", offset));
                return;
            }
            Effect::NotTrimmed { why } => {
                let every = format_duration(tools.settings.trim_interval);
                let detail = format!(
                    "the log of shard {number} of the holds cannot be trimmed and takes more and more of the disk: {why}. The next attempt \
                     follows after {every}"
                );
                (tools.events)(Event::warning("holds_not_trimmed", detail).with("shard", number).with("error", why));
                return;
            }
            // These are the loop's.
            Effect::StartOver | Effect::OpenAnew | Effect::Resign { .. } => return,
        };
        self.calls.push(call);
    }

    fn answer(&mut self, ask: AskId, told: Result<Told, HoldsError>) {
        let told = match told {
            Err(HoldsError::Overloaded(_)) => Err(HoldsError::Overloaded(self.number)),
            told => told,
        };
        if let Some(reply) = self.replies.remove(&ask) {
            // Who asked may have gone; what was decided is decided.
            let _ = reply.send(told.map_err(DeskError::Holds));
        }
    }

    /// The shard is given up: a last checkpoint makes the successor's start short. Who still waits hears that the shard is not
    /// here, or, where a commit is under way, that nobody knows.
    async fn end(mut self, questions: &mut mpsc::Receiver<Question>, with_checkpoint: bool) {
        questions.close();
        if self.shard.is_committing() {
            // The commit is waited for, so that its questions hear what became of it.
            let waited = tokio::time::timeout(LAST_CHECKPOINT_WITHIN, async {
                while self.shard.is_committing()
                    && let Some(input) = self.calls.next().await
                {
                    let effects = self.shard.step(self.tools.reading(), input);
                    for effect in effects {
                        if let Effect::Answer { ask, told } = effect {
                            self.answer(ask, told);
                        }
                    }
                }
            });
            let _ = waited.await;
        }
        for ask in self.shard.asks_in_doubt() {
            let why = "the owner of the hold was changing".to_owned();
            self.answer(ask, Err(HoldsError::OutcomeUnknown(why)));
        }
        if with_checkpoint {
            let last = async {
                if let Some(applying) = self.applying.take() {
                    let input = applying.await;
                    let _ = self.shard.step(self.tools.reading(), input);
                }
                if let Some(write) = self.shard.last_checkpoint() {
                    let _ = self.tools.timers.apply(self.number, write).await;
                }
            };
            let _ = tokio::time::timeout(LAST_CHECKPOINT_WITHIN, last).await;
        }
        for (_, reply) in self.replies.drain() {
            let _ = reply.send(Err(DeskError::NotHere));
        }
        while let Ok(question) = questions.try_recv() {
            let _ = question.reply.send(Err(DeskError::NotHere));
        }
    }
}

/// Opens the fence where there is none, checks the ownership after it, and finds where store and log are. What does not answer is
/// tried again as long as the ownership stands.
async fn find_start(
    tools: Arc<Tools>,
    number: u32,
    partition: PartitionId,
    epoch: u64,
    membership: Arc<dyn Membership>,
    fence: Option<Fence>,
) -> Result<(Fence, Input), String> {
    let name = shard_name(HOLDS_FAMILY, number);
    let try_once = async || -> Result<(Fence, Input), Trouble> {
        let fence = match &fence {
            Some(fence) => fence.clone(),
            None => {
                let opened = tools.log.fence(&name, epoch).await?;
                let is_owner = membership.owns(&name, epoch).await;
                if !is_owner.map_err(|error| Trouble::Passing(error.to_string()))? {
                    return Err(Trouble::Over("another node owns the shard".to_owned()));
                }
                opened
            }
        };
        let Some(applied) = tools.timers.open(number, epoch).await? else {
            return Err(Trouble::Over("a newer owner has the shard's store".to_owned()));
        };
        let bounds = tools.log.bounds(partition).await?;
        Ok((fence, Input::Started { applied, first: bounds.first, end: bounds.next }))
    };
    loop {
        if !membership.stands() {
            return Err("the session is lost".to_owned());
        }
        match try_once().await {
            Ok(started) => return Ok(started),
            Err(Trouble::Over(why)) => return Err(why),
            Err(Trouble::Passing(why)) => {
                static LINES: LineLimit = LineLimit::new();
                if let Some(left_out) = LINES.admit(&why) {
                    tracing::warn!(shard = number, %why, left_out, "the shard of holds cannot be taken yet; it is tried again");
                }
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// What stands in the way of a start.
enum Trouble {
    Passing(String),
    Over(String),
}

impl From<LogError> for Trouble {
    fn from(error: LogError) -> Self {
        Self::Passing(error.to_string())
    }
}

impl From<TimersError> for Trouble {
    fn from(error: TimersError) -> Self {
        Self::Passing(error.to_string())
    }
}

async fn under_way(call: &mut Option<Call>) -> Input {
    match call {
        Some(call) => call.await,
        None => pending().await,
    }
}

async fn commit_and_count(
    tools: Arc<Tools>,
    fence: Fence,
    shard: PartitionId,
    blocked: Arc<Mutex<BlockedPartitions>>,
    decisions: Vec<Decision>,
    at: Timestamp,
) -> Input {
    let began = Instant::now();
    let target = CommitTarget { log: &*tools.log, fence: &fence, shard, blocked: &blocked };
    let outcome = commit(target, &tools.registry, &decisions, at).await;
    if let Committed::Done(written) = &outcome {
        tools.figures.committed(&decisions, written, began.elapsed(), tools.clock.now());
    }
    Input::Committed(outcome)
}
