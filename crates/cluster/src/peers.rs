//! Calls to the internal ports of other nodes.
//!
//! What a caller must know of a call that failed is whether the question can have arrived: a connection that was never made
//! says no; anything later says that nobody knows.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Response, Status};
use whimbrel_model::ports::{Ask, DispatchAsk, DispatchTold, PortFuture, Told};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::admission::KEY_METADATA;
use super::clocks::AskClock;
use super::dispatch::wire::{self, Minutes};
use super::wire::protocol::carriers_client::CarriersClient;
use super::wire::protocol::dispatch_client::DispatchClient;
use super::wire::protocol::owners_client::OwnersClient;
use super::wire::protocol::{ClockRequest, PeopleRequest, PeopleResponse};
use super::wire::{Garbled, from_response, to_request};
use super::{DeskError, DispatchDeskError};

/// Bytes of one answer: a list of many holds, or many messages for a puller.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Connections that are kept; beyond, all are made anew.
const PEERS_MAX: usize = 4096;
/// How long making a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long another node may take to say what time it is: beyond, its answer tells too little.
const CLOCK_WITHIN: Duration = Duration::from_secs(1);
/// How long another node may take to look its figures up: what is shown must not wait for one that hangs.
const MINUTES_WITHIN: Duration = Duration::from_secs(3);
/// How long an owner may take to append all dead letters of a subscription anew.
const REDRIVEN_WITHIN: Duration = Duration::from_secs(60);
/// A node that is called and silent is asked whether it lives: one that was stopped keeps its connections.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How calls to other nodes are made.
#[derive(Debug, Clone)]
pub struct PeerSettings {
    /// The secret that all nodes of an installation share, where one is set.
    pub internal_key: Option<String>,
    /// After this a question that was sent and got no answer is one whose outcome is not known.
    pub answer_within: Duration,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self { internal_key: None, answer_within: Duration::from_secs(10) }
    }
}

/// A key that cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the internal key may have visible ASCII characters only")]
pub struct BadInternalKey;

/// Other nodes, by address.
pub struct Peers {
    key: Option<MetadataValue<Ascii>>,
    answer_within: Duration,
    channels: Mutex<HashMap<String, Channel>>,
}

/// What became of a question to another node.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<A> {
    Answered(A),
    /// It never arrived.
    NotDelivered(String),
    /// It was refused unread. Nothing was done.
    Refused(String),
    /// It may have arrived, and may have been done.
    Unknown(String),
}

impl Peers {
    pub fn new(settings: PeerSettings) -> Result<Self, BadInternalKey> {
        let key = settings.internal_key.map(|key| MetadataValue::try_from(key).map_err(|_| BadInternalKey));
        let key = key.transpose()?;
        Ok(Self { key, answer_within: settings.answer_within, channels: Mutex::default() })
    }

    pub async fn ask(&self, address: &str, shard: u32, ask: &Ask) -> Asked<Result<Told, DeskError>> {
        let mut client = match self.client(address) {
            Ok(client) => client,
            Err(reason) => return Asked::NotDelivered(reason),
        };
        let answer = client.ask(self.request(to_request(shard, ask)));
        self.asked(answer, self.answer_within, |response| from_response(shard, response)).await
    }

    pub async fn ask_dispatch(
        &self,
        address: &str,
        subscription: SubscriptionNumber,
        ask: &DispatchAsk,
    ) -> Asked<Result<DispatchTold, DispatchDeskError>> {
        let mut client = match self.dispatch_client(address) {
            Ok(client) => client,
            Err(reason) => return Asked::NotDelivered(reason),
        };
        let answer = client.ask(self.request(wire::to_request(subscription, ask)));
        let within = match ask {
            DispatchAsk::Pull { wait_ms, .. } => self.answer_within + Duration::from_millis(*wait_ms),
            DispatchAsk::Redrive { .. } => self.answer_within.max(REDRIVEN_WITHIN),
            _ => self.answer_within,
        };
        self.asked(answer, within, wire::from_response).await
    }

    /// What another node counted of a topic by the minute.
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
            Asked::Answered(minutes) => Ok(minutes),
            Asked::NotDelivered(reason) | Asked::Refused(reason) | Asked::Unknown(reason) => Err(reason),
        }
    }

    /// A question about a user, whose words are elsewhere.
    pub async fn ask_carrier<A>(
        &self,
        address: &str,
        question: PeopleRequest,
        read: impl FnOnce(PeopleResponse) -> Result<A, Garbled>,
    ) -> Asked<A> {
        let channel = match self.channel(address) {
            Ok(channel) => channel,
            Err(reason) => return Asked::NotDelivered(reason),
        };
        let mut client = CarriersClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let answer = client.ask(self.request(question));
        self.asked(answer, self.answer_within, read).await
    }

    /// Waits for an answer and reads it.
    async fn asked<R, A>(
        &self,
        answer: impl Future<Output = Result<Response<R>, Status>>,
        within: Duration,
        read: impl FnOnce(R) -> Result<A, Garbled>,
    ) -> Asked<A> {
        match timeout(within, answer).await {
            Err(_) => Asked::Unknown(format!("the other node did not answer within {within:?}")),
            Ok(Err(status)) => outcome_of(&status),
            Ok(Ok(response)) => match read(response.into_inner()) {
                Ok(answer) => Asked::Answered(answer),
                Err(garbled) => Asked::Unknown(garbled.to_string()),
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

    /// The connection to a node, made when it is first used.
    pub fn channel(&self, address: &str) -> Result<Channel, String> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match channels.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"));
                let endpoint = endpoint.map_err(|error| format!("`{address}` is no address: {error}"))?;
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

impl AskClock for Peers {
    fn ask_clock<'a>(&'a self, address: &'a str) -> PortFuture<'a, Result<Timestamp, String>> {
        Box::pin(async move {
            let mut client = self.client(address)?;
            let answer = timeout(CLOCK_WITHIN, client.clock(self.request(ClockRequest {}))).await;
            let answer = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|status| status.to_string())?;
            Ok(Timestamp::from_millis(answer.into_inner().now_ms))
        })
    }
}

fn outcome_of<A>(status: &Status) -> Asked<A> {
    let reason = if status.message().is_empty() { format!("{:?}", status.code()) } else { status.message().to_owned() };
    match status.code() {
        // These are told by the other node itself before it looks at the question.
        Code::Unauthenticated | Code::InvalidArgument | Code::Unimplemented => Asked::Refused(reason),
        _ if was_never_connected(status) => Asked::NotDelivered(reason),
        _ => Asked::Unknown(reason),
    }
}

/// Whether the question certainly never left this node.
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
