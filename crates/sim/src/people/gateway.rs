//! A gateway: the real states of its sessions, and the work of its lane with their events.

use std::collections::BTreeMap;

use whimbrel_model::people::{CloseCode, GatewayId};
use whimbrel_model::ports::{Arrival, Delivery, DeliveryPosition, ToCarrier, ToGateway};
use whimbrel_people::gateway::{
    DeliveryOutcome, DeviceIdentity, Format, GatewaySettings, SessionPhase, SessionState, Tick,
};

use super::devices::DeviceFrame;
use super::profile::PeopleProfile;
use super::world::{PeopleWorld, ScheduledEvent};
use crate::CheckResult;

/// The interval in which a lane retries its pending work.
const TICK_MS: u64 = 125;
/// The maximum time that a session waits for admission.
const OWNER_WAIT_MS: u64 = 5_000;
/// Bytes that may wait for a device; simulated devices read at once.
const ROOM: usize = 1 << 30;
/// A session that has acknowledged everything for this long must not be closed for a missing acknowledgement.
const ACKED_LONG_MS: u64 = 4_000;

#[derive(Default)]
pub struct SimGateway {
    /// `None` while the gateway is dead.
    pub id: Option<GatewayId>,
    pub(super) sessions: BTreeMap<u64, SimSession>,
    /// The owner and the stream to it, as the gateway sees them. `tenure` is the number of that route.
    pub(super) route: Option<(u64, u64)>,
    tenure: u64,
    /// The highest owner epoch that the gateway has seen.
    believes: u64,
    untold: Vec<u64>,
}

pub(super) struct SimSession {
    device: usize,
    state: SessionState,
    since: u64,
    /// Sent messages that the device has not acknowledged.
    unacked: Vec<u64>,
    acked_all_at: u64,
}

impl SimGateway {
    /// The states of the sessions, by number.
    pub(super) fn states(&self) -> impl Iterator<Item = (u64, &SessionState)> {
        self.sessions.iter().map(|(number, session)| (*number, &session.state))
    }
}

fn tick(now: u64) -> Tick {
    Tick(u32::try_from(now / TICK_MS).unwrap_or(u32::MAX))
}

impl PeopleWorld {
    /// Accepts a device that has connected and identified itself.
    pub(super) fn accept(&mut self, gateway: usize, device: usize, arrival: Arrival) {
        let settings = GatewaySettings::default();
        let mut state = SessionState::new(Format::SocketJson, false, tick(self.now), &settings);
        let identity = DeviceIdentity {
            uid: arrival.uid,
            platform: arrival.platform,
            device: arrival.device,
            at: arrival.at,
            partition: 0,
            announced_in: None,
            resume: arrival.resume.map(Box::new),
            epoch: None,
        };
        state.arrive(identity, Tick::NEVER, tick(self.now), &settings);
        let since = self.now;
        let session = SimSession { device, state, since, unacked: Vec::new(), acked_all_at: since };
        self.gateways[gateway].sessions.insert(arrival.session, session);
        self.introduce(gateway, arrival.session);
    }

    fn introduce(&mut self, gateway: usize, number: u64) {
        let at = &mut self.gateways[gateway];
        let tenure = at.route.map(|_| at.tenure);
        let Some(session) = at.sessions.get_mut(&number) else { return };
        if tenure.is_some() && session.state.identity.as_ref().is_some_and(|identity| identity.announced_in == tenure) {
            return;
        }
        let Some((_, message)) = session.state.introduction(number, tenure) else { return };
        let is_announced = matches!(message, ToCarrier::Announce(_));
        if is_announced && self.profile == PeopleProfile::NoAnnounce {
            return;
        }
        if !self.send_up(gateway, vec![message]) {
            let at = &mut self.gateways[gateway];
            let session = at.sessions.get_mut(&number);
            session
                .and_then(|session| session.state.identity.as_mut())
                .iter_mut()
                .for_each(|identity| identity.announced_in = None);
            at.untold.push(number);
        }
    }

    /// Introduces all sessions again under a new id of the gateway.
    pub(super) fn introduce_all(&mut self, gateway: usize) {
        let numbers: Vec<u64> = self.gateways[gateway].sessions.keys().copied().collect();
        for number in numbers {
            let session = self.gateways[gateway].sessions.get_mut(&number);
            session
                .and_then(|session| session.state.identity.as_mut())
                .iter_mut()
                .for_each(|identity| identity.announced_in = None);
            self.introduce(gateway, number);
        }
    }

    /// The gateway sees the owner, over a stream that is new to it.
    pub(super) fn route(&mut self, gateway: usize, epoch: u64, stream: u64) {
        let is_there = self.links.streams.get(&(epoch, gateway)) == Some(&stream) && self.owners.current == Some(epoch);
        let at = &mut self.gateways[gateway];
        if !is_there || at.id.is_none() || at.route == Some((epoch, stream)) {
            return;
        }
        at.route = Some((epoch, stream));
        at.believes = at.believes.max(epoch);
        at.tenure += 1;
        let numbers: Vec<u64> = at.sessions.keys().copied().collect();
        self.note(|| format!("gateway {gateway} sees owner {epoch}"));
        numbers.into_iter().for_each(|number| self.introduce(gateway, number));
    }

    pub(super) fn gateway_tick(&mut self, gateway: usize) {
        self.later(TICK_MS, ScheduledEvent::GatewayTick { gateway });
        for number in std::mem::take(&mut self.gateways[gateway].untold) {
            self.introduce(gateway, number);
        }
        let late = |session: &SimSession| {
            session.state.phase == SessionPhase::Arriving && self.now - session.since > OWNER_WAIT_MS
        };
        let late: Vec<u64> = self.gateways[gateway].sessions.iter().filter(|(_, s)| late(s)).map(|(n, _)| *n).collect();
        late.into_iter().for_each(|number| self.close(gateway, number, CloseCode::NoOwner));
    }

    pub(super) fn take_batch(&mut self, gateway: usize, epoch: u64, news: Vec<ToGateway>) -> CheckResult {
        if self.gateways[gateway].believes > epoch {
            self.counts.faults.older_epochs += 1;
            return Ok(());
        }
        self.gateways[gateway].believes = epoch;
        news.into_iter().try_for_each(|one| self.take_one(gateway, one))
    }

    fn take_one(&mut self, gateway: usize, mut news: ToGateway) -> CheckResult {
        let number = news.session();
        let now = self.now;
        let Some(session) = self.gateways[gateway].sessions.get_mut(&number) else { return Ok(()) };
        if self.profile == PeopleProfile::NoGaps {
            forget_prev(&mut news);
        }
        let mut is_gap = false;
        let (device, state) = (session.device, &mut session.state);
        let frame = match news {
            ToGateway::Admitted(admitted) => {
                let is_news = state.admit(admitted.epoch.clone(), admitted.cursor);
                is_news.then_some(DeviceFrame::Connected { cursor: admitted.cursor, resumed: admitted.resumed })
            }
            ToGateway::Rejected { code, .. } => {
                self.close(gateway, number, code);
                None
            }
            ToGateway::Kick { code, .. } => {
                self.counts.kicks += 1;
                let has_acked = session.unacked.is_empty() && now - session.acked_all_at > ACKED_LONG_MS;
                if code == CloseCode::NoAck && has_acked {
                    return Err(format!("session {number} is closed without a missing acknowledgement"));
                }
                if self.profile != PeopleProfile::NoKicks {
                    self.close(gateway, number, code);
                }
                None
            }
            ToGateway::Truncated { from, to, prev, .. } if state.phase == SessionPhase::Admitted => {
                is_gap = state.is_gap(prev);
                if !is_gap {
                    state.was_answered();
                    state.skip_to(to);
                }
                (!is_gap).then_some(DeviceFrame::Truncated { from, to, prev })
            }
            ToGateway::Truncated { .. } => None,
            ToGateway::Lost { .. } => return Err("the simulated links drop no message".to_owned()),
            ToGateway::Deliver(delivery) => match state.deliver(&delivery, ROOM, tick(now)) {
                DeliveryOutcome::Queued => {
                    state.was_answered();
                    note_sent(session, &delivery);
                    Some(DeviceFrame::Message(delivery))
                }
                DeliveryOutcome::Gap => {
                    is_gap = true;
                    None
                }
                DeliveryOutcome::LeftOut => None,
                DeliveryOutcome::Dropped | DeliveryOutcome::Full => {
                    return Err("the simulated gateway has no limit".to_owned());
                }
            },
        };
        if is_gap {
            self.counts.faults.gaps += 1;
            self.ask_again(gateway, number);
        }
        if let Some(frame) = frame {
            if let Some(session) = self.gateways[gateway].sessions.get_mut(&number) {
                session.state.take_waiting(tick(now));
            }
            self.send_frame(device, number, frame);
        }
        Ok(())
    }

    fn ask_again(&mut self, gateway: usize, number: u64) {
        let Some(session) = self.gateways[gateway].sessions.get_mut(&number) else { return };
        if session.state.asks(tick(self.now)) {
            // It was already introduced in this tenure; introduce it again.
            session.state.identity.iter_mut().for_each(|identity| identity.announced_in = None);
            self.introduce(gateway, number);
        }
    }

    pub(super) fn gateway_of(&self, session: u64) -> Option<usize> {
        self.gateways.iter().position(|gateway| gateway.sessions.contains_key(&session))
    }

    /// Processes an acknowledgement of the device.
    pub(super) fn receive_ack(&mut self, number: u64, upto: u64) {
        let Some(gateway) = self.gateway_of(number) else { return };
        let Some(session) = self.gateways[gateway].sessions.get_mut(&number) else { return };
        let Ok(true) = session.state.ack(upto) else { return };
        session.unacked.retain(|seq| *seq > upto);
        if session.unacked.is_empty() {
            session.acked_all_at = self.now;
        }
        let Some(uid) = session.state.identity.as_ref().map(|identity| identity.uid.clone()) else { return };
        self.counts.acks += 1;
        self.send_up(gateway, vec![ToCarrier::Ack { session: number, uid, upto }]);
    }

    /// Ends the session.
    pub(super) fn close(&mut self, gateway: usize, number: u64, code: CloseCode) {
        let Some(session) = self.gateways[gateway].sessions.get(&number) else { return };
        let device = session.device;
        self.note(|| format!("session {number} is closed: {}", code.word()));
        self.send_frame(device, number, DeviceFrame::Closed);
        self.session_ended(number);
    }

    /// Removes a session whose connection has ended.
    pub(super) fn session_ended(&mut self, number: u64) {
        let Some(gateway) = self.gateway_of(number) else { return };
        let Some(session) = self.gateways[gateway].sessions.remove(&number) else { return };
        if let Some(identity) = session.state.identity {
            self.send_up(gateway, vec![ToCarrier::Gone { session: number, uid: identity.uid }]);
        }
    }

    /// The number of connected sessions by user and platform.
    pub fn connected(&self) -> BTreeMap<(String, String), usize> {
        let mut there = BTreeMap::new();
        for session in self.gateways.iter().flat_map(|gateway| gateway.sessions.values()) {
            let device = &self.devices[session.device];
            let platform = device.platform.as_str().to_owned();
            *there.entry((device.uid.as_str().to_owned(), platform)).or_default() += 1;
        }
        there
    }
}

/// Records a message that the device must acknowledge.
fn note_sent(session: &mut SimSession, delivery: &Delivery) {
    let DeliveryPosition::Stored { seq, .. } = delivery.place else { return };
    if !session.unacked.contains(&seq) {
        session.unacked.push(seq);
    }
}

/// A breakage: hides the number before, so that no gateway detects a gap.
fn forget_prev(news: &mut ToGateway) {
    match news {
        ToGateway::Deliver(delivery) => {
            if let DeliveryPosition::Stored { prev, .. } = &mut delivery.place {
                *prev = 0;
            }
        }
        ToGateway::Truncated { prev, .. } => *prev = 0,
        _ => {}
    }
}
