//! `GET /v1/connect`: a WebSocket.
//!
//! The handshake is an ordinary request. Afterwards the socket is taken out of the HTTP server, whose buffers are freed, and a small task
//! waits on it. If the socket cannot be taken out, the session runs over the upgraded stream, at the cost of a buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::header::{CONNECTION, FORWARDED, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::uri::Authority;
use http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Gateway;
use super::frames::{Format, JSON_SUBPROTOCOL, PROTO_SUBPROTOCOL};
use super::refusal::ConnectRefusal;
use super::session::{DeviceSession, Transport};
use super::shared::ConnectionSlot;
use super::websocket::handshake::validate;
use crate::linger::LingeringStream;

/// Size of the read buffer that all connections of a thread share.
const READ_BYTES: usize = 64 << 10;
/// Reads from one connection before it yields to others.
const READS_AT_ONCE: usize = 8;
/// Size of the read buffer of a connection whose socket could not be taken out.
const READ_BYTES_GENERIC: usize = 4 << 10;

pub(super) async fn connect(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    begin(&gateway, request).unwrap_or_else(IntoResponse::into_response)
}

fn begin(gateway: &Arc<Gateway>, mut request: Request) -> Result<Response, ConnectRefusal> {
    let known = [JSON_SUBPROTOCOL, PROTO_SUBPROTOCOL];
    let handshake = validate(request.method(), request.version(), request.headers(), &known)?;
    let place = gateway.shared.accept()?;
    let format = match handshake.subprotocol {
        Some(PROTO_SUBPROTOCOL) => Format::SocketProto,
        _ => Format::SocketJson,
    };
    let is_forwarded = is_forwarded(request.headers(), request.uri());
    let is_local = is_local(request.headers(), request.uri(), request.extensions());
    let upgrade = hyper::upgrade::on(&mut request);
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => open(&gateway, upgraded, format, place, is_local, is_forwarded),
            Err(error) => tracing::debug!(%error, "a connection ended before the WebSocket was open"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    let accept = HeaderValue::from_str(&handshake.accept).map_err(|_| {
        ConnectRefusal::new(StatusCode::BAD_REQUEST, "bad_handshake", "`Sec-WebSocket-Accept` cannot be encoded")
    })?;
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(subprotocol) = handshake.subprotocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(subprotocol));
    }
    Ok(response)
}

/// Whether the request came from this machine itself, and not through a proxy on it.
pub(super) fn is_local(headers: &HeaderMap, uri: &Uri, extensions: &Extensions) -> bool {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>();
    !is_forwarded(headers, uri) && peer.is_some_and(|ConnectInfo(peer)| is_loopback(peer))
}

fn is_loopback(peer: &SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

/// Whether the request comes from elsewhere: through a proxy, with its headers or the public name; or from a web page whose name resolves
/// to this machine (DNS rebinding). The browser sends no `Origin` with the page's plain reads.
fn is_forwarded(headers: &HeaderMap, uri: &Uri) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse().ok());
    let host: Option<Authority> = uri.authority().cloned().or(host);
    host.is_some_and(|host| is_public_name(host.host()))
        || headers.contains_key(FORWARDED)
        || headers.contains_key("x-forwarded-for")
        || headers.contains_key("x-real-ip")
}

/// Whether other machines can have that name. Names that are local to a machine have no dot.
pub fn is_public_name(host: &str) -> bool {
    const OWN: &[u8] = b".localhost";
    let name = host.trim_end_matches('.');
    let is_address = host.starts_with('[') || name.parse::<std::net::Ipv4Addr>().is_ok();
    let is_own = name.as_bytes().last_chunk::<{ OWN.len() }>().is_some_and(|end| end.eq_ignore_ascii_case(OWN));
    !is_address && name.contains('.') && !is_own
}

fn open(
    gateway: &Arc<Gateway>,
    upgraded: Upgraded,
    format: Format,
    place: ConnectionSlot,
    is_local: bool,
    is_forwarded: bool,
) {
    let Some(lane) = gateway.lane_here() else { return };
    match socket_of(upgraded) {
        Ok((stream, begun)) => {
            let is_local = is_local || !is_forwarded && stream.peer_addr().is_ok_and(|peer| is_loopback(&peer));
            let session = DeviceSession::open(&lane, Transport::Socket(stream), format, is_local, place);
            if !begun.is_empty() {
                session.take_bytes(&mut begun.to_vec());
            }
            tokio::spawn(read(session));
        }
        Err(upgraded) => {
            let transport = Transport::Polled(AtomicWaker::new());
            let session = DeviceSession::open(&lane, transport, format, is_local, place);
            tokio::spawn(run_polled(session, upgraded));
        }
    }
}

/// The TCP socket and the bytes that were read from it already, if it can be taken out.
fn socket_of(upgraded: Upgraded) -> Result<(TcpStream, Bytes), Upgraded> {
    match downcast::<TokioIo<LingeringStream>>(upgraded) {
        Ok(parts) => Ok((parts.io.into_inner().into_inner(), parts.read_buf)),
        Err(upgraded) => downcast::<TokioIo<TcpStream>>(upgraded).map(|parts| (parts.io.into_inner(), parts.read_buf)),
    }
}

/// Ends the session when dropped with its stream.
pub(super) struct EndOnDrop(pub(super) Arc<DeviceSession>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The task of a connection: waits for its socket and holds no buffer meanwhile.
async fn read(session: Arc<DeviceSession>) {
    let session = EndOnDrop(session);
    let Transport::Socket(stream) = &session.0.transport else { return };
    // Polled by hand: a `readable` future takes a third more memory, and only one task waits here.
    while poll_fn(|context| stream.poll_read_ready(context)).await.is_ok() {
        match read_some(&session.0, stream) {
            ReadTurn::All => {}
            ReadTurn::More => tokio::task::yield_now().await,
            ReadTurn::End => return,
        }
    }
}

enum ReadTurn {
    /// No more bytes are available.
    All,
    /// More bytes may be available; other connections come first.
    More,
    End,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

fn read_some(session: &Arc<DeviceSession>, stream: &TcpStream) -> ReadTurn {
    BUFFER.with_borrow_mut(|buffer| {
        for _ in 0..READS_AT_ONCE {
            match stream.try_read(buffer) {
                Ok(0) => return ReadTurn::End,
                Ok(count) => session.take_bytes(&mut buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadTurn::All,
                Err(_) => return ReadTurn::End,
            }
        }
        ReadTurn::More
    })
}

/// Runs a session over a stream that must be polled.
async fn run_polled(session: Arc<DeviceSession>, upgraded: Upgraded) {
    let session = EndOnDrop(session);
    let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
    let reading = async {
        let mut buffer = vec![0; READ_BYTES_GENERIC];
        while let Ok(count @ 1..) = reader.read(&mut buffer).await {
            session.0.take_bytes(&mut buffer[..count]);
        }
    };
    let writing = async {
        while let Some(bytes) = poll_fn(|context| session.0.poll_waiting(context)).await {
            if writer.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = writer.shutdown().await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_dot_is_public_unless_it_is_an_address_or_under_localhost() {
        for own in ["localhost", "LOCALHOST", "app.LocalHost", "app.localhost.", "mybox", "127.0.0.1", "[::1]", "x"] {
            assert!(!is_public_name(own), "{own}");
        }
        for public in ["evil.example", "evil.example.", "127.0.0.1.evil.example", "localhost.evil.example"] {
            assert!(is_public_name(public), "{public}");
        }
    }
}
