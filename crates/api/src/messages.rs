//! Messages: entries of a batch, answers to publishes and reads, and the deliveries of a message.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::holds::HoldInfo;

/// The partition and offset of a published message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PublishAnswer))]
pub struct Published {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
}

/// A held message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HeldAnswer))]
pub struct Held {
    pub id: String,
    pub topic: String,
    /// `held`
    pub state: String,
    /// The time at which Whimbrel appends the message to its topic.
    pub due: String,
}

/// The result of one message of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = EntryAnswer))]
#[serde(untagged)]
pub enum Accepted {
    Published(Published),
    Held(Held),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BatchAnswer {
    /// One answer for each entry, in order.
    pub messages: Vec<Accepted>,
}

/// An entry of a batch. Exactly one of `payload`, `payload_base64` and `json` is required.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = NewMessage))]
pub struct BatchEntry {
    /// The payload, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// The payload, if it is JSON. The content type is then `application/json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// An id chosen by the publisher. A repeat returns the first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Hold the message for a duration such as `30s`, or a number of milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// Hold the message until this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "object_of_pairs")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, String>>))]
    pub headers: Vec<(String, String)>,
}

/// Writes headers in their order. A name may be repeated.
fn object_of_pairs<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// A stored message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Message {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    /// Absent if the message has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, if it is not UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    pub published_at: String,
    /// For a message that was held: its due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// For a message that was held: the time of its append to the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<String>,
    /// The payload, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload in base64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
}

impl Message {
    /// The published payload. `None`: the server sent invalid base64.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.payload, &self.payload_base64) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(encoded)) => STANDARD.decode(encoded).ok(),
            (None, None) => Some(Vec::new()),
        }
    }
}

/// The message of an id, in its topic or held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum FoundMessage {
    InTopic(MessageState),
    Hold(HeldMessageState),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ReadAnswer))]
pub struct ReadPage {
    pub messages: Vec<Message>,
    /// The offset at which to continue reading.
    pub next_offset: u64,
}

/// A message in its topic, and its deliveries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MessageState {
    /// `published`, or `fired` if the message was held
    pub state: String,
    #[serde(flatten)]
    pub message: Message,
    /// The delivery state in each subscription of its topic.
    pub subscriptions: Vec<DeliveryInfo>,
}

/// A held message, or one that was held and is not in its topic: withdrawn, dead, or fired and no longer retained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldMessageState {
    #[serde(flatten)]
    pub hold: HoldInfo,
    /// Always empty: no subscription has seen the message.
    pub subscriptions: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SearchAnswer {
    pub messages: Vec<Message>,
    /// The number of records that the search has read.
    pub scanned: u64,
    /// Whether the search covered the whole requested range.
    pub complete: bool,
    /// Present if the search is incomplete: pass it to continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The delivery of a message by one subscription.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Delivery))]
pub struct DeliveryInfo {
    pub name: String,
    /// `delivered`, `waiting`, `in_flight`, `retrying`, `dead`, `dropped`, `not_for_it` (before its start, or excluded by its filter), or
    /// `unknown` if its owner does not answer
    pub state: String,
    /// Ordered by time. Old attempts may be missing.
    pub attempts: Vec<AttemptInfo>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Attempt))]
pub struct AttemptInfo {
    /// Counts from 1.
    pub attempt: u32,
    pub at: String,
    pub took_ms: u32,
    /// The run of the subscription. A seek, a replay and a redrive begin a new one.
    pub run: u32,
    /// `delivered` or `failed`
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The start of the answer's body, for a failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The step after a failure: `retry`, `dead_letter` or `drop`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_answer_are_distinguished() {
        let now: Accepted = serde_json::from_str(r#"{"id":"a","topic":"t","partition":1,"offset":2}"#).unwrap();
        assert!(matches!(now, Accepted::Published(Published { partition: 1, offset: 2, .. })));
        let later: Accepted = serde_json::from_str(r#"{"id":"a","topic":"t","state":"held","due":"x"}"#).unwrap();
        assert!(matches!(later, Accepted::Held(_)));
    }

    #[test]
    fn a_payload_is_decoded_as_it_was_published() {
        let message = |text: &str| -> Message { serde_json::from_str(text).unwrap() };
        let place = r#""id":"a","topic":"t","partition":0,"offset":0,"headers":{},"published_at":"t""#;
        assert_eq!(message(&format!(r#"{{{place},"payload":"hé"}}"#)).bytes(), Some("hé".into()));
        assert_eq!(message(&format!(r#"{{{place},"payload_base64":"AP8="}}"#)).bytes(), Some(vec![0, 255]));
        assert_eq!(message(&format!(r#"{{{place},"payload_base64":"*"}}"#)).bytes(), None);
    }
}
