//! Events: what an operator wants to know afterwards. They end as records of the system topic `_events`.

use std::sync::Arc;

/// The system topic that events are read from.
pub const EVENTS_TOPIC: &str = "_events";

/// How much an event concerns whoever is on duty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLevel {
    Notice,
    Warning,
    /// Something does not work until somebody acts.
    Failure,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub level: EventLevel,
    /// A stable word: `topic_grown`, `damage_found`, `disk_full`, `disk_has_room`.
    pub kind: &'static str,
    /// One sentence for people.
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

/// Where engines and roles put events. It must not block: it is called from a log's own threads.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;
