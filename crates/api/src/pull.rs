//! Pulls: messages under a lease, and their acknowledgement.

use serde::{Deserialize, Serialize};

use crate::messages::Message;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PullBody {
    /// The maximum number of messages: 1 to 1000, default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// How long to wait if there is no message yet, such as `5s`. At most `60s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = PullAnswer))]
pub struct PulledBatch {
    pub messages: Vec<PulledMessage>,
}

/// A message under a lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PulledMessage {
    /// The id with which to acknowledge the message.
    pub ack_id: String,
    /// Acknowledge, nack or extend the message before this time. Otherwise it is delivered again.
    pub lease_until: String,
    /// Counts from 1.
    pub attempt: u32,
    #[serde(flatten)]
    pub message: Message,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AckBody {
    pub ack_ids: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NackBody {
    pub ack_ids: Vec<String>,
    /// The delay before the messages are delivered again. Default: the retry schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeaseBody {
    pub ack_ids: Vec<String>,
    /// The new lease, from now on. Default: the `lease` of the subscription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Settled {
    pub known: usize,
    /// Ids that are unknown or whose lease has expired.
    pub unknown: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulled_message_is_decoded_with_its_lease() {
        let text = r#"{"ack_id":"x","attempt":1,"lease_until":"t","id":"a","topic":"t","partition":0,"offset":3,"headers":{},"published_at":"t","payload":"p"}"#;
        let pulled: PulledMessage = serde_json::from_str(text).unwrap();
        assert_eq!((pulled.ack_id.as_str(), pulled.message.offset, pulled.message.bytes()), ("x", 3, Some("p".into())));
    }
}
