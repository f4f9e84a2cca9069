//! The gRPC client for presence calls to other nodes.

use std::sync::Arc;

use tonic::transport::Channel;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Confirmed, PortFuture, UserSessions};

use super::limits::MESSAGE_BYTES_MAX;
use super::packet::{GatewayQuery, GatewayReply};
use super::remote::{PeerMessage, Remote};
use super::wire;
use whimbrel_cluster::PeerClients;
use whimbrel_cluster::wire::protocol::presence_client::PresenceClient;

pub struct PresencePeers {
    peers: Arc<PeerClients>,
}

impl PresencePeers {
    pub fn new(peers: Arc<PeerClients>) -> Self {
        Self { peers }
    }

    fn client(&self, address: &str) -> Result<PresenceClient<Channel>, String> {
        Ok(PresenceClient::new(self.peers.channel(address)?).max_decoding_message_size(MESSAGE_BYTES_MAX))
    }
}

impl Remote for PresencePeers {
    fn send<'a>(&'a self, address: &'a str, posts: Vec<PeerMessage>) -> PortFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let request = self.peers.request(wire::to_report(&posts));
            self.client(address)?.report(request).await.map(drop).map_err(|status| status.to_string())
        })
    }

    fn ask<'a>(
        &'a self,
        address: &'a str,
        ask: GatewayQuery,
        forward: bool,
    ) -> PortFuture<'a, Result<GatewayReply, String>> {
        Box::pin(async move {
            let request = self.peers.request(wire::to_ask(&ask, forward));
            let answer = self.client(address)?.ask(request).await.map_err(|status| status.to_string())?;
            wire::from_answer(ask.gateway, answer.into_inner()).map_err(|malformed| malformed.to_string())
        })
    }

    fn read<'a>(
        &'a self,
        address: &'a str,
        centre: u32,
        shard: u32,
        uids: Vec<Uid>,
    ) -> PortFuture<'a, Result<Confirmed<Vec<UserSessions>>, String>> {
        Box::pin(async move {
            let request = self.peers.request(wire::to_read(centre, shard, &uids));
            let answer = self.client(address)?.read(request).await.map_err(|status| status.to_string())?;
            wire::from_heard(answer.into_inner()).map_err(|malformed| malformed.to_string())
        })
    }
}
