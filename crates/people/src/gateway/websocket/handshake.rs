//! The opening HTTP request of a WebSocket: validation by the server, and keys for both sides.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{HeaderMap, HeaderName, Method, Version};

pub const VERSION: &str = "13";
const KEY_BYTES: usize = 16;
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Answered with 426: no WebSocket request, or another version.
    #[error("{0}")]
    NoUpgrade(&'static str),
    /// Answered with 400.
    #[error("{0}")]
    Malformed(&'static str),
    /// Answered with 400.
    #[error("no supported subprotocol offered: {0}")]
    UnknownSubprotocol(String),
}

/// A valid handshake, to be answered with 101.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedHandshake {
    /// The value of `Sec-WebSocket-Accept`.
    pub accept: String,
    /// The first offered subprotocol that is supported. `None` if none was offered.
    pub subprotocol: Option<&'static str>,
}

pub fn validate(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    known: &[&'static str],
) -> Result<AcceptedHandshake, HandshakeError> {
    if method != Method::GET || version != Version::HTTP_11 {
        return Err(HandshakeError::NoUpgrade("a WebSocket handshake must be a GET of HTTP/1.1"));
    }
    if !has_token(headers, &UPGRADE, "websocket") || !has_token(headers, &CONNECTION, "upgrade") {
        return Err(HandshakeError::NoUpgrade(
            "this path accepts WebSockets only: `Connection: Upgrade` or `Upgrade: websocket` is missing",
        ));
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version.as_bytes() != VERSION.as_bytes()) {
        return Err(HandshakeError::NoUpgrade("`Sec-WebSocket-Version` must be 13"));
    }
    if headers.get_all(SEC_WEBSOCKET_KEY).iter().nth(1).is_some() {
        return Err(HandshakeError::Malformed("the request has more than one `Sec-WebSocket-Key`"));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()).unwrap_or_default();
    if !STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == KEY_BYTES) {
        return Err(HandshakeError::Malformed("`Sec-WebSocket-Key` must be 16 bytes in base64"));
    }
    Ok(AcceptedHandshake { accept: accept_of(key), subprotocol: choose(headers, known)? })
}

/// The server's answer to a key.
pub fn accept_of(key: &str) -> String {
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key.as_bytes());
    hash.update(GUID.as_bytes());
    STANDARD.encode(hash.digest().bytes())
}

/// Encodes a key of 16 random bytes.
pub fn key_of(random: [u8; KEY_BYTES]) -> String {
    STANDARD.encode(random)
}

fn choose(headers: &HeaderMap, known: &[&'static str]) -> Result<Option<&'static str>, HandshakeError> {
    let mut offered = tokens(headers, &SEC_WEBSOCKET_PROTOCOL).peekable();
    if offered.peek().is_none() {
        return Ok(None);
    }
    let chosen = offered.find_map(|name| known.iter().find(|known| **known == name));
    let refused = || {
        let text: String = tokens(headers, &SEC_WEBSOCKET_PROTOCOL).collect::<Vec<_>>().join(", ");
        HandshakeError::UnknownSubprotocol(text.chars().take(128).collect())
    };
    chosen.copied().map(Some).ok_or_else(refused)
}

fn has_token(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    tokens(headers, name).any(|token| token.eq_ignore_ascii_case(wanted))
}

/// The members of a comma-separated header, over all its lines.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 2] = ["whimbrel.v1.json", "whimbrel.v1.proto"];

    fn request(changes: &[(&'static str, &'static str)]) -> HeaderMap {
        let good = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in good.iter().chain(changes) {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    fn validated(headers: &HeaderMap) -> Result<AcceptedHandshake, HandshakeError> {
        validate(&Method::GET, Version::HTTP_11, headers, &KNOWN)
    }

    #[test]
    fn the_example_key_of_the_rfc_gets_the_answer_of_the_rfc() {
        let accepted = validated(&request(&[])).unwrap();
        assert_eq!(accepted.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(accepted.subprotocol, None);
    }

    #[test]
    fn the_first_supported_subprotocol_is_chosen() {
        let offered = request(&[("sec-websocket-protocol", "chat, whimbrel.v1.proto, whimbrel.v1.json")]);
        assert_eq!(validated(&offered).unwrap().subprotocol, Some("whimbrel.v1.proto"));
        let foreign = request(&[("sec-websocket-protocol", "chat")]);
        assert_eq!(validated(&foreign), Err(HandshakeError::UnknownSubprotocol("chat".into())));
    }

    #[test]
    fn invalid_handshakes_are_rejected() {
        for change in [("upgrade", "h2c"), ("connection", "close"), ("sec-websocket-version", "8")] {
            assert!(matches!(validated(&request(&[change])), Err(HandshakeError::NoUpgrade(_))), "{change:?}");
        }
        for key in ["", "short", "dGhlIHNhbXBsZSBub25jZQ", "AAAA"] {
            let headers = request(&[("sec-websocket-key", key)]);
            assert!(matches!(validated(&headers), Err(HandshakeError::Malformed(_))), "{key}");
        }
        let mut keys = request(&[]);
        keys.append("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
        assert!(matches!(validated(&keys), Err(HandshakeError::Malformed(_))), "two keys");
        let two = validate(&Method::GET, Version::HTTP_2, &request(&[]), &KNOWN);
        assert!(matches!(two, Err(HandshakeError::NoUpgrade(_))));
    }
}
