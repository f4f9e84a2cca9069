//! The subscription of an outage round to every topic of the workload: its endpoint records every callback and fails some first attempts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use whimbrel_client::{Client, SubscriptionSettings};

use super::committed_reader::CommittedRecord;
use super::deliver::retrying;
use super::hold_work::now_ms;
use super::receiver::{Got, Receiver, Reply, reply};

const NAME: &str = "outage";
const ANSWER_DELAY: Duration = Duration::from_millis(2);
const RETRIES_MAX: u32 = 1000;
/// Maximum number of repeated deliveries that a failure lists.
const REPEATS_SHOWN: usize = 10;

/// The ids of messages in order, by topic and key.
type IdsByKey = HashMap<(String, String), Vec<String>>;

/// The time of the first callback of each message, by the message's id: milliseconds since 1970, by the test's clock.
#[derive(Clone, Default)]
pub struct Arrivals(Arc<Mutex<HashMap<String, i64>>>);

impl Arrivals {
    fn record(&self, id: &str) {
        self.0.lock().unwrap().entry(id.to_owned()).or_insert_with(now_ms);
    }

    pub fn time_ms(&self, id: &str) -> Option<i64> {
        self.0.lock().unwrap().get(id).copied()
    }
}

pub struct OutageSubscription {
    receiver: Receiver,
    pub arrivals: Arrivals,
}

/// One first attempt of about ten fails.
fn is_failed(got: &Got) -> bool {
    got.attempt() == 1 && got.text().ends_with('7')
}

impl OutageSubscription {
    pub async fn create(client: &Client, topics: Vec<String>) -> Self {
        let arrivals = Arrivals::default();
        let recorded = arrivals.clone();
        let receiver = Receiver::answering(move |got| {
            recorded.record(got.header("ce-id"));
            Reply { after: ANSWER_DELAY, ..reply(if is_failed(got) { 500 } else { 200 }) }
        });
        let settings = SubscriptionSettings {
            ordering: Some("key".into()),
            ..SubscriptionSettings::push(topics, receiver.url("/"))
        };
        client.put_subscription(NAME, &retrying(settings, RETRIES_MAX, "100ms")).await.unwrap();
        Self { receiver, arrivals }
    }

    /// A description of the deliveries that remain; `None` if everything is delivered.
    pub async fn remaining(&self, client: &Client) -> Option<String> {
        match client.subscription(NAME).await {
            Ok(shown) if shown.status.lag == Some(0) && shown.status.in_flight == Some(0) => None,
            Ok(shown) => {
                Some(format!("subscription: lag {:?}, in flight {:?}", shown.status.lag, shown.status.in_flight))
            }
            Err(error) => Some(format!("subscription: {error}")),
        }
    }

    /// Checks that every message was delivered once, and that the successes of a key have the order of its messages.
    ///
    /// Delivery is at least once, but only a crash of the server, or an endpoint that does not answer with 2xx, causes a repeat. The server
    /// of a round does not restart, and the endpoint answers everything except its planned failures with 200.
    pub async fn check(&self, client: &Client, records: &[CommittedRecord]) -> String {
        let (mut delivered, mut failed) = (HashSet::new(), HashSet::new());
        let mut by_key: IdsByKey = HashMap::new();
        let mut repeated = Vec::new();
        for got in &self.receiver.all() {
            let id = got.header("ce-id").to_owned();
            let is_first = if is_failed(got) { failed.insert(id.clone()) } else { delivered.insert(id.clone()) };
            let topic = got.header("ce-source").trim_start_matches("/topics/").to_owned();
            if !is_first {
                repeated.push(format!("{topic} {id} attempt {} `{}`", got.attempt(), got.text()));
            } else if !is_failed(got) && !got.key().is_empty() {
                by_key.entry((topic, got.key().to_owned())).or_default().push(id);
            }
        }
        let shown = repeated.iter().take(REPEATS_SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n  ");
        assert!(repeated.is_empty(), "{} callbacks were repeated:\n  {shown}", repeated.len());
        let mut stored_by_key: IdsByKey = HashMap::new();
        for record in records {
            assert!(delivered.contains(&record.id), "{record:?} was never delivered");
            if let Some(key) = &record.key {
                stored_by_key.entry((record.topic.clone(), key.clone())).or_default().push(record.id.clone());
            }
        }
        assert_eq!(delivered.len(), records.len(), "messages were delivered that are not stored");
        for (key, stored) in &stored_by_key {
            assert_eq!(by_key.get(key), Some(stored), "the messages of key {key:?} were delivered out of order");
        }
        let dead = client.dead_letters(NAME, None, None).await.unwrap().dead_letters;
        assert!(dead.is_empty(), "dead letters: {dead:?}");
        format!("deliveries: {} messages, none repeated", records.len())
    }

    /// Checks that no message reached the endpoint before its due time. Each message is given by its id and due time.
    pub fn check_not_early(&self, dues: Vec<(String, i64)>) -> String {
        let mut checked = 0;
        for (id, due_ms) in dues {
            let arrived_ms = self.arrivals.time_ms(&id);
            let arrived_ms = arrived_ms.unwrap_or_else(|| panic!("{id}, due at {due_ms}, was never delivered"));
            assert!(arrived_ms >= due_ms, "{id} arrived at {arrived_ms}, {} ms before it was due", due_ms - arrived_ms);
            checked += 1;
        }
        format!("fired holds: {checked} arrived, none early")
    }
}
