//! Events: incidents that Whimbrel reports to operators, as records of the system topic `_events`.

use std::sync::Arc;

pub const EVENTS_TOPIC: &str = "_events";

/// The severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLevel {
    Notice,
    Warning,
    /// A function stays unavailable until an operator acts.
    Failure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub level: EventLevel,
    /// A stable identifier: `topic_grown`, `damage_found`, `disk_full`, `disk_space_recovered`.
    pub kind: &'static str,
    /// One sentence for operators.
    pub detail: String,
    /// Names and values for programs.
    pub fields: Vec<(&'static str, String)>,
}

impl Event {
    pub fn new(kind: &'static str, detail: impl Into<String>) -> Self {
        Self { level: EventLevel::Notice, kind, detail: detail.into(), fields: Vec::new() }
    }

    pub fn warning(kind: &'static str, detail: impl Into<String>) -> Self {
        Self { level: EventLevel::Warning, ..Self::new(kind, detail) }
    }

    pub fn failure(kind: &'static str, detail: impl Into<String>) -> Self {
        Self { level: EventLevel::Failure, ..Self::new(kind, detail) }
    }

    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.fields.push((name, value.to_string()));
        self
    }
}

/// Receives the events of engines and roles. It must not block: the log's own threads call it.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;
