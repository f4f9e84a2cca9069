//! Events on their way to the system topic `_events`.
//!
//! Engines and roles put events into a bounded queue from any thread, also a log's own; one task appends them. While the log
//! refuses (its disk is full), they wait and are tried again; where the queue is full, the oldest go and their number becomes an
//! event itself. An event must never block or fail whoever reports it, and never be the reason that a publish fails.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Entry, Log};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::{Clock, Event, EventLevel, EventSink, Headers, IdMint, PartitionId, Record, Timestamp};

/// Events that wait for the log at most.
pub const EVENTS_QUEUED_MAX: usize = 1024;
/// Events that one append takes at most.
const EVENTS_PER_APPEND_MAX: usize = 256;
/// How long the writer rests after the log refused, at first and at most.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(200);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// What the last append may take when the server ends.
const LAST_APPEND_WITHIN: Duration = Duration::from_secs(1);

/// The queue of events and its writer.
pub struct Events {
    queue: Arc<Queue>,
}

struct Queue {
    clock: Arc<dyn Clock>,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<(Timestamp, Event)>,
    dropped: u64,
}

impl Events {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let queue = Queue { clock, waiting: Mutex::default(), arrived: Notify::new() };
        Arc::new(Self { queue: Arc::new(queue) })
    }

    /// Where to put events. Usable before [`Events::run`] has begun: what comes early waits.
    pub fn sink(&self) -> EventSink {
        let queue = Arc::clone(&self.queue);
        Arc::new(move |event| queue.put(event))
    }

    /// Puts one event.
    pub fn put(&self, event: Event) {
        self.queue.put(event);
    }

    /// Appends events to `partition` until `shutdown`, and what is left once more then.
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
                // Whoever ends the server does not wait for a log that refuses.
                let _ = tokio::time::timeout(LAST_APPEND_WITHIN, log.append(entries)).await;
                return;
            }
            let outcome = log.append(entries).await;
            let refused: Vec<_> = batch.into_iter().zip(outcome).filter(|(_, outcome)| outcome.is_err()).collect();
            let Some((_, Err(error))) = refused.first() else {
                retry_after = RETRY_AFTER_MIN;
                continue;
            };
            tracing::debug!(%error, events = refused.len(), "the log refused events; they are tried again");
            self.queue.put_back(refused.into_iter().map(|(event, _)| event));
            tokio::select! {
                () = tokio::time::sleep(retry_after) => retry_after = (retry_after * 2).min(RETRY_AFTER_MAX),
                () = shutdown.cancelled() => {}
            }
        }
    }
}

impl Queue {
    fn put(&self, event: Event) {
        match event.level {
            EventLevel::Notice => tracing::info!(kind = event.kind, "{}", event.detail),
            EventLevel::Warning => tracing::warn!(kind = event.kind, "{}", event.detail),
            EventLevel::Failure => tracing::error!(kind = event.kind, "{}", event.detail),
        }
        let at = self.clock.now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.events.push_back((at, event));
        waiting.drop_oldest();
        drop(waiting);
        self.arrived.notify_one();
    }

    fn put_back(&self, events: impl DoubleEndedIterator<Item = (Timestamp, Event)>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events.rev() {
            waiting.events.push_front(event);
        }
        waiting.drop_oldest();
        drop(waiting);
        self.arrived.notify_one();
    }

    fn take(&self, most: usize) -> Vec<(Timestamp, Event)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.events.len().min(most);
        let mut batch = Vec::with_capacity(count + 1);
        if waiting.dropped > 0 {
            let dropped = std::mem::take(&mut waiting.dropped);
            let detail = format!("{dropped} events were dropped: more came than the log took");
            batch.push((self.clock.now(), Event::warning("events_dropped", detail).with("count", dropped)));
        }
        batch.extend(waiting.events.drain(..count));
        batch
    }
}

impl Waiting {
    fn drop_oldest(&mut self) {
        while self.events.len() > EVENTS_QUEUED_MAX {
            // A report of drops that is dropped itself hands its count on.
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
    fn a_full_queue_drops_the_oldest_and_says_how_many() {
        let events = Events::new(Arc::new(SystemClock));
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
    fn a_dropped_report_of_drops_hands_its_count_on() {
        let events = Events::new(Arc::new(SystemClock));
        for _ in 0..EVENTS_QUEUED_MAX + 5 {
            events.put(Event::new("test", ""));
        }
        let refused = events.queue.take(usize::MAX);
        events.queue.put_back(refused.into_iter());
        let batch = events.queue.take(usize::MAX);
        assert_eq!(batch[0].1.fields, [("count", "5".to_owned())]);
    }
}
