//! The rules about origins and host names of requests. [`super::guard`] applies them.
//!
//! A browser lets any page open a WebSocket or post a form to any address, also to ports of this machine. It only reports the page's
//! origin (`Origin`). Without a check, a foreign page in the operator's browser could act as any user, or push to any user, on a server
//! that trusts its own machine.
//!
//! A `Host` equal to the origin proves nothing: a foreign name that resolves to this machine (DNS rebinding) is in both. For the browser,
//! such a page belongs to this server, and reads from it without an `Origin`. So without API keys, the server rejects every host name that
//! a foreign party can own. A page also fetches images and scripts without an `Origin`; browsers mark those of another site with
//! `Sec-Fetch-Site`. Clients that are not browsers send neither header, and pass. Other reads pass too, because browsers keep their
//! answers from foreign pages.
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Uri};
use whimbrel_people::gateway::is_public_name;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origins {
    All,
    /// Pages that this machine serves.
    Local,
    These(Vec<String>),
}

impl Origins {
    /// Without configured origins: with keys all, because a page needs a key (a client's token to connect, an API key to change anything);
    /// without keys only pages of this machine.
    pub fn of(configured: &[String], has_keys: bool) -> Self {
        match configured {
            [] if has_keys => Self::All,
            [] => Self::Local,
            some if some.iter().any(|origin| origin == "*") => Self::All,
            some => Self::These(some.iter().map(|origin| origin.to_ascii_lowercase()).collect()),
        }
    }

    /// Classifies a request by the page that sent it, as its browser reports.
    pub fn classify(&self, headers: &HeaderMap) -> RequestOrigin {
        match headers.get(ORIGIN) {
            Some(origin) if self.allow(origin.to_str().unwrap_or_default()) => RequestOrigin::Page(origin.clone()),
            Some(origin) => RequestOrigin::Foreign(format!("`{}`", origin.to_str().unwrap_or_default())),
            None if *self != Self::All && headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") => {
                RequestOrigin::Foreign("another site".to_owned())
            }
            None => RequestOrigin::NoPage,
        }
    }

    fn allow(&self, origin: &str) -> bool {
        match self {
            Self::All => true,
            Self::Local => is_local(origin),
            Self::These(these) => these.contains(&origin.to_ascii_lowercase()),
        }
    }

    /// Whether requests to that host name are permitted.
    pub fn permits_host(&self, host: &str) -> bool {
        let is_elsewhere = is_public_name(host) && !NEAR.iter().any(|near| has_end(host, near));
        !is_elsewhere
            || match self {
                Self::All => true,
                Self::Local => false,
                Self::These(these) => these
                    .iter()
                    .filter_map(|origin| host_of_origin(origin))
                    .any(|known| known.trim_end_matches('.').eq_ignore_ascii_case(host.trim_end_matches('.'))),
            }
    }
}

/// Suffixes of names that exist only within a network. A foreign party cannot own such a name.
const NEAR: [&str; 2] = [".local", ".internal"];

fn has_end(host: &str, end: &str) -> bool {
    let name = host.trim_end_matches('.').as_bytes();
    name.len().checked_sub(end.len()).is_some_and(|at| name[at..].eq_ignore_ascii_case(end.as_bytes()))
}

/// The origin of a request, as its browser reports it.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestOrigin {
    /// A permitted page, with its origin.
    Page(HeaderValue),
    /// A page that is not permitted, with a description.
    Foreign(String),
    NoPage,
}

/// The origin `null`, of a page from a file or a sandbox, is not local: it may be any page.
fn is_local(origin: &str) -> bool {
    let Some(host) = host_of_origin(origin) else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

fn host_of_origin(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, place)| without_port(place))
}

/// An IPv6 address keeps its brackets.
fn without_port(place: &str) -> &str {
    match place.find(']') {
        Some(end) => &place[..=end],
        None => place.rsplit_once(':').map_or(place, |(host, _)| host),
    }
}

/// The host name of a request; empty if it has none, which no browser sends.
pub fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    match uri.authority() {
        Some(authority) => authority.host(),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()).map_or("", without_port),
    }
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
    fn a_name_that_somebody_elsewhere_can_have_is_known_where_it_is_configured() {
        let (local, these) = (Origins::of(&[], false), Origins::of(&["https://Shop.example:8443".into()], false));
        for near in ["", "localhost", "127.0.0.1", "[::1]", "10.1.2.3", "whimbrel", "box.local", "a.b.Internal."] {
            assert!(local.permits_host(near) && these.permits_host(near), "{near}");
        }
        for foreign in ["evil.example", "127.0.0.1.evil.example", "local.example", "xlocal.example."] {
            assert!(!local.permits_host(foreign) && !these.permits_host(foreign), "{foreign}");
            assert!(Origins::of(&["*".into()], false).permits_host(foreign));
        }
        assert!(
            !local.permits_host("shop.example")
                && these.permits_host("shop.EXAMPLE")
                && these.permits_host("shop.example.")
        );
    }

    #[test]
    fn the_name_that_was_asked_under_is_without_its_port() {
        for (said, name) in [("a.example:7600", "a.example"), ("a.example", "a.example"), ("[::1]:7600", "[::1]")] {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(said))]);
            assert_eq!(host_of(&Uri::from_static("/v1/topics"), &headers), name);
            let uri = Uri::try_from(format!("http://{said}/v1/topics")).unwrap();
            assert_eq!(host_of(&uri, &HeaderMap::new()), name);
        }
    }

    #[test]
    fn what_is_configured_is_what_counts() {
        let origins = Origins::of(&["https://Shop.example".into(), "null".into()], true);
        assert!(origins.allow("https://shop.example") && origins.allow("null"));
        assert!(!origins.allow("http://localhost"));
        assert!(Origins::of(&["*".into()], false).allow("https://evil.example"));
    }
}
