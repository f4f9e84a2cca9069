//! The shell around a partition: does what it says, and tells it what became of that. One task per partition.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{
    Applied, FromCarrier, Gateways, Inbox, Log, LogError, Membership, PeopleAsk, PeopleError, PeopleTold, ReadLimits,
    ToCarrier, ToGateway,
};
use whimbrel_model::{Clock, Event, EventSink, PartitionId, Timestamp};

use super::append::append;
use super::figures::CarrierFigures;
use super::letters::LetterTopics;
use super::pace::Pace;
use super::partition::{AskId, Effect, Input, Partition, Trouble};
use super::settings::{CarrierSettings, READ_BYTES, READ_RECORDS, RECLAIM_USERS, RETRY_AFTER, SYNC_EVERY};
use super::user_box::PlatformRules;
use whimbrel_cluster::line_limit::LineLimit;

/// How long a read waits at the tail before it is begun anew.
const READ_WAIT: Duration = Duration::from_secs(10);
/// How often a partition's figures are noted.
const FIGURES_EVERY: Duration = Duration::from_millis(250);
/// How long the last save may take when a partition is given up.
const LAST_SAVE_WITHIN: Duration = Duration::from_secs(5);
/// What gateways said, taken in at once.
const TAKEN_AT_ONCE: usize = 256;

/// What the owners of all partitions work with.
pub(super) struct Tools {
    pub log: Arc<dyn Log>,
    pub inbox: Arc<dyn Inbox>,
    pub gateways: Arc<dyn Gateways>,
    pub rules: Arc<PlatformRules>,
    pub topics: LetterTopics,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub settings: Arc<CarrierSettings>,
    pub inbox_epoch: Arc<str>,
    pub pace: Pace,
    pub figures: CarrierFigures,
}

/// What the task of a partition is told.
pub(super) enum Said {
    From(GatewayId, Vec<ToCarrier>),
    /// The way from the gateway was made anew.
    Afresh(GatewayId),
    Ask(PeopleAsk, oneshot::Sender<Result<PeopleTold, PeopleError>>),
}

type Call = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What became of a call.
enum Done {
    Input(Input),
    /// The end of the log was found for a question.
    Asked(PeopleAsk, oneshot::Sender<Result<PeopleTold, PeopleError>>, Result<u64, LogError>),
    /// A write; whether it was synced, and up to where.
    Applied(Input, Option<u64>),
    Trimmed,
}

/// Which partition, and under what.
pub(super) struct Post {
    pub number: u32,
    pub partition: PartitionId,
    pub name: String,
    pub epoch: u64,
    pub membership: Arc<dyn Membership>,
}

struct Owner {
    tools: Arc<Tools>,
    post: Post,
    core: Partition,
    calls: FuturesUnordered<Call>,
    replies: HashMap<AskId, oneshot::Sender<Result<PeopleTold, PeopleError>>>,
    next_ask: AskId,
    trimmed_behind: u64,
    why_over: Option<String>,
}

/// Owns the partition until it is told to stop, or can go on no longer: then with the reason.
pub(super) async fn own(
    tools: Arc<Tools>,
    post: Post,
    mut said: mpsc::UnboundedReceiver<Said>,
    serving: impl Fn(bool),
    stop: CancellationToken,
) -> Option<String> {
    let started = tokio::select! {
        () = stop.cancelled() => return None,
        started = find_start(&tools, &post) => started,
    };
    let (applied, first, end) = match started {
        Ok(started) => started,
        Err(why) => return Some(why),
    };
    let settings = Arc::clone(&tools.settings);
    let core = Partition::new(
        settings,
        Arc::clone(&tools.rules),
        post.epoch,
        Arc::clone(&tools.inbox_epoch),
        tools.clock.now(),
    );
    let mut owner = Owner {
        core,
        calls: FuturesUnordered::new(),
        replies: HashMap::new(),
        next_ask: 0,
        trimmed_behind: 0,
        why_over: None,
        tools,
        post,
    };
    owner.step(Input::Started { applied, first, end });
    serving(true);
    owner.run(&mut said, &stop).await;
    serving(false);
    owner.end().await
}

impl Owner {
    fn step(&mut self, input: Input) {
        let now = self.tools.clock.now();
        self.core.expire_by(self.tools.clock.expiry_now());
        let mut effects = self.core.step(now, input);
        // What could not be told is news at once.
        while !effects.is_empty() {
            let mut gone = Vec::new();
            for effect in effects {
                self.perform(effect, now, &mut gone);
            }
            effects = Vec::new();
            for gateway in gone {
                effects.extend(self.core.step(now, Input::GatewayGone(gateway)));
            }
        }
    }

    async fn run(&mut self, said: &mut mpsc::UnboundedReceiver<Said>, stop: &CancellationToken) {
        let mut living = self.tools.gateways.living();
        let mut figures_at = Instant::now();
        let mut upkeep_at = Instant::now() + self.tools.settings.upkeep_interval;
        let mut sync_at = Instant::now() + SYNC_EVERY;
        let first = living.borrow_and_update().clone();
        self.step(Input::Living(first));
        while self.why_over.is_none() {
            let now = Instant::now();
            if now >= figures_at {
                figures_at = now + FIGURES_EVERY;
                self.note_figures();
            }
            if now >= upkeep_at {
                upkeep_at = now + self.tools.settings.upkeep_interval;
                self.look_for_reclaimable();
            }
            if now >= sync_at {
                sync_at = now + SYNC_EVERY;
                if self.core.folded() > self.trimmed_behind {
                    self.step(Input::SyncWanted);
                }
            }
            let wake = self.until_wake().min(figures_at.saturating_duration_since(now));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(first) = said.recv() => {
                    self.take(first);
                    for _ in 0..TAKEN_AT_ONCE {
                        match said.try_recv() {
                            Ok(said) => self.take(said),
                            Err(_) => break,
                        }
                    }
                    // Many who speak must not keep the calls waiting.
                    if let Some(Some(done)) = futures_util::FutureExt::now_or_never(self.calls.next()) {
                        self.done(done);
                    }
                }
                Some(done) = self.calls.next(), if !self.calls.is_empty() => self.done(done),
                changed = living.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let living = living.borrow_and_update().clone();
                    self.step(Input::Living(living));
                }
                () = tokio::time::sleep(wake) => self.step(Input::Tick),
            }
        }
    }

    fn until_wake(&self) -> Duration {
        let Some(at) = self.core.wake_at() else { return FIGURES_EVERY };
        let millis = at.as_millis().saturating_sub(self.tools.clock.now().as_millis());
        Duration::from_millis(u64::try_from(millis).unwrap_or(0).max(1))
    }

    fn take(&mut self, said: Said) {
        match said {
            Said::From(gateway, messages) => self.step(Input::From { gateway, messages }),
            Said::Afresh(gateway) => self.step(Input::GatewayGone(gateway)),
            Said::Ask(ask, reply) => {
                // The answer shall show everything that was accepted before the question.
                let (tools, partition) = (Arc::clone(&self.tools), self.post.partition);
                self.calls.push(Box::pin(async move {
                    let end = tools.log.bounds(partition).await.map(|bounds| bounds.next);
                    Done::Asked(ask, reply, end)
                }));
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Input(input) => self.step(input),
            Done::Asked(what, reply, Ok(end)) => {
                self.next_ask += 1;
                self.replies.insert(self.next_ask, reply);
                self.step(Input::Asked { ask: self.next_ask, what, end });
            }
            Done::Asked(_, reply, Err(error)) => {
                let _ = reply.send(Err(PeopleError::Unavailable(error.to_string())));
            }
            Done::Applied(input, synced) => {
                let was_done = matches!(input, Input::Applied(Ok(Applied::Done)));
                self.step(input);
                if let Some(upto) = synced.filter(|_| was_done) {
                    self.trim(upto);
                }
            }
            Done::Trimmed => {}
        }
    }

    fn perform(&mut self, effect: Effect, now: Timestamp, gone: &mut Vec<GatewayId>) {
        let tools = Arc::clone(&self.tools);
        let (number, partition) = (self.post.number, self.post.partition);
        let call: Call = match effect {
            Effect::Read { from } => Box::pin(async move {
                let limits = ReadLimits { max_records: READ_RECORDS, max_bytes: READ_BYTES, wait: READ_WAIT };
                let read = tools.log.read(partition, from, limits).await;
                if let Err(error) = &read
                    && !matches!(
                        error,
                        LogError::Trimmed { .. } | LogError::BeyondEnd { .. } | LogError::Damaged { .. }
                    )
                {
                    static LINES: LineLimit = LineLimit::new();
                    if let Some(left_out) = LINES.admit(&error.to_string()) {
                        tracing::warn!(%partition, %error, left_out, "the log of pushes cannot be read; it is tried again");
                    }
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                Done::Input(Input::Read(read))
            }),
            Effect::Load { uids } => {
                Box::pin(async move { Done::Input(Input::Loaded(tools.inbox.boxes(number, uids).await)) })
            }
            Effect::Rows { token, keys, is_page } => Box::pin(async move {
                if is_page {
                    tools.pace.turn().await;
                }
                Done::Input(Input::Rows { token, found: tools.inbox.rows(number, keys).await })
            }),
            Effect::Append(letters) => Box::pin(async move {
                append(&tools, number, partition, letters).await;
                Done::Input(Input::Appended)
            }),
            Effect::Apply(write) => {
                let synced = write.synced.then_some(write.applied);
                Box::pin(async move { Done::Applied(Input::Applied(tools.inbox.apply(number, write).await), synced) })
            }
            Effect::Tell { gateway, news } => {
                self.note_latency(&news, now);
                if !tools.gateways.tell(gateway, FromCarrier { partition: number, epoch: self.post.epoch, news }) {
                    gone.push(gateway);
                }
                return;
            }
            Effect::Answer { ask, told } => {
                if let Some(reply) = self.replies.remove(&ask) {
                    // Who asked may have gone.
                    let _ = reply.send(told);
                }
                return;
            }
            Effect::Report(trouble) => return self.report(&trouble),
            Effect::Resign { why } => {
                self.why_over = Some(why);
                return;
            }
        };
        self.calls.push(call);
    }

    fn note_latency(&self, news: &[ToGateway], now: Timestamp) {
        for each in news {
            if let ToGateway::Deliver(delivery) = each
                && !delivery.again
            {
                let millis = now.as_millis().saturating_sub(delivery.message.sent_at.as_millis()).max(0);
                self.tools.figures.latency.record(millis as f64 / 1_000.0);
            }
        }
    }

    fn report(&self, trouble: &Trouble) {
        let number = self.post.number;
        let event = match trouble {
            Trouble::Gap { from, to } => {
                let detail =
                    format!("pushes {from} to {to} of partition {number} were trimmed before they were handled");
                Event::failure("push_gap", detail)
            }
            Trouble::OtherLog { applied, end } => {
                let detail = format!(
                    "the store of inboxes knows pushes up to {applied} of partition {number}, and the log ends at {end}: it is of \
                     another log, and was emptied"
                );
                Event::failure("push_store_of_another_log", detail)
            }
            Trouble::Damaged { resume_at, what } => {
                let detail = format!("a place in the log of pushes cannot be read ({what}); it goes on at {resume_at}");
                Event::failure("push_log_damaged", detail)
            }
            Trouble::NotUnderstood { offset, why } => {
                let detail = format!("push {offset} of partition {number} is a dead letter: {why}");
                Event::failure("push_not_understood", detail)
            }
            Trouble::BadBox { uid, why } => {
                let detail = format!("the inbox of user {uid} cannot be understood and begins anew: {why}");
                Event::failure("inbox_not_understood", detail)
            }
            Trouble::RowMissing { uid, seq } => {
                let detail = format!("message {seq} of user {uid} is not in the store of inboxes");
                Event::failure("inbox_row_missing", detail)
            }
            Trouble::NoAck { uid, platform } => {
                // One of many devices: it is counted, and told itself.
                return tracing::debug!(%uid, %platform, "a session was closed because it never acknowledged");
            }
        };
        (self.tools.events)(event.with("partition", number));
    }

    fn note_figures(&mut self) {
        self.tools.figures.counted(std::mem::take(&mut self.core.counts));
        let present = (self.core.sessions(), self.core.users_in_memory());
        self.tools.figures.present(self.post.number, Some(present));
        self.tools.topics.push().running.folding.folded(self.post.number, self.core.folded());
    }

    fn look_for_reclaimable(&mut self) {
        let (tools, number) = (Arc::clone(&self.tools), self.post.number);
        let now = tools.clock.expiry_now();
        self.calls.push(Box::pin(async move {
            let found = tools.inbox.reclaimable(number, now, RECLAIM_USERS).await;
            Done::Input(Input::Reclaimable(found.map(|at| at.found).unwrap_or_default()))
        }));
    }

    /// What the store has on disk, and is old enough, the log needs no more.
    fn trim(&mut self, upto: u64) {
        self.trimmed_behind = upto;
        let (tools, partition) = (Arc::clone(&self.tools), self.post.partition);
        let kept_since = tools.clock.expiry_now().saturating_sub(tools.settings.keep_log);
        self.calls.push(Box::pin(async move {
            let trimmed = async {
                let cut = tools.log.offset_at(partition, kept_since).await?.min(upto);
                tools.log.trim(partition, cut).await
            };
            if let Err(error) = trimmed.await {
                static LINES: LineLimit = LineLimit::new();
                if let Some(left_out) = LINES.admit(&error.to_string()) {
                    tracing::warn!(%partition, %error, left_out, "the log of pushes could not be trimmed");
                }
            }
            Done::Trimmed
        }));
    }

    /// The partition is given up: what is in memory and not in the store is saved, so that the successor's start is short.
    async fn end(mut self) -> Option<String> {
        if self.why_over.is_none() {
            self.step(Input::Ending);
            let saving = async {
                while !self.core.is_settled() && self.why_over.is_none() {
                    match self.calls.next().await {
                        Some(Done::Input(Input::Read(_))) | None => tokio::time::sleep(RETRY_AFTER / 50).await,
                        Some(done) => self.done(done),
                    }
                    self.step(Input::Tick);
                }
            };
            if tokio::time::timeout(LAST_SAVE_WITHIN, saving).await.is_err() {
                tracing::warn!(
                    partition = self.post.number,
                    "the inboxes could not be saved in time; the log has it all"
                );
            }
        }
        self.note_figures();
        for (_, reply) in self.replies.drain() {
            let _ = reply.send(Err(PeopleError::NoOwner(self.post.number)));
        }
        self.why_over
    }
}

/// Takes the store and finds where it and the log are. What does not answer is tried again as long as the ownership stands.
async fn find_start(tools: &Tools, post: &Post) -> Result<(u64, u64, u64), String> {
    loop {
        if !post.membership.stands() {
            return Err("the session is lost".to_owned());
        }
        let started = async {
            let opened = tools.inbox.open(post.number, post.epoch).await.map_err(|error| error.to_string())?;
            let is_owner = post.membership.owns(&post.name, post.epoch).await.map_err(|error| error.to_string())?;
            let bounds = tools.log.bounds(post.partition).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((opened.filter(|_| is_owner), bounds))
        };
        match started.await {
            Ok((Some(applied), bounds)) => return Ok((applied, bounds.first, bounds.next)),
            Ok((None, _)) => return Err("another node has the partition".to_owned()),
            Err(why) => {
                static LINES: LineLimit = LineLimit::new();
                if let Some(left_out) = LINES.admit(&why) {
                    tracing::warn!(
                        partition = post.number,
                        why,
                        left_out,
                        "the partition of pushes cannot be taken yet; it is tried again"
                    );
                }
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}
