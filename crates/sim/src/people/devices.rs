//! Devices: they come and go, read what they are sent, acknowledge in their own time, and judge what they see.

use std::collections::BTreeSet;

use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::{Arrival, Delivery, DeliveryPlace, Resume};
use whimbrel_people::carrier::partition::user_epoch;

use super::Check;
use super::truth::SeatKey;
use super::world::{Event, INBOX_EPOCH, USERS, World, user_name};

/// How long a frame is on its way to a device at most.
const WIRE_MS_MAX: u64 = 20;
/// How long a device that takes its time takes to acknowledge at most.
const LATE_MS_MAX: u64 = 3_000;
/// How long it takes a gateway to see that a connection is gone.
const UNSEEN_MS_MAX: u64 = 1_000;
/// The devices of each user: platform and how many.
const KINDS: [(&str, usize); 4] = [("web", 2), ("ios", 3), ("tv", 2), ("bare", 1)];

#[derive(Debug)]
pub(super) enum Frame {
    Connected { cursor: u64, resumed: bool },
    Message(Delivery),
    Truncated { from: u64, to: u64, prev: u64 },
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    Promptly,
    Late,
    Never,
}

pub struct Device {
    pub uid: Uid,
    pub platform: Platform,
    pub name: String,
    pub seat: SeatKey,
    /// Which of its kind it is.
    pub place: usize,
    /// What it has, which it resumes from.
    cursor: Option<u64>,
    pub session: Option<u64>,
    acks: Acks,
    /// The highest number that it was told in this session.
    told: u64,
    is_admitted: bool,
    seen: BTreeSet<u64>,
    ephemeral: BTreeSet<u64>,
    last_frame_at: u64,
}

impl Device {
    pub fn keeps(&self) -> bool {
        self.platform.as_str() != "bare"
    }
}

impl World {
    pub(super) fn make_devices(&mut self) {
        for user in 0..USERS {
            for (kind, count) in KINDS {
                for place in 0..count {
                    let (uid, platform) = (user_name(user), Platform::new(kind).expect("a good name"));
                    let name = format!("{kind}-{place}");
                    let seat_device = if kind == "ios" { name.clone() } else { String::new() };
                    let seat = (uid.clone(), platform.clone(), seat_device);
                    let device = Device {
                        uid,
                        platform,
                        name,
                        seat,
                        place,
                        cursor: None,
                        session: None,
                        acks: Acks::Promptly,
                        told: 0,
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

    /// A device that is away connects; some resume, some do not.
    pub fn connect(&mut self, device: usize, resumes: bool, acks: Acks) {
        let alive: Vec<usize> = (0..self.gateways.len()).filter(|at| self.gateways[*at].id.is_some()).collect();
        if self.devices[device].session.is_some() || alive.is_empty() {
            return;
        }
        let gateway = *self.rng.pick(&alive);
        self.sessions += 1;
        self.report.sessions += 1;
        let (session, at) = (self.sessions, self.clock());
        let it = &mut self.devices[device];
        (it.session, it.acks, it.is_admitted, it.told) = (Some(session), acks, false, 0);
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

    /// The device's connection is gone; its gateway sees that later.
    pub fn disconnect(&mut self, device: usize) {
        let Some(session) = self.devices[device].session.take() else { return };
        self.note(|| format!("session {session} disconnects"));
        self.soon(UNSEEN_MS_MAX, Event::Ended { session });
    }

    /// The gateway is gone, and the connection with it.
    pub(super) fn connection_is_gone(&mut self, session: u64) {
        if let Some(device) = self.devices.iter_mut().find(|device| device.session == Some(session)) {
            device.session = None;
        }
    }

    pub(super) fn send_frame(&mut self, device: usize, session: u64, frame: Frame) {
        let at = self.now + self.rng.between(1, WIRE_MS_MAX);
        let last = &mut self.devices[device].last_frame_at;
        *last = at.max(*last);
        let at = *last;
        self.at(at, Event::ToDevice { device, session, frame });
    }

    pub(super) fn device_gets(&mut self, device: usize, session: u64, frame: Frame) -> Check {
        let it = &mut self.devices[device];
        if it.session != Some(session) {
            return Ok(());
        }
        let who = format!("session {session} of {} {}", it.uid, it.name);
        match frame {
            Frame::Connected { cursor, resumed } => {
                (it.is_admitted, it.told) = (true, cursor);
                self.report.resumed += u64::from(resumed);
                self.note(|| format!("{who} is connected at {cursor}, resumed: {resumed}"));
                Ok(())
            }
            Frame::Closed => {
                it.session = None;
                Ok(())
            }
            Frame::Message(delivery) => self.device_reads(device, session, &delivery, &who),
            Frame::Truncated { from, to, prev } => {
                if prev > it.told {
                    return Err(format!(
                        "{who} is told that {from} to {to} are lost after {prev}, and has {}",
                        it.told
                    ));
                }
                it.told = it.told.max(to);
                it.cursor = Some(it.told);
                let seat = it.seat.clone();
                self.report.truncated += 1;
                self.note(|| format!("{who} has lost {from} to {to}"));
                self.truth.is_truncated(&seat, from, to)?;
                self.will_ack(device, session);
                Ok(())
            }
        }
    }

    fn device_reads(&mut self, device: usize, session: u64, delivery: &Delivery, who: &str) -> Check {
        let it = &mut self.devices[device];
        if !it.is_admitted {
            return Err(format!("{who} gets a message before it is connected"));
        }
        let (seq, prev) = match delivery.place {
            DeliveryPlace::Stored { seq, prev } => (seq, prev),
            DeliveryPlace::Ephemeral { place } => {
                self.report.ephemeral += 1;
                let is_new = it.ephemeral.insert(place);
                return if is_new { Ok(()) } else { Err(format!("{who} sees {place} twice, which is not stored")) };
            }
        };
        if !it.keeps() {
            return Err(format!("{who} keeps nothing, and is sent {seq} as stored"));
        }
        if prev > it.told {
            return Err(format!("{who} is sent {seq} after {prev}, and was told {}", it.told));
        }
        if !delivery.again && (seq <= it.told || !it.seen.insert(seq)) {
            return Err(format!("{who} sees {seq} again, and was told {}", it.told));
        }
        it.seen.insert(seq);
        it.told = it.told.max(seq);
        it.cursor = Some(it.told);
        let (seat, again) = (it.seat.clone(), delivery.again);
        self.note(|| format!("{who} sees {seq} after {prev}, again: {again}"));
        let is_first = self.truth.sees(&seat, seq, &delivery.message.id, &delivery.message.payload)?;
        if is_first {
            self.report.seen += 1
        } else {
            self.report.seen_again += 1
        }
        self.will_ack(device, session);
        Ok(())
    }

    fn will_ack(&mut self, device: usize, session: u64) {
        let upto = self.devices[device].told;
        match self.devices[device].acks {
            Acks::Promptly => self.soon(20, Event::Ack { device, session, upto }),
            Acks::Late if self.rng.one_in(3) => {}
            Acks::Late => self.soon(LATE_MS_MAX, Event::Ack { device, session, upto }),
            Acks::Never => {}
        }
    }

    pub(super) fn device_acks(&mut self, device: usize, session: u64, upto: u64) {
        if self.devices[device].session == Some(session) {
            self.hear_ack(session, upto);
        }
    }
}
