//! Settling: a failed message becomes a hold on the retry topic or a dead letter, and is done when that is durable.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use whimbrel_model::ports::{Entry, LogError};
use whimbrel_model::subscription::{Origin, dead_topic};
use whimbrel_model::{EVENTS_TOPIC, Event, HoldRecord, Record, Timestamp};

use super::{RETRY_AFTER, Runner};
use crate::judge::Failure;
use crate::letters::{Parcel, RetryTopic, buried};
use crate::window::Ticket;

/// Settlements of one append.
const APPENDED_AT_ONCE: usize = 1000;
/// Appends under way at one time.
const APPENDS_MAX: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hold,
    DeadLetter,
}

/// What is out: the line, which one of its number, and under which ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutAs {
    pub line: u32,
    pub incarnation: u64,
    pub ticket: Ticket,
}

pub(super) struct Settlement {
    out: OutAs,
    kind: Kind,
    /// `None`: the topic that it goes to is not there at the moment.
    entry: Option<Entry>,
    parcel: Parcel,
    origin: Origin,
    due: Timestamp,
}

/// Why a message died.
pub(super) struct Why<'a> {
    pub reason: &'a str,
    pub failure: Option<&'a Failure>,
}

pub(super) struct AppendDone {
    settlements: Vec<Settlement>,
    outcomes: Vec<Result<u64, LogError>>,
}

impl Runner {
    /// The message becomes a hold that is due then.
    pub(super) fn hold(&mut self, out: OutAs, parcel: Parcel, attempts: u32, due: Timestamp, now: Timestamp) {
        let origin = parcel.origin(&self.subscription.name, attempts);
        self.settle(Settlement { out, kind: Kind::Hold, entry: None, parcel, origin, due }, now);
    }

    /// The message becomes a dead letter.
    pub(super) fn bury(&mut self, out: OutAs, parcel: Parcel, attempts: u32, why: Why<'_>, now: Timestamp) {
        let origin = parcel.origin(&self.subscription.name, attempts);
        let origin = buried(origin, why.reason, why.failure, now);
        self.settle(Settlement { out, kind: Kind::DeadLetter, entry: None, parcel, origin, due: now }, now);
    }

    fn settle(&mut self, mut settlement: Settlement, now: Timestamp) {
        settlement.due = self.judged_due(&settlement, now);
        settlement.entry = self.entry_of(&settlement, now);
        self.to_append.push(settlement);
    }

    /// The due time of the retry, checked again: the clock may have been set back since the due time was chosen.
    fn judged_due(&self, settlement: &Settlement, now: Timestamp) -> Timestamp {
        let Settlement { out, kind, parcel, origin, due, .. } = settlement;
        match self.lines.get(&out.line) {
            Some(line) if *kind == Kind::Hold => {
                line.rules.ladder(parcel.own_retry()).resume(origin.attempts, *due, now)
            }
            _ => *due,
        }
    }

    fn entry_of(&self, settlement: &Settlement, now: Timestamp) -> Option<Entry> {
        let Settlement { kind, parcel, origin, due, .. } = settlement;
        match kind {
            Kind::Hold => {
                let number = self.retry_source()?;
                let to = RetryTopic { number, name: &self.sources.get(&number)?.topic };
                let hold = parcel.hold(self.subscription.number(), origin, to, *due);
                let partition = self.holds_partition(&hold.id)?;
                Some(Entry { partition, record: HoldRecord::Held(hold).to_record(now) })
            }
            Kind::DeadLetter => {
                let topic = self.tools.registry.get(&dead_topic(&self.subscription.name))?;
                Some(Entry { partition: topic.partition(0), record: parcel.letter(origin, now) })
            }
        }
    }

    pub(super) fn start_appends(&mut self) {
        while !self.to_append.is_empty() && self.appends.len() < APPENDS_MAX {
            let count = self.to_append.len().min(APPENDED_AT_ONCE);
            let settlements: Vec<Settlement> = self.to_append.drain(..count).collect();
            let log = Arc::clone(&self.tools.log);
            let entries: Vec<Entry> = settlements.iter().filter_map(|each| each.entry.clone()).collect();
            self.appends.push(Box::pin(async move {
                let mut appended = if entries.is_empty() { Vec::new() } else { log.append(entries).await }.into_iter();
                let no_topic = || Err(LogError::Unavailable("its topic is not there".to_owned()));
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
                // The clock was set back while the hold was on its way.
                self.retry_check_at = Some(Instant::now());
            }
            let Settlement { out: OutAs { line, incarnation, ticket }, kind, .. } = settlement;
            let Some(line) = self.line_at(line, incarnation) else { continue };
            match outcome {
                Ok(_) => {
                    line.settled(ticket);
                    match kind {
                        Kind::Hold => self.retry_holds += 1,
                        Kind::DeadLetter => {
                            self.figures.buried.increment(1);
                            // That of an event is no event: it would have to be delivered too, and so on for ever.
                            if *settlement.parcel.topic != *EVENTS_TOPIC {
                                self.buried_unsaid += 1;
                                self.buried_lastly = settlement.origin.reason.unwrap_or_default();
                            }
                        }
                    }
                }
                Err(LogError::TooLarge { .. }) if kind == Kind::Hold => {
                    // With where it comes from in front it is too large to be held: it waits where it is.
                    line.window.park_settling(ticket, settlement.due);
                }
                Err(LogError::TooLarge { .. }) if !settlement.parcel.record.value.is_empty() => {
                    self.bury_without_body(settlement, now);
                }
                Err(error) => {
                    tracing::warn!(%error, subscription = %self.subscription.name, "a retry or dead letter could not be written; trying on");
                    // The id is made of the message and the attempt: if it was written after all, a repeat of a hold folds away.
                    self.settle(settlement, now);
                }
            }
        }
    }

    fn bury_without_body(&mut self, mut settlement: Settlement, now: Timestamp) {
        let record = &settlement.parcel.record;
        settlement.parcel.record = Record { value: Bytes::new(), ..record.clone() };
        let reason = settlement.origin.reason.take().unwrap_or_default();
        settlement.origin.reason = Some(format!("{reason} (its body is left out: it is too large for a dead letter)"));
        self.settle(settlement, now);
    }

    /// One event for all that died of late.
    pub(super) fn say_buried(&mut self) {
        let count = std::mem::take(&mut self.buried_unsaid);
        if count == 0 {
            return;
        }
        let name = &self.subscription.name;
        let reason = std::mem::take(&mut self.buried_lastly);
        let messages = if count == 1 { "a message".to_owned() } else { format!("{count} messages") };
        let detail = format!("{messages} of subscription `{name}` went to the dead letters, lastly: {reason}");
        (self.tools.events)(Event::warning("dead_letter", detail).with("subscription", name).with("count", count));
    }
}
