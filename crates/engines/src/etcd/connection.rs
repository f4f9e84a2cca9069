//! Calls to an etcd cluster. Each call has a timeout and goes to one endpoint; after a failure, the next call goes to the next endpoint.

use std::error::Error;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Status, Streaming};

use super::settings::{EtcdSettings, EtcdStartError};
use super::wire::auth_client::AuthClient;
use super::wire::compare::{CompareTarget, TargetUnion};
use super::wire::kv_client::KvClient;
use super::wire::lease_client::LeaseClient;
use super::wire::request_op::Request as Operation;
use super::wire::response_op::Response as Outcome;
use super::wire::watch_client::WatchClient;
use super::wire::watch_request::RequestUnion;
use super::wire::{
    AuthenticateRequest, Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};

/// The maximum size of an answer. A whole catalogue is one answer.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The interval of pings on an idle connection. etcd closes connections that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The pause between attempts to connect at the start.
const START_PAUSE: Duration = Duration::from_millis(200);

/// The connection to one etcd cluster. Clones share it.
#[derive(Clone)]
pub struct EtcdConnection {
    shared: Arc<EtcdShared>,
}

struct EtcdShared {
    settings: EtcdSettings,
    channels: Vec<Channel>,
    /// Counts failures. The index of the endpoint in use is this number modulo the number of endpoints.
    turn: AtomicUsize,
    /// The token of the login. It is requested again after etcd rejects it.
    token: Mutex<Option<LoginToken>>,
}

type LoginToken = MetadataValue<Ascii>;

/// The endpoint of one call, with the token.
struct EndpointClient {
    channel: Channel,
    token: Option<LoginToken>,
}

impl EndpointClient {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }
}

impl EtcdConnection {
    /// Checks the settings and waits until etcd answers.
    pub async fn connect(settings: EtcdSettings) -> Result<Self, EtcdStartError> {
        settings.check()?;
        let mut channels = Vec::new();
        for address in settings.addresses()? {
            let endpoint = Endpoint::from_shared(address.clone())
                .map_err(|error| EtcdStartError::BadEndpoint { endpoint: address, reason: error.to_string() })?;
            let endpoint = endpoint
                .connect_timeout(settings.request_timeout)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_ANSWER_WITHIN)
                .keep_alive_while_idle(true);
            channels.push(endpoint.connect_lazy());
        }
        let shared = EtcdShared { settings, channels, turn: AtomicUsize::new(0), token: Mutex::default() };
        let connection = Self { shared: Arc::new(shared) };
        connection.wait_until_reached().await?;
        Ok(connection)
    }

    async fn wait_until_reached(&self) -> Result<(), EtcdStartError> {
        let settings = self.settings();
        let began = Instant::now();
        loop {
            let Err(status) = self.range(RangeRequest { key: vec![0], limit: 1, ..RangeRequest::default() }).await
            else {
                return Ok(());
            };
            let waited = began.elapsed();
            if waited + START_PAUSE >= settings.request_timeout {
                return Err(EtcdStartError::Unreachable {
                    endpoints: settings.endpoints.join(","),
                    waited_ms: waited.as_millis(),
                    reason: reason(&status),
                });
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }

    pub(super) fn settings(&self) -> &EtcdSettings {
        &self.shared.settings
    }

    /// Reads keys. Tries every endpoint; tries a single endpoint twice, because it may require a new login.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let mut last = Status::unavailable("no endpoint was tried");
        for _ in 0..self.shared.channels.len().max(2) {
            let (request, within) = (request.clone(), self.settings().request_timeout);
            let call = self.call(within, |door| async move { door.kv().range(door.request(request)).await });
            match call.await {
                Ok(answer) => return Ok(answer),
                Err(status) => last = status,
            }
        }
        Err(last)
    }

    /// Writes if all comparisons hold. After an error the write may have happened.
    pub(super) async fn transact(
        &self,
        compare: Vec<Compare>,
        success: Vec<Operation>,
        failure: Vec<Operation>,
    ) -> Result<TransactionResult, Status> {
        let operations =
            |list: Vec<Operation>| list.into_iter().map(|each| RequestOp { request: Some(each) }).collect();
        let request = TxnRequest { compare, success: operations(success), failure: operations(failure) };
        let within = self.settings().request_timeout;
        self.call(within, |door| async move { door.kv().txn(door.request(request)).await })
            .await
            .map(TransactionResult::of)
    }

    /// Requests a lease. Returns its id, and its duration from the time of the request.
    pub(super) async fn grant(&self, lasts: Duration) -> Result<(i64, Duration), Status> {
        let request = LeaseGrantRequest { ttl: i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX) };
        let within = self.settings().request_timeout;
        let granted =
            self.call(within, |door| async move { door.lease().lease_grant(door.request(request)).await }).await?;
        if !granted.error.is_empty() {
            return Err(Status::internal(granted.error));
        }
        Ok((granted.id, seconds(granted.ttl)))
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<(), Status> {
        let (request, within) = (LeaseRevokeRequest { id: lease }, self.settings().request_timeout);
        self.call(within, |door| async move { door.lease().lease_revoke(door.request(request)).await }).await.map(drop)
    }

    /// Renews a lease. Returns its duration from the time of the request, or zero if the lease has ended.
    pub(super) async fn keep_alive(&self, lease: i64, within: Duration) -> Result<Duration, Status> {
        let request = stream::once(async move { LeaseKeepAliveRequest { id: lease } });
        let call = |door: EndpointClient| async move {
            let mut answers = door.lease().lease_keep_alive(door.request(request)).await?.into_inner();
            let answer = answers.message().await?;
            answer.map(tonic::Response::new).ok_or_else(|| Status::unavailable("etcd closed the stream early"))
        };
        self.call(within, call).await.map(|answer| seconds(answer.ttl))
    }

    /// Watches all changes under a prefix from a revision on.
    pub(super) async fn watch(&self, prefix: &[u8], from: i64) -> Result<Streaming<WatchResponse>, Status> {
        let create = WatchCreateRequest { key: prefix.to_vec(), range_end: end_of(prefix), start_revision: from };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The request stream stays open: etcd ends a watch when the stream ends.
        let questions = stream::once(async move { create }).chain(stream::pending());
        let within = self.settings().request_timeout;
        self.call(within, |door| async move {
            let mut request = door.request(questions);
            // With this header, an etcd member without a leader ends the watch instead of sending nothing.
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
            door.watch().watch(request).await
        })
        .await
    }

    /// Switches to the next endpoint after a failure of the current one.
    pub(super) fn switch_endpoint(&self) {
        self.shared.turn.fetch_add(1, Ordering::Relaxed);
    }

    async fn call<T, F>(&self, within: Duration, call: impl FnOnce(EndpointClient) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let channels = &self.shared.channels;
        let channel = channels[self.shared.turn.load(Ordering::Relaxed) % channels.len()].clone();
        let calling = async {
            let token = self.token(&channel).await?;
            call(EndpointClient { channel, token }).await
        };
        let answer = timeout(within, calling).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {within:?}"))));
        if let Err(status) = &answer {
            if is_transport_error(status.code()) {
                self.switch_endpoint();
            }
            // etcd rejected the token, so it executed nothing. The next call logs in again.
            if is_token_refused(status) {
                *self.shared.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        }
        answer.map(tonic::Response::into_inner)
    }

    async fn token(&self, channel: &Channel) -> Result<Option<LoginToken>, Status> {
        let Some(login) = &self.settings().login else { return Ok(None) };
        let known = self.shared.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let answer = AuthClient::new(channel.clone()).authenticate(request).await?.into_inner();
        let token =
            LoginToken::try_from(answer.token).map_err(|_| Status::internal("etcd returned an invalid token"))?;
        *self.shared.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }
}

/// Whether the error comes from the connection, or from a member without a leader, rather than from etcd's decision about the request.
fn is_transport_error(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Internal | Code::Cancelled)
}

/// Whether a failed call may have been executed: it was sent, and the error is not a decision of etcd.
pub(super) fn may_have_run(status: &Status) -> bool {
    is_transport_error(status.code()) && !was_never_sent(status)
}

/// Whether no connection could be opened for the call.
fn was_never_sent(status: &Status) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether etcd rejects the token: etcd was restarted, or the token has expired.
fn is_token_refused(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || status.message().contains("revision of auth store is old")
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

/// The message of an error for operators.
pub(super) fn reason(status: &Status) -> String {
    match status.message() {
        "" => format!("{:?}", status.code()),
        message => message.to_owned(),
    }
}

/// Whether etcd reports that its storage quota is exhausted.
pub(super) fn is_full(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("space exceeded")
}

/// Whether etcd reports that the lease has ended.
pub(super) fn is_lease_gone(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

pub(super) struct TransactionResult {
    pub succeeded: bool,
    pub revision: i64,
    /// The entries that its first read returned.
    pub found: Vec<KeyValue>,
}

impl TransactionResult {
    fn of(answer: TxnResponse) -> Self {
        let revision = answer.header.map_or(0, |header| header.revision);
        let found = answer.responses.into_iter().filter_map(|each| match each.response {
            Some(Outcome::Range(range)) => Some(range.kvs),
            _ => None,
        });
        Self { succeeded: answer.succeeded, revision, found: found.flatten().collect() }
    }
}

pub(super) fn is_absent(key: &[u8]) -> Compare {
    compare(key, CompareTarget::Create, TargetUnion::CreateRevision(0))
}

pub(super) fn is_at(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

pub(super) fn is_under(key: &[u8], lease: i64) -> Compare {
    compare(key, CompareTarget::Lease, TargetUnion::Lease(lease))
}

fn compare(key: &[u8], target: CompareTarget, value: TargetUnion) -> Compare {
    Compare { result: 0, target: target.into(), key: key.to_vec(), target_union: Some(value) }
}

pub(super) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> Operation {
    Operation::Put(PutRequest { key: key.to_vec(), value, lease })
}

pub(super) fn get(key: &[u8]) -> Operation {
    Operation::Range(RangeRequest { key: key.to_vec(), ..RangeRequest::default() })
}

pub(super) fn delete(key: &[u8]) -> Operation {
    Operation::Remove(DeleteRangeRequest { key: key.to_vec() })
}

pub(super) fn under(prefix: &[u8]) -> RangeRequest {
    RangeRequest { key: prefix.to_vec(), range_end: end_of(prefix), ..RangeRequest::default() }
}

/// The first key after all keys with the prefix.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // No such key: the range has no end.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_an_answer_may_have_run_and_one_that_etcd_refused_did_not() {
        for status in [Status::deadline_exceeded("no answer"), Status::unavailable("etcdserver: request timed out")] {
            assert!(may_have_run(&status), "{status}");
        }
        for status in [Status::invalid_argument("no key"), Status::permission_denied("no"), Status::unauthenticated("")]
        {
            assert!(!may_have_run(&status), "{status}");
        }
    }

    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_have_it() {
        assert_eq!(end_of(b"a/"), b"a0");
        assert_eq!(end_of(&[b'a', 0xff]), b"b");
        assert_eq!(end_of(&[0xff]), [0]);
    }
}
