//! The role `admin`: two small pages. The console is planned here.

pub(crate) mod page;
pub(crate) mod people_page;

use axum::body::Body;
use axum::response::Response;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};

/// An HTML page with a content security policy.
fn html_response(body: impl Into<Body>, policy: &'static str) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}
