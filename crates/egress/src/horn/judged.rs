//! What a provider's answer means: for the device, and for everybody who wants that provider.

use std::time::Duration;

use super::client::NoAnswer;
use super::outcome::Fate;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) fate: Fate,
    /// The provider asked to be left alone by everybody for so long.
    pub(super) everybody_waits: Option<Duration>,
    /// So long the provider asked to be left alone with what is for this device; several devices that are told so speak for all.
    pub(super) device_waits: Option<Duration>,
    /// Nobody answered, or not in time.
    pub(super) is_silent: bool,
}

impl Judged {
    /// Nobody is to call it for a while, where it said how long.
    pub(super) fn everybody_later(reason: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { everybody_waits: retry_after, ..Fate::later(reason, retry_after).into() }
    }

    /// Nobody is to call this device for a while, where the provider said how long.
    pub(super) fn throttled(reason: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { device_waits: retry_after, ..Fate::later(reason, retry_after).into() }
    }
}

impl From<Fate> for Judged {
    fn from(fate: Fate) -> Self {
        Self { fate, everybody_waits: None, device_waits: None, is_silent: false }
    }
}

impl From<NoAnswer> for Judged {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::Forbidden(reason) => Fate::refused(reason).into(),
            NoAnswer::Unreachable(reason) => Self { is_silent: true, ..Fate::later(reason, None).into() },
        }
    }
}
