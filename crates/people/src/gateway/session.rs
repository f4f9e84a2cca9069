//! One connection: what it hears, what it is told, how it ends. WebSocket, event stream and gRPC share it.
//!
//! Lock order: a session's state first, its lane's own afterwards; nothing takes a session's state while it holds a lane's. Nothing here
//! blocks: what cannot be written waits in the queue, and whoever has something to say to a carrier or to presence leaves it to the lane.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::net::TcpStream;
use whimbrel_model::people::{CloseCode, Platform, SessionId, Uid};
use whimbrel_model::ports::{Admitted, Delivery, ToCarrier, ToGateway};

use super::frames::{Format, Said, Says, message_bytes};
use super::lane::{Lane, Outgoing};
use super::shared::{Identified, Place, Shared};
use super::state::{Delivered, Look, Phase, State, Who};
use super::websocket::{Incoming, Limits, Opcode, Violation, encode};
use super::wheel::Tick;

/// Bytes of the first frame.
const OPENING_BYTES_MAX: usize = 16 << 10;
/// How long a device that cannot be served shall wait at least.
const COME_BACK_AFTER_MS: u64 = 1_000;

/// The close code of a session that ended as its device wanted, of RFC 6455.
const CLOSED_NORMALLY: u16 = 1000;

/// How bytes get to the device.
pub(super) enum Way {
    /// Written to at once, by whoever has something for it.
    Socket(TcpStream),
    /// Somebody polls for what waits.
    Polled(AtomicWaker),
}

pub(super) struct Session {
    pub(super) number: u64,
    pub(super) way: Way,
    lane: Arc<Lane>,
    state: Mutex<State>,
    _place: Place,
}

impl Session {
    /// A connection that has not said anything yet. It is known to its lane from here on, until [`Session::end`].
    pub(super) fn open(lane: &Arc<Lane>, way: Way, format: Format, is_local: bool, place: Place) -> Arc<Self> {
        let now = lane.shared.now();
        let state = State::new(format, is_local, now, &lane.shared.settings);
        let number = lane.next_number();
        let session = Self { number, way, lane: Arc::clone(lane), state: Mutex::new(state), _place: place };
        let session = Arc::new(session);
        lane.add(&session);
        session.look(&mut session.lock(), now);
        session
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> &Shared {
        &self.lane.shared
    }

    /// Bytes of a WebSocket. They are unmasked in place.
    pub(super) fn take_bytes(self: &Arc<Self>, bytes: &mut [u8]) {
        let now = self.shared().now();
        let state = &mut *self.lock();
        if matches!(state.phase, Phase::Over) {
            return;
        }
        state.heard(now);
        let mut limit = self.shared().settings.frame_bytes_max;
        if matches!(state.phase, Phase::Opening) {
            // Nobody knows yet who it is: a token and a few names are all that it has to say.
            limit = limit.min(OPENING_BYTES_MAX);
        }
        let limits = Limits { frame_bytes: limit, message_bytes: limit };
        let mut decoder =
            std::mem::replace(&mut state.decoder, super::websocket::Decoder::new(super::websocket::Role::Server));
        let taken = decoder.take(bytes, &limits, |incoming| self.hear_incoming(state, incoming, now));
        state.decoder = decoder;
        match taken {
            Ok(()) => {}
            Err(violation @ Violation::TooLarge { .. }) => {
                self.close(state, CloseCode::TooLarge, &violation.to_string(), now);
            }
            Err(violation) => self.close_protocol(state, violation.close_code(), &violation.to_string(), now),
        }
        self.flush(state, now);
    }

    fn hear_incoming(&self, state: &mut State, incoming: Incoming<'_>, now: Tick) {
        self.shared().figures.frames_in.increment(1);
        let said = match (incoming, state.format) {
            (Incoming::Ping(payload), _) => {
                if self.has_room(state, payload.len(), now) {
                    state.say_raw(now, |out| encode(out, Opcode::Pong, payload, None));
                }
                return;
            }
            (Incoming::Pong(_), _) => return,
            (Incoming::Close(said), _) => {
                // Answered with the same code, and then over.
                let code = said.map_or(CLOSED_NORMALLY, |(code, _)| code);
                self.close_protocol(state, code, "", now);
                return;
            }
            (Incoming::Text(text), Format::SocketJson) => Said::of_json(text),
            (Incoming::Binary(bytes), Format::SocketProto) => Said::of_proto(bytes),
            (Incoming::Text(_), _) => Err("the subprotocol has binary messages".to_owned()),
            (Incoming::Binary(_), _) => Err("the subprotocol has text messages".to_owned()),
        };
        match said {
            Ok(said) => self.hear_said(state, said, now),
            Err(why) => self.close(state, CloseCode::BadFrame, &why, now),
        }
    }

    /// A frame that came some other way than over a WebSocket.
    pub(super) fn hear(self: &Arc<Self>, said: Result<Said, String>) {
        let now = self.shared().now();
        let state = &mut *self.lock();
        self.shared().figures.frames_in.increment(1);
        state.heard(now);
        match said {
            Ok(said) => self.hear_said(state, said, now),
            Err(why) => self.close(state, CloseCode::BadFrame, &why, now),
        }
        self.flush(state, now);
    }

    fn hear_said(&self, state: &mut State, said: Said, now: Tick) {
        let out_of_turn = |state: &mut State, why: &str| self.close(state, CloseCode::BadFrame, why, now);
        match (state.phase, said) {
            (Phase::Closing | Phase::Over, _) => {}
            (Phase::Opening, Said::Connect(connect)) => match self.shared().identify(connect, state.is_local) {
                Ok(identified) => self.arrive_locked(state, identified, now),
                Err((code, why)) => self.close(state, code, &why, now),
            },
            (Phase::Opening, _) => out_of_turn(state, "the first frame has to be `connect`"),
            (_, Said::Connect(_)) => out_of_turn(state, "`connect` comes once"),
            (Phase::Arriving, Said::Ack(_)) => out_of_turn(state, "an `ack` came before `connected`"),
            (Phase::Admitted, Said::Ack(upto)) => {
                if let Err(why) = self.ack_locked(state, upto) {
                    out_of_turn(state, &why);
                }
            }
            (_, Said::Ping {}) => {
                if self.has_room(state, 0, now) {
                    state.say(&Says::Pong, now);
                }
            }
            (_, Said::Pong {}) => {}
            (_, Said::Refresh { token }) => self.refresh(state, &token, now),
        }
    }

    /// Whether an answer may wait; otherwise the device asks and does not read.
    fn has_room(&self, state: &mut State, bytes: usize, now: Tick) -> bool {
        let has_room = state.has_room(bytes, self.shared().settings.queue_bytes_max);
        if !has_room {
            self.close(state, CloseCode::Slow, "answers are not read", now);
        }
        has_room
    }

    /// An identified device waits to be let in.
    pub(super) fn arrive(self: &Arc<Self>, identified: Identified) {
        let now = self.shared().now();
        self.arrive_locked(&mut self.lock(), identified, now);
    }

    fn arrive_locked(&self, state: &mut State, identified: Identified, now: Tick) {
        let expires = identified.ends_at.map_or(Tick::NEVER, |at| self.shared().tick_of(at));
        state.arrive(identified.who, expires, now, &self.shared().settings);
        self.look(state, now);
        self.lane.say(Outgoing::Introduce(self.number));
    }

    /// An acknowledgement from beside the connection, by whoever is this user, on the one platform where it is bound to one. `None`: it
    /// is not their session. `Err` says what is wrong with it.
    pub(super) fn ack(&self, uid: &Uid, bound: Option<&Platform>, upto: u64) -> Option<Result<(), String>> {
        let state = &mut *self.lock();
        let is_same = |who: &Who| who.uid == *uid && bound.is_none_or(|platform| *platform == who.platform);
        let is_theirs = state.who.as_deref().is_some_and(is_same);
        (is_theirs && state.phase == Phase::Admitted).then(|| self.ack_locked(state, upto))
    }

    fn ack_locked(&self, state: &mut State, upto: u64) -> Result<(), String> {
        let is_news = state
            .ack(upto)
            .map_err(|sent| format!("an `ack` of {upto} came, and {sent} is the highest number that was sent"))?;
        if let Some(who) = state.who.as_ref().filter(|_| is_news) {
            let ack = ToCarrier::Ack { session: self.number, uid: who.uid.clone(), upto };
            self.lane.say(Outgoing::Tell(who.partition, ack));
        }
        Ok(())
    }

    fn refresh(&self, state: &mut State, token: &str, now: Tick) {
        let token = match self.shared().check_token(token) {
            Ok(token) => token,
            Err((code, why)) => return self.close(state, code, &why, now),
        };
        let Some(who) = &state.who else { return };
        let is_same = token.uid == who.uid && token.platform.is_none_or(|platform| platform == who.platform);
        if !is_same {
            return self.close(state, CloseCode::BadToken, "the new token is for somebody else", now);
        }
        state.refreshed(self.shared().tick_of(token.ends_at));
        self.look(state, now);
    }

    /// What its owner says, other than deliveries.
    pub(super) fn take_news(self: &Arc<Self>, news: ToGateway, now: Tick) {
        let state = &mut *self.lock();
        match news {
            ToGateway::Admitted(admitted) => self.admit(state, *admitted, now),
            ToGateway::Rejected { code, reason, .. } => self.close(state, code, &reason, now),
            ToGateway::Kick { code, reason, .. } => {
                if state.is_here() {
                    state.say(&Says::Kick { code: code.word(), reason: &reason }, now);
                }
                self.close(state, code, &reason, now);
            }
            ToGateway::Truncated { prev, .. } if state.phase == Phase::Admitted && state.is_gap(prev) => {
                self.ask_again(state, now);
            }
            ToGateway::Truncated { from, to, .. } if state.phase == Phase::Admitted => {
                state.was_answered();
                state.skip_to(to);
                state.say_at(&Says::Truncated { from, to }, to, now);
                self.shared().figures.frames_out.increment(1);
            }
            ToGateway::Truncated { .. } => {}
            // Counted where they were dropped. The device is told when it is written to next, which is at the end of this batch.
            ToGateway::Lost { count, .. } => state.count_lost(count),
            ToGateway::Deliver(delivery) => self.deliver(state, &delivery, now),
        }
    }

    fn admit(&self, state: &mut State, admitted: Admitted, now: Tick) {
        let epoch = self.shared().alike_epoch(admitted.epoch);
        let Some(gateway) = self.shared().id() else { return };
        if !state.admit(epoch.clone(), admitted.cursor) {
            return;
        }
        let session = SessionId { gateway, number: self.number };
        let ping_ms = u32::try_from(self.shared().settings.ping_interval.as_millis()).unwrap_or(u32::MAX);
        let (head, resumed, why) = (admitted.head, admitted.resumed, admitted.why);
        let connected = Says::Connected { session, epoch: &epoch, head, resumed, why, ping_ms };
        state.say_at(&connected, admitted.cursor, now);
        self.shared().figures.frames_out.increment(1);
        self.lane.say(Outgoing::Came(self.number));
        self.look(state, now);
    }

    fn deliver(self: &Arc<Self>, state: &mut State, delivery: &Delivery, now: Tick) {
        let room = self.shared().settings.queue_bytes_max;
        let needed = message_bytes(state.format, &delivery.message);
        if !state.is_flushing && !state.has_room(needed, room) {
            // Nobody has tried yet whether the device would take what waits.
            self.flush(state, now);
        }
        match state.deliver(delivery, room, now) {
            Delivered::Queued => {
                state.was_answered();
                self.shared().figures.frames_out.increment(1);
            }
            Delivered::Gap => self.ask_again(state, now),
            // What had no room waits in the inbox: a device that reads gets it then, one that does not is closed for that.
            Delivered::LeftOut | Delivered::Full => {}
            Delivered::Dropped => self.shared().figures.dropped.increment(1),
        }
    }

    /// What came before was lost on the way here: the owner is told what the session has, and sends on from there.
    fn ask_again(&self, state: &mut State, now: Tick) {
        if state.asks(now) {
            // It was introduced in this tenure; it is so once more.
            state.who.iter_mut().for_each(|who| who.told = None);
            self.lane.say(Outgoing::Introduce(self.number));
        } else if let Some(at) = state.asks_at() {
            self.schedule(state, at);
        }
    }

    /// One was dropped before it got here.
    pub(super) fn drop_one(&self) {
        self.shared().figures.dropped.increment(1);
        self.lock().count_lost(1);
    }

    /// Looks whether anything is to be done about it, and when next.
    pub(super) fn check(self: &Arc<Self>, now: Tick) {
        let state = &mut *self.lock();
        // An entry of the wheel from before it was put in anew.
        if state.check_at <= now {
            state.check_at = Tick::NEVER;
            self.look(state, now);
            self.flush(state, now);
        }
    }

    fn look(&self, state: &mut State, now: Tick) {
        if state.asks_at().is_some() {
            self.ask_again(state, now);
        }
        match state.look(now, &self.shared().settings) {
            Look::Nothing => {}
            Look::Wait(at) => self.schedule(state, at),
            Look::Ping => {
                state.say(&Says::Ping, now);
                self.schedule(state, now.after(self.shared().settings.pong_wait));
            }
            Look::Close(CloseCode::NoOwner, _) => {
                let reason = self.come_back();
                self.close(state, CloseCode::NoOwner, &reason, now);
            }
            Look::Close(code, why) => self.close(state, code, why, now),
            Look::Cut => self.cut(state),
        }
    }

    fn schedule(&self, state: &mut State, at: Tick) {
        if at < state.check_at {
            state.check_at = at;
            self.lane.schedule(self.number, at);
        }
    }

    fn come_back(&self) -> String {
        let spread = self.shared().settings.goaway_spread.as_millis() as u64;
        format!(r#"{{"after_ms":{}}}"#, COME_BACK_AFTER_MS + self.shared().spread(spread))
    }

    /// The gateway goes down.
    pub(super) fn go_away(self: &Arc<Self>, now: Tick) {
        let after_ms = self.shared().spread(self.shared().settings.goaway_spread.as_millis() as u64);
        let state = &mut *self.lock();
        if state.is_here() {
            state.say(&Says::Goaway { after_ms }, now);
        }
        self.close(state, CloseCode::GoingAway, &format!(r#"{{"after_ms":{after_ms}}}"#), now);
        self.flush(state, now);
    }

    fn close(&self, state: &mut State, code: CloseCode, reason: &str, now: Tick) {
        if state.close(code.number(), reason, now) {
            self.shared().figures.closed(code);
            self.leave(state);
            self.look(state, now);
        }
    }

    /// The device ended the session in order, some other way than with a WebSocket's close frame.
    pub(super) fn close_normally(self: &Arc<Self>) {
        let now = self.shared().now();
        let state = &mut *self.lock();
        self.close_protocol(state, CLOSED_NORMALLY, "", now);
        self.flush(state, now);
    }

    fn close_protocol(&self, state: &mut State, code: u16, reason: &str, now: Tick) {
        if state.close(code, reason, now) {
            self.shared().figures.closed_protocol.increment(1);
            self.leave(state);
            self.look(state, now);
        }
    }

    /// Its owner and presence are told that it is gone, once.
    fn leave(&self, state: &mut State) {
        let Some(who) = state.who.take() else { return };
        // An owner that has not heard of it has nothing to forget.
        let gone = ToCarrier::Gone { session: self.number, uid: who.uid.clone() };
        self.lane.say(Outgoing::Tell(who.partition, gone));
        if who.epoch.is_some() {
            self.lane.say(Outgoing::Went(who.uid.clone(), self.number, self.shared().clock.now()));
        }
    }

    /// Writes what waits, as far as it goes.
    pub(super) fn flush(self: &Arc<Self>, state: &mut State, now: Tick) {
        match &self.way {
            Way::Polled(waker) => waker.wake(),
            Way::Socket(_) if state.is_flushing => {}
            Way::Socket(stream) => match write(stream, state, now) {
                Ok(true) => self.flushed(stream, state, now),
                Ok(false) => {}
                Err(_) => self.cut(state),
            },
        }
        // What the socket does not take waits for it; what was said of losses may have come to that.
        let has_to_wait = matches!(self.way, Way::Socket(_)) && !state.waiting().is_empty();
        if has_to_wait && !state.is_flushing && state.phase != Phase::Over {
            state.is_flushing = true;
            self.lane.runtime.spawn(Arc::clone(self).flush_when_possible());
        }
    }

    fn flushed(&self, stream: &TcpStream, state: &mut State, now: Tick) {
        state.tell_lost(now);
        if state.made_room() {
            self.ask_again(state, now);
        }
        let is_written = state.waiting().is_empty() || write(stream, state, now).unwrap_or(true);
        if state.phase == Phase::Closing && is_written {
            // Nothing more is said; what the device still says is read until it has answered.
            let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
        }
    }

    /// Waits until the device reads, and writes on; ends when nothing waits any more.
    async fn flush_when_possible(self: Arc<Self>) {
        let Way::Socket(stream) = &self.way else { return };
        loop {
            let is_broken = stream.writable().await.is_err();
            let now = self.shared().now();
            let state = &mut *self.lock();
            let written = if is_broken || state.phase == Phase::Over { Ok(true) } else { write(stream, state, now) };
            match written {
                Ok(false) => continue,
                Ok(true) => self.flushed(stream, state, now),
                Err(_) => self.cut(state),
            }
            // What was said of losses may wait again.
            if state.waiting().is_empty() || is_broken || state.phase == Phase::Over || written.is_err() {
                state.is_flushing = false;
                return;
            }
        }
    }

    /// Ends the stream without further words. Whoever reads from it then calls [`Session::end`].
    fn cut(&self, state: &mut State) {
        self.leave(state);
        state.phase = Phase::Over;
        match &self.way {
            Way::Socket(stream) => drop(rustix::net::shutdown(stream, rustix::net::Shutdown::Both)),
            Way::Polled(waker) => waker.wake(),
        }
    }

    /// The stream has ended.
    pub(super) fn end(&self) {
        let state = &mut *self.lock();
        self.cut(state);
        self.lane.remove(self.number);
    }

    /// What waits, for ways that are polled; `None` once it is over.
    pub(super) fn poll_waiting(&self, context: &Context<'_>) -> Poll<Option<Vec<u8>>> {
        let Way::Polled(waker) = &self.way else { return Poll::Ready(None) };
        waker.register(context.waker());
        let now = self.shared().now();
        let state = &mut *self.lock();
        if state.waiting().is_empty() {
            state.tell_lost(now);
        }
        if !state.waiting().is_empty() {
            let waiting = state.take_waiting(now);
            if state.made_room() {
                self.ask_again(state, now);
            }
            return Poll::Ready(Some(waiting));
        }
        if matches!(state.phase, Phase::Closing | Phase::Over) { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// Writes as much as the socket takes; `false` where it takes no more.
fn write(stream: &TcpStream, state: &mut State, now: Tick) -> io::Result<bool> {
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
