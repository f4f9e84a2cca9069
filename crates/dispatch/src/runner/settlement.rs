//! Settles failed messages: appends a hold for the retry topic or a dead letter. The message is done when that is durable.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use whimbrel_model::ports::{Entry, LogError};
use whimbrel_model::subscription::{MessageOrigin, dead_topic};
use whimbrel_model::{EVENTS_TOPIC, Event, HoldRecord, Record, Timestamp};

use super::{RETRY_AFTER, SubscriptionRunner};
use crate::call_verdict::DeliveryFailure;
use crate::outbound_message::{OutboundMessage, RetryTopic, dead_letter_origin};
use crate::window::DeliveryTicket;

const APPENDED_AT_ONCE: usize = 1000;
const APPENDS_MAX: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SettlementKind {
    Hold,
    DeadLetter,
}

/// A delivery in flight: the line, its incarnation, and the ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeliveryRef {
    pub line: u32,
    pub incarnation: u64,
    pub ticket: DeliveryTicket,
}

pub(super) struct Settlement {
    out: DeliveryRef,
    kind: SettlementKind,
    /// `None`: its topic does not exist at the moment.
    entry: Option<Entry>,
    message: OutboundMessage,
    origin: MessageOrigin,
    due: Timestamp,
}

/// Why a message became a dead letter.
pub(super) struct DeathReason<'a> {
    pub reason: &'a str,
    pub failure: Option<&'a DeliveryFailure>,
}

pub(super) struct AppendDone {
    settlements: Vec<Settlement>,
    outcomes: Vec<Result<u64, LogError>>,
}

impl SubscriptionRunner {
    pub(super) fn hold(
        &mut self,
        out: DeliveryRef,
        message: OutboundMessage,
        attempts: u32,
        due: Timestamp,
        now: Timestamp,
    ) {
        let origin = message.origin(&self.subscription.name, attempts);
        self.settle(Settlement { out, kind: SettlementKind::Hold, entry: None, message, origin, due }, now);
    }

    pub(super) fn bury(
        &mut self,
        out: DeliveryRef,
        message: OutboundMessage,
        attempts: u32,
        why: DeathReason<'_>,
        now: Timestamp,
    ) {
        let origin = message.origin(&self.subscription.name, attempts);
        let origin = dead_letter_origin(origin, why.reason, why.failure, now);
        self.settle(Settlement { out, kind: SettlementKind::DeadLetter, entry: None, message, origin, due: now }, now);
    }

    fn settle(&mut self, mut settlement: Settlement, now: Timestamp) {
        settlement.due = self.judged_due(&settlement, now);
        settlement.entry = self.entry_of(&settlement, now);
        self.to_append.push(settlement);
    }

    /// The due time of the retry, checked again: the clock may have been set back since the due time was chosen.
    fn judged_due(&self, settlement: &Settlement, now: Timestamp) -> Timestamp {
        let Settlement { out, kind, message, origin, due, .. } = settlement;
        match self.lines.get(&out.line) {
            Some(line) if *kind == SettlementKind::Hold => {
                line.rules.retry_schedule(message.own_retry()).resume(origin.attempts, *due, now)
            }
            _ => *due,
        }
    }

    fn entry_of(&self, settlement: &Settlement, now: Timestamp) -> Option<Entry> {
        let Settlement { kind, message, origin, due, .. } = settlement;
        match kind {
            SettlementKind::Hold => {
                let number = self.retry_source()?;
                let to = RetryTopic { number, name: &self.sources.get(&number)?.topic };
                let hold = message.hold(self.subscription.number(), origin, to, *due);
                let partition = self.holds_partition(&hold.id)?;
                Some(Entry { partition, record: HoldRecord::Held(hold).to_record(now) })
            }
            SettlementKind::DeadLetter => {
                let topic = self.context.registry.get(&dead_topic(&self.subscription.name))?;
                Some(Entry { partition: topic.partition(0), record: message.origin_record(origin, now) })
            }
        }
    }

    pub(super) fn start_appends(&mut self) {
        while !self.to_append.is_empty() && self.appends.len() < APPENDS_MAX {
            let count = self.to_append.len().min(APPENDED_AT_ONCE);
            let settlements: Vec<Settlement> = self.to_append.drain(..count).collect();
            let log = Arc::clone(&self.context.log);
            let entries: Vec<Entry> = settlements.iter().filter_map(|each| each.entry.clone()).collect();
            self.appends.push(Box::pin(async move {
                let mut appended = if entries.is_empty() { Vec::new() } else { log.append(entries).await }.into_iter();
                let no_topic =
                    || Err(LogError::Unavailable("the topic of the retry or dead letter does not exist".to_owned()));
                let outcome_of = |each: &Settlement| match each.entry {
                    Some(_) => appended.next().unwrap_or_else(no_topic),
                    None => no_topic(),
                };
                let outcomes: Vec<_> = settlements.iter().map(outcome_of).collect();
                if outcomes.iter().any(Result::is_err) {
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                AppendDone { settlements, outcomes }
            }));
        }
    }

    pub(super) fn appended(&mut self, done: AppendDone) {
        let now = self.now();
        for (settlement, outcome) in done.settlements.into_iter().zip(done.outcomes) {
            if outcome.is_ok() && self.judged_due(&settlement, now) != settlement.due {
                // The clock was set back during the append.
                self.retry_check_at = Some(Instant::now());
            }
            let Settlement { out: DeliveryRef { line, incarnation, ticket }, kind, .. } = settlement;
            let Some(line) = self.line_at(line, incarnation) else { continue };
            match outcome {
                Ok(_) => {
                    line.settled(ticket);
                    match kind {
                        SettlementKind::Hold => self.retry_holds += 1,
                        SettlementKind::DeadLetter => {
                            self.metrics.buried.increment(1);
                            // A dead letter of an event causes no event, or a loop could result.
                            if *settlement.message.topic != *EVENTS_TOPIC {
                                self.buried_unsaid += 1;
                                self.buried_lastly = settlement.origin.reason.unwrap_or_default();
                            }
                        }
                    }
                }
                Err(LogError::TooLarge { .. }) if kind == SettlementKind::Hold => {
                    // With its origin header the message is too large for a hold. It waits in the window.
                    line.window.park_settling(ticket, settlement.due);
                }
                Err(LogError::TooLarge { .. }) if !settlement.message.record.value.is_empty() => {
                    self.bury_without_body(settlement, now);
                }
                Err(error) => {
                    tracing::warn!(%error, subscription = %self.subscription.name, "cannot append a retry or dead letter; retrying");
                    // The hold's id follows from the message and the attempt. If the hold was written after all, its repeat is ignored.
                    self.settle(settlement, now);
                }
            }
        }
    }

    fn bury_without_body(&mut self, mut settlement: Settlement, now: Timestamp) {
        let record = &settlement.message.record;
        settlement.message.record = Record { value: Bytes::new(), ..record.clone() };
        let reason = settlement.origin.reason.take().unwrap_or_default();
        settlement.origin.reason = Some(format!("{reason} (the body was removed: it is too large for a dead letter)"));
        self.settle(settlement, now);
    }

    /// Reports all new dead letters with one event.
    pub(super) fn report_dead_letters(&mut self) {
        let count = std::mem::take(&mut self.buried_unsaid);
        if count == 0 {
            return;
        }
        let name = &self.subscription.name;
        let reason = std::mem::take(&mut self.buried_lastly);
        let messages = if count == 1 { "a message".to_owned() } else { format!("{count} messages") };
        let detail = format!("{messages} of subscription `{name}` became dead letters; last reason: {reason}");
        (self.context.events)(Event::warning("dead_letter", detail).with("subscription", name).with("count", count));
    }
}
