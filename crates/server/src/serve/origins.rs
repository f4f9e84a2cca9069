//! Which web pages may connect as devices, and which may change anything where no API key guards it.
//!
//! A browser lets any page open a WebSocket or post a form to any place, this machine's own ports included, and only says where the page is
//! from (`Origin`). So without this a page of somebody else's that is open in the operator's browser could be anybody, or push to anybody, on
//! a server that takes this machine at its word.
//!
//! The `Host` of a request is never asked: a name of somebody else's that was made to lead to this machine (DNS rebinding) would be in both.
//! An image or a script of a page is fetched without an origin; that it is of another site browsers say too (`Sec-Fetch-Site`). What is not a
//! browser says neither, and is not judged here; nor is reading, whose answers browsers keep from pages of elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, ORIGIN, VARY};
use http::{HeaderMap, HeaderValue, Method};
use whimbrel_roles::receive::{Code, Problem};

/// Pages that may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origins {
    All,
    /// Those that this machine serves.
    Local,
    These(Vec<String>),
}

impl Origins {
    /// Where nothing is configured: with keys all, since a page needs one of them (to connect, a client's token; to change anything, an API
    /// key); without them only pages of this machine.
    pub fn of(configured: &[String], has_keys: bool) -> Self {
        match configured {
            [] if has_keys => Self::All,
            [] => Self::Local,
            some if some.iter().any(|origin| origin == "*") => Self::All,
            some => Self::These(some.iter().map(|origin| origin.to_ascii_lowercase()).collect()),
        }
    }

    /// What a browser says of where a request is from, where one does.
    fn judge(&self, headers: &HeaderMap) -> Judged {
        match headers.get(ORIGIN) {
            Some(origin) if self.allow(origin.to_str().unwrap_or_default()) => Judged::Page(origin.clone()),
            Some(origin) => Judged::Foreign(format!("`{}`", origin.to_str().unwrap_or_default())),
            None if *self != Self::All && headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") => {
                Judged::Foreign("another site".to_owned())
            }
            None => Judged::NoPage,
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

enum Judged {
    /// One that may, from there.
    Page(HeaderValue),
    /// One that may not, in words.
    Foreign(String),
    NoPage,
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

/// In front of what devices connect to: every request of a page is judged.
pub fn guard_connecting(router: Router, origins: Origins) -> Router {
    guarded(router, origins, |_| true, "connect")
}

/// In front of everything else where there are no API keys: what a page would change is judged. With keys whoever has one may, wherever the
/// page is from, and nothing is to be guarded.
pub fn guard_changes(router: Router, configured: &[String], has_api_keys: bool) -> Router {
    if has_api_keys {
        return router;
    }
    let changes = |method: &Method| !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    guarded(router, Origins::of(configured, false), changes, "change anything here without an API key")
}

fn guarded(router: Router, origins: Origins, is_judged: fn(&Method) -> bool, what: &'static str) -> Router {
    let origins = Arc::new(origins);
    router.layer(from_fn(move |request: Request, next: Next| {
        let origins = Arc::clone(&origins);
        async move {
            if !is_judged(request.method()) {
                return next.run(request).await;
            }
            match origins.judge(request.headers()) {
                Judged::NoPage => next.run(request).await,
                Judged::Page(origin) => {
                    let mut response = next.run(request).await;
                    readable(&mut response, origin);
                    response
                }
                Judged::Foreign(place) => {
                    let detail = format!("pages of {place} may not {what}; `gateway.origins` names those that may");
                    Problem::new(Code::OriginNotAllowed, detail).into_response()
                }
            }
        }
    }))
}

/// A page that may ask may read what it is answered: its browser asks for that to be said.
fn readable(response: &mut Response, origin: HeaderValue) {
    response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    response.headers_mut().append(VARY, HeaderValue::from_static("origin"));
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
