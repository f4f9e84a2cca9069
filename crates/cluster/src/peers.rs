//! Calls to the internal ports of other nodes.
//!
//! After a failed call the caller must know whether the request may have arrived. Without a connection it did not; after any later
//! failure it may have.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Response, Status};
use whimbrel_model::ports::{DispatchReply, DispatchRequest, HoldReply, HoldRequest, PortFuture};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::admission::KEY_METADATA;
use super::clocks::PeerClock;
use super::dispatch::wire::{self, Minutes};
use super::wire::protocol::carriers_client::CarriersClient;
use super::wire::protocol::dispatch_client::DispatchClient;
use super::wire::protocol::owners_client::OwnersClient;
use super::wire::protocol::{ClockRequest, PeopleRequest, PeopleResponse};
use super::wire::{Malformed, from_response, to_request};
use super::{LocalDispatchError, LocalHoldsError};

/// The most bytes of one answer: a list of many holds, or many pulled messages.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The most cached connections. Beyond that, the cache is cleared.
const PEERS_MAX: usize = 4096;
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Timeout of a clock query: a later answer is too inexact.
const CLOCK_WITHIN: Duration = Duration::from_secs(1);
/// Timeout of a query for statistics, so that a hanging node does not delay a page.
const MINUTES_WITHIN: Duration = Duration::from_secs(3);
/// Timeout for an owner that redrives all dead letters of a subscription.
const REDRIVEN_WITHIN: Duration = Duration::from_secs(60);
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

impl PeerClients {
    pub fn new(settings: PeerSettings) -> Result<Self, BadInternalKey> {
        let key = settings.internal_key.map(|key| MetadataValue::try_from(key).map_err(|_| BadInternalKey));
        let key = key.transpose()?;
        Ok(Self { key, answer_within: settings.answer_within, channels: Mutex::default() })
    }

    pub async fn ask(
        &self,
        address: &str,
        shard: u32,
        ask: &HoldRequest,
    ) -> PeerReply<Result<HoldReply, LocalHoldsError>> {
        let mut client = match self.client(address) {
            Ok(client) => client,
            Err(reason) => return PeerReply::NotDelivered(reason),
        };
        let answer = client.ask(self.request(to_request(shard, ask)));
        self.asked(answer, self.answer_within, |response| from_response(shard, response)).await
    }

    pub async fn ask_dispatch(
        &self,
        address: &str,
        subscription: SubscriptionNumber,
        ask: &DispatchRequest,
    ) -> PeerReply<Result<DispatchReply, LocalDispatchError>> {
        let mut client = match self.dispatch_client(address) {
            Ok(client) => client,
            Err(reason) => return PeerReply::NotDelivered(reason),
        };
        let answer = client.ask(self.request(wire::to_request(subscription, ask)));
        let within = match ask {
            DispatchRequest::Pull { wait_ms, .. } => self.answer_within + Duration::from_millis(*wait_ms),
            DispatchRequest::Redrive { .. } => self.answer_within.max(REDRIVEN_WITHIN),
            _ => self.answer_within,
        };
        self.asked(answer, within, wire::from_response).await
    }

    /// Another node's statistics of a topic by the minute.
    pub async fn minutes(
        &self,
        address: &str,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Minutes, String> {
        let mut client = self.dispatch_client(address)?;
        let answer = client.minutes(self.request(wire::to_minutes_request(topic, from, to)));
        match self.asked(answer, MINUTES_WITHIN, wire::from_minutes).await {
            PeerReply::Answered(minutes) => Ok(minutes),
            PeerReply::NotDelivered(reason) | PeerReply::Refused(reason) | PeerReply::Unknown(reason) => Err(reason),
        }
    }

    /// Sends a request about a user. The caller converts the messages.
    pub async fn ask_carrier<A>(
        &self,
        address: &str,
        question: PeopleRequest,
        read: impl FnOnce(PeopleResponse) -> Result<A, Malformed>,
    ) -> PeerReply<A> {
        let channel = match self.channel(address) {
            Ok(channel) => channel,
            Err(reason) => return PeerReply::NotDelivered(reason),
        };
        let mut client = CarriersClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let answer = client.ask(self.request(question));
        self.asked(answer, self.answer_within, read).await
    }

    async fn asked<R, A>(
        &self,
        answer: impl Future<Output = Result<Response<R>, Status>>,
        within: Duration,
        read: impl FnOnce(R) -> Result<A, Malformed>,
    ) -> PeerReply<A> {
        match timeout(within, answer).await {
            Err(_) => PeerReply::Unknown(format!("the other node did not answer within {within:?}")),
            Ok(Err(status)) => outcome_of(&status),
            Ok(Ok(response)) => match read(response.into_inner()) {
                Ok(answer) => PeerReply::Answered(answer),
                Err(garbled) => PeerReply::Unknown(garbled.to_string()),
            },
        }
    }

    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(key) = &self.key {
            request.metadata_mut().insert(KEY_METADATA, key.clone());
        }
        request
    }

    fn client(&self, address: &str) -> Result<OwnersClient<Channel>, String> {
        Ok(OwnersClient::new(self.channel(address)?).max_decoding_message_size(ANSWER_BYTES_MAX))
    }

    fn dispatch_client(&self, address: &str) -> Result<DispatchClient<Channel>, String> {
        Ok(DispatchClient::new(self.channel(address)?).max_decoding_message_size(ANSWER_BYTES_MAX))
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
        Box::pin(async move {
            let mut client = self.client(address)?;
            let answer = timeout(CLOCK_WITHIN, client.clock(self.request(ClockRequest {}))).await;
            let answer = answer
                .map_err(|_| "the node did not answer in time".to_owned())?
                .map_err(|status| status.to_string())?;
            Ok(Timestamp::from_millis(answer.into_inner().now_ms))
        })
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
pub fn was_never_connected(status: &Status) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
