//! One entry of a batch: `{"payload" | "payload_base64" | "json", "key", "id", "headers", "content_type", "delay", "deliver_at"}`.
//!
//! The parser borrows from the entry's bytes. Kept bytes are copied once, into a buffer that the whole batch shares.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{BufMut, Bytes, BytesMut};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use whimbrel_model::{Headers, Timestamp};

use crate::accept::draft::{ContentType, DeliveryTime, Draft, OwnHeaders, PublisherId, check_key, check_payload_size};
use crate::problem::{ApiProblem, Code};
use crate::settings::ReceiveSettings;

/// Base64 with or without padding, because publishers send both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
struct RawEntry<'a> {
    payload: Option<Text<'a>>,
    payload_base64: Option<Text<'a>>,
    json: Option<&'a RawValue>,
    key: Option<Text<'a>>,
    id: Option<Text<'a>>,
    content_type: Option<Text<'a>>,
    headers: Option<HeaderPairs<'a>>,
    delay: Option<DurationText<'a>>,
    deliver_at: Option<Text<'a>>,
}

/// Turns entries into drafts, one after the other.
pub(crate) struct EntryReader<'a> {
    settings: &'a ReceiveSettings,
    now: Timestamp,
    /// The buffer for keys and payloads of the whole batch. Each is split off.
    kept: BytesMut,
    own_headers: OwnHeaders<'a>,
}

impl<'a> EntryReader<'a> {
    /// `expected_bytes`: the approximate size of the batch.
    pub(crate) fn new(settings: &'a ReceiveSettings, now: Timestamp, expected_bytes: usize) -> Self {
        let kept = BytesMut::with_capacity(expected_bytes.min(settings.batch_bytes_max));
        Self { settings, now, kept, own_headers: OwnHeaders::new(settings) }
    }

    pub(crate) fn read(&mut self, entry: &[u8]) -> Result<Draft, ApiProblem> {
        let raw: RawEntry<'_> = serde_json::from_slice(entry).map_err(|error| {
            let code = if error.is_data() { Code::BadEntry } else { Code::BadJson };
            ApiProblem::new(code, error.to_string())
        })?;
        let forms = PayloadForms { payload: raw.payload.as_ref(), base64: raw.payload_base64.as_ref(), json: raw.json };
        let (payload, by_form) = forms.read(&mut self.kept, self.settings, Code::BadEntry)?;
        let key = raw.key.map(|key| check_key(key.0.as_bytes()).map(|()| self.keep(key.0.as_bytes()))).transpose()?;
        let content_type = match &raw.content_type {
            Some(text) => ContentType::checked(text.0.as_bytes(), self.settings)?,
            None => by_form,
        };
        let own_id = PublisherId::checked(raw.id.as_ref().map(|id| &*id.0), None)?;
        let delay = raw.delay.as_ref().map(|delay| &*delay.0);
        let later = DeliveryTime::checked(delay, raw.deliver_at.as_ref().map(|at| &*at.0), self.now)?;
        let headers = match raw.headers {
            None => Headers::EMPTY,
            Some(pairs) => {
                for (name, value) in pairs.0 {
                    self.own_headers.push(&name.0, value.0.as_bytes())?;
                }
                self.own_headers.take()
            }
        };
        Ok(Draft { key, payload, content_type, headers, own_id, later, push: None })
    }

    fn keep(&mut self, bytes: &[u8]) -> Bytes {
        keep(&mut self.kept, bytes)
    }
}

/// The payload of an entry, in one of three forms.
pub(crate) struct PayloadForms<'a> {
    pub(crate) payload: Option<&'a Text<'a>>,
    pub(crate) base64: Option<&'a Text<'a>>,
    pub(crate) json: Option<&'a RawValue>,
}

impl PayloadForms<'_> {
    /// The payload, copied into the buffer, and the content type that its form implies.
    pub(crate) fn read(
        &self,
        kept: &mut BytesMut,
        settings: &ReceiveSettings,
        wrong: Code,
    ) -> Result<(Bytes, ContentType), ApiProblem> {
        match (self.payload, self.base64, self.json) {
            (Some(text), None, None) => {
                check_payload_size(text.0.len(), settings)?;
                Ok((keep(kept, text.0.as_bytes()), ContentType::Absent))
            }
            (None, None, Some(json)) => {
                check_payload_size(json.get().len(), settings)?;
                Ok((keep(kept, json.get().as_bytes()), ContentType::Json))
            }
            (None, Some(text), None) => {
                let decoded = BASE64
                    .decode(text.0.as_bytes())
                    .map_err(|error| ApiProblem::new(wrong, format!("`payload_base64` is not base64: {error}")))?;
                check_payload_size(decoded.len(), settings)?;
                Ok((Bytes::from(decoded), ContentType::Absent))
            }
            (None, None, None) => Err(ApiProblem::new(wrong, "no payload: set `payload`, `payload_base64` or `json`")),
            _ => Err(ApiProblem::new(wrong, "set only one of `payload`, `payload_base64` and `json`")),
        }
    }
}

fn keep(kept: &mut BytesMut, bytes: &[u8]) -> Bytes {
    kept.put_slice(bytes);
    kept.split().freeze()
}

/// Text that is borrowed unless it has escapes. (`Option<Cow<str>>` would always be copied.)
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A duration of the API: text, or an integer of milliseconds.
pub(crate) struct DurationText<'a>(pub(crate) Cow<'a, str>);

struct DurationVisitor;

impl<'de> Visitor<'de> for DurationVisitor {
    type Value = DurationText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"30s\", or an integer of milliseconds")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(DurationText(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(DurationText(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, millis: u64) -> Result<Self::Value, E> {
        Ok(DurationText(Cow::Owned(millis.to_string())))
    }

    fn visit_i64<E>(self, millis: i64) -> Result<Self::Value, E> {
        Ok(DurationText(Cow::Owned(millis.to_string())))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for DurationText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor)
    }
}

/// Headers in the order of the entry.
struct HeaderPairs<'a>(Vec<(Text<'a>, Text<'a>)>);

struct HeaderPairsVisitor;

impl<'de> Visitor<'de> for HeaderPairsVisitor {
    type Value = HeaderPairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(HeaderPairs(pairs))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for HeaderPairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderPairsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(entry: &str) -> Result<Draft, Code> {
        let settings = ReceiveSettings { payload_bytes_max: 16, ..ReceiveSettings::default() };
        EntryReader::new(&settings, Timestamp::from_millis(0), 64).read(entry.as_bytes()).map_err(|p| p.code())
    }

    #[test]
    fn payloads_come_in_three_forms() {
        assert_eq!(read(r#"{"payload":"a\nb"}"#).unwrap().payload, "a\nb");
        assert_eq!(read(r#"{"payload_base64":"aGk="}"#).unwrap().payload, "hi");
        assert_eq!(read(r#"{"payload_base64":"aGk"}"#).unwrap().payload, "hi");
        let json = read(r#"{"json":{"a": [1, 2]}}"#).unwrap();
        assert_eq!(json.payload, r#"{"a": [1, 2]}"#);
        assert_eq!(json.content_type, ContentType::Json);
        assert_eq!(read(r#"{"payload":""}"#).unwrap().payload, "");
    }

    #[test]
    fn attributes_of_an_entry_reach_the_draft() {
        let draft = read(r#"{"payload":"x","key":"k","id":"a1","content_type":"a/b","headers":{"X-A":"1"}}"#).unwrap();
        assert_eq!(draft.key.as_deref(), Some(&b"k"[..]));
        assert_eq!(&*draft.own_id.unwrap().text, "a1");
        assert_eq!(draft.content_type.as_bytes(), Some(&b"a/b"[..]));
        assert_eq!(draft.headers.get("x-a"), Some(&b"1"[..]));
    }

    #[test]
    fn a_delay_is_text_or_milliseconds() {
        for delay in ["5000", "\"5s\"", "\"5000\""] {
            let draft = read(&format!(r#"{{"payload":"x","delay":{delay}}}"#)).unwrap();
            assert_eq!(draft.later, Some(DeliveryTime::After(std::time::Duration::from_secs(5))), "{delay}");
        }
    }

    #[test]
    fn each_invalid_entry_gets_its_own_code() {
        for (entry, code) in [
            ("{", Code::BadJson),
            ("", Code::BadJson),
            ("[1]", Code::BadEntry),
            ("7", Code::BadEntry),
            (r#"{"payload":1}"#, Code::BadEntry),
            (r#"{"paylod":"x"}"#, Code::BadEntry),
            (r#"{}"#, Code::BadEntry),
            (r#"{"payload":"a","json":1}"#, Code::BadEntry),
            (r#"{"payload_base64":"*"}"#, Code::BadEntry),
            (r#"{"payload":"12345678901234567"}"#, Code::PayloadTooLarge),
            (r#"{"payload":"x","key":""}"#, Code::BadKey),
            (r#"{"payload":"x","id":"a b"}"#, Code::BadId),
            (r#"{"payload":"x","delay":-5}"#, Code::BadDuration),
            (r#"{"payload":"x","delay":"3y"}"#, Code::BadDuration),
            (r#"{"payload":"x","delay":5,"deliver_at":"2026-01-31T09:30:00Z"}"#, Code::BadParameter),
            (r#"{"payload":"x","headers":{"host":"a"}}"#, Code::ReservedHeader),
            (r#"{"payload":"x","headers":{"a":1}}"#, Code::BadEntry),
            (r#"{"payload":"x"} x"#, Code::BadJson),
        ] {
            assert_eq!(read(entry).unwrap_err(), code, "{entry}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = read(&text);
        }

        #[test]
        fn any_text_payload_arrives_unchanged(text in ".{0,4}") {
            let entry = serde_json::json!({ "payload": text }).to_string();
            prop_assert_eq!(&read(&entry).unwrap().payload[..], text.as_bytes());
        }
    }
}
