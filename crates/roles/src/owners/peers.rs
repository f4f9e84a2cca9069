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
use tonic::{Code, ConnectError, Request, Status};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{Ask, PortFuture, Told};

use super::DeskError;
use super::clocks::AskClock;
use super::wire::protocol::ClockRequest;
use super::wire::protocol::owners_client::OwnersClient;
use super::wire::{from_response, to_request};

/// Under which name the key of the internal port travels.
pub(super) const KEY_METADATA: &str = "whimbrel-internal-key";
/// Bytes of one answer: a list of many holds.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Connections that are kept; beyond, all are made anew.
const PEERS_MAX: usize = 4096;
/// How long making a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long another node may take to say what time it is: beyond, its answer tells too little.
const CLOCK_WITHIN: Duration = Duration::from_secs(1);
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
pub(super) enum Asked {
    Answered(Result<Told, DeskError>),
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

    pub(super) async fn ask(&self, address: &str, shard: u32, ask: &Ask) -> Asked {
        let mut client = match self.client(address) {
            Ok(client) => client,
            Err(reason) => return Asked::NotDelivered(reason),
        };
        let request = self.request(to_request(shard, ask));
        match timeout(self.answer_within, client.ask(request)).await {
            Err(_) => Asked::Unknown(format!("the owner did not answer within {:?}", self.answer_within)),
            Ok(Err(status)) => outcome_of(&status),
            Ok(Ok(response)) => match from_response(shard, response.into_inner()) {
                Ok(answer) => Asked::Answered(answer),
                Err(garbled) => Asked::Unknown(garbled.to_string()),
            },
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(key) = &self.key {
            request.metadata_mut().insert(KEY_METADATA, key.clone());
        }
        request
    }

    fn client(&self, address: &str) -> Result<OwnersClient<Channel>, String> {
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
        Ok(OwnersClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
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

fn outcome_of(status: &Status) -> Asked {
    let reason = if status.message().is_empty() { format!("{:?}", status.code()) } else { status.message().to_owned() };
    match status.code() {
        // These are told by the other node itself before it looks at the question.
        Code::Unauthenticated | Code::InvalidArgument | Code::Unimplemented => Asked::Refused(reason),
        _ if was_never_connected(status) => Asked::NotDelivered(reason),
        _ => Asked::Unknown(reason),
    }
}

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
