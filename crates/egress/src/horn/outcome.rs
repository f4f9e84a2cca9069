//! How a notice went, device by device, and what that means for the call that brought it. Pure.
//!
//! - A notice is done when every device that should have it has it or is gone; one that nobody is registered for is done too, and
//!   counted. It is no error to have nobody.
//! - A device whose provider is out of reach or asks to wait makes the notice come back later, for that device alone. It says that this
//!   notice failed and nothing about the others, so that one provider's trouble never stops another's notices.
//! - Where no device was woken, what providers object to decides. A setting that is wrong (a key, a URL) is tried again as an outage is:
//!   somebody may mend it meanwhile. What no repeat can mend (the notice itself, the device's registration, a provider without settings)
//!   is a dead letter at once, with the provider's own reason.
//! - Where another device has it, such objections are counted and told by an event, and no more.

use std::time::Duration;

use whimbrel_model::people::Platform;
use whimbrel_model::ports::{Again, CallOutcome, Provider};

use super::limits::{NOTICE_REASON_BYTES_MAX, REASON_BYTES_MAX};

/// What became of one device's notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Sent,
    /// It had it by an earlier attempt.
    AlreadySent,
    /// Its provider knows it no more: it was taken out of the registry.
    Gone {
        reason: String,
    },
    /// Its provider has no settings here.
    NotConfigured,
    /// The provider does not like the settings that it is called with: a repeat may find them mended.
    Misconfigured {
        reason: String,
    },
    /// No repeat can mend it.
    Refused {
        reason: String,
    },
    Later {
        reason: String,
        retry_after: Option<Duration>,
    },
}

impl Fate {
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

    /// Whether the device will never have the notice, as far as this attempt tells.
    fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::NotConfigured)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOutcome {
    pub device: String,
    pub platform: Platform,
    pub provider: Provider,
    pub fate: Fate,
}

/// How a notice went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notified {
    /// It came too late to be of use: nobody was woken.
    Expired,
    /// Those devices that it was for; none where there is nobody to wake.
    Devices(Vec<DeviceOutcome>),
}

/// What a notice's outcomes come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    Expired,
    /// At least one device has it, and none is to be tried again.
    Sent,
    /// There is no device that could have it.
    Nobody,
    /// Nobody has it: a setting is wrong, and may be mended.
    Misconfigured,
    /// Nobody has it, and nobody will by a repeat.
    Refused,
    Later,
}

impl Sum {
    pub const ALL: [Self; 6] =
        [Self::Expired, Self::Sent, Self::Nobody, Self::Misconfigured, Self::Refused, Self::Later];

    pub fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Sent => "sent",
            Self::Nobody => "nobody",
            Self::Misconfigured => "misconfigured",
            Self::Refused => "refused",
            Self::Later => "later",
        }
    }
}

/// What a notice that is done with is answered with.
const DONE: u16 = 204;

impl Notified {
    pub fn sum(&self) -> Sum {
        let Self::Devices(devices) = self else { return Sum::Expired };
        let any = |is: fn(&Fate) -> bool| devices.iter().any(|device| is(&device.fate));
        if any(|fate| matches!(fate, Fate::Later { .. })) {
            Sum::Later
        } else if any(|fate| matches!(fate, Fate::Sent | Fate::AlreadySent)) {
            Sum::Sent
        } else if any(|fate| matches!(fate, Fate::Misconfigured { .. })) {
            Sum::Misconfigured
        } else if any(Fate::is_final) {
            Sum::Refused
        } else {
            Sum::Nobody
        }
    }

    /// What the dispatcher is told.
    pub fn call_outcome(&self) -> CallOutcome {
        let again = match self.sum() {
            Sum::Expired | Sum::Sent | Sum::Nobody => {
                return CallOutcome::Answered { status: DONE, retry_after: None, answer: Default::default() };
            }
            Sum::Misconfigured => Again::Later(None),
            Sum::Refused => Again::Never,
            Sum::Later => Again::Later(self.retry_after()),
        };
        CallOutcome::NotTaken { reason: self.reasons(), again }
    }

    /// The shortest that a provider asked for, so that no device waits for another's provider; one that is asked too early is passed over
    /// until its time has come.
    fn retry_after(&self) -> Option<Duration> {
        let Self::Devices(devices) = self else { return None };
        let mut shortest: Option<Duration> = None;
        for device in devices {
            match &device.fate {
                Fate::Later { retry_after: None, .. } => return None,
                Fate::Later { retry_after: Some(wait), .. } => {
                    shortest = Some(shortest.map_or(*wait, |known| known.min(*wait)));
                }
                _ => {}
            }
        }
        shortest
    }

    /// For people who look at the subscription or at a dead letter: why each device has no notice.
    fn reasons(&self) -> String {
        let Self::Devices(devices) = self else { return String::new() };
        let told = devices.iter().filter_map(|device| {
            let why = match &device.fate {
                Fate::Sent | Fate::AlreadySent => return None,
                Fate::Gone { reason } => format!("gone: {reason}"),
                Fate::NotConfigured => {
                    format!(
                        "has no settings: {} where the role horn runs, and redrive",
                        device.provider.missing_settings()
                    )
                }
                Fate::Misconfigured { reason } => format!("refused until somebody mends it: {reason}"),
                Fate::Refused { reason } => format!("refused for good: {reason}"),
                Fate::Later { reason, .. } => format!("not now: {reason}"),
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

    fn notified(fates: &[Fate]) -> Notified {
        let device = |(index, fate): (usize, &Fate)| DeviceOutcome {
            device: format!("d{index}"),
            platform: Platform::new("ios").unwrap(),
            provider: Provider::Apns,
            fate: fate.clone(),
        };
        Notified::Devices(fates.iter().enumerate().map(device).collect())
    }

    fn later(seconds: Option<u64>) -> Fate {
        Fate::later("busy", seconds.map(Duration::from_secs))
    }

    fn is_done(notified: &Notified) -> bool {
        matches!(notified.call_outcome(), CallOutcome::Answered { status: 204, .. })
    }

    fn not_taken(notified: &Notified) -> (String, Again) {
        match notified.call_outcome() {
            CallOutcome::NotTaken { reason, again } => (reason, again),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_notice_with_nobody_to_wake_is_done() {
        for fates in [&[][..], &[Fate::gone("x")]] {
            let notified = notified(fates);
            assert!(notified.sum() == Sum::Nobody && is_done(&notified));
        }
        assert!(Notified::Expired.sum() == Sum::Expired && is_done(&Notified::Expired));
    }

    #[test]
    fn a_notice_that_somebody_has_and_nobody_waits_for_is_done() {
        let others =
            [Fate::gone("x"), Fate::refused("x"), Fate::misconfigured("x"), Fate::NotConfigured, Fate::AlreadySent];
        for other in others {
            let notified = notified(&[Fate::Sent, other]);
            assert!(notified.sum() == Sum::Sent && is_done(&notified));
        }
    }

    #[test]
    fn one_device_that_waits_brings_the_notice_back_and_blames_no_other_notice() {
        let notified = notified(&[Fate::Sent, Fate::refused("x"), later(Some(7)), later(Some(3))]);
        assert_eq!(notified.sum(), Sum::Later);
        let text = "d1 (apns) refused for good: x; d2 (apns) not now: busy; d3 (apns) not now: busy";
        assert_eq!(not_taken(&notified), (text.to_owned(), Again::Later(Some(Duration::from_secs(3)))));
    }

    #[test]
    fn who_was_not_asked_to_wait_does_not() {
        assert_eq!(not_taken(&notified(&[later(Some(7)), later(None)])).1, Again::Later(None));
    }

    #[test]
    fn a_refusal_with_nobody_woken_is_never_tried_again_and_says_why() {
        let notified = notified(&[Fate::refused("BadPriority"), Fate::gone("Unregistered")]);
        let text = "d0 (apns) refused for good: BadPriority; d1 (apns) gone: Unregistered";
        assert_eq!((notified.sum(), not_taken(&notified)), (Sum::Refused, (text.to_owned(), Again::Never)));
    }

    #[test]
    fn a_setting_that_may_be_mended_is_tried_again() {
        let notified =
            notified(&[Fate::misconfigured("InvalidProviderToken"), Fate::refused("x"), Fate::NotConfigured]);
        assert_eq!((notified.sum(), not_taken(&notified).1), (Sum::Misconfigured, Again::Later(None)));
    }

    #[test]
    fn a_provider_without_settings_says_which_ones_are_missing() {
        let (reason, again) = not_taken(&notified(&[Fate::NotConfigured]));
        assert!(reason.contains("horn.apns.key_file") && again == Again::Never, "{reason}");
    }

    #[test]
    fn reasons_are_bounded() {
        let (reason, _) = not_taken(&notified(&vec![Fate::refused("ü".repeat(500)); 32]));
        assert!(reason.len() <= NOTICE_REASON_BYTES_MAX);
    }
}
