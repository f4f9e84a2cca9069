//! The queue of events that are written to the system topic `_events`.
//!
//! Engines and roles put events into a bounded queue from any thread, including a log's own. One task appends them. While the log rejects
//! appends (its disk is full), events wait and are retried. If the queue is full, the oldest are dropped, and their number becomes an event
//! itself. An event must never block or fail the component that reports it, and must never cause a publish to fail.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Entry, Log};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::{Clock, Event, EventLevel, EventSink, Headers, IdMint, PartitionId, Record, Timestamp};

/// The maximum number of queued events.
pub const EVENTS_QUEUED_MAX: usize = 1024;
/// The maximum number of events in one append.
const EVENTS_PER_APPEND_MAX: usize = 256;
/// The delay before the writer retries a rejected append: minimum and maximum.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(200);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Timeout of the last append at shutdown.
const LAST_APPEND_WITHIN: Duration = Duration::from_secs(1);

/// The queue of events and its writer.
pub struct EventWriter {
    queue: Arc<EventQueue>,
}

struct EventQueue {
    clock: Arc<dyn Clock>,
    queued: Mutex<QueuedEvents>,
    arrived: Notify,
}

#[derive(Default)]
struct QueuedEvents {
    events: VecDeque<(Timestamp, Event)>,
    dropped: u64,
}

impl EventWriter {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let queue = EventQueue { clock, queued: Mutex::default(), arrived: Notify::new() };
        Arc::new(Self { queue: Arc::new(queue) })
    }

    /// The function that queues an event. It can be used before [`EventWriter::run`] has begun: early events wait.
    pub fn sink(&self) -> EventSink {
        let queue = Arc::clone(&self.queue);
        Arc::new(move |event| queue.put(event))
    }

    /// Queues one event.
    pub fn put(&self, event: Event) {
        self.queue.put(event);
    }

    /// Appends events to `partition` until `shutdown`, and then once more for the remaining ones.
    pub async fn run(&self, log: Arc<dyn Log>, mint: Arc<IdMint>, partition: PartitionId, shutdown: CancellationToken) {
        let mut retry_after = RETRY_AFTER_MIN;
        loop {
            let arrived = self.queue.arrived.notified();
            let batch = self.queue.take(EVENTS_PER_APPEND_MAX);
            if batch.is_empty() {
                tokio::select! {
                    () = arrived => continue,
                    () = shutdown.cancelled() => return,
                }
            }
            let entries = batch.iter().map(|(at, event)| entry_of(event, *at, &mint, partition)).collect();
            if shutdown.is_cancelled() {
                // Shutdown does not wait for a log that rejects appends.
                let _ = tokio::time::timeout(LAST_APPEND_WITHIN, log.append(entries)).await;
                return;
            }
            let outcome = log.append(entries).await;
            let refused: Vec<_> = batch.into_iter().zip(outcome).filter(|(_, outcome)| outcome.is_err()).collect();
            let Some((_, Err(error))) = refused.first() else {
                retry_after = RETRY_AFTER_MIN;
                continue;
            };
            tracing::debug!(%error, events = refused.len(), "the log rejected events; retrying");
            self.queue.requeue(refused.into_iter().map(|(event, _)| event));
            tokio::select! {
                () = tokio::time::sleep(retry_after) => retry_after = (retry_after * 2).min(RETRY_AFTER_MAX),
                () = shutdown.cancelled() => {}
            }
        }
    }
}

impl EventQueue {
    fn put(&self, event: Event) {
        match event.level {
            EventLevel::Notice => tracing::info!(kind = event.kind, "{}", event.detail),
            EventLevel::Warning => tracing::warn!(kind = event.kind, "{}", event.detail),
            EventLevel::Failure => tracing::error!(kind = event.kind, "{}", event.detail),
        }
        let at = self.clock.now();
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        queued.events.push_back((at, event));
        queued.drop_oldest();
        drop(queued);
        self.arrived.notify_one();
    }

    fn requeue(&self, events: impl DoubleEndedIterator<Item = (Timestamp, Event)>) {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events.rev() {
            queued.events.push_front(event);
        }
        queued.drop_oldest();
        drop(queued);
        self.arrived.notify_one();
    }

    fn take(&self, most: usize) -> Vec<(Timestamp, Event)> {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queued.events.len().min(most);
        let mut batch = Vec::with_capacity(count + 1);
        if queued.dropped > 0 {
            let dropped = std::mem::take(&mut queued.dropped);
            let detail = format!("{dropped} events were dropped: the queue was full");
            batch.push((self.clock.now(), Event::warning("events_dropped", detail).with("count", dropped)));
        }
        batch.extend(queued.events.drain(..count));
        batch
    }
}

impl QueuedEvents {
    fn drop_oldest(&mut self) {
        while self.events.len() > EVENTS_QUEUED_MAX {
            // If a report of drops is dropped itself, its count is carried over.
            let dropped = self.events.pop_front().map_or(0, |(_, event)| match event.kind {
                "events_dropped" => event.fields.first().and_then(|(_, count)| count.parse().ok()).unwrap_or(1),
                _ => 1,
            });
            self.dropped += dropped;
        }
    }
}

fn entry_of(event: &Event, at: Timestamp, mint: &IdMint, partition: PartitionId) -> Entry {
    let fields: serde_json::Map<String, serde_json::Value> =
        event.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect();
    let value = serde_json::json!({
        "kind": event.kind, "at": at.to_string(), "detail": event.detail, "fields": fields,
    });
    let mut headers = Headers::builder();
    headers.push(HEADER_ID, &mint.mint(at, partition).to_text());
    headers.push(HEADER_CONTENT_TYPE, b"application/json");
    let record = Record { key: None, value: Bytes::from(value.to_string()), headers: headers.take(), timestamp: at };
    Entry { partition, record }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::SystemClock;

    #[test]
    fn a_full_queue_drops_the_oldest_and_reports_their_number() {
        let events = EventWriter::new(Arc::new(SystemClock));
        let sink = events.sink();
        for number in 0..EVENTS_QUEUED_MAX + 3 {
            sink(Event::new("test", format!("event {number}")));
        }
        let batch = events.queue.take(usize::MAX);
        assert_eq!(batch[0].1.kind, "events_dropped");
        assert_eq!(batch[0].1.fields, [("count", "3".to_owned())]);
        assert_eq!(batch[1].1.detail, "event 3");
        assert_eq!(batch.len(), EVENTS_QUEUED_MAX + 1);
    }

    #[test]
    fn a_dropped_report_of_drops_carries_its_count_over() {
        let events = EventWriter::new(Arc::new(SystemClock));
        for _ in 0..EVENTS_QUEUED_MAX + 5 {
            events.put(Event::new("test", ""));
        }
        let refused = events.queue.take(usize::MAX);
        events.queue.requeue(refused.into_iter());
        let batch = events.queue.take(usize::MAX);
        assert_eq!(batch[0].1.fields, [("count", "5".to_owned())]);
    }
}
