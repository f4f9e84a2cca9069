//! A message as a subscriber gets it: headers and body, in one of three forms. Pure; the time is passed in.
//!
//! In all of them the message's own headers travel and the system's do not. An endpoint's own headers go before a message's, so that no
//! publisher can put words into a subscriber's configuration.

use std::fmt::Write;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::Call;
use whimbrel_model::record::HEADER_CONTENT_TYPE;
use whimbrel_model::subscription::Envelope;
use whimbrel_model::subscription::{DEAD_TOPIC_PREFIX, HEADER_ORIGIN};

use super::names;
use super::prepared::Prepared;
use super::structured;
use whimbrel_model::header_rules;

/// Headers that most calls have at most.
const HEADERS_TYPICAL: usize = 32;
/// Bytes of the values that are written for one call, about.
const VALUES_BYTES_TYPICAL: usize = 512;
/// The type of an event whose publisher did not say.
pub(super) const EVENT_TYPE_DEFAULT: &str = "whimbrel.message";

/// What is sent.
pub(super) struct Letter {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Writes the letter of a call in its target's envelope, signed for `now`.
pub(super) fn write(call: &Call, prepared: &Prepared, now: Timestamp) -> Letter {
    let mut pen = Pen { buffer: BytesMut::with_capacity(VALUES_BYTES_TYPICAL) };
    let mut headers = HeaderMap::with_capacity(HEADERS_TYPICAL);
    headers.extend(prepared.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let body = match call.target.envelope {
        Envelope::Binary => {
            own_headers(call, prepared, &mut headers, &mut pen, |_| true);
            content_type(call, &mut headers, &mut pen, "application/octet-stream");
            place_headers(call, &mut headers, &mut pen);
            event_headers(call, &mut headers, &mut pen);
            call.record.value.clone()
        }
        Envelope::Structured => {
            // Those of the event are in the body.
            own_headers(call, prepared, &mut headers, &mut pen, |name| !name.starts_with(names::CE_PREFIX));
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(structured::CONTENT_TYPE));
            place_headers(call, &mut headers, &mut pen);
            structured::event(call)
        }
        Envelope::Kmq => {
            let is_kmq = |name: &str| name.starts_with(names::KMQ_PREFIX) || name == names::RETRY_TIMES.as_str();
            own_headers(call, prepared, &mut headers, &mut pen, |name| !is_kmq(name));
            content_type(call, &mut headers, &mut pen, "application/x-www-form-urlencoded");
            kmq_headers(call, &mut headers, &mut pen);
            call.record.value.clone()
        }
    };
    sign(call, prepared, &body, now, &mut headers, &mut pen);
    Letter { headers, body }
}

fn own_headers(
    call: &Call,
    prepared: &Prepared,
    headers: &mut HeaderMap,
    pen: &mut Pen,
    travels: impl Fn(&str) -> bool,
) {
    for (name, value) in call.record.headers.iter() {
        // Who reads dead letters wants to know where each comes from.
        let is_origin = name == HEADER_ORIGIN && call.topic.starts_with(DEAD_TOPIC_PREFIX);
        if !is_origin && header_rules::is_no_messages(name) || !travels(name) {
            continue;
        }
        // What others wrote into a shared log may be no header of HTTP.
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        if !is_origin && header_rules::is_no_messages(name.as_str()) || prepared.headers.contains_key(&name) {
            continue;
        }
        let is_event = name.as_str().starts_with(names::CE_PREFIX);
        let value = if is_event { pen.event_value(value) } else { pen.value(value) };
        if let Some(value) = value {
            headers.append(name, value);
        }
    }
}

fn content_type(call: &Call, headers: &mut HeaderMap, pen: &mut Pen, default: &'static str) {
    if headers.contains_key(CONTENT_TYPE) {
        return;
    }
    let value = match call.record.headers.get(HEADER_CONTENT_TYPE) {
        Some(b"application/json") => HeaderValue::from_static("application/json"),
        Some(own) => pen.value(own).unwrap_or_else(|| HeaderValue::from_static(default)),
        None => HeaderValue::from_static(default),
    };
    headers.insert(CONTENT_TYPE, value);
}

/// The attributes of CloudEvents, after those of the place. Those of the publisher stay as they are, the id included: consumers recognise
/// a repeat by `ce-source` and `ce-id`. The message's own id is in `webhook-id`.
fn event_headers(call: &Call, headers: &mut HeaderMap, pen: &mut Pen) {
    let mut made = |name: HeaderName, value: &mut dyn FnMut(&mut Pen) -> Option<HeaderValue>| {
        if !headers.contains_key(&name)
            && let Some(value) = value(pen)
        {
            headers.insert(name, value);
        }
    };
    made(names::CE_SPECVERSION, &mut |_| Some(HeaderValue::from_static("1.0")));
    made(names::CE_SOURCE, &mut |pen| pen.formatted(format_args!("/topics/{}", call.topic)));
    made(names::CE_TYPE, &mut |_| Some(HeaderValue::from_static(EVENT_TYPE_DEFAULT)));
    if let Some(key) = &call.record.key {
        made(names::CE_PARTITIONKEY, &mut |pen| pen.percent_encoded(key));
    }
    let brought = headers.get(names::CE_ID).filter(|id| !id.is_empty()).cloned();
    if let Some(id) = brought.or_else(|| pen.value(call.id.as_bytes())) {
        headers.insert(names::CE_ID, id);
    }
    // The time is that of the publish, which stands there already.
    if !headers.contains_key(names::CE_TIME)
        && let Some(time) = headers.get(names::PUBLISHED_AT).cloned()
    {
        headers.insert(names::CE_TIME, time);
    }
}

/// Where the message is and how often it was tried.
fn place_headers(call: &Call, headers: &mut HeaderMap, pen: &mut Pen) {
    if let Some(topic) = pen.value(call.topic.as_bytes()) {
        headers.insert(names::TOPIC, topic);
    }
    headers.insert(names::PARTITION, pen.number(i64::from(call.partition)));
    headers.insert(names::OFFSET, pen.number(call.offset.cast_signed()));
    headers.insert(names::ATTEMPT, pen.number(i64::from(call.attempt)));
    if let Some(published_at) = pen.formatted(format_args!("{}", call.published_at)) {
        headers.insert(names::PUBLISHED_AT, published_at);
    }
}

/// What kafka-pusher sends. Its log id is the one that a publisher gave to MqProxy.
fn kmq_headers(call: &Call, headers: &mut HeaderMap, pen: &mut Pen) {
    let key = call.record.key.as_deref().unwrap_or_default();
    let log_id = call.record.headers.get(names::KMQ_LOGID.as_str()).unwrap_or_default();
    for (name, text) in
        [(names::KMQ_TOPIC, call.topic.as_bytes()), (names::KMQ_PARTITION_KEY, key), (names::KMQ_LOGID, log_id)]
    {
        headers.insert(name, pen.value(text).unwrap_or_else(|| HeaderValue::from_static("")));
    }
    for (name, number) in [
        (names::KMQ_PARTITION, i64::from(call.partition)),
        (names::KMQ_OFFSET, call.offset.cast_signed()),
        (names::KMQ_TIMESTAMP, call.published_at.as_millis()),
        (names::RETRY_TIMES, i64::from(call.attempt.saturating_sub(1))),
    ] {
        headers.insert(name, pen.number(number));
    }
}

fn sign(call: &Call, prepared: &Prepared, body: &[u8], now: Timestamp, headers: &mut HeaderMap, pen: &mut Pen) {
    prepared.signers.write(&call.id, now, body, &mut pen.buffer);
    let signature = pen.take();
    if signature.is_none() && call.target.envelope == Envelope::Kmq {
        // Nobody who reads this form knows these without a signature.
        return;
    }
    if let Some(id) = pen.value(call.id.as_bytes()) {
        headers.insert(names::WEBHOOK_ID, id);
    }
    headers.insert(names::WEBHOOK_TIMESTAMP, pen.number(now.as_millis().div_euclid(1000)));
    if let Some(signature) = signature {
        headers.insert(names::WEBHOOK_SIGNATURE, signature);
    }
}

/// Writes the values of one call into one buffer, which they share.
struct Pen {
    buffer: BytesMut,
}

impl Pen {
    /// What was written, where it is something and a header can carry it.
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

    /// An attribute of an event as its publisher brought it. One that came in JSON may have characters that CloudEvents wants encoded.
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
        self.take().expect("digits are a value")
    }

    fn formatted(&mut self, text: std::fmt::Arguments<'_>) -> Option<HeaderValue> {
        self.buffer.write_fmt(text).ok()?;
        self.take()
    }

    /// As CloudEvents wants text in a header: everything but visible ASCII, and quotes and percent signs, is encoded.
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
