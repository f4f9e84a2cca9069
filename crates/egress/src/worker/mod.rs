//! The role `worker`: makes the HTTP callbacks, and says how each went.
//!
//! A [`Worker`] is stateless: what it is given in a `Call` is all that it knows of a message, and it neither judges a status nor tries again.
//! Each thread that calls it has connections of its own ([`thread`]), by target, so that no call waits for a lock or crosses threads.
//!
//! In the order of a call: [`prepared`] (once per target and thread), [`envelope`] and [`signature`], [`dial`] with its [`AddressGuard`](whimbrel_api::endpoint::AddressGuard),
//! [`answer`].
//!
//! Where several processes have workers, [`pool`] picks one for each call by a [`strategy`], and [`service`] answers for this process.

mod answer;
mod dial;
mod envelope;
mod failure;
pub mod figures;
mod handing;
mod limits;
mod load;
mod lookup;
mod names;
mod origin;
mod own_callback;
pub mod pool;
mod prepared;
pub mod service;
mod settings;
mod signature;
pub mod strategy;
mod structured;
mod team;
mod thread;
mod wire;

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
use whimbrel_model::ports::{ANSWER_KEPT_BYTES, Call, CallFailure, CallOutcome, Callbacks, Called, PortFuture};

use answer::Reading;
use dial::Dialer;
use failure::Failure;
use figures::WorkerFigures;
use limits::{ANSWER_READ_BYTES_MAX, OWN_TIMEOUT_MAX, STALE_CONNECTIONS_MAX, SUCCESS_BODY_WITHIN};
use load::Sampler;
use origin::Sender;
use own_callback::OwnWay;
use prepared::{Destination, Prepared};
use strategy::Load;

pub use figures::NAMES as METRIC_NAMES;

pub use pool::{PoolParts, WorkerPool};
pub use service::{CallDesks, WorkersDoor, workers_service};
pub use settings::{WorkerError, WorkerSettings};

pub use team::WORKER_ROLE;

pub(crate) use answer::retry_after;
pub(crate) use dial::client_tls;
pub(crate) use handing::{Silence, hand_over};
pub(crate) use names::{WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
pub(crate) use signature::Signers;
pub(crate) use wire::target_bytes;

/// Makes callbacks from this process. Cloning shares it.
#[derive(Clone)]
pub struct Worker {
    core: Arc<WorkerCore>,
}

/// What the threads of a worker share.
struct WorkerCore {
    dialer: Dialer,
    connect_timeout: Duration,
    /// Dates signatures, and tells how long a `Retry-After` with a date is.
    clock: Arc<dyn Clock>,
    in_flight: AtomicU64,
    sampler: Sampler,
    figures: WorkerFigures,
}

impl Worker {
    /// A recorder of metrics must be installed before, or nothing is counted.
    pub fn new(settings: WorkerSettings) -> Result<Self, WorkerError> {
        let dialer = Dialer::new(settings.guard, &settings.extra_roots_pem).map_err(WorkerError)?;
        let (in_flight, sampler, figures) = (AtomicU64::new(0), Sampler::new(), WorkerFigures::new());
        let (connect_timeout, clock) = (settings.connect_timeout, settings.clock);
        let core = WorkerCore { dialer, connect_timeout, clock, in_flight, sampler, figures };
        Ok(Self { core: Arc::new(core) })
    }

    /// Calls under way on all threads.
    pub fn in_flight(&self) -> u64 {
        self.core.in_flight.load(Ordering::Relaxed)
    }

    /// How much it has to do.
    pub fn load(&self) -> Load {
        let (cpu, memory) = self.core.sampler.parts();
        Load { in_flight: self.in_flight(), cpu, memory }
    }
}

impl Callbacks for Worker {
    fn call(&self, call: Call) -> PortFuture<'_, Called> {
        Box::pin(async move {
            let began = Instant::now();
            let _flight = Flight::begin(&self.core);
            let outcome = match exchange(&self.core, &call, began).await {
                Ok(answered) => answered,
                Err(Failure { why, detail }) => CallOutcome::Failed { why, detail },
            };
            let called = Called { outcome, took: began.elapsed() };
            self.core.figures.ended(&called);
            called
        })
    }
}

/// Counts a call as under way until it has ended or was dropped.
struct Flight<'a> {
    core: &'a WorkerCore,
}

impl<'a> Flight<'a> {
    fn begin(core: &'a WorkerCore) -> Self {
        core.in_flight.fetch_add(1, Ordering::Relaxed);
        core.figures.in_flight.increment(1.0);
        Self { core }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.core.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.core.figures.in_flight.decrement(1.0);
    }
}

/// The whole call, within its time.
async fn exchange(core: &Arc<WorkerCore>, call: &Call, began: Instant) -> Result<CallOutcome, Failure> {
    let prepared = thread::prepared(core, &call.target, began)?;
    let own_timeout = call.rule.as_ref().and_then(|rule| rule.timeout_ms).map(Duration::from_millis);
    let timeout = own_timeout.map_or(prepared.timeout, |own| own.min(OWN_TIMEOUT_MAX));
    let deadline = (began + timeout).into();
    let (destination, request) = request_of(core, call, &prepared, began)?;

    let connect_within = prepared.connect_timeout.unwrap_or(core.connect_timeout).min(timeout);
    let sent = timeout_at(deadline, send(core, &destination, request, connect_within)).await;
    let late = |_| Failure::new(CallFailure::Timeout, format!("no answer within {timeout:?}"));
    let (sender, response) = sent.map_err(late)??;

    let (head, body) = response.into_parts();
    let status = head.status;
    // The endpoint of a callback that the message brought reports success in the body, see `center::dispatch::judge`.
    let body_counts = prepared.destination.is_none();
    let mut reading = Reading::new(match (body_counts, status.is_success()) {
        (true, true) => ANSWER_READ_BYTES_MAX,
        (false, true) => 0,
        (_, false) => ANSWER_KEPT_BYTES,
    });
    if body.is_end_stream() {
        reading.is_whole = true;
    } else {
        let patience = tokio::time::Instant::now() + SUCCESS_BODY_WITHIN;
        let until = if status.is_success() && !body_counts { deadline.min(patience) } else { deadline };
        // The status has come: what is missing of the body when the time is over is only missing from the record.
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
    prepared: &Prepared,
    now: Instant,
) -> Result<(Destination, Request<Full<Bytes>>), Failure> {
    let envelope::Letter { mut headers, mut body } = envelope::write(call, prepared, core.clock.now());
    let mut method = Method::POST;
    let own = call.rule.as_ref().and_then(|rule| rule.callback.as_ref());
    // A subscription that says where it is called is called nowhere else: its headers and signatures are for that place, and whoever
    // may publish must not be able to send them to another.
    let destination = match (&prepared.destination, own) {
        (Some(destination), _) => destination.clone(),
        (None, Some(own)) => {
            let way = OwnWay::of(own, &call.record.value)?;
            if way.method == Method::GET {
                // There is no body whose type could be told, and none that was signed.
                headers.remove(CONTENT_TYPE);
                headers.remove(names::WEBHOOK_SIGNATURE);
                body = Bytes::new();
            }
            method = way.method;
            thread::own_destination(core, way.place, now)
        }
        (None, None) => {
            let detail = "neither the subscription nor the message says where to call";
            return Err(Failure::new(CallFailure::BadTarget, detail));
        }
    };
    headers.insert(HOST, destination.authority.clone());
    if body.is_empty() && method != Method::GET {
        // A receiver may well ask how long the body is before it looks at it.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from(destination.path.clone());
    *request.headers_mut() = headers;
    Ok((destination, request))
}

/// Sends on a connection that is kept, or on a new one. A kept one that the other side has closed is passed over, but only where it is
/// certain that nothing of the request was sent: a subscriber shall not have a message twice because of us.
async fn send(
    core: &WorkerCore,
    destination: &Destination,
    mut request: Request<Full<Bytes>>,
    connect_within: Duration,
) -> Result<(Sender, Response<Incoming>), Failure> {
    let origin = &*destination.origin;
    let mut stale = 0;
    loop {
        let kept = if stale < STALE_CONNECTIONS_MAX { origin.take_idle() } else { None };
        let is_kept = kept.is_some();
        let mut sender = match kept {
            Some(sender) => sender,
            None => {
                let sender = core.dialer.dial(origin, connect_within).await?;
                core.figures.connections_opened.increment(1);
                sender
            }
        };
        let mut error = match sender.try_send_request(request).await {
            Ok(response) => return Ok((sender, response)),
            Err(error) => error,
        };
        request = match error.take_message() {
            Some(unsent) if is_kept => unsent,
            _ => return Err(Failure::broken(error.error())),
        };
        stale += 1;
    }
}
