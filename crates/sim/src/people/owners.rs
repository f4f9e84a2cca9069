//! The owners of the partition: the current one, and replaced ones that have not noticed it. Each is the real core.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use whimbrel_cluster::Machine as _;
use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{DeliveryPosition, ReadBatch, ToCarrier, ToGateway};
use whimbrel_people::carrier::partition::{CarrierEffect, CarrierIncident, CarrierInput, PushPartition};
use whimbrel_people::carrier::{CarrierSettings, PlatformRules};

use super::profile::PeopleProfile;
use super::world::{INBOX_EPOCH, PeopleWorld, ScheduledEvent};
use crate::CheckResult;

/// The maximum time of a call of the log or the store.
const CALL_MS_MAX: u64 = 40;
const TAKE_OVER_MS_MAX: u64 = 1_500;
/// The maximum time until an owner sees a new view of the live gateways.
const VIEW_MS_MAX: u64 = 400;
/// Records of one read: few, so that a fold arrives in pieces.
const READ_MAX: u64 = 5;

pub(super) struct InboxOwner {
    pub core: PushPartition,
    /// A read that waits at the tail.
    reading: Option<u64>,
    pub tick_at: Option<u64>,
    view: usize,
    /// Its writes are lost, and it gets no error.
    pub is_cut_off: bool,
}

/// The owners that run, with what they share.
pub(super) struct InboxOwners {
    settings: Arc<CarrierSettings>,
    rules: Arc<PlatformRules>,
    /// By epoch.
    pub all: BTreeMap<u64, InboxOwner>,
    /// The epoch of the current owner.
    pub current: Option<u64>,
    pub last_epoch: u64,
    /// The maximum number of unacknowledged messages of any session.
    pub most_unacked: usize,
}

impl InboxOwners {
    pub fn new(settings: CarrierSettings, rules: Arc<PlatformRules>) -> Self {
        let settings = Arc::new(settings);
        Self { settings, rules, all: BTreeMap::new(), current: None, last_epoch: 0, most_unacked: 0 }
    }
}

impl PeopleWorld {
    /// Takes the partition over if it has no owner.
    pub(super) fn take_over(&mut self) {
        if self.owners.current.is_some() {
            return;
        }
        if !self.is_quiet && self.rng.one_in(self.faults.store) {
            self.counts.faults.store_errors += 1;
            return self.soon(250, ScheduledEvent::TakeOver);
        }
        self.owners.last_epoch += 1;
        let epoch = self.owners.last_epoch;
        let Some(applied) = self.store.open(epoch) else { return };
        let end = self.log.len() as u64;
        self.note(|| format!("owner {epoch} takes over at {applied} of {end}"));
        self.counts.faults.owners += 1;
        let (settings, rules) = (Arc::clone(&self.owners.settings), Arc::clone(&self.owners.rules));
        let core = PushPartition::new(settings, rules, epoch, INBOX_EPOCH.into(), self.clock());
        // The view of live gateways may be slightly old.
        let view = self.cluster.views.len() - 1 - self.rng.below(2.min(self.cluster.views.len() as u64)) as usize;
        self.owners.all.insert(epoch, InboxOwner { core, reading: None, tick_at: None, view, is_cut_off: false });
        self.owners.current = Some(epoch);
        for gateway in 0..self.gateways.len() {
            self.open_stream(gateway, epoch);
        }
        self.step(epoch, CarrierInput::Started { applied, first: 0, end });
        let living = Arc::clone(&self.cluster.views[view]);
        self.step(epoch, CarrierInput::LiveGateways(living));
        self.show(epoch, self.cluster.views.len() - 1);
    }

    /// Ends the process of the owner, or its ownership, with all open calls.
    pub(super) fn die(&mut self, epoch: u64) {
        if self.owners.all.remove(&epoch).is_none() {
            return;
        }
        self.note(|| format!("owner {epoch} is gone"));
        self.links.streams.retain(|(of, _), _| *of != epoch);
        for gateway in 0..self.gateways.len() {
            self.soon(500, ScheduledEvent::Unroute { gateway, epoch, stream: None });
        }
        if self.owners.current == Some(epoch) {
            self.owners.current = None;
            self.soon(TAKE_OVER_MS_MAX, ScheduledEvent::TakeOver);
        }
    }

    /// Replaces the owner, which continues for a while.
    pub fn replace_owner(&mut self) {
        let Some(epoch) = self.owners.current.take() else { return };
        self.counts.faults.zombies += 1;
        self.note(|| format!("owner {epoch} is replaced"));
        let is_cut_off = !self.rng.one_in(3);
        if let Some(owner) = self.owners.all.get_mut(&epoch) {
            owner.is_cut_off = is_cut_off;
        }
        self.soon(8_000, ScheduledEvent::Dies { epoch });
        self.soon(300, ScheduledEvent::TakeOver);
    }

    pub fn crash_owner(&mut self) {
        if let Some(epoch) = self.owners.current {
            self.die(epoch);
        }
    }

    /// Ends the owner in order: it saves its state and gives up the partition.
    pub fn end_owner(&mut self) {
        let Some(epoch) = self.owners.current else { return };
        self.note(|| format!("owner {epoch} ends"));
        self.step(epoch, CarrierInput::Ending);
        // The owner sends and receives nothing more.
        self.links.streams.retain(|(of, _), _| *of != epoch);
        self.soon(1_000, ScheduledEvent::Dies { epoch });
    }

    pub(super) fn step(&mut self, epoch: u64, input: CarrierInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let reading = ClockReading::exact(self.clock());
            let Some(owner) = self.owners.all.get_mut(&epoch) else { return };
            let mut effects = owner.core.step(reading, input);
            // The core does not order its effects by gateway; a run needs a fixed order.
            effects.sort_by_key(|effect| match effect {
                CarrierEffect::Tell { gateway, .. } => (0, Some(*gateway)),
                _ => (1, None),
            });
            for effect in effects {
                self.perform(epoch, effect, &mut inputs);
            }
        }
        if let Some(owner) = self.owners.all.get(&epoch) {
            self.owners.most_unacked = self.owners.most_unacked.max(owner.core.most_unacknowledged());
        }
        self.wake(epoch);
    }

    fn wake(&mut self, epoch: u64) {
        let (now, skew) = (self.now, self.skew);
        let Some(owner) = self.owners.all.get_mut(&epoch) else { return };
        let Some(at) = owner.core.wake_at() else { return };
        let at = u64::try_from(at.as_millis() - skew).unwrap_or(0).max(now + 1);
        if owner.tick_at.is_none_or(|earlier| at < earlier) {
            owner.tick_at = Some(at);
            self.at(at, ScheduledEvent::Tick { epoch });
        }
    }

    /// Delivers an answer after a delay.
    pub(super) fn answer(&mut self, epoch: u64, input: CarrierInput) {
        self.soon(CALL_MS_MAX / 2, ScheduledEvent::Answer { epoch, input: Box::new(input) });
    }

    fn perform(&mut self, epoch: u64, effect: CarrierEffect, inputs: &mut VecDeque<CarrierInput>) {
        match effect {
            CarrierEffect::Read { from } => self.soon(CALL_MS_MAX, ScheduledEvent::Read { epoch, from }),
            CarrierEffect::Load { uids } => self.soon(CALL_MS_MAX, ScheduledEvent::Load { epoch, uids }),
            CarrierEffect::Rows { token, keys, .. } => {
                self.soon(3 * CALL_MS_MAX, ScheduledEvent::Rows { epoch, token, keys })
            }
            CarrierEffect::Append(letters) => self.soon(CALL_MS_MAX, ScheduledEvent::Append { epoch, letters }),
            CarrierEffect::Apply(write) => {
                self.soon(CALL_MS_MAX, ScheduledEvent::Apply { epoch, write: Box::new(write) })
            }
            CarrierEffect::Tell { gateway, news } => {
                if self.profile == PeopleProfile::SentIsAcked {
                    inputs.extend(self.acks_of(gateway, &news));
                }
                if !self.send_down(epoch, gateway, news) {
                    inputs.push_back(CarrierInput::GatewayGone(gateway));
                }
            }
            CarrierEffect::Report(problem) => {
                if let CarrierIncident::NoAck { .. } = problem {
                    self.counts.no_acks += 1;
                }
                self.note(|| format!("owner {epoch} reports {problem:?}"));
            }
            CarrierEffect::Answer { .. } => {}
            CarrierEffect::Resign { why } => {
                self.note(|| format!("owner {epoch} resigns: {why}"));
                self.die(epoch);
            }
        }
    }

    /// A breakage: counts sent messages as acknowledged.
    fn acks_of(&self, gateway: GatewayId, news: &[ToGateway]) -> Vec<CarrierInput> {
        let ack = |one: &ToGateway| {
            let ToGateway::Deliver(delivery) = one else { return None };
            let DeliveryPosition::Stored { seq, .. } = delivery.place else { return None };
            let uid = self.devices.iter().find(|device| device.session == Some(delivery.session))?.uid.clone();
            let messages = vec![ToCarrier::Ack { session: delivery.session, uid, upto: seq }];
            Some(CarrierInput::From { gateway, messages })
        };
        news.iter().filter_map(ack).collect()
    }

    pub(super) fn read(&mut self, epoch: u64, from: u64) {
        let Some(owner) = self.owners.all.get_mut(&epoch) else { return };
        if from >= self.log.len() as u64 {
            owner.reading = Some(from);
            return;
        }
        let next = (from + self.rng.between(1, READ_MAX)).min(self.log.len() as u64);
        let records = self.log[from as usize..next as usize].to_vec();
        self.step(epoch, CarrierInput::Read(Ok(ReadBatch { records, next })));
    }

    /// Continues the reads that wait at the tail.
    pub(super) fn tell_readers(&mut self) {
        let waiting: Vec<(u64, u64)> =
            self.owners.all.iter_mut().filter_map(|(epoch, owner)| Some((*epoch, owner.reading.take()?))).collect();
        for (epoch, from) in waiting {
            self.soon(5, ScheduledEvent::Read { epoch, from });
        }
    }

    /// Shows a view of the live gateways to the owner, later.
    pub(super) fn show(&mut self, epoch: u64, version: usize) {
        self.soon(VIEW_MS_MAX, ScheduledEvent::View { epoch, version });
    }

    pub(super) fn see(&mut self, epoch: u64, version: usize) {
        let Some(owner) = self.owners.all.get_mut(&epoch) else { return };
        if version > owner.view {
            owner.view = version;
            let living = Arc::clone(&self.cluster.views[version]);
            self.step(epoch, CarrierInput::LiveGateways(living));
        }
    }

    pub fn owner_is_up(&self) -> bool {
        self.owners.current.is_some_and(|epoch| self.owners.all.contains_key(&epoch))
    }

    /// Checks that the owner has exactly the connected sessions.
    pub fn owner_has_the_connected_sessions(&self) -> CheckResult {
        let owner =
            self.owners.current.and_then(|epoch| self.owners.all.get(&epoch)).ok_or("the partition has no owner")?;
        let there: usize = self.gateways.iter().map(|gateway| gateway.sessions.len()).sum();
        if owner.core.sessions() != there {
            return Err(format!("the owner has {} sessions, and {there} are connected", owner.core.sessions()));
        }
        Ok(())
    }
}
