//! People: what is pushed to them, and how the server shows their presence, inboxes, platforms and devices.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// A message to push. What is left out takes the server's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NewPush {
    pub payload: Bytes,
    pub content_type: Option<String>,
    /// Only these platforms.
    pub platforms: Option<Vec<String>>,
    pub except_platforms: Vec<String>,
    /// Kept until it is acknowledged; otherwise it reaches who is there now.
    pub store: Option<bool>,
    /// How long it is of use, such as `7d`.
    pub ttl: Option<String>,
    /// A newer message under the same key takes the place of an older one.
    pub collapse_key: Option<String>,
    pub notify: Option<Notify>,
    /// After this long without an acknowledgement devices are woken: `10s`.
    pub notify_after: Option<String>,
    /// A duration such as `10m`.
    pub delay: Option<String>,
    /// An id of the sender's own: pushing it again returns the first answer.
    pub id: Option<String>,
    pub origin: Option<Origin>,
}

/// What a device that is woken shows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Notify {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// The sender's own number for a push: what comes by two ways with the same one is seen once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub server: String,
    pub seq: u64,
}

impl NewPush {
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    pub fn text(payload: impl Into<String>) -> Self {
        Self::new(payload.into())
    }

    /// For who is there now, and kept for nobody.
    pub fn ephemeral(mut self) -> Self {
        self.store = Some(false);
        self
    }

    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    pub fn ttl(mut self, ttl: impl Into<String>) -> Self {
        self.ttl = Some(ttl.into());
        self
    }

    pub fn collapse_key(mut self, key: impl Into<String>) -> Self {
        self.collapse_key = Some(key.into());
        self
    }

    pub fn platforms(mut self, platforms: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.platforms = Some(platforms.into_iter().map(Into::into).collect());
        self
    }
}

/// The push with those it is for, as it is sent.
pub(crate) struct PushBody<'a> {
    pub push: &'a NewPush,
    /// `None`: the path says who.
    pub uids: Option<&'a [String]>,
}

impl Serialize for PushBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let push = self.push;
        let mut map = serializer.serialize_map(None)?;
        if let Some(uids) = self.uids {
            map.serialize_entry("uids", uids)?;
        }
        match std::str::from_utf8(&push.payload) {
            Ok(text) => map.serialize_entry("payload", text)?,
            Err(_) => map.serialize_entry("payload_base64", &BASE64.encode(&push.payload))?,
        }
        let texts = [
            ("content_type", &push.content_type),
            ("ttl", &push.ttl),
            ("collapse_key", &push.collapse_key),
            ("notify_after", &push.notify_after),
            ("delay", &push.delay),
            ("id", &push.id),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                map.serialize_entry(name, value)?;
            }
        }
        if let Some(platforms) = &push.platforms {
            map.serialize_entry("platforms", platforms)?;
        }
        if !push.except_platforms.is_empty() {
            map.serialize_entry("except_platforms", &push.except_platforms)?;
        }
        if let Some(store) = push.store {
            map.serialize_entry("store", &store)?;
        }
        if let Some(notify) = &push.notify {
            map.serialize_entry("notify", notify)?;
        }
        if let Some(origin) = &push.origin {
            map.serialize_entry("origin", origin)?;
        }
        map.end()
    }
}

/// An accepted push: durable, on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pushed {
    pub id: String,
    /// Whatever else the server says of it: when it is due, where it is delayed.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Who is online, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PresenceInfo {
    pub uid: String,
    pub online: bool,
    #[serde(default)]
    pub sessions: Vec<SessionInfo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh_as_of: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    pub session: String,
    pub platform: String,
    #[serde(default)]
    pub device: String,
    #[serde(default)]
    pub gateway: String,
    #[serde(default)]
    pub since: String,
}

/// Many users' presence at one moment, in the order of the question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PresencePage {
    pub users: Vec<PresenceInfo>,
    pub fresh_as_of: String,
}

/// Whose sessions to end, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kick {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub reason: String,
}

/// What is stored for a user, and how far each seat has acknowledged it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxInfo {
    #[serde(default)]
    pub epoch: String,
    #[serde(default)]
    pub messages: Vec<StoredMessage>,
    #[serde(default)]
    pub seats: Vec<SeatInfo>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredMessage {
    pub seq: u64,
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeatInfo {
    pub platform: String,
    #[serde(default)]
    pub device: String,
    pub cursor: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What a platform keeps, how much, whether it is woken. What is left out stays as it is, or takes its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlatformInfo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_stored: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<bool>,
    /// `"replace"`, `"reject"` or `{"many":3}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_timeout: Option<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Where notices for a device go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    pub platform: String,
    /// `apns`, `fcm`, `webpush` or `http`.
    pub provider: String,
    pub token: String,
    /// What else its provider wants: `p256dh` and `auth` of a browser, `topic` of an app. In an answer also `device`, its name.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_has_only_what_was_given() {
        let plain = NewPush::text("hi");
        assert_eq!(serde_json::to_string(&PushBody { push: &plain, uids: None }).unwrap(), r#"{"payload":"hi"}"#);
        let full = NewPush {
            notify: Some(Notify { title: Some("t".into()), ..Notify::default() }),
            origin: Some(Origin { server: "s".into(), seq: 7 }),
            ..NewPush::new(vec![0xff]).ephemeral().ttl("1h").platforms(["ios"])
        };
        assert_eq!(
            serde_json::to_string(&PushBody { push: &full, uids: Some(&["a".into(), "b".into()]) }).unwrap(),
            r#"{"uids":["a","b"],"payload_base64":"/w==","ttl":"1h","platforms":["ios"],"store":false,"notify":{"title":"t"},"origin":{"server":"s","seq":7}}"#
        );
    }
}
