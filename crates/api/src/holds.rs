//! Holds: their state, lists and counts, and the results of commands.

use serde::{Deserialize, Serialize};

/// A hold, pending or ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Hold))]
pub struct HoldInfo {
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HoldList))]
pub struct HoldPage {
    /// Ordered by due time.
    pub holds: Vec<HoldInfo>,
    /// Present if there may be more: pass it to get the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = HoldCount))]
pub struct HoldCounts {
    pub count: u64,
    /// The number of due holds in each interval. Empty intervals are left out.
    pub buckets: Vec<HoldBucket>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HoldBucket {
    pub from: String,
    pub to: String,
    pub count: u64,
}

/// The result of a command on a hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HoldOutcome {
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

/// The change of a hold's due time: exactly one of `by` and `until`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtendBody {
    /// A duration such as `10m` (later) or `-10m` (earlier), or a number of milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub by: Option<By>,
    /// A time in RFC 3339. A past time fires the hold now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Fails unless the hold has this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
}

/// A relative change of a due time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "`by` must be a duration such as `10m`, or a number of milliseconds")]
pub enum By {
    Millis(i64),
    Text(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fired_hold_is_decoded_with_its_further_members() {
        let text = r#"{"id":"a","topic":"t","state":"fired","due":"x","published_at":"y","fired_at":"z"}"#;
        let hold: HoldInfo = serde_json::from_str(text).unwrap();
        assert_eq!((hold.version, hold.fired_at.as_deref()), (None, Some("z")));
        assert_eq!(serde_json::to_value(&hold).unwrap(), serde_json::from_str::<serde_json::Value>(text).unwrap());
    }

    #[test]
    fn the_last_page_has_no_cursor() {
        let page: HoldPage = serde_json::from_str(r#"{"holds":[],"cursor":null}"#).unwrap();
        assert_eq!(page, HoldPage { holds: Vec::new(), cursor: None });
    }

    #[test]
    fn an_extension_by_neither_a_duration_nor_a_number_is_explained() {
        let error = serde_json::from_str::<ExtendBody>(r#"{"by":true}"#).unwrap_err();
        assert!(error.to_string().starts_with("`by` must be a duration such as `10m`"), "{error}");
    }
}
