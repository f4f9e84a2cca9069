//! Answers: those to publishes, written by hand (names of topics and ids have no character that JSON would escape), and those with
//! messages, which count as under way until the client has taken them.

use std::io::Write;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use super::accept::{Accepted, Standing};
use super::load::Load;
use super::problem::Problem;

/// What an answer takes beside the topic's name, about.
pub(super) const ANSWER_BYTES_TYPICAL: usize = 112;

/// `{"id","topic","partition","offset"}`, or `{"id","topic","state":"held","due"}`
pub(super) fn write_answer(out: &mut Vec<u8>, accepted: &Accepted, topic: &str) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"{\"id\":\"");
    accepted.id.with_text(|id| out.extend_from_slice(id));
    out.extend_from_slice(b"\",\"topic\":\"");
    out.extend_from_slice(topic.as_bytes());
    match accepted.standing {
        Standing::InTopic { partition, offset } => {
            out.extend_from_slice(b"\",\"partition\":");
            out.extend_from_slice(digits.format(partition).as_bytes());
            out.extend_from_slice(b",\"offset\":");
            out.extend_from_slice(digits.format(offset).as_bytes());
            out.push(b'}');
        }
        Standing::Held { due } => {
            write!(out, "\",\"state\":\"held\",\"due\":\"{due}\"}}").expect("a buffer takes all");
        }
    }
}

pub(super) fn json_response(status: StatusCode, json: impl Into<Body>) -> Response {
    let mut response = Response::new(json.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer with messages. Its load becomes what the answer takes, or the answer is refused; it is held until the client has taken
/// the answer or is gone.
pub(super) fn bounded_json_response(mut load: Load, json: Vec<u8>) -> Result<Response, Problem> {
    load.grow_to(json.capacity())?;
    Ok(json_response(StatusCode::OK, held_until_taken(json, Arc::new(load))))
}

/// The same bytes, with a load that is held as long as anybody has any of them. A body would let go of it too early: what writes to
/// the connection takes the bytes out of the body first and waits for the client then.
pub(super) fn held_until_taken(bytes: impl AsRef<[u8]> + Send + 'static, load: Arc<Load>) -> Bytes {
    Bytes::from_owner(Held { bytes, _load: load })
}

struct Held<T> {
    bytes: T,
    _load: Arc<Load>,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Held<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
