//! Messages between gateways and writers: numbered packets of changes, queries for missing ones, and their answers. Data types only.

use std::sync::Arc;

use whimbrel_model::people::{GatewayId, OnlineSession, Uid};
use whimbrel_model::ports::SessionUpdate;
use whimbrel_model::{Timestamp, partitioner};

use super::limits::NEWS_PER_PACKET_MAX;

/// The shard of a user among `shards`: Kafka's murmur2 of the id, as for message keys. It must never change: stores are read by it.
pub fn shard_of(uid: &Uid, shards: u32) -> u32 {
    partitioner::partition_of(uid.as_str().as_bytes(), shards)
}

/// An arrival or a departure of a user's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionChange {
    pub uid: Uid,
    pub session: OnlineSession,
    pub gone_at: Option<Timestamp>,
}

/// The changes of a short time at one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub gateway: GatewayId,
    /// The internal address of the gateway.
    pub address: Arc<str>,
    /// Consecutive from one within an incarnation.
    pub number: u64,
    /// In order of occurrence, at most [`NEWS_PER_PACKET_MAX`]. An empty list is a heartbeat with the current number.
    pub news: Vec<SessionChange>,
}

/// The part of a packet for one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPacket {
    /// The data centre, and the shard in it.
    pub centre: u32,
    pub shard: u32,
    pub packet: Packet,
}

/// The contents that a query requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryKind {
    /// The packets with these numbers, in order.
    Packets(Vec<u64>),
    /// All current sessions.
    Snapshot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayQuery {
    pub gateway: GatewayId,
    pub address: Arc<str>,
    /// Restricts the answer to users of this shard among `shards`.
    pub shard: u32,
    pub shards: u32,
    pub wanted: QueryKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayReply {
    Packets(Vec<Packet>),
    /// The sessions as of a number: all packets up to it, none after it. Also the answer if requested packets are gone.
    Snapshot {
        as_of: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    },
    /// The gateway has another incarnation, or none yet.
    OtherIncarnation(Option<GatewayId>),
}

/// The version of a change, from its packet's number and its place in the packet.
pub fn version_of(number: u64, place: usize) -> u64 {
    number * (NEWS_PER_PACKET_MAX as u64 + 1) + (place as u64).min(NEWS_PER_PACKET_MAX as u64)
}

/// The version of a snapshot: after all changes of that number, before those of the next.
pub fn version_of_snapshot(as_of: u64) -> u64 {
    version_of(as_of, NEWS_PER_PACKET_MAX)
}

/// Converts a packet's changes for the store.
pub fn as_session_news(number: u64, news: Vec<SessionChange>) -> Vec<SessionUpdate> {
    let news = news.into_iter().enumerate();
    news.map(|(place, SessionChange { uid, session, gone_at })| SessionUpdate {
        uid,
        version: version_of(number, place),
        session,
        gone_at,
    })
    .collect()
}

#[cfg(test)]
impl SessionChange {
    /// The arrival of a user's only session, which has the number of the user.
    pub fn arrival(gateway: GatewayId, number: u64) -> Self {
        use whimbrel_model::people::{Platform, SessionId};
        let session = OnlineSession {
            session: SessionId { gateway, number },
            platform: Platform::new("web").unwrap(),
            device: "".into(),
            since: Timestamp::from_millis(0),
        };
        Self { uid: Uid::new(&format!("user-{number}")).unwrap(), session, gone_at: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_increase_with_place_and_number_and_a_snapshot_comes_between() {
        assert!(version_of(3, 0) < version_of(3, 1));
        assert!(version_of(3, NEWS_PER_PACKET_MAX - 1) < version_of_snapshot(3));
        assert!(version_of_snapshot(3) < version_of(4, 0));
    }

    #[test]
    fn the_shard_of_a_user_is_the_partition_that_kafka_computes() {
        let uid = Uid::new("foobar").unwrap();
        assert_eq!(shard_of(&uid, 16), ((-790_332_482_i32 as u32) & 0x7fff_ffff) % 16);
        assert_eq!(shard_of(&uid, 1), 0);
    }
}
