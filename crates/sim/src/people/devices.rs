//! Devices: they connect and disconnect, read their frames, acknowledge after a delay, and check what they receive.

use std::collections::BTreeSet;

use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::{Arrival, Delivery, DeliveryPosition, Resume};
use whimbrel_people::carrier::partition::user_epoch;

use super::truth::SeatKey;
use super::world::{INBOX_EPOCH, PeopleWorld, ScheduledEvent, USERS, user_name};
use crate::CheckResult;

/// The maximum time of a frame from gateway to device.
const WIRE_MS_MAX: u64 = 20;
/// The maximum delay of an acknowledgement of a late device.
const LATE_MS_MAX: u64 = 3_000;
/// The maximum time until a gateway notices a lost connection.
const UNSEEN_MS_MAX: u64 = 1_000;
/// The devices of each user: platform and number.
const KINDS: [(&str, usize); 4] = [("web", 2), ("ios", 3), ("tv", 2), ("bare", 1)];

#[derive(Debug)]
pub(super) enum DeviceFrame {
    Connected { cursor: u64, resumed: bool },
    Message(Delivery),
    Truncated { from: u64, to: u64, prev: u64 },
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    Promptly,
    Late,
    Never,
}

pub struct SimDevice {
    pub uid: Uid,
    pub platform: Platform,
    pub name: String,
    pub seat: SeatKey,
    /// The number of the device among those of its kind.
    pub place: usize,
    /// The last message that the device has; it resumes from there.
    cursor: Option<u64>,
    pub session: Option<u64>,
    acks: AckMode,
    /// The highest number that the device received in this session.
    received: u64,
    is_admitted: bool,
    seen: BTreeSet<u64>,
    ephemeral: BTreeSet<u64>,
    last_frame_at: u64,
}

impl SimDevice {
    pub fn keeps(&self) -> bool {
        self.platform.as_str() != "bare"
    }
}

impl PeopleWorld {
    pub(super) fn make_devices(&mut self) {
        for user in 0..USERS {
            for (kind, count) in KINDS {
                for place in 0..count {
                    let (uid, platform) = (user_name(user), Platform::new(kind).expect("a valid name"));
                    let name = format!("{kind}-{place}");
                    let seat_device = if kind == "ios" { name.clone() } else { String::new() };
                    let seat = (uid.clone(), platform.clone(), seat_device);
                    let device = SimDevice {
                        uid,
                        platform,
                        name,
                        seat,
                        place,
                        cursor: None,
                        session: None,
                        acks: AckMode::Promptly,
                        received: 0,
                        is_admitted: false,
                        seen: BTreeSet::new(),
                        ephemeral: BTreeSet::new(),
                        last_frame_at: 0,
                    };
                    if device.keeps() {
                        self.truth.add_seat(device.seat.clone());
                    }
                    self.devices.push(device);
                }
            }
        }
    }

    /// Connects a device that is offline. Some resume, some do not.
    pub fn connect(&mut self, device: usize, resumes: bool, acks: AckMode) {
        let alive: Vec<usize> = (0..self.gateways.len()).filter(|at| self.gateways[*at].id.is_some()).collect();
        if self.devices[device].session.is_some() || alive.is_empty() {
            return;
        }
        let gateway = *self.rng.pick(&alive);
        self.sessions.last += 1;
        self.counts.sessions += 1;
        let (session, at) = (self.sessions.last, self.clock());
        let it = &mut self.devices[device];
        (it.session, it.acks, it.is_admitted, it.received) = (Some(session), acks, false, 0);
        it.seen.clear();
        it.ephemeral.clear();
        let cursor = it.cursor.filter(|_| resumes);
        let resume = cursor.map(|cursor| Resume { epoch: user_epoch(INBOX_EPOCH, &it.uid).into(), cursor });
        let (uid, platform, name) = (it.uid.clone(), it.platform.clone(), it.name.clone());
        self.note(|| {
            format!("{uid} {name} connects to {gateway} as session {session}, resumes {cursor:?}, acks {acks:?}")
        });
        let arrival = Arrival { session, uid, platform, device: name.into(), resume, at };
        self.accept(gateway, device, arrival);
    }

    /// Ends the connection of the device. Its gateway notices later.
    pub fn disconnect(&mut self, device: usize) {
        let Some(session) = self.devices[device].session.take() else { return };
        self.note(|| format!("session {session} disconnects"));
        self.soon(UNSEEN_MS_MAX, ScheduledEvent::Ended { session });
    }

    /// Ends the connection because the gateway is gone.
    pub(super) fn drop_connection(&mut self, session: u64) {
        if let Some(device) = self.devices.iter_mut().find(|device| device.session == Some(session)) {
            device.session = None;
        }
    }

    pub(super) fn send_frame(&mut self, device: usize, session: u64, frame: DeviceFrame) {
        let at = self.now + self.rng.between(1, WIRE_MS_MAX);
        let last = &mut self.devices[device].last_frame_at;
        *last = at.max(*last);
        let at = *last;
        self.at(at, ScheduledEvent::ToDevice { device, session, frame });
    }

    pub(super) fn device_gets(&mut self, device: usize, session: u64, frame: DeviceFrame) -> CheckResult {
        let it = &mut self.devices[device];
        if it.session != Some(session) {
            return Ok(());
        }
        let who = format!("session {session} of {} {}", it.uid, it.name);
        match frame {
            DeviceFrame::Connected { cursor, resumed } => {
                (it.is_admitted, it.received) = (true, cursor);
                self.counts.resumed += u64::from(resumed);
                self.note(|| format!("{who} is connected at {cursor}, resumed: {resumed}"));
                Ok(())
            }
            DeviceFrame::Closed => {
                it.session = None;
                Ok(())
            }
            DeviceFrame::Message(delivery) => self.device_reads(device, session, &delivery, &who),
            DeviceFrame::Truncated { from, to, prev } => {
                if prev > it.received {
                    return Err(format!(
                        "{who} receives the lost range {from} to {to} after {prev}, and has {}",
                        it.received
                    ));
                }
                it.received = it.received.max(to);
                it.cursor = Some(it.received);
                let seat = it.seat.clone();
                self.counts.truncated += 1;
                self.note(|| format!("{who} has lost {from} to {to}"));
                self.truth.is_truncated(&seat, from, to)?;
                self.will_ack(device, session);
                Ok(())
            }
        }
    }

    fn device_reads(&mut self, device: usize, session: u64, delivery: &Delivery, who: &str) -> CheckResult {
        let it = &mut self.devices[device];
        if !it.is_admitted {
            return Err(format!("{who} gets a message before it is connected"));
        }
        let (seq, prev) = match delivery.place {
            DeliveryPosition::Stored { seq, prev } => (seq, prev),
            DeliveryPosition::Ephemeral { place } => {
                self.counts.ephemeral += 1;
                let is_new = it.ephemeral.insert(place);
                return if is_new { Ok(()) } else { Err(format!("{who} receives the ephemeral push {place} twice")) };
            }
        };
        if !it.keeps() {
            return Err(format!("{who} stores nothing, and receives {seq} as stored"));
        }
        if prev > it.received {
            return Err(format!("{who} receives {seq} after {prev}, and has received {}", it.received));
        }
        if !delivery.again && (seq <= it.received || !it.seen.insert(seq)) {
            return Err(format!("{who} receives {seq} again, and has received {}", it.received));
        }
        it.seen.insert(seq);
        it.received = it.received.max(seq);
        it.cursor = Some(it.received);
        let (seat, again) = (it.seat.clone(), delivery.again);
        self.note(|| format!("{who} sees {seq} after {prev}, again: {again}"));
        let is_first = self.truth.sees(&seat, seq, &delivery.message.id, &delivery.message.payload)?;
        if is_first {
            self.counts.seen += 1
        } else {
            self.counts.seen_again += 1
        }
        self.will_ack(device, session);
        Ok(())
    }

    fn will_ack(&mut self, device: usize, session: u64) {
        let upto = self.devices[device].received;
        match self.devices[device].acks {
            AckMode::Promptly => self.soon(20, ScheduledEvent::Ack { device, session, upto }),
            AckMode::Late if self.rng.one_in(3) => {}
            AckMode::Late => self.soon(LATE_MS_MAX, ScheduledEvent::Ack { device, session, upto }),
            AckMode::Never => {}
        }
    }

    pub(super) fn device_acks(&mut self, device: usize, session: u64, upto: u64) {
        if self.devices[device].session == Some(session) {
            self.receive_ack(session, upto);
        }
    }
}
