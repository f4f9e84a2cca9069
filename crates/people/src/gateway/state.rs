//! What a gateway knows of one connection, and the decisions about it: pure, with the time passed in.
//!
//! It is small, because there are many: what only a device that has said who it is needs is in a box of its own ([`Who`]), and the queue
//! is empty, without memory, while nothing waits.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, Platform, Uid};
use whimbrel_model::ports::{Announced, Arrival, Delivery, DeliveryPlace, Resume, ToCarrier};

use super::frames::{Format, Mark, Says, encode_message, message_bytes};
use super::settings::GatewaySettings;
use super::websocket::{Decoder, Role};
use super::wheel::Tick;

/// How long a device has to take the close frame and to answer it.
const CLOSING_WAIT: Duration = Duration::from_secs(3);
/// How long a session that has a gap waits for what it asked for. The answer may be lost as well: then the next gap asks again.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// What a frame has beside the message's shared part, at most.
const FRAMING_BYTES: usize = 192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It has not said who it is.
    Opening,
    /// The owner of its user's partition has not let it in yet.
    Arriving,
    Admitted,
    /// It was told that it is closed.
    Closing,
    Over,
}

/// Who is connected.
#[derive(Debug)]
pub struct Who {
    pub uid: Uid,
    pub platform: Platform,
    pub device: Box<str>,
    pub at: Timestamp,
    pub partition: u32,
    /// The tenure that its owner was told of it in.
    pub told: Option<u64>,
    /// Until it is admitted.
    pub resume: Option<Box<Resume>>,
    /// From when it is admitted.
    pub epoch: Option<Arc<str>>,
}

#[derive(Debug)]
pub struct State {
    pub(super) decoder: Decoder,
    pub(super) format: Format,
    pub phase: Phase,
    /// The peer is on this machine.
    pub(super) is_local: bool,
    /// It was asked whether it is there, and has until `deadline`.
    is_pinged: bool,
    /// Somebody waits until the device has read something.
    pub(super) is_flushing: bool,
    /// It is among those that are written to at the end of the batch.
    pub(super) is_dirty: bool,
    /// Its owner was asked to send on from what it has, and has until then to do so.
    asked_until: Tick,
    /// Something was missing before then; it may have been the answer.
    asks_late: bool,
    /// Something stored had no room: its owner is asked for it when the device has read what waits.
    wants_room: bool,
    heard_at: Tick,
    /// When it is looked at next.
    pub(super) check_at: Tick,
    deadline: Tick,
    /// When its token does.
    expires: Tick,
    /// When the device last read something, or something began to wait for it.
    moved_at: Tick,
    /// Ephemeral messages that it has not been told to have lost.
    lost: u32,
    /// The highest number that it was sent, and that it acknowledged; the highest ephemeral place.
    sent: u64,
    acked: u64,
    place: u64,
    queue: Vec<u8>,
    queue_start: usize,
    pub who: Option<Box<Who>>,
}

/// What is to be done about a connection at its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing before then.
    Wait(Tick),
    /// It was silent for long.
    Ping,
    Close(CloseCode, &'static str),
    /// It has had its time to take the close frame.
    Cut,
    Nothing,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    Queued,
    /// It has it already, or is not there for it.
    LeftOut,
    /// Stored, and something before it was lost on the way here.
    Gap,
    /// Ephemeral, and there was no room.
    Dropped,
    /// Stored, and there was no room: it is asked for when there is ([`State::made_room`]).
    Full,
}

impl State {
    pub fn new(format: Format, is_local: bool, now: Tick, settings: &GatewaySettings) -> Self {
        Self {
            decoder: Decoder::new(Role::Server),
            format,
            phase: Phase::Opening,
            is_local,
            is_pinged: false,
            is_flushing: false,
            is_dirty: false,
            heard_at: now,
            check_at: Tick::NEVER,
            deadline: now.after(settings.handshake_wait),
            expires: Tick::NEVER,
            moved_at: now,
            lost: 0,
            asked_until: Tick(0),
            asks_late: false,
            wants_room: false,
            sent: 0,
            acked: 0,
            place: 0,
            queue: Vec::new(),
            queue_start: 0,
            who: None,
        }
    }

    pub fn is_here(&self) -> bool {
        matches!(self.phase, Phase::Arriving | Phase::Admitted)
    }

    /// Something came from the device.
    pub(super) fn heard(&mut self, now: Tick) {
        (self.heard_at, self.is_pinged) = (now, false);
    }

    /// It said who it is, and that is true.
    pub fn arrive(&mut self, who: Who, expires: Tick, now: Tick, settings: &GatewaySettings) {
        self.who = Some(Box::new(who));
        self.expires = expires;
        self.phase = Phase::Arriving;
        self.deadline = now.after(settings.owner_wait);
    }

    pub(super) fn refreshed(&mut self, expires: Tick) {
        self.expires = expires;
    }

    /// The owner lets it in, reading on from `cursor`. `false` where it is not waiting for that.
    pub fn admit(&mut self, epoch: Arc<str>, cursor: u64) -> bool {
        let Some(who) = self.who.as_mut().filter(|_| self.phase == Phase::Arriving) else { return false };
        (who.resume, who.epoch) = (None, Some(epoch));
        (self.phase, self.sent, self.acked) = (Phase::Admitted, cursor, cursor);
        true
    }

    /// What its owner is told of it, as it stands now.
    pub fn introduction(&mut self, session: u64, tenure: Option<u64>) -> Option<(u32, ToCarrier)> {
        let who = self.who.as_mut()?;
        who.told = tenure;
        let arrival = Arrival {
            session,
            uid: who.uid.clone(),
            platform: who.platform.clone(),
            device: who.device.clone(),
            resume: who.resume.as_deref().cloned(),
            at: who.at,
        };
        let told = match (self.phase, &who.epoch) {
            (Phase::Arriving, _) => ToCarrier::Arrive(Box::new(arrival)),
            (Phase::Admitted, Some(epoch)) => {
                let (epoch, sent, acked) = (Arc::clone(epoch), self.sent, self.acked);
                ToCarrier::Announce(Box::new(Announced { arrival, epoch, sent, acked }))
            }
            _ => return None,
        };
        Some((who.partition, told))
    }

    /// An acknowledgement; `Ok(true)` where it is news. `Err`: the highest number that could be.
    pub fn ack(&mut self, upto: u64) -> Result<bool, u64> {
        if upto > self.sent {
            return Err(self.sent);
        }
        let is_news = upto > self.acked;
        self.acked = self.acked.max(upto);
        Ok(is_news)
    }

    /// Everything up to there was sent or is gone.
    pub fn skip_to(&mut self, seq: u64) {
        self.sent = self.sent.max(seq);
    }

    pub fn deliver(&mut self, delivery: &Delivery, room: usize, now: Tick) -> Delivered {
        if self.phase != Phase::Admitted {
            return Delivered::LeftOut;
        }
        let is_known = match delivery.place {
            DeliveryPlace::Stored { seq, .. } => seq <= self.acked || (seq <= self.sent && !delivery.again),
            DeliveryPlace::Ephemeral { place } => place <= self.place,
        };
        if is_known {
            return Delivered::LeftOut;
        }
        if let DeliveryPlace::Stored { seq, prev } = delivery.place
            // What is tried again and never came was lost on the way, maybe with what its owner would have told in between.
            && (self.is_gap(prev) || seq > self.sent && delivery.again)
        {
            return Delivered::Gap;
        }
        let has_room = self.has_room(message_bytes(self.format, &delivery.message), room);
        match delivery.place {
            DeliveryPlace::Stored { seq, .. } if !has_room => {
                // What was sent before, and is so again, its owner tries once more by itself.
                self.wants_room |= seq > self.sent;
                return Delivered::Full;
            }
            DeliveryPlace::Stored { seq, .. } => self.sent = self.sent.max(seq),
            DeliveryPlace::Ephemeral { place } => self.place = place,
        }
        if !has_room {
            self.count_lost(1);
            return Delivered::Dropped;
        }
        self.tell_lost(now);
        self.begin_waiting(now);
        let epoch = epoch_of(self.who.as_deref());
        encode_message(&mut self.queue, self.format, epoch, delivery.place, &delivery.message);
        Delivered::Queued
    }

    /// Whether the owner is to be asked, now, to send on from what the device has. While something waits for room that has to wait too.
    pub fn asks(&mut self, now: Tick) -> bool {
        let is_early = now < self.asked_until;
        let asks = !self.wants_room && !is_early;
        self.asks_late = !self.wants_room && is_early;
        if asks {
            self.asked_until = now.after(ANSWER_WAIT);
        }
        asks
    }

    /// When it is to be asked once more, unless it has answered by then: something was missing when it had just been asked.
    pub fn asks_at(&self) -> Option<Tick> {
        (self.asks_late && self.phase == Phase::Admitted).then_some(self.asked_until)
    }

    /// The owner has sent on.
    pub fn was_answered(&mut self) {
        (self.asked_until, self.asks_late) = (Tick(0), false);
    }

    /// Whether nothing waits any more, and the owner is to be asked for what had no room.
    pub(super) fn made_room(&mut self) -> bool {
        let made_room = self.waiting().is_empty() && std::mem::take(&mut self.wants_room);
        // What had no room may have been the answer to an earlier question.
        if made_room {
            self.was_answered();
        }
        made_room
    }

    /// Whether something was lost on the way here before what comes after that number.
    pub fn is_gap(&self, prev: u64) -> bool {
        prev > self.sent
    }

    /// Says how many were lost, where any were and there may be room.
    pub(super) fn tell_lost(&mut self, now: Tick) {
        if self.lost > 0 && self.phase == Phase::Admitted {
            let count = u64::from(std::mem::take(&mut self.lost));
            self.say(&Says::Lost { count }, now);
        }
    }

    /// So many were dropped before they got here.
    pub fn count_lost(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(super) fn say(&mut self, says: &Says<'_>, now: Tick) {
        self.begin_waiting(now);
        says.encode(&mut self.queue, self.format, None);
    }

    /// The same, where a device that has had it reads on behind that number.
    pub(super) fn say_at(&mut self, says: &Says<'_>, seq: u64, now: Tick) {
        self.begin_waiting(now);
        let mark = Mark { epoch: epoch_of(self.who.as_deref()), seq };
        says.encode(&mut self.queue, self.format, Some(mark));
    }

    /// Bytes that are already what the way of connecting needs.
    pub(super) fn say_raw(&mut self, now: Tick, write: impl FnOnce(&mut Vec<u8>)) {
        self.begin_waiting(now);
        write(&mut self.queue);
    }

    /// Whether so many more bytes may wait. A single one may be of any size.
    pub(super) fn has_room(&self, bytes: usize, room: usize) -> bool {
        let waiting = self.waiting().len();
        waiting == 0 || waiting + bytes + FRAMING_BYTES <= room
    }

    fn begin_waiting(&mut self, now: Tick) {
        if self.waiting().is_empty() {
            self.moved_at = now;
        }
    }

    /// What waits to be written.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.queue[self.queue_start..]
    }

    /// So much of it was. Nothing is kept of an empty queue.
    pub(super) fn written(&mut self, count: usize, now: Tick) {
        self.queue_start += count;
        self.moved_at = now;
        if self.queue_start == self.queue.len() {
            (self.queue, self.queue_start) = (Vec::new(), 0);
        } else if self.queue_start > self.queue.len() / 2 {
            self.queue.drain(..self.queue_start);
            self.queue_start = 0;
        }
    }

    /// All that waits, for whoever writes it.
    pub fn take_waiting(&mut self, now: Tick) -> Vec<u8> {
        self.moved_at = now;
        let start = std::mem::take(&mut self.queue_start);
        let mut all = std::mem::take(&mut self.queue);
        all.drain(..start);
        all
    }

    /// Tells it that it is closed. `false` where it was told before.
    pub fn close(&mut self, code: u16, reason: &str, now: Tick) -> bool {
        if matches!(self.phase, Phase::Closing | Phase::Over) {
            return false;
        }
        self.say(&Says::Close { code, reason }, now);
        self.phase = Phase::Closing;
        self.deadline = now.after(CLOSING_WAIT);
        true
    }

    /// What is to be done about it now.
    pub(super) fn look(&mut self, now: Tick, settings: &GatewaySettings) -> Look {
        let is_due = now >= self.deadline;
        match self.phase {
            Phase::Over => return Look::Nothing,
            Phase::Closing => return if is_due { Look::Cut } else { Look::Wait(self.deadline) },
            Phase::Opening if is_due => return Look::Close(CloseCode::BadFrame, "no `connect` came in time"),
            Phase::Arriving if is_due => return Look::Close(CloseCode::NoOwner, ""),
            Phase::Opening => return Look::Wait(self.deadline),
            Phase::Arriving => return Look::Wait(self.deadline.min(self.expires)),
            Phase::Admitted => {}
        }
        if now >= self.expires {
            return Look::Close(CloseCode::TokenExpired, "the token expired");
        }
        let stuck_at = if self.waiting().is_empty() { Tick::NEVER } else { self.moved_at.after(settings.stuck_wait) };
        if now >= stuck_at {
            return Look::Close(CloseCode::Slow, "nothing was read for too long");
        }
        let other = self.expires.min(stuck_at);
        if self.is_pinged {
            let silent = Look::Close(CloseCode::Silent, "a ping was not answered");
            return if is_due { silent } else { Look::Wait(self.deadline.min(other)) };
        }
        let ping_at = self.heard_at.after(settings.ping_interval);
        if now < ping_at {
            return Look::Wait(ping_at.min(other));
        }
        if self.format == Format::EventStream {
            // It has no way to answer.
            self.heard_at = now;
        } else {
            (self.is_pinged, self.deadline) = (true, now.after(settings.pong_wait));
        }
        Look::Ping
    }
}

/// The epoch of the inbox that a device reads, from when it is admitted.
fn epoch_of(who: Option<&Who>) -> &str {
    who.and_then(|who| who.epoch.as_deref()).unwrap_or_default()
}
