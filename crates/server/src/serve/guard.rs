//! The guard ahead of the router: which requests of web pages it permits, and the CORS headers of their answers.
//!
//! Two groups of paths have a rule each. On the paths where devices connect, `gateway.origins` decides about every request of a page. On
//! all other paths the guard decides only if there are no API keys: about requests of pages that change something, and about the host
//! name of every request. With API keys, a valid key suffices, whatever the page's origin.
//!
//! A page of another origin can read an answer only if CORS headers permit it. The three HTTP paths to connect are for such pages, so the
//! guard answers their preflights as well, and no others.
//!
//! The guard runs once per request, ahead of the router. It allocates nothing for a request that passes, and never reads a body.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use whimbrel_ingress::{ApiProblem, Code};
use whimbrel_people::gateway;

use super::origins::{Origins, RequestOrigin, host_of};
use crate::config::Config;

/// Paths that only report health. They are served under any host name, since probes use any.
const TELLS_NOTHING: [&str; 2] = ["/healthz", "/readyz"];
/// Headers that a connecting page may send beside the standard ones: its token, JSON, and the position of its event stream.
const HEADERS_ALLOWED: HeaderValue = HeaderValue::from_static("authorization, content-type, last-event-id");
/// Headers that it may read beside the standard ones: the delay before a retry.
const HEADERS_EXPOSED: HeaderValue = HeaderValue::from_static("retry-after");
/// Seconds for which a browser may cache a preflight.
const PREFLIGHT_LASTS_S: HeaderValue = HeaderValue::from_static("600");

/// Permits everything by default. Clones share the rules.
#[derive(Debug, Clone, Default)]
pub struct Guard(Arc<Rules>);

#[derive(Debug, Default)]
struct Rules {
    /// The origins that may connect; `None` without the role `gateway`.
    connecting: Option<Origins>,
    /// The origins that may use all other paths; `None` if API keys decide.
    keyless: Option<Origins>,
}

#[derive(Debug)]
pub enum GuardDecision {
    /// Pass it on, and add these headers to its answer.
    Pass(CorsHeaders),
    /// Answer with this response.
    Answered(Response),
}

#[derive(Debug, Default)]
pub struct CorsHeaders {
    /// The origin of the page that may read the answer.
    page: Option<HeaderValue>,
    is_connecting: bool,
}

impl Guard {
    pub fn of(config: &Config) -> Self {
        let named = &config.gateway.origins;
        let connecting = config.process.roles.gateway.then(|| Origins::of(named, config.clients.has_keys()));
        let keyless = config.keys.is_empty().then(|| Origins::of(named, false));
        Self(Arc::new(Rules { connecting, keyless }))
    }

    pub fn decide(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> GuardDecision {
        match (&self.0.connecting, &self.0.keyless) {
            (Some(origins), _) if gateway::is_served(uri.path()) => connecting(origins, method, uri, headers),
            (_, Some(origins)) => keyless(origins, method, uri, headers),
            (_, None) => GuardDecision::Pass(CorsHeaders::default()),
        }
    }
}

fn connecting(origins: &Origins, method: &Method, uri: &Uri, headers: &HeaderMap) -> GuardDecision {
    let told = |page| CorsHeaders { page, is_connecting: true };
    match origins.classify(headers) {
        RequestOrigin::NoPage => GuardDecision::Pass(told(None)),
        RequestOrigin::Page(page) => match asked_before(method, uri, headers) {
            Some(methods) => GuardDecision::Answered(told(Some(page)).with(preflight(methods))),
            None => GuardDecision::Pass(told(Some(page))),
        },
        RequestOrigin::Foreign(place) => GuardDecision::Answered(told(None).with(foreign(&place, "connect"))),
    }
}

fn keyless(origins: &Origins, method: &Method, uri: &Uri, headers: &HeaderMap) -> GuardDecision {
    let host = host_of(uri, headers);
    if !origins.permits_host(host) && !TELLS_NOTHING.contains(&uri.path()) {
        let detail = format!(
            "without API keys, requests to the host name `{host}` are rejected, because a foreign web page could use that name; use an address or \
             `localhost`, configure API keys, or add http://{host} to `gateway.origins`"
        );
        return GuardDecision::Answered(ApiProblem::new(Code::OriginNotAllowed, detail).into_response());
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return GuardDecision::Pass(CorsHeaders::default());
    }
    match origins.classify(headers) {
        // The request of a permitted page is served, but only pages of this server may read the answer.
        RequestOrigin::NoPage | RequestOrigin::Page(_) => GuardDecision::Pass(CorsHeaders::default()),
        RequestOrigin::Foreign(place) => {
            GuardDecision::Answered(foreign(&place, "change anything here without an API key"))
        }
    }
}

fn foreign(place: &str, what: &str) -> Response {
    let detail = format!("pages of {place} may not {what}; add the origin to `gateway.origins` to permit it");
    ApiProblem::new(Code::OriginNotAllowed, detail).into_response()
}

/// The methods of the path, if the request is a CORS preflight.
fn asked_before(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<&'static [&'static str]> {
    let is_preflight = *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let (_, methods) = gateway::PATHS.iter().find(|(path, _)| is_preflight && *path == uri.path())?;
    Some(methods)
}

fn preflight(methods: &[&str]) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    // Method names are ASCII letters, which are always valid in a header.
    if let Ok(methods) = HeaderValue::try_from(methods.join(", ").to_ascii_uppercase()) {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS_ALLOWED);
    headers.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_LASTS_S);
    response
}

impl CorsHeaders {
    pub fn with(self, mut response: Response) -> Response {
        let Self { page, is_connecting } = self;
        let headers = response.headers_mut();
        if is_connecting {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(page) = page {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HEADERS_EXPOSED);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http::header::HOST;

    use super::*;

    const SHOP: &str = "https://shop.example";
    const EVIL: &str = "https://evil.example";

    /// A guard without API keys and client keys, with `SHOP` in `gateway.origins`.
    fn guard() -> Guard {
        let named = || Some(Origins::of(&[SHOP.to_owned()], false));
        Guard(Arc::new(Rules { connecting: named(), keyless: named() }))
    }

    fn request(method: &str, path: &str, headers: &[(&'static str, &'static str)]) -> http::Request<()> {
        let mut request = http::Request::builder().method(method).uri(path).header(HOST, "localhost:7600");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    /// The answer of the guard; 200 stands for the answer of the router.
    fn answered(guard: &Guard, request: &http::Request<()>) -> Response {
        match guard.decide(request.method(), request.uri(), request.headers()) {
            GuardDecision::Pass(told) => told.with(Response::new(Body::empty())),
            GuardDecision::Answered(response) => response,
        }
    }

    fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn a_permitted_page_may_read_answers_on_connect_paths() {
        for (path, methods) in gateway::PATHS {
            for method in methods {
                let answer = answered(&guard(), &request(&method.to_uppercase(), path, &[("origin", SHOP)]));
                assert_eq!(answer.status(), StatusCode::OK, "{path}");
                assert_eq!(header(&answer, "access-control-allow-origin"), Some(SHOP), "{path}");
                assert_eq!(header(&answer, "access-control-expose-headers"), Some("retry-after"));
                assert_eq!(header(&answer, "vary"), Some("origin"), "{path}");
            }
        }
    }

    #[test]
    fn a_foreign_page_cannot_connect_or_read_answers() {
        let paths = gateway::PATHS.map(|(path, _)| path);
        for path in paths.into_iter().chain(["/whimbrel.v1.Gateway/Connect"]) {
            for method in ["GET", "POST", "OPTIONS"] {
                let asked = [("origin", EVIL), ("access-control-request-method", "POST")];
                let answer = answered(&guard(), &request(method, path, &asked));
                assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{method} {path}");
                assert_eq!(header(&answer, "access-control-allow-origin"), None, "{method} {path}");
                assert_eq!(header(&answer, "vary"), Some("origin"), "{method} {path}");
            }
        }
    }

    #[test]
    fn a_request_without_an_origin_connects_and_its_answer_varies_by_origin() {
        for (path, _) in gateway::PATHS {
            let answer = answered(&guard(), &request("GET", path, &[]));
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
            assert_eq!(header(&answer, "access-control-allow-origin"), None, "{path}");
            assert_eq!(header(&answer, "vary"), Some("origin"), "a cache must not keep it for a page: {path}");
        }
    }

    #[test]
    fn a_preflight_is_answered_with_the_permitted_methods_and_headers() {
        let asked = [("origin", SHOP), ("access-control-request-method", "POST")];
        for (path, methods) in [("/v1/connect", "GET"), ("/v1/connect/sse", "GET"), ("/v1/connect/ack", "POST")] {
            let answer = answered(&guard(), &request("OPTIONS", path, &asked));
            assert_eq!(answer.status(), StatusCode::NO_CONTENT, "{path}");
            assert_eq!(header(&answer, "access-control-allow-origin"), Some(SHOP), "{path}");
            assert_eq!(header(&answer, "access-control-allow-methods"), Some(methods), "{path}");
            let allowed = header(&answer, "access-control-allow-headers").unwrap();
            assert!(["authorization", "content-type", "last-event-id"].iter().all(|name| allowed.contains(name)));
            assert_eq!(header(&answer, "vary"), Some("origin"), "{path}");
        }
    }

    #[test]
    fn only_connect_paths_answer_preflights() {
        let asked = [("origin", SHOP), ("access-control-request-method", "POST")];
        for path in ["/v1/users/alice/messages", "/v1/topics", "/whimbrel.v1.Gateway/Connect", "/v1/connect/"] {
            let answer = answered(&guard(), &request("OPTIONS", path, &asked));
            assert_eq!(header(&answer, "access-control-allow-methods"), None, "{path}");
        }
    }

    #[test]
    fn an_options_request_that_is_no_preflight_passes() {
        let answer = answered(&guard(), &request("OPTIONS", "/v1/connect/ack", &[("origin", SHOP)]));
        assert_eq!((answer.status(), header(&answer, "access-control-allow-methods")), (StatusCode::OK, None));
    }

    #[test]
    fn without_api_keys_foreign_pages_cannot_change_anything_and_reads_pass() {
        for (method, status) in [("POST", 403), ("DELETE", 403), ("PUT", 403), ("GET", 200), ("HEAD", 200)] {
            let answer = answered(&guard(), &request(method, "/v1/users/alice/inbox", &[("origin", EVIL)]));
            assert_eq!(answer.status(), status, "{method}");
            assert_eq!(header(&answer, "access-control-allow-origin"), None, "{method}");
        }
        let answer = answered(&guard(), &request("POST", "/v1/users/alice/kick", &[("origin", SHOP)]));
        assert_eq!((answer.status(), header(&answer, "access-control-allow-origin")), (StatusCode::OK, None));
    }

    #[test]
    fn only_connect_paths_have_cors_headers() {
        for path in ["/v1/topics/orders/messages", "/v1/users/alice/messages", "/v1/topics/orders/batch"] {
            let answer = answered(&guard(), &request("POST", path, &[("origin", SHOP)]));
            assert_eq!(
                (answer.status(), header(&answer, "access-control-allow-origin")),
                (StatusCode::OK, None),
                "{path}"
            );
            assert_eq!(header(&answer, "vary"), None, "{path}");
        }
    }

    #[test]
    fn without_api_keys_the_host_name_is_checked_except_on_health_and_connect_paths() {
        for (uri, status) in [
            ("http://evil.example/v1/topics", 403),
            ("http://evil.example/v1/connected", 403),
            ("http://shop.example/v1/topics", 200),
            ("http://localhost/v1/topics", 200),
            ("http://evil.example/healthz", 200),
            ("http://evil.example/readyz", 200),
            ("http://evil.example/v1/connect", 200),
        ] {
            // In HTTP/2 the host name is in `:authority`, which overrides a header.
            assert_eq!(answered(&guard(), &request("GET", uri, &[])).status(), status, "{uri}");
        }
    }

    #[test]
    fn with_api_keys_only_connect_paths_check_the_origin() {
        let guard = Guard(Arc::new(Rules { connecting: Some(Origins::of(&[SHOP.to_owned()], false)), keyless: None }));
        let elsewhere = [("origin", EVIL)];
        let posted = answered(&guard, &request("POST", "http://evil.example/v1/topics/t/messages", &elsewhere));
        assert_eq!((posted.status(), header(&posted, "vary")), (StatusCode::OK, None));
        assert_eq!(answered(&guard, &request("GET", "/v1/connect/sse", &elsewhere)).status(), StatusCode::FORBIDDEN);
    }

    #[test]
    fn without_the_role_gateway_connect_paths_are_ordinary_paths() {
        let keyless = Some(Origins::of(&[], false));
        let guard = Guard(Arc::new(Rules { connecting: None, keyless }));
        assert_eq!(answered(&guard, &request("GET", "http://evil.example/v1/connect", &[])).status(), 403);
        assert_eq!(answered(&Guard::default(), &request("POST", "/v1/connect", &[("origin", EVIL)])).status(), 200);
    }
}
