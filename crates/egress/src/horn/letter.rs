//! A notice for one device, as all providers need it: the names that a repeat is recognised by, its urgency, how long it is of use. Pure.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::Device;
use whimbrel_model::push::Notice;

/// A notice's delivery to one device: the same in every attempt, whoever makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DeliveryName([u8; 16]);

impl DeliveryName {
    pub(super) fn of(uid: &str, notice: &str, device: &str) -> Self {
        let digest = digest_of(&[uid, notice, device]);
        let mut name = [0; 16];
        name.copy_from_slice(&digest[..16]);
        // The marks of a UUID of version 8, whose bits are the maker's own.
        name[6] = name[6] & 0x0f | 0x80;
        name[8] = name[8] & 0x3f | 0x80;
        Self(name)
    }
}

/// As a UUID.
impl fmt::Display for DeliveryName {
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

/// A notice on its way to one device.
pub(super) struct Letter<'a> {
    pub(super) notice: &'a Notice,
    pub(super) device: &'a Device,
    pub(super) name: DeliveryName,
    pub(super) now: Timestamp,
}

impl<'a> Letter<'a> {
    pub(super) fn new(notice: &'a Notice, device: &'a Device, now: Timestamp) -> Self {
        Self { notice, device, name: DeliveryName::of(&notice.uid, &notice.id, &device.device), now }
    }

    /// Whether there is something to show. Otherwise it only wakes the app, and may take its time.
    pub(super) fn is_shown(&self) -> bool {
        self.notice.notify.title.is_some() || self.notice.notify.body.is_some()
    }

    /// Seconds for which it is still of use: at least one, since providers take zero as "now or never".
    pub(super) fn seconds_left(&self) -> i64 {
        let left = self.notice.expires_at_ms.saturating_sub(self.now.as_millis());
        (left / 1000).max(1)
    }

    /// The notice's `data` as JSON; text that is none stays text.
    pub(super) fn data(&self) -> Option<Value> {
        let text = self.notice.notify.data.as_deref()?;
        Some(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
    }

    /// The collapse key in so many bytes of printable ASCII: itself where it fits, otherwise a name made of it. Without one, a name made
    /// of the notice, so that a repeat of it takes its place.
    pub(super) fn collapse_name(&self, bytes_max: usize) -> String {
        match &self.notice.collapse_key {
            Some(key) if key.len() <= bytes_max && key.bytes().all(|b| b.is_ascii_graphic()) => key.clone(),
            Some(_) | None => self.collapse_digest(bytes_max),
        }
    }

    /// The same in letters of URL-safe base64 only.
    pub(super) fn collapse_digest(&self, bytes_max: usize) -> String {
        let digest = match &self.notice.collapse_key {
            Some(key) => digest_of(&["key", &self.notice.uid, key]),
            None => digest_of(&["notice", &self.notice.uid, &self.notice.id]),
        };
        let mut text = URL_SAFE_NO_PAD.encode(digest);
        text.truncate(bytes_max);
        text
    }

    /// What a device is shown, as Web Push and plain HTTP bring it.
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

/// Of the parts with their lengths, so that no two lists of parts read the same.
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
    fn a_delivery_has_the_same_name_in_every_attempt_and_no_other_has_it() {
        let name = DeliveryName::of("u1", "m1", "d1");
        assert_eq!(name, DeliveryName::of("u1", "m1", "d1"));
        for other in [("u1", "m1", "d2"), ("u1", "m2", "d1"), ("u2", "m1", "d1"), ("u1m", "1", "d1")] {
            assert_ne!(name, DeliveryName::of(other.0, other.1, other.2));
        }
        let text = name.to_string();
        let parts: Vec<usize> = text.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{text}");
    }

    #[test]
    fn a_collapse_key_that_fits_is_taken_as_it_is_and_others_by_a_name() {
        let (device, now) = (device(), Timestamp::from_millis(0));
        let named = |key: Option<&str>| Letter::new(&notice(key), &device, now).collapse_name(64);
        assert_eq!(named(Some("chat-7")), "chat-7");
        for key in ["x".repeat(65), "größe".to_owned(), "a b".to_owned()] {
            let name = named(Some(&key));
            assert!(name.len() <= 64 && name.is_ascii() && name != key);
            assert_eq!(name, named(Some(&key)));
        }
        assert_ne!(named(None), named(Some("m1")));
    }

    #[test]
    fn what_is_of_use_for_less_than_a_second_is_still_of_use() {
        let (notice, device) = (notice(None), device());
        assert_eq!(Letter::new(&notice, &device, Timestamp::from_millis(1_000)).seconds_left(), 4);
        assert_eq!(Letter::new(&notice, &device, Timestamp::from_millis(5_500)).seconds_left(), 1);
    }
}
