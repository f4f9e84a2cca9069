//! The shell around a partition: executes its effects and returns the results as inputs. One task per partition.

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
    ApplyOutcome, CarrierMessages, Gateways, Inbox, Log, LogError, Membership, PeopleError, PeopleQuery, PeopleReply,
    ReadLimits, ToCarrier, ToGateway,
};
use whimbrel_model::{Clock, Event, EventSink, PartitionId, Timestamp};

use super::append::append;
use super::metrics::CarrierMetrics;
use super::page_rate::PageRateLimit;
use super::partition::{CarrierEffect, CarrierIncident, CarrierInput, PushPartition, QueryId};
use super::settings::{CarrierSettings, READ_BYTES, READ_RECORDS, RECLAIM_USERS, RETRY_AFTER, SYNC_EVERY};
use super::topics::CarrierTopics;
use super::user_box::PlatformRules;
use whimbrel_cluster::line_limit::LineLimit;

/// How long a read waits at the end of the log before it is repeated.
const READ_WAIT: Duration = Duration::from_secs(10);
/// How often a partition updates its metrics.
const METRICS_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of the last save when the owner releases a partition.
const LAST_SAVE_WITHIN: Duration = Duration::from_secs(5);
/// Messages of gateways that are handled in one turn, at most.
const TAKEN_AT_ONCE: usize = 256;

/// Ports, settings and metrics that all owners of a carrier share.
pub(super) struct CarrierContext {
    pub log: Arc<dyn Log>,
    pub inbox: Arc<dyn Inbox>,
    pub gateways: Arc<dyn Gateways>,
    pub rules: Arc<PlatformRules>,
    pub topics: CarrierTopics,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub settings: Arc<CarrierSettings>,
    pub inbox_epoch: Arc<str>,
    pub page_rate: PageRateLimit,
    pub metrics: CarrierMetrics,
}

/// A message to the task of a partition.
pub(super) enum OwnerMessage {
    FromGateway(GatewayId, Vec<ToCarrier>),
    /// The stream from the gateway was reconnected.
    GatewayReconnected(GatewayId),
    Query(PeopleQuery, oneshot::Sender<Result<PeopleReply, PeopleError>>),
}

type PartitionCall = Pin<Box<dyn Future<Output = CallResult> + Send>>;

enum CallResult {
    Input(CarrierInput),
    /// The end of the log, looked up for a query.
    LogEnd(PeopleQuery, oneshot::Sender<Result<PeopleReply, PeopleError>>, Result<u64, LogError>),
    /// The result of a write, and the offset up to which it was synced, if it was.
    Applied(CarrierInput, Option<u64>),
    Trimmed,
}

pub(super) struct OwnedPartition {
    pub number: u32,
    pub partition: PartitionId,
    pub name: String,
    pub epoch: u64,
    pub membership: Arc<dyn Membership>,
}

struct PartitionOwner {
    context: Arc<CarrierContext>,
    owned: OwnedPartition,
    core: PushPartition,
    calls: FuturesUnordered<PartitionCall>,
    replies: HashMap<QueryId, oneshot::Sender<Result<PeopleReply, PeopleError>>>,
    next_ask: QueryId,
    trimmed_behind: u64,
    why_over: Option<String>,
}

/// Owns the partition until `stop`, or until the owner must resign; then it returns the reason.
pub(super) async fn run_owner(
    context: Arc<CarrierContext>,
    owned: OwnedPartition,
    mut messages: mpsc::UnboundedReceiver<OwnerMessage>,
    serving: impl Fn(bool),
    stop: CancellationToken,
) -> Option<String> {
    let started = tokio::select! {
        () = stop.cancelled() => return None,
        started = open_partition(&context, &owned) => started,
    };
    let (applied, first, end) = match started {
        Ok(started) => started,
        Err(why) => return Some(why),
    };
    let settings = Arc::clone(&context.settings);
    let core = PushPartition::new(
        settings,
        Arc::clone(&context.rules),
        owned.epoch,
        Arc::clone(&context.inbox_epoch),
        context.clock.now(),
    );
    let mut owner = PartitionOwner {
        core,
        calls: FuturesUnordered::new(),
        replies: HashMap::new(),
        next_ask: 0,
        trimmed_behind: 0,
        why_over: None,
        context,
        owned,
    };
    owner.step(CarrierInput::Started { applied, first, end });
    serving(true);
    owner.run(&mut messages, &stop).await;
    serving(false);
    owner.end().await
}

impl PartitionOwner {
    fn step(&mut self, input: CarrierInput) {
        let now = self.context.clock.now();
        self.core.expire_by(self.context.clock.expiry_now());
        let mut effects = self.core.step(now, input);
        // A gateway that cannot be reached is an input of its own, handled at once.
        while !effects.is_empty() {
            let mut gone = Vec::new();
            for effect in effects {
                self.perform(effect, now, &mut gone);
            }
            effects = Vec::new();
            for gateway in gone {
                effects.extend(self.core.step(now, CarrierInput::GatewayGone(gateway)));
            }
        }
    }

    async fn run(&mut self, messages: &mut mpsc::UnboundedReceiver<OwnerMessage>, stop: &CancellationToken) {
        let mut living = self.context.gateways.live_gateways();
        let mut metrics_at = Instant::now();
        let mut upkeep_at = Instant::now() + self.context.settings.upkeep_interval;
        let mut sync_at = Instant::now() + SYNC_EVERY;
        let first = living.borrow_and_update().clone();
        self.step(CarrierInput::LiveGateways(first));
        while self.why_over.is_none() {
            let now = Instant::now();
            if now >= metrics_at {
                metrics_at = now + METRICS_INTERVAL;
                self.update_metrics();
            }
            if now >= upkeep_at {
                upkeep_at = now + self.context.settings.upkeep_interval;
                self.request_reclaimable();
            }
            if now >= sync_at {
                sync_at = now + SYNC_EVERY;
                if self.core.folded() > self.trimmed_behind {
                    self.step(CarrierInput::SyncWanted);
                }
            }
            let wake = self.until_wake().min(metrics_at.saturating_duration_since(now));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(first) = messages.recv() => {
                    self.take(first);
                    for _ in 0..TAKEN_AT_ONCE {
                        match messages.try_recv() {
                            Ok(messages) => self.take(messages),
                            Err(_) => break,
                        }
                    }
                    // A steady flow of gateway messages must not delay the calls.
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
                    self.step(CarrierInput::LiveGateways(living));
                }
                () = tokio::time::sleep(wake) => self.step(CarrierInput::Tick),
            }
        }
    }

    fn until_wake(&self) -> Duration {
        let Some(at) = self.core.wake_at() else { return METRICS_INTERVAL };
        let millis = at.as_millis().saturating_sub(self.context.clock.now().as_millis());
        Duration::from_millis(u64::try_from(millis).unwrap_or(0).max(1))
    }

    fn take(&mut self, messages: OwnerMessage) {
        match messages {
            OwnerMessage::FromGateway(gateway, messages) => self.step(CarrierInput::From { gateway, messages }),
            OwnerMessage::GatewayReconnected(gateway) => self.step(CarrierInput::GatewayGone(gateway)),
            OwnerMessage::Query(ask, reply) => {
                // The answer must include everything that was accepted before the query.
                let (context, partition) = (Arc::clone(&self.context), self.owned.partition);
                self.calls.push(Box::pin(async move {
                    let end = context.log.bounds(partition).await.map(|bounds| bounds.next);
                    CallResult::LogEnd(ask, reply, end)
                }));
            }
        }
    }

    fn done(&mut self, done: CallResult) {
        match done {
            CallResult::Input(input) => self.step(input),
            CallResult::LogEnd(what, reply, Ok(end)) => {
                self.next_ask += 1;
                self.replies.insert(self.next_ask, reply);
                self.step(CarrierInput::Query { ask: self.next_ask, what, end });
            }
            CallResult::LogEnd(_, reply, Err(error)) => {
                let _ = reply.send(Err(PeopleError::Unavailable(error.to_string())));
            }
            CallResult::Applied(input, synced) => {
                let was_done = matches!(input, CarrierInput::Applied(Ok(ApplyOutcome::Done)));
                self.step(input);
                if let Some(upto) = synced.filter(|_| was_done) {
                    self.trim(upto);
                }
            }
            CallResult::Trimmed => {}
        }
    }

    fn perform(&mut self, effect: CarrierEffect, now: Timestamp, gone: &mut Vec<GatewayId>) {
        let context = Arc::clone(&self.context);
        let (number, partition) = (self.owned.number, self.owned.partition);
        let call: PartitionCall = match effect {
            CarrierEffect::Read { from } => Box::pin(async move {
                let limits = ReadLimits { max_records: READ_RECORDS, max_bytes: READ_BYTES, wait: READ_WAIT };
                let read = context.log.read(partition, from, limits).await;
                if let Err(error) = &read
                    && !matches!(
                        error,
                        LogError::Trimmed { .. } | LogError::BeyondEnd { .. } | LogError::Damaged { .. }
                    )
                {
                    static LINES: LineLimit = LineLimit::new();
                    if let Some(left_out) = LINES.admit(&error.to_string()) {
                        tracing::warn!(%partition, %error, left_out, "cannot read the log of pushes; retrying");
                    }
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                CallResult::Input(CarrierInput::Read(read))
            }),
            CarrierEffect::Load { uids } => {
                Box::pin(
                    async move { CallResult::Input(CarrierInput::Loaded(context.inbox.boxes(number, uids).await)) },
                )
            }
            CarrierEffect::Rows { token, keys, is_page } => Box::pin(async move {
                if is_page {
                    context.page_rate.turn().await;
                }
                CallResult::Input(CarrierInput::Rows { token, found: context.inbox.rows(number, keys).await })
            }),
            CarrierEffect::Append(outbound) => Box::pin(async move {
                append(&context, number, partition, outbound).await;
                CallResult::Input(CarrierInput::Appended)
            }),
            CarrierEffect::Apply(write) => {
                let synced = write.synced.then_some(write.applied);
                Box::pin(async move {
                    CallResult::Applied(CarrierInput::Applied(context.inbox.apply(number, write).await), synced)
                })
            }
            CarrierEffect::Tell { gateway, news } => {
                self.note_latency(&news, now);
                if !context.gateways.tell(gateway, CarrierMessages { partition: number, epoch: self.owned.epoch, news })
                {
                    gone.push(gateway);
                }
                return;
            }
            CarrierEffect::Answer { ask, told } => {
                if let Some(reply) = self.replies.remove(&ask) {
                    // The client may have disconnected.
                    let _ = reply.send(told);
                }
                return;
            }
            CarrierEffect::Report(incident) => return self.report(&incident),
            CarrierEffect::Resign { why } => {
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
                self.context.metrics.latency.record(millis as f64 / 1_000.0);
            }
        }
    }

    fn report(&self, incident: &CarrierIncident) {
        let number = self.owned.number;
        let event = match incident {
            CarrierIncident::Gap { from, to } => {
                let detail =
                    format!("pushes {from} to {to} of partition {number} were trimmed before the carrier read them");
                Event::failure("push_gap", detail)
            }
            CarrierIncident::OtherLog { applied, end } => {
                let detail = format!(
                    "the inbox store of partition {number} is at offset {applied}, beyond the log's end {end}: it belongs to \
                     another log, and was emptied"
                );
                Event::failure("push_store_of_another_log", detail)
            }
            CarrierIncident::Damaged { resume_at, what } => {
                let detail = format!("the log of pushes is damaged ({what}); reading resumes at offset {resume_at}");
                Event::failure("push_log_damaged", detail)
            }
            CarrierIncident::NotUnderstood { offset, why } => {
                let detail = format!("push {offset} of partition {number} is a dead letter: {why}");
                Event::failure("push_not_understood", detail)
            }
            CarrierIncident::BadBox { uid, why } => {
                let detail = format!("the stored inbox of user {uid} is corrupted and was reset: {why}");
                Event::failure("inbox_not_understood", detail)
            }
            CarrierIncident::RowMissing { uid, seq } => {
                let detail = format!("message {seq} of user {uid} is missing in the inbox store");
                Event::failure("inbox_row_missing", detail)
            }
            CarrierIncident::NoAck { uid, platform } => {
                // Logged at debug level only: one of many devices, and the metrics count it.
                return tracing::debug!(%uid, %platform, "closed a session: no acknowledgement after all retries");
            }
        };
        (self.context.events)(event.with("partition", number));
    }

    fn update_metrics(&mut self) {
        self.context.metrics.counted(std::mem::take(&mut self.core.counts));
        let present = (self.core.sessions(), self.core.users_in_memory());
        self.context.metrics.present(self.owned.number, Some(present));
        self.context.topics.push().counters.fold_backlog.folded(self.owned.number, self.core.folded());
    }

    fn request_reclaimable(&mut self) {
        let (context, number) = (Arc::clone(&self.context), self.owned.number);
        let now = context.clock.expiry_now();
        self.calls.push(Box::pin(async move {
            let found = context.inbox.reclaimable(number, now, RECLAIM_USERS).await;
            CallResult::Input(CarrierInput::Reclaimable(found.map(|at| at.found).unwrap_or_default()))
        }));
    }

    /// Trims records that are synced in the store and older than `keep_log`.
    fn trim(&mut self, upto: u64) {
        self.trimmed_behind = upto;
        let (context, partition) = (Arc::clone(&self.context), self.owned.partition);
        let kept_since = context.clock.expiry_now().saturating_sub(context.settings.keep_log);
        self.calls.push(Box::pin(async move {
            let trimmed = async {
                let cut = context.log.offset_at(partition, kept_since).await?.min(upto);
                context.log.trim(partition, cut).await
            };
            if let Err(error) = trimmed.await {
                static LINES: LineLimit = LineLimit::new();
                if let Some(left_out) = LINES.admit(&error.to_string()) {
                    tracing::warn!(%partition, %error, left_out, "cannot trim the log of pushes");
                }
            }
            CallResult::Trimmed
        }));
    }

    /// Saves what is only in memory, so that the successor starts sooner.
    async fn end(mut self) -> Option<String> {
        if self.why_over.is_none() {
            self.step(CarrierInput::Ending);
            let saving = async {
                while !self.core.is_settled() && self.why_over.is_none() {
                    match self.calls.next().await {
                        Some(CallResult::Input(CarrierInput::Read(_))) | None => {
                            tokio::time::sleep(RETRY_AFTER / 50).await
                        }
                        Some(done) => self.done(done),
                    }
                    self.step(CarrierInput::Tick);
                }
            };
            if tokio::time::timeout(LAST_SAVE_WITHIN, saving).await.is_err() {
                tracing::warn!(
                    partition = self.owned.number,
                    "timeout while saving the inboxes; the next owner restores them from the log"
                );
            }
        }
        self.update_metrics();
        for (_, reply) in self.replies.drain() {
            let _ = reply.send(Err(PeopleError::NoOwner(self.owned.number)));
        }
        self.why_over
    }
}

/// Opens the store and looks up the offsets of store and log. Retries while the membership stands.
async fn open_partition(context: &CarrierContext, owned: &OwnedPartition) -> Result<(u64, u64, u64), String> {
    loop {
        if !owned.membership.is_valid() {
            return Err("the session with the coordination service is lost".to_owned());
        }
        let started = async {
            let opened = context.inbox.open(owned.number, owned.epoch).await.map_err(|error| error.to_string())?;
            let is_owner = owned.membership.owns(&owned.name, owned.epoch).await.map_err(|error| error.to_string())?;
            let bounds = context.log.bounds(owned.partition).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((opened.filter(|_| is_owner), bounds))
        };
        match started.await {
            Ok((Some(applied), bounds)) => return Ok((applied, bounds.first, bounds.next)),
            Ok((None, _)) => return Err("another node owns the partition".to_owned()),
            Err(why) => {
                static LINES: LineLimit = LineLimit::new();
                if let Some(left_out) = LINES.admit(&why) {
                    tracing::warn!(
                        partition = owned.number,
                        why,
                        left_out,
                        "cannot take over the push partition yet; retrying"
                    );
                }
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}
