//! Appending what a carrier writes: until it is durable, with the messages of dead letters read from the log first.

use whimbrel_model::ports::{Entry, LogError, ReadLimits};
use whimbrel_model::{Event, PartitionId, Record, Timestamp};

use super::owner::Tools;
use super::partition::Letter;
use super::settings::RETRY_AFTER;
use whimbrel_cluster::line_limit::LineLimit;

/// Appends until everything is durable: what was not is tried again. Ids are made from what it is about, so that a repeat folds away.
pub(super) async fn append(tools: &Tools, number: u32, partition: PartitionId, letters: Vec<Letter>) {
    let mut waiting = Vec::with_capacity(letters.len());
    let mut exhausted = 0;
    for letter in letters {
        let now = tools.clock.now();
        let entry = match &letter {
            Letter::Exhausted { offset, .. } => exhausted_entry(tools, number, partition, *offset, &letter, now).await,
            _ => tools.topics.entry(number, &letter, now),
        };
        match entry {
            Some(entry) => {
                exhausted += u64::from(matches!(letter, Letter::Exhausted { .. }));
                waiting.push((letter, entry));
            }
            None => refused(tools, number, &letter, "the message has left the log"),
        }
    }
    while !waiting.is_empty() {
        let entries: Vec<Entry> = waiting.iter().map(|(_, entry)| entry.clone()).collect();
        let mut outcomes = tools.log.append(entries).await.into_iter();
        waiting.retain(|(letter, _)| match outcomes.next() {
            Some(Ok(_)) => false,
            // It can never be written: a letter that is too large for its topic.
            Some(Err(error @ (LogError::TooLarge { .. } | LogError::UnknownPartition(_)))) => {
                refused(tools, number, letter, &error.to_string());
                false
            }
            Some(Err(_)) | None => true,
        });
        if !waiting.is_empty() {
            let (partition, letters) = (number, waiting.len());
            static LINES: LineLimit = LineLimit::new();
            if let Some(left_out) = LINES.admit("") {
                tracing::warn!(
                    partition,
                    letters,
                    left_out,
                    "letters of a carrier are not durable yet; they are tried again"
                );
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
        (tools.events)(event.with("count", exhausted));
    }
}

fn refused(tools: &Tools, number: u32, letter: &Letter, why: &str) {
    let detail = format!("a carrier's letter could not be written: {why}");
    tracing::error!(?letter, why, "a carrier's letter could not be written");
    (tools.events)(Event::failure("push_letter_refused", detail).with("partition", number));
}

/// The dead letter of a message that is read from the log. `None` where it is not there any more.
async fn exhausted_entry(
    tools: &Tools,
    number: u32,
    partition: PartitionId,
    offset: u64,
    letter: &Letter,
    now: Timestamp,
) -> Option<Entry> {
    let record = record_at(tools, partition, offset).await?;
    tools.topics.exhausted(number, letter, &record, now)
}

/// The record at an offset. A log that does not answer is asked again.
async fn record_at(tools: &Tools, partition: PartitionId, offset: u64) -> Option<Record> {
    let limits = ReadLimits { max_records: 1, max_bytes: 1, wait: std::time::Duration::ZERO };
    loop {
        match tools.log.read(partition, offset, limits).await {
            Ok(batch) => {
                return batch.records.into_iter().find(|each| each.offset == offset).map(|stored| stored.record);
            }
            Err(LogError::Trimmed { .. } | LogError::BeyondEnd { .. } | LogError::Damaged { .. }) => return None,
            Err(error) => {
                tracing::warn!(%partition, offset, %error, "the message of a dead letter cannot be read; it is tried again");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}
