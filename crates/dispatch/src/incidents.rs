//! The incidents of a subscription that become events: a stall and its end, once each, and new dead letters, as one event for many. Pure.

use whimbrel_model::Event;

/// Why deliveries cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallReason {
    ParkedFull,
    RetriesFull,
    LogUnavailable,
    StoreUnavailable,
}

impl StallReason {
    pub fn word(self) -> &'static str {
        match self {
            Self::ParkedFull => "parked_full",
            Self::RetriesFull => "retries_full",
            Self::LogUnavailable => "log_unavailable",
            Self::StoreUnavailable => "store_unavailable",
        }
    }

    fn explanation(self) -> &'static str {
        match self {
            Self::ParkedFull => "as much is parked behind failing messages as `subscriptions.parked_bytes` allows",
            Self::RetriesFull => "as many retries wait as `subscriptions.retry_holds` allows",
            Self::LogUnavailable => "the log does not answer",
            Self::StoreUnavailable => "its progress cannot be saved",
        }
    }
}

#[derive(Default)]
pub struct Incidents {
    stalled: Option<StallReason>,
    /// Dead letters since the last event, and the reason of the last one.
    buried: u64,
    buried_lastly: String,
    /// Why the runner cannot continue.
    failure: Option<String>,
}

impl Incidents {
    /// Records that the runner cannot continue.
    pub fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    pub fn stalled(&self) -> Option<StallReason> {
        self.stalled
    }

    /// Sets the stall of the subscription `name`. Returns an event if it changed.
    pub fn set_stalled(&mut self, stalled: Option<StallReason>, name: &str) -> Option<Event> {
        if std::mem::replace(&mut self.stalled, stalled) == stalled {
            return None;
        }
        let event = match stalled {
            Some(why) => {
                let detail = format!("subscription `{name}` is stalled: {}", why.explanation());
                Event::warning("subscription_stalled", detail).with("reason", why.word())
            }
            None => Event::new("subscription_unstalled", format!("subscription `{name}` resumes")),
        };
        Some(event.with("subscription", name))
    }

    /// Ends a stall, if it has this reason.
    pub fn end_stall(&mut self, reason: StallReason, name: &str) -> Option<Event> {
        (self.stalled == Some(reason)).then(|| self.set_stalled(None, name)).flatten()
    }

    /// Sets a stall at a limit, or ends it. A stall of the log or the store ends only when they work again.
    pub fn check_limits(&mut self, at_limit: Option<StallReason>, name: &str) -> Option<Event> {
        match self.stalled {
            Some(StallReason::LogUnavailable | StallReason::StoreUnavailable) => None,
            _ => self.set_stalled(at_limit, name),
        }
    }

    /// Records a dead letter and its reason.
    pub fn buried(&mut self, reason: String) {
        self.buried += 1;
        self.buried_lastly = reason;
    }

    /// One event for all dead letters since the last one.
    pub fn take_buried(&mut self, name: &str) -> Option<Event> {
        let count = std::mem::take(&mut self.buried);
        if count == 0 {
            return None;
        }
        let reason = std::mem::take(&mut self.buried_lastly);
        let messages = if count == 1 { "a message".to_owned() } else { format!("{count} messages") };
        let detail = format!("{messages} of subscription `{name}` became dead letters; last reason: {reason}");
        Some(Event::warning("dead_letter", detail).with("subscription", name).with("count", count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_reported_once_and_one_of_the_log_ends_only_with_the_log() {
        let mut incidents = Incidents::default();
        assert!(incidents.check_limits(Some(StallReason::ParkedFull), "a").is_some());
        assert!(incidents.check_limits(Some(StallReason::ParkedFull), "a").is_none());
        assert!(incidents.set_stalled(Some(StallReason::LogUnavailable), "a").is_some());
        assert!(incidents.check_limits(None, "a").is_none());
        assert!(incidents.end_stall(StallReason::StoreUnavailable, "a").is_none());
        assert!(incidents.end_stall(StallReason::LogUnavailable, "a").is_some());
        assert_eq!(incidents.stalled(), None);
    }

    #[test]
    fn many_dead_letters_are_one_event() {
        let mut incidents = Incidents::default();
        assert!(incidents.take_buried("a").is_none());
        incidents.buried("first".to_owned());
        incidents.buried("second".to_owned());
        assert!(incidents.take_buried("a").is_some());
        assert!(incidents.take_buried("a").is_none());
    }
}
