//! People: users with devices, the platforms that those are of, and the sessions and seats that they have.
//!
//! A *session* is one connection of a device, held by a gateway. A *seat* is what stays when it ends: what a platform, or a device of a
//! platform that may have many, has acknowledged of its user's inbox.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::partitioner::partition_of;

/// Bytes of a user's id.
pub const UID_MAX_BYTES: usize = 128;
/// Characters of a platform's name.
pub const PLATFORM_MAX_CHARS: usize = 32;
/// Bytes of a device's name.
pub const DEVICE_MAX_BYTES: usize = 128;

/// What the catalogue's keys of platforms start with: [`PlatformSettings`] as JSON follow under the platform's name.
pub const PLATFORM_PREFIX: &str = "platforms/";

/// Defaults of a platform that nobody configured.
pub const MAX_STORED_DEFAULT: u32 = 1_000;
pub const TTL_DEFAULT: Duration = Duration::from_secs(7 * 86_400);
pub const ACK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// A user's id: 1 to 128 bytes without control characters. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Arc<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeopleNameError {
    #[error("a user's id has 1 to {UID_MAX_BYTES} bytes and no control characters")]
    BadUid,
    #[error(
        "a platform's name has 1 to {PLATFORM_MAX_CHARS} characters of a-z 0-9 _ - and begins with a letter or digit"
    )]
    BadPlatform,
    #[error("a device's name has at most {DEVICE_MAX_BYTES} bytes and no control characters")]
    BadDevice,
}

impl Uid {
    pub fn new(text: &str) -> Result<Self, PeopleNameError> {
        check_uid(text).map(|()| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The partition of `_push` that everything about the user goes through: as any topic's key is placed.
    pub fn partition(&self, partitions: u32) -> u32 {
        partition_of(self.0.as_bytes(), partitions)
    }
}

impl Borrow<str> for Uid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

/// Whether a text can be a user's id, for whoever needs no [`Uid`] of it.
pub fn check_uid(text: &str) -> Result<(), PeopleNameError> {
    let is_good = (1..=UID_MAX_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    if is_good { Ok(()) } else { Err(PeopleNameError::BadUid) }
}

/// A platform's name: `ios`, `web`. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Platform(Arc<str>);

impl Platform {
    pub fn new(text: &str) -> Result<Self, PeopleNameError> {
        let is_good = (1..=PLATFORM_MAX_CHARS).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'))
            && !text.starts_with(['_', '-']);
        if is_good { Ok(Self(text.into())) } else { Err(PeopleNameError::BadPlatform) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Platform {
    type Error = PeopleNameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(&text)
    }
}

impl From<Platform> for String {
    fn from(platform: Platform) -> Self {
        platform.0.as_ref().to_owned()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

/// A device's name, possibly empty: a device that did not say.
pub fn check_device(text: &str) -> Result<(), PeopleNameError> {
    let is_good = text.len() <= DEVICE_MAX_BYTES && !text.chars().any(char::is_control);
    if is_good { Ok(()) } else { Err(PeopleNameError::BadDevice) }
}

/// How many sessions a user may have on a platform at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum SessionsRule {
    /// One: the newest wins, the old one is kicked.
    #[default]
    Replace,
    /// One: a newer one is turned away.
    Reject,
    /// So many, one for each device: beyond, the oldest is kicked.
    Many(u32),
}

/// What a platform keeps, how much, whether it is woken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlatformSettings {
    /// Whether stored messages are kept for it; otherwise they reach it only live.
    pub store: bool,
    /// Stored messages that wait for one seat; beyond, the oldest go.
    pub max_stored: u32,
    pub ttl_ms: u64,
    /// Whether its devices are woken by notices.
    pub notify: bool,
    pub sessions: SessionsRule,
    pub ack_timeout_ms: u64,
}

impl Default for PlatformSettings {
    fn default() -> Self {
        Self {
            store: true,
            max_stored: MAX_STORED_DEFAULT,
            ttl_ms: TTL_DEFAULT.as_millis() as u64,
            notify: true,
            sessions: SessionsRule::Replace,
            ack_timeout_ms: ACK_TIMEOUT_DEFAULT.as_millis() as u64,
        }
    }
}

/// A gateway as long as its lease lasts. One that comes back is another incarnation, and nothing of the earlier one is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatewayId {
    /// Its node number.
    pub node: u16,
    /// Greater than every earlier one of the same node.
    pub incarnation: u64,
}

impl fmt::Display for GatewayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.node, self.incarnation)
    }
}

/// A session: the gateway that holds the connection, and its number there, never used twice by one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId {
    pub gateway: GatewayId,
    pub number: u64,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.gateway, self.number)
    }
}

impl SessionId {
    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let node = parts.next()?.parse().ok()?;
        let incarnation = u64::from_str_radix(parts.next()?, 16).ok()?;
        let number = u64::from_str_radix(parts.next()?, 16).ok()?;
        parts.next().is_none().then_some(Self { gateway: GatewayId { node, incarnation }, number })
    }
}

/// A session as presence shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnlineSession {
    pub session: SessionId,
    pub platform: Platform,
    pub device: Box<str>,
    pub since: Timestamp,
}

/// The code that a connection is closed with. 4000–4099: do not reconnect; 4100–4199: reconnect now; 4200–4299: reconnect after the delay
/// in the reason; 4300–4399: get a new token first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseCode {
    /// A frame that cannot be understood, or is out of turn.
    BadFrame,
    /// Another session of the same platform took its place.
    Replaced,
    /// Somebody kicked it; the reason is theirs.
    Kicked,
    /// The platform lets no second session in.
    Rejected,
    /// More than a connection may send or be sent.
    TooLarge,
    /// The device did not acknowledge what it was sent: it may come back and resume.
    NoAck,
    /// The inbox is another than the one that the session began with: resume.
    EpochChanged,
    /// It answered no ping.
    Silent,
    /// It did not read what it was sent.
    Slow,
    /// The gateway goes down: reconnect after the delay.
    GoingAway,
    /// No carrier has the user's partition at the moment.
    NoOwner,
    /// Too many connections, or too many at once.
    Overloaded,
    BadToken,
    TokenExpired,
}

impl CloseCode {
    pub const ALL: [Self; 14] = [
        Self::BadFrame,
        Self::Replaced,
        Self::Kicked,
        Self::Rejected,
        Self::TooLarge,
        Self::NoAck,
        Self::EpochChanged,
        Self::Silent,
        Self::Slow,
        Self::GoingAway,
        Self::NoOwner,
        Self::Overloaded,
        Self::BadToken,
        Self::TokenExpired,
    ];

    pub fn number(self) -> u16 {
        match self {
            Self::BadFrame => 4000,
            Self::Replaced => 4001,
            Self::Kicked => 4002,
            Self::Rejected => 4003,
            Self::TooLarge => 4004,
            Self::NoAck => 4100,
            Self::EpochChanged => 4101,
            Self::Silent => 4102,
            Self::Slow => 4103,
            Self::GoingAway => 4200,
            Self::NoOwner => 4201,
            Self::Overloaded => 4202,
            Self::BadToken => 4300,
            Self::TokenExpired => 4301,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::BadFrame => "bad_frame",
            Self::Replaced => "replaced",
            Self::Kicked => "kicked",
            Self::Rejected => "rejected",
            Self::TooLarge => "too_large",
            Self::NoAck => "no_ack",
            Self::EpochChanged => "epoch_changed",
            Self::Silent => "silent",
            Self::Slow => "slow",
            Self::GoingAway => "going_away",
            Self::NoOwner => "no_owner",
            Self::Overloaded => "overloaded",
            Self::BadToken => "bad_token",
            Self::TokenExpired => "token_expired",
        }
    }

    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.number() == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_people_are_judged() {
        assert!(Uid::new("用户-1 x").is_ok());
        assert_eq!(Uid::new(""), Err(PeopleNameError::BadUid));
        assert_eq!(Uid::new("a\nb"), Err(PeopleNameError::BadUid));
        assert_eq!(Uid::new(&"x".repeat(129)), Err(PeopleNameError::BadUid));
        assert!(Platform::new("ios").is_ok());
        for bad in ["", "iOS", "_x", "a b", &"x".repeat(33)] {
            assert_eq!(Platform::new(bad), Err(PeopleNameError::BadPlatform), "{bad}");
        }
        assert!(check_device("").is_ok());
        assert_eq!(check_device("a\0"), Err(PeopleNameError::BadDevice));
    }

    #[test]
    fn a_session_reads_as_it_was_written() {
        let session = SessionId { gateway: GatewayId { node: 7, incarnation: 0x19ab }, number: 255 };
        assert_eq!(session.to_string(), "7-19ab-ff");
        assert_eq!(SessionId::parse("7-19ab-ff"), Some(session));
        for bad in ["", "7", "7-19ab", "7-19ab-ff-1", "x-1-1", "7-zz-1"] {
            assert_eq!(SessionId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_close_code_is_in_the_range_that_says_what_to_do() {
        for code in CloseCode::ALL {
            assert!((4000..4400).contains(&code.number()));
            assert_eq!(CloseCode::from_number(code.number()), Some(code));
        }
    }
}
