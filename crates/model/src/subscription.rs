//! Subscriptions: readers of topics that deliver each message to an endpoint or to pulling consumers.
//!
//! A subscription is an entry of the catalogue: [`StoredSubscription`] as JSON under `subscriptions/<name>`, changed by compare-and-set. It
//! contains everything that users and operators decide: the settings ([`SubscriptionSpec`]), whether it runs, its start, its replays. Its
//! progress is not there, but in the port `Progress`.
//!
//! New fields must have a default, so that older entries stay readable.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{PartitionId, Timestamp, TopicNumber};

pub const SUBSCRIPTION_PREFIX: &str = "subscriptions/";
/// The catalogue key of the last number assigned to a subscription, as decimal digits.
pub const LAST_SUBSCRIPTION_KEY: &str = "subscription_numbers";

/// The prefix of the topic of a subscription's retries; the subscription's name follows.
pub const RETRY_TOPIC_PREFIX: &str = "_retry.";
/// The prefix of the topic of a subscription's dead letters; the subscription's name follows.
pub const DEAD_TOPIC_PREFIX: &str = "_dead.";

/// The delivery rule of one message, a [`DeliveryRule`] as JSON, set by endpoints of older systems. Publishers cannot set it as a header.
pub const HEADER_DELIVERY: &str = "whimbrel-delivery";
/// The original message of a retry or a dead letter: an [`MessageOrigin`] as JSON.
pub const HEADER_ORIGIN: &str = "whimbrel-origin";

/// Defaults and limits of subscription settings.
pub const CONCURRENCY_DEFAULT: u32 = 16;
pub const CONCURRENCY_MAX: u32 = 10_000;
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
pub const RETRY_SCHEDULE_DEFAULT_MS: [u64; 5] = [1_000, 10_000, 60_000, 300_000, 3_000_000];
pub const BLOCKED_SLEEP_DEFAULT: Duration = Duration::from_secs(2);
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// A subscription without a successful delivery for this time, while deliveries fail, is disabled.
pub const DISABLE_AFTER_DEFAULT: Duration = Duration::from_secs(5 * 86_400);
/// How long an earlier secret still signs after it was replaced.
pub const SECRET_OVERLAP_DEFAULT: Duration = Duration::from_secs(86_400);
/// The maximum `Retry-After` that Whimbrel honors.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// A subscription's number. A subscription that is deleted and created again gets a new number, so that it inherits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SubscriptionNumber(pub u32);

impl SubscriptionNumber {
    /// The shard whose owner runs the subscription. `shards` is the number of partitions of `_holds`.
    pub fn shard(self, shards: u32) -> u32 {
        // Fibonacci hashing: consecutive numbers spread over all shards.
        ((u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % u64::from(shards.max(1))) as u32
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Push,
    Pull,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// One message in flight per key; keys are delivered in parallel. Messages without a key have no order.
    #[default]
    Key,
    Partition,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    #[default]
    DeadLetter,
    /// Retries every `blocked_sleep` until it succeeds.
    Block,
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Envelope {
    #[default]
    Binary,
    Structured,
    Kmq,
}

/// The reaction to a 410 response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum GonePolicy {
    #[default]
    Disable,
    Fail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    Earliest,
    #[default]
    Latest,
    /// The first message at or after this time, in milliseconds.
    At(i64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `None`: each message names its own URL, see [`DeliveryRule`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The timeout of the whole call, including the connect.
    pub timeout_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Retries, not attempts: 5 means at most six attempts.
    pub times: u32,
    /// The delays between attempts. The last entry repeats. Never empty.
    pub schedule_ms: Vec<u64>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { times: 5, schedule_ms: RETRY_SCHEDULE_DEFAULT_MS.to_vec() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub count: u32,
    pub per_ms: u64,
}

/// A signing secret: `whsec_` and base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningSecret {
    pub secret: String,
    /// The time until which it signs; `None`: no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningSecret(…, until {:?})", self.until_ms)
    }
}

/// How a worker of the pool is selected for each delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    Random,
    RoundRobin,
    WeightedRandom,
    WeightedRoundRobin,
    #[default]
    LeastLoaded,
}

/// How the workers of a pool are selected if the setting names only their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum AssignWorkers {
    Random,
    #[default]
    LeastLoaded,
}

/// The workers that make a subscription's callbacks, and how one is selected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct WorkerChoice {
    /// Names of nodes; `*` means all workers. Empty if `count` is set.
    #[serde(default)]
    pub pool: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assign: Option<AssignWorkers>,
    #[serde(default)]
    pub strategy: Strategy,
}

/// The settings of a subscription. They are validated on creation and on each change, and not again when they are read from the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionSpec {
    pub topics: Vec<String>,
    #[serde(default)]
    pub mode: Mode,
    /// Required if `mode` is push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    #[serde(default)]
    pub ordering: Ordering,
    pub concurrency: u32,
    #[serde(default)]
    pub retry: RetryPolicy,
    #[serde(default)]
    pub on_exhausted: OnExhausted,
    pub blocked_sleep_ms: u64,
    #[serde(default)]
    pub start: Start,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Conditions that must all match: `key`, `topic`, `content_type` or `headers.<name>`, with the expected value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filter: BTreeMap<String, String>,
    #[serde(default)]
    pub envelope: Envelope,
    /// The newest first. Every secret that has not expired signs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SigningSecret>,
    /// The status codes that count as success; `None`: any 2xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Vec<u16>>,
    #[serde(default)]
    pub gone: GonePolicy,
    pub disable_after_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkerChoice>,
    /// How long a pulling consumer owns a message before it is handed out again.
    pub lease_ms: u64,
}

impl SubscriptionSpec {
    /// A subscription of these topics with default settings.
    pub fn new(topics: Vec<String>, mode: Mode, endpoint: Option<Endpoint>) -> Self {
        Self {
            topics,
            mode,
            endpoint,
            ordering: Ordering::default(),
            concurrency: CONCURRENCY_DEFAULT,
            retry: RetryPolicy::default(),
            on_exhausted: OnExhausted::default(),
            blocked_sleep_ms: BLOCKED_SLEEP_DEFAULT.as_millis() as u64,
            start: Start::default(),
            rate: None,
            filter: BTreeMap::new(),
            envelope: Envelope::default(),
            secrets: Vec::new(),
            success: None,
            gone: GonePolicy::default(),
            disable_after_ms: DISABLE_AFTER_DEFAULT.as_millis() as u64,
            workers: None,
            lease_ms: LEASE_DEFAULT.as_millis() as u64,
        }
    }

    /// Whether failed deliveries are retried in place. Without an order they become holds, unless the subscription is pulled.
    pub fn retries_in_place(&self) -> bool {
        self.ordering != Ordering::None || self.mode == Mode::Pull
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum RunState {
    #[default]
    Active,
    Paused,
    /// Disabled by Whimbrel, until an operator resumes it.
    Disabled {
        reason: String,
        at_ms: i64,
    },
}

/// The start of a subscription in one topic: an offset for each partition at that time. Partitions that are added later start at offset 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicStart {
    pub topic: String,
    /// The topic's number. A topic that is created again under the name has another number and is delivered from its beginning.
    pub number: TopicNumber,
    pub offsets: Vec<u64>,
}

/// A range of the topics that is delivered again, beside the normal delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    pub run: u32,
    pub from: Vec<TopicStart>,
    /// The end of each partition, for the same partitions as `from`.
    pub until: Vec<TopicStart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub asked_at_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSubscription {
    pub number: SubscriptionNumber,
    pub spec: SubscriptionSpec,
    #[serde(default)]
    pub state: RunState,
    /// The run of the normal delivery. A seek increases it and sets `starts`. Progress of earlier runs is ignored.
    pub run: u32,
    /// The last assigned run: of the normal delivery, a replay or a redrive.
    pub last_run: u32,
    pub starts: Vec<TopicStart>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replays: Vec<Replay>,
    pub created_at_ms: i64,
    /// The subscription is being deleted. A node that finds this entry completes the deletion.
    #[serde(default)]
    pub deleting: bool,
}

impl StoredSubscription {
    /// The start offset of the current run in a partition.
    pub fn start_of(&self, topic: &str, number: TopicNumber, partition: u32) -> u64 {
        start_in(&self.starts, topic, number, partition)
    }

    pub fn is_active(&self) -> bool {
        self.state == RunState::Active && !self.deleting
    }
}

/// The start offset of a partition; zero if `starts` has none.
pub fn start_in(starts: &[TopicStart], topic: &str, number: TopicNumber, partition: u32) -> u64 {
    let start = starts.iter().find(|start| start.topic == topic && start.number == number);
    start.and_then(|start| start.offsets.get(partition as usize).copied()).unwrap_or(0)
}

pub fn subscription_key(name: &str) -> String {
    format!("{SUBSCRIPTION_PREFIX}{name}")
}

pub fn retry_topic(subscription: &str) -> String {
    format!("{RETRY_TOPIC_PREFIX}{subscription}")
}

pub fn dead_topic(subscription: &str) -> String {
    format!("{DEAD_TOPIC_PREFIX}{subscription}")
}

/// Delivery settings of one message, which override the subscription's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DeliveryRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<OwnCallback>,
}

/// The callback that a message names itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnCallback {
    /// `GET` or `POST`.
    pub method: String,
    pub url: String,
}

/// The original message of a retry or dead letter, and its delivery so far. Key, value and other headers of the record are the message's
/// own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageOrigin {
    pub subscription: String,
    pub run: u32,
    pub topic: String,
    pub topic_number: TopicNumber,
    pub partition: u32,
    pub offset: u64,
    pub attempts: u32,
    /// The time of the publish. For a hold: when it was accepted, not when it fired.
    pub published_at_ms: i64,
    /// The number of headers after this one that belong to the message. Later headers belong to the retry.
    #[serde(default)]
    pub headers: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u16>,
    /// The start of the last response body, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_answer: Option<String>,
    /// Set for a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at_ms: Option<i64>,
}

/// The message and the attempt encoded in an id that [`MessageOrigin::made_id`] generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DerivedId {
    pub partition: PartitionId,
    pub offset: u64,
    pub attempts: u32,
}

impl MessageOrigin {
    /// The id of a record derived from this message and attempt. It is deterministic, so that a repeat after a crash is recognized as one.
    pub fn made_id(&self, purpose: &str, number: SubscriptionNumber) -> String {
        let Self { run, topic_number, partition, offset, attempts, .. } = self;
        format!("{purpose}-{}-{run}-{}-{partition}-{offset}-{attempts}", number.0, topic_number.0)
    }

    /// Parses an id that [`MessageOrigin::made_id`] generated for this purpose.
    pub fn parse_made_id(id: &str, purpose: &str) -> Option<DerivedId> {
        // The numbers of the subscription and of the run come first.
        let mut parts = id.strip_prefix(purpose)?.strip_prefix('-')?.split('-').skip(2);
        let topic = TopicNumber(parts.next()?.parse().ok()?);
        let partition = PartitionId::new(topic, parts.next()?.parse().ok()?);
        let made = DerivedId { partition, offset: parts.next()?.parse().ok()?, attempts: parts.next()?.parse().ok()? };
        parts.next().is_none().then_some(made)
    }

    pub fn published_at(&self) -> Timestamp {
        Timestamp::from_millis(self.published_at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_spread_over_the_shards() {
        let mut counts = [0u32; 16];
        for number in 1..=160 {
            counts[SubscriptionNumber(number).shard(16) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (5..=15).contains(count)), "{counts:?}");
    }

    #[test]
    fn partitions_added_later_start_at_offset_zero() {
        let starts = [TopicStart { topic: "orders".to_owned(), number: TopicNumber(3), offsets: vec![7, 9] }];
        assert_eq!(start_in(&starts, "orders", TopicNumber(3), 1), 9);
        assert_eq!(start_in(&starts, "orders", TopicNumber(3), 2), 0, "the partition was added later");
        assert_eq!(start_in(&starts, "orders", TopicNumber(4), 1), 0, "the topic was created again");
        assert_eq!(start_in(&starts, "payments", TopicNumber(3), 1), 0);
    }

    #[test]
    fn made_ids_differ_by_attempt_and_run_fit_a_hold_and_can_be_parsed() {
        let origin = MessageOrigin {
            subscription: "s".repeat(200),
            run: u32::MAX,
            topic: "t".to_owned(),
            topic_number: TopicNumber(u32::MAX),
            partition: u32::MAX,
            offset: u64::MAX,
            attempts: u32::MAX,
            published_at_ms: 0,
            headers: 0,
            reason: None,
            last_status: None,
            last_answer: None,
            died_at_ms: None,
        };
        let id = origin.made_id("retry", SubscriptionNumber(u32::MAX));
        let partition = PartitionId::new(TopicNumber(u32::MAX), u32::MAX);
        let made = DerivedId { partition, offset: u64::MAX, attempts: u32::MAX };
        assert_eq!(MessageOrigin::parse_made_id(&id, "retry"), Some(made));
        assert_eq!(MessageOrigin::parse_made_id(&id, "other"), None);
        assert_eq!(MessageOrigin::parse_made_id("retry-1-2-3-4-5", "retry"), None);
        assert!(id.len() <= crate::hold::HOLD_ID_MAX_BYTES);
        let next = MessageOrigin { attempts: 1, ..origin.clone() };
        let again = MessageOrigin { run: 1, ..origin };
        assert_ne!(next.made_id("retry", SubscriptionNumber(1)), again.made_id("retry", SubscriptionNumber(1)));
    }
}
