//! Holds: messages that arrive later, as the server shows them and as they are moved.

use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

/// A hold as the server shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldInfo {
    pub id: String,
    pub topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `held` while it is pending; `fired`, `withdrawn` or `dead` after.
    pub state: String,
    /// A time in RFC 3339.
    pub due: String,
    #[serde(default)]
    pub published_at: String,
    /// What `if_version` of an extension compares. Only what is pending has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Whatever else the server says of it: `fired_at`, or the `reason` of a dead one.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// When a hold shall be due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewDue {
    /// So much later than it was due, or earlier: `10m`, `-10m`.
    By(String),
    /// A time in RFC 3339; one in the past fires now.
    Until(String),
}

/// What to do to a hold's due time, and under which conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    pub to: NewDue,
    /// Only where the hold has this version.
    pub if_version: Option<u64>,
    /// Makes a repeat return the first answer: with [`NewDue::By`] the hold is moved once, not twice.
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

/// The request's body; the idempotency key is a header.
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

/// What a command about a hold did. It is definite: it stays true.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldOutcome {
    /// `rescheduled`, `withdrawn` or `fired`.
    pub outcome: String,
    /// When it is due now, of a hold that was rescheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Whatever else the server says: where a hold's message is that fired.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

/// Which holds to list or to count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldFilter {
    pub topic: Option<String>,
    /// Due at this time or later, in RFC 3339.
    pub from: Option<String>,
    /// Due before this time, in RFC 3339.
    pub to: Option<String>,
    /// `dead`: those that could never be written. Pending ones where nothing is said.
    pub state: Option<String>,
    /// At most so many; the server has a default.
    pub limit: Option<usize>,
    /// What [`HoldPage::cursor`] said: goes on behind that.
    pub cursor: Option<String>,
}

/// Some holds in due order, and where to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HoldPage {
    pub holds: Vec<HoldInfo>,
    /// Nothing: there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// How many holds come due when.
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
    fn an_extension_says_by_or_until_and_never_its_key() {
        let by = Extension::by("10m").idempotency_key("k");
        assert_eq!(serde_json::to_string(&by).unwrap(), r#"{"by":"10m"}"#);
        let until = Extension::until("2026-01-31T09:30:00Z").if_version(7);
        assert_eq!(serde_json::to_string(&until).unwrap(), r#"{"until":"2026-01-31T09:30:00Z","if_version":7}"#);
    }

    #[test]
    fn a_hold_that_is_over_is_read_with_what_became_of_it() {
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
