//! The owners of the partition: the one that has it, and those that do not know yet that they have it no more. Each is the real core, with
//! everything around it simulated.

use std::collections::VecDeque;
use std::sync::Arc;

use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{DeliveryPlace, ReadBatch, ToCarrier, ToGateway};
use whimbrel_people::carrier::partition::{Effect, Input, Partition, Trouble};

use super::Check;
use super::profile::PeopleProfile;
use super::world::{Event, INBOX_EPOCH, World};

/// How long a call of the log or the store takes at most.
const CALL_MS_MAX: u64 = 40;
const TAKE_OVER_MS_MAX: u64 = 1_500;
/// How long a picture of who lives takes to be seen.
const VIEW_MS_MAX: u64 = 400;
/// Records of one read: few, so that what is folded again comes in pieces.
const READ_MAX: u64 = 5;

pub(super) struct Owner {
    pub core: Partition,
    /// A read that waits at the tail.
    reading: Option<u64>,
    pub tick_at: Option<u64>,
    view: usize,
    /// Its writes do not get through, and nobody tells it so.
    pub is_cut_off: bool,
}

impl World {
    /// Somebody takes the partition, where nobody has it.
    pub(super) fn take_over(&mut self) {
        if self.owner.is_some() {
            return;
        }
        if !self.is_quiet && self.rng.one_in(self.trouble.store) {
            self.report.store_errors += 1;
            return self.soon(250, Event::TakeOver);
        }
        self.last_epoch += 1;
        let epoch = self.last_epoch;
        let Some(applied) = self.store.open(epoch) else { return };
        let end = self.log.len() as u64;
        self.note(|| format!("owner {epoch} takes over at {applied} of {end}"));
        self.report.owners += 1;
        let (settings, rules) = (Arc::clone(&self.settings), Arc::clone(&self.rules));
        let core = Partition::new(settings, rules, epoch, INBOX_EPOCH.into(), self.clock());
        // What it sees of who lives may be a little old.
        let view = self.views.len() - 1 - self.rng.below(2.min(self.views.len() as u64)) as usize;
        self.owners.insert(epoch, Owner { core, reading: None, tick_at: None, view, is_cut_off: false });
        self.owner = Some(epoch);
        for gateway in 0..self.gateways.len() {
            self.open_stream(gateway, epoch);
        }
        self.step(epoch, Input::Started { applied, first: 0, end });
        let living = Arc::clone(&self.views[view]);
        self.step(epoch, Input::Living(living));
        self.show(epoch, self.views.len() - 1);
    }

    /// The owner's process is gone, or its ownership, with everything that it had asked for.
    pub(super) fn die(&mut self, epoch: u64) {
        if self.owners.remove(&epoch).is_none() {
            return;
        }
        self.note(|| format!("owner {epoch} is gone"));
        self.streams.retain(|(of, _), _| *of != epoch);
        for gateway in 0..self.gateways.len() {
            self.soon(500, Event::Unroute { gateway, epoch, stream: None });
        }
        if self.owner == Some(epoch) {
            self.owner = None;
            self.soon(TAKE_OVER_MS_MAX, Event::TakeOver);
        }
    }

    /// Another takes the partition, and the owner goes on for a while.
    pub fn replace_owner(&mut self) {
        let Some(epoch) = self.owner.take() else { return };
        self.report.zombies += 1;
        self.note(|| format!("owner {epoch} is replaced"));
        let is_cut_off = !self.rng.one_in(3);
        if let Some(owner) = self.owners.get_mut(&epoch) {
            owner.is_cut_off = is_cut_off;
        }
        self.soon(8_000, Event::Dies { epoch });
        self.soon(300, Event::TakeOver);
    }

    pub fn crash_owner(&mut self) {
        if let Some(epoch) = self.owner {
            self.die(epoch);
        }
    }

    /// The owner saves what it has and gives the partition up.
    pub fn end_owner(&mut self) {
        let Some(epoch) = self.owner else { return };
        self.note(|| format!("owner {epoch} ends"));
        self.step(epoch, Input::Ending);
        // Nobody hears it any more, and it hears nobody.
        self.streams.retain(|(of, _), _| *of != epoch);
        self.soon(1_000, Event::Dies { epoch });
    }

    pub(super) fn step(&mut self, epoch: u64, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = self.clock();
            let Some(owner) = self.owners.get_mut(&epoch) else { return };
            let mut effects = owner.core.step(now, input);
            // The core has no order among gateways; a run has.
            effects.sort_by_key(|effect| match effect {
                Effect::Tell { gateway, .. } => (0, Some(*gateway)),
                _ => (1, None),
            });
            for effect in effects {
                self.perform(epoch, effect, &mut inputs);
            }
        }
        if let Some(owner) = self.owners.get(&epoch) {
            self.most_unacked = self.most_unacked.max(owner.core.most_unacknowledged());
        }
        self.wake(epoch);
    }

    fn wake(&mut self, epoch: u64) {
        let (now, skew) = (self.now, self.skew);
        let Some(owner) = self.owners.get_mut(&epoch) else { return };
        let Some(at) = owner.core.wake_at() else { return };
        let at = u64::try_from(at.as_millis() - skew).unwrap_or(0).max(now + 1);
        if owner.tick_at.is_none_or(|earlier| at < earlier) {
            owner.tick_at = Some(at);
            self.at(at, Event::Tick { epoch });
        }
    }

    /// An answer on its way back.
    pub(super) fn answer(&mut self, epoch: u64, input: Input) {
        self.soon(CALL_MS_MAX / 2, Event::Answer { epoch, input: Box::new(input) });
    }

    fn perform(&mut self, epoch: u64, effect: Effect, inputs: &mut VecDeque<Input>) {
        match effect {
            Effect::Read { from } => self.soon(CALL_MS_MAX, Event::Read { epoch, from }),
            Effect::Load { uids } => self.soon(CALL_MS_MAX, Event::Load { epoch, uids }),
            Effect::Rows { token, keys, .. } => self.soon(3 * CALL_MS_MAX, Event::Rows { epoch, token, keys }),
            Effect::Append(letters) => self.soon(CALL_MS_MAX, Event::Append { epoch, letters }),
            Effect::Apply(write) => self.soon(CALL_MS_MAX, Event::Apply { epoch, write: Box::new(write) }),
            Effect::Tell { gateway, news } => {
                if self.profile == PeopleProfile::SentIsAcked {
                    inputs.extend(self.acks_of(gateway, &news));
                }
                if !self.send_down(epoch, gateway, news) {
                    inputs.push_back(Input::GatewayGone(gateway));
                }
            }
            Effect::Report(trouble) => {
                if let Trouble::NoAck { .. } = trouble {
                    self.report.no_acks += 1;
                }
                self.note(|| format!("owner {epoch} reports {trouble:?}"));
            }
            Effect::Answer { .. } => {}
            Effect::Resign { why } => {
                self.note(|| format!("owner {epoch} resigns: {why}"));
                self.die(epoch);
            }
        }
    }

    /// A breakage: what is sent counts as acknowledged.
    fn acks_of(&self, gateway: GatewayId, news: &[ToGateway]) -> Vec<Input> {
        let ack = |one: &ToGateway| {
            let ToGateway::Deliver(delivery) = one else { return None };
            let DeliveryPlace::Stored { seq, .. } = delivery.place else { return None };
            let uid = self.devices.iter().find(|device| device.session == Some(delivery.session))?.uid.clone();
            let messages = vec![ToCarrier::Ack { session: delivery.session, uid, upto: seq }];
            Some(Input::From { gateway, messages })
        };
        news.iter().filter_map(ack).collect()
    }

    pub(super) fn read(&mut self, epoch: u64, from: u64) {
        let Some(owner) = self.owners.get_mut(&epoch) else { return };
        if from >= self.log.len() as u64 {
            owner.reading = Some(from);
            return;
        }
        let next = (from + self.rng.between(1, READ_MAX)).min(self.log.len() as u64);
        let records = self.log[from as usize..next as usize].to_vec();
        self.step(epoch, Input::Read(Ok(ReadBatch { records, next })));
    }

    /// Reads that wait at the tail go on.
    pub(super) fn tell_readers(&mut self) {
        let waiting: Vec<(u64, u64)> =
            self.owners.iter_mut().filter_map(|(epoch, owner)| Some((*epoch, owner.reading.take()?))).collect();
        for (epoch, from) in waiting {
            self.soon(5, Event::Read { epoch, from });
        }
    }

    /// The owner will see that picture of who lives.
    pub(super) fn show(&mut self, epoch: u64, version: usize) {
        self.soon(VIEW_MS_MAX, Event::View { epoch, version });
    }

    pub(super) fn see(&mut self, epoch: u64, version: usize) {
        let Some(owner) = self.owners.get_mut(&epoch) else { return };
        if version > owner.view {
            owner.view = version;
            let living = Arc::clone(&self.views[version]);
            self.step(epoch, Input::Living(living));
        }
    }

    pub fn owner_is_up(&self) -> bool {
        self.owner.is_some_and(|epoch| self.owners.contains_key(&epoch))
    }

    /// The owner knows the sessions that there are, and no others.
    pub fn owner_knows_who_is_there(&self) -> Check {
        let owner = self.owner.and_then(|epoch| self.owners.get(&epoch)).ok_or("nobody has the partition")?;
        let there: usize = self.gateways.iter().map(|gateway| gateway.sessions.len()).sum();
        if owner.core.sessions() != there {
            return Err(format!("the owner knows {} sessions, and there are {there}", owner.core.sessions()));
        }
        Ok(())
    }
}
