//! Pushes to users.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use whimbrel_api::people::{NewNotify, Origin};

/// A message to push. The server uses its default for a missing member.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NewPush {
    pub payload: Bytes,
    pub content_type: Option<String>,
    /// `None`: all platforms.
    pub platforms: Option<Vec<String>>,
    pub except_platforms: Vec<String>,
    /// Store the message until it is acknowledged. `false`: deliver it to connected devices only.
    pub store: Option<bool>,
    /// The time to live, such as `7d`.
    pub ttl: Option<String>,
    /// A newer message with the same key replaces an older one that is still stored.
    pub collapse_key: Option<String>,
    pub notify: Option<NewNotify>,
    /// The delay until devices that have not acknowledged are notified: `10s`.
    pub notify_after: Option<String>,
    /// A duration such as `10m`.
    pub delay: Option<String>,
    /// An id that the sender chooses: a second push with it returns the first answer.
    pub id: Option<String>,
    pub origin: Option<Origin>,
}

impl NewPush {
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    pub fn text(payload: impl Into<String>) -> Self {
        Self::new(payload.into())
    }

    /// Delivers to connected devices only, without storing the message.
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

/// The request body of a push.
pub(crate) struct PushRequestBody<'a> {
    pub push: &'a NewPush,
    /// `None`: the path contains the user.
    pub uids: Option<&'a [String]>,
}

impl Serialize for PushRequestBody<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_contains_only_the_given_members() {
        let plain = NewPush::text("hi");
        assert_eq!(
            serde_json::to_string(&PushRequestBody { push: &plain, uids: None }).unwrap(),
            r#"{"payload":"hi"}"#
        );
        let full = NewPush {
            notify: Some(NewNotify { title: Some("t".into()), ..NewNotify::default() }),
            origin: Some(Origin { server: "s".into(), seq: 7 }),
            ..NewPush::new(vec![0xff]).ephemeral().ttl("1h").platforms(["ios"])
        };
        assert_eq!(
            serde_json::to_string(&PushRequestBody { push: &full, uids: Some(&["a".into(), "b".into()]) }).unwrap(),
            r#"{"uids":["a","b"],"payload_base64":"/w==","ttl":"1h","platforms":["ios"],"store":false,"notify":{"title":"t"},"origin":{"server":"s","seq":7}}"#
        );
    }
}
