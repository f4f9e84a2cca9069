//! Reading what the lines want, and handing it to them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};
use whimbrel_model::{Event, PartitionId};

use super::following::Source;
use super::settling::{OutAs, Why};
use super::{RETRY_AFTER, Runner};
use crate::letters::{BroughtRetry, Parcel};
use crate::window::{Arrival, ReadWanted, Ticket};

/// How long a read waits at the tail before it is begun anew.
const READ_WAIT: Duration = Duration::from_secs(10);
const READ_RECORDS: usize = 4096;
/// Messages that retention took and that become dead letters at one time.
const LOST_AT_ONCE: usize = 500;
/// Retries and dead letters that wait to be written; beyond, nothing is read.
const SETTLEMENTS_WAITING_MAX: usize = 10_000;
/// What a message costs in memory beside its bytes, about.
const MESSAGE_BYTES: usize = 200;

pub(super) struct ReadDone {
    line: u32,
    incarnation: u64,
    wanted: ReadWanted,
    outcome: Result<ReadBatch, LogError>,
}

impl Runner {
    pub(super) fn start_reads(&mut self) {
        if self.to_append.len() >= SETTLEMENTS_WAITING_MAX {
            return;
        }
        for line in self.lines.values_mut() {
            while let Some(wanted) = line.window.next_read() {
                let (number, incarnation) = (line.number, line.incarnation);
                let (log, registry) = (Arc::clone(&self.tools.log), Arc::clone(&self.tools.registry));
                let wait = if wanted.again { Duration::ZERO } else { READ_WAIT };
                let limits = ReadLimits { max_records: READ_RECORDS, max_bytes: wanted.max_bytes, wait };
                self.reads.push(Box::pin(async move {
                    let outcome = log.read(wanted.partition, wanted.from, limits).await;
                    // The messages may lie behind barriers that this node does not know yet.
                    registry.wait_for_barriers(wanted.partition.topic).await;
                    let is_known = matches!(outcome, Ok(_) | Err(LogError::Trimmed { .. } | LogError::Damaged { .. }));
                    // Bodies that are not visible again yet (a store that fell back) are asked for once more, a little later.
                    let is_empty = wanted.again && matches!(&outcome, Ok(batch) if batch.next <= wanted.from);
                    if !is_known || is_empty {
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                    ReadDone { line: number, incarnation, wanted, outcome }
                }));
            }
        }
    }

    pub(super) fn was_read(&mut self, done: ReadDone) {
        let ReadDone { line, incarnation, wanted, outcome } = done;
        if self.line_at(line, incarnation).is_none() {
            return;
        }
        match outcome {
            Ok(batch) => {
                if self.stalled == Some("log_unavailable") {
                    self.set_stalled(None);
                }
                self.take_batch(line, wanted, batch);
            }
            Err(LogError::Trimmed { first, .. }) => self.skip(line, wanted, 0..first, "left the log's retention"),
            Err(LogError::Damaged { resume_at, .. }) => {
                self.skip(line, wanted, wanted.from..resume_at, "is damaged in the log")
            }
            Err(error) => {
                tracing::debug!(%error, partition = %wanted.partition, "a read for a subscription failed");
                if matches!(error, LogError::Unavailable(_) | LogError::Poisoned(_)) {
                    self.set_stalled(Some("log_unavailable"));
                }
                self.lines.get_mut(&line).expect("it was just there").window.read_over(wanted);
            }
        }
    }

    fn take_batch(&mut self, number: u32, wanted: ReadWanted, batch: ReadBatch) {
        // A growth is known, and its partitions are open, before anything that was published after it is taken in.
        let is_followed = |source: &Source| {
            self.tools.registry.get(&source.topic).is_some_and(|topic| topic.version == source.version)
        };
        if !self.sources.get(&wanted.partition.topic).is_some_and(is_followed) {
            self.follow_topics();
        }
        let Some(source) = self.sources.get(&wanted.partition.topic) else { return };
        let filter = self.filter_of(number);
        let is_retry = source.is_retry;
        let topic = Arc::clone(&source.topic);
        let mut arrived_retries = 0;
        let arrivals: Vec<Arrival<_>> = batch
            .records
            .into_iter()
            .map(|stored| {
                let record = stored.record;
                let is_wanted = is_retry || filter.takes(&topic, &record);
                arrived_retries += u64::from(is_retry && !wanted.again);
                // In a buffer of its own: one that waits must not keep all that it was read with.
                let body = is_wanted.then(|| record.compact());
                // What is left out is known by its key as well: it may be what a lane waits for.
                let key = body.as_ref().map_or(&record.key, |body| &body.key).clone();
                Arrival { offset: stored.offset, key, size: record.size() + MESSAGE_BYTES, body }
            })
            .collect();
        self.retry_holds = self.retry_holds.saturating_sub(arrived_retries);
        let now = self.now();
        let line = self.lines.get_mut(&number).expect("it was just there");
        if wanted.again {
            let lost = line.window.take_again(wanted, arrivals, batch.next);
            self.bury_lost(number, wanted.partition, lost, "is no longer in the log");
        } else if line.window.joins_on(&wanted) {
            // Saved retry times are checked here, because only the record has the message's own retry rule.
            for Arrival { offset, body, .. } in &arrivals {
                if let Some(record) = body
                    && line.window.has_saved_retry(wanted.partition, *offset)
                {
                    let brought = if is_retry { BroughtRetry::of_letter(record) } else { BroughtRetry::of(record) };
                    line.judge_saved_retry(wanted.partition, *offset, &brought, now);
                }
            }
            line.window.take_in(wanted.partition, arrivals, batch.next);
        }
    }

    /// The log cannot give these. What was not delivered of them is said.
    fn skip(&mut self, number: u32, wanted: ReadWanted, gone: Range<u64>, what: &str) {
        let to = gone.end;
        let line = self.lines.get_mut(&number).expect("it was just there");
        let before = line.window.read_to(wanted.partition).unwrap_or(to);
        line.window.read_over(wanted);
        // Where there are more, the next read says so again.
        let lost = line.window.gone(wanted.partition, gone, LOST_AT_ONCE);
        let after = line.window.read_to(wanted.partition).unwrap_or(before);
        if after > before {
            let name = &self.subscription.name;
            let detail = format!(
                "subscription `{name}` goes on at offset {to} of {}: what came before, from {before} on, {what}",
                wanted.partition
            );
            let event = Event::warning("subscription_truncated", detail).with("subscription", name);
            (self.tools.events)(event.with("from", before).with("to", after));
        }
        self.bury_lost(number, wanted.partition, lost, what);
    }

    /// Messages whose bodies are gone become dead letters that say so.
    fn bury_lost(&mut self, number: u32, partition: PartitionId, lost: Vec<(Ticket, u64)>, what: &str) {
        if lost.is_empty() {
            return;
        }
        let now = self.now();
        let Some(topic) = self.sources.get(&partition.topic).map(|source| Arc::clone(&source.topic)) else { return };
        let (incarnation, run) = {
            let line = &self.lines[&number];
            (line.incarnation, line.run)
        };
        let reason = format!("the message {what} before it was delivered");
        for (ticket, offset) in lost {
            let parcel = Parcel::lost(&topic, partition, offset, run, now);
            let out = OutAs { line: number, incarnation, ticket };
            self.bury(out, parcel, 0, Why { reason: &reason, failure: None }, now);
        }
    }
}
