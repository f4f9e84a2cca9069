//! A subscription: who gets every message of some topics, how, and from where on.
//!
//! A subscription is an entry of the catalogue, [`StoredSubscription`] as JSON under `subscriptions/<name>`. Everything that people
//! decide about it is there and changes by compare-and-set: what it is ([`SubscriptionSpec`]), whether it runs, where it began, which
//! replays are under way. How far it has come is not there: that is the port `Progress`.
//!
//! Fields are only ever added, with a default, so that an older entry stays readable.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{PartitionId, Timestamp, TopicNumber};

/// What the catalogue's keys of subscriptions start with.
pub const SUBSCRIPTION_PREFIX: &str = "subscriptions/";
/// Where the last number given to a subscription is kept, as decimal digits.
pub const LAST_SUBSCRIPTION_KEY: &str = "subscription_numbers";

/// What the topic of a subscription's retries starts with; the subscription's name follows.
pub const RETRY_TOPIC_PREFIX: &str = "_retry.";
/// What the topic of a subscription's dead letters starts with.
pub const DEAD_TOPIC_PREFIX: &str = "_dead.";

/// How a message's own delivery is ruled where its publisher's door says so: a [`DeliveryRule`] as JSON. No publisher can bring it.
pub const HEADER_DELIVERY: &str = "whimbrel-delivery";
/// Which message a record of a retry topic or a dead letter is: an [`Origin`] as JSON.
pub const HEADER_ORIGIN: &str = "whimbrel-origin";

/// Defaults of what a subscription may say.
pub const CONCURRENCY_DEFAULT: u32 = 16;
pub const CONCURRENCY_MAX: u32 = 10_000;
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
pub const RETRY_SCHEDULE_DEFAULT_MS: [u64; 5] = [1_000, 10_000, 60_000, 300_000, 3_000_000];
pub const BLOCKED_SLEEP_DEFAULT: Duration = Duration::from_secs(2);
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// A subscription that fails for so long without one success is disabled.
pub const DISABLE_AFTER_DEFAULT: Duration = Duration::from_secs(5 * 86_400);
/// How long an earlier secret signs beside its successor.
pub const SECRET_OVERLAP_DEFAULT: Duration = Duration::from_secs(86_400);
/// The longest `Retry-After` that is obeyed.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// A subscription's number. One made again under an old name has a new one, so that it inherits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SubscriptionNumber(pub u32);

impl SubscriptionNumber {
    /// The shard whose owner runs the subscription, of as many as `_holds` has.
    pub fn shard(self, shards: u32) -> u32 {
        // Fibonacci hashing: numbers given one after the other spread over all shards.
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
    /// One in flight per key, keys in parallel. Messages without a key have no order.
    #[default]
    Key,
    /// One in flight per partition.
    Partition,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    #[default]
    DeadLetter,
    /// Tries on every `blocked_sleep` until it succeeds.
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

/// What an answer of 410 means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Gone {
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
    /// The first message at or after that time, in milliseconds.
    At(i64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `None`: each message brings its own, see [`DeliveryRule`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// For the whole call, the connecting included.
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
    /// Past its end the last entry repeats. Never empty.
    pub schedule_ms: Vec<u64>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { times: 5, schedule_ms: RETRY_SCHEDULE_DEFAULT_MS.to_vec() }
    }
}

/// At most `count` calls in `per_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub count: u32,
    pub per_ms: u64,
}

/// A secret that signs, `whsec_` and base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningSecret {
    pub secret: String,
    /// It signs until then; `None` without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningSecret(…, until {:?})", self.until_ms)
    }
}

/// How one worker of a pool is picked for each delivery.
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

/// How the workers of a pool are chosen where people name only their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum AssignWorkers {
    Random,
    #[default]
    LeastLoaded,
}

/// Which workers serve the callbacks, and how one is picked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct WorkerChoice {
    /// Names of nodes; `*` is all of them. Empty where `count` says how many.
    #[serde(default)]
    pub pool: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assign: Option<AssignWorkers>,
    #[serde(default)]
    pub strategy: Strategy,
}

/// What a subscription is. Checked where it is made; whoever reads it from the catalogue believes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionSpec {
    pub topics: Vec<String>,
    #[serde(default)]
    pub mode: Mode,
    /// There where `mode` is push.
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
    /// All must hold: `key`, `topic`, `content_type` or `headers.<name>`, and the wanted value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filter: BTreeMap<String, String>,
    #[serde(default)]
    pub envelope: Envelope,
    /// The newest first. All that are live sign.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SigningSecret>,
    /// The statuses that are success; `None`: any 2xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Vec<u16>>,
    #[serde(default)]
    pub gone: Gone,
    pub disable_after_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkerChoice>,
    /// How long a puller has a message before it is handed out again.
    pub lease_ms: u64,
}

impl SubscriptionSpec {
    /// A subscription of these topics with everything else as it is by default.
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
            gone: Gone::default(),
            disable_after_ms: DISABLE_AFTER_DEFAULT.as_millis() as u64,
            workers: None,
            lease_ms: LEASE_DEFAULT.as_millis() as u64,
        }
    }

    /// Whether a failed delivery waits where it is. What has no order becomes a hold instead, unless it is pulled.
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
    /// By the system itself, until somebody resumes it.
    Disabled {
        reason: String,
        at_ms: i64,
    },
}

/// Where a subscription begins in one topic: an offset for each partition there was. Later partitions begin at their beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicStart {
    pub topic: String,
    /// A topic made again under the name has another number: of that one everything is delivered.
    pub number: TopicNumber,
    pub offsets: Vec<u64>,
}

/// A stretch of the topics that is delivered once more, beside the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// A run of its own.
    pub run: u32,
    pub from: Vec<TopicStart>,
    /// Where each partition ends, as many as `from` has.
    pub until: Vec<TopicStart>,
    /// Only messages with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub asked_at_ms: i64,
}

/// A subscription as the catalogue keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSubscription {
    pub number: SubscriptionNumber,
    pub spec: SubscriptionSpec,
    #[serde(default)]
    pub state: RunState,
    /// The cursor's run: raised by a seek, which also sets `starts`. Progress of an earlier run counts no more.
    pub run: u32,
    /// The last run that was given, to the cursor or to a replay or a redrive.
    pub last_run: u32,
    pub starts: Vec<TopicStart>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replays: Vec<Replay>,
    pub created_at_ms: i64,
    /// Being deleted: whoever finds this finishes it.
    #[serde(default)]
    pub deleting: bool,
}

impl StoredSubscription {
    /// Where the cursor's run begins in a partition.
    pub fn start_of(&self, topic: &str, number: TopicNumber, partition: u32) -> u64 {
        start_in(&self.starts, topic, number, partition)
    }

    pub fn is_active(&self) -> bool {
        self.state == RunState::Active && !self.deleting
    }
}

/// The offset for a partition among starts; zero where they have none.
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

/// How a message's own delivery is ruled, beside what its subscription says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DeliveryRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<OwnCallback>,
}

/// Where a message that brings its own callback goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnCallback {
    /// `GET` or `POST`.
    pub method: String,
    pub url: String,
}

/// Which message a retry or a dead letter is of, and what became of it so far. Its other headers, key and value are the message's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub subscription: String,
    pub run: u32,
    pub topic: String,
    pub topic_number: TopicNumber,
    pub partition: u32,
    pub offset: u64,
    /// Attempts that were made.
    pub attempts: u32,
    /// When the message was published, and when it was due where it was held: of its own record.
    pub published_at_ms: i64,
    /// How many of the headers behind this one are the message's own; what follows them is the retry's.
    #[serde(default)]
    pub headers: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u16>,
    /// The start of the last answer, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_answer: Option<String>,
    /// There for a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at_ms: Option<i64>,
}

/// The message and the attempt encoded in an id that [`Origin::made_id`] generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadeId {
    pub partition: PartitionId,
    pub offset: u64,
    pub attempts: u32,
}

impl Origin {
    /// The id of what is made of this message and attempt: the same after a crash, so that a repeat folds away.
    pub fn made_id(&self, purpose: &str, number: SubscriptionNumber) -> String {
        let Self { run, topic_number, partition, offset, attempts, .. } = self;
        format!("{purpose}-{}-{run}-{}-{partition}-{offset}-{attempts}", number.0, topic_number.0)
    }

    /// Parses an id that [`Origin::made_id`] generated for this purpose.
    pub fn parse_made_id(id: &str, purpose: &str) -> Option<MadeId> {
        // The numbers of the subscription and of the run come first.
        let mut parts = id.strip_prefix(purpose)?.strip_prefix('-')?.split('-').skip(2);
        let topic = TopicNumber(parts.next()?.parse().ok()?);
        let partition = PartitionId::new(topic, parts.next()?.parse().ok()?);
        let made = MadeId { partition, offset: parts.next()?.parse().ok()?, attempts: parts.next()?.parse().ok()? };
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
    fn numbers_given_one_after_the_other_spread_over_the_shards() {
        let mut counts = [0u32; 16];
        for number in 1..=160 {
            counts[SubscriptionNumber(number).shard(16) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (5..=15).contains(count)), "{counts:?}");
    }

    #[test]
    fn partitions_made_later_begin_at_their_beginning() {
        let starts = [TopicStart { topic: "orders".to_owned(), number: TopicNumber(3), offsets: vec![7, 9] }];
        assert_eq!(start_in(&starts, "orders", TopicNumber(3), 1), 9);
        assert_eq!(start_in(&starts, "orders", TopicNumber(3), 2), 0, "it was made later");
        assert_eq!(start_in(&starts, "orders", TopicNumber(4), 1), 0, "the topic was made again");
        assert_eq!(start_in(&starts, "payments", TopicNumber(3), 1), 0);
    }

    #[test]
    fn made_ids_differ_by_attempt_and_run_fit_a_hold_and_can_be_parsed() {
        let origin = Origin {
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
        let made = MadeId { partition, offset: u64::MAX, attempts: u32::MAX };
        assert_eq!(Origin::parse_made_id(&id, "retry"), Some(made));
        assert_eq!(Origin::parse_made_id(&id, "other"), None);
        assert_eq!(Origin::parse_made_id("retry-1-2-3-4-5", "retry"), None);
        assert!(id.len() <= crate::hold::HOLD_ID_MAX_BYTES);
        let next = Origin { attempts: 1, ..origin.clone() };
        let again = Origin { run: 1, ..origin };
        assert_ne!(next.made_id("retry", SubscriptionNumber(1)), again.made_id("retry", SubscriptionNumber(1)));
    }
}
