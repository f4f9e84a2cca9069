//! The state of one connection and the decisions about it: pure, with the time passed in.
//!
//! It is small, because there are many: fields of identified devices are boxed ([`DeviceIdentity`]), and an empty queue has no memory.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, Platform, Uid};
use whimbrel_model::ports::{AnnouncedSession, Arrival, Delivery, DeliveryPosition, Resume, ToCarrier};

use super::frames::{EventId, Format, OutboundFrame, encode_message, message_bytes};
use super::gap_requests::GapRequests;
use super::output_queue::OutputQueue;
use super::settings::GatewaySettings;
use super::websocket::{Decoder, Role};
use super::wheel::Tick;

/// How long a device has to read the close frame and to answer it.
const CLOSING_WAIT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionPhase {
    /// The device has not identified itself yet.
    Opening,
    /// The owner of the user's partition has not admitted the session yet.
    Arriving,
    Admitted,
    /// The close frame was queued.
    Closing,
    Over,
}

#[derive(Debug)]
pub struct DeviceIdentity {
    pub uid: Uid,
    pub platform: Platform,
    pub device: Box<str>,
    pub at: Timestamp,
    pub partition: u32,
    /// The number of the tenure in which the session was announced.
    pub announced_in: Option<u64>,
    /// Cleared at the admission.
    pub resume: Option<Box<Resume>>,
    /// Set at the admission.
    pub epoch: Option<Arc<str>>,
}

#[derive(Debug)]
pub struct SessionState {
    pub(super) decoder: Decoder,
    pub(super) format: Format,
    pub phase: SessionPhase,
    /// The peer is on this machine.
    pub(super) is_local: bool,
    /// A ping is unanswered; the device has until `deadline`.
    is_pinged: bool,
    /// A task waits until the socket accepts bytes.
    pub(super) is_flushing: bool,
    /// It will be flushed at the end of the batch.
    pub(super) is_dirty: bool,
    gaps: GapRequests,
    heard_at: Tick,
    pub(super) check_at: Tick,
    deadline: Tick,
    expires: Tick,
    /// The highest numbers that were sent and acknowledged, and the highest place of an ephemeral message.
    sent: u64,
    acked: u64,
    place: u64,
    queue: OutputQueue,
    pub identity: Option<Box<DeviceIdentity>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DueAction {
    /// Nothing before then.
    Wait(Tick),
    /// The device was silent for too long.
    Ping,
    Close(CloseCode, &'static str),
    /// The device had its time to read the close frame.
    Cut,
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Queued,
    /// A duplicate, or the session is not admitted.
    LeftOut,
    /// Stored, and an earlier message was lost between carrier and gateway.
    Gap,
    /// Ephemeral, without room in the queue.
    Dropped,
    /// Stored, without room in the queue. Requested later ([`SessionState::made_room`]).
    Full,
}

impl SessionState {
    pub fn new(format: Format, is_local: bool, now: Tick, settings: &GatewaySettings) -> Self {
        Self {
            decoder: Decoder::new(Role::Server),
            format,
            phase: SessionPhase::Opening,
            is_local,
            is_pinged: false,
            is_flushing: false,
            is_dirty: false,
            heard_at: now,
            check_at: Tick::NEVER,
            deadline: now.after(settings.handshake_wait),
            expires: Tick::NEVER,
            gaps: GapRequests::NONE,
            sent: 0,
            acked: 0,
            place: 0,
            queue: OutputQueue::new(now),
            identity: None,
        }
    }

    pub fn is_here(&self) -> bool {
        matches!(self.phase, SessionPhase::Arriving | SessionPhase::Admitted)
    }

    pub(super) fn heard(&mut self, now: Tick) {
        (self.heard_at, self.is_pinged) = (now, false);
    }

    pub fn arrive(&mut self, identity: DeviceIdentity, expires: Tick, now: Tick, settings: &GatewaySettings) {
        self.identity = Some(Box::new(identity));
        self.expires = expires;
        self.phase = SessionPhase::Arriving;
        self.deadline = now.after(settings.owner_wait);
    }

    pub(super) fn refreshed(&mut self, expires: Tick) {
        self.expires = expires;
    }

    /// The owner admits the session, from `cursor`. `false` if the session does not wait for that.
    pub fn admit(&mut self, epoch: Arc<str>, cursor: u64) -> bool {
        let Some(identity) = self.identity.as_mut().filter(|_| self.phase == SessionPhase::Arriving) else {
            return false;
        };
        (identity.resume, identity.epoch) = (None, Some(epoch));
        (self.phase, self.sent, self.acked) = (SessionPhase::Admitted, cursor, cursor);
        true
    }

    /// The message that introduces the session to its owner, with the current state.
    pub fn introduction(&mut self, session: u64, tenure: Option<u64>) -> Option<(u32, ToCarrier)> {
        let identity = self.identity.as_mut()?;
        identity.announced_in = tenure;
        let arrival = Arrival {
            session,
            uid: identity.uid.clone(),
            platform: identity.platform.clone(),
            device: identity.device.clone(),
            resume: identity.resume.as_deref().cloned(),
            at: identity.at,
        };
        let told = match (self.phase, &identity.epoch) {
            (SessionPhase::Arriving, _) => ToCarrier::Arrive(Box::new(arrival)),
            (SessionPhase::Admitted, Some(epoch)) => {
                let (epoch, sent, acked) = (Arc::clone(epoch), self.sent, self.acked);
                ToCarrier::Announce(Box::new(AnnouncedSession { arrival, epoch, sent, acked }))
            }
            _ => return None,
        };
        Some((identity.partition, told))
    }

    /// Takes an acknowledgement. `Ok(true)` if the cursor moved. `Err`: the highest number that can be acknowledged.
    pub fn ack(&mut self, upto: u64) -> Result<bool, u64> {
        if upto > self.sent {
            return Err(self.sent);
        }
        let is_news = upto > self.acked;
        self.acked = self.acked.max(upto);
        Ok(is_news)
    }

    /// Everything up to there was sent or is lost.
    pub fn skip_to(&mut self, seq: u64) {
        self.sent = self.sent.max(seq);
    }

    pub fn deliver(&mut self, delivery: &Delivery, room: usize, now: Tick) -> DeliveryOutcome {
        if self.phase != SessionPhase::Admitted {
            return DeliveryOutcome::LeftOut;
        }
        let is_known = match delivery.place {
            DeliveryPosition::Stored { seq, .. } => seq <= self.acked || (seq <= self.sent && !delivery.again),
            DeliveryPosition::Ephemeral { place } => place <= self.place,
        };
        if is_known {
            return DeliveryOutcome::LeftOut;
        }
        if let DeliveryPosition::Stored { seq, prev } = delivery.place
            // A retried message that never arrived was lost, possibly together with reports of losses before it.
            && (self.is_gap(prev) || seq > self.sent && delivery.again)
        {
            return DeliveryOutcome::Gap;
        }
        let has_room = self.queue.has_room(message_bytes(self.format, &delivery.message), room);
        match delivery.place {
            DeliveryPosition::Stored { seq, .. } if !has_room => {
                // A message that was sent before is retried by its owner anyway.
                self.gaps.wants_room |= seq > self.sent;
                return DeliveryOutcome::Full;
            }
            DeliveryPosition::Stored { seq, .. } => self.sent = self.sent.max(seq),
            DeliveryPosition::Ephemeral { place } => self.place = place,
        }
        if !has_room {
            self.count_lost(1);
            return DeliveryOutcome::Dropped;
        }
        self.queue_losses(now);
        let epoch = epoch_of(self.identity.as_deref());
        encode_message(self.queue.end(now), self.format, epoch, delivery.place, &delivery.message);
        DeliveryOutcome::Queued
    }

    /// Whether to ask the owner now to continue from the session's position.
    pub fn asks(&mut self, now: Tick) -> bool {
        self.gaps.asks(now)
    }

    /// When to ask once more, unless the owner answers before.
    pub fn asks_at(&self) -> Option<Tick> {
        self.gaps.asks_at().filter(|_| self.phase == SessionPhase::Admitted)
    }

    /// The owner has continued.
    pub fn was_answered(&mut self) {
        self.gaps.answered();
    }

    /// Whether the queue is empty and the owner must be asked for messages that had no room.
    pub(super) fn made_room(&mut self) -> bool {
        self.waiting().is_empty() && self.gaps.made_room()
    }

    /// Whether a message was lost between carrier and gateway, if the next one follows `prev`.
    pub fn is_gap(&self, prev: u64) -> bool {
        prev > self.sent
    }

    /// Reports the number of lost messages to the device, if any.
    pub(super) fn queue_losses(&mut self, now: Tick) {
        if self.queue.lost > 0 && self.phase == SessionPhase::Admitted {
            let count = u64::from(std::mem::take(&mut self.queue.lost));
            self.queue_frame(&OutboundFrame::Lost { count }, now);
        }
    }

    /// Counts messages that were dropped before they reached this session.
    pub fn count_lost(&mut self, count: u64) {
        self.queue.lost = self.queue.lost.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(super) fn queue_frame(&mut self, says: &OutboundFrame<'_>, now: Tick) {
        says.encode(self.queue.end(now), self.format, None);
    }

    /// The same, with an event id: a device that received it resumes behind that number.
    pub(super) fn queue_frame_at(&mut self, says: &OutboundFrame<'_>, seq: u64, now: Tick) {
        let mark = EventId { epoch: epoch_of(self.identity.as_deref()), seq };
        says.encode(self.queue.end(now), self.format, Some(mark));
    }

    /// Queues bytes that are already in the transport's format.
    pub(super) fn queue_raw(&mut self, now: Tick, write: impl FnOnce(&mut Vec<u8>)) {
        write(self.queue.end(now));
    }

    pub(super) fn has_room(&self, bytes: usize, room: usize) -> bool {
        self.queue.has_room(bytes, room)
    }

    pub(super) fn waiting(&self) -> &[u8] {
        self.queue.waiting()
    }

    pub(super) fn written(&mut self, count: usize, now: Tick) {
        self.queue.written(count, now);
    }

    pub fn take_waiting(&mut self, now: Tick) -> Vec<u8> {
        self.queue.take(now)
    }

    /// Queues the close frame. `false` if it was queued before.
    pub fn close(&mut self, code: u16, reason: &str, now: Tick) -> bool {
        if matches!(self.phase, SessionPhase::Closing | SessionPhase::Over) {
            return false;
        }
        self.queue_frame(&OutboundFrame::Close { code, reason }, now);
        self.phase = SessionPhase::Closing;
        self.deadline = now.after(CLOSING_WAIT);
        true
    }

    pub(super) fn due_action(&mut self, now: Tick, settings: &GatewaySettings) -> DueAction {
        let is_due = now >= self.deadline;
        match self.phase {
            SessionPhase::Over => return DueAction::Nothing,
            SessionPhase::Closing => return if is_due { DueAction::Cut } else { DueAction::Wait(self.deadline) },
            SessionPhase::Opening if is_due => {
                return DueAction::Close(CloseCode::BadFrame, "timeout while waiting for `connect`");
            }
            SessionPhase::Arriving if is_due => return DueAction::Close(CloseCode::NoOwner, ""),
            SessionPhase::Opening => return DueAction::Wait(self.deadline),
            SessionPhase::Arriving => return DueAction::Wait(self.deadline.min(self.expires)),
            SessionPhase::Admitted => {}
        }
        if now >= self.expires {
            return DueAction::Close(CloseCode::TokenExpired, "the token expired");
        }
        let stuck_at =
            if self.waiting().is_empty() { Tick::NEVER } else { self.queue.moved_at.after(settings.stuck_wait) };
        if now >= stuck_at {
            return DueAction::Close(CloseCode::Slow, "the device read nothing for too long");
        }
        let other = self.expires.min(stuck_at);
        if self.is_pinged {
            let silent = DueAction::Close(CloseCode::Silent, "no answer to a ping");
            return if is_due { silent } else { DueAction::Wait(self.deadline.min(other)) };
        }
        let ping_at = self.heard_at.after(settings.ping_interval);
        if now < ping_at {
            return DueAction::Wait(ping_at.min(other));
        }
        if self.format == Format::EventStream {
            // The device cannot answer on an event stream.
            self.heard_at = now;
        } else {
            (self.is_pinged, self.deadline) = (true, now.after(settings.pong_wait));
        }
        DueAction::Ping
    }
}

/// The epoch of a device's inbox. Empty before the admission.
fn epoch_of(identity: Option<&DeviceIdentity>) -> &str {
    identity.and_then(|identity| identity.epoch.as_deref()).unwrap_or_default()
}
