//! The encoding of presence messages between nodes. Malformed messages of other nodes are rejected.

use whimbrel_cluster::wire;

use super::limits::{ASKED_NUMBERS_MAX, NEWS_PER_PACKET_MAX};
use super::packet::{GatewayQuery, GatewayReply, Packet, QueryKind, SessionChange, ShardPacket};
use super::remote::PeerMessage;

/// The highest packet number: versions are computed from it.
const NUMBER_MAX: u64 = u64::MAX / (NEWS_PER_PACKET_MAX as u64 + 2);

wire!(enum PeerMessage { 1 Relay(packet), 2 Report(parts) });
wire!(struct ShardPacket { centre, shard, packet });
wire!(struct Packet { gateway, address, number, news } if |packet| {
    let is_of_gateway = |news: &SessionChange| news.session.session.gateway == packet.gateway;
    is_number(packet.number) && packet.news.len() <= NEWS_PER_PACKET_MAX && packet.news.iter().all(is_of_gateway)
});
wire!(struct SessionChange { uid, session, gone_at });
wire!(enum QueryKind { 1 Packets(numbers), 2 Snapshot });
wire!(struct GatewayQuery { gateway, address, shard, shards, wanted } if |query| {
    let is_bounded = match &query.wanted {
        QueryKind::Packets(numbers) => numbers.len() <= ASKED_NUMBERS_MAX,
        QueryKind::Snapshot => true,
    };
    is_bounded && query.shard < query.shards
});
wire!(enum GatewayReply { 1 Packets(packets), 2 Snapshot { as_of, sessions }, 3 OtherIncarnation(now) } if |reply| match reply {
    GatewayReply::Snapshot { as_of, .. } => is_number(*as_of),
    GatewayReply::Packets(_) | GatewayReply::OtherIncarnation(_) => true,
});

fn is_number(number: u64) -> bool {
    (1..=NUMBER_MAX).contains(&number)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use whimbrel_cluster::rpc::transferred;
    use whimbrel_model::Timestamp;
    use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
    use whimbrel_model::ports::{Confirmed, UserSessions};

    use super::*;

    fn news(gone_at: Option<i64>) -> SessionChange {
        SessionChange {
            uid: Uid::new("eva").unwrap(),
            session: OnlineSession {
                session: SessionId { gateway: gateway(), number: 9 },
                platform: Platform::new("ios").unwrap(),
                device: "phone".into(),
                since: Timestamp::from_millis(-4),
            },
            gone_at: gone_at.map(Timestamp::from_millis),
        }
    }

    fn gateway() -> GatewayId {
        GatewayId { node: 3, incarnation: 12 }
    }

    fn packet() -> Packet {
        Packet { gateway: gateway(), address: "host:1".into(), number: 5, news: vec![news(None), news(Some(0))] }
    }

    #[test]
    fn packets_decode_to_what_was_encoded() {
        let part = ShardPacket { centre: 1, shard: 2, packet: packet() };
        let posts = transferred(&vec![PeerMessage::Relay(Arc::new(packet())), PeerMessage::Report(vec![part.clone()])])
            .unwrap();
        let [PeerMessage::Relay(relayed), PeerMessage::Report(parts)] = &posts[..] else { panic!("{posts:?}") };
        assert_eq!(**relayed, packet());
        assert_eq!(*parts, [part]);
    }

    #[test]
    fn queries_and_answers_decode_to_what_was_encoded() {
        for wanted in [QueryKind::Snapshot, QueryKind::Packets(vec![3, 5])] {
            let ask = GatewayQuery { gateway: gateway(), address: "host:1".into(), shard: 1, shards: 2, wanted };
            assert_eq!(transferred(&(ask.clone(), true)), Ok((ask, true)));
        }
        let SessionChange { uid, session, .. } = news(None);
        for answer in [
            GatewayReply::Packets(vec![packet()]),
            GatewayReply::Packets(Vec::new()),
            GatewayReply::Snapshot { as_of: 4, sessions: vec![(uid, session.clone())] },
            GatewayReply::OtherIncarnation(None),
            GatewayReply::OtherIncarnation(Some(gateway())),
        ] {
            assert_eq!(transferred(&answer).as_ref(), Ok(&answer));
        }
        let user = UserSessions { sessions: vec![session], last_seen: Some(Timestamp::from_millis(0)) };
        let heard = Confirmed { ago_ms: None, found: vec![user, UserSessions::default()] };
        assert_eq!(transferred(&heard).as_ref(), Ok(&heard));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let with = |change: fn(&mut Packet)| {
            let mut changed = packet();
            change(&mut changed);
            transferred(&changed)
        };
        assert!(with(|_| ()).is_ok());
        assert!(with(|packet| packet.gateway.incarnation += 1).is_err(), "sessions of another gateway");
        assert!(with(|packet| packet.number = 0).is_err());
        assert!(with(|packet| packet.number = u64::MAX).is_err());
        assert!(with(|packet| packet.news[0].session.device = "\0".into()).is_err());
        let ask =
            GatewayQuery { gateway: gateway(), address: "".into(), shard: 2, shards: 2, wanted: QueryKind::Snapshot };
        assert!(transferred(&ask).is_err());
    }
}
