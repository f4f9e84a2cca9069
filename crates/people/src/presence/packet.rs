//! What travels between gateways and writers: numbered packets of news, questions for what is missing, and their answers. Plain words; nothing
//! here decides.

use std::sync::Arc;

use whimbrel_model::people::{GatewayId, OnlineSession, Uid};
use whimbrel_model::ports::SessionNews;
use whimbrel_model::{Timestamp, partitioner};

use super::limits::NEWS_PER_PACKET_MAX;

/// The shard of a user among `shards`: Kafka's murmur2 of the id, as any key is placed. It never changes, or stores would be read where they
/// were not written.
pub fn shard_of(uid: &Uid, shards: u32) -> u32 {
    partitioner::partition_of(uid.as_str().as_bytes(), shards)
}

/// A session of a user that came, or went at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    pub uid: Uid,
    pub session: OnlineSession,
    pub gone_at: Option<Timestamp>,
}

/// The comings and goings of a short time at one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub gateway: GatewayId,
    /// Where that gateway can be asked: its internal address.
    pub address: Arc<str>,
    /// From one on within an incarnation, without gaps.
    pub number: u64,
    /// In the order in which it happened; at most [`NEWS_PER_PACKET_MAX`]. Empty says that the gateway lives and where its numbers are.
    pub news: Vec<News>,
}

/// What a writer's shard gets of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPacket {
    /// The data centre and the shard there.
    pub centre: u32,
    pub shard: u32,
    pub packet: Packet,
}

/// What a writer wants of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// These numbers, in order.
    Packets(Vec<u64>),
    /// Everybody who is there now.
    Picture,
}

/// A writer's question to a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskGateway {
    pub gateway: GatewayId,
    pub address: Arc<str>,
    /// Only users of this shard among so many.
    pub shard: u32,
    pub shards: u32,
    pub wanted: Wanted,
}

/// What a gateway answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Packets(Vec<Packet>),
    /// Who is there as of a number: everything up to it is in, nothing after it. Also the answer where packets were wanted that are no
    /// longer kept.
    Picture {
        as_of: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    },
    /// It is another incarnation now, or none yet.
    Other(Option<GatewayId>),
}

/// The version of one piece of news: its packet's number, and its place therein.
pub fn version_of(number: u64, place: usize) -> u64 {
    number * (NEWS_PER_PACKET_MAX as u64 + 1) + (place as u64).min(NEWS_PER_PACKET_MAX as u64)
}

/// The version of a picture: after all news of that number, before all of the next.
pub fn version_of_picture(as_of: u64) -> u64 {
    version_of(as_of, NEWS_PER_PACKET_MAX)
}

/// A packet's news as a store takes them.
pub fn as_session_news(number: u64, news: Vec<News>) -> Vec<SessionNews> {
    let news = news.into_iter().enumerate();
    news.map(|(place, News { uid, session, gone_at })| SessionNews {
        uid,
        version: version_of(number, place),
        session,
        gone_at,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_grow_with_the_place_and_the_number_and_a_picture_stands_between() {
        assert!(version_of(3, 0) < version_of(3, 1));
        assert!(version_of(3, NEWS_PER_PACKET_MAX - 1) < version_of_picture(3));
        assert!(version_of_picture(3) < version_of(4, 0));
    }

    #[test]
    fn a_users_shard_is_where_kafka_would_place_the_key() {
        let uid = Uid::new("foobar").unwrap();
        assert_eq!(shard_of(&uid, 16), ((-790_332_482_i32 as u32) & 0x7fff_ffff) % 16);
        assert_eq!(shard_of(&uid, 1), 0);
    }
}
