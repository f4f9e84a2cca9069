//! The records of `_push`, the topic of all pushes, and of `_notices`.
//!
//! A record of `_push` has the header [`HEADER_PUSH`] before all others: a [`PushTask`] as JSON, with a version. The record's value is the
//! body of the message. The record's key is the user's id, so that a hold finds its partition when it fires. A message to many users has
//! the id of the user that selects the partition as its key. **A message's number in an inbox is its record's offset plus one**: a refold
//! assigns the same numbers, and they increase, not always by one.
//!
//! New fields must have a default.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::people::Platform;
use crate::{Headers, HeadersBuilder, Record, Timestamp};

/// The topic of pushes and other tasks of carriers, partitioned by user. It never grows and has no retention: its owners trim it.
pub const PUSH_TOPIC: &str = "_push";
/// The topic of notifications for offline devices: each record is a [`Notice`] as JSON, keyed by user.
pub const NOTICES_TOPIC: &str = "_notices";
/// The system's subscription that delivers notices to the horn.
pub const NOTICES_SUBSCRIPTION: &str = "_notices";
/// The endpoint of that subscription: the role `horn`, without HTTP.
pub const HORN_URL: &str = "whimbrel:horn";
/// The topic of presence changes.
pub const PRESENCE_TOPIC: &str = "_presence";
/// The topic of dead pushes: pushes that failed for good.
pub const PUSH_DEAD_TOPIC: &str = "_dead._push";

/// The header of a [`PushTask`]. It precedes all other headers.
pub const HEADER_PUSH: &str = "whimbrel-push";
/// The version of the format of [`HEADER_PUSH`].
pub const PUSH_FORMAT: u32 = 1;
/// The start of the header of a [`PushTask::Message`], for writers without a [`PushMessage`]. The id's text and the other members follow.
pub const PUSH_MESSAGE_HEAD: &[u8] = br#"{"v":1,"task":"message","id":""#;

/// The reason of a dead push: a [`PushFailure`] as JSON, before all headers of the original record.
pub const HEADER_PUSH_DEAD: &str = "whimbrel-push-dead";
/// The redriven dead pushes: a JSON list of their offsets in [`PUSH_DEAD_TOPIC`], in a record of that topic with no other content.
pub const HEADER_PUSH_REDRIVEN: &str = "whimbrel-push-redriven";

/// The prefixes of the ids of holds that carriers create: to retry a seat, and to delay a notification.
const RETRY_HOLD_HEAD: &str = "push-";
const NOTICE_HOLD_HEAD: &str = "notice-";

pub const UIDS_MAX: usize = 10_000;
pub const COLLAPSE_KEY_MAX_BYTES: usize = 128;
/// Bytes of a notice's title, body and data together.
pub const NOTIFY_MAX_BYTES: usize = 3_072;
/// The delays after which unacknowledged messages of a seat are sent again.
pub const RETRY_AFTER_MS: [u64; 3] = [1_000, 5_000, 30_000];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum PushTask {
    Message(PushMessage),
    /// A seat did not acknowledge in time: send the unacknowledged messages again.
    Retry(PushRetry),
    /// A notification is due: notify the users that have not acknowledged the message.
    NoticeDue(NoticeDue),
    Kick(PushKick),
    Wipe {
        uid: String,
    },
}

/// A message to one or many users of one partition. The record's value is its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct PushMessage {
    /// The message's id, the same for all its users and partitions.
    pub id: String,
    /// The sender chose the id, or it was derived from the origin. A second message with the id is a repeat.
    #[serde(default)]
    pub brought: bool,
    /// All users are of one partition.
    pub uids: Vec<String>,
    /// `None`: all platforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platforms: Option<Vec<Platform>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_platforms: Vec<Platform>,
    /// Store the message until it is acknowledged. Otherwise deliver it to connected devices only.
    pub store: bool,
    /// The time to live, from the publish or, for a hold, from its due time. `None`: the platform's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// A newer message with the same key replaces an older one that is still stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify_after_ms: Option<u64>,
    /// The sender's own number of the message. A message that arrives twice with the same number is delivered once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PushOrigin>,
    /// The id derived from `origin`, if the sender also chose an id. A second message with either id is a repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<String>,
}

impl PushMessage {
    pub fn is_for(&self, platform: &Platform) -> bool {
        let wanted = self.platforms.as_ref().is_none_or(|wanted| wanted.contains(platform));
        wanted && !self.except_platforms.contains(platform)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushOrigin {
    pub server: String,
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Notify {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// JSON, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushRetry {
    pub uid: String,
    pub platform: Platform,
    /// The seat's device, if its platform allows several sessions.
    #[serde(default)]
    pub device: String,
    /// The highest unacknowledged number.
    pub upto: u64,
    /// The number of earlier sends.
    pub attempt: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeDue {
    /// All users are of one partition.
    pub uids: Vec<String>,
    /// The message's number, to check whether it was acknowledged.
    pub seq: u64,
    /// The notice, with an empty `uid`.
    pub notice: Notice,
}

/// A record of `_notices`: notify this user's devices of these platforms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub v: u32,
    pub id: String,
    pub uid: String,
    /// The platforms that could have acknowledged the message but have not. `None`: all of the user's devices except `except_platforms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platforms: Option<Vec<Platform>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_platforms: Vec<Platform>,
    /// Devices to leave out, on platforms with a seat for each device: they acknowledged the message, or received an ephemeral one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_devices: Vec<NoticeDevice>,
    pub notify: Notify,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    /// The time at which the notification expires.
    pub expires_at_ms: i64,
}

/// A device of a user, by the name of its sessions and of its registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeDevice {
    pub platform: Platform,
    pub device: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushKick {
    pub uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// The session id in its text form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
struct VersionedTask<T> {
    v: u32,
    #[serde(flatten)]
    task: T,
}

/// A record of `_push` that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPush {
    #[error("the record has no header `{HEADER_PUSH}`")]
    NotOurs,
    #[error("the record has version {0}; this binary supports {PUSH_FORMAT}")]
    OtherVersion(u32),
    #[error("the record cannot be decoded: {0}")]
    Garbled(String),
}

impl PushTask {
    /// The headers of the task's record. The caller may add more.
    pub fn headers(&self) -> HeadersBuilder {
        let task = VersionedTask { v: PUSH_FORMAT, task: self };
        let text = serde_json::to_vec(&task).unwrap_or_default();
        let mut headers = Headers::builder();
        headers.push(HEADER_PUSH, &text);
        headers
    }

    pub fn of(headers: &Headers) -> Result<Self, BadPush> {
        let (value, _) = headers.split_first(HEADER_PUSH).ok_or(BadPush::NotOurs)?;
        let read = serde_json::from_slice::<VersionedTask<Self>>(&value);
        match read {
            Ok(read) if read.v == PUSH_FORMAT => Ok(read.task),
            Ok(read) => Err(BadPush::OtherVersion(read.v)),
            Err(error) => {
                #[derive(Deserialize)]
                struct Version {
                    v: u32,
                }
                match serde_json::from_slice::<Version>(&value) {
                    Ok(Version { v }) if v != PUSH_FORMAT => Err(BadPush::OtherVersion(v)),
                    _ => Err(BadPush::Garbled(error.to_string())),
                }
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushFailure {
    pub reason: String,
    pub died_at_ms: i64,
    /// The location of the record in `_push`.
    pub partition: u32,
    pub offset: u64,
}

impl PushFailure {
    /// The record of the dead push: the original record, with the reason as its first header.
    pub fn to_record(&self, push: &Record) -> Record {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let headers = Headers::builder().push(HEADER_PUSH_DEAD, &text).push_all(&push.headers).take();
        let timestamp = Timestamp::from_millis(self.died_at_ms);
        Record { key: push.key.clone(), value: push.value.clone(), headers, timestamp }
    }

    /// Decodes a record of [`PushFailure::to_record`] into the reason and the original record, published at `published`. `None`: another
    /// record.
    pub fn of(record: &Record, published: Timestamp) -> Option<(Self, Record)> {
        let (value, headers) = record.headers.split_first(HEADER_PUSH_DEAD)?;
        let dead = serde_json::from_slice(&value).ok()?;
        Some((dead, Record { key: record.key.clone(), value: record.value.clone(), headers, timestamp: published }))
    }
}

/// The record that marks dead pushes, by their offsets, as redriven.
pub fn redriven_record(offsets: &[u64], now: Timestamp) -> Record {
    let text = serde_json::to_vec(offsets).unwrap_or_default();
    let headers = Headers::builder().push(HEADER_PUSH_REDRIVEN, &text).take();
    Record { key: None, value: Bytes::new(), headers, timestamp: now }
}

/// Decodes a [`redriven_record`].
pub fn redriven_of(record: &Record) -> Option<Vec<u64>> {
    let (value, _) = record.headers.split_first(HEADER_PUSH_REDRIVEN)?;
    serde_json::from_slice(&value).ok()
}

/// Whether this is the id of a carrier's own hold: `push-` with the user's hash, platform, device's hash, two numbers, attempt, session,
/// incarnation and time; or `notice-` with the inbox's epoch, a length, a number and a user's hash. Publishers may not use such ids.
pub fn is_system_hold(id: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_hex =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let is_hash = |part: &str| part.len() == 16 && is_hex(part);
    if let Some(parts) = id.strip_prefix(RETRY_HOLD_HEAD) {
        // Split from the end, because a platform's name may contain dashes.
        let parts: Vec<&str> = parts.rsplitn(8, '-').collect();
        let [time, incarnation, session, attempt, last, first, device, of] = parts[..] else { return false };
        let is_of = of.split_once('-').is_some_and(|(user, platform)| is_hash(user) && Platform::new(platform).is_ok());
        return is_of
            && is_hash(device)
            && [first, last, attempt].into_iter().all(is_number)
            && [session, incarnation, time].into_iter().all(is_hex);
    }
    let Some(parts) = id.strip_prefix(NOTICE_HOLD_HEAD) else { return false };
    let parts: Vec<&str> = parts.rsplitn(4, '-').collect();
    let [user, seq, length, epoch] = parts[..] else { return false };
    is_hash(user) && is_number(seq) && is_number(length) && !epoch.is_empty()
}

/// A push that is appended to `_push` again. Its id is marked as sender-chosen, so that the owners recognize a second append as a repeat.
pub fn known_again(push: Record) -> Record {
    match (PushTask::of(&push.headers), push.headers.split_first(HEADER_PUSH)) {
        (Ok(PushTask::Message(message)), Some((_, rest))) if !message.brought => {
            let task = PushTask::Message(PushMessage { brought: true, ..message });
            Record { headers: task.headers().push_all(&rest).take(), ..push }
        }
        _ => push,
    }
}

/// The number of a message in inboxes, from the offset of its record.
pub fn seq_of(offset: u64) -> u64 {
    offset + 1
}

/// The offset of a message's record, from its number.
pub fn offset_of(seq: u64) -> u64 {
    seq.saturating_sub(1)
}

pub fn expiry(published: Timestamp, ttl_ms: u64) -> Timestamp {
    Timestamp::from_millis(published.as_millis().saturating_add(i64::try_from(ttl_ms).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_decoded_as_it_was_encoded() {
        let message = PushMessage { id: "m1".into(), uids: vec!["u1".into()], store: true, ..PushMessage::default() };
        let tasks = [PushTask::Message(message), PushTask::Wipe { uid: "u1".into() }];
        for task in tasks {
            let headers = task.headers().push("content-type", b"text/plain").take();
            assert_eq!(PushTask::of(&headers), Ok(task));
        }
    }

    #[test]
    fn a_record_without_a_task_has_another_error_than_an_unknown_version() {
        assert_eq!(PushTask::of(&Headers::EMPTY), Err(BadPush::NotOurs));
        let later = Headers::builder().push(HEADER_PUSH, br#"{"v":9,"task":"dance"}"#).take();
        assert_eq!(PushTask::of(&later), Err(BadPush::OtherVersion(9)));
        let garbled = Headers::builder().push(HEADER_PUSH, b"{").take();
        assert!(matches!(PushTask::of(&garbled), Err(BadPush::Garbled(_))));
    }

    #[test]
    fn a_message_written_in_parts_is_decoded_as_one() {
        let rest = br#"m1","uids":["u1"],"store":true}"#;
        let headers = Headers::builder().push_parts(HEADER_PUSH, &[PUSH_MESSAGE_HEAD, rest]).take();
        let message = PushMessage { id: "m1".into(), uids: vec!["u1".into()], store: true, ..PushMessage::default() };
        assert_eq!(PushTask::of(&headers), Ok(PushTask::Message(message)));
    }

    #[test]
    fn a_dead_push_is_decoded_into_the_original_push() {
        let headers = PushTask::Wipe { uid: "u1".into() }.headers().push("content-type", b"text/plain").take();
        let now = Timestamp::from_millis(5);
        let push = Record { key: Some(Bytes::from_static(b"u1")), value: Bytes::new(), headers, timestamp: now };
        let dead = PushFailure { reason: "full".into(), died_at_ms: 9, partition: 3, offset: 17 };
        let letter = dead.to_record(&push);
        assert_eq!(PushFailure::of(&letter, now), Some((dead, push.clone())));
        assert_eq!(PushFailure::of(&push, now), None);
        assert_eq!(redriven_of(&redriven_record(&[3, 9], now)), Some(vec![3, 9]));
        assert_eq!(redriven_of(&letter), None);
    }

    #[test]
    fn a_push_that_is_appended_again_only_changes_its_brought_flag() {
        let message = |brought| PushMessage {
            id: "m1".into(),
            uids: vec!["u1".into()],
            store: true,
            brought,
            ..PushMessage::default()
        };
        let record = |task: PushTask| Record {
            key: Some(Bytes::from_static(b"u1")),
            value: Bytes::from_static(b"hi"),
            headers: task.headers().push("content-type", b"text/plain").take(),
            timestamp: Timestamp::from_millis(5),
        };
        let brought = record(PushTask::Message(message(true)));
        assert_eq!(known_again(record(PushTask::Message(message(false)))), brought);
        let wipe = record(PushTask::Wipe { uid: "u1".into() });
        let garbled = Record { headers: Headers::builder().push(HEADER_PUSH, b"{").take(), ..wipe.clone() };
        for other in [brought, wipe, garbled] {
            assert_eq!(known_again(other.clone()), other);
        }
    }

    #[test]
    fn ids_of_system_holds_are_recognized() {
        for id in
            ["push-00000000000000ff-my-web-0123456789abcdef-1-64-2-1f-18c2-19a", "notice-3-18c2f-5-41-0123456789abcdef"]
        {
            assert!(is_system_hold(id), "{id}");
        }
        for id in [
            "push-1",
            "push-00000000000000ff-web",
            "push-00000000000000FF-web-0123456789abcdef-1-64-2-1f-18c2-19a",
            "push-00000000000000ff-web-0123456789abcdef-1-x-2-1f-18c2-19a",
            "push-00000000000000ff--0123456789abcdef-1-64-2-1f-18c2-19a",
            "notice-1",
            "notice-41-0123456789abcdef",
            "notices-3-18c2f-5-41-0123456789abcdef",
        ] {
            assert!(!is_system_hold(id), "{id}");
        }
    }

    #[test]
    fn a_message_is_for_the_platforms_that_it_names_except_the_excepted_ones() {
        let (ios, web) = (Platform::new("ios").unwrap(), Platform::new("web").unwrap());
        let all = PushMessage::default();
        assert!(all.is_for(&ios) && all.is_for(&web));
        let only = PushMessage { platforms: Some(vec![ios.clone()]), ..PushMessage::default() };
        assert!(only.is_for(&ios) && !only.is_for(&web));
        let except = PushMessage { except_platforms: vec![ios.clone()], ..PushMessage::default() };
        assert!(!except.is_for(&ios) && except.is_for(&web));
    }
}
