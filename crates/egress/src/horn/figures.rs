//! The figures of the horn: notices by what they came to, devices by provider and what became of them.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use whimbrel_model::ports::Provider;

use super::outcome::{Fate, Sum};

/// Notices that ended, by what they came to.
pub const NOTICES: &str = "whimbrel_notices_total";
/// Devices of notices, by provider and what became of them.
pub const NOTICE_DEVICES: &str = "whimbrel_notice_devices_total";
/// How long a provider took for one device, in seconds.
pub const NOTICE_SECONDS: &str = "whimbrel_notice_seconds";

/// Every name above with what it means.
pub const NAMES: &[(&str, &str)] = &[
    (NOTICES, "Notices that ended, by outcome: sent, nobody, later, misconfigured, refused, expired"),
    (NOTICE_DEVICES, "Devices of notices, by provider and outcome"),
    (NOTICE_SECONDS, "Seconds that a provider took for one device"),
];

const FATES: [&str; 7] = ["sent", "already_sent", "gone", "not_configured", "misconfigured", "refused", "later"];

pub(super) struct HornFigures {
    notices: [Counter; Sum::ALL.len()],
    devices: [[Counter; FATES.len()]; Provider::ALL.len()],
    seconds: [Histogram; Provider::ALL.len()],
}

impl HornFigures {
    pub(super) fn new() -> Self {
        Self {
            notices: Sum::ALL.map(|sum| counter!(NOTICES, "outcome" => sum.word())),
            devices: Provider::ALL.map(|provider| {
                FATES.map(|fate| counter!(NOTICE_DEVICES, "provider" => provider.word(), "outcome" => fate))
            }),
            seconds: Provider::ALL.map(|provider| histogram!(NOTICE_SECONDS, "provider" => provider.word())),
        }
    }

    pub(super) fn notice(&self, sum: Sum) {
        if let Some(index) = Sum::ALL.iter().position(|each| *each == sum) {
            self.notices[index].increment(1);
        }
    }

    pub(super) fn device(&self, provider: Provider, fate: &Fate) {
        let fate = FATES.iter().position(|word| *word == fate.word());
        if let (Some(provider), Some(fate)) = (place_of(provider), fate) {
            self.devices[provider][fate].increment(1);
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
