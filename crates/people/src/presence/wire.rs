//! Presence as it travels between nodes. What comes from another node is checked as anything from a network is: what cannot be understood is
//! refused, never guessed.

use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid, check_device};
use whimbrel_model::ports::{Heard, UserSessions};

use super::limits::{ASKED_NUMBERS_MAX, NEWS_PER_PACKET_MAX, READ_USERS_MAX};
use super::packet::{Answer, AskGateway, News, Packet, ShardPacket, Wanted};
use super::remote::Post;
use protocol::presence_ask_response::Answer as WireAnswer;
use protocol::presence_post::Post as WirePost;
use whimbrel_cluster::wire::protocol;

/// The highest number of a packet: versions are made from it.
const NUMBER_MAX: u64 = u64::MAX / (NEWS_PER_PACKET_MAX as u64 + 2);

/// What another node sent cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("another node sent what cannot be understood: {0}")]
pub struct Garbled(&'static str);

pub fn to_report(posts: &[Post]) -> protocol::ReportRequest {
    let posts = posts.iter().map(|post| match post {
        Post::Relay(packet) => WirePost::Relay(to_packet(packet)),
        Post::Report(parts) => {
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

pub fn from_report(request: protocol::ReportRequest) -> Result<Vec<Post>, Garbled> {
    let posts = request.posts.into_iter().map(|post| match post.post.ok_or(Garbled("a post without anything"))? {
        WirePost::Relay(packet) => Ok(Post::Relay(Arc::new(from_packet(packet)?))),
        WirePost::Report(parts) => {
            let parts = parts.parts.into_iter().map(|part| {
                let packet = from_packet(part.packet.ok_or(Garbled("a part without a packet"))?)?;
                Ok(ShardPacket { centre: part.centre, shard: part.shard, packet })
            });
            parts.collect::<Result<_, _>>().map(Post::Report)
        }
    });
    posts.collect()
}

pub fn to_ask(ask: &AskGateway, forward: bool) -> protocol::PresenceAskRequest {
    protocol::PresenceAskRequest {
        gateway: Some(to_gateway(ask.gateway)),
        address: ask.address.to_string(),
        shard: ask.shard,
        shards: ask.shards,
        numbers: match &ask.wanted {
            Wanted::Packets(numbers) => numbers.clone(),
            Wanted::Picture => Vec::new(),
        },
        forward,
    }
}

pub fn from_ask(request: protocol::PresenceAskRequest) -> Result<(AskGateway, bool), Garbled> {
    if request.shard >= request.shards {
        return Err(Garbled("a shard beyond the last"));
    }
    if request.numbers.len() > ASKED_NUMBERS_MAX {
        return Err(Garbled("too many numbers"));
    }
    let ask = AskGateway {
        gateway: from_gateway(request.gateway)?,
        address: request.address.into(),
        shard: request.shard,
        shards: request.shards,
        wanted: if request.numbers.is_empty() { Wanted::Picture } else { Wanted::Packets(request.numbers) },
    };
    Ok((ask, request.forward))
}

pub fn to_answer(answer: Answer) -> protocol::PresenceAskResponse {
    let answer = match answer {
        Answer::Packets(packets) => {
            WireAnswer::Packets(protocol::PresencePackets { packets: packets.iter().map(to_packet).collect() })
        }
        Answer::Picture { as_of, sessions } => {
            let sessions = sessions.iter().map(|(uid, session)| to_news(uid, session, None)).collect();
            WireAnswer::Picture(protocol::PresencePicture { as_of, sessions })
        }
        Answer::Other(now) => WireAnswer::Other(protocol::PresenceOther { now: now.map(to_gateway) }),
    };
    protocol::PresenceAskResponse { answer: Some(answer) }
}

/// What the gateway that was asked answered: a picture's sessions are its own.
pub fn from_answer(of: GatewayId, response: protocol::PresenceAskResponse) -> Result<Answer, Garbled> {
    Ok(match response.answer.ok_or(Garbled("an answer that tells nothing"))? {
        WireAnswer::Packets(packets) => {
            Answer::Packets(packets.packets.into_iter().map(from_packet).collect::<Result<_, _>>()?)
        }
        WireAnswer::Picture(picture) => {
            let sessions = picture.sessions.into_iter().map(|news| from_news(of, news));
            let sessions = sessions.map(|news| news.map(|news| (news.uid, news.session)));
            Answer::Picture { as_of: from_number(picture.as_of)?, sessions: sessions.collect::<Result<_, _>>()? }
        }
        WireAnswer::Other(other) => Answer::Other(other.now.map(|now| from_gateway(Some(now))).transpose()?),
    })
}

pub fn to_read(centre: u32, shard: u32, uids: &[Uid]) -> protocol::PresenceReadRequest {
    protocol::PresenceReadRequest { centre, shard, uids: uids.iter().map(ToString::to_string).collect() }
}

pub fn from_read(request: protocol::PresenceReadRequest) -> Result<(u32, u32, Vec<Uid>), Garbled> {
    if request.uids.len() > READ_USERS_MAX {
        return Err(Garbled("too many users"));
    }
    let uids = request.uids.iter().map(|uid| from_uid(uid)).collect::<Result<_, _>>()?;
    Ok((request.centre, request.shard, uids))
}

pub fn to_heard(heard: Heard<Vec<UserSessions>>) -> protocol::PresenceReadResponse {
    let users = heard.found.into_iter().map(|user| protocol::PresenceUser {
        sessions: user.sessions.iter().map(to_session).collect(),
        last_seen_ms: user.last_seen.map(Timestamp::as_millis),
    });
    protocol::PresenceReadResponse { ago_ms: heard.ago_ms, users: users.collect() }
}

pub fn from_heard(response: protocol::PresenceReadResponse) -> Result<Heard<Vec<UserSessions>>, Garbled> {
    let users = response.users.into_iter().map(|user| {
        Ok(UserSessions {
            sessions: user.sessions.into_iter().map(from_session).collect::<Result<_, _>>()?,
            last_seen: user.last_seen_ms.map(Timestamp::from_millis),
        })
    });
    Ok(Heard { ago_ms: response.ago_ms, found: users.collect::<Result<_, _>>()? })
}

fn to_packet(packet: &Packet) -> protocol::PresencePacket {
    protocol::PresencePacket {
        gateway: Some(to_gateway(packet.gateway)),
        address: packet.address.to_string(),
        number: packet.number,
        news: packet.news.iter().map(|news| to_news(&news.uid, &news.session, news.gone_at)).collect(),
    }
}

fn from_packet(packet: protocol::PresencePacket) -> Result<Packet, Garbled> {
    let gateway = from_gateway(packet.gateway)?;
    if packet.news.len() > NEWS_PER_PACKET_MAX {
        return Err(Garbled("too much news in a packet"));
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

fn from_news(gateway: GatewayId, news: protocol::PresenceNews) -> Result<News, Garbled> {
    let session = protocol::PresenceSession {
        gateway: Some(to_gateway(gateway)),
        number: news.number,
        platform: news.platform,
        device: news.device,
        since_ms: news.since_ms,
    };
    let gone_at = news.gone_at_ms.map(Timestamp::from_millis);
    Ok(News { uid: from_uid(&news.uid)?, session: from_session(session)?, gone_at })
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

fn from_session(session: protocol::PresenceSession) -> Result<OnlineSession, Garbled> {
    check_device(&session.device).map_err(|_| Garbled("no device"))?;
    Ok(OnlineSession {
        session: SessionId { gateway: from_gateway(session.gateway)?, number: session.number },
        platform: Platform::new(&session.platform).map_err(|_| Garbled("no platform"))?,
        device: session.device.into(),
        since: Timestamp::from_millis(session.since_ms),
    })
}

fn to_gateway(gateway: GatewayId) -> protocol::PresenceGateway {
    protocol::PresenceGateway { node: u32::from(gateway.node), incarnation: gateway.incarnation }
}

fn from_gateway(gateway: Option<protocol::PresenceGateway>) -> Result<GatewayId, Garbled> {
    let gateway = gateway.ok_or(Garbled("no gateway"))?;
    let node = u16::try_from(gateway.node).map_err(|_| Garbled("no node"))?;
    Ok(GatewayId { node, incarnation: gateway.incarnation })
}

fn from_number(number: u64) -> Result<u64, Garbled> {
    if (1..=NUMBER_MAX).contains(&number) { Ok(number) } else { Err(Garbled("no number of a packet")) }
}

fn from_uid(uid: &str) -> Result<Uid, Garbled> {
    Uid::new(uid).map_err(|_| Garbled("no user's id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(gone_at: Option<i64>) -> News {
        News {
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
    fn packets_arrive_as_they_were_sent() {
        let part = ShardPacket { centre: 1, shard: 2, packet: packet() };
        let posts =
            from_report(to_report(&[Post::Relay(Arc::new(packet())), Post::Report(vec![part.clone()])])).unwrap();
        let [Post::Relay(relayed), Post::Report(parts)] = &posts[..] else { panic!("{posts:?}") };
        assert_eq!(**relayed, packet());
        assert_eq!(*parts, [part]);
    }

    #[test]
    fn questions_and_answers_arrive_as_they_were_meant() {
        for wanted in [Wanted::Picture, Wanted::Packets(vec![3, 5])] {
            let ask = AskGateway { gateway: gateway(), address: "host:1".into(), shard: 1, shards: 2, wanted };
            assert_eq!(from_ask(to_ask(&ask, true)), Ok((ask, true)));
        }
        let News { uid, session, .. } = news(None);
        for answer in [
            Answer::Packets(vec![packet()]),
            Answer::Packets(Vec::new()),
            Answer::Picture { as_of: 4, sessions: vec![(uid, session.clone())] },
            Answer::Other(None),
            Answer::Other(Some(gateway())),
        ] {
            assert_eq!(from_answer(gateway(), to_answer(answer.clone())), Ok(answer));
        }
        let user = UserSessions { sessions: vec![session], last_seen: Some(Timestamp::from_millis(0)) };
        let heard = Heard { ago_ms: None, found: vec![user, UserSessions::default()] };
        assert_eq!(from_heard(to_heard(heard.clone())), Ok(heard));
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
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
        let ask = AskGateway { gateway: gateway(), address: "".into(), shard: 2, shards: 2, wanted: Wanted::Picture };
        assert!(from_ask(to_ask(&ask, false)).is_err());
    }
}
