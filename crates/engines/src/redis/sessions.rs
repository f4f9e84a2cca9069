//! The `Sessions` port on Redis: the sessions of a shard. Each step is one script. All times are by the clock of Redis, except those in the
//! news.
//!
//! | key | content |
//! | --- | --- |
//! | `meta` | a hash: the version of the last step, and the time as of which the writer vouched for the sessions |
//! | `void` | a hash: node → its newest incarnation that is void |
//! | `pictures` | a hash: gateway → the version of its last whole picture |
//! | `users` | a hash: user → its sessions, concatenated |
//! | `sessions` | a hash: session → version, user, and the visible data of the session |
//! | `by_gateway` | a sorted set of equal scores: the sessions, so that those of a gateway are adjacent |
//! | `gone`, `gone_since` | ended sessions with their versions, for a while: late news that such a session began is ignored |
//! | `told` | a set: the users that were reported online by the last step which touched them |
//! | `seen` | a sorted set: user, by the time when it was last online |
//!
//! Every key is `<prefix>:{presence:<shard>}:<name>`.

use bytes::{Buf as _, Bytes};
use redis::Cmd;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_model::ports::{Confirmed, PortFuture, SessionUpdate, Sessions, SessionsError, UserChange, UserSessions};

use super::connection::{RedisCallError, RedisConnection, Script};
use super::reply::{ReplyParts, number_of};
use super::write::decimal;

/// The time for which an ended session is remembered. It is longer than gateways keep packets for repetition.
const GONE_KEPT_MS: u64 = 120_000;
/// The maximum number of ended sessions of a shard that are remembered. Beyond it, the oldest are removed sooner.
const GONE_MAX: usize = 1 << 18;
/// The maximum number of users of a shard whose last-seen time is remembered. Beyond it, the oldest are removed.
const SEEN_MAX: usize = 1 << 20;
/// Digits of a node's number.
const NODE_DIGITS: usize = 5;
const NUMBER_DIGITS: usize = 20;

/// The keys of `sessions_write.lua`, in its order.
const NAMES: [&str; 10] =
    ["meta", "void", "pictures", "users", "sessions", "by_gateway", "gone", "gone_since", "told", "seen"];

pub struct RedisSessions {
    connection: RedisConnection,
    write: Script,
    void: Script,
    of: Script,
    gateways: Script,
    keep_alive: Script,
}

impl RedisSessions {
    pub fn new(connection: RedisConnection) -> Self {
        Self {
            connection,
            write: Script::new(include_str!("lua/sessions_write.lua")),
            void: Script::new(include_str!("lua/sessions_void.lua")),
            of: Script::new(include_str!("lua/sessions_of.lua")),
            gateways: Script::new(include_str!("lua/sessions_gateways.lua")),
            keep_alive: Script::new(include_str!("lua/sessions_keep_alive.lua")),
        }
    }

    fn keys(&self, shard: u32, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("{}:{{presence:{shard}}}:{name}", self.connection.prefix())).collect()
    }

    async fn step(
        &self,
        shard: u32,
        what: &str,
        arguments: impl FnOnce(&mut Cmd),
    ) -> Result<Vec<UserChange>, SessionsError> {
        let mut call = self.write.on(self.keys(shard, &NAMES).iter());
        call.arg(GONE_KEPT_MS).arg(GONE_MAX).arg(SEEN_MAX).arg(what);
        arguments(&mut call);
        let mut answer = ReplyParts::of(self.connection.run(&self.write, call).await?)?;
        let version = answer.number()?;
        let mut changes = Vec::new();
        while !answer.is_over() {
            let uid = uid_of(&answer.bytes()?)?;
            let (was_online, is_online) = (answer.bytes()? == "1", answer.bytes()? == "1");
            changes.push(UserChange { uid, was_online, is_online, version });
        }
        Ok(changes)
    }
}

fn uid_of(bytes: &[u8]) -> Result<Uid, RedisCallError> {
    std::str::from_utf8(bytes).ok().and_then(|text| Uid::new(text).ok()).ok_or(RedisCallError::UnexpectedReply)
}

/// Numbers as text of fixed width, so that the text sorts as the numbers do.
fn node_text(node: u16) -> String {
    format!("{node:05}")
}

fn gateway_text(gateway: GatewayId) -> String {
    format!("{}{}", node_text(gateway.node), decimal(gateway.incarnation))
}

fn session_text(session: SessionId) -> String {
    format!("{}{}", gateway_text(session.gateway), decimal(session.number))
}

fn read_gateway(text: &[u8]) -> Option<GatewayId> {
    let (node, incarnation) = std::str::from_utf8(text).ok()?.split_at_checked(NODE_DIGITS)?;
    Some(GatewayId { node: node.parse().ok()?, incarnation: incarnation.parse().ok()? })
}

fn read_session(text: &[u8]) -> Option<SessionId> {
    let (gateway, number) = text.split_at_checked(NODE_DIGITS + NUMBER_DIGITS)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    Some(SessionId { gateway: read_gateway(gateway)?, number })
}

/// The visible data of a session: start time (8 bytes), length of the platform's name (one byte), that name, and the device.
fn encode(session: &OnlineSession) -> Vec<u8> {
    let platform = session.platform.as_str().as_bytes();
    // A platform's name has at most 32 bytes.
    let length = platform.len() as u8;
    [&session.since.as_millis().to_be_bytes(), &[length][..], platform, session.device.as_bytes()].concat()
}

fn decode(session: SessionId, mut body: Bytes) -> Option<OnlineSession> {
    let since = Timestamp::from_millis(body.try_get_i64().ok()?);
    let length = usize::from(body.try_get_u8().ok()?);
    let (platform, device) = body.split_at_checked(length)?;
    let platform = Platform::new(std::str::from_utf8(platform).ok()?).ok()?;
    Some(OnlineSession { session, platform, device: std::str::from_utf8(device).ok()?.into(), since })
}

impl From<RedisCallError> for SessionsError {
    fn from(error: RedisCallError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl Sessions for RedisSessions {
    fn put(&self, shard: u32, news: Vec<SessionUpdate>) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        Box::pin(async move {
            self.step(shard, "put", |call| {
                for SessionUpdate { uid, version, session, gone_at } in &news {
                    call.arg(session_text(session.session)).arg(uid.as_str()).arg(decimal(*version));
                    match gone_at {
                        None => call.arg("").arg(encode(session)),
                        Some(at) => call.arg(at.as_millis()).arg(""),
                    };
                }
            })
            .await
        })
    }

    fn replace(
        &self,
        shard: u32,
        gateway: GatewayId,
        version: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        Box::pin(async move {
            self.step(shard, "replace", |call| {
                call.arg(gateway_text(gateway)).arg(decimal(version));
                for (uid, session) in sessions.iter().filter(|(_, session)| session.session.gateway == gateway) {
                    call.arg(session_text(session.session)).arg(uid.as_str()).arg(encode(session));
                }
            })
            .await
        })
    }

    fn void(&self, shard: u32, gateway: GatewayId) -> PortFuture<'_, Result<(), SessionsError>> {
        Box::pin(async move {
            let mut call = self.void.on(self.keys(shard, &["void", "pictures"]).iter());
            call.arg(node_text(gateway.node)).arg(decimal(gateway.incarnation));
            self.connection.run(&self.void, call).await?;
            Ok(())
        })
    }

    fn sweep(
        &self,
        shard: u32,
        limit: usize,
        now: Timestamp,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        Box::pin(async move {
            self.step(shard, "sweep", |call| {
                call.arg(limit).arg(now.as_millis());
            })
            .await
        })
    }

    fn gateways(&self, shard: u32) -> PortFuture<'_, Result<Vec<GatewayId>, SessionsError>> {
        Box::pin(async move {
            let call = self.gateways.on(self.keys(shard, &["void", "by_gateway"]).iter());
            let mut answer = ReplyParts::of(self.connection.run(&self.gateways, call).await?)?;
            let mut gateways = Vec::new();
            while !answer.is_over() {
                gateways.push(read_gateway(&answer.bytes()?).ok_or(RedisCallError::UnexpectedReply)?);
            }
            Ok(gateways)
        })
    }

    fn keep_alive(&self, shard: u32, behind_ms: u64) -> PortFuture<'_, Result<(), SessionsError>> {
        Box::pin(async move {
            let mut call = self.keep_alive.on(self.keys(shard, &["meta"]).iter());
            call.arg(behind_ms);
            self.connection.run(&self.keep_alive, call).await?;
            Ok(())
        })
    }

    fn of(&self, shard: u32, uids: Vec<Uid>) -> PortFuture<'_, Result<Confirmed<Vec<UserSessions>>, SessionsError>> {
        Box::pin(async move {
            let mut call = self.of.on(self.keys(shard, &["meta", "void", "users", "sessions", "seen"]).iter());
            for uid in &uids {
                call.arg(uid.as_str());
            }
            let mut answer = ReplyParts::of(self.connection.run(&self.of, call).await?)?;
            let ago = answer.optional()?;
            let ago_ms = ago.map(|ago| number_of(&ago)).transpose()?;
            let mut found = Vec::with_capacity(uids.len());
            for _ in &uids {
                let seen = answer.optional()?.map(|seen| number_of::<f64>(&seen)).transpose()?;
                let count: usize = answer.number()?;
                let mut sessions = Vec::new();
                for _ in 0..count {
                    let (id, body) = (answer.bytes()?, answer.bytes()?);
                    sessions.push(
                        read_session(&id).and_then(|id| decode(id, body)).ok_or(RedisCallError::UnexpectedReply)?,
                    );
                }
                sessions.sort_unstable_by_key(|session: &OnlineSession| (session.since, session.session));
                let last_seen = seen.map(|seen| Timestamp::from_millis(seen as i64));
                found.push(UserSessions { sessions, last_seen });
            }
            Ok(Confirmed { ago_ms, found })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_read_as_written_and_a_damaged_one_is_rejected() {
        let gateway = GatewayId { node: u16::MAX, incarnation: u64::MAX };
        let session = OnlineSession {
            session: SessionId { gateway, number: 7 },
            platform: Platform::new("ios").unwrap(),
            device: "phone".into(),
            since: Timestamp::from_millis(-5),
        };
        let id = read_session(session_text(session.session).as_bytes()).unwrap();
        let body = encode(&session);
        assert_eq!(decode(id, body.clone().into()), Some(session));
        for len in 0..12 {
            assert_eq!(decode(id, Bytes::copy_from_slice(&body[..len])), None);
        }
        assert_eq!(read_session(b"00001"), None);
    }
}
