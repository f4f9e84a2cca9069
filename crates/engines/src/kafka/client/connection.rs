//! One connection to one broker. The answers come in the order of the requests.
//!
//! Two tasks on the engine's runtime own the socket, one per direction. A call only hands bytes to them and waits for its answer, so a
//! dropped caller never leaves half a request on the wire. A call that has no answer within its timeout closes the connection: a late
//! answer could be taken for the answer to a later request. The timeout counts from the last byte that was transferred for the call, so
//! that it does not limit the size of a request or an answer; an overall bound does.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::cluster::ANSWER_MAX;

/// The maximum number of requests in the queue of the socket. Callers limit their own requests; this limit guards against bugs.
const REQUESTS_WAITING_MAX: usize = 256;
/// The largest answer that is read. Fetches request far less, so a larger length is invalid.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// The newest version of each request that this client supports. Later versions of `Produce`, `EndTxn` and `AddPartitionsToTxn` change
/// the transaction protocol (see `fence/mod.rs`), later versions of `Fetch` and `Produce` name topics by id.
const API_VERSION_MAX: &[(i16, i16)] = &[
    (0, 11), // Produce
    (1, 12), // Fetch
    (2, 7),  // ListOffsets
    (3, 12), // Metadata
    (10, 3), // FindCoordinator
    (17, 1), // SaslHandshake
    (18, 3), // ApiVersions
    (19, 7), // CreateTopics
    (20, 6), // DeleteTopics
    (21, 2), // DeleteRecords
    (22, 4), // InitProducerId
    (24, 3), // AddPartitionsToTxn
    (26, 4), // EndTxn
    (27, 1), // WriteTxnMarkers
    (32, 4), // DescribeConfigs
    (36, 2), // SaslAuthenticate
    (37, 3), // CreatePartitions
    (44, 1), // IncrementalAlterConfigs
    (61, 0), // DescribeProducers
    (65, 0), // DescribeTransactions
];

/// The reason why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// No byte of the request reached the socket.
    #[error("{0}")]
    NotSent(String),
    /// The broker may have acted on the request.
    #[error("no answer: {0}")]
    NoAnswer(String),
}

impl CallError {
    pub fn may_have_been_received(&self) -> bool {
        matches!(self, Self::NoAnswer(_))
    }
}

pub(crate) struct BrokerConnection {
    shared: Arc<ConnectionShared>,
    requests: mpsc::Sender<OutgoingRequest>,
    versions: HashMap<i16, (i16, i16)>,
    client_id: StrBytes,
    correlation: AtomicI32,
}

struct ConnectionShared {
    pending: Mutex<PendingCalls>,
    /// The last time at which bytes of any request were written, and of any answer were read.
    written_at: Mutex<Instant>,
    read_at: Mutex<Instant>,
    /// Wakes both tasks when the connection is closed.
    closed: Notify,
}

#[derive(Default)]
struct PendingCalls {
    answers: VecDeque<WaitingCall>,
    /// The reason why the connection is closed.
    closed: Option<String>,
}

struct WaitingCall {
    correlation: i32,
    answer: oneshot::Sender<Result<Bytes, String>>,
}

struct OutgoingRequest {
    frame: Bytes,
    correlation: i32,
    sending: Arc<Mutex<SendProgress>>,
    answer: oneshot::Sender<Result<Bytes, String>>,
}

/// The progress of writing a request to the socket.
#[derive(Debug, Clone, Copy)]
enum SendProgress {
    Waiting,
    Begun,
    /// All of it, since this time.
    Sent(Instant),
}

impl BrokerConnection {
    /// Takes over a socket. Spawns the two tasks on the current runtime.
    pub fn start<S>(socket: S, client_id: &str) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reading, writing) = tokio::io::split(socket);
        let (requests, waiting) = mpsc::channel(REQUESTS_WAITING_MAX);
        let (pending, now) = (Mutex::default(), Instant::now());
        let (written_at, read_at) = (Mutex::new(now), Mutex::new(now));
        let shared = Arc::new(ConnectionShared { pending, written_at, read_at, closed: Notify::new() });
        tokio::spawn(write_requests(writing, waiting, shared.clone()));
        tokio::spawn(read_answers(reading, shared.clone()));
        Self {
            shared,
            requests,
            versions: HashMap::new(),
            client_id: StrBytes::from_string(client_id.to_owned()),
            correlation: AtomicI32::new(0),
        }
    }

    /// Requests the versions that the broker supports. Must be the first call.
    pub async fn learn_versions(&mut self, timeout: Duration) -> Result<(), CallError> {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("whimbrel"))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        let answer = self.call_version(&request, 3, CallLimits { timeout, overall: timeout }).await?;
        match ResponseError::try_from_code(answer.error_code) {
            // An older broker answers in version 0. Its answer has the ranges of versions too.
            None | Some(ResponseError::UnsupportedVersion) => {}
            Some(code) => return Err(CallError::NotSent(format!("ApiVersions failed: {code}"))),
        }
        self.versions = answer.api_keys.iter().map(|key| (key.api_key, (key.min_version, key.max_version))).collect();
        Ok(())
    }

    pub fn is_closed(&self) -> bool {
        self.shared.pending().closed.is_some()
    }

    /// Sends a request in the newest version that both sides support. Fails after `timeout`.
    pub async fn call<R: Request>(&self, request: &R, timeout: Duration) -> Result<R::Response, CallError> {
        self.call_within(request, timeout, timeout).await
    }

    /// Sends a request that is large, or has a large answer. Fails if no byte is transferred for it in `timeout`, and after `overall`.
    pub async fn call_within<R: Request>(
        &self,
        request: &R,
        timeout: Duration,
        overall: Duration,
    ) -> Result<R::Response, CallError> {
        let version = self.version_of(R::KEY)?;
        self.call_version(request, version, CallLimits { timeout, overall: overall.max(timeout) }).await
    }

    /// Whether both sides support the request.
    pub fn supports(&self, key: i16) -> bool {
        self.version_of(key).is_ok()
    }

    fn version_of(&self, key: i16) -> Result<i16, CallError> {
        let own_max = API_VERSION_MAX.iter().find(|(each, _)| *each == key).map_or(0, |(_, max)| *max);
        match self.versions.get(&key) {
            Some((min, max)) if *min <= own_max => Ok(own_max.min(*max)),
            Some((min, _)) => Err(CallError::NotSent(format!(
                "the broker supports {} from version {min}; Whimbrel supports up to version {own_max}",
                api_name(key)
            ))),
            None => Err(CallError::NotSent(format!("the broker does not support {} (API key {key})", api_name(key)))),
        }
    }

    async fn call_version<R: Request>(
        &self,
        request: &R,
        version: i16,
        limits: CallLimits,
    ) -> Result<R::Response, CallError> {
        let correlation = self.correlation.fetch_add(1, Ordering::Relaxed);
        let frame =
            self.encode(request, version, correlation).map_err(|error| CallError::NotSent(error.to_string()))?;
        let sending = Arc::new(Mutex::new(SendProgress::Waiting));
        let (answer, answered) = oneshot::channel();
        let outgoing = OutgoingRequest { frame, correlation, sending: sending.clone(), answer };
        let failed = |why: String| match *lock(&sending) {
            SendProgress::Waiting => CallError::NotSent(why),
            SendProgress::Begun | SendProgress::Sent(_) => CallError::NoAnswer(why),
        };
        let exchange = async {
            if self.requests.send(outgoing).await.is_err() {
                return Err(self.why_closed());
            }
            answered.await.unwrap_or_else(|_| Err(self.why_closed()))
        };
        let waited = tokio::select! {
            biased;
            exchanged = exchange => exchanged,
            why = self.time_out(&sending, limits) => {
                self.shared.close(&why);
                Err(why)
            }
        };
        let mut answer = waited.map_err(failed)?;
        let decoded = decode::<R>(&mut answer, version);
        decoded.map_err(|error| {
            let why = format!("cannot decode the answer: {error}");
            self.shared.close(&why);
            CallError::NoAnswer(why)
        })
    }

    /// Resolves with the reason when a call has had no progress for its timeout, or has reached its overall bound.
    async fn time_out(&self, sending: &Mutex<SendProgress>, limits: CallLimits) -> String {
        let began = Instant::now();
        let end = began + limits.overall;
        loop {
            let idle_until = self.progress_at(sending).max(began) + limits.timeout;
            let now = Instant::now();
            if idle_until <= now {
                return late_answer(limits.timeout);
            }
            if end <= now {
                return format!("the answer is not complete after {} ms", limits.overall.as_millis());
            }
            tokio::time::sleep_until(idle_until.min(end)).await;
        }
    }

    /// The time at which bytes were last transferred that this call depends on: its request and those before it, its answer and those
    /// before it. Requests after it do not count, since a broker that is frozen still takes them into the buffers of its socket.
    fn progress_at(&self, sending: &Mutex<SendProgress>) -> Instant {
        let written_at = match *lock(sending) {
            SendProgress::Sent(at) => at,
            SendProgress::Waiting | SendProgress::Begun => *lock(&self.shared.written_at),
        };
        written_at.max(*lock(&self.shared.read_at))
    }

    fn encode<R: Request>(&self, request: &R, version: i16, correlation: i32) -> Result<Bytes, DecodeError> {
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(correlation)
            .with_client_id(Some(self.client_id.clone()));
        let header_version = R::header_version(version);
        let (header_size, size) = (header.compute_size(header_version)?, request.compute_size(version)?);
        let mut frame = BytesMut::with_capacity(4 + header_size + size);
        let length = u32::try_from(header_size + size).unwrap_or(u32::MAX);
        frame.extend_from_slice(&length.to_be_bytes());
        header.encode(&mut frame, header_version)?;
        request.encode(&mut frame, version)?;
        Ok(frame.freeze())
    }

    fn why_closed(&self) -> String {
        self.shared.pending().closed.clone().unwrap_or_else(|| "the connection is closed".to_owned())
    }
}

impl Drop for BrokerConnection {
    fn drop(&mut self) {
        self.shared.close("the connection is no longer used");
    }
}

/// The reason of a call that has ended without an answer. A timeout below the usual one is the rest of the caller's own timeout. It does
/// not describe the broker, and the caller names its setting.
fn late_answer(timeout: Duration) -> String {
    if timeout < ANSWER_MAX {
        return "the broker has not answered before the timeout of the request".to_owned();
    }
    format!("the broker has not answered within {} ms", timeout.as_millis())
}

#[derive(Debug, Clone, Copy)]
struct CallLimits {
    /// Without progress.
    timeout: Duration,
    overall: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a request in Kafka's protocol, such as `IncrementalAlterConfigs`.
fn api_name(key: i16) -> String {
    ApiKey::try_from(key).map_or_else(|()| "an unknown request".to_owned(), |api| format!("{api:?}"))
}

/// The error type of the codec crate.
type DecodeError = Box<dyn std::error::Error + Send + Sync>;

fn decode<R: Request>(answer: &mut Bytes, version: i16) -> Result<R::Response, DecodeError> {
    // A broker that does not support our version of ApiVersions answers in version 0; its header never changes.
    ResponseHeader::decode(answer, R::Response::header_version(version))?;
    if R::KEY == ApiVersionsRequest::KEY && answer.get(..2) == Some(&35_i16.to_be_bytes()) {
        return Ok(R::Response::decode(answer, 0)?);
    }
    Ok(R::Response::decode(answer, version)?)
}

impl ConnectionShared {
    fn pending(&self) -> MutexGuard<'_, PendingCalls> {
        lock(&self.pending)
    }

    fn close(&self, why: &str) {
        let answers = {
            let mut pending = self.pending();
            pending.closed.get_or_insert_with(|| why.to_owned());
            std::mem::take(&mut pending.answers)
        };
        for waiting in answers {
            let _ = waiting.answer.send(Err(why.to_owned()));
        }
        self.closed.notify_waiters();
    }

    async fn wait_closed(&self) {
        let mut closed = std::pin::pin!(self.closed.notified());
        closed.as_mut().enable();
        if self.pending().closed.is_none() {
            closed.await;
        }
    }
}

async fn write_requests<W>(mut socket: W, mut waiting: mpsc::Receiver<OutgoingRequest>, shared: Arc<ConnectionShared>)
where
    W: AsyncWrite + Unpin,
{
    let writing = async {
        while let Some(outgoing) = waiting.recv().await {
            let OutgoingRequest { frame, correlation, sending, answer } = outgoing;
            {
                let mut pending = shared.pending();
                if let Some(why) = &pending.closed {
                    let _ = answer.send(Err(why.clone()));
                    continue;
                }
                *lock(&sending) = SendProgress::Begun;
                pending.answers.push_back(WaitingCall { correlation, answer });
            }
            match write_frame(&mut socket, &frame, &shared).await {
                Ok(()) => *lock(&sending) = SendProgress::Sent(Instant::now()),
                Err(error) => shared.close(&format!("connection lost: {error}")),
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = shared.wait_closed() => {}
    }
    let _ = tokio::time::timeout(Duration::from_millis(100), socket.shutdown()).await;
}

async fn write_frame<W: AsyncWrite + Unpin>(socket: &mut W, frame: &[u8], shared: &ConnectionShared) -> io::Result<()> {
    let mut rest = frame;
    while !rest.is_empty() {
        match socket.write(rest).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => rest = &rest[written..],
        }
        *lock(&shared.written_at) = Instant::now();
    }
    socket.flush().await
}

async fn read_answers<R>(mut socket: R, shared: Arc<ConnectionShared>)
where
    R: AsyncRead + Unpin,
{
    let reading = async {
        loop {
            match read_frame(&mut socket, || *lock(&shared.read_at) = Instant::now()).await {
                Ok(frame) => {
                    if let Err(why) = shared.answer(frame) {
                        return why;
                    }
                }
                Err(error) => return format!("connection lost: {error}"),
            }
        }
    };
    tokio::select! {
        why = reading => shared.close(&why),
        () = shared.wait_closed() => {}
    }
}

impl ConnectionShared {
    fn answer(&self, frame: Bytes) -> Result<(), String> {
        let waiting = self.pending().answers.pop_front();
        let correlation = frame.first_chunk::<4>().map(|bytes| i32::from_be_bytes(*bytes));
        match waiting {
            Some(waiting) if Some(waiting.correlation) == correlation => {
                let _ = waiting.answer.send(Ok(frame));
                Ok(())
            }
            Some(waiting) => {
                let got = correlation.map_or_else(|| "none".to_owned(), |id| id.to_string());
                let why = format!("unexpected correlation id {got}, expected {}", waiting.correlation);
                let _ = waiting.answer.send(Err(why.clone()));
                Err(why)
            }
            None => Err("received a response without a pending request".to_owned()),
        }
    }
}

/// Reads one frame. Calls `progressed` after each piece of it.
async fn read_frame<R: AsyncRead + Unpin>(socket: &mut R, progressed: impl Fn()) -> io::Result<Bytes> {
    let claimed = socket.read_i32().await?;
    progressed();
    let length = usize::try_from(claimed).ok().filter(|length| *length <= ANSWER_BYTES_MAX);
    let length = length.ok_or_else(|| {
        let why = format!("invalid response length {claimed}; the limit is {} MiB", ANSWER_BYTES_MAX >> 20);
        io::Error::new(io::ErrorKind::InvalidData, why)
    })?;
    let mut frame = BytesMut::with_capacity(length);
    let mut rest = socket.take(length as u64);
    while frame.len() < length {
        if rest.read_buf(&mut frame).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        progressed();
    }
    Ok(frame.freeze())
}

#[cfg(test)]
mod tests;
