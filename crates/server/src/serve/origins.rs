//! Which web pages may connect as devices. A browser lets any page open a WebSocket to any place and only says where the page is from, so
//! without this a page of somebody else's could be anybody on a server that takes devices of its own machine at their word.
//!
//! What is not a browser sends no origin, and is not judged here.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use http::header::ORIGIN;
use http::{StatusCode, header};

/// Pages that may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origins {
    All,
    /// Those that this machine serves.
    Local,
    These(Vec<String>),
}

impl Origins {
    /// Where nothing is configured: with client keys all, since a page needs a token; without them only pages of this machine.
    pub fn of(configured: &[String], has_client_keys: bool) -> Self {
        match configured {
            [] if has_client_keys => Self::All,
            [] => Self::Local,
            some if some.iter().any(|origin| origin == "*") => Self::All,
            some => Self::These(some.iter().map(|origin| origin.to_ascii_lowercase()).collect()),
        }
    }

    pub fn allow(&self, origin: &str) -> bool {
        match self {
            Self::All => true,
            Self::Local => is_local(origin),
            Self::These(these) => these.contains(&origin.to_ascii_lowercase()),
        }
    }
}

/// A page from a file, or one in a sandbox, is from `null`: it may be anybody's, and is not local.
fn is_local(origin: &str) -> bool {
    let Some((_, place)) = origin.split_once("://") else { return false };
    let host = match place.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(host, _)| host),
        None => place.rsplit_once(':').map_or(place, |(host, _)| host),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Refuses pages that may not connect, in front of everything that the router serves.
pub fn guarded(router: Router, origins: Origins) -> Router {
    let origins = Arc::new(origins);
    router.layer(from_fn(move |request: Request, next: Next| {
        let origins = Arc::clone(&origins);
        async move {
            let origin = request.headers().get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
            if origin.is_some_and(|origin| !origins.allow(origin)) {
                return refusal(origin.unwrap_or_default());
            }
            next.run(request).await
        }
    }))
}

fn refusal(origin: &str) -> Response {
    let problem = serde_json::json!({
        "type": "urn:whimbrel:problem:origin_not_allowed",
        "title": "This page may not connect",
        "status": 403,
        "code": "origin_not_allowed",
        "detail": format!("pages of `{origin}` may not connect; gateway.origins names those that may"),
    });
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (StatusCode::FORBIDDEN, kind, problem.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_client_keys_only_pages_of_this_machine_connect() {
        let origins = Origins::of(&[], false);
        for local in ["http://localhost:8000", "https://LOCALHOST", "http://127.0.0.1", "http://[::1]:3000"] {
            assert!(origins.allow(local), "{local}");
        }
        for foreign in
            ["https://evil.example", "null", "", "http://localhost.evil.example", "http://127.0.0.1.evil.example"]
        {
            assert!(!origins.allow(foreign), "{foreign}");
        }
        assert!(Origins::of(&[], true).allow("https://shop.example"));
    }

    #[test]
    fn what_is_configured_is_what_counts() {
        let origins = Origins::of(&["https://Shop.example".into(), "null".into()], true);
        assert!(origins.allow("https://shop.example") && origins.allow("null"));
        assert!(!origins.allow("http://localhost"));
        assert!(Origins::of(&["*".into()], false).allow("https://evil.example"));
    }
}
