//! How a notice went, device by device, and what that means for the call that brought it. Pure.
//!
//! - A notice is done when every device that should have it has it, is gone, or is of a provider that is not configured; one that nobody
//!   can be woken by is done too, and counted. It is no error to have nobody.
//! - A device whose provider is out of reach or asks to wait makes the notice come back later, for that device alone. The answer is 424:
//!   it says that this notice failed and nothing about the others, so that one provider's trouble never stops another's notices.
//! - A refusal (a wrong key, a foreign app) makes the notice come back too where no device was woken, and at the end a dead letter with
//!   the provider's reason: most such refusals are a setting that an operator mends, and then redrives. Where another device has it the
//!   refusal is only counted.

use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::people::Platform;
use whimbrel_model::ports::{ANSWER_KEPT_BYTES, CallOutcome, Provider};

use super::limits::REASON_BYTES_MAX;

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
    /// It will not be better by itself.
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
            Self::Refused { .. } => "refused",
            Self::Later { .. } => "later",
        }
    }

    pub(super) fn gone(reason: impl Into<String>) -> Self {
        Self::Gone { reason: shortened(reason.into()) }
    }

    pub(super) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused { reason: shortened(reason.into()) }
    }

    pub(super) fn later(reason: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self::Later { reason: shortened(reason.into()), retry_after }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Gone { reason } | Self::Refused { reason } | Self::Later { reason, .. } => reason,
            Self::Sent | Self::AlreadySent | Self::NotConfigured => "",
        }
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
    Refused,
    Later,
}

impl Sum {
    pub const ALL: [Self; 5] = [Self::Expired, Self::Sent, Self::Nobody, Self::Refused, Self::Later];

    pub fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Sent => "sent",
            Self::Nobody => "nobody",
            Self::Refused => "refused",
            Self::Later => "later",
        }
    }
}

/// This notice failed because of a provider: it says nothing about other notices.
const FAILED_DEPENDENCY: u16 = 424;
/// No device can be given it as it is.
const UNPROCESSABLE: u16 = 422;
const DONE: u16 = 204;

impl Notified {
    pub fn sum(&self) -> Sum {
        let Self::Devices(devices) = self else { return Sum::Expired };
        let any = |is: fn(&Fate) -> bool| devices.iter().any(|device| is(&device.fate));
        if any(|fate| matches!(fate, Fate::Later { .. })) {
            Sum::Later
        } else if any(|fate| matches!(fate, Fate::Sent | Fate::AlreadySent)) {
            Sum::Sent
        } else if any(|fate| matches!(fate, Fate::Refused { .. })) {
            Sum::Refused
        } else {
            Sum::Nobody
        }
    }

    /// What the dispatcher is told.
    pub fn call_outcome(&self) -> CallOutcome {
        let (status, retry_after) = match self.sum() {
            Sum::Expired | Sum::Sent | Sum::Nobody => (DONE, None),
            Sum::Refused => (UNPROCESSABLE, None),
            Sum::Later => (FAILED_DEPENDENCY, self.retry_after()),
        };
        let answer = if status == DONE { Bytes::new() } else { self.reasons() };
        CallOutcome::Answered { status, retry_after, answer }
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

    /// For people who look at a dead letter: what each device that has no notice was refused for.
    fn reasons(&self) -> Bytes {
        let Self::Devices(devices) = self else { return Bytes::new() };
        let mut text = String::new();
        let without = |device: &&DeviceOutcome| !matches!(device.fate, Fate::Sent | Fate::AlreadySent);
        for device in devices.iter().filter(without) {
            if !text.is_empty() {
                text.push_str("; ");
            }
            let provider = provider_word(device.provider);
            text.push_str(&format!("{} ({provider}) {}", device.device, device.fate.word()));
            if !device.fate.reason().is_empty() {
                text.push_str(": ");
                text.push_str(device.fate.reason());
            }
        }
        text.truncate(text.floor_char_boundary(ANSWER_KEPT_BYTES));
        text.into()
    }
}

pub(super) const PROVIDERS: [Provider; 4] = [Provider::Apns, Provider::Fcm, Provider::Webpush, Provider::Http];

pub(super) fn provider_word(provider: Provider) -> &'static str {
    match provider {
        Provider::Apns => "apns",
        Provider::Fcm => "fcm",
        Provider::Webpush => "webpush",
        Provider::Http => "http",
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

    fn status(notified: &Notified) -> u16 {
        match notified.call_outcome() {
            CallOutcome::Answered { status, .. } => status,
            failed @ CallOutcome::Failed { .. } => panic!("{failed:?}"),
        }
    }

    #[test]
    fn a_notice_with_nobody_to_wake_is_done() {
        for fates in [&[][..], &[Fate::gone("x")], &[Fate::NotConfigured], &[Fate::gone("x"), Fate::NotConfigured]] {
            assert_eq!((notified(fates).sum(), status(&notified(fates))), (Sum::Nobody, 204));
        }
        assert_eq!((Notified::Expired.sum(), status(&Notified::Expired)), (Sum::Expired, 204));
    }

    #[test]
    fn a_notice_that_somebody_has_and_nobody_waits_for_is_done() {
        for other in [Fate::gone("x"), Fate::refused("x"), Fate::NotConfigured, Fate::AlreadySent] {
            let notified = notified(&[Fate::Sent, other]);
            assert_eq!((notified.sum(), status(&notified)), (Sum::Sent, 204));
        }
    }

    #[test]
    fn one_device_that_waits_brings_the_notice_back_and_blames_no_other_notice() {
        let notified = notified(&[Fate::Sent, Fate::refused("x"), later(Some(7)), later(Some(3))]);
        assert_eq!(notified.sum(), Sum::Later);
        let CallOutcome::Answered { status, retry_after, answer } = notified.call_outcome() else { panic!() };
        assert_eq!((status, retry_after), (424, Some(Duration::from_secs(3))));
        let text = "d1 (apns) refused: x; d2 (apns) later: busy; d3 (apns) later: busy";
        assert_eq!(answer, text.as_bytes());
    }

    #[test]
    fn who_was_not_asked_to_wait_does_not() {
        let outcome = notified(&[later(Some(7)), later(None)]).call_outcome();
        assert!(matches!(outcome, CallOutcome::Answered { status: 424, retry_after: None, .. }));
    }

    #[test]
    fn a_refusal_with_nobody_woken_is_a_failure_with_its_reason() {
        let outcome = notified(&[Fate::refused("BadTopic"), Fate::gone("Unregistered")]).call_outcome();
        let CallOutcome::Answered { status, answer, .. } = outcome else { panic!() };
        assert_eq!(status, 422);
        assert_eq!(answer, &b"d0 (apns) refused: BadTopic; d1 (apns) gone: Unregistered"[..]);
    }

    #[test]
    fn reasons_fit_into_what_is_kept_of_an_answer() {
        let many = vec![Fate::refused("ü".repeat(500)); 32];
        let CallOutcome::Answered { answer, .. } = notified(&many).call_outcome() else { panic!() };
        assert!(answer.len() <= ANSWER_KEPT_BYTES && std::str::from_utf8(&answer).is_ok());
    }
}
