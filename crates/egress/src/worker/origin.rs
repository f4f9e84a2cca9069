//! Connections of one thread to one scheme, host and port, kept for the next call.
//!
//! Connections are never shared between threads or targets, so that one endpoint cannot affect the connections of another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tokio::time::{Instant, sleep};

use whimbrel_api::endpoint::EndpointUrl;

use super::limits::{IDLE_CONNECTION_FOR, IDLE_CONNECTIONS_MAX};
use super::lookup::Names;

/// A connection, ready or about to be.
pub(super) type Sender = SendRequest<Full<Bytes>>;

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
    pub(super) fn new(place: &EndpointUrl, has_title_case: bool) -> Self {
        Self::with_names(place, has_title_case, Names::new(false))
    }

    /// A place that a message brought itself.
    pub(super) fn brought(place: &EndpointUrl) -> Self {
        Self::with_names(place, false, Names::new(true))
    }

    fn with_names(place: &EndpointUrl, has_title_case: bool, names: Names) -> Self {
        let EndpointUrl { is_tls, host, port, .. } = place;
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
