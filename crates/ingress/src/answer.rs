//! Answers to publishes, serialized by hand (topic names and ids have no characters that JSON would escape), and answers with messages,
//! which count as load until the client has received them.

use std::io::Write;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use crate::accept::{AcceptedMessage, AcceptedState};
use crate::load::LoadGuard;
use crate::problem::ApiResult;

/// The approximate bytes of an answer without the topic's name.
pub(super) const ANSWER_BYTES_TYPICAL: usize = 112;

/// The bytes of an answer that is plain data.
pub(super) fn to_json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).expect("an answer is plain data")
}

/// `{"id","topic","partition","offset"}`, or `{"id","topic","state":"held","due"}`
pub(super) fn write_answer(out: &mut Vec<u8>, accepted: &AcceptedMessage, topic: &str) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"{\"id\":\"");
    accepted.id.with_text(|id| out.extend_from_slice(id));
    out.extend_from_slice(b"\",\"topic\":\"");
    out.extend_from_slice(topic.as_bytes());
    match accepted.state {
        AcceptedState::InTopic { partition, offset } => {
            out.extend_from_slice(b"\",\"partition\":");
            out.extend_from_slice(digits.format(partition).as_bytes());
            out.extend_from_slice(b",\"offset\":");
            out.extend_from_slice(digits.format(offset).as_bytes());
            out.push(b'}');
        }
        AcceptedState::Held { due } => {
            write!(out, "\",\"state\":\"held\",\"due\":\"{due}\"}}").expect("writing to a buffer cannot fail");
        }
    }
}

pub(super) fn json_response(status: StatusCode, json: impl Into<Body>) -> Response {
    let mut response = Response::new(json.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer with messages. Its load grows to the size of the answer, or the answer is rejected. The load is released when the client has
/// received the answer or disconnected.
pub(super) fn bounded_json_response(mut load: LoadGuard, json: Vec<u8>) -> ApiResult {
    load.grow_to(json.capacity())?;
    Ok(json_response(StatusCode::OK, held_until_taken(json, Arc::new(load))))
}

/// The same bytes, with a load that is released when the last copy of any of them is dropped. A body would release it too early: the
/// connection takes the bytes out of the body before it waits for the client.
pub(super) fn held_until_taken(bytes: impl AsRef<[u8]> + Send + 'static, load: Arc<LoadGuard>) -> Bytes {
    Bytes::from_owner(BytesWithLoad { bytes, _load: load })
}

struct BytesWithLoad<T> {
    bytes: T,
    _load: Arc<LoadGuard>,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for BytesWithLoad<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
