//! Bodies on their way in: bounded, timed, and copied as little as can be.
//!
//! A body counts by what has come of it, never by what it announces: an announcement costs its sender nothing.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;

use super::load::Load;
use super::problem::{Code, Problem};

/// Room that is made at once for a body that announces so much; beyond, room grows with what has come.
const ROOM_AT_ONCE_BYTES: usize = 64 << 10;

/// What the client says that its body will have.
pub(super) fn announced_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The whole body, at most so many bytes of it. One that arrives in one piece is not copied.
pub(super) async fn collect(
    mut body: Body,
    headers: &HeaderMap,
    load: &mut Load,
    wait: Duration,
    bytes_max: usize,
    too_large: impl Fn() -> Problem,
) -> Result<Bytes, Problem> {
    let announced = announced_length(headers);
    if announced.is_some_and(|length| length > bytes_max) {
        return Err(too_large());
    }
    let Some(first) = next_chunk(&mut body, wait).await? else { return Ok(Bytes::new()) };
    if announced == Some(first.len()) {
        load.grow(first.len())?;
        return Ok(first);
    }
    let mut whole = BytesMut::new();
    let mut chunk = first;
    loop {
        if whole.len() + chunk.len() > bytes_max {
            return Err(too_large());
        }
        load.grow(chunk.len())?;
        if whole.capacity() - whole.len() < chunk.len() {
            // Doubling, so that little is copied twice, and never past what was announced.
            let rest = announced.map_or(chunk.len(), |length| length.saturating_sub(whole.len()));
            whole.reserve(rest.min(whole.len().max(ROOM_AT_ONCE_BYTES)).max(chunk.len()));
        }
        whole.extend_from_slice(&chunk);
        match next_chunk(&mut body, wait).await? {
            Some(next) => chunk = next,
            None => return Ok(whole.freeze()),
        }
    }
}

/// The next piece that has data. A timer is set only where it has to be waited for.
pub(super) async fn next_chunk(body: &mut Body, wait: Duration) -> Result<Option<Bytes>, Problem> {
    loop {
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None => tokio::time::timeout(wait, body.frame()).await.map_err(|_| too_slow(wait))?,
        };
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                // Trailers say nothing that a message needs.
                Err(_) => {}
            },
            Some(Err(error)) => return Err(Problem::new(Code::BadBody, format!("the body broke off: {error}"))),
        }
    }
}

/// What is told where a body stood still for so long.
pub(super) fn too_slow(wait: Duration) -> Problem {
    Problem::new(Code::BodyTooSlow, format!("nothing more of the body came for {} ms", wait.as_millis()))
}
