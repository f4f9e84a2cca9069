//! Subscriptions: their settings and status, seeks and replays.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The new position of the cursor: exactly one of `to` and `offsets`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SeekBody))]
pub struct SeekTo {
    /// `earliest`, `latest` or a past time in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Offsets by `topic/partition`. Other partitions keep their position. An offset that is no longer retained becomes the oldest retained
    /// one. An offset beyond the end is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets: Option<BTreeMap<String, u64>>,
}

impl SeekTo {
    /// Seeks to `earliest`, `latest` or a time.
    pub fn place(place: impl Into<String>) -> Self {
        Self { to: Some(place.into()), offsets: None }
    }

    /// Seeks to these offsets by `topic/partition`.
    pub fn offsets(offsets: BTreeMap<String, u64>) -> Self {
        Self { to: None, offsets: Some(offsets) }
    }
}

/// A range of messages to deliver again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ReplayBody))]
pub struct ReplayRange {
    /// `earliest` or a time in RFC 3339
    pub from: String,
    /// `latest` (the default: up to now) or a time in RFC 3339
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Only messages with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The start position of a seek or a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Sought))]
pub struct SeekInfo {
    pub run: u32,
    /// Offsets by `topic/partition`.
    pub offsets: BTreeMap<String, u64>,
    /// The `topic/partition` of those whose requested offset is no longer retained. They begin at the oldest retained one.
    pub truncated: Vec<String>,
}

/// A subscription. If its owner does not answer, `owner` says so and the other status fields are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Subscription))]
pub struct SubscriptionInfo {
    pub name: String,
    /// Unique: a subscription created again under an old name has another number.
    pub number: u32,
    /// `active`, `paused` or `disabled`
    pub state: String,
    /// Why and when Whimbrel disabled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<DisabledInfo>,
    pub created_at: String,
    /// The run of the cursor. A seek begins a new one.
    pub run: u32,
    #[serde(flatten)]
    pub settings: SubscriptionSettingsInfo,
    #[serde(flatten)]
    pub status: SubscriptionStatusInfo,
    /// The ranges that are delivered again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replays: Vec<ReplayInfo>,
    /// A note about the effect of the change, for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Members that this version does not know.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    pub more: Map<String, Value>,
}

/// The settings of a subscription. A `PUT` replaces all of them: absent fields get their default, except `secret`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SubscriptionSettings))]
pub struct SubscriptionSettingsInfo {
    /// Topics of users, `_events`, or `_dead.<subscription>`.
    pub topics: Vec<String>,
    /// `push` (the default) or `pull`
    pub mode: String,
    /// Present if `mode` is `push`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointInfo>,
    /// `key` (the default), `partition` or `none`
    pub ordering: String,
    /// The maximum number of concurrent callbacks: 1 to 10000, default 16.
    pub concurrency: u32,
    pub retry: RetryInfo,
    /// `dead_letter` (the default), `block` or `drop`
    pub on_exhausted: String,
    /// The delay between attempts if `on_exhausted` is `block`.
    pub blocked_sleep: String,
    /// Where a new subscription, or a topic added later, begins: `earliest`, `latest` (the default) or a time.
    pub start: String,
    /// The maximum rate of callbacks, such as `1000/s`, `60/m`, `10/h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Conditions that must all hold: `key`, `topic`, `content_type` or `headers.<name>`, with the required value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filter: BTreeMap<String, String>,
    /// `binary` (the default), `structured` or `kmq`
    pub envelope: String,
    /// `whsec_` and base64, or `generate`. Shown masked. A `PUT` without it keeps it, and `null` removes it. After a change, callbacks are
    /// signed with the old secret too for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The statuses that count as success. Default: any 2xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Vec<u16>>,
    /// The effect of a 410: `disable` (the default) or `fail`
    pub gone: String,
    /// Disables the subscription if it fails for this time without one success. Default: `5d`.
    pub disable_after: String,
    /// How long a puller owns a message. Default: `30s`.
    pub lease: String,
    /// The workers that make its callbacks. Overrides the choice of the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersInfo>,
}

/// The status of a subscription, from its owner.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SubscriptionStanding))]
pub struct SubscriptionStatusInfo {
    /// `unreachable` if the owner does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The approximate number of unfinished messages: offsets are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// The number of keys, or partitions, that wait for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<u64>,
    /// The number of messages behind the parked keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_messages: Option<u64>,
    /// The time of the next callback, if all wait for a retry, the circuit breaker, or a delay that the endpoint requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    /// The number of retries that wait as holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_holds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<u64>,
    /// Deliveries per second over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_rate: Option<f64>,
    /// Failures per second over the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_rate: Option<f64>,
    /// The current limit of concurrent callbacks, adapted to the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_now: Option<u32>,
    /// `closed`, `open` or `half_open`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<String>,
    /// Why it does not read further, if it is stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastErrorInfo>,
    /// Bytes of message bodies in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetched_bytes: Option<u64>,
    /// The number of signed callbacks since the start of its owner whose body is not UTF-8. Absent if there were none; see `note`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverifiable: Option<u64>,
    /// Present in the answer for a single subscription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<Vec<SubscriptionPartition>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Disabled))]
pub struct DisabledInfo {
    pub reason: String,
    pub at: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Endpoint))]
pub struct EndpointInfo {
    /// Absent if each message has its own callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The timeout of the whole call. Default: `10s`.
    pub timeout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// Headers of every callback. Values of headers that carry credentials are hidden.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Retry))]
pub struct RetryInfo {
    /// The number of retries, not of attempts: 5 means at most six attempts.
    pub times: u32,
    /// The delays between attempts. The last one repeats.
    pub schedule: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Workers))]
pub struct WorkersInfo {
    /// Names of workers; `*` means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<String>,
    /// Instead of `pool`: a number of workers, which Whimbrel chooses and keeps constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// How the workers are chosen: `least_loaded` (the default) or `random`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assign: Option<String>,
    /// `random`, `round_robin`, `weighted_random`, `weighted_round_robin` or `least_loaded` (the default)
    pub strategy: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LastError))]
pub struct LastErrorInfo {
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SubscriptionPartition {
    pub topic: String,
    pub partition: u32,
    /// All messages below this offset are done.
    pub watermark: u64,
    pub read_to: u64,
    pub end: u64,
    /// The number of unfinished messages above the watermark.
    pub unfinished: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Replay))]
pub struct ReplayInfo {
    pub run: u32,
    pub asked_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SubscriptionList {
    /// Ordered by name.
    pub subscriptions: Vec<SubscriptionInfo>,
}

/// The settings to send. The server uses its default for a missing member.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionSettings {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// `push` or `pull`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointSettings>,
    /// `key`, `partition` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    /// `dead_letter`, `block` or `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<String>,
    /// A duration such as `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_sleep: Option<String>,
    /// `earliest`, `latest`, or a time in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Callbacks per time: `1000/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub filter: Map<String, Value>,
    /// `binary`, `structured` or `kmq`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envelope: Option<String>,
    /// `whsec_` and base64, or `generate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The status codes that count as success. `None`: any 2xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Vec<u16>>,
    /// The reaction to a 410 response: `disable` or `fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
    /// Other settings of the API.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointSettings {
    pub url: String,
    /// The timeout of the whole call, a duration such as `3s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub headers: Map<String, Value>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetrySettings {
    /// Retries, not attempts: 5 means at most six attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// The delays between attempts. The last one repeats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<String>,
}

impl SubscriptionSettings {
    /// A subscription that delivers these topics to an endpoint.
    pub fn push(topics: impl IntoIterator<Item = impl Into<String>>, url: impl Into<String>) -> Self {
        Self {
            topics: topics.into_iter().map(Into::into).collect(),
            endpoint: Some(EndpointSettings { url: url.into(), ..EndpointSettings::default() }),
            ..Self::default()
        }
    }

    /// A subscription from which consumers pull messages of these topics.
    pub fn pull(topics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { topics: topics.into_iter().map(Into::into).collect(), mode: Some("pull".into()), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_settings_of_a_subscription_are_not_sent() {
        let settings = SubscriptionSettings::push(["orders"], "http://127.0.0.1:9000/hook");
        assert_eq!(
            serde_json::to_string(&settings).unwrap(),
            r#"{"topics":["orders"],"endpoint":{"url":"http://127.0.0.1:9000/hook"}}"#
        );
        assert_eq!(
            serde_json::to_string(&SubscriptionSettings::pull(["a", "b"])).unwrap(),
            r#"{"topics":["a","b"],"mode":"pull"}"#
        );
    }

    #[test]
    fn a_seek_is_encoded_as_a_position_or_offsets() {
        assert_eq!(serde_json::to_string(&SeekTo::place("earliest")).unwrap(), r#"{"to":"earliest"}"#);
        let offsets = SeekTo::offsets([("orders/0".to_owned(), 17)].into());
        assert_eq!(serde_json::to_string(&offsets).unwrap(), r#"{"offsets":{"orders/0":17}}"#);
    }
}
