//! A session on its seat, with the messages that it was sent and has not acknowledged.

use std::collections::VecDeque;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Platform};

use super::RowsToken;
use crate::carrier::settings::CarrierSettings;
use crate::carrier::user_box::{InboxSlot, Seat};

#[derive(Debug)]
pub(super) struct LiveSession {
    pub gateway: GatewayId,
    pub session: u64,
    pub platform: Platform,
    /// The seat's device name, not the session's.
    pub device: Box<str>,
    pub arrived: Timestamp,
    /// An earlier owner admitted it.
    pub was_announced: bool,
    /// The highest sequence number that was sent to it, or reported to it as lost.
    pub sent: u64,
    pub window: AckWindow,
    /// When the oldest message of the window was sent last.
    pub since: Timestamp,
    pub attempt: u32,
    /// The deadline queue has an entry for it.
    pub is_watched: bool,
    /// A hold with its next retry is pending.
    pub is_held: bool,
    /// The token of the rows that are being read for it.
    pub reading: Option<RowsToken>,
    /// It has not been sent all of its messages.
    pub is_behind: bool,
}

/// How a session gets a stored message that is folded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoldedDelivery {
    Now,
    /// An earlier owner sent it, and the seat may not have acknowledged it yet.
    SentBefore,
    /// The seat's losses must be reported before it.
    AfterLosses,
    /// The seat has acknowledged it, or the session must be sent everything before it.
    NotNow,
}

impl LiveSession {
    /// A session that was sent nothing yet. `device` is the seat's.
    pub fn new(
        gateway: GatewayId,
        session: u64,
        platform: Platform,
        device: Box<str>,
        arrived: Timestamp,
        now: Timestamp,
    ) -> Self {
        Self {
            gateway,
            session,
            platform,
            device,
            arrived,
            was_announced: false,
            sent: 0,
            window: AckWindow::default(),
            since: now,
            attempt: 0,
            is_watched: false,
            is_held: false,
            reading: None,
            is_behind: true,
        }
    }

    pub fn is_on(&self, seat: &Seat) -> bool {
        self.platform == seat.platform && self.device == seat.device
    }

    pub fn is(&self, gateway: GatewayId, session: u64) -> bool {
        self.gateway == gateway && self.session == session
    }

    /// Records that a message is sent, and returns the number of the message before it.
    pub fn sends(&mut self, seq: u64, bytes: u32, now: Timestamp) -> u64 {
        if self.window.is_empty() {
            self.since = now;
        }
        self.window.push(seq, bytes);
        std::mem::replace(&mut self.sent, seq)
    }

    /// Pending holds of retries no longer apply: the device makes progress, or nothing is left to acknowledge.
    pub fn reset_retries(&mut self) {
        self.attempt = 0;
        self.is_held = false;
    }

    /// Decides about a stored message that is folded, and notes the result.
    pub fn fold(&mut self, slot: &InboxSlot, seats: &[Seat], settings: &CarrierSettings) -> FoldedDelivery {
        if slot.seq <= self.sent {
            if !seats.iter().any(|seat| self.is_on(seat) && seat.waits_for(slot)) {
                return FoldedDelivery::NotNow;
            }
            self.window.push(slot.seq, slot.bytes);
            return FoldedDelivery::SentBefore;
        }
        if self.is_behind || self.reading.is_some() || !self.window.has_room(slot.bytes, settings) {
            self.is_behind = true;
            return FoldedDelivery::NotNow;
        }
        if seats.iter().any(|seat| self.is_on(seat) && seat.lost.iter().any(|(_, to)| *to > self.sent)) {
            self.is_behind = true;
            return FoldedDelivery::AfterLosses;
        }
        FoldedDelivery::Now
    }
}

/// The messages that a session was sent and has not acknowledged, in their order.
#[derive(Debug, Default)]
pub(super) struct AckWindow {
    messages: VecDeque<(u64, u32)>,
    /// The sum of their bytes.
    bytes: usize,
}

impl AckWindow {
    pub fn push(&mut self, seq: u64, bytes: u32) {
        self.messages.push_back((seq, bytes));
        self.bytes += bytes as usize;
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn first(&self) -> Option<u64> {
        self.messages.front().map(|(seq, _)| *seq)
    }

    pub fn last(&self) -> Option<u64> {
        self.messages.back().map(|(seq, _)| *seq)
    }

    pub fn contains(&self, seq: u64) -> bool {
        self.messages.iter().any(|(unacked, _)| *unacked == seq)
    }

    /// The last message before that number.
    pub fn before(&self, seq: u64) -> Option<u64> {
        self.messages.iter().rev().map(|(earlier, _)| *earlier).find(|earlier| *earlier < seq)
    }

    /// Whether one more message fits. One message always fits, whatever its size.
    pub fn has_room(&self, bytes: u32, settings: &CarrierSettings) -> bool {
        self.fits(1, bytes as usize, settings)
    }

    /// Whether that many more messages fit, with that many bytes in total.
    pub fn fits(&self, messages: usize, bytes: usize, settings: &CarrierSettings) -> bool {
        (self.is_empty() && messages <= 1)
            || (self.len() + messages <= settings.window_messages && self.bytes + bytes <= settings.window_bytes)
    }

    /// Removes all messages up to that number, and returns how many.
    pub fn acknowledge(&mut self, upto: u64) -> usize {
        let before = self.len();
        while let Some((_, bytes)) = self.messages.pop_front_if(|(seq, _)| *seq <= upto) {
            self.bytes -= bytes as usize;
        }
        before - self.len()
    }

    /// Keeps only these messages.
    pub fn retain(&mut self, seqs: &[u64]) {
        self.messages.retain(|(seq, _)| seqs.contains(seq));
        self.bytes = self.messages.iter().map(|(_, bytes)| *bytes as usize).sum();
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_bounds_and_always_has_room_for_one_message() {
        let settings = CarrierSettings { window_messages: 2, window_bytes: 10, ..CarrierSettings::default() };
        let mut window = AckWindow::default();
        assert!(window.has_room(11, &settings) && !window.fits(2, 11, &settings));
        window.push(1, 4);
        assert!(window.has_room(6, &settings) && !window.has_room(7, &settings));
        window.push(2, 1);
        assert!(!window.has_room(1, &settings), "two messages are the most");
        assert_eq!(window.acknowledge(1), 1);
        assert!(window.has_room(9, &settings) && !window.has_room(10, &settings));
        window.retain(&[]);
        assert!(window.has_room(11, &settings));
    }
}
