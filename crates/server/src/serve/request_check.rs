//! Checks of RFC 9112 that the HTTP library does not make: a request has one valid `Host`, and no transfer coding except `chunked`. Also
//! checks the number of headers, because the library rejects a request with too many headers without a body that names the reason.
//!
//! A request that a proxy and the server could parse differently is rejected before any decision depends on it: the guard against foreign
//! web pages reads the `Host`, and the framing determines the body.

use axum::response::{IntoResponse as _, Response};
use http::header::{HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Version};
use whimbrel_ingress::{ApiProblem, Code};

/// The answer to an invalid request; `None` for a valid one.
pub fn refusal(version: Version, headers: &HeaderMap, headers_max: usize) -> Option<Response> {
    let checked = check_count(version, headers, headers_max);
    let checked = checked.and_then(|()| check_host(version, headers)).and_then(|()| check_coding(headers));
    checked.err().map(|problem| problem.into_response())
}

/// Limits the number of headers of HTTP/1 requests. HTTP/2 has its own limit, in bytes.
fn check_count(version: Version, headers: &HeaderMap, headers_max: usize) -> Result<(), ApiProblem> {
    let count = headers.len();
    if version == Version::HTTP_2 || count <= headers_max {
        return Ok(());
    }
    let detail =
        format!("the request has {count} headers; the limit is {headers_max}, which follows from `limits.headers`");
    Err(ApiProblem::new(Code::TooManyRequestHeaders, detail).with("limit", headers_max))
}

/// HTTP/1.1 has exactly one `Host`. HTTP/1.0 may have none, and HTTP/2 has `:authority` instead.
fn check_host(version: Version, headers: &HeaderMap) -> Result<(), ApiProblem> {
    let wrong = |detail: &'static str| Err(ApiProblem::new(Code::BadRequest, detail));
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if version == Version::HTTP_11 => wrong("a request of HTTP/1.1 needs a `Host` header"),
        (None, _) => Ok(()),
        (Some(_), Some(_)) => wrong("the request has more than one `Host` header"),
        (Some(host), None) if is_host(host) => Ok(()),
        (Some(_), None) => wrong("the `Host` header is not a host, or a host and a port"),
    }
}

/// Whether the value is a host with an optional port. Empty is valid: a target without an authority has no host.
fn is_host(host: &HeaderValue) -> bool {
    let Ok(text) = host.to_str() else { return false };
    let is_authority = |text: &str| text.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
    text.is_empty() || is_authority(text)
}

/// Permits a plain or chunked body. Any other coding would be stored as if it were the payload.
fn check_coding(headers: &HeaderMap) -> Result<(), ApiProblem> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(first) = lines.next() else { return Ok(()) };
    if lines.next().is_none() && first.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let texts = headers.get_all(TRANSFER_ENCODING).iter().map(|line| line.to_str().unwrap_or("?"));
    let codings: Vec<&str> = texts.flat_map(|line| line.split(',')).map(str::trim).collect();
    let chunked = codings.iter().filter(|coding| coding.eq_ignore_ascii_case("chunked")).count();
    if chunked > 1 {
        return Err(ApiProblem::new(Code::BadRequest, "`chunked` is more than once in `Transfer-Encoding`"));
    }
    match codings.iter().find(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("chunked")) {
        Some(coding) => {
            let shown: String = coding.chars().take(40).collect();
            let detail = format!("the transfer coding `{shown}` is not supported: send the body as it is, or chunked");
            Err(ApiProblem::new(Code::UnsupportedTransferCoding, detail))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(version: Version, headers: &[(&'static str, &'static str)]) -> Option<u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        refusal(version, &map, 3).map(|answer| answer.status().as_u16())
    }

    #[test]
    fn http_1_1_has_one_host_that_is_one() {
        let eleven = |headers: &[(&'static str, &'static str)]| status(Version::HTTP_11, headers);
        for host in ["localhost", "localhost:7600", "127.0.0.1:1", "[::1]:7600", "a.example", ""] {
            assert_eq!(eleven(&[("host", host)]), None, "{host}");
        }
        assert_eq!(eleven(&[]), Some(400));
        assert_eq!(eleven(&[("host", "a"), ("host", "a")]), Some(400));
        for host in ["a b", "a/b", "user@a", "a:b:c", "a, b"] {
            assert_eq!(eleven(&[("host", host)]), Some(400), "{host}");
        }
        assert_eq!(status(Version::HTTP_10, &[]), None);
        assert_eq!(status(Version::HTTP_2, &[]), None, "`:authority` has the host");
    }

    #[test]
    fn a_request_has_no_more_headers_than_the_limit() {
        let headers = [("host", "a"), ("x", "1"), ("x", "2"), ("y", "1")];
        assert_eq!(status(Version::HTTP_11, &headers[..3]), None);
        assert_eq!(status(Version::HTTP_11, &headers), Some(431));
        assert_eq!(status(Version::HTTP_10, &headers), Some(431));
        assert_eq!(status(Version::HTTP_2, &headers), None);
    }

    #[test]
    fn a_body_is_plain_or_chunked() {
        let coded = |coding: &'static str| status(Version::HTTP_11, &[("host", "a"), ("transfer-encoding", coding)]);
        assert_eq!((coded("chunked"), coded("Chunked")), (None, None));
        assert_eq!((coded("gzip, chunked"), coded("identity, chunked")), (Some(501), Some(501)));
        assert_eq!((coded("chunked, chunked"), coded("chunked,gzip,chunked")), (Some(400), Some(400)));
        let twice = [("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        assert_eq!(status(Version::HTTP_11, &twice), Some(400));
    }
}
