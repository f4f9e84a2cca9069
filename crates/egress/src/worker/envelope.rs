//! The request of a message to a subscriber: headers and body, in one of three forms. Pure; the time is passed in.
//!
//! All forms include the message's own headers and exclude the system's. The endpoint's headers precede a message's, so that a publisher
//! cannot override a subscriber's settings.

use std::fmt::Write;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::Call;
use whimbrel_model::record::HEADER_CONTENT_TYPE;
use whimbrel_model::subscription::Envelope;
use whimbrel_model::subscription::{DEAD_TOPIC_PREFIX, HEADER_ORIGIN};

use super::cloud_event;
use super::header_names;
use super::prepared_target::PreparedTarget;
use whimbrel_model::header_rules;

/// The typical number of headers of a call.
const HEADERS_TYPICAL: usize = 32;
/// The typical size of the header values of one call.
const VALUES_BYTES_TYPICAL: usize = 512;
/// The type of an event without a type from its publisher.
pub(super) const EVENT_TYPE_DEFAULT: &str = "whimbrel.message";

/// The headers and body of a request.
pub(super) struct OutboundRequest {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Writes the request of a call in its target's envelope, signed at `now`.
pub(super) fn write(call: &Call, prepared: &PreparedTarget, now: Timestamp) -> OutboundRequest {
    let mut writer = HeaderWriter { buffer: BytesMut::with_capacity(VALUES_BYTES_TYPICAL) };
    let mut headers = HeaderMap::with_capacity(HEADERS_TYPICAL);
    headers.extend(prepared.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let body = match call.target.envelope {
        Envelope::Binary => {
            own_headers(call, prepared, &mut headers, &mut writer, |_| true);
            content_type(call, &mut headers, &mut writer, "application/octet-stream");
            place_headers(call, &mut headers, &mut writer);
            event_headers(call, &mut headers, &mut writer);
            call.record.value.clone()
        }
        Envelope::Structured => {
            // The event's headers are in the body.
            own_headers(call, prepared, &mut headers, &mut writer, |name| !name.starts_with(header_names::CE_PREFIX));
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(cloud_event::CONTENT_TYPE));
            place_headers(call, &mut headers, &mut writer);
            cloud_event::event(call)
        }
        Envelope::Kmq => {
            let is_kmq =
                |name: &str| name.starts_with(header_names::KMQ_PREFIX) || name == header_names::RETRY_TIMES.as_str();
            own_headers(call, prepared, &mut headers, &mut writer, |name| !is_kmq(name));
            content_type(call, &mut headers, &mut writer, "application/x-www-form-urlencoded");
            kmq_headers(call, &mut headers, &mut writer);
            call.record.value.clone()
        }
    };
    sign(call, prepared, &body, now, &mut headers, &mut writer);
    OutboundRequest { headers, body }
}

fn own_headers(
    call: &Call,
    prepared: &PreparedTarget,
    headers: &mut HeaderMap,
    writer: &mut HeaderWriter,
    travels: impl Fn(&str) -> bool,
) {
    for (name, value) in call.record.headers.iter() {
        // Readers of dead letters need their origin.
        let is_origin = name == HEADER_ORIGIN && call.topic.starts_with(DEAD_TOPIC_PREFIX);
        if !is_origin && header_rules::is_no_messages(name) || !travels(name) {
            continue;
        }
        // A name that another application wrote to a shared log may not be a valid HTTP header.
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        if !is_origin && header_rules::is_no_messages(name.as_str()) || prepared.headers.contains_key(&name) {
            continue;
        }
        let is_event = name.as_str().starts_with(header_names::CE_PREFIX);
        let value = if is_event { writer.event_value(value) } else { writer.value(value) };
        if let Some(value) = value {
            headers.append(name, value);
        }
    }
}

fn content_type(call: &Call, headers: &mut HeaderMap, writer: &mut HeaderWriter, default: &'static str) {
    if headers.contains_key(CONTENT_TYPE) {
        return;
    }
    let value = match call.record.headers.get(HEADER_CONTENT_TYPE) {
        Some(b"application/json") => HeaderValue::from_static("application/json"),
        Some(own) => writer.value(own).unwrap_or_else(|| HeaderValue::from_static(default)),
        None => HeaderValue::from_static(default),
    };
    headers.insert(CONTENT_TYPE, value);
}

/// Adds the CloudEvents attributes. Attributes of the publisher are not replaced, not even the id: consumers recognize a repeat by
/// `ce-source` and `ce-id`. The message's own id is in `webhook-id`.
fn event_headers(call: &Call, headers: &mut HeaderMap, writer: &mut HeaderWriter) {
    let mut made = |name: HeaderName, value: &mut dyn FnMut(&mut HeaderWriter) -> Option<HeaderValue>| {
        if !headers.contains_key(&name)
            && let Some(value) = value(writer)
        {
            headers.insert(name, value);
        }
    };
    made(header_names::CE_SPECVERSION, &mut |_| Some(HeaderValue::from_static("1.0")));
    made(header_names::CE_SOURCE, &mut |writer| writer.formatted(format_args!("/topics/{}", call.topic)));
    made(header_names::CE_TYPE, &mut |_| Some(HeaderValue::from_static(EVENT_TYPE_DEFAULT)));
    if let Some(key) = &call.record.key {
        made(header_names::CE_PARTITIONKEY, &mut |writer| writer.percent_encoded(key));
    }
    let brought = headers.get(header_names::CE_ID).filter(|id| !id.is_empty()).cloned();
    if let Some(id) = brought.or_else(|| writer.value(call.id.as_bytes())) {
        headers.insert(header_names::CE_ID, id);
    }
    // The publish time is in a header of [`place_headers`], which runs before.
    if !headers.contains_key(header_names::CE_TIME)
        && let Some(time) = headers.get(header_names::PUBLISHED_AT).cloned()
    {
        headers.insert(header_names::CE_TIME, time);
    }
}

/// Adds the location of the message and the attempt.
fn place_headers(call: &Call, headers: &mut HeaderMap, writer: &mut HeaderWriter) {
    if let Some(topic) = writer.value(call.topic.as_bytes()) {
        headers.insert(header_names::TOPIC, topic);
    }
    headers.insert(header_names::PARTITION, writer.number(i64::from(call.partition)));
    headers.insert(header_names::OFFSET, writer.number(call.offset.cast_signed()));
    headers.insert(header_names::ATTEMPT, writer.number(i64::from(call.attempt)));
    if let Some(published_at) = writer.formatted(format_args!("{}", call.published_at)) {
        headers.insert(header_names::PUBLISHED_AT, published_at);
    }
}

/// The headers of kafka-pusher. Its log id is the one that a publisher gave to MqProxy.
fn kmq_headers(call: &Call, headers: &mut HeaderMap, writer: &mut HeaderWriter) {
    let key = call.record.key.as_deref().unwrap_or_default();
    let log_id = call.record.headers.get(header_names::KMQ_LOGID.as_str()).unwrap_or_default();
    for (name, text) in [
        (header_names::KMQ_TOPIC, call.topic.as_bytes()),
        (header_names::KMQ_PARTITION_KEY, key),
        (header_names::KMQ_LOGID, log_id),
    ] {
        headers.insert(name, writer.value(text).unwrap_or_else(|| HeaderValue::from_static("")));
    }
    for (name, number) in [
        (header_names::KMQ_PARTITION, i64::from(call.partition)),
        (header_names::KMQ_OFFSET, call.offset.cast_signed()),
        (header_names::KMQ_TIMESTAMP, call.published_at.as_millis()),
        (header_names::RETRY_TIMES, i64::from(call.attempt.saturating_sub(1))),
    ] {
        headers.insert(name, writer.number(number));
    }
}

fn sign(
    call: &Call,
    prepared: &PreparedTarget,
    body: &[u8],
    now: Timestamp,
    headers: &mut HeaderMap,
    writer: &mut HeaderWriter,
) {
    prepared.signers.write(&call.id, now, body, &mut writer.buffer);
    let signature = writer.take();
    if signature.is_none() && call.target.envelope == Envelope::Kmq {
        // Consumers of this form do not expect these headers without a signature.
        return;
    }
    if let Some(id) = writer.value(call.id.as_bytes()) {
        headers.insert(header_names::WEBHOOK_ID, id);
    }
    headers.insert(header_names::WEBHOOK_TIMESTAMP, writer.number(now.as_millis().div_euclid(1000)));
    if let Some(signature) = signature {
        headers.insert(header_names::WEBHOOK_SIGNATURE, signature);
    }
}

/// Writes the header values of one call into one shared buffer.
struct HeaderWriter {
    buffer: BytesMut,
}

impl HeaderWriter {
    /// The value written so far, if it is not empty and is valid in a header.
    fn take(&mut self) -> Option<HeaderValue> {
        if self.buffer.is_empty() {
            return None;
        }
        HeaderValue::from_maybe_shared(self.buffer.split().freeze()).ok()
    }

    fn value(&mut self, value: &[u8]) -> Option<HeaderValue> {
        if value.is_empty() {
            return Some(HeaderValue::from_static(""));
        }
        self.buffer.put_slice(value);
        self.take()
    }

    /// An attribute of the publisher's event. An attribute from JSON may have characters that CloudEvents requires to be encoded.
    fn event_value(&mut self, value: &[u8]) -> Option<HeaderValue> {
        if value.is_ascii() {
            return self.value(value);
        }
        for byte in value {
            if byte.is_ascii() {
                self.buffer.put_u8(*byte);
            } else {
                write!(self.buffer, "%{byte:02X}").ok()?;
            }
        }
        self.take()
    }

    fn number(&mut self, number: i64) -> HeaderValue {
        self.buffer.put_slice(itoa::Buffer::new().format(number).as_bytes());
        self.take().expect("digits are a valid header value")
    }

    fn formatted(&mut self, text: std::fmt::Arguments<'_>) -> Option<HeaderValue> {
        self.buffer.write_fmt(text).ok()?;
        self.take()
    }

    /// Encodes text for a CloudEvents header: everything except visible ASCII, and also quotes and percent signs.
    fn percent_encoded(&mut self, text: &[u8]) -> Option<HeaderValue> {
        for byte in text {
            match byte {
                b'"' | b'%' => write!(self.buffer, "%{byte:02X}").ok()?,
                0x21..=0x7e => self.buffer.put_u8(*byte),
                _ => write!(self.buffer, "%{byte:02X}").ok()?,
            }
        }
        self.take()
    }
}

#[cfg(test)]
#[path = "envelope_tests.rs"]
mod tests;
