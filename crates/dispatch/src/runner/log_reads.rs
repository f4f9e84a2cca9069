//! Reads messages for the lines.

use std::ops::Range;
use std::sync::Arc;

use whimbrel_model::ports::{LogError, ReadBatch};
use whimbrel_model::{Event, PartitionId};

use super::{ReadDone, RunnerEffect, SubscriptionRunner};
use crate::incidents::StallReason;
use crate::line_set::DeliveryRef;
use crate::outbound_message::{OutboundMessage, RetryData};
use crate::pending_appends::DeathReason;
use crate::window::{DeliveryTicket, ReadMessage, ReadRequest};

/// The approximate memory of a message beside its bytes.
const MESSAGE_BYTES: usize = 200;

impl SubscriptionRunner {
    pub(super) fn start_reads(&mut self) {
        if self.pending.is_full() {
            return;
        }
        for line in self.lines.iter_mut() {
            while let Some(wanted) = line.window.next_read() {
                let (line, incarnation) = (line.number, line.incarnation);
                self.effects.push(RunnerEffect::Read { line, incarnation, wanted });
            }
        }
    }

    pub(super) fn was_read(&mut self, done: ReadDone) {
        let ReadDone { line, incarnation, wanted, outcome } = done;
        if self.lines.at(line, incarnation).is_none() {
            return;
        }
        match outcome {
            Ok(batch) => {
                let event = self.incidents.end_stall(StallReason::LogUnavailable, &self.subscription.name);
                self.publish(event);
                self.take_batch(line, wanted, batch);
            }
            Err(LogError::Trimmed { first, .. }) => self.skip(line, wanted, 0..first, "left the log's retention"),
            Err(LogError::Damaged { resume_at, .. }) => {
                self.skip(line, wanted, wanted.from..resume_at, "is damaged in the log")
            }
            Err(error) => {
                if matches!(error, LogError::Unavailable(_) | LogError::Poisoned(_)) {
                    let stalled = Some(StallReason::LogUnavailable);
                    let event = self.incidents.set_stalled(stalled, &self.subscription.name);
                    self.publish(event);
                }
                self.lines.get_mut(line).expect("the line exists").window.end_read(wanted);
            }
        }
    }

    /// Takes messages in. Growths are followed, and their partitions opened, before any message published after them: the shell passes the
    /// topics of the catalogue before the result of a read.
    fn take_batch(&mut self, number: u32, wanted: ReadRequest, batch: ReadBatch) {
        let Some(source) = self.sources.get(wanted.partition.topic) else { return };
        let filter = self.filter_of(number);
        let is_retry = source.is_retry;
        let topic = Arc::clone(&source.topic);
        let mut arrived_retries = 0;
        let arrivals: Vec<ReadMessage<_>> = batch
            .records
            .into_iter()
            .map(|stored| {
                let record = stored.record;
                let is_wanted = is_retry || filter.takes(&topic, &record);
                arrived_retries += u64::from(is_retry && !wanted.again);
                // A copy of its own: a waiting message must not keep the whole read buffer in memory.
                let body = is_wanted.then(|| record.compact());
                // A filtered message has a key too: a lane may wait for its offset.
                let key = body.as_ref().map_or(&record.key, |body| &body.key).clone();
                ReadMessage { offset: stored.offset, key, size: record.size() + MESSAGE_BYTES, body }
            })
            .collect();
        self.retry_holds.fired(arrived_retries);
        let now = self.now();
        let line = self.lines.get_mut(number).expect("the line exists");
        if wanted.again {
            let lost = line.window.take_again(wanted, arrivals, batch.next);
            self.bury_lost(number, wanted.partition, lost, "is no longer in the log");
        } else if line.window.joins_on(&wanted) {
            // Saved retry times are checked here, because only the record has the message's own retry rule.
            for ReadMessage { offset, body, .. } in &arrivals {
                if let Some(record) = body
                    && line.window.has_saved_retry(wanted.partition, *offset)
                {
                    let brought = if is_retry { RetryData::from_origin_record(record) } else { RetryData::of(record) };
                    line.judge_saved_retry(wanted.partition, *offset, &brought, now);
                }
            }
            line.window.take_in(wanted.partition, arrivals, batch.next);
        }
    }

    /// Skips offsets that the log cannot return, and reports undelivered messages among them.
    fn skip(&mut self, number: u32, wanted: ReadRequest, gone: Range<u64>, what: &str) {
        let to = gone.end;
        let line = self.lines.get_mut(number).expect("the line exists");
        let before = line.window.read_to(wanted.partition).unwrap_or(to);
        line.window.end_read(wanted);
        // If there are more, the next read returns the same error.
        let lost = line.window.gone(wanted.partition, gone, self.settings.lost_at_once);
        let after = line.window.read_to(wanted.partition).unwrap_or(before);
        if after > before {
            let name = &self.subscription.name;
            let detail = format!(
                "subscription `{name}` continues at offset {to} of {}: each earlier message from offset {before} on {what}",
                wanted.partition
            );
            let event = Event::warning("subscription_truncated", detail).with("subscription", name);
            self.publish(Some(event.with("from", before).with("to", after)));
        }
        self.bury_lost(number, wanted.partition, lost, what);
    }

    /// Makes dead letters of messages whose bodies are lost.
    fn bury_lost(&mut self, number: u32, partition: PartitionId, lost: Vec<(DeliveryTicket, u64)>, what: &str) {
        if lost.is_empty() {
            return;
        }
        let now = self.now();
        let Some(topic) = self.sources.get(partition.topic).map(|source| Arc::clone(&source.topic)) else { return };
        let Some((incarnation, run)) = self.lines.get(number).map(|line| (line.incarnation, line.run)) else { return };
        let reason = format!("the message {what} before it was delivered");
        for (ticket, offset) in lost {
            let message = OutboundMessage::lost(&topic, partition, offset, run, now);
            let out = DeliveryRef { line: number, incarnation, ticket };
            self.bury(out, message, 0, DeathReason { reason: &reason, failure: None }, now);
        }
    }
}
