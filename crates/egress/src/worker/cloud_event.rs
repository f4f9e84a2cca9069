//! The envelope `structured`: a CloudEvent as JSON, so that one signature covers the payload and its attributes.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::IgnoredAny;
use whimbrel_model::ports::Call;
use whimbrel_model::record::HEADER_CONTENT_TYPE;

use super::envelope::EVENT_TYPE_DEFAULT;
use super::header_names;

pub(super) const CONTENT_TYPE: &str = "application/cloudevents+json";
/// The typical size of an event without its data.
const EVENT_BYTES_TYPICAL: usize = 512;
/// Attributes that a publisher's `ce-*` headers cannot set, because the message's payload determines them.
const NOT_BROUGHT: [&str; 2] = ["data", "datacontenttype"];
/// The prefix of attributes for the location of a message. CloudEvents allows no dash in names.
const PLACE_PREFIX: &str = "whimbrel";

/// The event of a call.
pub(super) fn event(call: &Call) -> Bytes {
    let mut event = CloudEventWriter::with_capacity(EVENT_BYTES_TYPICAL + call.record.value.len());
    let brought = |name: &str| call.record.headers.get(name).map(attribute_value).filter(|value| !value.is_empty());
    event.text("id", brought(header_names::CE_ID.as_str()).as_deref().unwrap_or(&call.id));
    for (header, made) in [
        (header_names::CE_SPECVERSION, "1.0"),
        (header_names::CE_SOURCE, &*format!("/topics/{}", call.topic)),
        (header_names::CE_TYPE, EVENT_TYPE_DEFAULT),
        (header_names::CE_TIME, &*call.published_at.to_string()),
    ] {
        event.text(
            &header.as_str()[header_names::CE_PREFIX.len()..],
            brought(header.as_str()).as_deref().unwrap_or(made),
        );
    }
    let key = call.record.key.as_deref().map(String::from_utf8_lossy);
    if let Some(key) = brought(header_names::CE_PARTITIONKEY.as_str()).or(key.map(Cow::into_owned)) {
        event.text("partitionkey", &key);
    }
    extensions(call, &mut event);
    event.text("whimbrelid", &call.id);
    event.text("whimbrelsubscription", &call.target.subscription);
    event.text("whimbreltopic", &call.topic);
    // Integers in CloudEvents have 32 bits, so the offset is text.
    event.number("whimbrelpartition", call.partition);
    event.text("whimbreloffset", &call.offset.to_string());
    event.number("whimbrelattempt", call.attempt);
    let content_type = call.record.headers.get_str(HEADER_CONTENT_TYPE);
    if let Some(content_type) = content_type {
        event.text("datacontenttype", content_type);
    }
    data(content_type, &call.record.value, &mut event);
    event.end()
}

/// Adds the publisher's other `ce-*` headers whose names are valid attribute names. The first of a repeated header counts.
fn extensions(call: &Call, event: &mut CloudEventWriter) {
    const MADE: [&str; 6] = ["id", "specversion", "source", "type", "time", "partitionkey"];
    let headers = &call.record.headers;
    for (index, (header, value)) in headers.iter().enumerate() {
        let Some(name) = header.strip_prefix(header_names::CE_PREFIX) else { continue };
        let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let is_taken = MADE.contains(&name) || NOT_BROUGHT.contains(&name) || name.starts_with(PLACE_PREFIX);
        if is_name && !is_taken && !headers.iter().take(index).any(|(earlier, _)| earlier == header) {
            event.text(name, &attribute_value(value));
        }
    }
}

/// Decodes an attribute from a header of the CloudEvents HTTP binding: optionally quoted, percent-encoded. Invalid encodings stay
/// unchanged.
fn attribute_value(header: &[u8]) -> String {
    let unquoted = match header {
        [b'"', inner @ .., b'"'] => Cow::Owned(unescaped(inner)),
        _ => Cow::Borrowed(header),
    };
    let mut decoded = Vec::with_capacity(unquoted.len());
    let mut rest = &*unquoted;
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                // Two hexadecimal digits fit into a byte.
                decoded.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    // If the decoded bytes are not UTF-8, the text was not percent-encoded.
    String::from_utf8(decoded).unwrap_or_else(|_| String::from_utf8_lossy(&unquoted).into_owned())
}

/// Unescapes quoted text: a backslash precedes a literal character.
fn unescaped(quoted: &[u8]) -> Vec<u8> {
    let mut bytes = quoted.iter();
    let mut plain = Vec::with_capacity(quoted.len());
    while let Some(byte) = bytes.next() {
        plain.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    plain
}

/// Adds the data: JSON unchanged, text as a string, other payloads as base64.
fn data(content_type: Option<&str>, payload: &[u8], event: &mut CloudEventWriter) {
    let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    let media_type = media_type.to_ascii_lowercase();
    let is_json = media_type == "application/json" || media_type.ends_with("+json");
    if is_json && serde_json::from_slice::<IgnoredAny>(payload).is_ok() {
        event.raw("data", payload);
        return;
    }
    match std::str::from_utf8(payload) {
        // With a JSON content type, a string would be read as a JSON string.
        Ok(text) if media_type.starts_with("text/") || (is_form(&media_type)) => event.text("data", text),
        _ => event.text("data_base64", &STANDARD.encode(payload)),
    }
}

fn is_form(media_type: &str) -> bool {
    ["application/x-www-form-urlencoded", "application/xml"].contains(&media_type) || media_type.ends_with("+xml")
}

/// Writes a JSON object.
struct CloudEventWriter {
    out: Vec<u8>,
}

impl CloudEventWriter {
    fn with_capacity(bytes: usize) -> Self {
        let mut out = Vec::with_capacity(bytes);
        out.push(b'{');
        Self { out }
    }

    fn raw(&mut self, name: &str, json: &[u8]) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        serde_json::to_writer(&mut self.out, name).expect("writing to a buffer cannot fail");
        self.out.push(b':');
        self.out.extend_from_slice(json);
    }

    fn text(&mut self, name: &str, text: &str) {
        self.raw(name, b"");
        serde_json::to_writer(&mut self.out, text).expect("writing to a buffer cannot fail");
    }

    fn number(&mut self, name: &str, number: u32) {
        self.raw(name, itoa::Buffer::new().format(number).as_bytes());
    }

    fn end(mut self) -> Bytes {
        self.out.push(b'}');
        self.out.into()
    }
}
