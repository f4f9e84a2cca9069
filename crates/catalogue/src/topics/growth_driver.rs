//! This node's steps in growths of topics that several nodes share. It confirms growths of other nodes, leads its own growths, and takes
//! over from nodes that have left. [`super::agreement`] decides the next step; this module is its shell.
//!
//! The entry of the catalogue is the only source of truth about a growth. A write with an unknown outcome changes no state here: the
//! topic's gate stays closed until the entry has been read again.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{CatalogueError, ClusterSnapshot, Coordination, LogError, Membership};
use whimbrel_model::{Event, NamedBounds, TopicNumber};

use super::agreement::{
    CONFIRMED_WITHIN_MS, Confirmations, FINISHED_WITHIN_MS, GrowthStep, GrowthView, Participant, PendingGrowth,
};
use super::gate::ClosedGate;
use super::growth::{Growth, ends_of};
use super::registry::{PutOutcome, Registry, TopicError, encode};
use super::stored::{StoredTopic, key_of};
use super::topic::{Topic, is_system_name};

/// The pause between two checks of the growths in progress.
const STEP_PAUSE: Duration = Duration::from_millis(50);
/// The pause before the catalogue is read again after a read under a new session failed.
const CONFIRM_PAUSE: Duration = Duration::from_millis(200);
/// The timeout of one attempt to add partitions in the log and to read their ends.
const FINISH_WITHIN: Duration = Duration::from_secs(10);
/// How long the request that began a growth waits for its end.
const REQUEST_WAITS_WITHIN: Duration = Duration::from_millis(FINISHED_WITHIN_MS + 10_000);
/// The pause after a growth began, before surplus partitions in the log begin another one.
const SURPLUS_PAUSE: Duration = Duration::from_secs(300);

/// The present session of this node; `None` while it has none.
pub type Memberships = watch::Receiver<Option<Arc<dyn Membership>>>;

/// The growths that this node has read.
#[derive(Default)]
pub(super) struct Growths {
    in_progress: BTreeMap<TopicNumber, GrowthInProgress>,
    /// Topics with more partitions in the log than in their entry: the number of partitions, and when to begin the growth.
    surplus: BTreeMap<TopicNumber, (u32, Instant)>,
}

/// A growth in progress, with the topic's gate closed.
struct GrowthInProgress {
    participant: Participant,
    closed: ClosedGate,
}

/// Steps that wait for the log, or for other changes of topics: at most one per topic, and one for the surplus partitions of all.
#[derive(Default)]
struct LongSteps<'a> {
    running: FuturesUnordered<BoxFuture<'a, Option<TopicNumber>>>,
    topics: BTreeSet<Option<TopicNumber>>,
}

impl<'a> LongSteps<'a> {
    /// Starts a step, unless one of this topic is running.
    fn begin(&mut self, topic: Option<TopicNumber>, step: impl Future<Output = ()> + Send + 'a) {
        if self.topics.insert(topic) {
            self.running.push(step.map(move |()| topic).boxed());
        }
    }

    /// Runs the steps until it is dropped.
    async fn run(&mut self) -> Infallible {
        while let Some(topic) = self.running.next().await {
            self.topics.remove(&topic);
        }
        std::future::pending().await
    }
}

impl Registry {
    fn growths(&self) -> MutexGuard<'_, Growths> {
        self.growths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether this node may use the mapping of keys: it has read the catalogue under its present session, or it is the only node.
    pub fn has_mapping_lease(&self) -> bool {
        self.lease.take().is_some()
    }

    /// Whether this node has read all barriers of the topic that apply. It checks the lease first: under a valid lease, this node has
    /// read every growth that may be in progress.
    fn knows_barriers(&self, number: TopicNumber) -> bool {
        let topic = || self.by_number(number);
        if topic().is_some_and(|topic| topic.is_system()) {
            return true;
        }
        let is_replaced = || topic().is_some_and(|topic| topic.mapping_gate.is_retired());
        self.has_mapping_lease() && !self.growths().in_progress.contains_key(&number) && !is_replaced()
    }

    /// Returns when this node has read all barriers before the messages that it has read. It waits while the topic grows, and until the
    /// node has read the catalogue under its session.
    pub async fn wait_for_barriers(&self, number: TopicNumber) {
        let mut changes = self.changes.subscribe();
        while !self.knows_barriers(number) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Applies the `growing` field of an entry: closes the gate of the mapping, or releases it.
    pub(super) fn note_growing(&self, topic: &Topic, growing: Option<PendingGrowth>) {
        let since_ms = self.now_ms();
        let mut growths = self.growths();
        let Some(growing) = growing.filter(|_| self.lease.is_shared()) else {
            growths.in_progress.remove(&topic.number());
            return;
        };
        let is_known =
            growths.in_progress.get(&topic.number()).is_some_and(|known| known.participant.growing == growing);
        if !is_known {
            let participant = Participant { growing, since_ms, began_here: false };
            let closed = topic.mapping_gate.close();
            growths.in_progress.insert(topic.number(), GrowthInProgress { participant, closed });
        }
    }

    pub(super) fn forget_growth(&self, number: TopicNumber) {
        let mut growths = self.growths();
        growths.in_progress.remove(&number);
        growths.surplus.remove(&number);
    }

    /// Records how many partitions of a topic the log has. Nodes that share the topic grow it by agreement.
    pub(super) fn note_in_log(&self, name: &str, stored: &StoredTopic, in_log: u32) {
        let mut growths = self.growths();
        if in_log > stored.partitions && stored.growing.is_none() && !is_system_name(name) {
            let begin = Instant::now();
            growths.surplus.entry(stored.number).or_insert((in_log, begin)).0 = in_log;
        } else if in_log <= stored.partitions {
            growths.surplus.remove(&stored.number);
        }
    }

    /// Begins a growth that all nodes must confirm. The registry's watch continues it.
    pub(super) async fn begin_growth(&self, topic: &Topic, to: u32) -> Result<Arc<Topic>, TopicError> {
        let growing = PendingGrowth { to, base: topic.version };
        let stored = StoredTopic { growing: Some(growing), ..topic.stored.clone() };
        let version = self.ports.catalogue.put(&key_of(&topic.name), encode(&stored), Some(topic.version)).await?;
        let shown = self.show(topic.succeeded_by(stored, version))?;
        if let Some(known) = self.growths().in_progress.get_mut(&topic.number()) {
            known.participant.began_here = known.participant.growing == growing;
        }
        Ok(shown)
    }

    /// Waits for the end of a growth. The caller must not hold the lock for changes of topics.
    pub(super) async fn wait_grown(&self, begun: &Topic, growing: PendingGrowth) -> Result<PutOutcome, TopicError> {
        let name = begun.name.to_string();
        let mut changes = self.changes.subscribe();
        let ended = timeout(REQUEST_WAITS_WITHIN, async {
            loop {
                changes.borrow_and_update();
                match self.by_number(begun.number()) {
                    Some(topic) if topic.stored.growing == Some(growing) => {}
                    other => return other,
                }
                if changes.changed().await.is_err() {
                    return None;
                }
            }
        });
        let ended = ended.await.map_err(|_| TopicError::Growing(name.clone()))?;
        let topic = ended.ok_or_else(|| TopicError::Unknown(name.clone()))?;
        if topic.partitions() < growing.to {
            return Err(TopicError::NotConfirmed(name));
        }
        let grown = topic.stored.growths.iter().rfind(|growth| growth.to == growing.to).cloned();
        Ok(PutOutcome { topic, created: false, grown })
    }

    /// Confirms the mapping under each session of this node.
    pub(super) async fn follow_sessions(&self, mut memberships: Memberships) {
        loop {
            let membership = memberships.borrow_and_update().clone();
            let confirming = async {
                let Some(membership) = membership else { return };
                while membership.is_valid() {
                    match self.leave_replaced_mappings().await {
                        // A topic that the log has not opened yet gets no publishes by an old mapping: its gate is retired.
                        Ok(()) => {
                            self.lease.grant(membership);
                            return self.changes.send_modify(|count| *count += 1);
                        }
                        Err(error) => {
                            tracing::warn!(%error, "cannot read the topics under the new session; retrying");
                            tokio::time::sleep(CONFIRM_PAUSE).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = confirming => if memberships.changed().await.is_err() {
                    return std::future::pending().await;
                },
                Ok(()) = memberships.changed() => {}
            }
        }
    }

    /// Performs this node's steps in all growths, until the shutdown. Steps that call the log, or wait for other changes of topics, run
    /// concurrently, so that this node continues to confirm other growths.
    pub(super) async fn drive_growths(
        &self,
        coordination: &dyn Coordination,
        memberships: Memberships,
        shutdown: &CancellationToken,
    ) {
        let mut changes = self.changes.subscribe();
        let mut confirmed: BTreeSet<String> = BTreeSet::new();
        let mut long_steps = LongSteps::default();
        loop {
            changes.borrow_and_update();
            let is_idle = {
                let growths = self.growths();
                growths.in_progress.is_empty() && growths.surplus.is_empty()
            };
            let pause = async {
                if is_idle && confirmed.is_empty() {
                    let _ = changes.changed().await;
                } else {
                    tokio::time::sleep(STEP_PAUSE).await;
                }
            };
            tokio::select! {
                () = pause => {}
                never = long_steps.run() => match never {},
                () = shutdown.cancelled() => return,
            }
            let membership = memberships.borrow().clone();
            let Some(membership) = membership.filter(|membership| membership.is_valid()) else {
                // Confirmations end with their session.
                confirmed.clear();
                continue;
            };
            match coordination.snapshot(0).await {
                Ok(picture) => self.step_all(&Arc::new(picture), &*membership, &mut confirmed, &mut long_steps).await,
                Err(error) => tracing::debug!(%error, "cannot read the cluster state; growths wait"),
            }
        }
    }

    /// Confirms growths, withdraws confirmations that are not needed any more, and starts long steps.
    async fn step_all<'a>(
        &'a self,
        picture: &Arc<ClusterSnapshot>,
        membership: &dyn Membership,
        confirmed: &mut BTreeSet<String>,
        long_steps: &mut LongSteps<'a>,
    ) {
        let (me, now_ms) = (membership.node(), self.now_ms());
        let steps: Vec<(TopicNumber, PendingGrowth, GrowthStep, Confirmations)> = {
            let growths = self.growths();
            let step = |(number, known): (&TopicNumber, &GrowthInProgress)| {
                let growing = known.participant.growing;
                let roll = Confirmations::of(picture, *number, &growing);
                let sight = GrowthView { now_ms, me, is_drained: known.closed.is_drained(), roll: &roll };
                (*number, growing, known.participant.step(sight), roll)
            };
            growths.in_progress.iter().map(step).collect()
        };
        let current: BTreeSet<String> =
            steps.iter().map(|(number, growing, ..)| growing.confirmation(*number, me)).collect();
        for over in confirmed.difference(&current).cloned().collect::<Vec<_>>() {
            if membership.release(&over).await.is_ok() {
                confirmed.remove(&over);
            }
        }
        let mut owning = Vec::new();
        for (number, growing, step, roll) in steps {
            match step {
                GrowthStep::Wait => {}
                GrowthStep::Confirm => owning.push(async move {
                    let name = growing.confirmation(number, me);
                    let owned = membership.own(&name).await;
                    owned.inspect_err(|error| tracing::debug!(%error, name, "not confirmed yet")).ok().map(|_| name)
                }),
                GrowthStep::Finish | GrowthStep::RollBack => {
                    let picture = Arc::clone(picture);
                    long_steps
                        .begin(Some(number), async move { self.lead(number, growing, step, &roll, &picture).await });
                }
            }
        }
        confirmed.extend(join_all(owning).await.into_iter().flatten());
        if picture.nodes.first().is_some_and(|first| first.number == me) && self.has_surplus_due() {
            long_steps.begin(None, self.begin_surplus_growths());
        }
    }

    async fn lead(
        &self,
        number: TopicNumber,
        growing: PendingGrowth,
        step: GrowthStep,
        roll: &Confirmations,
        picture: &ClusterSnapshot,
    ) {
        let led = match step {
            GrowthStep::Finish => match self.finish_growth(number, growing).await {
                // The log rejects the growth permanently.
                Err(error @ TopicError::Log(LogError::Unsupported(_) | LogError::UnknownPartition(_))) => {
                    tracing::warn!(%error, topic = number.0, "the log rejected a growth; rolling it back");
                    self.roll_back(number, growing, roll, picture).await
                }
                finished => finished,
            },
            _ => self.roll_back(number, growing, roll, picture).await,
        };
        if let Err(error) = led {
            tracing::warn!(%error, topic = number.0, "cannot continue a growth; retrying");
        }
    }

    /// Finishes a growth that every node has confirmed: adds the partitions, reads the barriers, and writes the new mapping.
    async fn finish_growth(&self, number: TopicNumber, growing: PendingGrowth) -> Result<(), TopicError> {
        let Some(topic) = self.by_number(number).filter(|topic| topic.stored.growing == Some(growing)) else {
            return self.read_again().await;
        };
        let from = topic.partitions();
        let mut stored = StoredTopic { growing: None, partitions: growing.to, ..topic.stored.clone() };
        let in_time = timeout(FINISH_WITHIN, async {
            self.ports.log_topics.alter(&stored.spec(&topic.name), NamedBounds::NONE).await?;
            ends_of(&*self.ports.log, number, from).await
        });
        let late = |_| LogError::Unavailable(format!("the log did not add partitions within {FINISH_WITHIN:?}"));
        let ends = in_time.await.map_err(late)??;
        let growth = Growth { at_ms: self.ports.clock.now().as_millis(), from, to: growing.to, ends };
        if growth.has_barriers() {
            stored.growths.push(growth.clone());
        }
        if self.replace_entry(&topic, stored).await? {
            self.report_growth(&topic.name, &growth);
        }
        Ok(())
    }

    /// Rolls back a growth that was not confirmed in time: the old mapping stays.
    async fn roll_back(
        &self,
        number: TopicNumber,
        growing: PendingGrowth,
        roll: &Confirmations,
        picture: &ClusterSnapshot,
    ) -> Result<(), TopicError> {
        let Some(topic) = self.by_number(number).filter(|topic| topic.stored.growing == Some(growing)) else {
            return self.read_again().await;
        };
        let stored = StoredTopic { growing: None, ..topic.stored.clone() };
        if !self.replace_entry(&topic, stored).await? {
            return Ok(());
        }
        let name_of = |node: u16| picture.nodes.iter().find(|each| each.number == node);
        let missing: Vec<String> = roll.missing().filter_map(name_of).map(|node| node.member.name.clone()).collect();
        let (name, missing, to) = (&topic.name, missing.join(","), growing.to);
        let why = if missing.is_empty() {
            "the log did not add them".to_owned()
        } else {
            format!("nodes {missing} did not confirm")
        };
        let detail = format!("topic `{name}` did not grow to {to} partitions within {CONFIRMED_WITHIN_MS} ms: {why}");
        let event = Event::warning("topic_growth_rolled_back", detail).with("topic", name).with("to", to);
        (self.ports.events)(event.with("nodes", missing));
        Ok(())
    }

    /// Writes the topic's next entry and makes it visible. Returns false if another node has written an entry, which is made visible
    /// instead.
    async fn replace_entry(&self, topic: &Topic, stored: StoredTopic) -> Result<bool, TopicError> {
        let changing = self.changing.lock().await;
        match self.ports.catalogue.put(&key_of(&topic.name), encode(&stored), Some(topic.version)).await {
            Ok(version) => {
                // If this node has read a later entry, its watch applies that one.
                let _ = self.show(topic.succeeded_by(stored, version));
                Ok(true)
            }
            Err(CatalogueError::Conflict { .. }) => self.read_entries(&changing).await.map(|_| false),
            Err(error) => Err(error.into()),
        }
    }

    async fn read_again(&self) -> Result<(), TopicError> {
        let changing = self.changing.lock().await;
        self.reload(&changing).await
    }

    fn has_surplus_due(&self) -> bool {
        let now = Instant::now();
        self.growths().surplus.values().any(|(_, begin)| *begin <= now)
    }

    /// Begins growths to partitions that the log already has: a leader died after adding them, or another application added them.
    async fn begin_surplus_growths(&self) {
        let now = Instant::now();
        let due: Vec<(TopicNumber, u32)> = {
            let mut growths = self.growths();
            let due = growths.surplus.iter_mut().filter(|(_, (_, begin))| *begin <= now);
            due.map(|(number, (to, begin))| {
                *begin = now + SURPLUS_PAUSE;
                (*number, *to)
            })
            .collect()
        };
        for (number, to) in due {
            let _changing = self.changing.lock().await;
            let topic =
                self.by_number(number).filter(|topic| topic.stored.growing.is_none() && topic.partitions() < to);
            let Some(topic) = topic else {
                self.growths().surplus.remove(&number);
                continue;
            };
            if let Err(error) = self.begin_growth(&topic, to).await {
                tracing::warn!(%error, topic = %topic.name, to, "cannot begin a growth to the partitions that the log has");
            }
        }
    }
}
