//! The metrics of the worker: calls by outcome, their duration, connections.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use whimbrel_model::ports::{CallFailure, CallOutcome, CallReport};

/// Completed calls, by outcome: `2xx` to `5xx`, or the kind of the failure.
pub const CALLBACKS: &str = "whimbrel_callbacks_total";
pub const CALLBACK_SECONDS: &str = "whimbrel_callback_seconds";
pub const CALLBACKS_IN_FLIGHT: &str = "whimbrel_callbacks_in_flight";
pub const CONNECTIONS_OPENED: &str = "whimbrel_callback_connections_total";

/// Every metric of this module with its description.
pub const NAMES: &[(&str, &str)] = &[
    (CALLBACKS, "Completed callbacks, by outcome: the class of the status, or the failure"),
    (CALLBACK_SECONDS, "Duration of a callback including the connect, in seconds"),
    (CALLBACKS_IN_FLIGHT, "Callbacks in progress"),
    (CONNECTIONS_OPENED, "Connections opened to subscribers"),
];

const CLASSES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];
const FAILURES: [CallFailure; 6] = [
    CallFailure::Connect,
    CallFailure::Timeout,
    CallFailure::Forbidden,
    CallFailure::Tls,
    CallFailure::Broken,
    CallFailure::BadTarget,
];

pub(super) struct WorkerMetrics {
    answered: [Counter; CLASSES.len()],
    failed: [Counter; FAILURES.len()],
    seconds: Histogram,
    pub(super) in_flight: Gauge,
    pub(super) connections_opened: Counter,
}

impl WorkerMetrics {
    pub(super) fn new() -> Self {
        Self {
            answered: CLASSES.map(|class| counter!(CALLBACKS, "outcome" => class)),
            failed: FAILURES.map(|failure| counter!(CALLBACKS, "outcome" => failure.word())),
            seconds: histogram!(CALLBACK_SECONDS),
            in_flight: gauge!(CALLBACKS_IN_FLIGHT),
            connections_opened: counter!(CONNECTIONS_OPENED),
        }
    }

    pub(super) fn ended(&self, called: &CallReport) {
        self.seconds.record(called.took);
        match &called.outcome {
            CallOutcome::Answered { status, .. } => {
                let class = Some(usize::from(status / 100)).filter(|class| (1..=5).contains(class)).unwrap_or(0);
                self.answered[class].increment(1);
            }
            CallOutcome::Failed { why, .. } => {
                if let Some(index) = FAILURES.iter().position(|failure| failure == why) {
                    self.failed[index].increment(1);
                }
            }
            // A worker never returns this outcome.
            CallOutcome::NotTaken { .. } => {}
        }
    }
}
