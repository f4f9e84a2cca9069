//! Pushes to users.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use whimbrel_api::people::{NewNotify, Origin, PushBody};

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

/// Builds the request body.
impl From<&NewPush> for PushBody {
    fn from(push: &NewPush) -> Self {
        let payload = std::str::from_utf8(&push.payload).ok().map(str::to_owned);
        let payload_base64 = payload.is_none().then(|| BASE64.encode(&push.payload));
        let NewPush {
            content_type, platforms, store, ttl, collapse_key, notify, notify_after, delay, id, origin, ..
        } = push.clone();
        let except_platforms = Some(push.except_platforms.clone()).filter(|platforms| !platforms.is_empty());
        Self {
            payload,
            payload_base64,
            json: None,
            content_type,
            platforms,
            except_platforms,
            store,
            ttl,
            collapse_key,
            notify,
            notify_after,
            delay,
            id,
            origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_api::people::ManyPush;

    #[test]
    fn a_push_contains_only_the_given_members() {
        let body = |push: &NewPush| serde_json::to_string(&PushBody::from(push)).unwrap();
        assert_eq!(body(&NewPush::text("hi")), r#"{"payload":"hi"}"#);
        let many = ManyPush { uids: vec!["u1".into()], push: (&NewPush::text("hi")).into() };
        assert_eq!(serde_json::to_string(&many).unwrap(), r#"{"uids":["u1"],"payload":"hi"}"#);
        let full = NewPush {
            notify: Some(NewNotify { title: Some("t".into()), ..NewNotify::default() }),
            origin: Some(Origin { server: "s".into(), seq: 7 }),
            ..NewPush::new(vec![0xff]).ephemeral().ttl("1h").platforms(["ios"])
        };
        assert_eq!(
            body(&full),
            r#"{"payload_base64":"/w==","platforms":["ios"],"store":false,"ttl":"1h","notify":{"title":"t"},"origin":{"server":"s","seq":7}}"#
        );
    }
}
