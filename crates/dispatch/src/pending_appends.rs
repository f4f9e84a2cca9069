//! Failed messages on their way into the log: retries that become holds, and dead letters. Pure.
//!
//! A settlement is done when its record is durable. Until then it waits here, or is part of an append in progress. At most
//! [`APPENDS_MAX`] appends run at a time.

use whimbrel_model::ports::{Entry, LogError};
use whimbrel_model::subscription::MessageOrigin;
use whimbrel_model::{Record, Timestamp};

use super::call_verdict::DeliveryFailure;
use super::line_set::DeliveryRef;
use super::outbound_message::OutboundMessage;

/// The most records of one append.
const APPENDED_AT_ONCE: usize = 1000;
const APPENDS_MAX: usize = 4;
/// The most settlements that wait. Beyond that, reading pauses.
const SETTLEMENTS_WAITING_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettlementKind {
    Hold,
    DeadLetter,
}

#[derive(Debug, Clone)]
pub struct Settlement {
    pub out: DeliveryRef,
    pub kind: SettlementKind,
    /// `None`: its topic does not exist at the moment.
    pub entry: Option<Entry>,
    pub message: OutboundMessage,
    pub origin: MessageOrigin,
    pub due: Timestamp,
}

/// Why a message became a dead letter.
pub struct DeathReason<'a> {
    pub reason: &'a str,
    pub failure: Option<&'a DeliveryFailure>,
}

/// An append that has ended.
#[derive(Debug)]
pub struct AppendDone {
    pub settlements: Vec<Settlement>,
    pub outcomes: Vec<Result<u64, LogError>>,
}

impl Settlement {
    /// Whether a rejected settlement is repeated as it is. One that is too large takes another form, if it has one.
    pub fn is_repeated_after(&self, error: &LogError) -> bool {
        let is_reducible = self.kind == SettlementKind::Hold || !self.message.record.value.is_empty();
        !(matches!(error, LogError::TooLarge { .. }) && is_reducible)
    }

    /// Removes the body of a dead letter that is too large.
    pub fn remove_body(&mut self) {
        let record = &self.message.record;
        self.message.record = Record { value: bytes::Bytes::new(), ..record.clone() };
        let reason = self.origin.reason.take().unwrap_or_default();
        self.origin.reason = Some(format!("{reason} (the body was removed: it is too large for a dead letter)"));
    }
}

#[derive(Default)]
pub struct PendingAppends {
    waiting: Vec<Settlement>,
    in_progress: usize,
}

impl PendingAppends {
    pub fn push(&mut self, settlement: Settlement) {
        self.waiting.push(settlement);
    }

    /// Takes the settlements of the next append, if one may start.
    pub fn begin(&mut self) -> Option<Vec<Settlement>> {
        if self.waiting.is_empty() || self.in_progress >= APPENDS_MAX {
            return None;
        }
        self.in_progress += 1;
        Some(self.waiting.drain(..self.waiting.len().min(APPENDED_AT_ONCE)).collect())
    }

    /// Records that an append has ended.
    pub fn ended(&mut self) {
        self.in_progress -= 1;
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.in_progress == 0
    }

    /// Whether so many wait that reading pauses.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= SETTLEMENTS_WAITING_MAX
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use whimbrel_model::{Headers, PartitionId, TopicNumber};

    use super::super::window::DeliveryTicket;
    use super::*;

    fn settlement(ticket: u64, kind: SettlementKind, value: &'static [u8]) -> Settlement {
        let now = Timestamp::from_millis(1_000);
        let record = Record { key: None, value: Bytes::from_static(value), headers: Headers::EMPTY, timestamp: now };
        let place = PartitionId::new(TopicNumber(1), 0);
        let message = OutboundMessage::of(&"orders".into(), place, ticket, 1, record);
        let origin = message.origin("billing", 1);
        let out = DeliveryRef { line: 0, incarnation: 1, ticket: DeliveryTicket(ticket) };
        Settlement { out, kind, entry: None, message, origin, due: now }
    }

    #[test]
    fn appends_take_up_to_1000_settlements_in_order_and_4_run_at_a_time() {
        let mut pending = PendingAppends::default();
        (0..5_000).for_each(|ticket| pending.push(settlement(ticket, SettlementKind::Hold, b"")));
        let batches: Vec<Vec<Settlement>> = std::iter::from_fn(|| pending.begin()).collect();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [1_000; 4]);
        assert_eq!(batches[1][0].out.ticket, DeliveryTicket(1_000));
        pending.ended();
        assert_eq!(pending.begin().map(|batch| batch.len()), Some(1_000));
        assert!(pending.begin().is_none() && !pending.is_empty());
        (0..4).for_each(|_| pending.ended());
        assert!(pending.is_empty());
    }

    #[test]
    fn a_dead_letter_that_is_too_large_loses_its_body_once() {
        let too_large = LogError::TooLarge { size: 2, limit: 1 };
        let mut letter = settlement(1, SettlementKind::DeadLetter, b"body");
        assert!(!letter.is_repeated_after(&too_large));
        letter.remove_body();
        assert!(letter.message.record.value.is_empty());
        assert!(letter.is_repeated_after(&too_large));
        assert!(!settlement(1, SettlementKind::Hold, b"").is_repeated_after(&too_large), "it waits in the window");
    }
}
