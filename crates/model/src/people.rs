//! Users and devices, their platforms, sessions and seats.
//!
//! A *session* is one connection of a device, held by a gateway. A *seat* remains after the session: the cursor of a platform, or of one
//! device on a platform with several sessions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::partitioner::partition_of;
use crate::shared_text::shared_text;

pub const UID_MAX_BYTES: usize = 128;
pub const PLATFORM_MAX_CHARS: usize = 32;
pub const DEVICE_MAX_BYTES: usize = 128;

/// The prefix of the catalogue keys of platforms; the platform's name follows. The value is [`PlatformSettings`] as JSON.
pub const PLATFORM_PREFIX: &str = "platforms/";

/// Defaults of a platform without settings.
pub const MAX_STORED_DEFAULT: u32 = 1_000;
pub const TTL_DEFAULT: Duration = Duration::from_secs(7 * 86_400);
pub const ACK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// A user's id: 1 to 128 bytes without control characters. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Arc<str>);

shared_text!(Uid);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeopleNameError {
    #[error("the user's id is not 1 to {UID_MAX_BYTES} bytes without control characters")]
    BadUid,
    #[error(
        "a platform's name has 1 to {PLATFORM_MAX_CHARS} characters of a-z 0-9 _ - and begins with a letter or digit"
    )]
    BadPlatform,
    #[error("the device's name has more than {DEVICE_MAX_BYTES} bytes, or a control character")]
    BadDevice,
}

impl Uid {
    pub fn new(text: &str) -> Result<Self, PeopleNameError> {
        check_uid(text).map(|()| Self(text.into()))
    }

    /// The partition of `_push` for this user, selected by the hash of the id like any key.
    pub fn partition(&self, partitions: u32) -> u32 {
        partition_of(self.0.as_bytes(), partitions)
    }
}

/// Checks a user's id without allocating a [`Uid`].
pub fn check_uid(text: &str) -> Result<(), PeopleNameError> {
    let is_good = (1..=UID_MAX_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    if is_good { Ok(()) } else { Err(PeopleNameError::BadUid) }
}

/// A platform's name: `ios`, `web`. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Platform(Arc<str>);

shared_text!(Platform);

impl Platform {
    pub fn new(text: &str) -> Result<Self, PeopleNameError> {
        let is_good = (1..=PLATFORM_MAX_CHARS).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'))
            && !text.starts_with(['_', '-']);
        if is_good { Ok(Self(text.into())) } else { Err(PeopleNameError::BadPlatform) }
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

/// Checks a device's name. It may be empty: the device did not name itself.
pub fn check_device(text: &str) -> Result<(), PeopleNameError> {
    let is_good = text.len() <= DEVICE_MAX_BYTES && !text.chars().any(char::is_control);
    if is_good { Ok(()) } else { Err(PeopleNameError::BadDevice) }
}

/// How many sessions a user may have on a platform at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum SessionsRule {
    /// One session: a new session kicks the old one.
    #[default]
    Replace,
    /// One session: a further session is rejected.
    Reject,
    /// At most this many sessions, one per device. A further session kicks the oldest.
    Many(u32),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlatformSettings {
    /// Whether the platform has an inbox. Otherwise messages reach only connected devices.
    pub store: bool,
    /// The maximum number of stored messages per seat. Beyond it, the oldest are removed.
    pub max_stored: u32,
    pub ttl_ms: u64,
    /// Whether its offline devices get notifications.
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

/// A gateway with its incarnation. A gateway that loses its lease rejoins as another incarnation, without the earlier sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatewayId {
    pub node: u16,
    /// Higher than all earlier incarnations of the same node.
    pub incarnation: u64,
}

impl fmt::Display for GatewayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.node, self.incarnation)
    }
}

/// A session's id: its gateway, and a number that the gateway's incarnation never reuses.
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
    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let node = parts.next()?.parse().ok()?;
        let incarnation = u64::from_str_radix(parts.next()?, 16).ok()?;
        let number = u64::from_str_radix(parts.next()?, 16).ok()?;
        parts.next().is_none().then_some(Self { gateway: GatewayId { node, incarnation }, number })
    }
}

/// A session in presence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnlineSession {
    pub session: SessionId,
    pub platform: Platform,
    pub device: Box<str>,
    pub since: Timestamp,
}

/// The close code of a connection. 4000–4099: do not reconnect; 4100–4199: reconnect now; 4200–4299: reconnect after the delay in the
/// reason; 4300–4399: get a new token first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseCode {
    /// The client sent a frame that is invalid, or not allowed at this point.
    BadFrame,
    /// A newer session of the same platform replaced this one.
    Replaced,
    /// An API call kicked the session, with the reason of the call.
    Kicked,
    Rejected,
    /// A frame or message exceeds the limit of a connection.
    TooLarge,
    /// The device did not acknowledge messages in time. It may reconnect and resume.
    NoAck,
    /// The inbox was replaced since the session began. The device must resume.
    EpochChanged,
    /// The client did not answer pings.
    Silent,
    /// The client reads too slowly.
    Slow,
    /// The gateway shuts down. Reconnect after the delay.
    GoingAway,
    /// The user's partition has no carrier now.
    NoOwner,
    /// The gateway has too many connections, or too many new ones at once.
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
    fn names_of_users_platforms_and_devices_are_validated() {
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
    fn a_session_id_is_parsed_as_it_was_formatted() {
        let session = SessionId { gateway: GatewayId { node: 7, incarnation: 0x19ab }, number: 255 };
        assert_eq!(session.to_string(), "7-19ab-ff");
        assert_eq!(SessionId::parse("7-19ab-ff"), Some(session));
        for bad in ["", "7", "7-19ab", "7-19ab-ff-1", "x-1-1", "7-zz-1"] {
            assert_eq!(SessionId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_close_code_is_in_the_documented_range() {
        for code in CloseCode::ALL {
            assert!((4000..4400).contains(&code.number()));
            assert_eq!(CloseCode::from_number(code.number()), Some(code));
        }
    }
}
