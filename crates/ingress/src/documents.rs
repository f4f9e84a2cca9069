//! What bodies and answers look like, for the API document. The answers themselves are written by hand where they are hot; a test
//! reads them back by these types, so that the two cannot drift apart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A problem, as RFC 9457 writes it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDocument {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// A stable word that programs branch on.
    pub code: String,
    /// In a batch: the entry that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// `damaged`: where reading can go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_at: Option<u64>,
    /// `offset_out_of_range`: the first offset that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_offset: Option<u64>,
    /// `offset_out_of_range`: the offset that the next message will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// What the limit is, where one was passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// `partly_appended`: for each message its place, or an `error` that is a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Value>>,
    /// `already_fired`: when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<String>,
    /// `already_withdrawn`: when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_at: Option<String>,
    /// `already_dead`: when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at: Option<String>,
    /// `already_dead`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `version_differs`: the version that the hold has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// `version_differs`: when the hold is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// `holds_pending`: how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// In a body of JSON: the field that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// `topic_subscribed`: which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<Vec<String>>,
    /// `not_ready`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<String>>,
}

/// Where a message is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishAnswer {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
}

/// A message that is held.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldAnswer {
    pub id: String,
    pub topic: String,
    /// `held`
    pub state: String,
    /// When it will be in its topic.
    pub due: String,
}

/// Where a message of a batch is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EntryAnswer {
    Published(PublishAnswer),
    Held(HeldAnswer),
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchAnswer {
    /// One answer each, in order.
    pub messages: Vec<EntryAnswer>,
}

/// An entry of a batch. It has exactly one of `payload`, `payload_base64` and `json`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = NewMessage)]
pub struct NewMessageDocument {
    /// A payload that is text.
    pub payload: Option<String>,
    /// A payload that is not.
    pub payload_base64: Option<String>,
    /// A payload that is JSON; its content type is then `application/json`.
    pub json: Option<Value>,
    pub key: Option<String>,
    /// An id of the publisher's own: a repeat returns the first answer.
    pub id: Option<String>,
    pub headers: Option<BTreeMap<String, String>>,
    pub content_type: Option<String>,
    /// Hold it for a duration such as `30s`, or so many milliseconds.
    pub delay: Option<String>,
    /// Hold it until this time.
    pub deliver_at: Option<String>,
}

/// A message as it is read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Message)]
pub struct MessageDocument {
    pub id: String,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    /// Absent where the message has no key.
    #[serde(default)]
    pub key: Option<String>,
    /// The key, where it is not UTF-8 text.
    #[serde(default)]
    pub key_base64: Option<String>,
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub content_type: Option<String>,
    pub published_at: String,
    /// When a message that was held was due.
    #[serde(default)]
    pub due: Option<String>,
    /// When a message that was held came into its topic.
    #[serde(default)]
    pub fired_at: Option<String>,
    /// A payload that is text.
    #[serde(default)]
    pub payload: Option<String>,
    /// A payload that is not.
    #[serde(default)]
    pub payload_base64: Option<String>,
}

/// What an id leads to.
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
    /// Where to read on.
    pub next_offset: u64,
}

/// A message in its topic, and what became of it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MessageState {
    /// `published`, or `fired` where it was held
    pub state: String,
    #[serde(flatten)]
    pub message: MessageDocument,
    /// What each subscription of its topic did with it.
    pub subscriptions: Vec<super::deliveries::DeliveryDocument>,
}

/// A message that is held, or that was held and is not in its topic: withdrawn, dead, or fired and no longer kept.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HeldMessageState {
    #[serde(flatten)]
    pub hold: HoldDocument,
    /// What each subscription did with it: nothing.
    pub subscriptions: Vec<Value>,
}

/// A hold: pending, or what became of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Hold)]
pub struct HoldDocument {
    pub id: String,
    /// Empty where the topic of a hold that is over is gone.
    pub topic: String,
    /// Of a pending one that has a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key, where it is not UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// `held`, `fired`, `withdrawn` or `dead`
    pub state: String,
    pub due: String,
    pub published_at: String,
    /// Of a pending one: what `if_version` compares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<String>,
    /// Of a fired one: where in its topic its message is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at: Option<String>,
    /// Why a dead one could never be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldList)]
pub struct HoldListDocument {
    /// In due order.
    pub holds: Vec<HoldDocument>,
    /// Where there may be more: go on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldCount)]
pub struct HoldCountDocument {
    pub count: u64,
    /// What comes due when, without the empty ones.
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

/// What a command did to a hold.
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
    /// Where its message is.
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
    /// How many records were looked at.
    pub scanned: u64,
    /// Whether everything that was asked about has been looked at.
    pub complete: bool,
    /// Where to look on, where it is not complete.
    #[serde(default)]
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    pub ready: bool,
    /// Trouble elsewhere that does not keep this process from serving, such as stale shards of presence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
