//! The meaning of a provider's response: for the device, and for all notices of that provider.

use std::time::Duration;

use super::outcome::DeviceOutcome;
use super::provider_client::NoResponse;

/// The outcome of a call with a response, or of one without.
pub(super) type SendResult = Result<ProviderOutcome, ProviderOutcome>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProviderOutcome {
    pub(super) outcome: DeviceOutcome,
    /// The delay that the provider asked for, for all notices.
    pub(super) provider_wait: Option<Duration>,
    /// The delay that the provider asked for, for notices of this device. Several throttled devices pause the whole origin.
    pub(super) device_wait: Option<Duration>,
    /// There was no response in time.
    pub(super) is_silent: bool,
}

impl ProviderOutcome {
    /// A temporary failure. If the provider sent a `Retry-After`, all its notices wait.
    pub(super) fn provider_later(reason: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { provider_wait: retry_after, ..DeviceOutcome::later(reason, retry_after).into() }
    }

    /// A temporary failure. If the provider sent a `Retry-After`, the device's notices wait.
    pub(super) fn throttled(reason: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { device_wait: retry_after, ..DeviceOutcome::later(reason, retry_after).into() }
    }
}

impl From<DeviceOutcome> for ProviderOutcome {
    fn from(outcome: DeviceOutcome) -> Self {
        Self { outcome, provider_wait: None, device_wait: None, is_silent: false }
    }
}

impl From<NoResponse> for ProviderOutcome {
    fn from(no_answer: NoResponse) -> Self {
        match no_answer {
            NoResponse::Forbidden(reason) => DeviceOutcome::refused(reason).into(),
            NoResponse::Unreachable(reason) => Self { is_silent: true, ..DeviceOutcome::later(reason, None).into() },
        }
    }
}
