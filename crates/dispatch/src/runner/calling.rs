//! Calling, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::{AfterFailure, AttemptNote, AttemptOutcome, Call, Called, LastError};
use whimbrel_model::subscription::{Envelope, Mode};
use whimbrel_model::{EVENTS_TOPIC, Event, Record, Timestamp};

use super::settling::{OutAs, Why};
use super::{RETRY_AFTER, Runner};
use crate::judge::{Failure, Verdict, judge};
use crate::letters::Parcel;
use crate::line::{Line, Next};
use crate::window::Delivery;

/// What an endpoint answers that is no more.
const GONE: u16 = 410;
/// How long everybody waits after a 429 that does not say how long.
const HELD_OFF_DEFAULT: Duration = Duration::from_secs(1);

/// A message that is out: what its answer belongs to.
pub(super) struct Outgoing {
    pub out: OutAs,
    /// The first is 1.
    pub attempt: u32,
    pub started: Timestamp,
    pub parcel: Parcel,
}

pub(super) struct CallDone {
    outgoing: Outgoing,
    called: Called,
}

impl Runner {
    pub(super) fn start_calls(&mut self, now: Timestamp) {
        if self.subscription.stored.spec.mode != Mode::Push || self.held_off.is_some_and(|until| until > now) {
            return;
        }
        let mut in_flight: usize = self.lines.values().map(|line| line.window.in_flight()).sum();
        while in_flight < self.pace.limit() as usize && self.breaker.lets_through(now) && self.rate_allows(now) {
            let Some(outgoing) = self.next_outgoing(now) else { return };
            in_flight += 1;
            self.breaker.started();
            self.start_call(outgoing);
        }
    }

    fn start_call(&mut self, outgoing: Outgoing) {
        let parcel = &outgoing.parcel;
        let target = self.target(&parcel.topic);
        // The other envelopes have their payload as text.
        let is_raw = target.envelope == Envelope::Binary && !target.secrets.is_empty();
        self.unverifiable += u64::from(is_raw && std::str::from_utf8(&parcel.record.value).is_err());
        let call = Call {
            target,
            topic: Arc::clone(&parcel.topic),
            partition: parcel.place.index,
            offset: parcel.offset,
            attempt: outgoing.attempt,
            id: parcel.id.clone(),
            published_at: parcel.published_at,
            record: parcel.record.clone(),
            rule: parcel.rule.clone(),
        };
        let callbacks = Arc::clone(&self.reach.callbacks);
        self.calls.push(Box::pin(async move {
            let called = callbacks.call(call).await;
            CallDone { outgoing, called }
        }));
    }

    pub(super) fn rate_allows(&mut self, now: Timestamp) -> bool {
        self.throttle.as_mut().is_none_or(|throttle| throttle.lets_through(now))
    }

    /// The next message that may go out. Lines take turns.
    pub(super) fn next_outgoing(&mut self, now: Timestamp) -> Option<Outgoing> {
        let in_place = self.subscription.stored.spec.retries_in_place();
        let fresh = in_place || self.retry_holds < self.tools.settings.retry_holds;
        loop {
            let next =
                |line: &mut Line<Record>| line.window.next_delivery(now, fresh).map(|delivery| (line.number, delivery));
            let after = self.lines.range_mut(self.last_line.saturating_add(1)..).find_map(|(_, line)| next(line));
            let (number, delivery) =
                after.or_else(|| self.lines.range_mut(..=self.last_line).find_map(|(_, line)| next(line)))?;
            self.last_line = number;
            if let Some(outgoing) = self.outgoing(number, delivery, now) {
                if let Some(throttle) = &mut self.throttle {
                    throttle.take();
                }
                return Some(outgoing);
            }
        }
    }

    fn outgoing(&mut self, number: u32, delivery: Delivery<Record>, now: Timestamp) -> Option<Outgoing> {
        let source = self.sources.get(&delivery.partition.topic)?;
        let line = self.lines.get_mut(&number)?;
        let parcel = if source.is_retry {
            match Parcel::of_letter(&delivery.body) {
                Some((parcel, _)) => parcel,
                None => {
                    tracing::warn!(offset = delivery.offset, topic = %source.topic, "a record there is no retry");
                    line.window.done(delivery.ticket);
                    return None;
                }
            }
        } else {
            Parcel::of(&source.topic, delivery.partition, delivery.offset, line.run, delivery.body)
        };
        Some(Outgoing {
            out: OutAs { line: number, incarnation: line.incarnation, ticket: delivery.ticket },
            attempt: parcel.attempts_before + delivery.attempts + 1,
            started: now,
            parcel,
        })
    }

    pub(super) fn answered(&mut self, done: CallDone) {
        let CallDone { outgoing, called } = done;
        let now = self.now();
        let spec = &self.subscription.stored.spec;
        let verdict = judge(spec, outgoing.parcel.rule.as_deref(), called.outcome);
        let took = called.took;
        match verdict {
            Verdict::Success { status } => self.succeeded(outgoing, status, took, now),
            Verdict::Failure(failure) => self.failed(outgoing, failure, took, now),
            Verdict::Gone => {
                self.breaker.not_tried(now);
                // Until the catalogue has it, it is not called as fast as it answers.
                let until = later(now, RETRY_AFTER);
                if let Some(line) = self.line_at(outgoing.out.line, outgoing.out.incarnation) {
                    line.not_tried(outgoing.out.ticket, until);
                    self.note_gone(&outgoing, took, until, now);
                }
                self.disable("the endpoint answered 410: it is gone".to_owned());
            }
            Verdict::NotTried { why } => {
                self.breaker.not_tried(now);
                let until = later(now, RETRY_AFTER);
                if let Some(line) = self.line_at(outgoing.out.line, outgoing.out.incarnation) {
                    line.not_tried(outgoing.out.ticket, until);
                }
                self.last_error = Some(LastError { at_ms: now.as_millis(), status: None, reason: why });
            }
        }
    }

    /// It counts as no attempt, and is shown as one: whoever looks wants to know what was answered.
    fn note_gone(&mut self, outgoing: &Outgoing, took: Duration, until: Timestamp, now: Timestamp) {
        let (status, reason) = (Some(GONE), format!("answered {GONE}"));
        self.figures.failed.increment(1);
        self.failed.add(now, 1);
        self.last_error = Some(LastError { at_ms: now.as_millis(), status, reason: reason.clone() });
        let (reason, answer, next) = (reason.into(), bytes::Bytes::new(), AfterFailure::RetryAt(until));
        self.note(outgoing, took, AttemptOutcome::Failed { status, reason, answer, next });
    }

    pub(super) fn succeeded(&mut self, outgoing: Outgoing, status: u16, took: Duration, now: Timestamp) {
        if self.breaker.succeeded() {
            let name = &self.subscription.name;
            let event = Event::new("breaker_closed", format!("the endpoint of `{name}` works again"));
            (self.tools.events)(event.with("subscription", name));
        }
        self.pace.succeeded();
        self.fails_no_more();
        let Some(line) = self.line_at(outgoing.out.line, outgoing.out.incarnation) else { return };
        if line.succeeded(outgoing.out.ticket) == Next::Stale {
            return;
        }
        self.figures.delivered.increment(1);
        self.delivered.add(now, 1);
        let parcel = &outgoing.parcel;
        let delay_ms = (now.as_millis() - parcel.since.as_millis()).max(0) as u64;
        self.figures.delay.record(delay_ms as f64 / 1e3);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // How long a puller had a message is nobody's callback.
        let callback_us = (self.subscription.stored.spec.mode == Mode::Push).then_some(took_us);
        self.tools.stats.delivered(parcel.place.topic, delay_ms.saturating_mul(1000), callback_us);
        self.note(&outgoing, took, AttemptOutcome::Delivered { status });
    }

    /// One attempt failed: what comes next is decided and begun.
    pub(super) fn failed(&mut self, outgoing: Outgoing, failure: Failure, took: Duration, now: Timestamp) {
        self.note_health(&failure, now);
        let random = self.random();
        let own = outgoing.parcel.own_retry().cloned();
        let Some(line) = self.line_at(outgoing.out.line, outgoing.out.incarnation) else { return };
        let next = line.failed(outgoing.out.ticket, outgoing.attempt, &failure, own.as_ref(), now, random);
        if next == Next::Stale {
            return;
        }
        self.figures.failed.increment(1);
        self.failed.add(now, 1);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let callback_us = (self.subscription.stored.spec.mode == Mode::Push).then_some(took_us);
        self.tools.stats.failed(outgoing.parcel.place.topic, callback_us);
        let after = match next {
            Next::Parked(until) | Next::Hold(until) => AfterFailure::RetryAt(until),
            Next::Bury => AfterFailure::DeadLetter,
            Next::Done | Next::Stale => AfterFailure::Dropped,
        };
        let outcome = AttemptOutcome::Failed {
            status: failure.status,
            reason: failure.reason.as_str().into(),
            answer: failure.answer.clone(),
            next: after,
        };
        self.note(&outgoing, took, outcome);
        let Outgoing { out, attempt, parcel, .. } = outgoing;
        match next {
            Next::Hold(due) => self.hold(out, parcel, attempt, due, now),
            Next::Bury => {
                let why = Why { reason: &failure.reason, failure: Some(&failure) };
                self.bury(out, parcel, attempt, why, now);
            }
            Next::Done => self.dropped(&parcel, &failure),
            Next::Parked(_) | Next::Stale => {}
        }
    }

    /// What a failure says about the endpoint. Where each message brings its own callback, or is pulled, there is none: how one place
    /// fares says nothing about the others.
    fn note_health(&mut self, failure: &Failure, now: Timestamp) {
        self.last_error =
            Some(LastError { at_ms: now.as_millis(), status: failure.status, reason: failure.reason.clone() });
        let spec = &self.subscription.stored.spec;
        if spec.endpoint.as_ref().is_none_or(|endpoint| endpoint.url.is_none()) {
            return;
        }
        self.fails_since(now);
        if failure.strain {
            self.pace.strained(now);
        }
        if failure.throttled {
            let wait =
                failure.retry_after.unwrap_or(HELD_OFF_DEFAULT).min(whimbrel_model::subscription::RETRY_AFTER_MAX);
            self.held_off = self.held_off.max(Some(later(now, wait)));
        }
        if !failure.endpoint {
            // It answers, and only does not like this message.
            self.breaker.succeeded();
        } else if self.breaker.failed(now) {
            let name = &self.subscription.name;
            let detail = format!("the endpoint of `{name}` fails, and is left alone for a while: {}", failure.reason);
            let event = Event::warning("breaker_opened", detail).with("subscription", name);
            (self.tools.events)(event.with("reason", &failure.reason));
        }
    }

    fn dropped(&mut self, parcel: &Parcel, failure: &Failure) {
        self.figures.dropped.increment(1);
        // An event that cannot be delivered is no event, or it would have to be delivered too, and so on for ever.
        if *parcel.topic == *EVENTS_TOPIC {
            return;
        }
        let name = &self.subscription.name;
        let detail = format!(
            "subscription `{name}` dropped message {} of `{}` after its last attempt: {}",
            parcel.id, parcel.topic, failure.reason
        );
        let event = Event::warning("message_dropped", detail).with("subscription", name).with("id", &parcel.id);
        (self.tools.events)(event);
    }

    pub(super) fn note(&mut self, outgoing: &Outgoing, took: Duration, outcome: AttemptOutcome) {
        self.notes.push(AttemptNote {
            subscription: self.subscription.number(),
            run: outgoing.parcel.run,
            partition: outgoing.parcel.place,
            offset: outgoing.parcel.offset,
            attempt: outgoing.attempt,
            at: outgoing.started,
            took_ms: u32::try_from(took.as_millis()).unwrap_or(u32::MAX),
            outcome,
        });
    }
}

pub(super) fn later(now: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_add(by.as_millis() as i64))
}
