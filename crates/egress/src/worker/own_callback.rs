//! Callbacks that a message names itself, as soraka's messages do: its own URL and method. A GET has the message's JSON in its query.

use std::fmt::Write;

use http::Method;
use http::uri::PathAndQuery;
use serde_json::Value;
use whimbrel_model::ports::CallFailure;
use whimbrel_model::subscription::OwnCallback;

use super::failed_call::FailedCall;
use whimbrel_api::endpoint::EndpointUrl;
use whimbrel_api::endpoint::URL_BYTES_MAX;

/// The URL and method of such a callback. A GET has no body.
pub(super) struct OwnCallbackRequest {
    pub(super) place: EndpointUrl,
    pub(super) method: Method,
}

impl OwnCallbackRequest {
    pub(super) fn of(callback: &OwnCallback, payload: &[u8]) -> Result<Self, FailedCall> {
        let bad = |detail: String| FailedCall::new(CallFailure::BadTarget, detail);
        let mut place = EndpointUrl::parse(&callback.url).map_err(|error| bad(error.to_string()))?;
        if callback.method.eq_ignore_ascii_case("POST") {
            return Ok(Self { place, method: Method::POST });
        }
        if !callback.method.eq_ignore_ascii_case("GET") {
            return Err(bad(format!("the method of a callback must be GET or POST, not `{}`", callback.method)));
        }
        place.path = with_query(&place.path, payload)?;
        Ok(Self { place, method: Method::GET })
    }
}

/// Adds the members of a JSON object to the query. Strings are added without quotes, other values as JSON.
fn with_query(path: &PathAndQuery, payload: &[u8]) -> Result<PathAndQuery, FailedCall> {
    let bad = |detail: &str| FailedCall::new(CallFailure::BadTarget, detail);
    if payload.is_empty() {
        return Ok(path.clone());
    }
    let members = match serde_json::from_slice(payload) {
        Ok(Value::Object(members)) => members,
        Ok(Value::Null) => return Ok(path.clone()),
        _ => return Err(bad("the parameters of a GET are not a JSON object")),
    };
    let mut text = path.as_str().to_owned();
    let mut separator = if path.query().is_some() { '&' } else { '?' };
    for (name, value) in members {
        text.push(separator);
        encode(&name, &mut text);
        text.push('=');
        match value {
            Value::String(value) => encode(&value, &mut text),
            other => encode(&other.to_string(), &mut text),
        }
        separator = '&';
    }
    if text.len() > URL_BYTES_MAX {
        return Err(bad("the parameters of a GET do not fit into a URL"));
    }
    text.parse().map_err(|_| bad("the parameters of a GET do not fit into a URL"))
}

fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(method: &str, url: &str, payload: &str) -> Result<(Method, String), CallFailure> {
        let callback = OwnCallback { method: method.to_owned(), url: url.to_owned() };
        let way = OwnCallbackRequest::of(&callback, payload.as_bytes());
        way.map(|way| (way.method, way.place.path.to_string())).map_err(|failure| failure.why)
    }

    #[test]
    fn a_post_leaves_the_query_as_it_is() {
        let sent = way("post", "http://a/x?y=1", "{\"a\":1}");
        assert_eq!(sent, Ok((Method::POST, "/x?y=1".to_owned())));
    }

    #[test]
    fn a_get_has_the_parameters_in_its_query() {
        let sent = way("GET", "http://a/x", r#"{"a":"1 & 2","b":3,"c":[true],"ü":null}"#);
        let path = "/x?a=1%20%26%202&b=3&c=%5Btrue%5D&%C3%BC=null".to_owned();
        assert_eq!(sent, Ok((Method::GET, path)));
        let sent = way("GET", "http://a/x?y=1", r#"{"a":"1"}"#);
        assert_eq!(sent, Ok((Method::GET, "/x?y=1&a=1".to_owned())));
        for nothing in ["", "null", "{}"] {
            assert_eq!(way("GET", "http://a/x", nothing), Ok((Method::GET, "/x".to_owned())));
        }
    }

    #[test]
    fn an_invalid_callback_is_a_bad_target() {
        assert_eq!(way("PUT", "http://a/x", "{}"), Err(CallFailure::BadTarget));
        assert_eq!(way("GET", "http://a/x", "[1]"), Err(CallFailure::BadTarget));
        assert_eq!(way("GET", "http://a/x", "{"), Err(CallFailure::BadTarget));
        assert_eq!(way("POST", "nowhere", "{}"), Err(CallFailure::BadTarget));
    }
}
