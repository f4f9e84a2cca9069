//! The JSON bodies and answers of the API document. Frequent answers are serialized by hand; a test parses them with these types, so that
//! both stay in step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A problem, in the format of RFC 9457.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDocument {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// A stable code for programs to branch on.
    pub code: String,
    /// In a batch: the index of the invalid entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// `damaged`: the offset at which reading can continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_at: Option<u64>,
    /// `offset_out_of_range`: the first retained offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_offset: Option<u64>,
    /// `offset_out_of_range`: the offset of the next message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// The limit that was exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// `partly_appended`: for each message its partition and offset, or an `error` that is a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Value>>,
    /// `already_fired`: when the hold fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<String>,
    /// `already_withdrawn`: when the hold was withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_at: Option<String>,
    /// `already_dead`: when the hold failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at: Option<String>,
    /// `already_dead`: why the hold failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `version_differs`: the current version of the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// `version_differs`: the current due time of the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// `holds_pending`: the number of pending holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// In a JSON body: the invalid field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// `topic_subscribed`: the subscriptions that read the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<Vec<String>>,
    /// `not_ready`: why the process is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<String>>,
}

/// The partition and offset of a published message.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishAnswer {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
}

/// A held message.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldAnswer {
    pub id: String,
    pub topic: String,
    /// `held`
    pub state: String,
    /// The time at which Whimbrel appends the message to its topic.
    pub due: String,
}

/// The result of one message of a batch.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EntryAnswer {
    Published(PublishAnswer),
    Held(HeldAnswer),
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchAnswer)]
pub struct BatchAnswerDocument {
    /// One answer for each entry, in order.
    pub messages: Vec<EntryAnswer>,
}

/// An entry of a batch. Exactly one of `payload`, `payload_base64` and `json` is required.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = NewMessage)]
pub struct NewMessageDocument {
    /// The payload, if it is text.
    pub payload: Option<String>,
    /// The payload in base64, if it is not text.
    pub payload_base64: Option<String>,
    /// The payload, if it is JSON. The content type is then `application/json`.
    pub json: Option<Value>,
    pub key: Option<String>,
    /// An id chosen by the publisher. A repeat returns the first answer.
    pub id: Option<String>,
    pub headers: Option<BTreeMap<String, String>>,
    pub content_type: Option<String>,
    /// Hold the message for a duration such as `30s`, or a number of milliseconds.
    pub delay: Option<String>,
    /// Hold the message until this time.
    pub deliver_at: Option<String>,
}

/// A stored message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Message)]
pub struct MessageDocument {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    /// Absent if the message has no key.
    #[serde(default)]
    pub key: Option<String>,
    /// The key in base64, if it is not UTF-8 text.
    #[serde(default)]
    pub key_base64: Option<String>,
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub content_type: Option<String>,
    pub published_at: String,
    /// For a message that was held: its due time.
    #[serde(default)]
    pub due: Option<String>,
    /// For a message that was held: the time of its append to the topic.
    #[serde(default)]
    pub fired_at: Option<String>,
    /// The payload, if it is text.
    #[serde(default)]
    pub payload: Option<String>,
    /// The payload in base64, if it is not text.
    #[serde(default)]
    pub payload_base64: Option<String>,
}

/// The message of an id, in its topic or held.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum FoundMessage {
    InTopic(MessageState),
    Hold(HeldMessageState),
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadAnswer {
    pub messages: Vec<MessageDocument>,
    /// The offset at which to continue reading.
    pub next_offset: u64,
}

/// A message in its topic, and its deliveries.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MessageState {
    /// `published`, or `fired` if the message was held
    pub state: String,
    #[serde(flatten)]
    pub message: MessageDocument,
    /// The delivery state in each subscription of its topic.
    pub subscriptions: Vec<super::deliveries::DeliveryDocument>,
}

/// A held message, or one that was held and is not in its topic: withdrawn, dead, or fired and no longer retained.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HeldMessageState {
    #[serde(flatten)]
    pub hold: HoldDocument,
    /// Always empty: no subscription has seen the message.
    pub subscriptions: Vec<Value>,
}

/// A hold, pending or ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Hold)]
pub struct HoldDocument {
    pub id: String,
    /// Empty if the hold has ended and its topic is deleted.
    pub topic: String,
    /// Set for a pending hold with a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, if it is not UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// `held`, `fired`, `withdrawn` or `dead`
    pub state: String,
    pub due: String,
    pub published_at: String,
    /// Set for a pending hold: the version that `if_version` is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<String>,
    /// Set for a fired hold: the partition of its message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at: Option<String>,
    /// Set for a dead hold: why its message cannot be appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldList)]
pub struct HoldListDocument {
    /// Ordered by due time.
    pub holds: Vec<HoldDocument>,
    /// Present if there may be more: pass it to get the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldCount)]
pub struct HoldCountDocument {
    pub count: u64,
    /// The number of due holds in each interval. Empty intervals are left out.
    pub buckets: Vec<HoldBucketDocument>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldBucket)]
pub struct HoldBucketDocument {
    pub from: String,
    pub to: String,
    pub count: u64,
}

/// The result of a command on a hold.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldOutcome)]
pub struct HoldOutcomeDocument {
    /// `rescheduled`, `withdrawn` or `fired`
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<String>,
    /// The partition of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

impl HoldOutcomeDocument {
    pub(super) fn of(outcome: &str) -> Self {
        Self { outcome: outcome.to_owned(), ..Self::default() }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchAnswer {
    pub messages: Vec<MessageDocument>,
    /// The number of records that the search has read.
    pub scanned: u64,
    /// Whether the search covered the whole requested range.
    pub complete: bool,
    /// Present if the search is incomplete: pass it to continue.
    #[serde(default)]
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Ready)]
pub struct ReadyDocument {
    pub ready: bool,
    /// Conditions that do not prevent this process from serving, such as stale shards of presence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
