//! What bodies and answers about people look like, for the API document.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A push. It has exactly one of `payload`, `payload_base64` and `json`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct NewPush {
    /// A payload that is text.
    pub payload: Option<String>,
    /// A payload that is not.
    pub payload_base64: Option<String>,
    /// A payload that is JSON.
    pub json: Option<Value>,
    /// Only for these platforms; for all of them where it is not given.
    pub platforms: Option<Vec<String>>,
    pub except_platforms: Option<Vec<String>>,
    /// Kept until acknowledged, which is the default; otherwise it reaches who is there now.
    pub store: Option<bool>,
    /// How long it is of use: a duration such as `7d`, or so many milliseconds. From its publish on; of one that is held, from when it is
    /// due. At most as the server's settings say, `7d` by default; where it is not given, as its platform says.
    pub ttl: Option<String>,
    /// A newer push under the same key takes the place of an older one that is still stored. 1 to 128 bytes.
    pub collapse_key: Option<String>,
    /// Wakes devices that do not acknowledge it.
    pub notify: Option<NewNotify>,
    /// How long an acknowledgement is waited for before devices are woken.
    pub notify_after: Option<String>,
    /// Hold it for a duration such as `30s`, or so many milliseconds.
    pub delay: Option<String>,
    /// An id of the sender's own: a repeat returns the first answer.
    pub id: Option<String>,
    /// The sender's own number for it. Without an `id` it makes one, the same in every data centre.
    pub origin: Option<Origin>,
}

/// What a notice shows: title, body and data have at most 3072 bytes together.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct NewNotify {
    pub title: Option<String>,
    pub body: Option<String>,
    /// Any JSON, for the app.
    pub data: Option<Value>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PushOrigin)]
pub struct Origin {
    pub server: String,
    pub seq: u64,
}

/// A push to many users.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ManyPush {
    /// 1 to 10 000.
    pub uids: Vec<String>,
    #[serde(flatten)]
    pub push: NewPush,
}

/// An entry of a batch of pushes. It has exactly one of `uid` and `uids`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchPush {
    pub uid: Option<String>,
    pub uids: Option<Vec<String>>,
    #[serde(flatten)]
    pub push: NewPush,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushAnswer {
    pub id: String,
    /// `held`, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Of one that is held: when it goes to its users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// Of one that is held for users of several partitions: the holds that it became. Otherwise its id is its hold's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBatchAnswer {
    /// One answer each, in order.
    pub messages: Vec<PushAnswer>,
}

/// Something that the owner of the user's partition will do, in order with the user's pushes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskAnswer {
    pub id: String,
}

/// Which sessions to end: all of the user's, those of a platform, or one.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KickBody {
    pub platform: Option<String>,
    pub session: Option<String>,
    /// What the devices are told: 1 to 120 bytes.
    pub reason: String,
}

/// What is known of a user's presence.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PresenceDocument {
    pub uid: String,
    pub online: bool,
    /// In the order in which they came.
    pub sessions: Vec<SessionDocument>,
    /// When the last session that ended did; absent where none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<String>,
    /// What is said was so at this time.
    pub fresh_as_of: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionDocument {
    pub session: String,
    pub platform: String,
    pub device: String,
    /// The gateway that holds its connection.
    pub gateway: String,
    pub since: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PresenceQuery {
    /// 1 to 1000.
    pub uids: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PresenceList {
    /// One each, in the order of the question.
    pub users: Vec<PresenceDocument>,
    pub fresh_as_of: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InboxDocument {
    pub uid: String,
    pub epoch: String,
    /// Messages that are stored, shown here or not.
    pub stored: u64,
    /// By number.
    pub messages: Vec<StoredMessageDocument>,
    /// What each platform, or device of a platform that may have many, has acknowledged.
    pub seats: Vec<SeatDocument>,
    /// Where there is more: go on with it as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoredMessageDocument {
    pub seq: u64,
    pub id: String,
    pub sent_at: String,
    pub expires_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// A payload that is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// A payload that is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeatDocument {
    pub platform: String,
    /// Empty where the platform has one seat.
    pub device: String,
    /// The highest number that it acknowledged.
    pub cursor: u64,
    /// Messages that wait for it.
    pub waiting: u64,
    pub online: bool,
    pub seen_at: String,
}

/// What a platform keeps, how much, whether it is woken.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlatformDocument {
    pub platform: String,
    /// Whether somebody configured it; otherwise these are the defaults.
    pub configured: bool,
    pub store: bool,
    pub max_stored: u32,
    pub ttl: String,
    pub notify: bool,
    /// `replace`, `reject`, or `{"many":3}`
    pub sessions: Value,
    pub ack_timeout: String,
}

/// What is left out has the default.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PlatformBody {
    /// Whether stored messages are kept for it: `true` by default.
    pub store: Option<bool>,
    /// Stored messages that wait for one seat, 1 to 100 000; beyond, the oldest go. 1000 by default.
    pub max_stored: Option<u32>,
    /// How long a message is of use that does not say. `7d` by default.
    pub ttl: Option<String>,
    /// Whether its devices are woken by notices: `true` by default.
    pub notify: Option<bool>,
    /// `replace` (the default), `reject`, or `{"many":3}`
    pub sessions: Option<Value>,
    /// How long an acknowledgement is waited for, `1s` to `10m`. `10s` by default.
    pub ack_timeout: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlatformList {
    /// Those that somebody configured, by name.
    pub platforms: Vec<PlatformDocument>,
}

/// Where notices for a device go.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceBody {
    pub platform: String,
    /// `apns`, `fcm`, `webpush` or `http`
    pub provider: String,
    /// `apns`: the device token, in hexadecimal; `fcm`: the registration token; `webpush`: the subscription's endpoint; `http`: the URL
    /// that notices are posted to.
    pub token: String,
    /// `webpush`: the subscription's keys, in URL-safe base64.
    pub p256dh: Option<String>,
    pub auth: Option<String>,
    /// `apns`: the app's bundle id, where it is not the configured one.
    pub topic: Option<String>,
}

/// A device. Its token is not shown whole: who has it can wake the device.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceDocument {
    pub device: String,
    pub platform: String,
    pub provider: String,
    /// The beginning of its token.
    pub token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Why no notice can reach it, as far as this process knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceList {
    pub devices: Vec<DeviceDocument>,
}

/// A push that could not be handled.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadPushDocument {
    pub id: String,
    /// The first of its users, up to 100.
    pub uids: Vec<String>,
    /// How many users it is for.
    pub users: u64,
    pub reason: String,
    pub died_at: String,
    /// Where in `_push` it was.
    pub partition: u32,
    pub offset: u64,
    /// Its offset in `_dead._push`.
    pub dead_offset: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadPushList {
    /// The oldest first; those that were redriven are left out.
    pub dead_letters: Vec<DeadPushDocument>,
    /// Where there may be more: go on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
