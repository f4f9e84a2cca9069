//! The metrics of the horn: notices by outcome, devices by provider and outcome.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use whimbrel_model::ports::Provider;

use super::outcome::{DeviceOutcome, NoticeOutcome};

pub const NOTICES: &str = "whimbrel_notices_total";
pub const NOTICE_DEVICES: &str = "whimbrel_notice_devices_total";
pub const NOTICE_SECONDS: &str = "whimbrel_notice_seconds";

/// Every metric of this module with its description.
pub const NAMES: &[(&str, &str)] = &[
    (NOTICES, "Completed notices, by outcome"),
    (NOTICE_DEVICES, "Devices of notices, by provider and outcome"),
    (NOTICE_SECONDS, "Duration of a provider's call for one device, in seconds"),
];

const OUTCOMES: [&str; 7] = ["sent", "already_sent", "gone", "not_configured", "misconfigured", "refused", "later"];

pub(super) struct HornMetrics {
    notices: [Counter; NoticeOutcome::ALL.len()],
    devices: [[Counter; OUTCOMES.len()]; Provider::ALL.len()],
    seconds: [Histogram; Provider::ALL.len()],
}

impl HornMetrics {
    pub(super) fn new() -> Self {
        Self {
            notices: NoticeOutcome::ALL.map(|sum| counter!(NOTICES, "outcome" => sum.word())),
            devices: Provider::ALL.map(|provider| {
                OUTCOMES.map(|outcome| counter!(NOTICE_DEVICES, "provider" => provider.word(), "outcome" => outcome))
            }),
            seconds: Provider::ALL.map(|provider| histogram!(NOTICE_SECONDS, "provider" => provider.word())),
        }
    }

    pub(super) fn notice(&self, sum: NoticeOutcome) {
        if let Some(index) = NoticeOutcome::ALL.iter().position(|each| *each == sum) {
            self.notices[index].increment(1);
        }
    }

    pub(super) fn device(&self, provider: Provider, outcome: &DeviceOutcome) {
        let outcome = OUTCOMES.iter().position(|word| *word == outcome.word());
        if let (Some(provider), Some(outcome)) = (place_of(provider), outcome) {
            self.devices[provider][outcome].increment(1);
        }
    }

    pub(super) fn took(&self, provider: Provider, took: Duration) {
        if let Some(provider) = place_of(provider) {
            self.seconds[provider].record(took);
        }
    }
}

fn place_of(provider: Provider) -> Option<usize> {
    Provider::ALL.iter().position(|each| *each == provider)
}
