//! Subscriptions: what they are asked to be, how the server shows them, and what is pulled from them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Message;

/// What a subscription shall be. What is left out takes the server's default.
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
    /// The statuses that are success; any 2xx where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Vec<u16>>,
    /// What an answer of 410 means: `disable` or `fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
    /// Whatever else the server takes.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointSettings {
    pub url: String,
    /// For the whole call, a duration such as `3s`.
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
    /// Durations; past the end the last one repeats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<String>,
}

impl SubscriptionSettings {
    /// Pushes these topics to an endpoint.
    pub fn push(topics: impl IntoIterator<Item = impl Into<String>>, url: impl Into<String>) -> Self {
        Self {
            topics: topics.into_iter().map(Into::into).collect(),
            endpoint: Some(EndpointSettings { url: url.into(), ..EndpointSettings::default() }),
            ..Self::default()
        }
    }

    /// Hands these topics out to whoever pulls.
    pub fn pull(topics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { topics: topics.into_iter().map(Into::into).collect(), mode: Some("pull".into()), ..Self::default() }
    }
}

/// A subscription as the server shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionInfo {
    pub name: String,
    #[serde(default)]
    pub topics: Vec<String>,
    #[serde(default)]
    pub mode: String,
    /// `active`, `paused` or `disabled`.
    #[serde(default)]
    pub state: String,
    /// Messages that are not done yet, about; nothing where its owner did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Whatever else the server says of it: its settings, rates, what is parked, its last error.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Where a subscription's cursor goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SeekTo {
    /// `earliest`, `latest`, or a time in RFC 3339.
    To(String),
    /// By `topic/partition`.
    Offsets(std::collections::BTreeMap<String, u64>),
}

/// A stretch of the topics that is delivered once more, beside the cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReplayRange {
    /// `earliest` or a time in RFC 3339.
    pub from: String,
    /// `latest` or a time in RFC 3339.
    pub to: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A message that could not be delivered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetterInfo {
    pub id: String,
    /// Empty where it is a push.
    #[serde(default)]
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    #[serde(default)]
    pub key: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub attempts: u32,
    #[serde(default)]
    pub last_status: Option<u16>,
    #[serde(default)]
    pub died_at: Option<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Some dead letters, and where to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetterPage {
    pub dead_letters: Vec<DeadLetterInfo>,
    /// Nothing: there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A message that was handed out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PulledMessage {
    /// What it is acknowledged with.
    pub ack_id: String,
    #[serde(default)]
    pub attempt: u32,
    #[serde(default)]
    pub lease_until: String,
    #[serde(flatten)]
    pub message: Message,
}

/// What became of acknowledgements: those of a lease that is over are unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    #[serde(default)]
    pub unknown: Vec<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What happened to a topic, minute by minute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicFigures {
    #[serde(default)]
    pub topic: String,
    #[serde(default)]
    pub minutes: Vec<Value>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_of_a_subscription_is_not_sent() {
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
    fn a_seek_names_a_place_or_offsets() {
        assert_eq!(serde_json::to_string(&SeekTo::To("earliest".into())).unwrap(), r#"{"to":"earliest"}"#);
        let offsets = SeekTo::Offsets([("orders/0".to_owned(), 17)].into());
        assert_eq!(serde_json::to_string(&offsets).unwrap(), r#"{"offsets":{"orders/0":17}}"#);
    }

    #[test]
    fn a_pulled_message_has_its_lease_beside_the_message() {
        let text = r#"{"ack_id":"x","attempt":1,"lease_until":"t","id":"a","topic":"t","partition":0,"offset":3,"payload":"p"}"#;
        let pulled: PulledMessage = serde_json::from_str(text).unwrap();
        assert_eq!((pulled.ack_id.as_str(), pulled.message.offset, pulled.message.bytes()), ("x", 3, Some("p".into())));
    }
}
