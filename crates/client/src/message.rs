//! Messages to publish, and positions to read from.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use whimbrel_api::messages::BatchEntry;

/// A message to publish.
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

/// Builds the entry of a batch. The idempotency key is a header of the request.
impl From<&NewMessage> for BatchEntry {
    fn from(message: &NewMessage) -> Self {
        let text = std::str::from_utf8(&message.payload).ok().map(str::to_owned);
        let payload_base64 = text.is_none().then(|| BASE64.encode(&message.payload));
        Self {
            payload: text,
            payload_base64,
            json: None,
            content_type: message.content_type.clone(),
            key: message.key.clone(),
            id: message.id.clone(),
            delay: message.delay.clone(),
            deliver_at: message.deliver_at.clone(),
            headers: message.headers.clone(),
        }
    }
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

impl Position {
    /// The query parameter of a read that begins here.
    pub(crate) fn parameter(&self) -> (&'static str, Option<String>) {
        match self {
            Self::Earliest => ("offset", Some("earliest".to_owned())),
            Self::Latest => ("offset", Some("latest".to_owned())),
            Self::Offset(offset) => ("offset", Some(offset.to_string())),
            Self::Since(time) => ("since", Some(time.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(message: &NewMessage) -> String {
        serde_json::to_string(&BatchEntry::from(message)).unwrap()
    }

    #[test]
    fn an_entry_of_a_batch_contains_only_the_given_members() {
        assert_eq!(entry(&NewMessage::new("a\"b")), r#"{"payload":"a\"b"}"#);
        let full = NewMessage::new(vec![0xff]).key("k").id("i").delay("1s").header("a", "b");
        assert_eq!(entry(&full), r#"{"payload_base64":"/w==","key":"k","id":"i","delay":"1s","headers":{"a":"b"}}"#);
    }
}
