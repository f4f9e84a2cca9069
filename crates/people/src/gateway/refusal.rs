//! Rejections before a connection is open, as problem documents (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, SEC_WEBSOCKET_VERSION, UPGRADE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::json;
use whimbrel_model::people::CloseCode;

use super::websocket::handshake::{HandshakeError, VERSION};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectRefusal {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

impl ConnectRefusal {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into() }
    }

    /// The rejection for a close code, if there is no connection yet.
    pub(super) fn of_close(code: CloseCode, detail: impl Into<String>) -> Self {
        let status = match code {
            CloseCode::BadToken | CloseCode::TokenExpired => StatusCode::UNAUTHORIZED,
            CloseCode::Overloaded | CloseCode::GoingAway | CloseCode::NoOwner => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, code.word(), detail)
    }
}

impl From<HandshakeError> for ConnectRefusal {
    fn from(error: HandshakeError) -> Self {
        let (status, code) = match &error {
            HandshakeError::NoUpgrade(_) => (StatusCode::UPGRADE_REQUIRED, "upgrade_required"),
            HandshakeError::Malformed(_) => (StatusCode::BAD_REQUEST, "bad_handshake"),
            HandshakeError::UnknownSubprotocol(_) => (StatusCode::BAD_REQUEST, "unknown_subprotocol"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl IntoResponse for ConnectRefusal {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or_default();
        let body = json!({
            "type": format!("urn:whimbrel:problem:{}", self.code),
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status;
        let mut say = |name: HeaderName, value| response.headers_mut().insert(name, HeaderValue::from_static(value));
        say(CONTENT_TYPE, "application/problem+json");
        match self.status {
            StatusCode::UPGRADE_REQUIRED => {
                say(UPGRADE, "websocket");
                say(SEC_WEBSOCKET_VERSION, VERSION);
            }
            StatusCode::UNAUTHORIZED => drop(say(WWW_AUTHENTICATE, "Bearer")),
            StatusCode::SERVICE_UNAVAILABLE => drop(say(RETRY_AFTER, "1")),
            _ => {}
        }
        response
    }
}
