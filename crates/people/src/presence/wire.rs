//! The encoding of presence messages between nodes. Malformed messages of other nodes are rejected.

use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid, check_device};
use whimbrel_model::ports::{Confirmed, UserSessions};

use super::limits::{ASKED_NUMBERS_MAX, NEWS_PER_PACKET_MAX, READ_USERS_MAX};
use super::packet::{GatewayQuery, GatewayReply, Packet, QueryKind, SessionChange, ShardPacket};
use super::remote::PeerMessage;
use protocol::presence_ask_response::Answer as WireAnswer;
use protocol::presence_post::Post as WirePost;
use whimbrel_cluster::wire::{Malformed, protocol};

/// The highest packet number: versions are computed from it.
const NUMBER_MAX: u64 = u64::MAX / (NEWS_PER_PACKET_MAX as u64 + 2);

pub fn to_report(posts: &[PeerMessage]) -> protocol::ReportRequest {
    let posts = posts.iter().map(|post| match post {
        PeerMessage::Relay(packet) => WirePost::Relay(to_packet(packet)),
        PeerMessage::Report(parts) => {
            let parts = parts.iter().map(|part| protocol::PresencePart {
                centre: part.centre,
                shard: part.shard,
                packet: Some(to_packet(&part.packet)),
            });
            WirePost::Report(protocol::PresenceParts { parts: parts.collect() })
        }
    });
    protocol::ReportRequest { posts: posts.map(|post| protocol::PresencePost { post: Some(post) }).collect() }
}

pub fn from_report(request: protocol::ReportRequest) -> Result<Vec<PeerMessage>, Malformed> {
    let posts = request.posts.into_iter().map(|post| match post.post.ok_or(Malformed("a message is empty"))? {
        WirePost::Relay(packet) => Ok(PeerMessage::Relay(Arc::new(from_packet(packet)?))),
        WirePost::Report(parts) => {
            let parts = parts.parts.into_iter().map(|part| {
                let packet = from_packet(part.packet.ok_or(Malformed("a part has no packet"))?)?;
                Ok(ShardPacket { centre: part.centre, shard: part.shard, packet })
            });
            parts.collect::<Result<_, _>>().map(PeerMessage::Report)
        }
    });
    posts.collect()
}

pub fn to_ask(ask: &GatewayQuery, forward: bool) -> protocol::PresenceAskRequest {
    protocol::PresenceAskRequest {
        gateway: Some(to_gateway(ask.gateway)),
        address: ask.address.to_string(),
        shard: ask.shard,
        shards: ask.shards,
        numbers: match &ask.wanted {
            QueryKind::Packets(numbers) => numbers.clone(),
            QueryKind::Snapshot => Vec::new(),
        },
        forward,
    }
}

pub fn from_ask(request: protocol::PresenceAskRequest) -> Result<(GatewayQuery, bool), Malformed> {
    if request.shard >= request.shards {
        return Err(Malformed("the shard does not exist"));
    }
    if request.numbers.len() > ASKED_NUMBERS_MAX {
        return Err(Malformed("too many numbers"));
    }
    let ask = GatewayQuery {
        gateway: from_gateway(request.gateway)?,
        address: request.address.into(),
        shard: request.shard,
        shards: request.shards,
        wanted: if request.numbers.is_empty() { QueryKind::Snapshot } else { QueryKind::Packets(request.numbers) },
    };
    Ok((ask, request.forward))
}

pub fn to_answer(answer: GatewayReply) -> protocol::PresenceAskResponse {
    let answer = match answer {
        GatewayReply::Packets(packets) => {
            WireAnswer::Packets(protocol::PresencePackets { packets: packets.iter().map(to_packet).collect() })
        }
        GatewayReply::Snapshot { as_of, sessions } => {
            let sessions = sessions.iter().map(|(uid, session)| to_news(uid, session, None)).collect();
            WireAnswer::Picture(protocol::PresencePicture { as_of, sessions })
        }
        GatewayReply::OtherIncarnation(now) => WireAnswer::Other(protocol::PresenceOther { now: now.map(to_gateway) }),
    };
    protocol::PresenceAskResponse { answer: Some(answer) }
}

/// Decodes the answer of that gateway. The sessions of a snapshot get its id.
pub fn from_answer(of: GatewayId, response: protocol::PresenceAskResponse) -> Result<GatewayReply, Malformed> {
    Ok(match response.answer.ok_or(Malformed("the answer is empty"))? {
        WireAnswer::Packets(packets) => {
            GatewayReply::Packets(packets.packets.into_iter().map(from_packet).collect::<Result<_, _>>()?)
        }
        WireAnswer::Picture(snapshot) => {
            let sessions = snapshot.sessions.into_iter().map(|news| from_news(of, news));
            let sessions = sessions.map(|news| news.map(|news| (news.uid, news.session)));
            GatewayReply::Snapshot {
                as_of: from_number(snapshot.as_of)?,
                sessions: sessions.collect::<Result<_, _>>()?,
            }
        }
        WireAnswer::Other(other) => {
            GatewayReply::OtherIncarnation(other.now.map(|now| from_gateway(Some(now))).transpose()?)
        }
    })
}

pub fn to_read(centre: u32, shard: u32, uids: &[Uid]) -> protocol::PresenceReadRequest {
    protocol::PresenceReadRequest { centre, shard, uids: uids.iter().map(ToString::to_string).collect() }
}

pub fn from_read(request: protocol::PresenceReadRequest) -> Result<(u32, u32, Vec<Uid>), Malformed> {
    if request.uids.len() > READ_USERS_MAX {
        return Err(Malformed("too many users"));
    }
    let uids = request.uids.iter().map(|uid| from_uid(uid)).collect::<Result<_, _>>()?;
    Ok((request.centre, request.shard, uids))
}

pub fn to_heard(heard: Confirmed<Vec<UserSessions>>) -> protocol::PresenceReadResponse {
    let users = heard.found.into_iter().map(|user| protocol::PresenceUser {
        sessions: user.sessions.iter().map(to_session).collect(),
        last_seen_ms: user.last_seen.map(Timestamp::as_millis),
    });
    protocol::PresenceReadResponse { ago_ms: heard.ago_ms, users: users.collect() }
}

pub fn from_heard(response: protocol::PresenceReadResponse) -> Result<Confirmed<Vec<UserSessions>>, Malformed> {
    let users = response.users.into_iter().map(|user| {
        Ok(UserSessions {
            sessions: user.sessions.into_iter().map(from_session).collect::<Result<_, _>>()?,
            last_seen: user.last_seen_ms.map(Timestamp::from_millis),
        })
    });
    Ok(Confirmed { ago_ms: response.ago_ms, found: users.collect::<Result<_, _>>()? })
}

fn to_packet(packet: &Packet) -> protocol::PresencePacket {
    protocol::PresencePacket {
        gateway: Some(to_gateway(packet.gateway)),
        address: packet.address.to_string(),
        number: packet.number,
        news: packet.news.iter().map(|news| to_news(&news.uid, &news.session, news.gone_at)).collect(),
    }
}

fn from_packet(packet: protocol::PresencePacket) -> Result<Packet, Malformed> {
    let gateway = from_gateway(packet.gateway)?;
    if packet.news.len() > NEWS_PER_PACKET_MAX {
        return Err(Malformed("too many changes in a packet"));
    }
    let news = packet.news.into_iter().map(|news| from_news(gateway, news)).collect::<Result<_, _>>()?;
    Ok(Packet { gateway, address: packet.address.into(), number: from_number(packet.number)?, news })
}

fn to_news(uid: &Uid, session: &OnlineSession, gone_at: Option<Timestamp>) -> protocol::PresenceNews {
    protocol::PresenceNews {
        uid: uid.to_string(),
        number: session.session.number,
        platform: session.platform.to_string(),
        device: session.device.to_string(),
        since_ms: session.since.as_millis(),
        gone_at_ms: gone_at.map(Timestamp::as_millis),
    }
}

fn from_news(gateway: GatewayId, news: protocol::PresenceNews) -> Result<SessionChange, Malformed> {
    let session = protocol::PresenceSession {
        gateway: Some(to_gateway(gateway)),
        number: news.number,
        platform: news.platform,
        device: news.device,
        since_ms: news.since_ms,
    };
    let gone_at = news.gone_at_ms.map(Timestamp::from_millis);
    Ok(SessionChange { uid: from_uid(&news.uid)?, session: from_session(session)?, gone_at })
}

fn to_session(session: &OnlineSession) -> protocol::PresenceSession {
    protocol::PresenceSession {
        gateway: Some(to_gateway(session.session.gateway)),
        number: session.session.number,
        platform: session.platform.to_string(),
        device: session.device.to_string(),
        since_ms: session.since.as_millis(),
    }
}

fn from_session(session: protocol::PresenceSession) -> Result<OnlineSession, Malformed> {
    check_device(&session.device).map_err(|_| Malformed("no device"))?;
    Ok(OnlineSession {
        session: SessionId { gateway: from_gateway(session.gateway)?, number: session.number },
        platform: Platform::new(&session.platform).map_err(|_| Malformed("no platform"))?,
        device: session.device.into(),
        since: Timestamp::from_millis(session.since_ms),
    })
}

fn to_gateway(gateway: GatewayId) -> protocol::PresenceGateway {
    protocol::PresenceGateway { node: u32::from(gateway.node), incarnation: gateway.incarnation }
}

fn from_gateway(gateway: Option<protocol::PresenceGateway>) -> Result<GatewayId, Malformed> {
    let gateway = gateway.ok_or(Malformed("the gateway is missing"))?;
    let node = u16::try_from(gateway.node).map_err(|_| Malformed("invalid node number"))?;
    Ok(GatewayId { node, incarnation: gateway.incarnation })
}

fn from_number(number: u64) -> Result<u64, Malformed> {
    if (1..=NUMBER_MAX).contains(&number) { Ok(number) } else { Err(Malformed("invalid packet number")) }
}

fn from_uid(uid: &str) -> Result<Uid, Malformed> {
    Uid::new(uid).map_err(|_| Malformed("invalid user id"))
}

#[cfg(test)]
mod tests {
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
        let posts =
            from_report(to_report(&[PeerMessage::Relay(Arc::new(packet())), PeerMessage::Report(vec![part.clone()])]))
                .unwrap();
        let [PeerMessage::Relay(relayed), PeerMessage::Report(parts)] = &posts[..] else { panic!("{posts:?}") };
        assert_eq!(**relayed, packet());
        assert_eq!(*parts, [part]);
    }

    #[test]
    fn queries_and_answers_decode_to_what_was_encoded() {
        for wanted in [QueryKind::Snapshot, QueryKind::Packets(vec![3, 5])] {
            let ask = GatewayQuery { gateway: gateway(), address: "host:1".into(), shard: 1, shards: 2, wanted };
            assert_eq!(from_ask(to_ask(&ask, true)), Ok((ask, true)));
        }
        let SessionChange { uid, session, .. } = news(None);
        for answer in [
            GatewayReply::Packets(vec![packet()]),
            GatewayReply::Packets(Vec::new()),
            GatewayReply::Snapshot { as_of: 4, sessions: vec![(uid, session.clone())] },
            GatewayReply::OtherIncarnation(None),
            GatewayReply::OtherIncarnation(Some(gateway())),
        ] {
            assert_eq!(from_answer(gateway(), to_answer(answer.clone())), Ok(answer));
        }
        let user = UserSessions { sessions: vec![session], last_seen: Some(Timestamp::from_millis(0)) };
        let heard = Confirmed { ago_ms: None, found: vec![user, UserSessions::default()] };
        assert_eq!(from_heard(to_heard(heard.clone())), Ok(heard));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let with = |change: fn(&mut protocol::PresencePacket)| {
            let mut wire = to_packet(&packet());
            change(&mut wire);
            from_packet(wire)
        };
        assert!(with(|packet| packet.gateway = None).is_err());
        assert!(with(|packet| packet.number = 0).is_err());
        assert!(with(|packet| packet.number = u64::MAX).is_err());
        assert!(with(|packet| packet.news[0].uid = String::new()).is_err());
        assert!(with(|packet| packet.news[0].platform = "?".to_owned()).is_err());
        assert!(with(|packet| packet.news[0].device = "\0".to_owned()).is_err());
        let ask =
            GatewayQuery { gateway: gateway(), address: "".into(), shard: 2, shards: 2, wanted: QueryKind::Snapshot };
        assert!(from_ask(to_ask(&ask, false)).is_err());
    }
}
