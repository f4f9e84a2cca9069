//! The presence calls between nodes, and their client.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_cluster::{PeerClients, internal_call};
use whimbrel_model::people::Uid;

use super::limits::MESSAGE_BYTES_MAX;
use super::packet::{GatewayQuery, GatewayReply};
use super::remote::{PeerMessage, Remote, RemoteAnswer, ShardUsers};

internal_call!(
    /// Complete packets to be spread, and parts of packets for shards that the node writes.
    ReportPresence: Vec<PeerMessage>, at most MESSAGE_BYTES_MAX => ()
);
internal_call!(
    /// A writer requests packets of a gateway, or a snapshot of all its sessions; and whether the node may forward the request.
    AskGateway: (GatewayQuery, bool), at most MESSAGE_BYTES_MAX => Result<GatewayReply, String>
);
internal_call!(
    /// Reads users of a shard, in a data centre, that the node writes.
    ReadPresence: (u32, u32, Vec<Uid>), at most MESSAGE_BYTES_MAX => Result<ShardUsers, String>
);

/// The users of [`Remote`] have shorter timeouts of their own.
const WITHIN: Duration = Duration::MAX;

pub struct PresencePeers {
    peers: Arc<PeerClients>,
}

impl PresencePeers {
    pub fn new(peers: Arc<PeerClients>) -> Self {
        Self { peers }
    }
}

impl Remote for PresencePeers {
    fn send<'a>(&'a self, address: &'a str, posts: Vec<PeerMessage>) -> RemoteAnswer<'a, ()> {
        Box::pin(async move { self.peers.call::<ReportPresence>(address, posts, WITHIN).await.answered() })
    }

    fn ask<'a>(&'a self, address: &'a str, ask: GatewayQuery, forward: bool) -> RemoteAnswer<'a, GatewayReply> {
        Box::pin(async move {
            let gateway = ask.gateway;
            let reply = self.peers.call::<AskGateway>(address, (ask, forward), WITHIN).await.answered()??;
            match &reply {
                GatewayReply::Snapshot { sessions, .. }
                    if sessions.iter().any(|(_, session)| session.session.gateway != gateway) =>
                {
                    Err("the snapshot contains sessions of another gateway".to_owned())
                }
                _ => Ok(reply),
            }
        })
    }

    fn read<'a>(&'a self, address: &'a str, centre: u32, shard: u32, uids: Vec<Uid>) -> RemoteAnswer<'a, ShardUsers> {
        Box::pin(
            async move { self.peers.call::<ReadPresence>(address, (centre, shard, uids), WITHIN).await.answered()? },
        )
    }
}
