//! The connections of one thread to one scheme, host and port, kept for later calls.
//!
//! Threads and targets never share connections, so that one endpoint cannot affect the connections of another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tokio::time::{Instant, sleep};

use whimbrel_api::endpoint::EndpointUrl;

use super::limits::{IDLE_CONNECTION_FOR, IDLE_CONNECTIONS_MAX};
use super::resolver::Resolver;

/// The sending half of an HTTP/1.1 connection.
pub(super) type RequestSender = SendRequest<Full<Bytes>>;

/// One origin of one target on one thread.
pub(super) struct OriginPool {
    pub(super) is_tls: bool,
    pub(super) host: Box<str>,
    pub(super) port: u16,
    /// Sends header names as `X-Kmq-Topic`, not `x-kmq-topic`, for receivers that compare them case-sensitively.
    pub(super) has_title_case: bool,
    pub(super) names: Resolver,
    idle: Mutex<Vec<Idle>>,
    /// Whether a task is running that closes connections after [`IDLE_CONNECTION_FOR`].
    is_swept: AtomicBool,
}

struct Idle {
    sender: RequestSender,
    since: Instant,
}

impl OriginPool {
    pub(super) fn new(place: &EndpointUrl, has_title_case: bool) -> Self {
        Self::with_names(place, has_title_case, Resolver::new(false))
    }

    /// The origin of a callback that a message names.
    pub(super) fn brought(place: &EndpointUrl) -> Self {
        Self::with_names(place, false, Resolver::new(true))
    }

    fn with_names(place: &EndpointUrl, has_title_case: bool, names: Resolver) -> Self {
        let EndpointUrl { is_tls, host, port, .. } = place;
        let (host, idle, is_swept) = (host.clone(), Mutex::default(), AtomicBool::new(false));
        Self { is_tls: *is_tls, host, port: *port, has_title_case, names, idle, is_swept }
    }

    /// Takes the most recently used connection, so that surplus connections become idle and are closed.
    pub(super) fn take_idle(&self) -> Option<RequestSender> {
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

    pub(super) fn put_idle(self: &Arc<Self>, sender: RequestSender) {
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

    /// Closes connections that have been idle too long. Returns whether any are left.
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

/// Runs while there are idle connections, so that the connections of an unused endpoint are closed.
async fn keep_swept(origin: Weak<OriginPool>) {
    loop {
        sleep(IDLE_CONNECTION_FOR).await;
        if !origin.upgrade().is_some_and(|origin| origin.sweep()) {
            return;
        }
    }
}
