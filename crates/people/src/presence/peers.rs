//! Presence asked of other nodes over gRPC.

use std::sync::Arc;

use tonic::transport::Channel;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Heard, PortFuture, UserSessions};

use super::limits::MESSAGE_BYTES_MAX;
use super::packet::{Answer, AskGateway};
use super::remote::{Post, Remote};
use super::wire;
use whimbrel_cluster::Peers;
use whimbrel_cluster::wire::protocol::presence_client::PresenceClient;

/// Other nodes' internal ports.
pub struct PresencePeers {
    peers: Arc<Peers>,
}

impl PresencePeers {
    pub fn new(peers: Arc<Peers>) -> Self {
        Self { peers }
    }

    fn client(&self, address: &str) -> Result<PresenceClient<Channel>, String> {
        Ok(PresenceClient::new(self.peers.channel(address)?).max_decoding_message_size(MESSAGE_BYTES_MAX))
    }
}

impl Remote for PresencePeers {
    fn send<'a>(&'a self, address: &'a str, posts: Vec<Post>) -> PortFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let request = self.peers.request(wire::to_report(&posts));
            self.client(address)?.report(request).await.map(drop).map_err(|status| status.to_string())
        })
    }

    fn ask<'a>(&'a self, address: &'a str, ask: AskGateway, forward: bool) -> PortFuture<'a, Result<Answer, String>> {
        Box::pin(async move {
            let request = self.peers.request(wire::to_ask(&ask, forward));
            let answer = self.client(address)?.ask(request).await.map_err(|status| status.to_string())?;
            wire::from_answer(ask.gateway, answer.into_inner()).map_err(|garbled| garbled.to_string())
        })
    }

    fn read<'a>(
        &'a self,
        address: &'a str,
        centre: u32,
        shard: u32,
        uids: Vec<Uid>,
    ) -> PortFuture<'a, Result<Heard<Vec<UserSessions>>, String>> {
        Box::pin(async move {
            let request = self.peers.request(wire::to_read(centre, shard, &uids));
            let answer = self.client(address)?.read(request).await.map_err(|status| status.to_string())?;
            wire::from_heard(answer.into_inner()).map_err(|garbled| garbled.to_string())
        })
    }
}
