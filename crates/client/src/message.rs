//! Messages to publish, and messages that were read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// A message to publish. Its JSON form is an entry of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewMessage {
    pub payload: Bytes,
    pub content_type: Option<String>,
    pub key: Option<String>,
    pub id: Option<String>,
    /// A duration such as `10m`.
    pub delay: Option<String>,
    /// A time in RFC 3339.
    pub deliver_at: Option<String>,
    pub headers: Vec<(String, String)>,
    /// A repeat with the same key returns the first answer. Only for single publishes.
    pub idempotency_key: Option<String>,
}

impl NewMessage {
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    pub fn text(payload: impl Into<String>) -> Self {
        Self::new(payload.into()).content_type("text/plain; charset=utf-8")
    }

    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    pub fn delay(mut self, delay: impl Into<String>) -> Self {
        self.delay = Some(delay.into());
        self
    }

    pub fn deliver_at(mut self, time: impl Into<String>) -> Self {
        self.deliver_at = Some(time.into());
        self
    }

    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

impl Serialize for NewMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Pairs<'a>(&'a [(String, String)]);
        impl Serialize for Pairs<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
            }
        }
        let mut map = serializer.serialize_map(None)?;
        match std::str::from_utf8(&self.payload) {
            Ok(text) => map.serialize_entry("payload", text)?,
            Err(_) => map.serialize_entry("payload_base64", &BASE64.encode(&self.payload))?,
        }
        let attributes = [
            ("content_type", &self.content_type),
            ("key", &self.key),
            ("id", &self.id),
            ("delay", &self.delay),
            ("deliver_at", &self.deliver_at),
        ];
        for (name, value) in attributes {
            if let Some(value) = value {
                map.serialize_entry(name, value)?;
            }
        }
        if !self.headers.is_empty() {
            map.serialize_entry("headers", &Pairs(&self.headers))?;
        }
        map.end()
    }
}

/// The result of an accepted publish: the message is in its topic, or it is a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Accepted {
    Published(Published),
    Held(Held),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub id: String,
    pub topic: String,
    pub state: String,
    pub due: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub headers: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(default)]
    pub published_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// Other members of the response: `due` and `fired_at` of a fired hold; `state` and `subscriptions` if one message was requested.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// The published payload. `None`: the server sent invalid base64.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.payload, &self.payload_base64) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(encoded)) => BASE64.decode(encoded).ok(),
            (None, None) => Some(Vec::new()),
        }
    }
}

/// Messages of one partition, and the offset of the next read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadPage {
    pub messages: Vec<Message>,
    pub next_offset: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Position {
    #[default]
    Earliest,
    Latest,
    Offset(u64),
    /// A time in RFC 3339.
    Since(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_a_batch_contains_only_the_given_members() {
        assert_eq!(serde_json::to_string(&NewMessage::new("a\"b")).unwrap(), r#"{"payload":"a\"b"}"#);
        let full = NewMessage::new(vec![0xff]).key("k").id("i").delay("1s").header("a", "b");
        assert_eq!(
            serde_json::to_string(&full).unwrap(),
            r#"{"payload_base64":"/w==","key":"k","id":"i","delay":"1s","headers":{"a":"b"}}"#
        );
    }

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
        let place = r#""id":"a","topic":"t","partition":0,"offset":0"#;
        assert_eq!(message(&format!(r#"{{{place},"payload":"hé"}}"#)).bytes(), Some("hé".into()));
        assert_eq!(message(&format!(r#"{{{place},"payload_base64":"AP8="}}"#)).bytes(), Some(vec![0, 255]));
        assert_eq!(message(&format!(r#"{{{place},"payload_base64":"*"}}"#)).bytes(), None);
    }
}
