//! Appends the carrier's records to the log until they are durable. The message of a dead letter is read from the log first.

use whimbrel_model::ports::{Entry, LogError, ReadLimits};
use whimbrel_model::{Event, PartitionId, Record, Timestamp};

use super::owner::CarrierContext;
use super::partition::CarrierRecord;
use super::settings::RETRY_AFTER;
use whimbrel_cluster::line_limit::LineLimit;

/// Appends all records and retries those that failed. Ids derive from the content, so a repeated append has no effect.
pub(super) async fn append(
    context: &CarrierContext,
    number: u32,
    partition: PartitionId,
    outbound: Vec<CarrierRecord>,
) {
    let mut waiting = Vec::with_capacity(outbound.len());
    let mut exhausted = 0;
    for item in outbound {
        let now = context.clock.now();
        let entry = match &item {
            CarrierRecord::Exhausted { offset, .. } => {
                exhausted_entry(context, number, partition, *offset, &item, now).await
            }
            _ => context.topics.entry(number, &item, now),
        };
        match entry {
            Some(entry) => {
                exhausted += u64::from(matches!(item, CarrierRecord::Exhausted { .. }));
                waiting.push((item, entry));
            }
            None => refused(context, number, &item, "the log no longer has the message"),
        }
    }
    while !waiting.is_empty() {
        let entries: Vec<Entry> = waiting.iter().map(|(_, entry)| entry.clone()).collect();
        let mut outcomes = context.log.append(entries).await.into_iter();
        waiting.retain(|(item, _)| match outcomes.next() {
            Some(Ok(_)) => false,
            // Permanent: the record is too large for its topic, or the partition does not exist.
            Some(Err(error @ (LogError::TooLarge { .. } | LogError::UnknownPartition(_)))) => {
                refused(context, number, item, &error.to_string());
                false
            }
            Some(Err(_)) | None => true,
        });
        if !waiting.is_empty() {
            let (partition, records) = (number, waiting.len());
            static LINES: LineLimit = LineLimit::new();
            if let Some(left_out) = LINES.admit("") {
                tracing::warn!(partition, records, left_out, "cannot append the carrier's records; retrying");
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
    if exhausted > 0 {
        let detail = format!(
            "{exhausted} pushes of partition {number} expired without an acknowledgement after all retries; \
             `GET /v1/push/dead-letters` lists them"
        );
        let event = Event::warning("push_dead_letter", detail).with("partition", number);
        (context.events)(event.with("count", exhausted));
    }
}

fn refused(context: &CarrierContext, number: u32, item: &CarrierRecord, why: &str) {
    let detail = format!("cannot write a carrier record: {why}");
    tracing::error!(record = ?item, why, "cannot write a carrier record");
    (context.events)(Event::failure("push_record_rejected", detail).with("partition", number));
}

/// Makes the dead letter of a message from its record in the log. `None` if the log no longer has the record.
async fn exhausted_entry(
    context: &CarrierContext,
    number: u32,
    partition: PartitionId,
    offset: u64,
    item: &CarrierRecord,
    now: Timestamp,
) -> Option<Entry> {
    let record = record_at(context, partition, offset).await?;
    context.topics.exhausted(number, item, &record, now)
}

/// Reads the record at an offset, with retries while the log does not answer.
async fn record_at(context: &CarrierContext, partition: PartitionId, offset: u64) -> Option<Record> {
    let limits = ReadLimits { max_records: 1, max_bytes: 1, wait: std::time::Duration::ZERO };
    loop {
        match context.log.read(partition, offset, limits).await {
            Ok(batch) => {
                return batch.records.into_iter().find(|each| each.offset == offset).map(|stored| stored.record);
            }
            Err(LogError::Trimmed { .. } | LogError::BeyondEnd { .. } | LogError::Damaged { .. }) => return None,
            Err(error) => {
                tracing::warn!(%partition, offset, %error, "cannot read the message of a dead letter; retrying");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}
