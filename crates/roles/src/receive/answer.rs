//! Answers to publishes, written by hand: names of topics and ids have no character that JSON would escape.

use axum::body::Body;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use super::accept::Accepted;

/// What an answer takes beside the topic's name, about.
pub(super) const ANSWER_BYTES_TYPICAL: usize = 112;

/// `{"id","topic","partition","offset"}`
pub(super) fn write_answer(out: &mut Vec<u8>, accepted: &Accepted, topic: &str) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"{\"id\":\"");
    accepted.id.with_text(|id| out.extend_from_slice(id));
    out.extend_from_slice(b"\",\"topic\":\"");
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(b"\",\"partition\":");
    out.extend_from_slice(digits.format(accepted.partition).as_bytes());
    out.extend_from_slice(b",\"offset\":");
    out.extend_from_slice(digits.format(accepted.offset).as_bytes());
    out.push(b'}');
}

pub(super) fn json_response(status: StatusCode, json: impl Into<Body>) -> Response {
    let mut response = Response::new(json.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
