//! Bodies on their way in: bounded, and copied as little as can be.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;

use super::load::Load;
use super::problem::{Code, Problem};

/// What the client says that its body will have.
pub(super) fn announced_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The whole body, at most so many bytes of it. One that arrives in one piece is not copied; one that says its length is collected
/// into one allocation.
pub(super) async fn collect(
    mut body: Body,
    headers: &HeaderMap,
    load: &mut Load,
    bytes_max: usize,
    too_large: impl Fn() -> Problem,
) -> Result<Bytes, Problem> {
    let announced = announced_length(headers);
    if announced.is_some_and(|length| length > bytes_max) {
        return Err(too_large());
    }
    if let Some(length) = announced {
        load.grow(length)?;
    }
    let Some(first) = next_chunk(&mut body).await? else { return Ok(Bytes::new()) };
    if announced == Some(first.len()) {
        return Ok(first);
    }
    let mut whole = BytesMut::new();
    let mut chunk = first;
    loop {
        if whole.len() + chunk.len() > bytes_max {
            return Err(too_large());
        }
        if announced.is_none() {
            load.grow(chunk.len())?;
        }
        if whole.is_empty() {
            whole.reserve(announced.unwrap_or(chunk.len()));
        }
        whole.extend_from_slice(&chunk);
        match next_chunk(&mut body).await? {
            Some(next) => chunk = next,
            None => return Ok(whole.freeze()),
        }
    }
}

/// The next piece that has data.
pub(super) async fn next_chunk(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        match body.frame().await {
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
