//! Holds (messages with a due time): queries and commands.

use whimbrel_api::holds::{By, ExtendBody};

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

    /// The request body. The idempotency key is a header.
    pub(crate) fn body(&self) -> ExtendBody {
        let (by, until) = match &self.to {
            NewDue::By(duration) => (Some(By::Text(duration.clone())), None),
            NewDue::Until(time) => (None, Some(time.clone())),
        };
        ExtendBody { by, until, if_version: self.if_version }
    }

    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_contains_by_or_until_and_never_its_key() {
        let by = Extension::by("10m").idempotency_key("k");
        assert_eq!(serde_json::to_string(&by.body()).unwrap(), r#"{"by":"10m"}"#);
        let until = Extension::until("2026-01-31T09:30:00Z").if_version(7);
        assert_eq!(serde_json::to_string(&until.body()).unwrap(), r#"{"until":"2026-01-31T09:30:00Z","if_version":7}"#);
    }
}
