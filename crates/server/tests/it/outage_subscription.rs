//! The subscription of an outage round: its endpoint records every callback and fails some first attempts.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use whimbrel_client::{Client, SubscriptionSettings};

use super::committed_reader::CommittedRecord;
use super::deliver::retrying;
use super::hold_work::SHARED_TOPIC;
use super::outage_publishers::ORDERS_TOPIC;
use super::receiver::{Got, Receiver, Reply, reply};

const NAME: &str = "outage";
const ANSWER_DELAY: Duration = Duration::from_millis(2);
const RETRIES_MAX: u32 = 1000;

/// The ids of messages in order, by topic and key.
type IdsByKey = HashMap<(String, String), Vec<String>>;

/// A subscription to the topic of the publishers and to the shared topic of the holds.
pub struct OutageSubscription(Receiver);

/// One first attempt of about ten fails.
fn is_failed(got: &Got) -> bool {
    got.attempt() == 1 && got.text().ends_with('7')
}

impl OutageSubscription {
    pub async fn create(client: &Client) -> Self {
        let receiver =
            Receiver::answering(|got| Reply { after: ANSWER_DELAY, ..reply(if is_failed(got) { 500 } else { 200 }) });
        let settings = SubscriptionSettings {
            ordering: Some("key".into()),
            ..SubscriptionSettings::push([ORDERS_TOPIC.0, SHARED_TOPIC.0], receiver.url("/"))
        };
        client.put_subscription(NAME, &retrying(settings, RETRIES_MAX, "100ms")).await.unwrap();
        Self(receiver)
    }

    /// None where everything is delivered, or else a description of the remaining work.
    pub async fn remaining(&self, client: &Client) -> Option<String> {
        match client.subscription(NAME).await {
            Ok(shown) if shown.lag == Some(0) && shown.in_flight == Some(0) => None,
            Ok(shown) => Some(format!("subscription: lag {:?}, in flight {:?}", shown.lag, shown.in_flight)),
            Err(error) => Some(format!("subscription: {error}")),
        }
    }

    /// Checks that every message was delivered, and that the first successes of a key have the order of its messages.
    pub async fn check(&self, client: &Client, records: &[CommittedRecord]) -> String {
        let mut delivered = HashSet::new();
        let mut by_key: IdsByKey = HashMap::new();
        let mut repeated = 0;
        for got in self.0.all().iter().filter(|got| !is_failed(got)) {
            let id = got.header("ce-id").to_owned();
            if !delivered.insert(id.clone()) {
                repeated += 1;
            } else if !got.key().is_empty() {
                let topic = got.header("ce-source").trim_start_matches("/topics/").to_owned();
                by_key.entry((topic, got.key().to_owned())).or_default().push(id);
            }
        }
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
        format!("deliveries: {} messages, {repeated} repeated", records.len())
    }
}
