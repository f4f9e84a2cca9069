//! Holds (messages with a due time): queries, commands and their results.

use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldInfo {
    pub id: String,
    pub topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `held` while pending; then `fired`, `withdrawn` or `dead`.
    pub state: String,
    /// A time in RFC 3339.
    pub due: String,
    #[serde(default)]
    pub published_at: String,
    /// The version for [`Extension::if_version`]. Only pending holds have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Other members of the response: `fired_at`, or the `reason` of a dead hold.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// A new due time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewDue {
    /// Relative to the present due time: `10m` later, `-10m` earlier.
    By(String),
    /// A time in RFC 3339. A time in the past fires the hold now.
    Until(String),
}

/// A change of a hold's due time, with its conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    pub to: NewDue,
    /// The request fails unless the hold has this version.
    pub if_version: Option<u64>,
    /// A repeat with the same key returns the first result: with [`NewDue::By`] the hold is moved once, not twice.
    pub idempotency_key: Option<String>,
}

impl Extension {
    pub fn by(duration: impl Into<String>) -> Self {
        Self::to(NewDue::By(duration.into()))
    }

    pub fn until(time: impl Into<String>) -> Self {
        Self::to(NewDue::Until(time.into()))
    }

    pub fn to(to: NewDue) -> Self {
        Self { to, if_version: None, idempotency_key: None }
    }

    pub fn if_version(mut self, version: u64) -> Self {
        self.if_version = Some(version);
        self
    }

    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// The request body. The idempotency key is a header.
impl Serialize for Extension {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.to {
            NewDue::By(duration) => map.serialize_entry("by", duration)?,
            NewDue::Until(time) => map.serialize_entry("until", time)?,
        }
        if let Some(version) = self.if_version {
            map.serialize_entry("if_version", &version)?;
        }
        map.end()
    }
}

/// The result of a command about a hold. It is final.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldOutcome {
    /// `rescheduled`, `withdrawn` or `fired`.
    pub outcome: String,
    /// The new due time of a rescheduled hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Other members of the response: the location of a fired message.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// Selects the holds to list or count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldFilter {
    pub topic: Option<String>,
    /// Due at this time or later, in RFC 3339.
    pub from: Option<String>,
    /// Due before this time, in RFC 3339.
    pub to: Option<String>,
    /// `dead`: holds that could not be fired. `None`: pending holds.
    pub state: Option<String>,
    /// The maximum number of holds. `None`: the server's default.
    pub limit: Option<usize>,
    /// Continue from this [`HoldPage::cursor`].
    pub cursor: Option<String>,
}

/// A page of holds in due order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldPage {
    pub holds: Vec<HoldInfo>,
    /// The start of the next page. `None`: this is the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The number of pending holds, in total and by due time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldCounts {
    pub count: u64,
    #[serde(default)]
    pub buckets: Vec<HoldBucket>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldBucket {
    pub from: String,
    pub to: String,
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_contains_by_or_until_and_never_its_key() {
        let by = Extension::by("10m").idempotency_key("k");
        assert_eq!(serde_json::to_string(&by).unwrap(), r#"{"by":"10m"}"#);
        let until = Extension::until("2026-01-31T09:30:00Z").if_version(7);
        assert_eq!(serde_json::to_string(&until).unwrap(), r#"{"until":"2026-01-31T09:30:00Z","if_version":7}"#);
    }

    #[test]
    fn a_fired_hold_is_decoded_with_its_further_members() {
        let text = r#"{"id":"a","topic":"t","state":"fired","due":"x","published_at":"y","fired_at":"z"}"#;
        let hold: HoldInfo = serde_json::from_str(text).unwrap();
        assert_eq!((hold.version, &hold.more["fired_at"]), (None, &"z".into()));
        assert_eq!(serde_json::to_value(&hold).unwrap(), serde_json::from_str::<serde_json::Value>(text).unwrap());
    }

    #[test]
    fn the_last_page_has_no_cursor() {
        let page: HoldPage = serde_json::from_str(r#"{"holds":[],"cursor":null}"#).unwrap();
        assert_eq!(page, HoldPage { holds: Vec::new(), cursor: None });
    }
}
