//! The outcome of a notice, device by device, and the result of its call. Pure.
//!
//! - A notice is done when each of its devices has received it or is gone. A notice without devices is done too, and counted; it is no
//!   error.
//! - If a device's provider is unavailable or asks for a delay, the notice is retried later, for that device only. The result affects this
//!   notice alone, so a failing provider does not delay notices of other providers.
//! - If no device was notified, the errors of the providers decide. A wrong setting (a key, a URL) is retried like an outage, because an
//!   operator may correct it. A permanent error (of the notice, of the device's registration, or a provider without settings) makes the
//!   notice a dead delivery at once, with the provider's reason.
//! - If another device was notified, such errors are only counted and reported as an event.

use std::time::Duration;

use whimbrel_model::people::Platform;
use whimbrel_model::ports::{CallOutcome, Provider, RetryAdvice};

use super::limits::{NOTICE_REASON_BYTES_MAX, REASON_BYTES_MAX};
use super::settings::BadKey;

/// The outcome of a notice for one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceOutcome {
    Sent,
    /// An earlier attempt notified the device.
    AlreadySent,
    /// The provider does not know the device any more. The device was removed from the registry.
    Gone {
        reason: String,
    },
    /// The provider has no settings on this node.
    NotConfigured,
    /// The provider rejected the settings of the call. A retry may find them corrected.
    Misconfigured {
        reason: String,
    },
    /// A permanent error.
    Refused {
        reason: String,
    },
    Later {
        reason: String,
        retry_after: Option<Duration>,
    },
}

impl DeviceOutcome {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::AlreadySent => "already_sent",
            Self::Gone { .. } => "gone",
            Self::NotConfigured => "not_configured",
            Self::Misconfigured { .. } => "misconfigured",
            Self::Refused { .. } => "refused",
            Self::Later { .. } => "later",
        }
    }

    pub(super) fn gone(reason: impl Into<String>) -> Self {
        Self::Gone { reason: shortened(reason.into()) }
    }

    pub(super) fn misconfigured(reason: impl Into<String>) -> Self {
        Self::Misconfigured { reason: shortened(reason.into()) }
    }

    pub(super) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused { reason: shortened(reason.into()) }
    }

    pub(super) fn later(reason: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self::Later { reason: shortened(reason.into()), retry_after }
    }

    /// Whether a retry cannot succeed.
    fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::NotConfigured)
    }
}

impl From<BadKey> for DeviceOutcome {
    fn from(bad: BadKey) -> Self {
        Self::misconfigured(bad.to_string())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceResult {
    pub device: String,
    pub platform: Platform,
    pub provider: Provider,
    pub outcome: DeviceOutcome,
}

/// The outcome of a notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoticeResult {
    /// The notice expired before it was sent.
    Expired,
    /// The devices of the notice; empty if there are none.
    Devices(Vec<DeviceResult>),
}

/// The combined outcome of all devices of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeOutcome {
    Expired,
    /// At least one device was notified, and none must be retried.
    Sent,
    /// No device can be notified.
    NoDevice,
    /// No device was notified because a setting is wrong. It may be corrected.
    Misconfigured,
    /// No device was notified, and a retry cannot succeed.
    Refused,
    Later,
}

impl NoticeOutcome {
    pub const ALL: [Self; 6] =
        [Self::Expired, Self::Sent, Self::NoDevice, Self::Misconfigured, Self::Refused, Self::Later];

    pub fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Sent => "sent",
            Self::NoDevice => "no_device",
            Self::Misconfigured => "misconfigured",
            Self::Refused => "refused",
            Self::Later => "later",
        }
    }
}

const DONE: u16 = 204;

impl NoticeResult {
    pub fn sum(&self) -> NoticeOutcome {
        let Self::Devices(devices) = self else { return NoticeOutcome::Expired };
        let any = |is: fn(&DeviceOutcome) -> bool| devices.iter().any(|device| is(&device.outcome));
        if any(|outcome| matches!(outcome, DeviceOutcome::Later { .. })) {
            NoticeOutcome::Later
        } else if any(|outcome| matches!(outcome, DeviceOutcome::Sent | DeviceOutcome::AlreadySent)) {
            NoticeOutcome::Sent
        } else if any(|outcome| matches!(outcome, DeviceOutcome::Misconfigured { .. })) {
            NoticeOutcome::Misconfigured
        } else if any(DeviceOutcome::is_final) {
            NoticeOutcome::Refused
        } else {
            NoticeOutcome::NoDevice
        }
    }

    /// The call outcome for the dispatcher.
    pub fn call_outcome(&self) -> CallOutcome {
        let again = match self.sum() {
            NoticeOutcome::Expired | NoticeOutcome::Sent | NoticeOutcome::NoDevice => {
                return CallOutcome::Answered { status: DONE, retry_after: None, answer: Default::default() };
            }
            NoticeOutcome::Misconfigured => RetryAdvice::Later(None),
            NoticeOutcome::Refused => RetryAdvice::Never,
            NoticeOutcome::Later => RetryAdvice::Later(self.retry_after()),
        };
        CallOutcome::NotTaken { reason: self.reasons(), again }
    }

    /// The shortest delay that a provider asked for, so that no device waits for another device's provider. A provider that is called too
    /// early is skipped until its delay ends.
    fn retry_after(&self) -> Option<Duration> {
        let Self::Devices(devices) = self else { return None };
        let mut shortest: Option<Duration> = None;
        for device in devices {
            match &device.outcome {
                DeviceOutcome::Later { retry_after: None, .. } => return None,
                DeviceOutcome::Later { retry_after: Some(wait), .. } => {
                    shortest = Some(shortest.map_or(*wait, |known| known.min(*wait)));
                }
                _ => {}
            }
        }
        shortest
    }

    /// The reason for each device without the notice. Operators see it in the subscription's status and in dead letters.
    fn reasons(&self) -> String {
        let Self::Devices(devices) = self else { return String::new() };
        let told = devices.iter().filter_map(|device| {
            let why = match &device.outcome {
                DeviceOutcome::Sent | DeviceOutcome::AlreadySent => return None,
                DeviceOutcome::Gone { reason } => format!("gone: {reason}"),
                DeviceOutcome::NotConfigured => {
                    format!(
                        "has no settings: {} on a node with the role horn, then redrive",
                        device.provider.missing_settings()
                    )
                }
                DeviceOutcome::Misconfigured { reason } => {
                    format!("settings rejected, will be retried: {reason}")
                }
                DeviceOutcome::Refused { reason } => format!("rejected permanently: {reason}"),
                DeviceOutcome::Later { reason, .. } => format!("failed temporarily: {reason}"),
            };
            Some(format!("{} ({}) {why}", device.device, device.provider.word()))
        });
        let mut text = told.collect::<Vec<_>>().join("; ");
        text.truncate(text.floor_char_boundary(NOTICE_REASON_BYTES_MAX));
        text
    }
}

fn shortened(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notified(outcomes: &[DeviceOutcome]) -> NoticeResult {
        let device = |(index, outcome): (usize, &DeviceOutcome)| DeviceResult {
            device: format!("d{index}"),
            platform: Platform::new("ios").unwrap(),
            provider: Provider::Apns,
            outcome: outcome.clone(),
        };
        NoticeResult::Devices(outcomes.iter().enumerate().map(device).collect())
    }

    fn later(seconds: Option<u64>) -> DeviceOutcome {
        DeviceOutcome::later("busy", seconds.map(Duration::from_secs))
    }

    fn is_done(notified: &NoticeResult) -> bool {
        matches!(notified.call_outcome(), CallOutcome::Answered { status: 204, .. })
    }

    fn not_taken(notified: &NoticeResult) -> (String, RetryAdvice) {
        match notified.call_outcome() {
            CallOutcome::NotTaken { reason, again } => (reason, again),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_notice_without_devices_is_done() {
        for outcomes in [&[][..], &[DeviceOutcome::gone("x")]] {
            let notified = notified(outcomes);
            assert!(notified.sum() == NoticeOutcome::NoDevice && is_done(&notified));
        }
        assert!(NoticeResult::Expired.sum() == NoticeOutcome::Expired && is_done(&NoticeResult::Expired));
    }

    #[test]
    fn a_notice_that_one_device_received_and_none_waits_for_is_done() {
        let others = [
            DeviceOutcome::gone("x"),
            DeviceOutcome::refused("x"),
            DeviceOutcome::misconfigured("x"),
            DeviceOutcome::NotConfigured,
            DeviceOutcome::AlreadySent,
        ];
        for other in others {
            let notified = notified(&[DeviceOutcome::Sent, other]);
            assert!(notified.sum() == NoticeOutcome::Sent && is_done(&notified));
        }
    }

    #[test]
    fn one_device_with_a_temporary_failure_delays_only_its_own_notice() {
        let notified = notified(&[DeviceOutcome::Sent, DeviceOutcome::refused("x"), later(Some(7)), later(Some(3))]);
        assert_eq!(notified.sum(), NoticeOutcome::Later);
        let text =
            "d1 (apns) rejected permanently: x; d2 (apns) failed temporarily: busy; d3 (apns) failed temporarily: busy";
        assert_eq!(not_taken(&notified), (text.to_owned(), RetryAdvice::Later(Some(Duration::from_secs(3)))));
    }

    #[test]
    fn a_device_without_a_requested_delay_follows_the_schedule() {
        assert_eq!(not_taken(&notified(&[later(Some(7)), later(None)])).1, RetryAdvice::Later(None));
    }

    #[test]
    fn a_permanent_error_without_a_notified_device_is_not_retried_and_has_its_reason() {
        let notified = notified(&[DeviceOutcome::refused("BadPriority"), DeviceOutcome::gone("Unregistered")]);
        let text = "d0 (apns) rejected permanently: BadPriority; d1 (apns) gone: Unregistered";
        assert_eq!(
            (notified.sum(), not_taken(&notified)),
            (NoticeOutcome::Refused, (text.to_owned(), RetryAdvice::Never))
        );
    }

    #[test]
    fn a_rejected_setting_is_retried() {
        let notified = notified(&[
            DeviceOutcome::misconfigured("InvalidProviderToken"),
            DeviceOutcome::refused("x"),
            DeviceOutcome::NotConfigured,
        ]);
        assert_eq!((notified.sum(), not_taken(&notified).1), (NoticeOutcome::Misconfigured, RetryAdvice::Later(None)));
    }

    #[test]
    fn the_reason_of_a_provider_without_settings_names_the_missing_ones() {
        let (reason, again) = not_taken(&notified(&[DeviceOutcome::NotConfigured]));
        assert!(reason.contains("horn.apns.key_file") && again == RetryAdvice::Never, "{reason}");
    }

    #[test]
    fn reasons_are_bounded() {
        let (reason, _) = not_taken(&notified(&vec![DeviceOutcome::refused("ü".repeat(500)); 32]));
        assert!(reason.len() <= NOTICE_REASON_BYTES_MAX);
    }
}
