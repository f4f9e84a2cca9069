//! Which web pages may ask, and under which names: what [`super::guard`] decides by.
//!
//! A browser lets any page open a WebSocket or post a form to any place, this machine's own ports included, and only says where the page is
//! from (`Origin`). So without this a page of somebody else's that is open in the operator's browser could be anybody, or push to anybody, on
//! a server that takes this machine at its word.
//!
//! A `Host` that is the same as the origin proves nothing: a name of somebody else's that was made to lead to this machine (DNS rebinding)
//! would be in both. To its browser such a page is of this server, and reads from it without an origin; so without API keys nothing is
//! answered under a name that somebody elsewhere can have. An image or a script of a page is fetched without an origin too; that it is of
//! another site browsers say (`Sec-Fetch-Site`). What is not a browser says neither, and is not judged; nor is other reading, whose
//! answers browsers keep from pages of elsewhere.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Uri};
use whimbrel_people::gateway::is_public_name;

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

    /// Whether a page asks, as its browser says, and whether that one may.
    pub fn judge(&self, headers: &HeaderMap) -> Judged {
        match headers.get(ORIGIN) {
            Some(origin) if self.allow(origin.to_str().unwrap_or_default()) => Judged::Page(origin.clone()),
            Some(origin) => Judged::Foreign(format!("`{}`", origin.to_str().unwrap_or_default())),
            None if *self != Self::All && headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") => {
                Judged::Foreign("another site".to_owned())
            }
            None => Judged::NoPage,
        }
    }

    fn allow(&self, origin: &str) -> bool {
        match self {
            Self::All => true,
            Self::Local => is_local(origin),
            Self::These(these) => these.contains(&origin.to_ascii_lowercase()),
        }
    }

    /// Whether anything may be asked under that name.
    pub fn know(&self, host: &str) -> bool {
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

/// Ends of names that are given out within a network, and that nobody elsewhere can have.
const NEAR: [&str; 2] = [".local", ".internal"];

fn has_end(host: &str, end: &str) -> bool {
    let name = host.trim_end_matches('.').as_bytes();
    name.len().checked_sub(end.len()).is_some_and(|at| name[at..].eq_ignore_ascii_case(end.as_bytes()))
}

/// What a browser said of where a request is from.
#[derive(Debug, PartialEq, Eq)]
pub enum Judged {
    /// One that may, from there.
    Page(HeaderValue),
    /// One that may not, in words.
    Foreign(String),
    NoPage,
}

/// A page from a file, or one in a sandbox, is from `null`: it may be anybody's, and is not local.
fn is_local(origin: &str) -> bool {
    let Some(host) = host_of_origin(origin) else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

fn host_of_origin(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, place)| without_port(place))
}

/// An address of version 6 keeps its brackets.
fn without_port(place: &str) -> &str {
    match place.find(']') {
        Some(end) => &place[..=end],
        None => place.rsplit_once(':').map_or(place, |(host, _)| host),
    }
}

/// The name that the server was asked under; empty where none was said, which browsers do not do.
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
            assert!(local.know(near) && these.know(near), "{near}");
        }
        for foreign in ["evil.example", "127.0.0.1.evil.example", "local.example", "xlocal.example."] {
            assert!(!local.know(foreign) && !these.know(foreign), "{foreign}");
            assert!(Origins::of(&["*".into()], false).know(foreign));
        }
        assert!(!local.know("shop.example") && these.know("shop.EXAMPLE") && these.know("shop.example."));
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
