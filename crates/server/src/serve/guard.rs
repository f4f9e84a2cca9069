//! What stands in front of everything that is served: which requests of web pages are let through, and what their browsers are told.
//!
//! Two places are guarded, each by its own rule. Where devices connect, every request of a page is judged by `gateway.origins`. Everything
//! else is judged where no API key guards it: what a page would change, and the name that anything is asked under. With keys whoever has
//! one may, wherever the page is from.
//!
//! A page of another origin reads an answer only where its browser is told that it may (CORS). The three ways to connect over HTTP are for
//! such pages, so their preflights are answered here as well; nothing else is.
//!
//! It is asked once for every request, ahead of the router, and allocates nothing for one that passes. It never looks at a body.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use whimbrel_ingress::{Code, Problem};
use whimbrel_people::gateway;

use super::origins::{Judged, Origins, host_of};
use crate::config::Config;

/// What says only whether the process is well, under whatever name somebody probes it.
const TELLS_NOTHING: [&str; 2] = ["/healthz", "/readyz"];
/// What a page that connects may send beside what every page may: its token, JSON, and where its event stream goes on.
const HEADERS_ALLOWED: HeaderValue = HeaderValue::from_static("authorization, content-type, last-event-id");
/// What it may read beside what every page may: when to come back.
const HEADERS_EXPOSED: HeaderValue = HeaderValue::from_static("retry-after");
/// For how long, in seconds, a browser need not ask again.
const PREFLIGHT_LASTS_S: HeaderValue = HeaderValue::from_static("600");

/// Lets everything pass unless it is given rules. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub struct Guard(Arc<Rules>);

#[derive(Debug, Default)]
struct Rules {
    /// Who may connect; `None` where nothing here is connected to.
    connecting: Option<Origins>,
    /// Who may do the rest; `None` where API keys decide.
    keyless: Option<Origins>,
}

/// What is done with a request.
#[derive(Debug)]
pub enum Verdict {
    /// It goes on, and its answer gets this.
    Pass(Told),
    /// It is answered here.
    Answered(Response),
}

/// What the browser of whoever asked is told with the answer.
#[derive(Debug, Default)]
pub struct Told {
    /// The page that may read it.
    page: Option<HeaderValue>,
    is_connecting: bool,
}

impl Guard {
    pub fn of(config: &Config) -> Self {
        let named = &config.gateway.origins;
        let connecting = config.roles.gateway.then(|| Origins::of(named, config.clients.has_keys()));
        let keyless = config.keys.is_empty().then(|| Origins::of(named, false));
        Self(Arc::new(Rules { connecting, keyless }))
    }

    pub fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Verdict {
        match (&self.0.connecting, &self.0.keyless) {
            (Some(origins), _) if gateway::is_served(uri.path()) => connecting(origins, method, uri, headers),
            (_, Some(origins)) => keyless(origins, method, uri, headers),
            (_, None) => Verdict::Pass(Told::default()),
        }
    }
}

fn connecting(origins: &Origins, method: &Method, uri: &Uri, headers: &HeaderMap) -> Verdict {
    let told = |page| Told { page, is_connecting: true };
    match origins.judge(headers) {
        Judged::NoPage => Verdict::Pass(told(None)),
        Judged::Page(page) => match asked_before(method, uri, headers) {
            Some(methods) => Verdict::Answered(told(Some(page)).with(preflight(methods))),
            None => Verdict::Pass(told(Some(page))),
        },
        Judged::Foreign(place) => Verdict::Answered(told(None).with(foreign(&place, "connect"))),
    }
}

fn keyless(origins: &Origins, method: &Method, uri: &Uri, headers: &HeaderMap) -> Verdict {
    let host = host_of(uri, headers);
    if !origins.know(host) && !TELLS_NOTHING.contains(&uri.path()) {
        let detail = format!(
            "without API keys nothing is answered under the name `{host}`, which a page of somebody else's could have; use an address or \
             `localhost`, configure API keys, or name http://{host} in `gateway.origins`"
        );
        return Verdict::Answered(Problem::new(Code::OriginNotAllowed, detail).into_response());
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Verdict::Pass(Told::default());
    }
    match origins.judge(headers) {
        // The request of a page that may is served; its answer is for pages of this server only.
        Judged::NoPage | Judged::Page(_) => Verdict::Pass(Told::default()),
        Judged::Foreign(place) => Verdict::Answered(foreign(&place, "change anything here without an API key")),
    }
}

fn foreign(place: &str, what: &str) -> Response {
    let detail = format!("pages of {place} may not {what}; `gateway.origins` names those that may");
    Problem::new(Code::OriginNotAllowed, detail).into_response()
}

/// The methods of the path where a browser asks, ahead of a request, whether its page may make it.
fn asked_before(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<&'static [&'static str]> {
    let is_preflight = *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let (_, methods) = gateway::PATHS.iter().find(|(path, _)| is_preflight && *path == uri.path())?;
    Some(methods)
}

fn preflight(methods: &[&str]) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    // Names of methods are ASCII letters, which a header may always have.
    if let Ok(methods) = HeaderValue::try_from(methods.join(", ").to_ascii_uppercase()) {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS_ALLOWED);
    headers.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_LASTS_S);
    response
}

impl Told {
    /// The answer with what is told.
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

    /// Without keys of either kind, where `SHOP` is named.
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

    /// What it is answered: here, or with 200 by whoever is behind the guard.
    fn answered(guard: &Guard, request: &http::Request<()>) -> Response {
        match guard.judge(request.method(), request.uri(), request.headers()) {
            Verdict::Pass(told) => told.with(Response::new(Body::empty())),
            Verdict::Answered(response) => response,
        }
    }

    fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn a_page_that_is_named_may_read_what_it_is_answered_where_it_connects() {
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
    fn a_page_that_is_not_named_connects_nowhere_and_reads_nothing() {
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
    fn who_says_no_origin_connects_and_the_answer_is_still_one_of_several() {
        for (path, _) in gateway::PATHS {
            let answer = answered(&guard(), &request("GET", path, &[]));
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
            assert_eq!(header(&answer, "access-control-allow-origin"), None, "{path}");
            assert_eq!(header(&answer, "vary"), Some("origin"), "a cache must not keep it for a page: {path}");
        }
    }

    #[test]
    fn a_browser_that_asks_ahead_is_told_what_its_page_may_send() {
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
    fn nothing_but_connecting_is_for_pages_that_ask_ahead() {
        let asked = [("origin", SHOP), ("access-control-request-method", "POST")];
        for path in ["/v1/users/alice/messages", "/v1/topics", "/whimbrel.v1.Gateway/Connect", "/v1/connect/"] {
            let answer = answered(&guard(), &request("OPTIONS", path, &asked));
            assert_eq!(header(&answer, "access-control-allow-methods"), None, "{path}");
        }
    }

    #[test]
    fn an_options_that_is_no_preflight_is_left_to_the_router() {
        let answer = answered(&guard(), &request("OPTIONS", "/v1/connect/ack", &[("origin", SHOP)]));
        assert_eq!((answer.status(), header(&answer, "access-control-allow-methods")), (StatusCode::OK, None));
    }

    #[test]
    fn without_api_keys_pages_of_elsewhere_change_nothing_and_what_only_reads_is_not_judged() {
        for (method, status) in [("POST", 403), ("DELETE", 403), ("PUT", 403), ("GET", 200), ("HEAD", 200)] {
            let answer = answered(&guard(), &request(method, "/v1/users/alice/inbox", &[("origin", EVIL)]));
            assert_eq!(answer.status(), status, "{method}");
            assert_eq!(header(&answer, "access-control-allow-origin"), None, "{method}");
        }
        let answer = answered(&guard(), &request("POST", "/v1/users/alice/kick", &[("origin", SHOP)]));
        assert_eq!((answer.status(), header(&answer, "access-control-allow-origin")), (StatusCode::OK, None));
    }

    #[test]
    fn answers_name_an_origin_only_where_devices_connect() {
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
    fn without_api_keys_the_name_that_is_asked_under_counts_except_for_whether_it_is_well_and_where_devices_connect() {
        for (uri, status) in [
            ("http://evil.example/v1/topics", 403),
            ("http://evil.example/v1/connected", 403),
            ("http://shop.example/v1/topics", 200),
            ("http://localhost/v1/topics", 200),
            ("http://evil.example/healthz", 200),
            ("http://evil.example/readyz", 200),
            ("http://evil.example/v1/connect", 200),
        ] {
            // As HTTP/2 says it: the name is in `:authority`, which goes before a header.
            assert_eq!(answered(&guard(), &request("GET", uri, &[])).status(), status, "{uri}");
        }
    }

    #[test]
    fn with_api_keys_the_key_decides_and_only_connecting_is_judged() {
        let guard = Guard(Arc::new(Rules { connecting: Some(Origins::of(&[SHOP.to_owned()], false)), keyless: None }));
        let elsewhere = [("origin", EVIL)];
        let posted = answered(&guard, &request("POST", "http://evil.example/v1/topics/t/messages", &elsewhere));
        assert_eq!((posted.status(), header(&posted, "vary")), (StatusCode::OK, None));
        assert_eq!(answered(&guard, &request("GET", "/v1/connect/sse", &elsewhere)).status(), StatusCode::FORBIDDEN);
    }

    #[test]
    fn where_nothing_is_connected_to_those_paths_are_as_any_other() {
        let keyless = Some(Origins::of(&[], false));
        let guard = Guard(Arc::new(Rules { connecting: None, keyless }));
        assert_eq!(answered(&guard, &request("GET", "http://evil.example/v1/connect", &[])).status(), 403);
        assert_eq!(answered(&Guard::default(), &request("POST", "/v1/connect", &[("origin", EVIL)])).status(), 200);
    }
}
