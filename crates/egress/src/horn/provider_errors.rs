//! Events about providers that notify no device, at a bounded rate: the first error of each provider and kind is reported at once, later
//! ones are counted and reported every [`COMPLAIN_EVERY`]. Pure: the time is passed in.

use std::collections::HashMap;

use whimbrel_model::ports::Provider;
use whimbrel_model::{Event, Timestamp};

use super::limits::COMPLAIN_EVERY;
use super::outcome::DeviceOutcome;

/// The last report for each provider and kind of event. The number of pairs is fixed.
#[derive(Default)]
pub(super) struct ProviderErrors {
    told: HashMap<(Provider, &'static str), ErrorReport>,
}

struct ErrorReport {
    at: Timestamp,
    /// Devices with the error since the report.
    count: u64,
}

impl ProviderErrors {
    /// The event for a device's outcome, if the outcome is an error and may be reported now.
    pub(super) fn about(&mut self, provider: Provider, outcome: &DeviceOutcome, now: Timestamp) -> Option<Event> {
        let word = provider.word();
        let event = match outcome {
            DeviceOutcome::NotConfigured => {
                let detail = format!(
                    "no device can be notified through {word}: {} on a node with the role horn",
                    provider.missing_settings()
                );
                Event::warning("provider_not_configured", detail)
            }
            DeviceOutcome::Misconfigured { reason } => {
                let detail = format!("{word} rejects the settings of a call, which is retried: {reason}");
                Event::warning("provider_settings_rejected", detail).with("reason", reason)
            }
            DeviceOutcome::Refused { reason } => {
                let detail = format!("{word} rejected a notice permanently: {reason}");
                Event::warning("notice_rejected", detail).with("reason", reason)
            }
            DeviceOutcome::Sent
            | DeviceOutcome::AlreadySent
            | DeviceOutcome::Gone { .. }
            | DeviceOutcome::Later { .. } => return None,
        };
        let count = self.count((provider, event.kind), now)?;
        Some(event.with("provider", word).with("count", count))
    }

    /// The number of errors since the last report, including this one. `None`: it may not be reported yet.
    fn count(&mut self, of: (Provider, &'static str), now: Timestamp) -> Option<u64> {
        let Some(told) = self.told.get_mut(&of) else {
            self.told.insert(of, ErrorReport { at: now, count: 0 });
            return Some(1);
        };
        told.count += 1;
        let since_ms = now.as_millis().saturating_sub(told.at.as_millis());
        // A clock that was set back must not suppress reports.
        if (0..COMPLAIN_EVERY.as_millis() as i64).contains(&since_ms) {
            return None;
        }
        told.at = now;
        Some(std::mem::take(&mut told.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn field<'a>(event: &'a Event, name: &str) -> &'a str {
        event.fields.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    #[test]
    fn an_error_is_reported_at_once_and_then_counted_for_a_while() {
        let mut complaints = ProviderErrors::default();
        let first = complaints.about(Provider::Apns, &DeviceOutcome::NotConfigured, at(0)).unwrap();
        assert!(first.kind == "provider_not_configured" && first.detail.contains("horn.apns.key_file"), "{first:?}");
        for ms in [1, 59_999] {
            assert_eq!(complaints.about(Provider::Apns, &DeviceOutcome::NotConfigured, at(ms)), None);
        }
        let later = complaints.about(Provider::Apns, &DeviceOutcome::NotConfigured, at(60_000)).unwrap();
        assert_eq!((field(&first, "count"), field(&later, "count"), field(&later, "provider")), ("1", "3", "apns"));
    }

    #[test]
    fn each_provider_and_each_kind_of_error_is_reported() {
        let mut complaints = ProviderErrors::default();
        let kinds = [DeviceOutcome::NotConfigured, DeviceOutcome::misconfigured("403"), DeviceOutcome::refused("413")];
        for (provider, outcome) in
            [Provider::Apns, Provider::Fcm].iter().flat_map(|by| kinds.iter().map(move |f| (by, f)))
        {
            assert!(complaints.about(*provider, outcome, at(0)).is_some(), "{provider:?} {outcome:?}");
        }
        for outcome in [DeviceOutcome::Sent, DeviceOutcome::gone("x"), DeviceOutcome::later("x", None)] {
            assert_eq!(complaints.about(Provider::Http, &outcome, at(0)), None);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_suppresses_no_report() {
        let mut complaints = ProviderErrors::default();
        assert!(complaints.about(Provider::Http, &DeviceOutcome::refused("x"), at(1_000_000)).is_some());
        assert!(complaints.about(Provider::Http, &DeviceOutcome::refused("x"), at(0)).is_some());
    }
}
