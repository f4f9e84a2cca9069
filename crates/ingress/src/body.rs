//! Request bodies: bounded, timed, and copied as little as possible.
//!
//! A body counts towards the load by the bytes received, never by the announced length: announcing costs the client nothing.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body_util::BodyExt;

use crate::accept::draft::check_payload_size;
use crate::api_state::ApiState;
use crate::load::LoadGuard;
use crate::problem::{ApiProblem, Code};

/// The buffer that is reserved at once for a body of announced length. Beyond it, the buffer grows with the bytes received.
const ROOM_AT_ONCE_BYTES: usize = 64 << 10;

/// The `Content-Length` of the request.
pub(super) fn announced_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads the whole body, up to `bytes_max`. A body that arrives in one piece is not copied.
pub(super) async fn collect(
    mut body: Body,
    headers: &HeaderMap,
    load: &mut LoadGuard,
    wait: Duration,
    bytes_max: usize,
    too_large: impl Fn() -> ApiProblem,
) -> Result<Bytes, ApiProblem> {
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
            // Doubles the buffer, so that few bytes are copied twice, but never beyond the announced length.
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

/// Reads a body that is not a message, up to `bytes_max`.
pub(super) async fn collect_small(
    api: &ApiState,
    parts: &Parts,
    body: Body,
    load: &mut LoadGuard,
    bytes_max: usize,
) -> Result<Bytes, ApiProblem> {
    let too_large = || ApiProblem::new(Code::PayloadTooLarge, format!("the body is over {bytes_max} bytes"));
    collect(body, &parts.headers, load, api.settings.body_timeout, bytes_max, too_large).await
}

/// Reads a body that is a payload, or that contains one among others up to `bytes_max`.
pub(super) async fn collect_payload(
    api: &ApiState,
    parts: &Parts,
    body: Body,
    load: &mut LoadGuard,
    bytes_max: usize,
) -> Result<Bytes, ApiProblem> {
    let too_large = || check_payload_size(usize::MAX, &api.settings).expect_err("no payload is that large");
    collect(body, &parts.headers, load, api.settings.body_timeout, bytes_max, too_large).await
}

/// The next non-empty piece. A timer is created only if the piece has not arrived yet.
pub(super) async fn next_chunk(body: &mut Body, wait: Duration) -> Result<Option<Bytes>, ApiProblem> {
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
                // Messages need nothing from trailers.
                Err(_) => {}
            },
            Some(Err(error)) => {
                return Err(ApiProblem::new(Code::BadBody, format!("the body is incomplete: {error}")));
            }
        }
    }
}

/// The problem for a body that stalled for `wait`.
pub(super) fn too_slow(wait: Duration) -> ApiProblem {
    ApiProblem::new(Code::BodyTooSlow, format!("no byte of the body arrived for {} ms", wait.as_millis()))
}
