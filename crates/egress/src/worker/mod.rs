//! The role `worker`: makes the HTTP callbacks and reports the outcome of each.
//!
//! A [`Worker`] is stateless: a `Call` contains all that it needs. It neither interprets a status nor retries. Each calling thread has its
//! own connections, per target ([`thread_state`]), so that no call waits for a lock or moves between threads.
//!
//! A call passes [`prepared_target`] (once per target and thread), [`envelope`] and [`signature`], [`dialer`] with its
//! [`AddressGuard`](whimbrel_api::endpoint::AddressGuard), and [`response`]. If several nodes have workers, [`pool`] selects one for each
//! call by a [`strategy`], and [`service`] serves the calls of other nodes.

mod cloud_event;
mod dialer;
mod envelope;
mod failed_call;
mod header_names;
mod limits;
mod load_sampler;
pub mod metrics;
mod origin_pool;
mod own_callback;
pub mod pool;
mod prepared_target;
mod remote_call;
mod resolver;
mod response;
pub mod service;
mod settings;
mod signature;
pub mod strategy;
mod thread_state;
mod worker_set;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::timeout_at;
use whimbrel_model::Clock;
use whimbrel_model::ports::{ANSWER_KEPT_BYTES, Call, CallFailure, CallOutcome, CallReport, Callbacks, PortFuture};

use self::metrics::WorkerMetrics;
use dialer::CallbackDialer;
use failed_call::FailedCall;
use limits::{ANSWER_READ_BYTES_MAX, OWN_TIMEOUT_MAX, STALE_CONNECTIONS_MAX, SUCCESS_BODY_WITHIN};
use load_sampler::LoadSampler;
use origin_pool::RequestSender;
use own_callback::OwnCallbackRequest;
use prepared_target::{PreparedTarget, RequestTarget};
use response::BodyReader;
use strategy::WorkerLoad;

pub use self::metrics::NAMES as METRIC_NAMES;

pub use pool::{PoolParts, WorkerPool};
pub use service::{LocalCallbacks, workers_service};
pub use settings::{WorkerError, WorkerSettings};

pub use worker_set::WORKER_ROLE;

pub(crate) use dialer::client_tls;
pub(crate) use header_names::{WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
pub(crate) use remote_call::{NoOutcome, call_remote, target_bytes};
pub(crate) use response::retry_after;
pub(crate) use signature::Signers;

/// Makes callbacks from this process. Clones share its state.
#[derive(Clone)]
pub struct Worker {
    core: Arc<WorkerCore>,
}

/// The state that the threads of a worker share.
struct WorkerCore {
    dialer: CallbackDialer,
    connect_timeout: Duration,
    /// The time of signatures, and of `Retry-After` headers with a date.
    clock: Arc<dyn Clock>,
    in_flight: AtomicU64,
    sampler: LoadSampler,
    metrics: WorkerMetrics,
}

impl Worker {
    /// The metrics recorder must be installed first; otherwise nothing is counted.
    pub fn new(settings: WorkerSettings) -> Result<Self, WorkerError> {
        let dialer = CallbackDialer::new(settings.guard, &settings.extra_roots_pem).map_err(WorkerError)?;
        let (in_flight, sampler, metrics) = (AtomicU64::new(0), LoadSampler::new(), WorkerMetrics::new());
        let (connect_timeout, clock) = (settings.connect_timeout, settings.clock);
        let core = WorkerCore { dialer, connect_timeout, clock, in_flight, sampler, metrics };
        Ok(Self { core: Arc::new(core) })
    }

    /// Calls in progress on all threads.
    pub fn in_flight(&self) -> u64 {
        self.core.in_flight.load(Ordering::Relaxed)
    }

    pub fn load(&self) -> WorkerLoad {
        let (cpu, memory) = self.core.sampler.parts();
        WorkerLoad { in_flight: self.in_flight(), cpu, memory }
    }
}

impl Callbacks for Worker {
    fn call(&self, call: Call) -> PortFuture<'_, CallReport> {
        Box::pin(async move {
            let began = Instant::now();
            let _flight = InFlightGuard::begin(&self.core);
            let outcome = match exchange(&self.core, &call, began).await {
                Ok(answered) => answered,
                Err(FailedCall { why, detail }) => CallOutcome::Failed { why, detail },
            };
            let called = CallReport { outcome, took: began.elapsed() };
            self.core.metrics.ended(&called);
            called
        })
    }
}

/// Counts a call as under way until it has ended or was dropped.
struct InFlightGuard<'a> {
    core: &'a WorkerCore,
}

impl<'a> InFlightGuard<'a> {
    fn begin(core: &'a WorkerCore) -> Self {
        core.in_flight.fetch_add(1, Ordering::Relaxed);
        core.metrics.in_flight.increment(1.0);
        Self { core }
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.core.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.core.metrics.in_flight.decrement(1.0);
    }
}

/// Makes the call within its timeout.
async fn exchange(core: &Arc<WorkerCore>, call: &Call, began: Instant) -> Result<CallOutcome, FailedCall> {
    let prepared = thread_state::prepared(core, &call.target, began)?;
    let own_timeout = call.rule.as_ref().and_then(|rule| rule.timeout_ms).map(Duration::from_millis);
    let timeout = own_timeout.map_or(prepared.timeout, |own| own.min(OWN_TIMEOUT_MAX));
    let deadline = (began + timeout).into();
    let (destination, request) = request_of(core, call, &prepared, began)?;

    let connect_within = prepared.connect_timeout.unwrap_or(core.connect_timeout).min(timeout);
    let sent = timeout_at(deadline, send(core, &destination, request, connect_within)).await;
    let late = |_| FailedCall::new(CallFailure::Timeout, format!("no response within {timeout:?}"));
    let (sender, response) = sent.map_err(late)??;

    let (head, body) = response.into_parts();
    let status = head.status;
    // A callback that the message names reports success in its body; the dispatcher interprets it.
    let body_counts = prepared.destination.is_none();
    let mut reading = BodyReader::new(match (body_counts, status.is_success()) {
        (true, true) => ANSWER_READ_BYTES_MAX,
        (false, true) => 0,
        (_, false) => ANSWER_KEPT_BYTES,
    });
    if body.is_end_stream() {
        reading.is_whole = true;
    } else {
        let patience = tokio::time::Instant::now() + SUCCESS_BODY_WITHIN;
        let until = if status.is_success() && !body_counts { deadline.min(patience) } else { deadline };
        // The status has arrived. If the rest of the body is late, only the stored response is incomplete.
        let _ = timeout_at(until, reading.read(body)).await;
    }
    if reading.is_whole {
        destination.origin.put_idle(sender);
    }
    let retry_after = if status.is_success() { None } else { retry_after(&head.headers, core.clock.now()) };
    Ok(CallOutcome::Answered { status: status.as_u16(), retry_after, answer: reading.into_kept() })
}

fn request_of(
    core: &Arc<WorkerCore>,
    call: &Call,
    prepared: &PreparedTarget,
    now: Instant,
) -> Result<(RequestTarget, Request<Full<Bytes>>), FailedCall> {
    let envelope::OutboundRequest { mut headers, mut body } = envelope::write(call, prepared, core.clock.now());
    let mut method = Method::POST;
    let own = call.rule.as_ref().and_then(|rule| rule.callback.as_ref());
    // A subscription with an endpoint is called only there. Its headers and signatures are meant for that endpoint, and a publisher must
    // not be able to redirect them.
    let destination = match (&prepared.destination, own) {
        (Some(destination), _) => destination.clone(),
        (None, Some(own)) => {
            let way = OwnCallbackRequest::of(own, &call.record.value)?;
            if way.method == Method::GET {
                // A GET has no body, so it needs no content type and no signature.
                headers.remove(CONTENT_TYPE);
                headers.remove(header_names::WEBHOOK_SIGNATURE);
                body = Bytes::new();
            }
            method = way.method;
            thread_state::own_destination(core, way.place, now)
        }
        (None, None) => {
            let detail = "neither the subscription nor the message has a URL";
            return Err(FailedCall::new(CallFailure::BadTarget, detail));
        }
    };
    headers.insert(HOST, destination.authority.clone());
    if body.is_empty() && method != Method::GET {
        // Some receivers require a length.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from(destination.path.clone());
    *request.headers_mut() = headers;
    Ok((destination, request))
}

/// Sends the request on an idle connection, or on a new one. If an idle connection turns out to be closed, it is skipped, but only if no
/// part of the request was sent: the retry must not deliver a message twice.
async fn send(
    core: &WorkerCore,
    destination: &RequestTarget,
    mut request: Request<Full<Bytes>>,
    connect_within: Duration,
) -> Result<(RequestSender, Response<Incoming>), FailedCall> {
    let origin = &*destination.origin;
    let mut stale = 0;
    loop {
        let kept = if stale < STALE_CONNECTIONS_MAX { origin.take_idle() } else { None };
        let is_kept = kept.is_some();
        let mut sender = match kept {
            Some(sender) => sender,
            None => {
                let sender = core.dialer.dial(origin, connect_within).await?;
                core.metrics.connections_opened.increment(1);
                sender
            }
        };
        let mut error = match sender.try_send_request(request).await {
            Ok(response) => return Ok((sender, response)),
            Err(error) => error,
        };
        request = match error.take_message() {
            Some(unsent) if is_kept => unsent,
            _ => return Err(FailedCall::broken(error.error())),
        };
        stale += 1;
    }
}
