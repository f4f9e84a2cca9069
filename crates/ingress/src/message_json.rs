//! The JSON of messages, written directly into the answer's buffer.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use whimbrel_model::hold::{HEADER_DUE, HEADER_PUBLISHED_AT};
use whimbrel_model::id::id_from_place;
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_ID};
use whimbrel_model::subscription::HEADER_ORIGIN;
use whimbrel_model::{Record, StoredRecord, Timestamp};

use whimbrel_catalogue::topics::Topic;

/// The approximate bytes of a message without its payload and headers.
pub(super) const MESSAGE_BYTES_TYPICAL: usize = 256;

/// The id of a message: its own, or one made from its position if another system wrote it.
pub(crate) fn id_of(topic: &Topic, partition: u32, stored: &StoredRecord) -> String {
    match stored.record.headers.get_str(HEADER_ID) {
        Some(id) => id.to_owned(),
        None => id_from_place(topic.partition(partition), stored.offset),
    }
}

/// Whether a header is the publisher's own, not Whimbrel metadata. The origin of a dead letter counts as own, because readers of dead
/// letters need it.
pub(crate) fn is_own_header(name: &str) -> bool {
    name != HEADER_CONTENT_TYPE && (!name.starts_with("whimbrel-") || name == HEADER_ORIGIN)
}

/// The times of a message that was held before its append.
pub(crate) struct HoldTimes {
    pub(crate) published_at: Timestamp,
    pub(crate) due: Timestamp,
    pub(crate) fired_at: Timestamp,
}

impl HoldTimes {
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let time = |name| record.headers.get_str(name)?.parse().ok().map(Timestamp::from_millis);
        let (published_at, due) = (time(HEADER_PUBLISHED_AT)?, time(HEADER_DUE)?);
        Some(Self { published_at, due, fired_at: record.timestamp })
    }
}

/// Writes `{"id","topic","partition","offset","key","headers","content_type","published_at","payload"|"payload_base64"}`, plus `due` and
/// `fired_at` if the message was held.
pub(super) fn write_message(out: &mut Vec<u8>, topic: &Topic, partition: u32, stored: &StoredRecord) {
    out.push(b'{');
    write_members(out, topic, partition, stored);
    out.push(b'}');
}

/// Writes the same without braces, for answers with more members.
pub(super) fn write_members(out: &mut Vec<u8>, topic: &Topic, partition: u32, stored: &StoredRecord) {
    let record = &stored.record;
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"\"id\":");
    match record.headers.get_str(HEADER_ID) {
        Some(id) => write_text(out, id),
        None => write_text(out, &id_from_place(topic.partition(partition), stored.offset)),
    }
    out.extend_from_slice(b",\"topic\":");
    write_text(out, &topic.name);
    out.extend_from_slice(b",\"partition\":");
    out.extend_from_slice(digits.format(partition).as_bytes());
    out.extend_from_slice(b",\"offset\":");
    out.extend_from_slice(digits.format(stored.offset).as_bytes());
    if let Some(key) = &record.key {
        match std::str::from_utf8(key) {
            Ok(text) => {
                out.extend_from_slice(b",\"key\":");
                write_text(out, text);
            }
            Err(_) => {
                out.extend_from_slice(b",\"key_base64\":");
                write_base64(out, key);
            }
        }
    }
    out.extend_from_slice(b",\"headers\":{");
    write_own_headers(out, stored);
    out.push(b'}');
    let content_type = record.headers.get(HEADER_CONTENT_TYPE);
    if let Some(content_type) = content_type {
        out.extend_from_slice(b",\"content_type\":");
        write_text(out, &String::from_utf8_lossy(content_type));
    }
    let held = HoldTimes::of(record);
    let published_at = held.as_ref().map_or(record.timestamp, |held| held.published_at);
    write!(out, ",\"published_at\":\"{published_at}\"").expect("writing to a buffer cannot fail");
    if let Some(HoldTimes { due, fired_at, .. }) = held {
        write!(out, ",\"due\":\"{due}\",\"fired_at\":\"{fired_at}\"").expect("writing to a buffer cannot fail");
    }
    match std::str::from_utf8(&record.value) {
        Ok(text) if may_be_text(content_type) => {
            out.extend_from_slice(b",\"payload\":");
            write_text(out, text);
        }
        _ => {
            out.extend_from_slice(b",\"payload_base64\":");
            write_base64(out, &record.value);
        }
    }
}

/// Writes the publisher's own headers. Values of a repeated name are joined by commas, as in HTTP. Bytes that are not UTF-8 become
/// replacement characters.
fn write_own_headers(out: &mut Vec<u8>, stored: &StoredRecord) {
    let headers = &stored.record.headers;
    let mut first = true;
    for (index, (name, value)) in headers.iter().enumerate().filter(|(_, (name, _))| is_own_header(name)) {
        if headers.iter().take(index).any(|(earlier, _)| earlier == name) {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        write_text(out, name);
        out.push(b':');
        let mut joined = String::from_utf8_lossy(value);
        for (_, more) in headers.iter().skip(index + 1).filter(|(other, _)| *other == name) {
            let joined = joined.to_mut();
            joined.push_str(", ");
            joined.push_str(&String::from_utf8_lossy(more));
        }
        write_text(out, &joined);
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing to a buffer cannot fail");
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let from = out.len() + 1;
    out.push(b'"');
    let length = base64::encoded_len(bytes.len(), true).expect("payloads are bounded");
    out.resize(from + length, 0);
    STANDARD.encode_slice(bytes, &mut out[from..]).expect("the buffer has the computed length");
    out.push(b'"');
}

/// Optional bytes as text, or in base64 if they are not UTF-8.
pub(crate) fn text_or_base64(bytes: Option<&[u8]>) -> (Option<String>, Option<String>) {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| STANDARD.encode(bytes))) {
        None => (None, None),
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(encoded)) => (None, Some(encoded)),
    }
}

/// Whether a UTF-8 payload of this media type is shown as text. A payload without a media type is.
pub(super) fn may_be_text(content_type: Option<&[u8]>) -> bool {
    let Some(content_type) = content_type else { return true };
    let media_type = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let Ok(media_type) = std::str::from_utf8(&media_type) else { return false };
    const TEXTUAL: &[&str] = &[
        "application/json",
        "application/xml",
        "application/javascript",
        "application/yaml",
        "application/toml",
        "application/x-ndjson",
        "application/x-www-form-urlencoded",
    ];
    media_type.starts_with("text/")
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml")
        || TEXTUAL.contains(&media_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use whimbrel_api::messages::Message;
    use whimbrel_model::Headers;

    fn written(key: Option<&[u8]>, value: &[u8], headers: Headers) -> Message {
        let record = Record {
            key: key.map(Bytes::copy_from_slice),
            value: Bytes::copy_from_slice(value),
            headers,
            timestamp: Timestamp::from_millis(0),
        };
        let mut out = Vec::new();
        write_message(&mut out, &Topic::for_tests("orders", 4), 2, &StoredRecord { offset: 7, record });
        let message: Message = serde_json::from_slice(&out).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), written);
        message
    }

    #[test]
    fn a_record_without_an_id_gets_one_from_its_position() {
        let message = written(Some(b"\xff"), b"hi", Headers::EMPTY);
        assert_eq!(message.id, "at-1-2-7");
        assert_eq!(message.key_base64.as_deref(), Some("/w=="));
        assert_eq!(message.payload.as_deref(), Some("hi"));
        assert_eq!(message.published_at, "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn the_origin_of_a_dead_letter_is_shown() {
        let mut headers = Headers::builder();
        headers.push(HEADER_ORIGIN, b"{}").push(HEADER_ID, b"a");
        let message = written(None, b"hi", headers.take());
        assert_eq!(message.headers.into_iter().collect::<Vec<_>>(), [(HEADER_ORIGIN.to_owned(), "{}".to_owned())]);
    }

    #[test]
    fn whimbrel_headers_are_not_shown_as_own_headers() {
        let mut headers = Headers::builder();
        headers.push(HEADER_ID, b"a").push("x", b"1").push(HEADER_CONTENT_TYPE, b"image/png").push("x", b"2");
        let message = written(None, b"hi", headers.take());
        assert_eq!(message.headers.into_iter().collect::<Vec<_>>(), [("x".to_owned(), "1, 2".to_owned())]);
        assert_eq!(message.content_type.as_deref(), Some("image/png"));
        assert_eq!(message.payload, None);
        assert_eq!(message.payload_base64.as_deref(), Some("aGk="));
    }

    #[test]
    fn a_message_that_was_held_has_publish_due_and_fire_times() {
        let mut headers = Headers::builder();
        headers.push(HEADER_ID, b"a").push(HEADER_DUE, b"-2000").push(HEADER_PUBLISHED_AT, b"-5000");
        let message = written(None, b"hi", headers.take());
        assert_eq!(message.published_at, "1969-12-31T23:59:55.000Z");
        assert_eq!(message.due.as_deref(), Some("1969-12-31T23:59:58.000Z"));
        assert_eq!(message.fired_at.as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert!(message.headers.is_empty());
    }

    proptest! {
        #[test]
        fn any_payload_survives_json(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let message = written(None, &value, Headers::EMPTY);
            let back = match (message.payload, message.payload_base64) {
                (Some(text), None) => text.into_bytes(),
                (None, Some(text)) => STANDARD.decode(text).unwrap(),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(back, value);
        }
    }
}
