//! Subscriptions: their settings, their status, and pulled messages.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Message;

/// The settings of a subscription. The server uses its default for a missing member.
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
    /// The approximate number of unfinished messages. `None`: the owner did not reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Other members of the response: its settings, rates, parked messages, last error.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The target of a seek.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SeekTo {
    /// `earliest`, `latest`, or a time in RFC 3339.
    To(String),
    /// By `topic/partition`.
    Offsets(std::collections::BTreeMap<String, u64>),
}

/// A range of the topics to deliver again, beside the normal delivery.
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
    /// Empty for a push.
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

/// A page of dead letters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetterPage {
    pub dead_letters: Vec<DeadLetterInfo>,
    /// The start of the next page. `None`: this is the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A message that was handed out to this consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PulledMessage {
    /// The id to acknowledge the message with.
    pub ack_id: String,
    #[serde(default)]
    pub attempt: u32,
    #[serde(default)]
    pub lease_until: String,
    #[serde(flatten)]
    pub message: Message,
}

/// The result of acknowledgements. `unknown` has the ids whose lease has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    #[serde(default)]
    pub unknown: Vec<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

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
        assert_eq!(serde_json::to_string(&SeekTo::To("earliest".into())).unwrap(), r#"{"to":"earliest"}"#);
        let offsets = SeekTo::Offsets([("orders/0".to_owned(), 17)].into());
        assert_eq!(serde_json::to_string(&offsets).unwrap(), r#"{"offsets":{"orders/0":17}}"#);
    }

    #[test]
    fn a_pulled_message_is_decoded_with_its_lease() {
        let text = r#"{"ack_id":"x","attempt":1,"lease_until":"t","id":"a","topic":"t","partition":0,"offset":3,"payload":"p"}"#;
        let pulled: PulledMessage = serde_json::from_str(text).unwrap();
        assert_eq!((pulled.ack_id.as_str(), pulled.message.offset, pulled.message.bytes()), ("x", 3, Some("p".into())));
    }
}
