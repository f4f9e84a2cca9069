//! Users: pushes, presence, inboxes, platforms and devices.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A push. Exactly one of `payload`, `payload_base64` and `json` is required.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = NewPush))]
pub struct PushBody {
    /// The payload, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload in base64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// The payload, if it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// The media type of the payload, which devices receive. Default: `application/json` for `json`, otherwise none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Delivers to these platforms only. Default: all platforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platforms: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub except_platforms: Option<Vec<String>>,
    /// Stores the push until the devices acknowledge it (default). `false` delivers to connected devices only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// The time to live: a duration such as `7d`, or a number of milliseconds, from the publish or from the due time. The maximum is a
    /// server setting, by default `7d`. Default: the `ttl` of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// A newer push with the same key replaces a stored older one. 1 to 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    /// Sends a notification to devices that do not acknowledge the push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<NewNotify>,
    /// How long to wait for an acknowledgement before notifying devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify_after: Option<String>,
    /// Holds the push for a duration such as `30s`, or a number of milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// An id chosen by the sender. A repeat returns the first answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A sequence number of the sending server. Without `id` it gives the push an id, which is the same in every data centre.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// The content of a notification. Title, body and data can have 3072 bytes in total.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NewNotify {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Any JSON, for the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PushOrigin))]
pub struct Origin {
    pub server: String,
    pub seq: u64,
}

/// A push to many users.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ManyPush {
    /// 1 to 10 000.
    pub uids: Vec<String>,
    #[serde(flatten)]
    pub push: PushBody,
}

/// An entry of a batch of pushes. Exactly one of `uid` and `uids` is required.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BatchPush {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uids: Option<Vec<String>>,
    #[serde(flatten)]
    pub push: PushBody,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PushAnswer))]
pub struct Pushed {
    pub id: String,
    /// `held` for a held push; otherwise absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The due time of a held push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// The ids of the holds, for a held push to users of several partitions. Otherwise `id` is the id of the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PushBatchAnswer {
    /// One answer for each push, in order.
    pub messages: Vec<Pushed>,
}

/// A task for the owner of the user's partition, in order with the user's pushes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskAnswer {
    pub id: String,
}

/// The sessions to end: all of the user, those of a platform, or one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = KickBody))]
pub struct Kick {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The reason that the devices receive: 1 to 120 bytes.
    pub reason: String,
}

/// The presence of a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PresenceDocument))]
pub struct PresenceInfo {
    pub uid: String,
    pub online: bool,
    /// In the order in which they connected.
    pub sessions: Vec<SessionInfo>,
    /// When the most recent session ended. Absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<String>,
    /// The answer was true at this time.
    pub fresh_as_of: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SessionDocument))]
pub struct SessionInfo {
    pub session: String,
    pub platform: String,
    pub device: String,
    /// The gateway that holds the connection.
    pub gateway: String,
    pub since: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PresenceQuery {
    /// 1 to 1000.
    pub uids: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PresenceList))]
pub struct PresencePage {
    /// One entry for each user, in the order of the request.
    pub users: Vec<PresenceInfo>,
    pub fresh_as_of: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = InboxDocument))]
pub struct InboxInfo {
    pub uid: String,
    pub epoch: String,
    /// The number of all stored messages, also beyond this page.
    pub stored: u64,
    /// Ordered by number.
    pub messages: Vec<StoredMessage>,
    /// The acknowledged position of each platform, or of each device of a platform with several sessions.
    pub seats: Vec<SeatInfo>,
    /// Present if there are more messages: pass it as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = StoredMessageDocument))]
pub struct StoredMessage {
    pub seq: u64,
    pub id: String,
    pub sent_at: String,
    pub expires_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The payload, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload in base64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = SeatDocument))]
pub struct SeatInfo {
    pub platform: String,
    /// Empty if the platform has one seat.
    pub device: String,
    /// The highest number that the seat acknowledged.
    pub cursor: u64,
    /// The number of stored messages that the seat has not acknowledged.
    pub waiting: u64,
    pub online: bool,
    pub seen_at: String,
}

/// The settings of a platform: storage, limits, notifications, sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PlatformDocument))]
pub struct PlatformInfo {
    pub platform: String,
    /// Whether the platform is configured. If not, these are the defaults.
    pub configured: bool,
    pub store: bool,
    pub max_stored: u32,
    pub ttl: String,
    pub notify: bool,
    /// `replace`, `reject`, or `{"many":3}`
    pub sessions: Value,
    pub ack_timeout: String,
}

/// The settings of a platform. Absent fields get their default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PlatformBody {
    /// Whether messages are stored for it. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// The maximum number of stored messages for one seat: 1 to 100 000, default 1000. Beyond it, the oldest are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_stored: Option<u32>,
    /// The time to live of a message without its own. Default: `7d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// Whether its devices get notifications. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<bool>,
    /// `replace` (the default), `reject`, or `{"many":3}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Value>,
    /// The timeout for an acknowledgement: `1s` to `10m`, default `10s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_timeout: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PlatformList {
    /// The configured platforms, ordered by name.
    pub platforms: Vec<PlatformInfo>,
}

/// The destination of notifications for a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DeviceBody))]
pub struct NewDevice {
    pub platform: String,
    /// `apns`, `fcm`, `webpush` or `http`
    pub provider: String,
    /// `apns`: the hexadecimal device token; `fcm`: the registration token; `webpush`: the endpoint of the subscription; `http`: the URL
    /// for POST requests.
    pub token: String,
    /// `webpush`: the keys of the subscription, in URL-safe base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p256dh: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<String>,
    /// `apns`: the bundle id of the app, if it is not the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Members that this version does not know.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    pub more: Map<String, Value>,
}

/// A device. Its token is shown only in part, because it allows sending notifications to the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DeviceDocument))]
pub struct DeviceInfo {
    pub device: String,
    pub platform: String,
    pub provider: String,
    /// The beginning of the token.
    pub token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Why notifications cannot reach the device, as far as this node can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeviceList {
    pub devices: Vec<DeviceInfo>,
}

/// A push that could not be processed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DeadPushDocument))]
pub struct DeadPushInfo {
    pub id: String,
    /// Its users, at most the first 100.
    pub uids: Vec<String>,
    /// The number of its users.
    pub users: u64,
    pub reason: String,
    pub died_at: String,
    /// Its position in `_push`.
    pub partition: u32,
    pub offset: u64,
    /// Its offset in `_dead._push`.
    pub dead_offset: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeadPushList {
    /// The oldest first, without those that were redriven.
    pub dead_letters: Vec<DeadPushInfo>,
    /// Present if there may be more: pass it to get the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
