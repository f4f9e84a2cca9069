//! Calls to the internal ports of other nodes.
//!
//! After a failed call the caller must know whether the request may have arrived. Without a connection it did not; after any later
//! failure it may have.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Status};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::PortFuture;

use super::admission::KEY_METADATA;
use super::clocks::PeerClock;
use super::rpc::{InternalCall, MessageCodec, REPLY_BYTES_MAX};
use super::service::ReadClock;

/// The most cached connections. Beyond that, the cache is cleared.
const PEERS_MAX: usize = 4096;
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Timeout of a clock query: a later answer is too inexact.
const CLOCK_WITHIN: Duration = Duration::from_secs(1);
/// The interval of keep-alive pings, which detect a suspended node: it keeps its connections open.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_ANSWER_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub struct PeerSettings {
    /// The secret that all nodes share, if one is set.
    pub internal_key: Option<String>,
    /// The timeout of a request. Its outcome is unknown afterwards.
    pub answer_within: Duration,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self { internal_key: None, answer_within: Duration::from_secs(10) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the internal key contains characters other than visible ASCII")]
pub struct BadInternalKey;

pub struct PeerClients {
    key: Option<MetadataValue<Ascii>>,
    answer_within: Duration,
    channels: Mutex<HashMap<String, Channel>>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum PeerReply<A> {
    Answered(A),
    /// The request never arrived.
    NotDelivered(String),
    /// The request was rejected before it was read. Nothing was done.
    Refused(String),
    /// The request may have arrived, and may have been executed.
    Unknown(String),
}

impl<A> PeerReply<A> {
    /// The answer, or the reason why there is none.
    pub fn answered(self) -> Result<A, String> {
        match self {
            Self::Answered(answer) => Ok(answer),
            Self::NotDelivered(reason) | Self::Refused(reason) | Self::Unknown(reason) => Err(reason),
        }
    }
}

impl PeerClients {
    pub fn new(settings: PeerSettings) -> Result<Self, BadInternalKey> {
        let key = settings.internal_key.map(|key| MetadataValue::try_from(key).map_err(|_| BadInternalKey));
        let key = key.transpose()?;
        Ok(Self { key, answer_within: settings.answer_within, channels: Mutex::default() })
    }

    /// The timeout of most requests.
    pub fn answer_within(&self) -> Duration {
        self.answer_within
    }

    /// Makes the call `C` at the node with that address.
    pub async fn call<C: InternalCall>(
        &self,
        address: &str,
        request: C::Request,
        within: Duration,
    ) -> PeerReply<C::Reply> {
        let mut grpc = match self.channel(address) {
            Ok(channel) => Grpc::new(channel).max_decoding_message_size(REPLY_BYTES_MAX),
            Err(reason) => return PeerReply::NotDelivered(reason),
        };
        let answer = async {
            grpc.ready().await.map_err(|error| Status::unknown(format!("the connection is not ready: {error}")))?;
            let codec = MessageCodec::<C::Request, C::Reply>::new();
            grpc.unary(self.request(request), PathAndQuery::from_static(C::PATH), codec).await
        };
        match timeout(within, answer).await {
            Err(_) => PeerReply::Unknown(format!("the other node did not answer within {within:?}")),
            Ok(Err(status)) => outcome_of(&status),
            Ok(Ok(response)) => response.into_inner().map_or_else(PeerReply::Unknown, PeerReply::Answered),
        }
    }

    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(key) = &self.key {
            request.metadata_mut().insert(KEY_METADATA, key.clone());
        }
        request
    }

    /// The connection to a node, created at its first use.
    pub fn channel(&self, address: &str) -> Result<Channel, String> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match channels.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"));
                let endpoint = endpoint.map_err(|error| format!("`{address}` is not a valid address: {error}"))?;
                let channel = endpoint
                    .connect_timeout(CONNECT_WITHIN)
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(PING_EVERY)
                    .keep_alive_timeout(PING_ANSWER_WITHIN)
                    .connect_lazy();
                if channels.len() >= PEERS_MAX {
                    channels.clear();
                }
                channels.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        Ok(channel)
    }
}

impl PeerClock for PeerClients {
    fn read_clock<'a>(&'a self, address: &'a str) -> PortFuture<'a, Result<Timestamp, String>> {
        Box::pin(async move { self.call::<ReadClock>(address, (), CLOCK_WITHIN).await.answered() })
    }
}

fn outcome_of<A>(status: &Status) -> PeerReply<A> {
    let reason = if status.message().is_empty() { format!("{:?}", status.code()) } else { status.message().to_owned() };
    match status.code() {
        // The other node returns these before it reads the request.
        Code::Unauthenticated | Code::InvalidArgument | Code::Unimplemented => PeerReply::Refused(reason),
        _ if was_never_connected(status) => PeerReply::NotDelivered(reason),
        _ => PeerReply::Unknown(reason),
    }
}

/// Whether the request certainly never left this node.
fn was_never_connected(status: &Status) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
