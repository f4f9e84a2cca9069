//! `GET /v1/connect/sse` and `POST /v1/connect/ack`: the frames as an event stream, and acknowledgements beside it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use futures_util::task::AtomicWaker;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde::Deserialize;
use whimbrel_model::people::{CloseCode, SessionId};

use super::Gateway;
use super::connect::{EndOnDrop, is_local};
use super::frames::{Connect, EventId, Format, ResumeRequest};
use super::refusal::ConnectRefusal;
use super::session::{DeviceSession, Transport};

/// Bytes of the body of an acknowledgement, at most: a session, a number and possibly a token.
const ACK_MAX_BYTES: usize = 16 << 10;

/// The identity of a device, as in the first frame of a WebSocket.
#[derive(Debug, Deserialize)]
pub(super) struct StreamQuery {
    token: Option<String>,
    uid: Option<String>,
    platform: Option<String>,
    #[serde(default)]
    device: String,
    epoch: Option<String>,
    cursor: Option<u64>,
}

pub(super) async fn connect(
    State(gateway): State<Arc<Gateway>>,
    query: Result<Query<StreamQuery>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Response {
    let asked = query
        .map_err(|error| ConnectRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_parameter", error.body_text()));
    asked.and_then(|Query(asked)| begin(&gateway, asked, &request)).unwrap_or_else(IntoResponse::into_response)
}

fn begin(gateway: &Arc<Gateway>, asked: StreamQuery, request: &Request) -> Result<Response, ConnectRefusal> {
    let headers = request.headers();
    let is_local = is_local(headers, request.uri(), request.extensions());
    // A reconnecting browser sends the last event id. Its URL still has the initial position.
    let last_seen = headers.get("last-event-id").filter(|id| !id.is_empty());
    let last_seen = last_seen.map(|id| EventId::resume(id.to_str().unwrap_or_default()));
    let began = asked.epoch.zip(asked.cursor).map(|(epoch, cursor)| ResumeRequest { epoch, cursor });
    let resume = last_seen.or(began);
    let (uid, platform, device) = (asked.uid, asked.platform, asked.device);
    let connect = Connect { token: bearer(headers).or(asked.token), uid, platform, device, resume };
    let identified =
        gateway.shared.identify(connect, is_local).map_err(|(code, why)| ConnectRefusal::of_close(code, why))?;
    let place = gateway.shared.accept()?;
    let lane = gateway.lane_here();
    let lane =
        lane.ok_or_else(|| ConnectRefusal::of_close(CloseCode::Overloaded, "this process has had too many threads"))?;
    let transport = Transport::Polled(AtomicWaker::new());
    let session = DeviceSession::open(&lane, transport, Format::EventStream, is_local, place);
    session.arrive(identified);
    let mut response = Response::new(Body::from_stream(EventStreamBody(EndOnDrop(session))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

/// The response body: the frames for the device.
struct EventStreamBody(EndOnDrop);

impl Stream for EventStreamBody {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.0.poll_waiting(context).map(|bytes| bytes.map(|bytes| Ok(bytes.into())))
    }
}

#[derive(Debug, Deserialize)]
struct AckRequestBody {
    session: String,
    ack: u64,
    token: Option<String>,
    /// Used without client keys, as in the stream's URL.
    uid: Option<String>,
}

pub(super) async fn ack(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    match take_ack(&gateway, request).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn take_ack(gateway: &Arc<Gateway>, request: Request) -> Result<(), ConnectRefusal> {
    let (parts, body) = request.into_parts();
    let is_local = is_local(&parts.headers, &parts.uri, &parts.extensions);
    let bad = |why: String| ConnectRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_json", why);
    let body =
        tokio::time::timeout(gateway.shared.settings.handshake_wait, Limited::new(body, ACK_MAX_BYTES).collect());
    let body = body.await.map_err(|_| {
        ConnectRefusal::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", "timeout while reading the body")
    })?;
    let body =
        body.map_err(|error| ConnectRefusal::new(StatusCode::BAD_REQUEST, "bad_body", error.to_string()))?.to_bytes();
    let said: AckRequestBody = serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let token = bearer(&parts.headers).or(said.token);
    // Any client that could have connected as this session may acknowledge. A token for one platform covers only that platform's sessions.
    let (uid, bound) = match token {
        Some(token) if gateway.shared.tokens.has_keys() => {
            let token =
                gateway.shared.check_token(&token).map_err(|(code, why)| ConnectRefusal::of_close(code, why))?;
            (token.uid, token.platform)
        }
        token => {
            // The request does not name the platform of the session, and without a token none is required.
            let platform = Some("any".to_owned());
            let connect = Connect { token, uid: said.uid, platform, ..Connect::default() };
            let identified = gateway.shared.identify(connect, is_local);
            (identified.map_err(|(code, why)| ConnectRefusal::of_close(code, why))?.identity.uid, None)
        }
    };
    let unknown = || {
        let why = "this gateway has no such session of this user";
        ConnectRefusal::new(StatusCode::NOT_FOUND, "unknown_session", why)
    };
    let session = SessionId::parse(&said.session).ok_or_else(unknown)?;
    // Session numbers are unique only within a process.
    let session = Some(session).filter(|session| gateway.shared.was(session.gateway)).ok_or_else(unknown)?;
    let session = gateway.session(session.number).ok_or_else(unknown)?;
    let taken = session.ack(&uid, bound.as_ref(), said.ack).ok_or_else(unknown)?;
    taken.map_err(|why| ConnectRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_ack", why))
}
