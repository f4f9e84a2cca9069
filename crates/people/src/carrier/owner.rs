//! The edge around a partition: what its messages, effects, start and ending mean in log, store and gateways.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
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
use whimbrel_cluster::machine::{Edge, MachineStart, Performed};
use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_cluster::shell::{Calls, MachineCall};

/// How long a read waits at the end of the log before it is repeated.
const READ_WAIT: Duration = Duration::from_secs(10);
/// How often a partition updates its metrics.
const METRICS_INTERVAL: Duration = Duration::from_millis(250);

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

pub(super) enum CallResult {
    Input(CarrierInput),
    /// The list of live gateways changed.
    LiveGateways(watch::Receiver<Arc<Vec<GatewayId>>>),
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

pub(super) struct CarrierEdge<S> {
    context: Arc<CarrierContext>,
    owned: Arc<OwnedPartition>,
    messages: mpsc::UnboundedReceiver<OwnerMessage>,
    /// Publishes whether the owner serves the partition.
    serving: S,
    replies: HashMap<QueryId, oneshot::Sender<Result<PeopleReply, PeopleError>>>,
    next_ask: QueryId,
    trimmed_behind: u64,
    metrics_at: Instant,
    upkeep_at: Instant,
    sync_at: Instant,
    has_started: bool,
    is_ending: bool,
    /// The owner ends, and saves what is only in memory.
    is_saving: bool,
}

impl<S: Fn(bool)> CarrierEdge<S> {
    pub(super) fn new(
        context: Arc<CarrierContext>,
        owned: OwnedPartition,
        messages: mpsc::UnboundedReceiver<OwnerMessage>,
        serving: S,
    ) -> Self {
        let now = Instant::now();
        Self {
            owned: Arc::new(owned),
            messages,
            serving,
            replies: HashMap::new(),
            next_ask: 0,
            trimmed_behind: 0,
            metrics_at: now,
            upkeep_at: now + context.settings.upkeep_interval,
            sync_at: now + SYNC_EVERY,
            has_started: false,
            is_ending: false,
            is_saving: false,
            context,
        }
    }

    /// A machine that has not started.
    pub(super) fn machine(&self) -> PushPartition {
        let context = &self.context;
        let (settings, rules) = (Arc::clone(&context.settings), Arc::clone(&context.rules));
        PushPartition::new(settings, rules, self.owned.epoch, Arc::clone(&context.inbox_epoch), context.clock.now())
    }

    fn tell(&self, gateway: GatewayId, news: Vec<ToGateway>) -> Performed<CarrierInput> {
        self.note_latency(&news, self.context.clock.now());
        let messages = CarrierMessages { partition: self.owned.number, epoch: self.owned.epoch, news };
        match self.context.gateways.tell(gateway, messages) {
            true => Performed::Done,
            false => Performed::Input(CarrierInput::GatewayGone(gateway)),
        }
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
                Event::failure("push_log_truncated", detail)
            }
            CarrierIncident::OtherLog { applied, end } => {
                let detail = format!(
                    "the inbox store of partition {number} is at offset {applied}, beyond the log's end {end}: it belongs to \
                     another log, and was emptied"
                );
                Event::failure("inbox_store_mismatch", detail)
            }
            CarrierIncident::Damaged { resume_at, what } => {
                let detail = format!("the log of pushes is damaged ({what}); reading resumes at offset {resume_at}");
                Event::failure("push_log_damaged", detail)
            }
            CarrierIncident::NotUnderstood { offset, why } => {
                let detail = format!("push {offset} of partition {number} is a dead letter: {why}");
                Event::failure("push_record_corrupted", detail)
            }
            CarrierIncident::BadBox { uid, why } => {
                let detail = format!("the stored inbox of user {uid} is corrupted and was reset: {why}");
                Event::failure("inbox_corrupted", detail)
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

    fn update_metrics(&self, partition: &mut PushPartition) {
        self.context.metrics.counted(std::mem::take(&mut partition.counts));
        let present = (partition.sessions(), partition.users_in_memory());
        self.context.metrics.present(self.owned.number, Some(present));
        self.context.topics.push().counters.fold_backlog.folded(self.owned.number, partition.folded());
    }

    fn request_reclaimable(&self, calls: &Calls<CallResult>) {
        let (context, number) = (Arc::clone(&self.context), self.owned.number);
        let now = context.clock.expiry_now();
        calls.begin(Box::pin(async move {
            let found = context.inbox.reclaimable(number, now, RECLAIM_USERS).await;
            CallResult::Input(CarrierInput::Reclaimable(found.map(|at| at.found).unwrap_or_default()))
        }));
    }

    /// Trims records that are synced in the store and older than `keep_log`.
    fn trim(&mut self, upto: u64, calls: &Calls<CallResult>) {
        self.trimmed_behind = upto;
        let (context, partition) = (Arc::clone(&self.context), self.owned.partition);
        let kept_since = context.clock.expiry_now().saturating_sub(context.settings.keep_log);
        calls.begin(Box::pin(async move {
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
}

impl<S: Fn(bool) + Send> Edge for CarrierEdge<S> {
    type Machine = PushPartition;
    type Request = OwnerMessage;
    type Started = CarrierInput;
    type Done = CallResult;

    const STEP_EVERY: Duration = METRICS_INTERVAL;
    const ANSWERS_WHILE_STARTING: bool = false;

    fn clock(&self) -> &dyn Clock {
        &*self.context.clock
    }

    fn now(&self) -> ClockReading {
        let (wall, expiry) = (self.context.clock.now(), self.context.clock.expiry_now());
        ClockReading { wall, expiry, steady_ms: 0 }
    }

    fn time_of(partition: &PushPartition) -> Timestamp {
        partition.now()
    }

    fn tick() -> CarrierInput {
        CarrierInput::Tick
    }

    fn start(&mut self, _: MachineStart) -> MachineCall<Result<CarrierInput, String>> {
        Box::pin(open_partition(Arc::clone(&self.context), Arc::clone(&self.owned)))
    }

    fn started(&mut self, started: CarrierInput, calls: &mut Calls<CallResult>) -> Vec<CarrierInput> {
        self.has_started = true;
        (self.serving)(true);
        let mut living = self.context.gateways.live_gateways();
        let first = living.borrow_and_update().clone();
        calls.begin(next_gateways(living));
        vec![started, CarrierInput::LiveGateways(first)]
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Option<OwnerMessage>> {
        self.messages.poll_recv(context)
    }

    fn try_request(&mut self) -> Option<OwnerMessage> {
        self.messages.try_recv().ok()
    }

    fn request(&mut self, message: OwnerMessage, calls: &mut Calls<CallResult>) -> Option<CarrierInput> {
        match message {
            OwnerMessage::FromGateway(gateway, messages) => Some(CarrierInput::From { gateway, messages }),
            OwnerMessage::GatewayReconnected(gateway) => Some(CarrierInput::GatewayGone(gateway)),
            OwnerMessage::Query(ask, reply) => {
                // The answer must include everything that was accepted before the query.
                let (context, partition) = (Arc::clone(&self.context), self.owned.partition);
                calls.begin(Box::pin(async move {
                    let end = context.log.bounds(partition).await.map(|bounds| bounds.next);
                    CallResult::LogEnd(ask, reply, end)
                }));
                None
            }
        }
    }

    fn perform(
        &mut self,
        _: &PushPartition,
        effect: CarrierEffect,
        calls: &mut Calls<CallResult>,
    ) -> Performed<CarrierInput> {
        let context = Arc::clone(&self.context);
        let (number, partition) = (self.owned.number, self.owned.partition);
        let call: MachineCall<CallResult> = match effect {
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
                calls.begin_write(Box::pin(async move {
                    CallResult::Applied(CarrierInput::Applied(context.inbox.apply(number, write).await), synced)
                }));
                return Performed::Done;
            }
            CarrierEffect::Tell { gateway, news } => return self.tell(gateway, news),
            CarrierEffect::Answer { ask, told } => {
                if let Some(reply) = self.replies.remove(&ask) {
                    // The client may have disconnected.
                    let _ = reply.send(told);
                }
                return Performed::Done;
            }
            CarrierEffect::Report(incident) => {
                self.report(&incident);
                return Performed::Done;
            }
            CarrierEffect::Resign { why } => return Performed::Resign(why),
        };
        calls.begin(call);
        Performed::Done
    }

    fn finished(&mut self, done: CallResult, calls: &mut Calls<CallResult>) -> Option<CarrierInput> {
        match done {
            // The next owner reads these records.
            CallResult::Input(CarrierInput::Read(_)) | CallResult::LiveGateways(_) if self.is_ending => None,
            CallResult::Input(input) => Some(input),
            CallResult::LiveGateways(mut living) => {
                let present = living.borrow_and_update().clone();
                calls.begin(next_gateways(living));
                Some(CarrierInput::LiveGateways(present))
            }
            CallResult::LogEnd(what, reply, Ok(end)) => {
                self.next_ask += 1;
                self.replies.insert(self.next_ask, reply);
                Some(CarrierInput::Query { ask: self.next_ask, what, end })
            }
            CallResult::LogEnd(_, reply, Err(error)) => {
                let _ = reply.send(Err(PeopleError::Unavailable(error.to_string())));
                None
            }
            CallResult::Applied(input, synced) => {
                let was_done = matches!(input, CarrierInput::Applied(Ok(ApplyOutcome::Done)));
                if let Some(upto) = synced.filter(|_| was_done) {
                    self.trim(upto, calls);
                }
                Some(input)
            }
            CallResult::Trimmed => None,
        }
    }

    fn turned(&mut self, partition: &mut PushPartition, calls: &mut Calls<CallResult>) -> Option<CarrierInput> {
        let now = Instant::now();
        if now >= self.metrics_at {
            self.metrics_at = now + METRICS_INTERVAL;
            self.update_metrics(partition);
        }
        if now >= self.upkeep_at {
            self.upkeep_at = now + self.context.settings.upkeep_interval;
            self.request_reclaimable(calls);
        }
        if now < self.sync_at {
            return None;
        }
        self.sync_at = now + SYNC_EVERY;
        (partition.folded() > self.trimmed_behind).then_some(CarrierInput::SyncWanted)
    }

    fn ending(&mut self, can_save: bool) -> Option<CarrierInput> {
        (self.serving)(false);
        (self.is_ending, self.is_saving) = (true, can_save);
        can_save.then_some(CarrierInput::Ending)
    }

    /// Saves what is only in memory, so that the successor starts sooner.
    fn awaits_calls(&self, partition: &PushPartition) -> bool {
        self.is_saving && !partition.is_settled()
    }

    fn settled(&mut self, _: &PushPartition, in_time: bool) {
        if !in_time {
            tracing::warn!(
                partition = self.owned.number,
                "timeout while saving the inboxes; the next owner restores them from the log"
            );
        }
    }

    fn last_write(&mut self, _: &mut PushPartition) -> Option<MachineCall<()>> {
        None
    }

    fn ended(&mut self, partition: &mut PushPartition) {
        if self.has_started {
            self.update_metrics(partition);
        }
        for (_, reply) in self.replies.drain() {
            let _ = reply.send(Err(PeopleError::NoOwner(self.owned.number)));
        }
    }
}

/// Waits until the list of live gateways changes.
fn next_gateways(mut living: watch::Receiver<Arc<Vec<GatewayId>>>) -> MachineCall<CallResult> {
    Box::pin(async move {
        if living.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        CallResult::LiveGateways(living)
    })
}

/// Opens the store and looks up the offsets of store and log. Retries while the membership stands.
async fn open_partition(context: Arc<CarrierContext>, owned: Arc<OwnedPartition>) -> Result<CarrierInput, String> {
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
            Ok((Some(applied), bounds)) => {
                return Ok(CarrierInput::Started { applied, first: bounds.first, end: bounds.next });
            }
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
