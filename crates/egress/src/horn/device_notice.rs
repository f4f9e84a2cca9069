//! A notice for one device, as all providers need it: the ids by which a repeat is recognized, the urgency, the time to live. Pure.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::Device;
use whimbrel_model::push::Notice;

/// The id of a notice's delivery to one device. It is the same in every attempt and on every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DeliveryId([u8; 16]);

impl DeliveryId {
    pub(super) fn of(uid: &str, notice: &str, device: &str) -> Self {
        let digest = digest_of(&[uid, notice, device]);
        let mut name = [0; 16];
        name.copy_from_slice(&digest[..16]);
        // The version and variant bits of a UUID of version 8, whose other bits are free.
        name[6] = name[6] & 0x0f | 0x80;
        name[8] = name[8] & 0x3f | 0x80;
        Self(name)
    }
}

/// Formats the id as a UUID.
impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A notice for one device.
pub(super) struct DeviceNotice<'a> {
    pub(super) notice: &'a Notice,
    pub(super) device: &'a Device,
    pub(super) name: DeliveryId,
    pub(super) now: Timestamp,
}

impl<'a> DeviceNotice<'a> {
    pub(super) fn new(notice: &'a Notice, device: &'a Device, now: Timestamp) -> Self {
        Self { notice, device, name: DeliveryId::of(&notice.uid, &notice.id, &device.device), now }
    }

    /// Whether the notice has a title or a body. Otherwise it only wakes the app and has low priority.
    pub(super) fn is_shown(&self) -> bool {
        self.notice.notify.title.is_some() || self.notice.notify.body.is_some()
    }

    /// The time to live in seconds, at least one, since providers treat zero as "deliver now or never".
    pub(super) fn seconds_left(&self) -> i64 {
        let left = self.notice.expires_at_ms.saturating_sub(self.now.as_millis());
        (left / 1000).max(1)
    }

    /// The notice's `data` as JSON. Text that is not JSON becomes a JSON string.
    pub(super) fn data(&self) -> Option<Value> {
        let text = self.notice.notify.data.as_deref()?;
        Some(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
    }

    /// The collapse key, at most `bytes_max` bytes of printable ASCII: the key itself if it fits, otherwise a digest. Without a key, a
    /// digest of the notice, so that a repeat replaces it.
    pub(super) fn collapse_name(&self, bytes_max: usize) -> String {
        match &self.notice.collapse_key {
            Some(key) if key.len() <= bytes_max && key.bytes().all(|b| b.is_ascii_graphic()) => key.clone(),
            Some(_) | None => self.collapse_digest(bytes_max),
        }
    }

    /// Like [`Self::collapse_name`], but always a digest in URL-safe base64.
    pub(super) fn collapse_digest(&self, bytes_max: usize) -> String {
        let digest = match &self.notice.collapse_key {
            Some(key) => digest_of(&["key", &self.notice.uid, key]),
            None => digest_of(&["notice", &self.notice.uid, &self.notice.id]),
        };
        let mut text = URL_SAFE_NO_PAD.encode(digest);
        text.truncate(bytes_max);
        text
    }

    /// Title and body, for APNs and FCM.
    pub(super) fn alert(&self) -> Value {
        let notify = &self.notice.notify;
        let texts = [("title", &notify.title), ("body", &notify.body)];
        texts.into_iter().filter_map(|(name, text)| Some((name, text.as_deref()?))).collect()
    }

    /// The content of the notice for Web Push and plain HTTP.
    pub(super) fn content(&self) -> Map<String, Value> {
        let mut content = Map::new();
        content.insert("id".to_owned(), self.notice.id.clone().into());
        let mut put = |name: &str, value: Option<Value>| value.and_then(|value| content.insert(name.to_owned(), value));
        put("title", self.notice.notify.title.clone().map(Value::from));
        put("body", self.notice.notify.body.clone().map(Value::from));
        put("data", self.data());
        put("collapse_key", self.notice.collapse_key.clone().map(Value::from));
        content
    }
}

/// Hashes each part with its length, so that different lists of parts have different digests.
fn digest_of(parts: &[&str]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::people::Platform;
    use whimbrel_model::ports::Provider;
    use whimbrel_model::push::Notify;

    fn notice(collapse_key: Option<&str>) -> Notice {
        Notice {
            v: 1,
            id: "m1".into(),
            uid: "u1".into(),
            platforms: None,
            except_platforms: Vec::new(),
            except_devices: Vec::new(),
            notify: Notify { title: None, body: None, data: Some(r#"{"n":1}"#.into()) },
            collapse_key: collapse_key.map(str::to_owned),
            expires_at_ms: 5_999,
        }
    }

    fn device() -> Device {
        Device {
            device: "d1".into(),
            platform: Platform::new("ios").unwrap(),
            provider: Provider::Apns,
            token: "t".into(),
            p256dh: None,
            auth: None,
            topic: None,
        }
    }

    #[test]
    fn a_delivery_has_the_same_unique_id_in_every_attempt() {
        let name = DeliveryId::of("u1", "m1", "d1");
        assert_eq!(name, DeliveryId::of("u1", "m1", "d1"));
        for other in [("u1", "m1", "d2"), ("u1", "m2", "d1"), ("u2", "m1", "d1"), ("u1m", "1", "d1")] {
            assert_ne!(name, DeliveryId::of(other.0, other.1, other.2));
        }
        let text = name.to_string();
        let parts: Vec<usize> = text.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{text}");
    }

    #[test]
    fn a_collapse_key_that_fits_is_used_as_it_is_and_others_as_a_digest() {
        let (device, now) = (device(), Timestamp::from_millis(0));
        let named = |key: Option<&str>| DeviceNotice::new(&notice(key), &device, now).collapse_name(64);
        assert_eq!(named(Some("chat-7")), "chat-7");
        for key in ["x".repeat(65), "größe".to_owned(), "a b".to_owned()] {
            let name = named(Some(&key));
            assert!(name.len() <= 64 && name.is_ascii() && name != key);
            assert_eq!(name, named(Some(&key)));
        }
        assert_ne!(named(None), named(Some("m1")));
    }

    #[test]
    fn a_time_to_live_below_a_second_is_rounded_up() {
        let (notice, device) = (notice(None), device());
        assert_eq!(DeviceNotice::new(&notice, &device, Timestamp::from_millis(1_000)).seconds_left(), 4);
        assert_eq!(DeviceNotice::new(&notice, &device, Timestamp::from_millis(5_500)).seconds_left(), 1);
    }
}
