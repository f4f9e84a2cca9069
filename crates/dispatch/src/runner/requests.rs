//! Answers requests about the subscription.

use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, DeliveryState, DispatchError, DispatchReply, DispatchRequest,
    MessageDelivery, PartitionDelivery, ReplayProgress, SubscriptionStatus,
};
use whimbrel_model::subscription::start_in;
use whimbrel_model::{PartitionId, Record, Timestamp};

use super::{RequestId, RunnerEffect, SubscriptionRunner};
use crate::delivery_line::DeliveryLine;
use crate::line_set::CURSOR;
use crate::window::WindowMessageState;

impl SubscriptionRunner {
    pub(super) fn answer(&mut self, request: RequestId, ask: DispatchRequest) {
        let reply = match ask {
            DispatchRequest::Status => return self.read_ends(request),
            DispatchRequest::CaughtUp { version } if self.subscription.version < version => {
                return self.changes.wait(version, request);
            }
            DispatchRequest::CaughtUp { .. } => DispatchReply::CaughtUp,
            DispatchRequest::Pull { max, wait_ms } => return self.pull(max, wait_ms, request),
            DispatchRequest::Ack { ack_ids } => self.ack(ack_ids),
            DispatchRequest::Nack { ack_ids, delay_ms } => self.nack(ack_ids, delay_ms),
            DispatchRequest::Extend { ack_ids, lease_ms } => self.extend(ack_ids, lease_ms),
            DispatchRequest::Message { partition, offset } => {
                // The answer includes all attempts so far.
                self.record_attempts();
                return self.effects.push(RunnerEffect::FindMessage { request, partition, offset });
            }
            DispatchRequest::DeadLetters { from, limit } => match self.sources.dead() {
                None => DispatchReply::DeadLetters { letters: Vec::new(), next: None },
                Some(partition) => {
                    let redriven = self.redriven.offsets().clone();
                    let effect = RunnerEffect::ListDeadLetters { request, partition, from, limit, redriven };
                    return self.effects.push(effect);
                }
            },
            DispatchRequest::Redrive { ids } => return self.redrive(request, ids),
        };
        self.reply(request, Ok(reply));
    }

    fn redrive(&mut self, request: RequestId, ids: Option<Vec<String>>) {
        if !self.redriven.begin() {
            let why = "a redrive of this subscription is in progress".to_owned();
            return self.reply(request, Err(DispatchError::Unavailable(why)));
        }
        let redriven = self.redriven.offsets().clone();
        self.effects.push(RunnerEffect::Redrive { request, ids, redriven });
    }

    /// Answers with the status, after the ends of all partitions were read.
    fn read_ends(&mut self, request: RequestId) {
        let partitions = self.lines.cursor().map(|line| line.window.partition_ids()).unwrap_or_default();
        self.effects.push(RunnerEffect::ReadEnds { request, partitions, dead: self.sources.dead() });
    }

    pub(super) fn reply_status(&mut self, request: RequestId, ends: &[(PartitionId, Option<u64>)], dead: u64) {
        let status = self.status(ends, dead);
        self.reply(request, Ok(DispatchReply::Status(Box::new(status))));
    }

    fn status(&mut self, ends: &[(PartitionId, Option<u64>)], dead: u64) -> SubscriptionStatus {
        let now = self.now();
        let (parked_keys, parked_messages) = self.lines.parked();
        let (delivered_rate, failed_rate) = self.history.rates(now);
        let mut status = SubscriptionStatus {
            in_flight: self.lines.in_flight() as u64,
            next_try_ms: self.next_try(now).map(Timestamp::as_millis),
            retry_holds: self.retry_holds.count(),
            dead_letters: dead.saturating_sub(self.redriven.offsets().len()),
            delivered_rate,
            failed_rate,
            concurrency: self.health.concurrency(),
            breaker: self.health.breaker().to_owned(),
            stalled: self.incidents.stalled().map(|reason| reason.word().to_owned()),
            last_error: self.history.last_error().cloned(),
            prefetched_bytes: self.lines.body_bytes() as u64,
            unverifiable: self.history.unverifiable(),
            parked_keys,
            parked_messages,
            ..SubscriptionStatus::default()
        };
        for line in self.lines.iter().filter(|line| line.number != CURSOR) {
            let ids = line.window.partition_ids();
            let left = ids.iter().map(|id| line.window.left(*id)).sum();
            let done = ids.iter().map(|id| self.replayed(line, *id)).sum();
            status.replays.push(ReplayProgress { run: line.run, done, left });
        }
        let Some(cursor) = self.lines.cursor() else { return status };
        for (id, end) in ends {
            let (Some(watermark), Some(read_to)) = (cursor.window.watermark(*id), cursor.window.read_to(*id)) else {
                continue;
            };
            let unfinished = cursor.window.unfinished(*id);
            let end = end.unwrap_or(read_to);
            status.lag += unfinished + end.saturating_sub(read_to);
            let topic = self.sources.get(id.topic).map(|source| source.topic.to_string()).unwrap_or_default();
            status.partitions.push(PartitionDelivery {
                topic,
                partition: id.index,
                watermark,
                read_to,
                end,
                unfinished,
            });
        }
        status
    }

    /// When the next attempt of a waiting message may start.
    fn next_try(&mut self, now: Timestamp) -> Option<Timestamp> {
        if !self.subscription.stored.is_active() {
            return None;
        }
        let barred_until = self.health.barred_until().filter(|until| *until > now);
        next_try(self.lines.has_ready(now), self.lines.next_time(), barred_until)
    }

    /// The number of offsets of a partition that a replay has done.
    fn replayed(&self, line: &DeliveryLine<Record>, id: PartitionId) -> u64 {
        let replay = self.subscription.stored.replays.iter().find(|replay| replay.run == line.number);
        let (Some(replay), Some(source)) = (replay, self.sources.get(id.topic)) else { return 0 };
        let from = start_in(&replay.from, &source.topic, id.topic, id.index);
        let read = line.window.read_to(id).unwrap_or(from).saturating_sub(from);
        read.saturating_sub(line.window.unfinished(id))
    }

    /// Answers with the delivery state of a message: from the window, or from recorded attempts if the window has finished it.
    pub(super) fn reply_message(
        &mut self,
        request: RequestId,
        (partition, offset): (PartitionId, u64),
        attempts: Vec<AttemptRecord>,
        record: Option<Record>,
    ) {
        let is = self.standing(partition, offset, &attempts, record.as_ref());
        self.reply(request, Ok(DispatchReply::Message(MessageDelivery { is, attempts })));
    }

    fn standing(
        &self,
        partition: PartitionId,
        offset: u64,
        attempts: &[AttemptRecord],
        record: Option<&Record>,
    ) -> DeliveryState {
        let Some(cursor) = self.lines.cursor() else { return DeliveryState::Waiting };
        let Some(source) = self.sources.get(partition.topic) else { return DeliveryState::NotForIt };
        match cursor.window.message_state(partition, offset) {
            WindowMessageState::Ahead | WindowMessageState::Waiting => return DeliveryState::Waiting,
            WindowMessageState::InFlight => return DeliveryState::InFlight,
            WindowMessageState::Retrying { .. } => return DeliveryState::Retrying,
            WindowMessageState::Done => {}
        }
        match attempts.last().map(|note| &note.outcome) {
            Some(AttemptOutcome::Delivered { .. }) => DeliveryState::Delivered,
            Some(AttemptOutcome::Failed { next: AfterFailure::RetryAt(_), .. }) => DeliveryState::Retrying,
            Some(AttemptOutcome::Failed { next: AfterFailure::DeadLetter, .. }) => DeliveryState::Dead,
            Some(AttemptOutcome::Failed { next: AfterFailure::Dropped, .. }) => DeliveryState::Dropped,
            None => {
                let stored = &self.subscription.stored;
                let is_before = offset < stored.start_of(&source.topic, partition.topic, partition.index);
                let is_left_out = record.is_some_and(|record| !self.filter_of(CURSOR).takes(&source.topic, record));
                if is_before || is_left_out { DeliveryState::NotForIt } else { DeliveryState::Delivered }
            }
        }
    }
}

/// Ready messages wait only for the breaker; parked messages wait for their own time too.
fn next_try(is_ready: bool, parked_until: Option<Timestamp>, barred_until: Option<Timestamp>) -> Option<Timestamp> {
    if is_ready && barred_until.is_some() {
        barred_until
    } else {
        parked_until.map(|until| barred_until.map_or(until, |bar| bar.max(until)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_attempt_waits_for_the_retry_time_and_the_breaker() {
        let at = |ms| Some(Timestamp::from_millis(ms));
        assert_eq!(next_try(false, None, at(5)), None, "no message waits");
        assert_eq!(next_try(false, at(3), None), at(3));
        assert_eq!(next_try(false, at(3), at(5)), at(5));
        assert_eq!(next_try(false, at(7), at(5)), at(7));
        assert_eq!(next_try(true, at(7), at(5)), at(5), "ready messages go first");
        assert_eq!(next_try(true, None, None), None, "ready messages go now");
    }
}
