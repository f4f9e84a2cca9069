//! Appending: one idempotent producer for the process, and a thread of its own that answers callers as deliveries come in.
//!
//! An append never blocks: a record is copied into librdkafka's queue, which is bounded, and its place comes back through the
//! delivery report. Order within a partition is the idempotent producer's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use tokio::sync::oneshot;
use whimbrel_model::ports::{AppendOutcome, Entry, LogError};
use whimbrel_model::{PartitionId, Record};

use super::known::{KnownTopic, KnownTopics};
use super::native::{self, Persistence};
use super::settings::KafkaSettings;
use super::{context, outcome};

/// How long the polling thread waits for deliveries before it looks whether it shall end.
const POLL_TIME: Duration = Duration::from_secs(1);
/// How many records a large call hands over before other tasks get their turn.
const SENT_IN_A_ROW: usize = 512;
/// How much longer than the producer's own timeout a caller waits for a delivery report that does not come.
const REPORT_GRACE: Duration = Duration::from_secs(5);

pub(super) struct Appender {
    config: ClientConfig,
    answer_timeout: Duration,
    metadata_timeout: Duration,
    /// Replaced as a whole when Kafka has declared the old one dead (its sequence of records was broken by a loss of data).
    producer: RwLock<Arc<PolledProducer>>,
}

impl Appender {
    pub fn new(settings: &KafkaSettings) -> Result<Self, KafkaError> {
        let config = settings.append_producer();
        let producer = RwLock::new(Arc::new(PolledProducer::new(&config)?));
        let answer_timeout = settings.message_timeout + REPORT_GRACE;
        Ok(Self { config, answer_timeout, metadata_timeout: settings.request_timeout, producer })
    }

    /// Appends to topics that are known. One answer per entry.
    pub async fn append(&self, known: &KnownTopics, entries: Vec<Entry>) -> AppendOutcome {
        if entries.is_empty() {
            return Vec::new();
        }
        let (call, answered) = Call::new(entries.len());
        let mut topic: Option<Arc<KnownTopic>> = None;
        let mut overloaded = false;
        for (index, entry) in entries.iter().enumerate() {
            if index > 0 && index % SENT_IN_A_ROW == 0 {
                tokio::task::yield_now().await;
            }
            if topic.as_ref().is_none_or(|topic| topic.number != entry.partition.topic) {
                topic = known.get(entry.partition.topic);
            }
            let sent = match &topic {
                // What follows a record that found no room must not overtake it.
                _ if overloaded => Err(LogError::Overloaded("the queue to Kafka is full".to_owned())),
                Some(topic) if topic.has(entry.partition.index) => self.send(topic, entry, &call, index).await,
                _ => Err(LogError::UnknownPartition(entry.partition)),
            };
            if let Err(error) = sent {
                overloaded |= matches!(error, LogError::Overloaded(_));
                call.settle(index, Err(error));
            }
        }
        match tokio::time::timeout(self.answer_timeout, answered).await {
            Ok(Ok(outcome)) => outcome,
            _ => call.give_up(),
        }
    }

    async fn send(&self, topic: &KnownTopic, entry: &Entry, call: &Arc<Call>, index: usize) -> Result<(), LogError> {
        check_record(&entry.record, topic.record_bytes_max)?;
        let producer = self.current();
        let Err(code) = producer.send(topic, entry, call, index) else { return Ok(()) };
        let producer = match code {
            // The topic has grown, and the producer has not heard of it yet.
            Code::UnknownPartition | Code::UnknownTopic => {
                producer.refresh(&topic.name, self.metadata_timeout).await;
                producer
            }
            Code::Fatal => self.replace(&producer)?,
            code => return Err(refusal(code, topic, entry)),
        };
        producer.send(topic, entry, call, index).map_err(|code| refusal(code, topic, entry))
    }

    /// Waits until everything that was sent is settled, within the time that an append may take.
    pub async fn flush(&self) {
        let (producer, timeout) = (self.current(), self.answer_timeout);
        let _ = tokio::task::spawn_blocking(move || producer.producer.flush(timeout)).await;
    }

    fn current(&self) -> Arc<PolledProducer> {
        self.producer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a new producer in place of a dead one; whoever comes second finds it replaced.
    fn replace(&self, dead: &Arc<PolledProducer>) -> Result<Arc<PolledProducer>, LogError> {
        let mut current = self.producer.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&current, dead) {
            let why =
                dead.producer.client().fatal_error().map_or_else(String::new, |(code, why)| format!("{code}: {why}"));
            tracing::warn!("Kafka has declared the producer dead and a new one is made: {why}");
            *current = Arc::new(PolledProducer::new(&self.config).map_err(|error| outcome::unavailable(&error))?);
        }
        Ok(current.clone())
    }
}

/// What can be said of a record before it is sent.
pub(super) fn check_record(record: &Record, limit: usize) -> Result<(), LogError> {
    let size = record.size();
    if size > limit {
        return Err(LogError::TooLarge { size, limit });
    }
    if record.timestamp.as_millis() <= 0 {
        return Err(LogError::Unsupported("Kafka keeps no times before 1970-01-01T00:00:00.001Z".to_owned()));
    }
    Ok(())
}

fn refusal(code: Code, topic: &KnownTopic, entry: &Entry) -> LogError {
    outcome::append_error(code, Persistence::Excluded, entry.partition, entry.record.size(), topic.record_bytes_max)
}

/// A record as the binding takes it.
pub(super) fn base_record<'a, D: rdkafka::IntoOpaque>(
    topic: &'a str,
    entry: &'a Entry,
    opaque: D,
) -> BaseRecord<'a, [u8], [u8], D> {
    let record = BaseRecord::with_opaque_to(topic, opaque)
        .partition(entry.partition.index as i32)
        .payload(&entry.record.value[..])
        .timestamp(entry.record.timestamp.as_millis());
    let record = match &entry.record.key {
        Some(key) => record.key(&key[..]),
        None => record,
    };
    if entry.record.headers.is_empty() {
        return record;
    }
    let headers =
        entry.record.headers.iter().fold(OwnedHeaders::new(), |headers, (name, value)| {
            headers.insert(Header { key: name, value: Some(value) })
        });
    record.headers(headers)
}

/// A producer with the thread that polls it. The thread ends when this is dropped.
struct PolledProducer {
    producer: Arc<BaseProducer<Deliveries>>,
    stop: Arc<AtomicBool>,
}

impl PolledProducer {
    fn new(config: &ClientConfig) -> Result<Self, KafkaError> {
        let producer = Arc::new(BaseProducer::from_config_and_context(config, Deliveries)?);
        let stop = Arc::new(AtomicBool::new(false));
        let polled = (producer.clone(), stop.clone());
        std::thread::Builder::new()
            .name("kafka-append".to_owned())
            .spawn(move || {
                let (producer, stop) = polled;
                while !stop.load(Ordering::Acquire) {
                    producer.poll(POLL_TIME);
                }
            })
            .map_err(|error| KafkaError::ClientCreation(format!("no thread can be started: {error}")))?;
        Ok(Self { producer, stop })
    }

    fn send(&self, topic: &KnownTopic, entry: &Entry, call: &Arc<Call>, index: usize) -> Result<(), Code> {
        let ticket = Box::new(Ticket {
            call: call.clone(),
            index,
            partition: entry.partition,
            size: entry.record.size(),
            limit: topic.record_bytes_max,
        });
        let sent = self.producer.send(base_record(&topic.name, entry, ticket));
        sent.map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(Code::Fail))
    }

    /// Asks for the topic again. What is not answered here shows when the record is sent once more.
    async fn refresh(&self, topic: &str, timeout: Duration) {
        let (producer, topic) = (self.producer.clone(), topic.to_owned());
        let _ = tokio::task::spawn_blocking(move || producer.client().fetch_metadata(Some(&topic), timeout).map(drop))
            .await;
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Receives the delivery reports on the polling thread.
struct Deliveries;

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        context::log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        context::log_error(&error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let settled = match result {
            Ok(message) => Ok(message.offset().max(0) as u64),
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
                let persistence = native::persistence_of(message);
                Err(outcome::append_error(code, persistence, ticket.partition, ticket.size, ticket.limit))
            }
        };
        ticket.call.settle(ticket.index, settled);
    }
}

/// What a record carries through librdkafka: whose it is.
struct Ticket {
    call: Arc<Call>,
    index: usize,
    partition: PartitionId,
    size: usize,
    limit: usize,
}

/// One call of `append`, answered when its last record is settled.
struct Call(Mutex<CallState>);

struct CallState {
    outcome: Vec<Option<Result<u64, LogError>>>,
    unsettled: usize,
    answer: Option<oneshot::Sender<AppendOutcome>>,
}

impl Call {
    fn new(records: usize) -> (Arc<Self>, oneshot::Receiver<AppendOutcome>) {
        let (answer, answered) = oneshot::channel();
        let outcome = std::iter::repeat_with(|| None).take(records).collect();
        (Arc::new(Self(Mutex::new(CallState { outcome, unsettled: records, answer: Some(answer) }))), answered)
    }

    fn settle(&self, index: usize, settled: Result<u64, LogError>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // After giving up there is nothing left to settle.
        let Some(place) = state.outcome.get_mut(index) else { return };
        *place = Some(settled);
        state.unsettled -= 1;
        if state.unsettled == 0
            && let Some(answer) = state.answer.take()
        {
            // Nobody may be waiting any more: dropping an append does not undo it.
            let _ = answer.send(state.take_outcome());
        }
    }

    /// What is known so far, the rest as unknown.
    fn give_up(&self) -> AppendOutcome {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take_outcome()
    }
}

impl CallState {
    fn take_outcome(&mut self) -> AppendOutcome {
        let unknown = || Err(LogError::Unknown("Kafka's client has not reported on the record".to_owned()));
        std::mem::take(&mut self.outcome).into_iter().map(|settled| settled.unwrap_or_else(unknown)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_is_answered_in_its_own_order_when_the_last_record_is_settled() {
        let (call, answered) = Call::new(3);
        call.settle(2, Ok(20));
        call.settle(0, Ok(7));
        call.settle(1, Err(LogError::Overloaded("full".to_owned())));
        assert_eq!(answered.await, Ok(vec![Ok(7), Err(LogError::Overloaded("full".to_owned())), Ok(20)]));
    }

    #[test]
    fn a_call_given_up_keeps_what_is_known_and_bears_late_reports() {
        let (call, _answered) = Call::new(2);
        call.settle(0, Ok(1));
        let outcome = call.give_up();
        assert_eq!(outcome[0], Ok(1));
        assert!(matches!(outcome[1], Err(LogError::Unknown(_))));
        call.settle(1, Ok(2));
    }
}
