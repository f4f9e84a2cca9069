//! One connection: its input, its output, its end. WebSocket, event stream and gRPC share it.
//!
//! Lock order: a session's state first, then its lane's locks; no code takes a session's state while it holds a lock of a lane. Nothing
//! here blocks: unwritten bytes wait in the queue, and messages to carriers and presence go to the lane.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::net::TcpStream;
use whimbrel_model::people::{CloseCode, Platform, SessionId, Uid};
use whimbrel_model::ports::{Admitted, Delivery, ToCarrier, ToGateway};

use super::frames::{Format, InboundFrame, OutboundFrame, message_bytes};
use super::lane::{GatewayLane, LaneItem};
use super::shared::{ConnectionSlot, GatewayContext, IdentifiedDevice};
use super::state::{DeliveryOutcome, DeviceIdentity, DueAction, SessionPhase, SessionState};
use super::websocket::{Limits, MessageRef, Opcode, WsViolation, encode};
use super::wheel::Tick;

/// Bytes of the first frame, at most.
const OPENING_BYTES_MAX: usize = 16 << 10;
/// Minimum reconnect delay of a device that cannot be served.
const COME_BACK_AFTER_MS: u64 = 1_000;

/// The close code of RFC 6455 for a session that its device ended.
const CLOSED_NORMALLY: u16 = 1000;

pub(super) enum Transport {
    /// Any thread writes to it directly.
    Socket(TcpStream),
    /// A task polls for bytes.
    Polled(AtomicWaker),
}

pub(super) struct DeviceSession {
    pub(super) number: u64,
    pub(super) transport: Transport,
    lane: Arc<GatewayLane>,
    state: Mutex<SessionState>,
    _place: ConnectionSlot,
}

impl DeviceSession {
    /// Opens an unidentified session. Its lane has it until [`DeviceSession::end`].
    pub(super) fn open(
        lane: &Arc<GatewayLane>,
        transport: Transport,
        format: Format,
        is_local: bool,
        place: ConnectionSlot,
    ) -> Arc<Self> {
        let now = lane.shared.now();
        let state = SessionState::new(format, is_local, now, &lane.shared.settings);
        let number = lane.next_number();
        let session = Self { number, transport, lane: Arc::clone(lane), state: Mutex::new(state), _place: place };
        let session = Arc::new(session);
        lane.add(&session);
        session.perform_due(&mut session.lock(), now);
        session
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> &GatewayContext {
        &self.lane.shared
    }

    /// Takes bytes of a WebSocket, which are unmasked in place.
    pub(super) fn take_bytes(self: &Arc<Self>, bytes: &mut [u8]) {
        let now = self.shared().now();
        let state = &mut *self.lock();
        if matches!(state.phase, SessionPhase::Over) {
            return;
        }
        state.heard(now);
        let mut limit = self.shared().settings.frame_bytes_max;
        if matches!(state.phase, SessionPhase::Opening) {
            // The device is not identified yet. A token and a few names are enough.
            limit = limit.min(OPENING_BYTES_MAX);
        }
        let limits = Limits { frame_bytes: limit, message_bytes: limit };
        let mut decoder =
            std::mem::replace(&mut state.decoder, super::websocket::Decoder::new(super::websocket::Role::Server));
        let taken = decoder.take(bytes, &limits, |incoming| self.handle_message(state, incoming, now));
        state.decoder = decoder;
        match taken {
            Ok(()) => {}
            Err(violation @ WsViolation::TooLarge { .. }) => {
                self.close(state, CloseCode::TooLarge, &violation.to_string(), now);
            }
            Err(violation) => self.close_protocol(state, violation.close_code(), &violation.to_string(), now),
        }
        self.flush(state, now);
    }

    fn handle_message(&self, state: &mut SessionState, incoming: MessageRef<'_>, now: Tick) {
        self.shared().metrics.frames_in.increment(1);
        let said = match (incoming, state.format) {
            (MessageRef::Ping(payload), _) => {
                if self.has_room(state, payload.len(), now) {
                    state.queue_raw(now, |out| encode(out, Opcode::Pong, payload, None));
                }
                return;
            }
            (MessageRef::Pong(_), _) => return,
            (MessageRef::Close(said), _) => {
                // Answered with the same code. Then the session ends.
                let code = said.map_or(CLOSED_NORMALLY, |(code, _)| code);
                self.close_protocol(state, code, "", now);
                return;
            }
            (MessageRef::Text(text), Format::SocketJson) => InboundFrame::of_json(text),
            (MessageRef::Binary(bytes), Format::SocketProto) => InboundFrame::of_proto(bytes),
            (MessageRef::Text(_), _) => Err("this subprotocol requires binary messages".to_owned()),
            (MessageRef::Binary(_), _) => Err("this subprotocol requires text messages".to_owned()),
        };
        match said {
            Ok(said) => self.handle_frame(state, said, now),
            Err(why) => self.close(state, CloseCode::BadFrame, &why, now),
        }
    }

    /// Takes a frame of another transport than WebSocket.
    pub(super) fn take_frame(self: &Arc<Self>, said: Result<InboundFrame, String>) {
        let now = self.shared().now();
        let state = &mut *self.lock();
        self.shared().metrics.frames_in.increment(1);
        state.heard(now);
        match said {
            Ok(said) => self.handle_frame(state, said, now),
            Err(why) => self.close(state, CloseCode::BadFrame, &why, now),
        }
        self.flush(state, now);
    }

    fn handle_frame(&self, state: &mut SessionState, said: InboundFrame, now: Tick) {
        let out_of_turn = |state: &mut SessionState, why: &str| self.close(state, CloseCode::BadFrame, why, now);
        match (state.phase, said) {
            (SessionPhase::Closing | SessionPhase::Over, _) => {}
            (SessionPhase::Opening, InboundFrame::Connect(connect)) => {
                match self.shared().identify(connect, state.is_local) {
                    Ok(identified) => self.arrive_locked(state, identified, now),
                    Err((code, why)) => self.close(state, code, &why, now),
                }
            }
            (SessionPhase::Opening, _) => out_of_turn(state, "the first frame must be `connect`"),
            (_, InboundFrame::Connect(_)) => out_of_turn(state, "`connect` may be sent only once"),
            (SessionPhase::Arriving, InboundFrame::Ack(_)) => out_of_turn(state, "`ack` before `connected`"),
            (SessionPhase::Admitted, InboundFrame::Ack(upto)) => {
                if let Err(why) = self.ack_locked(state, upto) {
                    out_of_turn(state, &why);
                }
            }
            (_, InboundFrame::Ping {}) => {
                if self.has_room(state, 0, now) {
                    state.queue_frame(&OutboundFrame::Pong, now);
                }
            }
            (_, InboundFrame::Pong {}) => {}
            (_, InboundFrame::Refresh { token }) => self.refresh(state, &token, now),
        }
    }

    /// Whether an answer may wait. If not, the device sends requests without reading the answers, and is closed.
    fn has_room(&self, state: &mut SessionState, bytes: usize, now: Tick) -> bool {
        let has_room = state.has_room(bytes, self.shared().settings.queue_bytes_max);
        if !has_room {
            self.close(state, CloseCode::Slow, "the device does not read the answers", now);
        }
        has_room
    }

    /// Takes an identified device, which waits for its admission.
    pub(super) fn arrive(self: &Arc<Self>, identified: IdentifiedDevice) {
        let now = self.shared().now();
        self.arrive_locked(&mut self.lock(), identified, now);
    }

    fn arrive_locked(&self, state: &mut SessionState, identified: IdentifiedDevice, now: Tick) {
        let expires = identified.ends_at.map_or(Tick::NEVER, |at| self.shared().tick_of(at));
        state.arrive(identified.identity, expires, now, &self.shared().settings);
        self.perform_due(state, now);
        self.lane.push_item(LaneItem::Introduce(self.number));
    }

    /// Takes an acknowledgement from beside the connection. `None` if the session belongs to another user, or to another platform than the
    /// token is bound to. `Err` is the reason for a rejection.
    pub(super) fn ack(&self, uid: &Uid, bound: Option<&Platform>, upto: u64) -> Option<Result<(), String>> {
        let state = &mut *self.lock();
        let is_same = |identity: &DeviceIdentity| {
            identity.uid == *uid && bound.is_none_or(|platform| *platform == identity.platform)
        };
        let is_theirs = state.identity.as_deref().is_some_and(is_same);
        (is_theirs && state.phase == SessionPhase::Admitted).then(|| self.ack_locked(state, upto))
    }

    fn ack_locked(&self, state: &mut SessionState, upto: u64) -> Result<(), String> {
        let is_news = state
            .ack(upto)
            .map_err(|sent| format!("`ack` of {upto}, but the highest number that was sent is {sent}"))?;
        if let Some(identity) = state.identity.as_ref().filter(|_| is_news) {
            let ack = ToCarrier::Ack { session: self.number, uid: identity.uid.clone(), upto };
            self.lane.push_item(LaneItem::Tell(identity.partition, ack));
        }
        Ok(())
    }

    fn refresh(&self, state: &mut SessionState, token: &str, now: Tick) {
        let token = match self.shared().check_token(token) {
            Ok(token) => token,
            Err((code, why)) => return self.close(state, code, &why, now),
        };
        let Some(identity) = &state.identity else { return };
        let is_same = token.uid == identity.uid && token.platform.is_none_or(|platform| platform == identity.platform);
        if !is_same {
            return self.close(state, CloseCode::BadToken, "the new token is for another user or platform", now);
        }
        state.refreshed(self.shared().tick_of(token.ends_at));
        self.perform_due(state, now);
    }

    pub(super) fn take_message(self: &Arc<Self>, news: ToGateway, now: Tick) {
        let state = &mut *self.lock();
        match news {
            ToGateway::Admitted(admitted) => self.admit(state, *admitted, now),
            ToGateway::Rejected { code, reason, .. } => self.close(state, code, &reason, now),
            ToGateway::Kick { code, reason, .. } => {
                if state.is_here() {
                    state.queue_frame(&OutboundFrame::Kick { code: code.word(), reason: &reason }, now);
                }
                self.close(state, code, &reason, now);
            }
            ToGateway::Truncated { prev, .. } if state.phase == SessionPhase::Admitted && state.is_gap(prev) => {
                self.ask_again(state, now);
            }
            ToGateway::Truncated { from, to, .. } if state.phase == SessionPhase::Admitted => {
                state.was_answered();
                state.skip_to(to);
                state.queue_frame_at(&OutboundFrame::Truncated { from, to }, to, now);
                self.shared().metrics.frames_out.increment(1);
            }
            ToGateway::Truncated { .. } => {}
            // The dropping component has counted them. The device is informed with the flush at the end of this batch.
            ToGateway::Lost { count, .. } => state.count_lost(count),
            ToGateway::Deliver(delivery) => self.deliver(state, &delivery, now),
        }
    }

    fn admit(&self, state: &mut SessionState, admitted: Admitted, now: Tick) {
        let epoch = self.shared().alike_epoch(admitted.epoch);
        let Some(gateway) = self.shared().id() else { return };
        if !state.admit(epoch.clone(), admitted.cursor) {
            return;
        }
        let session = SessionId { gateway, number: self.number };
        let ping_ms = u32::try_from(self.shared().settings.ping_interval.as_millis()).unwrap_or(u32::MAX);
        let (head, resumed, why) = (admitted.head, admitted.resumed, admitted.why);
        let connected = OutboundFrame::Connected { session, epoch: &epoch, head, resumed, why, ping_ms };
        state.queue_frame_at(&connected, admitted.cursor, now);
        self.shared().metrics.frames_out.increment(1);
        self.lane.push_item(LaneItem::Came(self.number));
        self.perform_due(state, now);
    }

    fn deliver(self: &Arc<Self>, state: &mut SessionState, delivery: &Delivery, now: Tick) {
        let room = self.shared().settings.queue_bytes_max;
        let needed = message_bytes(state.format, &delivery.message);
        if !state.is_flushing && !state.has_room(needed, room) {
            // Try first whether the socket takes what waits.
            self.flush(state, now);
        }
        match state.deliver(delivery, room, now) {
            DeliveryOutcome::Queued => {
                state.was_answered();
                self.shared().metrics.frames_out.increment(1);
            }
            DeliveryOutcome::Gap => self.ask_again(state, now),
            // It waits in the inbox. A device that reads gets it later; one that does not is closed as slow.
            DeliveryOutcome::LeftOut | DeliveryOutcome::Full => {}
            DeliveryOutcome::Dropped => self.shared().metrics.dropped.increment(1),
        }
    }

    /// Asks the owner to continue from the session's position, because an earlier message was lost.
    fn ask_again(&self, state: &mut SessionState, now: Tick) {
        if state.asks(now) {
            // The session was already introduced in this tenure; it must be introduced again.
            state.identity.iter_mut().for_each(|identity| identity.announced_in = None);
            self.lane.push_item(LaneItem::Introduce(self.number));
        } else if let Some(at) = state.asks_at() {
            self.schedule(state, at);
        }
    }

    /// Counts a message that was dropped before it reached this session.
    pub(super) fn drop_one(&self) {
        self.shared().metrics.dropped.increment(1);
        self.lock().count_lost(1);
    }

    /// Performs what is due, and schedules the next check.
    pub(super) fn check(self: &Arc<Self>, now: Tick) {
        let state = &mut *self.lock();
        // Otherwise the entry of the wheel is outdated.
        if state.check_at <= now {
            state.check_at = Tick::NEVER;
            self.perform_due(state, now);
            self.flush(state, now);
        }
    }

    fn perform_due(&self, state: &mut SessionState, now: Tick) {
        if state.asks_at().is_some() {
            self.ask_again(state, now);
        }
        match state.due_action(now, &self.shared().settings) {
            DueAction::Nothing => {}
            DueAction::Wait(at) => self.schedule(state, at),
            DueAction::Ping => {
                state.queue_frame(&OutboundFrame::Ping, now);
                self.schedule(state, now.after(self.shared().settings.pong_wait));
            }
            DueAction::Close(CloseCode::NoOwner, _) => {
                let reason = self.reconnect_reason();
                self.close(state, CloseCode::NoOwner, &reason, now);
            }
            DueAction::Close(code, why) => self.close(state, code, why, now),
            DueAction::Cut => self.cut(state),
        }
    }

    fn schedule(&self, state: &mut SessionState, at: Tick) {
        if at < state.check_at {
            state.check_at = at;
            self.lane.schedule(self.number, at);
        }
    }

    fn reconnect_reason(&self) -> String {
        let spread = self.shared().settings.goaway_spread.as_millis() as u64;
        format!(r#"{{"after_ms":{}}}"#, COME_BACK_AFTER_MS + self.shared().spread(spread))
    }

    /// The gateway shuts down.
    pub(super) fn go_away(self: &Arc<Self>, now: Tick) {
        let after_ms = self.shared().spread(self.shared().settings.goaway_spread.as_millis() as u64);
        let state = &mut *self.lock();
        if state.is_here() {
            state.queue_frame(&OutboundFrame::Goaway { after_ms }, now);
        }
        self.close(state, CloseCode::GoingAway, &format!(r#"{{"after_ms":{after_ms}}}"#), now);
        self.flush(state, now);
    }

    fn close(&self, state: &mut SessionState, code: CloseCode, reason: &str, now: Tick) {
        if state.close(code.number(), reason, now) {
            self.shared().metrics.closed(code);
            self.report_end(state);
            self.perform_due(state, now);
        }
    }

    /// The device ended the session, without a WebSocket close frame.
    pub(super) fn close_normally(self: &Arc<Self>) {
        let now = self.shared().now();
        let state = &mut *self.lock();
        self.close_protocol(state, CLOSED_NORMALLY, "", now);
        self.flush(state, now);
    }

    fn close_protocol(&self, state: &mut SessionState, code: u16, reason: &str, now: Tick) {
        if state.close(code, reason, now) {
            self.shared().metrics.closed_protocol.increment(1);
            self.report_end(state);
            self.perform_due(state, now);
        }
    }

    /// Reports the end of the session to its owner and to presence, once.
    fn report_end(&self, state: &mut SessionState) {
        let Some(identity) = state.identity.take() else { return };
        // Also to an owner that does not have the session, which ignores it.
        let gone = ToCarrier::Gone { session: self.number, uid: identity.uid.clone() };
        self.lane.push_item(LaneItem::Tell(identity.partition, gone));
        if identity.epoch.is_some() {
            self.lane.push_item(LaneItem::Went(identity.uid.clone(), self.number, self.shared().clock.now()));
        }
    }

    /// Writes as much as the transport takes.
    pub(super) fn flush(self: &Arc<Self>, state: &mut SessionState, now: Tick) {
        match &self.transport {
            Transport::Polled(waker) => waker.wake(),
            Transport::Socket(_) if state.is_flushing => {}
            Transport::Socket(stream) => match write(stream, state, now) {
                Ok(true) => self.flushed(stream, state, now),
                Ok(false) => {}
                Err(_) => self.cut(state),
            },
        }
        // The rest waits until the socket is writable, including a report of losses.
        let has_to_wait = matches!(self.transport, Transport::Socket(_)) && !state.waiting().is_empty();
        if has_to_wait && !state.is_flushing && state.phase != SessionPhase::Over {
            state.is_flushing = true;
            self.lane.runtime.spawn(Arc::clone(self).flush_when_possible());
        }
    }

    fn flushed(&self, stream: &TcpStream, state: &mut SessionState, now: Tick) {
        state.queue_losses(now);
        if state.made_room() {
            self.ask_again(state, now);
        }
        let is_written = state.waiting().is_empty() || write(stream, state, now).unwrap_or(true);
        if state.phase == SessionPhase::Closing && is_written {
            // The write side is done. Input is read until the device answers.
            let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
        }
    }

    /// Writes whenever the socket is writable, until the queue is empty.
    async fn flush_when_possible(self: Arc<Self>) {
        let Transport::Socket(stream) = &self.transport else { return };
        loop {
            let is_broken = stream.writable().await.is_err();
            let now = self.shared().now();
            let state = &mut *self.lock();
            let written =
                if is_broken || state.phase == SessionPhase::Over { Ok(true) } else { write(stream, state, now) };
            match written {
                Ok(false) => continue,
                Ok(true) => self.flushed(stream, state, now),
                Err(_) => self.cut(state),
            }
            // A report of losses may have been queued.
            if state.waiting().is_empty() || is_broken || state.phase == SessionPhase::Over || written.is_err() {
                state.is_flushing = false;
                return;
            }
        }
    }

    /// Ends the stream at once. Its reader then calls [`DeviceSession::end`].
    fn cut(&self, state: &mut SessionState) {
        self.report_end(state);
        state.phase = SessionPhase::Over;
        match &self.transport {
            Transport::Socket(stream) => drop(rustix::net::shutdown(stream, rustix::net::Shutdown::Both)),
            Transport::Polled(waker) => waker.wake(),
        }
    }

    pub(super) fn end(&self) {
        let state = &mut *self.lock();
        self.cut(state);
        self.lane.remove(self.number);
    }

    /// The bytes for polled transports; `None` after the end.
    pub(super) fn poll_waiting(&self, context: &Context<'_>) -> Poll<Option<Vec<u8>>> {
        let Transport::Polled(waker) = &self.transport else { return Poll::Ready(None) };
        waker.register(context.waker());
        let now = self.shared().now();
        let state = &mut *self.lock();
        if state.waiting().is_empty() {
            state.queue_losses(now);
        }
        if !state.waiting().is_empty() {
            let waiting = state.take_waiting(now);
            if state.made_room() {
                self.ask_again(state, now);
            }
            return Poll::Ready(Some(waiting));
        }
        if matches!(state.phase, SessionPhase::Closing | SessionPhase::Over) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }
}

/// Writes as much as the socket takes; `false` if bytes are left.
fn write(stream: &TcpStream, state: &mut SessionState, now: Tick) -> io::Result<bool> {
    while !state.waiting().is_empty() {
        match stream.try_write(state.waiting()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => state.written(count, now),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
