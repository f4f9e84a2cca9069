//! Publishers of an outage round: each publishes numbers in sequence under its own keys, and records the outcome of each.
//!
//! A publisher with idempotency keys repeats a publish until it is acknowledged. A publisher without them never repeats: a rejection
//! proves that nothing was written, and an unknown outcome allows one message at most.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use whimbrel_client::{Accepted, Client, NewMessage, Published};

use super::committed_reader::CommittedRecord;
use super::hold_answer::HoldReply;
use super::outage_probe::is_probe;

/// The topic of the publishers, and its partitions.
pub const ORDERS_TOPIC: (&str, u32) = ("orders", 6);
const PUBLISHERS: u64 = 4;
/// Every second publisher sends idempotency keys.
const WITH_IDEMPOTENCY_KEYS: u64 = 2;
const KEYS_PER_PUBLISHER: u64 = 5;
const PAUSE: Duration = Duration::from_millis(25);
const REPEAT_PAUSE: Duration = Duration::from_millis(50);
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Time limit for a publish with an idempotency key to be acknowledged, including repeats.
const ACKNOWLEDGED_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Clone)]
enum Outcome {
    Acknowledged {
        place: Published,
        /// The times at which the acknowledged request was sent and answered.
        between: (Instant, Instant),
        /// Whether it was the first request of its message. A repeat may be acknowledged from the record of an earlier one.
        is_first: bool,
    },
    /// The server reported that nothing was written.
    NotWritten,
    Unknown,
}

#[derive(Debug)]
struct Publish {
    publisher: u64,
    number: u64,
    outcome: Outcome,
}

fn key_of(publisher: u64, number: u64) -> String {
    format!("orders-{publisher}-{}", number % KEYS_PER_PUBLISHER)
}

fn payload_of(publisher: u64, number: u64) -> String {
    format!("order {publisher} {number}")
}

pub struct Publishers {
    ends: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Publish>>>,
    pub operations: Arc<AtomicU64>,
}

impl Publishers {
    pub fn begin(runtime: &Runtime, client: &Client) -> Self {
        let (ends, operations) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..PUBLISHERS).map(|publisher| {
            let (ends, operations) = (Arc::clone(&ends), Arc::clone(&operations));
            runtime.spawn(publish_numbers(publisher, client.clone().with_answer_wait(ANSWER_WAIT), ends, operations))
        });
        Self { tasks: tasks.collect(), ends, operations }
    }

    pub fn has_failed(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// Stops publishing. Publishes under an idempotency key are repeated until they are acknowledged.
    pub fn end(self, runtime: &Runtime) -> PublishLog {
        self.ends.store(true, Ordering::Relaxed);
        PublishLog(self.tasks.into_iter().flat_map(|task| runtime.block_on(task).unwrap()).collect())
    }
}

async fn publish_numbers(
    publisher: u64,
    client: Client,
    ends: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
) -> Vec<Publish> {
    let mut log = Vec::new();
    for number in 0.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let message = NewMessage::text(payload_of(publisher, number)).key(key_of(publisher, number));
        let outcome = if publisher.is_multiple_of(WITH_IDEMPOTENCY_KEYS) {
            let message = message.idempotency_key(format!("orders-{publisher}-{number}"));
            repeat_until_acknowledged(&client, &message, &operations).await
        } else {
            publish_once(&client, &message, &operations).await
        };
        let is_refused = matches!(outcome, Outcome::NotWritten);
        log.push(Publish { publisher, number, outcome });
        tokio::time::sleep(if is_refused { REPEAT_PAUSE } else { PAUSE }).await;
    }
    log
}

async fn repeat_until_acknowledged(client: &Client, message: &NewMessage, operations: &AtomicU64) -> Outcome {
    let began = Instant::now();
    let mut is_repeat = false;
    loop {
        let outcome = publish_once(client, message, operations).await;
        if let Outcome::Acknowledged { place, between, .. } = outcome {
            return Outcome::Acknowledged { place, between, is_first: !is_repeat };
        }
        is_repeat = true;
        assert!(began.elapsed() < ACKNOWLEDGED_MAX, "{message:?} is not acknowledged: {outcome:?}");
        tokio::time::sleep(REPEAT_PAUSE).await;
    }
}

async fn publish_once(client: &Client, message: &NewMessage, operations: &AtomicU64) -> Outcome {
    operations.fetch_add(1, Ordering::Relaxed);
    let sent = Instant::now();
    match client.publish(ORDERS_TOPIC.0, message).await {
        Ok(Accepted::Published(place)) => {
            Outcome::Acknowledged { place, between: (sent, Instant::now()), is_first: true }
        }
        Ok(Accepted::Held(held)) => panic!("{held:?} is held, but was published without a delay"),
        Err(error) => match HoldReply::<()>::of(error) {
            HoldReply::NotDone(_) => Outcome::NotWritten,
            HoldReply::InDoubt(_) | HoldReply::Answer(()) => Outcome::Unknown,
        },
    }
}

/// Every publish of a round with its outcome.
pub struct PublishLog(Vec<Publish>);

impl PublishLog {
    /// Checks that no publish was sent and acknowledged within these times, in which fewer than `min.insync.replicas` brokers were
    /// available.
    pub fn check_none_acknowledged(&self, without_copies: &[(Instant, Instant)]) {
        for Publish { publisher, number, outcome } in &self.0 {
            let Outcome::Acknowledged { place, between: (sent, answered), is_first: true } = outcome else { continue };
            let is_within = |(from, to): &(Instant, Instant)| from <= sent && answered <= to;
            let payload = payload_of(*publisher, *number);
            let is_false = without_copies.iter().any(is_within);
            assert!(!is_false, "`{payload}` was acknowledged without the required copies: {place:?}");
        }
    }

    /// Checks the outcomes against the messages that an independent reader found.
    pub fn check(&self, records: &[CommittedRecord]) -> String {
        let mut by_payload: HashMap<&str, Vec<&CommittedRecord>> = HashMap::new();
        for record in records.iter().filter(|record| !is_probe(&record.payload)) {
            by_payload.entry(&record.payload).or_default().push(record);
        }
        let mut last_of_key: HashMap<String, (u32, u64)> = HashMap::new();
        let mut counts = [0; 3];
        for Publish { publisher, number, outcome } in &self.0 {
            let (payload, key) = (payload_of(*publisher, *number), key_of(*publisher, *number));
            let found = by_payload.remove(payload.as_str()).unwrap_or_default();
            assert!(found.len() <= 1, "`{payload}` ({outcome:?}) is stored {} times: {found:?}", found.len());
            match outcome {
                Outcome::Acknowledged { place, .. } => {
                    counts[0] += 1;
                    let record = found.first().unwrap_or_else(|| panic!("`{payload}` is lost: {place:?}"));
                    assert_eq!((record.partition, record.offset), (place.partition, place.offset), "`{payload}`");
                    assert_eq!((&record.id, record.key.as_deref()), (&place.id, Some(key.as_str())), "`{payload}`");
                    let this = (place.partition, place.offset);
                    if let Some(last) = last_of_key.insert(key, this) {
                        assert!(
                            last.0 == this.0 && last.1 < this.1,
                            "`{payload}` at {this:?} does not follow {last:?}"
                        );
                    }
                }
                Outcome::NotWritten => {
                    counts[1] += 1;
                    assert!(found.is_empty(), "`{payload}` was rejected as not written, but is stored: {found:?}");
                }
                Outcome::Unknown => counts[2] += 1,
            }
        }
        assert!(by_payload.is_empty(), "messages that were never published: {by_payload:?}");
        let [acknowledged, not_written, unknown] = counts;
        format!("publishes: {acknowledged} acknowledged, {not_written} not written, {unknown} unknown")
    }
}
