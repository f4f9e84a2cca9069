//! What an operator is told about providers that wake nobody, at a bounded rate: each provider's trouble of each kind at once, and then
//! counted until it may be told again. Pure: the time is passed in.

use std::collections::HashMap;

use whimbrel_model::ports::Provider;
use whimbrel_model::{Event, Timestamp};

use super::limits::COMPLAIN_EVERY;
use super::outcome::Fate;

/// By provider and kind of event: as many as there are providers and kinds.
#[derive(Default)]
pub(super) struct Complaints {
    told: HashMap<(Provider, &'static str), Told>,
}

struct Told {
    at: Timestamp,
    /// Devices since then.
    count: u64,
}

impl Complaints {
    /// The event that what became of a device is, where it is one and its time has come.
    pub(super) fn about(&mut self, provider: Provider, fate: &Fate, now: Timestamp) -> Option<Event> {
        let word = provider.word();
        let event = match fate {
            Fate::NotConfigured => {
                let detail = format!(
                    "nobody can be woken through {word}: {} where the role horn runs",
                    provider.missing_settings()
                );
                Event::warning("provider_not_configured", detail)
            }
            Fate::Misconfigured { reason } => {
                let detail = format!("{word} does not like how it is called, and is tried again: {reason}");
                Event::warning("provider_settings_refused", detail).with("reason", reason)
            }
            Fate::Refused { reason } => {
                let detail = format!("{word} refuses a notice, which no repeat can mend: {reason}");
                Event::warning("notice_refused", detail).with("reason", reason)
            }
            Fate::Sent | Fate::AlreadySent | Fate::Gone { .. } | Fate::Later { .. } => return None,
        };
        let count = self.count((provider, event.kind), now)?;
        Some(event.with("provider", word).with("count", count))
    }

    /// How many there were since the last time, this one included, where it is told now.
    fn count(&mut self, of: (Provider, &'static str), now: Timestamp) -> Option<u64> {
        let Some(told) = self.told.get_mut(&of) else {
            self.told.insert(of, Told { at: now, count: 0 });
            return Some(1);
        };
        told.count += 1;
        let since_ms = now.as_millis().saturating_sub(told.at.as_millis());
        // A clock that was put back is no reason to be silent.
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
    fn a_trouble_is_told_at_once_and_then_counted_for_a_while() {
        let mut complaints = Complaints::default();
        let first = complaints.about(Provider::Apns, &Fate::NotConfigured, at(0)).unwrap();
        assert!(first.kind == "provider_not_configured" && first.detail.contains("horn.apns.key_file"), "{first:?}");
        for ms in [1, 59_999] {
            assert_eq!(complaints.about(Provider::Apns, &Fate::NotConfigured, at(ms)), None);
        }
        let later = complaints.about(Provider::Apns, &Fate::NotConfigured, at(60_000)).unwrap();
        assert_eq!((field(&first, "count"), field(&later, "count"), field(&later, "provider")), ("1", "3", "apns"));
    }

    #[test]
    fn another_provider_and_another_trouble_are_told_beside_it() {
        let mut complaints = Complaints::default();
        let kinds = [Fate::NotConfigured, Fate::misconfigured("403"), Fate::refused("413")];
        for (provider, fate) in [Provider::Apns, Provider::Fcm].iter().flat_map(|by| kinds.iter().map(move |f| (by, f)))
        {
            assert!(complaints.about(*provider, fate, at(0)).is_some(), "{provider:?} {fate:?}");
        }
        for fate in [Fate::Sent, Fate::gone("x"), Fate::later("x", None)] {
            assert_eq!(complaints.about(Provider::Http, &fate, at(0)), None);
        }
    }

    #[test]
    fn a_clock_that_was_put_back_silences_nobody() {
        let mut complaints = Complaints::default();
        assert!(complaints.about(Provider::Http, &Fate::refused("x"), at(1_000_000)).is_some());
        assert!(complaints.about(Provider::Http, &Fate::refused("x"), at(0)).is_some());
    }
}
