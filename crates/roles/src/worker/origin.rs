//! Where a URL leads: scheme, host and port, and the connections to it that wait for the next call.
//!
//! Connections are kept by thread and by target and never shared: what one subscriber does to its own is nobody else's matter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use rustls::pki_types::ServerName;
use tokio::time::{Instant, sleep};

use super::limits::{IDLE_CONNECTION_FOR, IDLE_CONNECTIONS_MAX, URL_BYTES_MAX};
use super::lookup::Names;

/// A connection, ready or about to be.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// A URL that cannot be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` cannot be called: {why}")]
pub struct BadUrl {
    pub url: String,
    pub why: &'static str,
}

/// Whether a URL can be called.
pub fn check_url(url: &str) -> Result<(), BadUrl> {
    Place::parse(url).map(drop)
}

/// The host in a URL that can be called, for [`super::AddressGuard::check_host`].
pub fn host_of(url: &str) -> Result<String, BadUrl> {
    Ok(Place::parse(url)?.host.into())
}

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) is_tls: bool,
    /// Without brackets.
    pub(super) host: Box<str>,
    pub(super) port: u16,
    /// What the header `host` says.
    pub(super) authority: HeaderValue,
    /// What stands in the first line of a request.
    pub(super) path: PathAndQuery,
}

impl Place {
    pub(super) fn parse(url: &str) -> Result<Self, BadUrl> {
        let bad = |why| BadUrl { url: url.chars().take(200).collect(), why };
        if url.len() > URL_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        // A fragment is the caller's own matter and never sent.
        let called = url.split('#').next().unwrap_or_default();
        let uri: Uri = called.parse().map_err(|_| bad("it is not a URL"))?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(bad("it does not begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("a user in it is not sent: put an Authorization header into the endpoint's headers"));
        }
        let bracketed = authority.host();
        let host = bracketed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(bracketed);
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        // `port_u16` is `None` for one that is no number, too.
        let after_host = &authority.as_str()[bracketed.len()..];
        let port = match (after_host, authority.port_u16()) {
            ("" | ":", _) => 80 + 363 * u16::from(is_tls),
            (_, Some(port)) if port > 0 => port,
            _ => return Err(bad("its port is none")),
        };
        let is_usual = port == if is_tls { 443 } else { 80 };
        let text = if is_usual { bracketed.to_owned() } else { format!("{bracketed}:{port}") };
        let authority = HeaderValue::from_str(&text).map_err(|_| bad("its host is none"))?;
        if is_tls && ServerName::try_from(host).is_err() {
            return Err(bad("its host cannot be the name on a certificate"));
        }
        let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(Self { is_tls, host: host.into(), port, authority, path })
    }
}

/// Connections of one thread to one place.
pub(super) struct Origin {
    pub(super) is_tls: bool,
    pub(super) host: Box<str>,
    pub(super) port: u16,
    /// Header names as `X-Kmq-Topic` and not `x-kmq-topic`: for receivers that compare them by the letter.
    pub(super) has_title_case: bool,
    pub(super) names: Names,
    idle: Mutex<Vec<Idle>>,
    /// Whether a task closes what has waited too long.
    is_swept: AtomicBool,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

impl Origin {
    pub(super) fn new(place: &Place, has_title_case: bool) -> Self {
        Self::with_names(place, has_title_case, Names::new(false))
    }

    /// A place that a message brought itself.
    pub(super) fn brought(place: &Place) -> Self {
        Self::with_names(place, false, Names::new(true))
    }

    fn with_names(place: &Place, has_title_case: bool, names: Names) -> Self {
        let Place { is_tls, host, port, .. } = place;
        let (host, idle, is_swept) = (host.clone(), Mutex::default(), AtomicBool::new(false));
        Self { is_tls: *is_tls, host, port: *port, has_title_case, names, idle, is_swept }
    }

    /// The connection that was used last, so that those of a busier hour grow old.
    pub(super) fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle();
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            if idle[at].sender.is_closed() {
                idle.swap_remove(at);
            } else if idle[at].sender.is_ready() {
                return Some(idle.remove(at).sender);
            }
        }
        None
    }

    pub(super) fn put_idle(self: &Arc<Self>, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(Idle { sender, since: Instant::now() });
        }
        drop(idle);
        if !self.is_swept.load(Ordering::Relaxed) && !self.is_swept.swap(true, Ordering::Relaxed) {
            tokio::spawn(keep_swept(Arc::downgrade(self)));
        }
    }

    /// Closes what has waited too long, and says whether anything is left.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let is_fresh = |idle: &Idle| !idle.sender.is_closed() && now - idle.since < IDLE_CONNECTION_FOR;
        let mut idle = self.idle();
        idle.retain(is_fresh);
        if idle.is_empty() {
            self.is_swept.store(false, Ordering::Relaxed);
        }
        !idle.is_empty()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs for as long as connections wait, so that an endpoint that is called no more is left alone.
async fn keep_swept(origin: Weak<Origin>) {
    loop {
        sleep(IDLE_CONNECTION_FOR).await;
        if !origin.upgrade().is_some_and(|origin| origin.sweep()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let place = Place::parse("https://Hooks.example.com/a/b?c=d#e").unwrap();
        assert!(place.is_tls);
        assert_eq!((&*place.host, place.port, place.path.as_str()), ("Hooks.example.com", 443, "/a/b?c=d"));
        assert_eq!(place.authority, "Hooks.example.com");
        let place = Place::parse("http://127.0.0.1:9000").unwrap();
        assert_eq!((&*place.host, place.port, place.path.as_str()), ("127.0.0.1", 9000, "/"));
        assert_eq!(place.authority, "127.0.0.1:9000");
        let place = Place::parse("http://[::1]:80/x").unwrap();
        assert_eq!((&*place.host, place.port), ("::1", 80));
        assert_eq!(place.authority, "[::1]");
    }

    #[test]
    fn what_cannot_be_called_is_told() {
        let long = format!("http://a/{}", "x".repeat(URL_BYTES_MAX));
        for url in [
            "",
            "/hook",
            "hook",
            "ftp://a/",
            "http://",
            "http:///x",
            "http://a b/",
            "http://user:secret@a/",
            "http://a:0/",
            "http://a:99999/",
            "http://a:x/",
            "https://a_b!/",
            &long,
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }
}
