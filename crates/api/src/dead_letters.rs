//! Dead letters of subscriptions, and the request to redrive them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A message that could not be delivered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DeadLetter))]
pub struct DeadLetterInfo {
    pub id: String,
    /// The topic, partition and offset of the message.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, if it is not UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    pub reason: String,
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u16>,
    /// The start of the last answer's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_answer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at: Option<String>,
    /// Its offset in the topic of dead letters, `_dead.<subscription>`.
    pub dead_offset: u64,
    /// Members that this version does not know.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DeadLetterList))]
pub struct DeadLetterPage {
    /// The oldest first, without those that were redriven.
    pub dead_letters: Vec<DeadLetterInfo>,
    /// Present if there may be more: pass it to get the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The dead letters to redrive: exactly one of the two fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RedriveBody))]
pub struct Redrive {
    /// The ids of the messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
}

impl Redrive {
    /// Selects all dead letters.
    pub fn all() -> Self {
        Self { ids: None, all: Some(true) }
    }

    /// Selects the dead letters of these messages.
    pub fn ids(ids: &[String]) -> Self {
        Self { ids: Some(ids.to_vec()), all: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = RedriveAnswer))]
pub struct Redriven {
    /// The number of messages that are delivered again.
    pub redriven: u64,
    /// Ids without a dead letter, or whose dead letters were all redriven already.
    pub unknown: Vec<String>,
}
