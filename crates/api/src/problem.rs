//! Problems and readiness: the answers to requests that fail, and the answer of `/readyz`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A problem, in the format of RFC 9457.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// A stable code for programs to branch on.
    pub code: String,
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schema(inline))]
    pub members: ProblemMembers,
}

/// The members that only some codes have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProblemMembers {
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
    /// Members that this version does not know.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Ready))]
pub struct Readiness {
    pub ready: bool,
    /// Conditions that do not prevent this process from serving, such as stale shards of presence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_keeps_its_further_members() {
        let text = r#"{"type":"about:blank","title":"Bad entry","status":422,"code":"bad_entry","detail":"no","index":3,"new":1}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((problem.status, problem.code.as_str()), (422, "bad_entry"));
        assert_eq!((problem.members.index, &problem.members.more["new"]), (Some(3), &1.into()));
    }
}
