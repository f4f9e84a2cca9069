//! Settles failed messages: appends a hold for the retry topic or a dead letter. The message is done when that is durable.

use whimbrel_model::ports::Entry;
use whimbrel_model::{EVENTS_TOPIC, HoldRecord, Timestamp};

use super::{DeliveryCount, RunnerEffect, SubscriptionRunner};
use crate::line_set::DeliveryRef;
use crate::outbound_message::{OutboundMessage, RetryTopic, dead_letter_origin};
use crate::pending_appends::{AppendDone, DeathReason, Settlement, SettlementKind};

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
        self.pending.push(settlement);
    }

    /// The due time of the retry, checked again: the clock may have been set back since the due time was chosen.
    fn judged_due(&self, settlement: &Settlement, now: Timestamp) -> Timestamp {
        let Settlement { out, kind, message, origin, due, .. } = settlement;
        match self.lines.get(out.line) {
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
                let (number, name) = self.sources.retry()?;
                let to = RetryTopic { number, name };
                let hold = message.hold(self.subscription.number(), origin, to, *due);
                let partition = self.sources.holds_partition(&hold.id)?;
                Some(Entry { partition, record: HoldRecord::Held(hold).to_record(now) })
            }
            SettlementKind::DeadLetter => {
                Some(Entry { partition: self.sources.dead()?, record: message.origin_record(origin, now) })
            }
        }
    }

    pub(super) fn start_appends(&mut self) {
        while let Some(settlements) = self.pending.begin() {
            self.effects.push(RunnerEffect::Append(settlements));
        }
    }

    pub(super) fn appended(&mut self, done: AppendDone) {
        self.pending.ended();
        let now = self.now();
        for (mut settlement, outcome) in done.settlements.into_iter().zip(done.outcomes) {
            if outcome.is_ok() && self.judged_due(&settlement, now) != settlement.due {
                // The clock was set back during the append.
                self.retry_holds.check_at(self.clock.steady());
            }
            let Settlement { out: DeliveryRef { line, incarnation, ticket }, kind, .. } = settlement;
            let Some(line) = self.lines.at(line, incarnation) else { continue };
            match outcome {
                Ok(_) => {
                    line.settled(ticket);
                    match kind {
                        SettlementKind::Hold => self.retry_holds.held(),
                        SettlementKind::DeadLetter => {
                            self.effects.push(RunnerEffect::Count(DeliveryCount::Buried));
                            // A dead letter of an event causes no event, or a loop could result.
                            if *settlement.message.topic != *EVENTS_TOPIC {
                                self.incidents.buried(settlement.origin.reason.unwrap_or_default());
                            }
                        }
                    }
                }
                Err(error) if settlement.is_repeated_after(&error) => {
                    // The hold's id follows from the message and the attempt. If the hold was written after all, its repeat is ignored.
                    self.settle(settlement, now);
                }
                // With its origin header the message is too large for a hold. It waits in the window.
                Err(_) if kind == SettlementKind::Hold => {
                    line.window.park_settling(ticket, settlement.due);
                }
                Err(_) => {
                    settlement.remove_body();
                    self.settle(settlement, now);
                }
            }
        }
    }
}
