//! What is written in `_push`, the topic that everything for people goes through, and in `_notices`.
//!
//! A record of `_push` has the header [`HEADER_PUSH`] in front of all others: a [`PushTask`] as JSON, with its version. A message's body
//! is the record's value, untouched. The record's key is the user's id (of a message to many: the id of one of them that the partition
//! is computed from), so that a held one finds its partition when it fires. **A message's number in an inbox is its record's offset and one**:
//! a refold gives the same numbers, and they grow, not always by one.
//!
//! Fields are only ever added, with a default.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::people::Platform;
use crate::{Headers, HeadersBuilder, Record, Timestamp};

/// The topic of everything for people, partitioned by user. It never grows and has no retention: its owners trim it.
pub const PUSH_TOPIC: &str = "_push";
/// Notices on their way to devices that are away, a [`Notice`] as JSON each, by user.
pub const NOTICES_TOPIC: &str = "_notices";
/// The system's own subscription that hands notices to the horn.
pub const NOTICES_SUBSCRIPTION: &str = "_notices";
/// Where that subscription's calls go: not over HTTP but to the role `horn`.
pub const HORN_URL: &str = "whimbrel:horn";
/// Who came and went.
pub const PRESENCE_TOPIC: &str = "_presence";
/// Pushes that could not be handled.
pub const PUSH_DEAD_TOPIC: &str = "_dead._push";

/// What a record of `_push` asks for, in front of all other headers.
pub const HEADER_PUSH: &str = "whimbrel-push";
/// The version of what that header has.
pub const PUSH_FORMAT: u32 = 1;
/// How the header of a [`PushTask::Message`] begins, up to its id: for whoever writes it without a [`PushMessage`]. What follows the id is
/// the end of its text, and the other members.
pub const PUSH_MESSAGE_HEAD: &[u8] = br#"{"v":1,"task":"message","id":""#;

/// Why a push is among [`PUSH_DEAD_TOPIC`], in front of all that its record had: a [`PushDead`] as JSON.
pub const HEADER_PUSH_DEAD: &str = "whimbrel-push-dead";
/// Dead pushes that were put into `_push` again, as a record of [`PUSH_DEAD_TOPIC`] that has nothing else: a list of their offsets there,
/// as JSON.
pub const HEADER_PUSH_REDRIVEN: &str = "whimbrel-push-redriven";

/// How the ids of holds begin that carriers make: of a seat that is tried again, and of a notice that waits.
const RETRY_HOLD_HEAD: &str = "push-";
const NOTICE_HOLD_HEAD: &str = "notice-";

/// Users of one push.
pub const UIDS_MAX: usize = 10_000;
/// Bytes of a collapse key.
pub const COLLAPSE_KEY_MAX_BYTES: usize = 128;
/// Bytes of a notice's title, body and data together.
pub const NOTIFY_MAX_BYTES: usize = 3_072;
/// After which times a seat that did not acknowledge is tried again.
pub const RETRY_AFTER_MS: [u64; 3] = [1_000, 5_000, 30_000];

/// What a record of `_push` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum PushTask {
    Message(PushMessage),
    /// A seat did not acknowledge up to a number: it is sent again what it still has not.
    Retry(PushRetry),
    /// A notice's time has come: whoever has not acknowledged by now is woken.
    NoticeDue(NoticeDue),
    Kick(PushKick),
    /// The user's inbox is emptied.
    Wipe {
        uid: String,
    },
}

/// A message to one user or to many of one partition. Its body is the record's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct PushMessage {
    /// The message's id, the same for all its users and partitions.
    pub id: String,
    /// The id is the sender's own, or made from its origin: a second message under it is a repeat.
    #[serde(default)]
    pub brought: bool,
    /// Of one partition all.
    pub uids: Vec<String>,
    /// `None`: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platforms: Option<Vec<Platform>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_platforms: Vec<Platform>,
    /// Kept until acknowledged; otherwise it reaches who is there now.
    pub store: bool,
    /// How long it is of use, from when it was published (of one that was held: from when it was due); otherwise as long as its platform
    /// says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// A newer message under the same key takes the place of an older one that is still stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify_after_ms: Option<u64>,
    /// The sender's own number for it: what comes by two ways with the same one is seen once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PushOrigin>,
    /// The id that its origin makes, where the sender brought an id of its own beside it: a second message under either is a repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<String>,
}

impl PushMessage {
    /// Whether it is for that platform.
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

/// What a notice shows.
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
    /// The seat's device, where its platform may have many.
    #[serde(default)]
    pub device: String,
    /// The highest number that waited for its acknowledgement.
    pub upto: u64,
    /// Times that it was sent already.
    pub attempt: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeDue {
    /// Of one partition all.
    pub uids: Vec<String>,
    /// The message's number, to be looked for among what was acknowledged.
    pub seq: u64,
    /// Its uid is left empty here.
    pub notice: Notice,
}

/// A record of `_notices`: wake this user's devices of these platforms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub v: u32,
    /// The message's id.
    pub id: String,
    pub uid: String,
    /// The platforms that did not acknowledge and could; `None`: all of the user's devices but those of `except_platforms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platforms: Option<Vec<Platform>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_platforms: Vec<Platform>,
    /// Of platforms with a seat for each device: those that acknowledged, or were sent what cannot be acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_devices: Vec<NoticeDevice>,
    pub notify: Notify,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    /// After this it is of no use.
    pub expires_at_ms: i64,
}

/// A device of a user, by the name that it connects and is registered with.
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
    /// As text, as clients see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    task: T,
}

/// A record of `_push` that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPush {
    #[error("it has no `{HEADER_PUSH}`")]
    NotOurs,
    #[error("it is of version {0}, and this binary knows {PUSH_FORMAT}")]
    OtherVersion(u32),
    #[error("it cannot be read: {0}")]
    Garbled(String),
}

impl PushTask {
    /// The headers of its record, with room for more after it.
    pub fn headers(&self) -> HeadersBuilder {
        let task = Versioned { v: PUSH_FORMAT, task: self };
        let text = serde_json::to_vec(&task).unwrap_or_default();
        let mut headers = Headers::builder();
        headers.push(HEADER_PUSH, &text);
        headers
    }

    pub fn of(headers: &Headers) -> Result<Self, BadPush> {
        let (value, _) = headers.split_first(HEADER_PUSH).ok_or(BadPush::NotOurs)?;
        let read = serde_json::from_slice::<Versioned<Self>>(&value);
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

/// Why a push could not be handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushDead {
    pub reason: String,
    pub died_at_ms: i64,
    /// Where in `_push` it was.
    pub partition: u32,
    pub offset: u64,
}

impl PushDead {
    /// The record of the dead letter: the push's own, with the reason in front.
    pub fn to_record(&self, push: &Record) -> Record {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let headers = Headers::builder().push(HEADER_PUSH_DEAD, &text).push_all(&push.headers).take();
        let timestamp = Timestamp::from_millis(self.died_at_ms);
        Record { key: push.key.clone(), value: push.value.clone(), headers, timestamp }
    }

    /// Reads what [`PushDead::to_record`] wrote: why, and the push as it was, published at that time. `None` for anything else.
    pub fn of(record: &Record, published: Timestamp) -> Option<(Self, Record)> {
        let (value, headers) = record.headers.split_first(HEADER_PUSH_DEAD)?;
        let dead = serde_json::from_slice(&value).ok()?;
        Some((dead, Record { key: record.key.clone(), value: record.value.clone(), headers, timestamp: published }))
    }
}

/// The record that says which dead pushes, by their offsets, were put into `_push` again.
pub fn redriven_record(offsets: &[u64], now: Timestamp) -> Record {
    let text = serde_json::to_vec(offsets).unwrap_or_default();
    let headers = Headers::builder().push(HEADER_PUSH_REDRIVEN, &text).take();
    Record { key: None, value: Bytes::new(), headers, timestamp: now }
}

/// Reads what [`redriven_record`] wrote.
pub fn redriven_of(record: &Record) -> Option<Vec<u64>> {
    let (value, _) = record.headers.split_first(HEADER_PUSH_REDRIVEN)?;
    serde_json::from_slice(&value).ok()
}

/// Whether that is the id of a hold that a carrier made for itself: `push-` with the user's hash, platform, device's hash, two numbers, the
/// attempt, session, incarnation and time, or `notice-` with the inbox's epoch, a length, a number and a user's hash. Nobody else's hold has one.
pub fn is_system_hold(id: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_hex =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let is_hash = |part: &str| part.len() == 16 && is_hex(part);
    if let Some(parts) = id.strip_prefix(RETRY_HOLD_HEAD) {
        // From the end, since a platform's name may have dashes.
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

/// A push that is put into `_push` once more, so that its owners know it again if that happens twice: its id counts as one that was brought.
pub fn known_again(push: Record) -> Record {
    match (PushTask::of(&push.headers), push.headers.split_first(HEADER_PUSH)) {
        (Ok(PushTask::Message(message)), Some((_, rest))) if !message.brought => {
            let task = PushTask::Message(PushMessage { brought: true, ..message });
            Record { headers: task.headers().push_all(&rest).take(), ..push }
        }
        _ => push,
    }
}

/// The number that a message has in inboxes, by the offset of its record.
pub fn seq_of(offset: u64) -> u64 {
    offset + 1
}

/// The offset of the record of a message with that number.
pub fn offset_of(seq: u64) -> u64 {
    seq.saturating_sub(1)
}

/// When a message is of no use any more.
pub fn expiry(published: Timestamp, ttl_ms: u64) -> Timestamp {
    Timestamp::from_millis(published.as_millis().saturating_add(i64::try_from(ttl_ms).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_reads_as_it_was_written() {
        let message = PushMessage { id: "m1".into(), uids: vec!["u1".into()], store: true, ..PushMessage::default() };
        let tasks = [PushTask::Message(message), PushTask::Wipe { uid: "u1".into() }];
        for task in tasks {
            let headers = task.headers().push("content-type", b"text/plain").take();
            assert_eq!(PushTask::of(&headers), Ok(task));
        }
    }

    #[test]
    fn what_is_not_a_task_is_told_from_one_of_another_version() {
        assert_eq!(PushTask::of(&Headers::EMPTY), Err(BadPush::NotOurs));
        let later = Headers::builder().push(HEADER_PUSH, br#"{"v":9,"task":"dance"}"#).take();
        assert_eq!(PushTask::of(&later), Err(BadPush::OtherVersion(9)));
        let garbled = Headers::builder().push(HEADER_PUSH, b"{").take();
        assert!(matches!(PushTask::of(&garbled), Err(BadPush::Garbled(_))));
    }

    #[test]
    fn a_message_written_in_parts_reads_as_one() {
        let rest = br#"m1","uids":["u1"],"store":true}"#;
        let headers = Headers::builder().push_parts(HEADER_PUSH, &[PUSH_MESSAGE_HEAD, rest]).take();
        let message = PushMessage { id: "m1".into(), uids: vec!["u1".into()], store: true, ..PushMessage::default() };
        assert_eq!(PushTask::of(&headers), Ok(PushTask::Message(message)));
    }

    #[test]
    fn a_dead_push_gives_the_push_back_as_it_was() {
        let headers = PushTask::Wipe { uid: "u1".into() }.headers().push("content-type", b"text/plain").take();
        let now = Timestamp::from_millis(5);
        let push = Record { key: Some(Bytes::from_static(b"u1")), value: Bytes::new(), headers, timestamp: now };
        let dead = PushDead { reason: "full".into(), died_at_ms: 9, partition: 3, offset: 17 };
        let letter = dead.to_record(&push);
        assert_eq!(PushDead::of(&letter, now), Some((dead, push.clone())));
        assert_eq!(PushDead::of(&push, now), None);
        assert_eq!(redriven_of(&redriven_record(&[3, 9], now)), Some(vec![3, 9]));
        assert_eq!(redriven_of(&letter), None);
    }

    #[test]
    fn a_push_that_is_put_back_is_known_again_and_is_as_it_was_otherwise() {
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
    fn the_system_s_holds_are_told_from_those_of_publishers() {
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
    fn a_message_is_for_the_platforms_that_it_names_and_not_for_those_it_excepts() {
        let (ios, web) = (Platform::new("ios").unwrap(), Platform::new("web").unwrap());
        let all = PushMessage::default();
        assert!(all.is_for(&ios) && all.is_for(&web));
        let only = PushMessage { platforms: Some(vec![ios.clone()]), ..PushMessage::default() };
        assert!(only.is_for(&ios) && !only.is_for(&web));
        let except = PushMessage { except_platforms: vec![ios.clone()], ..PushMessage::default() };
        assert!(!except.is_for(&ios) && except.is_for(&web));
    }
}
